"""Decides which epochs are so small that one task gathers and folds them, without a second stage.

A second stage costs as much CPU time as the gather and fold of some thousand events. One task, however, does one after
the other what several tasks do at the same time. So an epoch has one task if its input is known to be small, and the
tasks of the previous epochs have worked little.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

from millpond.log.protocol import TICK
from millpond.log.records import Offsets
from millpond.runtime.scheduling.committed_epoch import CommittedEpoch
from millpond.runtime.scheduling.kafka_partitions import moved_records, partitions_of
from millpond.runtime.task.counters import WHOLE_POND
from millpond.runtime.task.task_values import FoldTask, GatherTask

MEASURED = 8
"""How many epochs with events are measured before the first decision; the median of the newest ones counts."""

MOST_WORK_US = 50_000
"""The most time that all tasks of an epoch together spend in Python if one task is to do it."""

MOST_RECORDS, MOST_BYTES = 1 << 15, 1 << 20
"""The most records of topics, and the most bytes of files and of rows of queries, that one task reads."""

MOST_PARTITIONS = 4
"""The most partitions of topics that one task reads, as it waits for the broker once for each."""


class SmallEpochs:
    """Chooses the epochs of one driver that have one task.

    `is_local`: all tasks run on the driver's host. On a cluster, no epoch has one task, as the instances have their
    state on several hosts.
    """

    def __init__(self, is_local: bool) -> None:
        self._is_local = is_local
        self._work_us = deque[int](maxlen=MEASURED)

    def committed(self, epoch: CommittedEpoch) -> None:
        """Note how long the tasks of an epoch with events have worked."""
        counts = epoch.record.counts.get(WHOLE_POND, {})
        if counts.get("events", 0):
            self._work_us.append(counts.get("gather_us", 0) + counts.get("fold_us", 0))

    def fits(
        self, start: Offsets, end: Offsets, file_bytes: Mapping[str, int], gathering: GatherTask, folding: FoldTask
    ) -> bool:
        """Whether one task should run the epoch between two offsets.

        `file_bytes`: by source, the size of the files that tasks read into Arrow. The input of sources that are neither
        files nor topics is not known beforehand. An epoch that replays events, moves state or closes all windows is
        never small.
        """
        if not self._is_local or len(self._work_us) < MEASURED or median(self._work_us) > MOST_WORK_US:
            return False
        if gathering.recalled or folding.moving or folding.sources or folding.drained:
            return False
        size = sum(place.size for rows in gathering.chained for place in rows.places)
        records = partitions = 0
        for name in end.keys() - {TICK}:
            if start.get(name) == end[name]:
                continue
            if name in file_bytes:
                size += file_bytes[name]
                continue
            if not partitions_of(end[name]):
                return False
            moved = moved_records(start.get(name, ""), end[name])
            records, partitions = records + sum(moved), partitions + len(moved)
        return records <= MOST_RECORDS and partitions <= MOST_PARTITIONS and size <= MOST_BYTES
