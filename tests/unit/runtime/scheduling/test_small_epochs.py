"""Which epochs are small enough for one task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from kit.inputs.cases import STREAM
from kit.inputs.committed_epochs import committed
from millpond.log.manifest import Manifest
from millpond.log.protocol import TICK, Run
from millpond.log.records import EpochRecord
from millpond.model.aggregates import Aggregate
from millpond.model.functions import UserFunction
from millpond.model.query import Query
from millpond.model.windows import Sliding
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.plan import Plan
from millpond.runtime.epoch import Setting, fold_task, gather_task
from millpond.runtime.inputs.file_parts import FilePart, FileRows, FileTask
from millpond.runtime.scheduling.small_epochs import (
    MEASURED,
    MOST_BYTES,
    MOST_PARTITIONS,
    MOST_PEAK_US,
    MOST_RECORD_BYTES,
    MOST_RECORDS,
    MOST_WORK_US,
    PEAK_EPOCHS,
    SmallEpochs,
)
from millpond.runtime.task.task_values import ChainedRows, SectionPlace

SETTING = Setting("p", "p", "p", (STREAM,), build_plan(()), None, 2, (0, 1))
COUNT = Aggregate("count", None, None, "bigint")
FUNCTION = UserFunction("f", "1", "package.module:name", "holistic", ("double",), "double")
RUN = Run(0, "", Manifest(), False)
GATHERING, FOLDING = gather_task(SETTING, RUN), fold_task(SETTING, RUN, "w")


def measured(*works: int, is_local: bool = True, plan: Plan | None = None, **counts: int) -> SmallEpochs:
    """After epochs whose tasks worked for these microseconds, a value per epoch; `counts` are those of each epoch."""
    small = SmallEpochs(is_local)
    for work in works:
        of_pond = {"events": 5, "gather_us": work // 3, "fold_us": work - work // 3} | counts
        small.committed(committed(record({"*": of_pond}), plan=plan))
    return small


def record(counts: dict[str, dict[str, int]]) -> EpochRecord:
    return EpochRecord(n=1, writer="w", prev="", at=0, spark_query="q", batch=0, start={}, end={}, counts=counts)


def fits(small: SmallEpochs, end: Mapping[str, str], files: Mapping[str, int] | None = None, **folding: Any) -> bool:
    return small.fits({"tx": '{"tx":{"0":5}}'}, end, files or {}, GATHERING, replace(FOLDING, **folding))


def topic(records: int, partitions: int = 1) -> dict[str, str]:
    others = "".join(f',"{number}":1' for number in range(1, partitions))
    return {"tx": f'{{"tx":{{"0":{5 + records}{others}}}}}', TICK: "7"}


def test_a_few_epochs_are_measured_first_and_their_median_counts() -> None:
    assert not fits(measured(*[10] * (MEASURED - 1)), topic(100))
    assert fits(measured(*[10] * MEASURED), topic(100))
    most = [MOST_WORK_US] * (MEASURED // 2 + 1)
    assert fits(measured(*most, *[2 * MOST_WORK_US] * (MEASURED - len(most))), topic(100))
    assert not fits(measured(*[MOST_WORK_US + 1] * MEASURED), topic(100))
    later = measured(*[2 * MOST_WORK_US] * MEASURED, *[10] * MEASURED)
    assert fits(later, topic(100)), "old epochs do not count for the median"
    later.committed(committed(record({"*": {"fold_us": 10**9}})))
    assert fits(later, topic(100)), "epochs without events do not count"
    assert not fits(measured(*[10] * MEASURED, is_local=False), topic(100))


def test_a_rare_expensive_epoch_counts_unless_it_is_one_of_the_first() -> None:
    for every in (16, 120, 720):  # such as the ends of windows of ten minutes or an hour, with epochs of five seconds
        rare = [MOST_PEAK_US + 1 if number % every == every - 1 else 10 for number in range(3 * every)]
        small = measured(*rare[:every])
        for work_us in rare[every:]:
            assert not fits(small, topic(100)), every
            small.committed(committed(record({"*": {"events": 5, "gather_us": work_us}})))
        assert fits(measured(*[min(work_us, MOST_PEAK_US) for work_us in rare]), topic(100))
    assert fits(measured(*[10**9] * MEASURED, *[10] * MEASURED), topic(100)), "the first epochs load modules"
    assert not fits(measured(*[10] * MEASURED, 10**9, *[10] * (PEAK_EPOCHS - 1)), topic(100))
    assert fits(measured(*[10] * MEASURED, 10**9, *[10] * PEAK_EPOCHS), topic(100)), "old epochs do not count"


def test_the_cpu_time_counts_unless_tasks_wait_for_other_processes() -> None:
    busy = [MOST_WORK_US + 1] * MEASURED
    assert not fits(measured(*busy), topic(100)), "the record of another version has no CPU time"
    assert fits(measured(*busy, cpu_us=MOST_WORK_US), topic(100))
    assert not fits(measured(*[10] * MEASURED, cpu_us=MOST_WORK_US + 1), topic(100))
    assert not fits(measured(*busy, cpu_us=10, requests=1), topic(100))
    for functions, waits in ((), False), ((FUNCTION,), True):
        query = Query("q", "tx", "ts", 0, Sliding(9, 9), (), (COUNT,), (), functions=functions or UNSET)
        assert fits(measured(*busy, cpu_us=10, plan=build_plan([query])), topic(100)) is not waits


def test_large_records_are_bounded_by_their_bytes() -> None:
    for size in (100, 1_000, 100_000):
        small = measured(*[10] * MEASURED, bytes_read=5 * size)
        held = min(MOST_RECORDS, MOST_RECORD_BYTES // size)
        assert fits(small, topic(held)) and not fits(small, topic(held + 1)), size
    once = measured(10, *[10] * MEASURED, bytes_read=5)
    once.committed(committed(record({"*": {"events": 5, "bytes_read": 5 * 100_000}})))
    for _ in range(PEAK_EPOCHS - 1):
        once.committed(committed(record({"*": {"events": 5, "bytes_read": 5}})))
    assert not fits(once, topic(1_000)), "the largest mean counts"


def test_the_size_of_the_input_is_known_and_bounded() -> None:
    small = measured(*[10] * MEASURED)
    assert fits(small, topic(MOST_RECORDS)) and not fits(small, topic(MOST_RECORDS + 1))
    assert fits(small, topic(1, MOST_PARTITIONS)) and not fits(small, topic(1, MOST_PARTITIONS + 1))
    assert fits(small, {"f": "3"}, {"f": MOST_BYTES}) and not fits(small, {"f": "3"}, {"f": MOST_BYTES + 1})
    assert not fits(small, {"other": "3"}), "a source of which nothing is known"
    assert fits(small, {TICK: "3"}), "nothing is read"
    rows = ChainedRows("lower", 0, 0, (SectionPlace("s", "f", False, 0, MOST_BYTES),))
    chained = replace(GATHERING, chained=(rows,))
    assert small.fits({}, {}, {}, chained, FOLDING) and not small.fits({}, {"f": "3"}, {"f": 1}, chained, FOLDING)


@pytest.mark.parametrize("folding", [{"moving": True}, {"drained": True}, {"sources": {0: (1,)}}])
def test_epochs_with_more_to_do_are_not_small(folding: dict[str, Any]) -> None:
    assert not fits(measured(*[10] * MEASURED), topic(100), **folding)


def test_the_bytes_of_files_by_source() -> None:
    sources = FileRows("a", 0, (), 1), FileRows("b", 1, (), 1), FileRows("c", 2, (), 1)
    parts = (FilePart(0, "x", 0, 2, 100), FilePart(1, "y", 0, 1, 7)), (FilePart(0, "x", 1, 2, 100),)
    assert FileTask(sources, parts).sizes == {"a": 100, "b": 7, "c": 0}
