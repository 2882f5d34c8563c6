"""The limit on malformed records among the newest ones, and which dead letters a task holds."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest

from millpond.errors import SourceError
from millpond.log.records import EpochRecord
from millpond.plan.groups.build import build_plan
from millpond.runtime.gather import dead_letters
from millpond.runtime.gather.dead_letters import Breaker, DeadLetters
from millpond.runtime.gather.gather import gather
from millpond.runtime.packets.unpack import combine_packets
from millpond.runtime.task.column_layout import DEAD, ReadLayout
from millpond.runtime.task.counters import WHOLE_POND, stream_counts
from millpond.runtime.task.task_values import GatherTask

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


def test_an_event_without_a_computed_time_is_stored_once_and_stays_an_event() -> None:
    """Rows are copies of records for two derived streams; in `None` the copy has a time."""
    task = GatherTask(build_plan(()), ReadLayout((), (("tx", "dead-letter", None),)), {}, (0,), 1)
    letters = DeadLetters(task)
    rows = [(1, 3), (2, 3), (1, None), (2, 4), (1, 5), (DEAD, 6), (DEAD, None), (1, 5)]
    fields = {"stream": "tx", "topic": "t", "partition": 0, "reason": "r", "value": b"v"}

    def batch(part: list[tuple[int, int | None]]) -> pa.RecordBatch:
        details = [None if offset is None else fields | {"offset": offset} for _, offset in part]
        return pa.RecordBatch.from_pydict(
            {"stream": pa.array([stream for stream, _ in part], pa.int32()), "dead": pa.array(details)}
        )

    batches = [batch(rows[:1]), batch(rows[1:5]), batch(rows[5:7]), batch(rows[:2])]
    alive = [row for found in letters.alive(batches) if found for row in found.column(0).to_pylist()]
    assert alive == [1, 2, 1, 2, 1, 1, 2]
    (packet,) = [data for _, data in letters.packets(0)]
    contents = combine_packets([pa.py_buffer(packet)])
    assert [offset for found in contents.dead["tx"] for offset in found["offset"].to_pylist()] == [3, 4, 5, 6, 3]
    assert contents.counters.of(stream_counts("tx")).malformed == contents.counters.of(WHOLE_POND).events == 1


def test_malformed_records_are_sent_although_no_other_records_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"stream": "tx", "topic": "t", "partition": 0, "reason": "r", "value": b"x" * 100}
    task = GatherTask(build_plan(()), ReadLayout((), (("tx", "dead-letter", None),)), {}, (0,), 1)
    read = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for read in range(1, 10):
            rows = {"stream": pa.array([DEAD], pa.int32()), "dead": pa.array([fields | {"offset": read}])}
            yield pa.RecordBatch.from_pydict(rows)

    monkeypatch.setattr(dead_letters, "LIMIT_BYTES", 250)
    sent = [(read, data) for _, data in gather(task, batches(), 0)]
    assert [when for when, _ in sent] == [2, 4, 6, 8, 9, 9]  # the last one has no dead letters
    contents = combine_packets([pa.py_buffer(data) for _, data in reversed(sent)])
    assert [offset for found in contents.dead["tx"] for offset in found["offset"].to_pylist()] == [*range(1, 10)]


def test_a_last_column_of_another_kind_is_no_dead_letter() -> None:
    """Functions read the rows of a source whose malformed records are only counted."""
    task = GatherTask(build_plan(()), ReadLayout((), (("tx", "drop", None),)), {}, (0,), 1)
    batch = pa.RecordBatch.from_pydict({"stream": pa.array([0], pa.int32()), "c0_0": pa.array([{"v": 1}])})
    assert [*DeadLetters(task).alive([batch])] == [batch]
