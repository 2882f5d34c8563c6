"""The limit on malformed records among the newest ones."""

from __future__ import annotations

import json

import pytest

from millpond.errors import SourceError
from millpond.log.records import EpochRecord
from millpond.runtime.gather.dead_letters import Breaker
from millpond.runtime.task.column_layout import ReadLayout
from millpond.runtime.task.counters import WHOLE_POND, stream_counts

LAYOUT = ReadLayout((), (("tx", "drop", 0.1), ("other", "drop", None)))


def epoch(start: int | None, end: int, malformed: int) -> EpochRecord:
    offsets = [{} if at is None else {"tx": json.dumps({"t": {"0": at}})} for at in (start, end)]
    counts = {stream_counts("tx"): {"malformed": malformed}, WHOLE_POND: {"events": end - (start or 0)}}
    return EpochRecord(
        n=1, writer="w", prev="", at=0, spark_query="q", batch=1, start=offsets[0], end=offsets[1], counts=counts
    )


def test_few_records_never_stop_a_stream() -> None:
    Breaker().check(LAYOUT, epoch(0, 100, 100))
    Breaker().check(LAYOUT, epoch(None, 100, 100))
    Breaker().check(None, epoch(0, 9999, 9999))


def test_a_stream_stops_when_too_many_of_the_newest_do_not_parse() -> None:
    breaker = Breaker()
    for n in range(20):  # long ago
        breaker.check(LAYOUT, epoch(n * 500, n * 500 + 500, 50))
    breaker.check(LAYOUT, epoch(10_000, 10_500, 50))
    with pytest.raises(SourceError, match="101 of the newest 1000 records of the stream tx are malformed"):
        breaker.check(LAYOUT, epoch(10_500, 11_000, 51))


@pytest.mark.parametrize("start", [0, None])
def test_a_large_epoch_is_judged_by_itself(start: int | None) -> None:
    Breaker().check(LAYOUT, epoch(start, 5000, 500))
    with pytest.raises(SourceError, match="501 of the newest 5000"):
        Breaker().check(LAYOUT, epoch(start, 5000, 501))
