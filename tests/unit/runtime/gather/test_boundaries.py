"""The boundaries of lateness and of windows, as the table in `docs/design/late-events.md` lists them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from msgspec import UNSET, UnsetType

from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.stream import Field, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.testing import Trial

SECOND = 1_000_000
STREAM = Stream("tx", (Field("ts", "timestamp"), Field("k", "string")))
BEGIN = datetime(2024, 1, 1, tzinfo=timezone.utc)


def trial(delay_us: int, late_by: str | UnsetType = UNSET, size_us: int = 10 * SECOND) -> Trial:
    """A count in windows that start every 10 seconds."""
    output = (Named("w", Column("window", WINDOW)), Named("n", Column("agg:0", "bigint")))
    query = Query(
        "q", "tx", "ts", delay_us, Sliding(size_us, 10 * SECOND), (Column("k", "string"),),
        (Aggregate("count", None, None, "bigint"),), output, late_by=late_by,
    )  # fmt: skip
    return Trial.of([STREAM], [query])


def feed(one: Trial, us: int) -> None:
    one.feed("tx", [{"ts": BEGIN + timedelta(microseconds=us), "k": "a"}])


@pytest.mark.parametrize(
    ("delay_us", "newest_us", "then_us", "late"),
    [
        (5 * SECOND, 8 * SECOND, 3 * SECOND, 1),  # older by exactly the delay, in an open window
        (5 * SECOND, 8 * SECOND, 3 * SECOND + 1, 0),
        (5 * SECOND, 8 * SECOND, 2 * SECOND, 1),  # older by more than the delay, in an open window
        (0, 8 * SECOND, 8 * SECOND, 1),  # equal to the newest event of the epoch before
        (0, 8 * SECOND, 8 * SECOND + 1, 0),
        (1000, 8 * SECOND, 8 * SECOND, 0),
    ],
)
def test_an_event_is_late_at_the_watermark(delay_us: int, newest_us: int, then_us: int, late: int) -> None:
    with trial(delay_us) as one:
        feed(one, newest_us)
        feed(one, then_us)
        assert one.fates("q")["late"] == late


@pytest.mark.parametrize(
    ("delay_us", "newest_us", "then_us", "late", "size_us"),
    [
        (5 * SECOND, 8 * SECOND, 3 * SECOND, 0, 10 * SECOND),  # older by exactly the delay, in an open window
        (5 * SECOND, 15 * SECOND - 1, 0, 0, 10 * SECOND),  # older by more than the delay, in an open window
        (5 * SECOND, 15 * SECOND, 10 * SECOND - 1, 1, 10 * SECOND),  # the window has closed
        (0, 8 * SECOND, 8 * SECOND, 0, 10 * SECOND),  # equal to the newest event of the epoch before
        (0, 10 * SECOND, 10 * SECOND - 1, 1, 10 * SECOND),
        (0, 20 * SECOND, 15 * SECOND, 1, 20 * SECOND),  # one of its two windows has closed
        (0, 20 * SECOND - 1, 15 * SECOND, 0, 20 * SECOND),
    ],
)
def test_by_window_an_event_is_late_when_its_first_window_has_closed(
    delay_us: int, newest_us: int, then_us: int, late: int, size_us: int
) -> None:
    with trial(delay_us, "window", size_us) as one:
        feed(one, newest_us)
        feed(one, then_us)
        assert one.fates("q")["late"] == late


@pytest.mark.parametrize(("newest_us", "rows"), [(15 * SECOND - 1, 0), (15 * SECOND, 1)])
def test_a_window_closes_at_the_watermark(newest_us: int, rows: int) -> None:
    with trial(5 * SECOND) as one:
        feed(one, 8 * SECOND)
        feed(one, newest_us)
        assert one.table("q").num_rows == rows


def test_events_of_one_epoch_do_not_judge_each_other_without_an_order() -> None:
    with trial(0) as one:
        one.feed("tx", [{"ts": BEGIN + timedelta(seconds=second), "k": "a"} for second in (8, 8, 2)])
        assert one.fates("q") == {"read": 3, "late": 0, "dead": 0, "filtered": 0, "applied": 3}
