"""The first window of a text of several steps is that of the step before the last one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from millpond.model.change_history import StoredQuery
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.types import WINDOW
from millpond.model.windows import Range, Sliding
from millpond.plan.options.first_complete_window import FirstWindow, first_window
from millpond.plan.upstream.rows_as_stream import chained_stream

HOUR, MINUTE = 3_600_000_000, 60_000_000
HOURLY = Query("step", "tx", "ts", MINUTE, Sliding(HOUR, HOUR), (), (), (Named("w", Column("window", WINDOW)),))
TOP = Query("top", "step", "w.time", 0, Range(0), (), (), ())
STREAM = replace(chained_stream(HOURLY), inner=StoredQuery.of(HOURLY))


@pytest.mark.parametrize(
    ("time", "complete_from_us", "hour"),
    [
        ("w.time", 2 * HOUR - 1, 1), ("w.time", 2 * HOUR, 2), ("w.time", 2 * HOUR + MINUTE, 2),
        ("w.end", 2 * HOUR, 1), ("w.end", 2 * HOUR + 1, 2), ("w.start", HOUR, 1), ("w.start", HOUR + 1, 2),
    ],
)  # fmt: skip
def test_a_rank_in_windows_begins_with_the_first_window_whose_bound_is_late_enough(
    time: str, complete_from_us: int, hour: int
) -> None:
    found = first_window(replace(TOP, event_time=time), complete_from_us, None, [STREAM])
    assert found == FirstWindow(hour * HOUR, (hour + 1) * HOUR, (hour + 1) * HOUR + MINUTE)


@pytest.mark.parametrize(
    ("time", "closed_us", "hour"),
    [("w.time", 3 * HOUR - 2, 2), ("w.time", 3 * HOUR - 1, 3), ("w.end", 3 * HOUR, 3), ("w.start", 2 * HOUR, 3)],
)
def test_windows_up_to_the_watermark_of_the_last_step_are_left_out(time: str, closed_us: int, hour: int) -> None:
    top = replace(TOP, event_time=time)
    found = first_window(top, HOUR, closed_us, [STREAM])
    assert found == first_window(top, closed_us + 1, None, [STREAM]) and found.start_us == hour * HOUR
    assert first_window(top, 5 * HOUR, closed_us, [STREAM]) == first_window(top, 5 * HOUR, None, [STREAM])


def test_without_a_step_of_windows_there_is_none() -> None:
    assert first_window(TOP, HOUR) is None and first_window(TOP, None, None, [STREAM]) is None
    assert first_window(replace(TOP, event_time="n"), HOUR, None, [STREAM]) is None
    events = replace(STREAM, inner=StoredQuery.of(replace(HOURLY, window=Range(0))))
    assert first_window(TOP, HOUR, None, [events]) is None
