"""Events that a backfill reads again have the fates that their first epochs gave them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millpond.errors import CorruptError
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.port import Log
from millpond.log.records import ClaimRecord, EpochRecord, digest_of, encode
from millpond.runtime.gather.lateness import Judge
from millpond.runtime.gather.retained_events import ALWAYS_LATE
from millpond.runtime.inputs.backfill import (
    Past,
    PastEpoch,
    PastJudge,
    RereadEvents,
    brought,
    columns_of_section,
    stage_events,
)
from millpond.runtime.task.column_layout import ReadColumn, StreamLayout
from millpond.runtime.task.task_values import TimeLine, Watermark
from millpond.state.ports.files import Files

NEVER = np.iinfo(np.int64).min


def epoch(n: int, base: int | None, newest: dict[str, int], floor: int | None = None, **before: int) -> PastEpoch:
    return PastEpoch(n, str(n - 1), str(n), base, floor, before, newest)


def test_the_log_says_what_each_epoch_read_and_against_what(tmp_path: Path) -> None:
    log, prev = Log(LocalFolder(tmp_path)), ""
    whole = {"writer": "w", "spark_query": "q", "batch": 0, "at": 0}
    records = [
        lambda prev: ClaimRecord(n=0, writer="w", prev=prev, at=0, host="", pid=0, version="", spec=""),
        lambda prev: EpochRecord(n=1, prev=prev, start={}, end={"tx": "a"}, max_time={"tx": {"*": 5}}, **whole),
        lambda prev: EpochRecord(n=2, prev=prev, start={"tx": "a"}, end={"tx": "a", "o": "x"}, **whole),
        lambda prev: EpochRecord(
            n=3, prev=prev, start={"tx": "a"}, end={"tx": "a"}, drained=True, watermark_floor={"tx": 20}, **whole
        ),
        lambda prev: EpochRecord(
            n=4, prev=prev, start={"tx": "a"}, end={"tx": "b"}, max_time={"tx": {"*": 3, "p": 9}}, **whole
        ),
    ]
    for n, make in enumerate(records):
        data = encode(make(prev))
        log.append(n, data)
        prev = digest_of(data)
    past = Past(log, "tx")
    assert past.upto(2) == [PastEpoch(1, "", "a", None, None, {}, {"*": 5})]
    assert past.upto(4) == [PastEpoch(4, "a", "b", 5, 20, {"*": 5}, {"*": 5, "p": 9})]
    assert past.upto(4) == []
    with pytest.raises(CorruptError, match="Record 5 is missing"):
        past.upto(5)


def test_without_an_order_an_event_is_judged_by_the_watermark_of_its_epoch() -> None:
    judge = PastJudge([epoch(1, None, {"*": 30}), epoch(2, 30, {"*": 40}, floor=10)])
    times = np.array([5, 30, 31, 5, 40, 41])
    timed, base = judge.judge(times, np.zeros(6, bool), np.array([0, 0, 0, 1, 1, 1]), None)
    # later than the largest time of the epoch: it was too far ahead
    assert timed.tolist() == [True, True, False, True, True, False]
    assert base[timed].tolist() == [NEVER, NEVER, ALWAYS_LATE, 30]


@pytest.mark.parametrize("seed", range(20))
def test_with_an_order_an_event_is_judged_by_those_before_it(seed: int) -> None:
    dice = np.random.default_rng(seed)
    names, sizes = ("a-0", "a-1"), dice.integers(0, 6, (4, 2))
    offsets, seen, base, epochs, events, expected = [0, 0], dict[str, int](), None, [], [], []
    for n, counts in enumerate(sizes.tolist()):
        before = dict(seen)
        line = TimeLine(Watermark(base), True, dict(seen))
        for which, count in enumerate(counts):
            times, mine = dice.integers(0, 50, count), np.arange(offsets[which], offsets[which] + count)
            partition = pa.array([names[which]] * count, pa.string())
            judged = Judge(line, None).judge(times, np.zeros(count, bool), partition, mine)
            expected += judged.base_us.tolist()
            events += [(names[which], int(at), int(time), n) for at, time in zip(mine, times, strict=True)]
            offsets[which] += count
            seen |= judged.newest_us
        epochs.append(PastEpoch(n, "", "", base, None, before, dict(seen)))
        base = min(seen.values()) if len(seen) == 2 else base
    wanted = dict(zip(events, expected, strict=True))
    judge, found = PastJudge(epochs), {}
    for name in names:  # a task reads one partition after the other, in chunks
        rows = [event for event in events if event[0] == name]
        for part in (rows[:5], rows[5:]):
            times, mine = (np.array([event[i] for event in part], np.int64) for i in (2, 1))
            which = np.array([event[3] for event in part], np.int64)
            order = pa.array([name] * len(part), pa.string()), mine
            timed, base_us = judge.judge(times, np.zeros(len(part), bool), which, order)
            assert timed.all()
            found |= dict(zip(part, base_us.tolist(), strict=True))
    assert found == wanted


def test_files_wait_until_the_record_that_names_them(tmp_path: Path) -> None:
    columns = (ReadColumn("ts", 1, "timestamp"), ReadColumn("k", 2, "string"))
    layout = StreamLayout("tx", (*columns, ReadColumn("file", 3, "string")))
    again = RereadEvents(layout, "ts", (epoch(1, 7, {"*": 9}),), 3, {"file:/a": 0})
    batch = pa.RecordBatch.from_arrays(
        [pa.array([0, 0, -2], pa.int32()), pa.array([8, None, None], pa.int64()).view(pa.timestamp("us", "UTC")),
         pa.array(["x", "y", None]), pa.array(["file:///a", "file:///a", None])],
        ["stream", "ts", "k", "file"],
    )  # fmt: skip
    (staged,) = stage_events(again, [batch], Files(tmp_path), "backfill/token/0")
    assert (staged.rows, staged.first, staged.last) == (1, 8, 9)
    (receipt,) = brought(Files(tmp_path), [staged], "q@0", columns, 12)
    assert receipt.file is not None and receipt.file.startswith("delta/00000000000000000012/")
    assert (tmp_path / receipt.file).stat().st_size == staged.size and not (tmp_path / staged.file).exists()
    (section,) = receipt.sections
    assert (section.kind, section.group, section.rows) == ("backfill", "q@0", 1)
    assert columns_of_section(section.info["columns"]) == columns
    with pytest.raises(CorruptError, match="No epoch has read file:/b"):
        other = batch.set_column(3, "file", pa.array(["file:///b"] * 3))
        list(stage_events(again, [other], Files(tmp_path), "backfill/token/1"))
