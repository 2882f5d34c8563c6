"""Late events on timelines: compared with their own partition, with the stream, too far ahead, idle."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kit.inputs.committed_epochs import committed
from millpond.log.records import EpochRecord
from millpond.model.stream import Order, Stream
from millpond.runtime.gather.lateness import Judge, advanced, late_classes
from millpond.runtime.scheduling.idle_partitions import IdleWatch
from millpond.runtime.task.task_values import TimeLine, Watermark

NONE = np.zeros((), bool)


def classes(line: TimeLine, times: list[int], delays: tuple[int, ...], partitions: str = "") -> list[int]:
    """Lateness classes of events in the order of their offsets; `partitions` has a letter per event."""
    names = pa.array(list(partitions)) if partitions else None
    offsets = np.arange(len(times)) if partitions else None
    judged = Judge(line, None).judge(np.array(times), NONE, names, offsets)
    return late_classes(np.array(times), judged, line.mark.floor_us, delays).tolist()


def test_without_an_order_the_watermark_of_the_begin_decides() -> None:
    #  0 ───── 7 ── 10 ── 12 ──▶      watermark 10 for delay 0, 7 for delay 3
    line = TimeLine(Watermark(10))
    assert classes(line, [12, 10, 8, 7, 11], (0, 3)) == [0, 1, 1, 2, 0]


def test_in_order_each_event_is_judged_by_what_came_before_it() -> None:
    #  offset   0   1   2   3   4
    #  time    10  20  17  16  21     delay 3: late at or below 17 once 20 was seen
    line = TimeLine(ordered=True)
    assert classes(line, [10, 20, 17, 16, 21], (3,), "aaaaa") == [0, 0, 1, 1, 0]


def test_partitions_do_not_judge_each_other() -> None:
    line = TimeLine(ordered=True)
    assert classes(line, [100, 5, 6, 99, 3], (3,), "abbab") == [0, 0, 0, 0, 1]


def test_partitions_without_an_order_are_judged_by_the_stream_and_each_moves_its_own_time() -> None:
    line = TimeLine(Watermark(10), ordered=True, partitions={"a": 30, "b": 10}, expected=("a", "b"))
    times, timeless = np.array([40, 9, 12, 35, 99]), np.array([False, False, False, False, True])
    judged = Judge(line, None).judge(times, timeless, pa.array(list("abbaa")), None)
    assert late_classes(times, judged, None, (0,)).tolist() == [0, 1, 0, 0, 0]
    assert judged.newest_us == {"a": 40, "b": 12}
    # the slower of the two decides
    assert advanced(line, judged.newest_us).max_time_us == 12
    assert advanced(TimeLine(ordered=True, expected=("a", "b")), {"a": 40}).max_time_us is None


def test_rows_are_judged_in_the_order_of_offsets_not_of_arrival() -> None:
    judged = Judge(TimeLine(ordered=True), None).judge(
        np.array([17, 20, 10]), NONE, pa.array(["a", "a", "a"]), np.array([2, 1, 0])
    )
    assert late_classes(np.array([17, 20, 10]), judged, None, (3,)).tolist() == [1, 0, 0]


def test_the_largest_time_is_carried_from_chunk_to_chunk_and_from_epoch_to_epoch() -> None:
    judge = Judge(TimeLine(ordered=True, partitions={"a": 30}), None)
    for times, expected in (([28, 40], [1, 0]), ([37, 38], [1, 0])):
        judged = judge.judge(np.array(times), NONE, pa.array(["a", "a"]), np.arange(2))
        assert late_classes(np.array(times), judged, None, (3 if times[0] == 37 else 2,)).tolist() == expected


def test_rows_of_one_offset_are_judged_together_also_across_chunks() -> None:
    #  offset   0   1   1 | 1   2   2      delay 0: each element of an exploded event by what came before the event
    #  time    10  20  20 |15  20  21
    judge, found = Judge(TimeLine(ordered=True), None), []
    for times, offsets in (([10, 20, 20], [0, 1, 1]), ([15, 20, 21], [1, 2, 2])):
        names = pa.array(["a"] * len(times))
        judged = judge.judge(np.array(times), np.zeros(len(times), bool), names, np.array(offsets))
        found += late_classes(np.array(times), judged, None, (0,)).tolist()
    assert found == [0, 0, 0, 0, 1, 0]


def test_a_partition_that_comes_late_to_the_stream_is_judged_by_the_stream() -> None:
    line = TimeLine(Watermark(50), ordered=True, partitions={"a": 60})
    assert classes(line, [47, 48, 10], (3,), "bbb") == [1, 0, 1]


def test_nothing_is_late_before_anything_was_seen() -> None:
    assert classes(TimeLine(), [-(2**62), 0, 5], (0,)) == [0, 0, 0]


def test_a_drain_makes_late_what_its_windows_held() -> None:
    assert classes(TimeLine(Watermark(10, 30)), [30, 31], (0, 100)) == [2, 0]


def test_events_too_far_ahead_are_none_and_move_no_watermark() -> None:
    judged = Judge(TimeLine(), 100).judge(np.array([5, 101, 100]), NONE, None, None)
    assert judged.timed.tolist() == [True, False, True]
    assert judged.newest_us == {"*": 100}


def test_the_watermark_is_the_minimum_over_awaited_partitions() -> None:
    line = TimeLine(Watermark(5), ordered=True, partitions={"a": 10, "b": 7}, expected=("a", "b", "c"))
    assert advanced(line, {"a": 20}).max_time_us == 5  # c has not spoken
    assert advanced(line, {"a": 20, "c": 15}).max_time_us == 7
    idle = TimeLine(Watermark(5), True, {"a": 10, "b": 7}, ("a", "b", "c"), frozenset({"b", "c"}))
    assert advanced(idle, {"a": 20}).max_time_us == 20


def test_the_watermark_never_decreases_when_an_idle_partition_returns() -> None:
    line = TimeLine(Watermark(90), ordered=True, partitions={"a": 95, "b": 7})
    assert advanced(line, {"b": 8}).max_time_us == 90


def epoch(**partitions: int) -> EpochRecord:
    return EpochRecord(
        n=1, writer="w", prev="", at=0, spark_query="q", batch=0, start={}, end={}, max_time={"tx": partitions}
    )


def test_a_partition_is_idle_after_its_time_and_no_longer_when_it_speaks() -> None:
    watch = IdleWatch([Stream("tx", (), order=Order("p", "o", ("a", "b"), idle_after_us=10))], now_us=0)
    assert watch.idle({}, 10) == {"tx": frozenset()}
    watch.committed(committed(epoch(a=1), at_us=8))
    assert watch.idle({"tx": {"a": 1}}, 11) == {"tx": frozenset({"b"})}
    assert watch.is_news({"tx": frozenset({"b"})})
    watch.committed(committed(epoch(b=1), at_us=12))
    assert watch.idle({"tx": {"a": 1, "b": 1}}, 18) == {"tx": frozenset()}
    assert watch.idle({"tx": {"a": 1, "b": 1}}, 19) == {"tx": frozenset({"a"})}
