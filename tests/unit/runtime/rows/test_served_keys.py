"""The text under which a served row is stored: unchanged from earlier versions, and defined for every date and time."""

from __future__ import annotations

import datetime as dt

import msgspec
import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millpond.runtime.rows.served_keys import served_key


def texts(column: pa.Array) -> list[str]:
    found: list[str] = served_key([column], len(column), 8, None)[0].to_pylist()
    return found


@given(st.lists(st.none() | st.dates()), st.lists(st.none() | st.datetimes()))
def test_dates_and_times_that_python_has_are_text_as_msgspec_writes_it(
    dates: list[dt.date | None], times: list[dt.datetime | None]
) -> None:
    aware = [None if time is None else time.replace(tzinfo=dt.UTC) for time in times]
    kinds = {"date": pa.date32(), "plain": pa.timestamp("us"), "zoned": pa.timestamp("us", "UTC")}
    for kind, values in zip(kinds.values(), (dates, times, aware), strict=True):
        wanted = [f"[{msgspec.json.encode(value).decode()}]" for value in values]
        assert texts(pa.array(values, kind)) == wanted


def test_dates_and_times_beyond_the_years_that_python_has_are_text_too() -> None:
    days = np.array(["9999-12-31", "10000-01-01", "0001-01-01", "0000-12-31", "-0043-03-15"], "M8[D]")
    wanted = [f'["{day}"]' for day in days]
    column = pa.array(days.astype(np.int64).astype(np.int32)).view(pa.date32())
    assert texts(column) == wanted
    assert texts(column.slice(1, 2)) == wanted[1:3]
    micros = pa.array([253402300800000000, None, -62135596800000001, 0, -(1 << 63), (1 << 63) - 1])
    plain = ['["10000-01-01T00:00:00.000000"]', "[null]", '["0000-12-31T23:59:59.999999"]', '["1970-01-01T00:00:00"]']
    found = texts(micros.view(pa.timestamp("us")))
    assert found[:4] == plain and len({*found}) == 6
    assert texts(micros.view(pa.timestamp("us", "UTC")))[0] == '["10000-01-01T00:00:00.000000Z"]'
