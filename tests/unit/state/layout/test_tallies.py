"""Tallies that are added up, compared with a loop over their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millpond.state.layout.event_log import Events
from millpond.state.layout.tallies import COUNT, added_up

ENDS = (-(2**63), 2**63 - 1)
COLUMNS = st.sampled_from(
    [
        (pa.int64(), st.integers(0, 3) | st.none()),
        (pa.int64(), st.sampled_from([*ENDS, 0, None])),
        (pa.int64(), st.integers(0, 2**40)),
        (pa.int32(), st.integers(-3, 3)),
        (pa.bool_(), st.booleans() | st.none()),
        (pa.string(), st.sampled_from(["", "a", "b", None])),
        (pa.int8(), st.none()),
    ]
)


@given(st.data())
def test_equal_tallies_are_added_up(data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, 40))
    kinds = data.draw(st.lists(COLUMNS, max_size=6))
    drawn = [data.draw(st.lists(values, min_size=rows, max_size=rows)) for _, values in kinds]
    leading = [data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)) for _ in range(3)]
    counts = data.draw(st.lists(st.integers(1, 9), min_size=rows, max_size=rows))
    columns = {f"v:{i}": pa.array(values, kind) for i, ((kind, _), values) in enumerate(zip(kinds, drawn, strict=True))}
    slots, times, classes = (np.array(column, np.int64) for column in leading)
    found = added_up(Events(slots, times, classes, columns | {COUNT: pa.array(counts, pa.int64())}))

    expected: dict[tuple[Any, ...], int] = {}
    for *key, count in zip(*leading, *drawn, counts, strict=True):
        expected[tuple(key)] = expected.get(tuple(key), 0) + count
    names = [name for name in found.columns if name != COUNT]
    parts = [part.tolist() for part in (found.slots, found.times_us, found.late_class)]
    parts += [found.columns[name].to_pylist() for name in (*names, COUNT)]
    assert {tuple(key): count for *key, count in zip(*parts, strict=True)} == expected
    assert found.rows == len(expected)
