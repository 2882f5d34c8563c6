"""Runs epochs without the shuffle where possible (direct epochs), and proposes bucket owners that make them possible.

If a topic's key determines the buckets, the tasks that read it can also fold, all at the same time, in a barrier
stage. The declaration of the topic is never trusted: the tasks check every key. Some obstacles are known beforehand
from offsets, owners and cores; others are found by the tasks. In both cases the epoch uses the shuffle. After an
obstacle that tasks found, direct epochs are not tried again for some epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millpond.errors import SparkError
from millpond.followers.view.shard_watch import WantedOwners
from millpond.log.records import Offsets, Receipt
from millpond.model.stream import Stream
from millpond.placement.moves import BucketMap
from millpond.placement.partitions import homes, owners_by_partition, why_not
from millpond.placement.slots import even_owners
from millpond.runtime.epoch import Batch, Setting
from millpond.runtime.inputs.replay import largest_share
from millpond.runtime.inputs.without_shuffle import Route, message_bytes
from millpond.runtime.scheduling.backoff import Backoff
from millpond.runtime.scheduling.committed_epoch import CommittedEpoch
from millpond.runtime.scheduling.kafka_partitions import moved_partitions, partitions_of
from millpond.runtime.task.counters import WHOLE_POND
from millpond.runtime.task.file_sync import OpenFiles
from millpond.runtime.task.obstacle import Obstacle
from millpond.runtime.task.task_values import FoldTask, GatherTask
from millpond.spark.driver.tasks import EVALUATED_ABOVE, NOTHING_READ, direct_deltas_of, expressions_above
from millpond.spark.session.batch_rows import BatchRows
from millpond.spark.session.failures import explained
from millpond.spark.sources.text_parsing_choice import TextParsing


class Direct:
    """Runs and counts the direct epochs of one driver.

    `note` is a text for people: how many epochs were direct, and why the last epoch was not. It is None if no topic is
    declared to be partitioned by a key.
    """

    def __init__(self) -> None:
        self._epochs = self._direct = self._misplaced = 0
        self._backoff = Backoff()
        self._fitted: tuple[int, int] | None = None
        self._elsewhere = False
        self._declared = False

    @property
    def note(self) -> str | None:
        """How many epochs were direct, and why the last one was not, for people; see the class."""
        if not self._declared:
            return None
        note = f"skipped in {self._direct:,} of {self._epochs:,} epochs"
        if self._misplaced:
            note += (
                f"; {self._misplaced:,} keys were in another partition of the topic than their hash says; check the "
                "producer's partitioner and key"
            )
        why = self._backoff.why
        return f"{note}; not in the last, as {why}" if why else note

    def wanted(
        self, setting: Setting, end: Offsets, current: BucketMap, requested: WantedOwners | None
    ) -> WantedOwners | None:
        """The owners of buckets for the next epoch, or None if they should not change.

        Returns `requested` if it is given. Otherwise returns owners by which each instance has the keys of only one
        partition. These are proposed once for each pair of partition count and instance count, so that later moves that
        users or load requested are kept. They are never proposed where buckets follow the shards of a store.
        """
        topic = _topic_of(setting.streams)
        if topic is None:
            return requested
        born_elsewhere = current.number == 0 and current.owners != even_owners(len(current.owners), current.instances)
        self._elsewhere |= requested is not None or born_elsewhere
        if self._elsewhere:
            return requested
        count = len(partitions_of(end.get(topic, "")))
        fitted = self._fitted == (count, current.instances)
        if not count or fitted or why_not(len(current.owners), current.instances, count):
            return None
        self._fitted = count, current.instances
        if homes(current.owners, current.instances, count) is not None:
            return None
        owners = owners_by_partition(len(current.owners), current.instances, count)
        why = f"each of {current.instances} instances has the keys of one of {count} partitions of a topic"
        return WantedOwners(owners, why)

    def deltas(
        self, setting: Setting, batch: Batch, rows: BatchRows, read: TextParsing, task: FoldTask, open_files: OpenFiles
    ) -> list[tuple[Receipt, bytes]] | Obstacle | None:
        """The receipts and deltas of a direct epoch's instances; None if the epoch must use the shuffle instead.

        The result is an obstacle if the input of a stream must be read in another way.

        Raises:
            MillpondError: a failure that would also occur with the shuffle.
        """
        if not self._backoff.due():
            return None
        try:
            route = _route(setting, batch, rows.session, read.task)
            if isinstance(route, str):
                self._backoff.why = route
                return None
            result = direct_deltas_of(read.rows(rows), read.task, task, open_files, route)
        except (PySparkException, Py4JError) as error:
            failure = explained(error)
            if not isinstance(failure, SparkError):
                raise failure from error
            result = Obstacle(f"Spark failed: {failure.what}")
        if result == NOTHING_READ:
            return None
        if isinstance(result, Obstacle):
            if result.source:
                return result
            self._backoff.failed(result.why)
            return None
        self._backoff.succeeded()
        return result

    def committed(self, epoch: CommittedEpoch) -> None:
        """Count a committed epoch if it read something."""
        record = epoch.record
        counts = record.counts.get(WHOLE_POND, {})
        self._declared = _topic_of(epoch.streams) is not None
        self._epochs += record.start != record.end
        self._direct += counts.get("direct", 0)
        self._misplaced += counts.get("misplaced", 0)


def _route(setting: Setting, batch: Batch, spark: SparkSession, gathering: GatherTask) -> Route | str:
    """The route of a direct epoch, or the reason why the epoch cannot be direct."""
    topic = _topic_of(setting.streams)
    if topic is None:
        return "no topic is declared as partitioned by a key"
    if setting.layout is None or setting.layout.sources != (topic,):
        return "other streams are read too"
    if expressions_above(setting.plan):
        return EVALUATED_ABOVE
    if gathering.recalled:
        return "retained events are read too"
    places = partitions_of(batch.end.get(topic, ""))
    if len({name.rpartition("-")[0] for name in places}) != 1:
        return "the stream reads several topics"
    against = why_not(len(gathering.owners), gathering.instances, len(places))
    if against:
        return against
    of = homes(gathering.owners, gathering.instances, len(places))
    if of is None:
        return "an instance owns buckets of several partitions"
    tasks = moved_partitions(batch.start.get(topic, ""), batch.end[topic])
    if not tasks:
        return NOTHING_READ.why
    if largest_share(gathering, tasks) > message_bytes(tasks):
        return "many rows of queries are read too"
    crowded = _slots(spark, tasks)
    return crowded or Route(of, message_bytes(tasks), uuid4().hex, tasks)


def _topic_of(streams: Sequence[Stream]) -> str | None:
    """The name of the source of the first stream that is partitioned by a key."""
    keyed = next((stream for stream in streams if stream.partitioned_by is not None), None)
    return None if keyed is None else keyed.name if keyed.derived is None else keyed.derived.reads[0]


def _slots(spark: SparkSession, tasks: int) -> str:
    """The reason why Spark cannot run this number of tasks at the same time; "" if it can."""
    context = spark.sparkContext
    if context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        return "Spark allocates executors dynamically, and runs no tasks at the same time for sure"
    jvm = context._jsc.sc()
    cores = int(jvm.maxNumConcurrentTasks(jvm.resourceProfileManager().defaultResourceProfile()))
    return f"{tasks} partitions are to be read at once, and Spark runs {cores} tasks at a time" if cores < tasks else ""
