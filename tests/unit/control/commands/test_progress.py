"""Progress: sums, watermarks and lag as they are printed, on a terminal and elsewhere."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console

from millpond.control.commands.progress import Progress
from millpond.followers.runner import FollowerStatus
from millpond.log.records import EpochRecord
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.windows import Sliding
from millpond.plan.groups.build import build_plan
from millpond.spark.driver.epochs import Epoch
from millpond.spark.reading.intake import Behind

SECOND = 1_000_000
QUERY = Query(
    "spend", "tx", "ts", 10 * SECOND, Sliding(60 * SECOND, 60 * SECOND), (Column("c", "string"),),
    (Aggregate("count", None, None, "bigint"),), (Named("n", Column("agg:0", "bigint")),),
)  # fmt: skip


class Bench:
    """A progress with a clock, followers and a console of the test's own."""

    def __init__(self, terminal: bool = False) -> None:
        self.now = 1_000 * SECOND
        self.statuses: Sequence[FollowerStatus] = ()
        self.out = io.StringIO()
        console = Console(file=self.out, force_terminal=terminal, width=200)
        self.behind: Sequence[Behind] = ()
        self.progress = Progress(
            build_plan([QUERY]), lambda: self.statuses, console, lambda: self.now, lambda: self.behind
        )

    def epoch(self, n: int, events: int, newest: int, **quarantined: str) -> None:
        counts = {"*": {"events": events, "bytes_moved": 7}, "spend": {"rows": 2, "late": 1, "dead": 0}}
        record = EpochRecord(
            n=n, writer="w", prev="", at=0, spark_query="", batch=n, start={}, end={},
            max_time={"tx": {"*": newest}}, counts=counts, quarantined=quarantined,
        )  # fmt: skip
        self.progress.epoch(Epoch(record, 0.5))


def test_plain_lines_come_at_most_once_a_second_and_none_is_lost() -> None:
    bench = Bench()
    with bench.progress:
        for n in range(1, 6):
            bench.now += SECOND // 4
            bench.epoch(n, 100, (70 + n) * SECOND)
    lines = bench.out.getvalue().splitlines()
    assert len(lines) == 2
    first = "epoch 1  100 events  200/s  tx to 1970-01-01 00:01:01Z  rows: spend 2  sinks up to date"
    assert lines[0].startswith(first)
    assert lines[1].startswith("epoch 5  500 events")
    assert (bench.progress.rows, bench.progress.late, bench.progress.bytes_moved) == ({"spend": 10}, 5, 35)


def test_the_rate_falls_without_input() -> None:
    bench = Bench()
    bench.epoch(1, 1000, SECOND)
    before = bench.progress.events_per_second()
    bench.now += 10 * SECOND
    assert bench.progress.events_per_second() < before / 10


def test_a_watermark_never_decreases() -> None:
    bench = Bench()
    bench.epoch(1, 1, 100 * SECOND)
    bench.epoch(2, 1, 50 * SECOND)
    assert bench.progress.watermarks() == {"tx": "1970-01-01 00:01:30Z"}


def test_lag_names_the_worst_follower() -> None:
    bench = Bench()
    bench.statuses = [FollowerStatus("a", 1, 1), FollowerStatus("prune", 0, 9), FollowerStatus("view", 3, 5)]
    assert bench.progress.lag() == "view 5 records of the log behind"
    bench.statuses = [FollowerStatus("view", 3, 900, remaining_s=12.0)]
    assert bench.progress.lag() == "view 900 records of the log behind, about 12 seconds left"
    bench.statuses = [FollowerStatus("a", 1, 2, 1, "disk full"), FollowerStatus("view", 3, 5)]
    assert bench.progress.lag() == "a 2 records of the log behind: disk full"
    bench.statuses = [FollowerStatus("a", 5, 0), FollowerStatus("view", 5, 0, note="7 buckets were replayed")]
    assert bench.progress.lag() == "sinks up to date; view: 7 buckets were replayed"


def test_input_that_waits_is_not_called_up_to_date() -> None:
    bench = Bench()
    bench.behind = [Behind("tx", "records", 100_000), Behind("new", "records", None)]
    assert bench.progress.lag() == "tx 100,000 records behind  sinks up to date"


def test_a_quarantined_query_is_marked() -> None:
    bench = Bench()
    bench.statuses = [FollowerStatus("query:spend", 5, 0, note="[MP-OVERFLOW] it is quarantined")]
    bench.epoch(1, 5, SECOND, spend="[MP-OVERFLOW] Too large.")
    assert "rows: spend 2 (quarantined)  sinks up to date\n" in bench.out.getvalue()


def test_a_terminal_shows_a_table() -> None:
    bench = Bench(terminal=True)
    with bench.progress:
        bench.epoch(1, 1234, 100 * SECOND)
    assert "1,234" in bench.out.getvalue()
    assert "rows of spend" in bench.out.getvalue()
