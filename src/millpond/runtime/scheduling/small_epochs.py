"""Decides which epochs are so small that one task gathers and folds them, without a second stage.

A second stage costs as much CPU time as the gather and fold of some thousand events. One task, however, does one after
the other what several tasks do at the same time, and it has all packets in memory. So an epoch has one task if its
input is known to be small, and so was the work of the previous epochs: the median of the last 8 epochs, and the
maximum of the last 1,024 without the driver's first 8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

from millpond.log.protocol import TICK
from millpond.log.records import Offsets
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.runtime.scheduling.committed_epoch import CommittedEpoch
from millpond.runtime.scheduling.kafka_partitions import moved_records, partitions_of
from millpond.runtime.task.counters import WHOLE_POND
from millpond.runtime.task.task_values import FoldTask, GatherTask

MEASURED = 8
"""How many epochs with events are measured before the first decision. The median of the newest ones counts."""

PEAK_EPOCHS = 1024
"""How many of the newest epochs with events count for the most work and the most bytes per record: more than there are
between two ends of an hour's window with an epoch every four seconds.
"""

MOST_WORK_US, MOST_PEAK_US = 50_000, 200_000
"""The most work that all tasks of an epoch together do in Python if one task is to do it: usually, and at a peak, as in
an epoch that closes windows of much state.
"""

MOST_RECORDS, MOST_BYTES = 1 << 15, 1 << 20
"""The most records of topics, and the most bytes of files and of rows of queries, that one task reads."""

MOST_RECORD_BYTES = 1 << 24
"""The most bytes of Arrow that the records of topics are expected to become."""

MOST_PARTITIONS = 4
"""The most partitions of topics that one task reads, as it waits for the broker once for each."""


def _calls_functions(query: AnyQuery) -> bool:
    return isinstance(query, Query) and bool(query.user_functions)


class SmallEpochs:
    """Chooses the epochs of one driver that have one task.

    `is_local`: all tasks run on the driver's host. On a cluster, no epoch has one task, as the instances have their
    state on several hosts.
    """

    def __init__(self, is_local: bool) -> None:
        self._is_local = is_local
        self._newest_work_us = deque[int](maxlen=MEASURED)
        self._peaks_us = deque[int](maxlen=PEAK_EPOCHS)
        self._event_bytes = deque[float](maxlen=PEAK_EPOCHS)

    def committed(self, epoch: CommittedEpoch) -> None:
        """Note how long the tasks of an epoch with events have worked, and how large its events were.

        Their CPU time counts, as a busy machine makes them no larger. Tasks that wait for other processes, which run
        user functions or keep the rows of keyed tables, would wait for one after the other in one task. So the whole
        time counts for these.
        """
        counts = epoch.record.counts.get(WHOLE_POND, {})
        if events := counts.get("events", 0):
            work_us = counts.get("gather_us", 0) + counts.get("fold_us", 0)
            waits = counts.get("requests", 0) or any(map(_calls_functions, epoch.plan.all_queries))
            if not waits:
                work_us = counts.get("cpu_us", work_us)
            if len(self._newest_work_us) == MEASURED:  # a driver's first epochs load modules and read a backlog
                self._peaks_us.append(work_us)
            self._newest_work_us.append(work_us)
            self._event_bytes.append(counts.get("bytes_read", 0) / events)

    def fits(
        self, start: Offsets, end: Offsets, file_bytes: Mapping[str, int], gathering: GatherTask, folding: FoldTask
    ) -> bool:
        """Whether one task should run the epoch between two offsets.

        `file_bytes`: by source, the size of the files that tasks read into Arrow. The input of sources that are neither
        files nor topics is not known beforehand. An epoch that replays events, moves state or closes all windows is
        never small.
        """
        if not (self._is_local and self._recent_work_is_small()):
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
        if records * max(self._event_bytes) > MOST_RECORD_BYTES:
            return False
        return records <= MOST_RECORDS and partitions <= MOST_PARTITIONS and size <= MOST_BYTES

    def _recent_work_is_small(self) -> bool:
        """Whether enough epochs are measured, and both their median and the peak are small enough."""
        if len(self._newest_work_us) < MEASURED:
            return False
        return median(self._newest_work_us) <= MOST_WORK_US and max(self._peaks_us, default=0) <= MOST_PEAK_US
