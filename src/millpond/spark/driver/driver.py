"""The driver: one streaming query over all streams of a pond; each of its batches becomes a record of the log.

`epoch_run` takes each epoch through its states; `query_lifecycle` has the states of the streaming query. This module
connects both with Spark, and with the changes of queries that are recorded between two epochs.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millpond.clock import lap_us
from millpond.errors import (
    CorruptError,
    FencedError,
    FilesLostError,
    HostError,
    MillpondError,
    NoMemoryError,
    SparkError,
)
from millpond.faults import reached
from millpond.followers.view.shard_watch import WantedOwners
from millpond.log.manifest import Manifest, Manifests
from millpond.log.port import Log
from millpond.log.protocol import Writer
from millpond.log.records import ChangeRecord, Receipt
from millpond.model.spec import PondSpec
from millpond.model.stream import source_names
from millpond.placement.moves import BucketMap
from millpond.reconfigure.apply import is_read
from millpond.reconfigure.change_queue import ChangeQueue, Make, Prepare
from millpond.reconfigure.changes import Change
from millpond.runtime.epoch import Batch, Setting, depth, pending
from millpond.runtime.inspect.timeline import EpochTimeline, with_spark
from millpond.runtime.task.file_sync import FileTransport
from millpond.runtime.task.obstacle import Obstacle
from millpond.runtime.task.task_values import FoldTask, GatherTask
from millpond.spark.catalyst.spark_expressions import Projected
from millpond.spark.driver.advisers import Advisers
from millpond.spark.driver.checkpoint import make_checkpoint
from millpond.spark.driver.epoch_run import Begun, Deferred, EpochRunner
from millpond.spark.driver.epochs import Epoch
from millpond.spark.driver.evaluate_above import ExpressionsAbove
from millpond.spark.driver.log_head import LogHead
from millpond.spark.driver.query_lifecycle import Phase, QueryLifecycle
from millpond.spark.driver.replace_query import Reading, Stopped, Succession, Successor, started
from millpond.spark.driver.spark_progress import Alive, SparkTimes, offset_request_us, waits_for_offsets, work_done
from millpond.spark.driver.tasks import NOTHING_READ, deltas_of, expressions_above, one_task_deltas_of, packets_of
from millpond.spark.reading.arrow_files import ChosenFiles
from millpond.spark.reading.event_source import paced
from millpond.spark.reading.intake import Behind, Intake
from millpond.spark.reading.partial_frame import without_sources
from millpond.spark.session.arrow_rows import ArrowRows
from millpond.spark.session.batch_rows import BatchRows
from millpond.spark.session.failures import explained
from millpond.spark.session.read_limits import ReadLimits
from millpond.spark.session.session import jvm_failure
from millpond.spark.session.task_hosts import TaskHosts
from millpond.spark.session.warm_up import WarmUp
from millpond.spark.sources.file_tables import RefreshedTables
from millpond.spark.sources.text_parsing_choice import TextParsing
from millpond.spark.sources.value_schemas import fetch_missing_schema

_WARM_UP_SECONDS = 10.0
"""How long a run that was stopped waits for the end of the warm-up of Spark."""

_COMPACTION = "spark.sql.streaming.fileSource.log.compactInterval"


class Driver:
    """Runs one pond.

    `control.wiring` creates it. One thread besides Spark's own uses it, but any thread may request changes.

    - `files`: how instances reach the pond's files.
    - `announce(n)`: notifies followers that record n is in the log.
    - `followed()`: the newest record that all followers have applied.
    - `on_epoch`, `on_change`: called for every commit, and for every change of queries once it is in force.
    - `alive(work)`: called each second in which Spark responds, with `work_done`, or None between epochs.
    - `waits(now)`: called each second in which Spark responds, with whether it waits for the offsets of its sources.
    - `wanted`: returns better owners of buckets than the current ones, if there are any.
    - `hosts`: the preferred hosts of instances; `shards`: returns the shard of each bucket, if it is known.
    - `trees`: by key, the expressions that only Spark evaluates.
    """

    def __init__(
        self, spark: SparkSession, setting: Setting, log: Log, manifests: Manifests, writer: Writer,
        announce: Callable[[int], None], followed: Callable[[], int], on_epoch: Callable[[Epoch], None],
        on_change: Callable[[int, Change, PondSpec], None], files: FileTransport, hosts: TaskHosts,
        shards: Callable[[], Sequence[str]], wanted: Callable[[BucketMap], WantedOwners | None] = lambda _now: None,
        alive: Alive | None = None, trees: Mapping[str, Projected] = MappingProxyType({}),
        waits: Callable[[bool], None] = lambda _now: None,
    ) -> None:  # fmt: skip
        self._hosts, self._shards, self._evaluate = hosts, shards, ExpressionsAbove(trees)
        self._spark, self._files, self._alive, self._waits = spark, files, alive or (lambda _work: None), waits
        self._changes, self._life, self._succession = ChangeQueue(on_change), QueryLifecycle(), Succession()
        self._query: StreamingQuery | None = None
        self._frame: DataFrame | None = None
        self._warm_up, self._batch_ended = WarmUp(), threading.Event()
        self._spark_times = SparkTimes(spark)
        self._checkpoint, self._tables, self._once = Path(), RefreshedTables(()), False
        self._advisers, self._intake, self._limits = Advisers(spark, setting.streams), Intake(), ReadLimits(spark)
        self._head = LogHead(log, manifests, writer, setting, announce, self._changes.spec, self._advisers.idle)
        self._epochs = EpochRunner(self._head, self._advisers, self._intake, self._job, followed, wanted, on_epoch)

    def read_remote_files_with_spark(self) -> None:
        """Let Spark read files that are not local, as the previous process ran out of memory in the next epoch."""
        self._advisers.files.read_remote_files_with_spark()

    def take_over(self, version: str, spec: Callable[[Manifest], str]) -> int:
        """Claim the log (see `Writer.take_over`), which fences every older driver; return the claim's record number."""
        reached("claim.before")
        done = self._head.perform(
            self._head.writer.take_over(self._head.now(), socket.gethostname(), os.getpid(), version, spec)
        )
        try:
            root, interval = Path(self.setting.folder) / "spark", int(self._spark.conf.get(_COMPACTION) or 10)
            self._checkpoint = make_checkpoint(root, done.n, done.manifest, self._head.files_read(), interval)
        except MillpondError as error:
            raise self._fenced_or(error) from error  # or a newer driver removed the checkpoint
        self._files.begin(self._head.manifest)
        self._head.spec = self._changes.spec(done.manifest)
        return done.n

    def run(self, reading: Callable[[Mapping[str, int]], Reading], *, once: bool) -> bool:
        """Run epochs until all existing input has been read (`once`) or `stop` is called; return False after `stop`.

        `reading` returns what to read, given limits of records for some streams in the first epoch. It is called again
        when a change needs input that is not read yet.

        Raises:
            MillpondError: the failure that ended the streaming query, with its code.
        """
        self._changes.runs(True)
        self._advisers.idle.begin(lap_us())
        self._once = once
        try:
            query: StreamingQuery | None = self._begun(reading)
            while query is not None and self._awaited(query):
                query = self._succession.take()
                if query is None and self._life.phase is Phase.REREADING:
                    reached("read.again")
                    query = self._begun(reading)
        except BaseException as error:
            self._changes.runs(False)
            self._changes.give_up(error)
            raise
        finally:
            stopped = self._life.finish()
            self._succession.end()
            self._batch_ended.clear()  # here, so that the next run is not ready before it begins
        self._changes.runs(False)
        self.make_changes()
        self._warm_up.stop(_WARM_UP_SECONDS)
        return not stopped

    def _begun(self, reading: Callable[[Mapping[str, int]], Reading]) -> StreamingQuery:
        """Start a streaming query that continues where the log ends."""
        found = reading(self._advisers.pace.begun(paced(self.setting.streams)))
        self._reads(found)
        try:
            self._tables.renew()
        except Py4JError as error:
            raise self._explained(error) from error
        self._life.start()
        return started(found, self._epoch, self._checkpoint, once=self._once)

    def _reads(self, reading: Reading) -> None:
        self._tables, self._frame = reading.tables, reading.frame
        self._advisers.files.reads(reading.readers)
        self._head.setting = self.setting._replace(layout=reading.layout)

    def _awaited(self, query: StreamingQuery) -> bool:
        """Wait until a streaming query ends; return False if `stop` ended it."""
        self._query = query
        try:
            while not query.awaitTermination(1):
                self._alive(work_done(self._spark) if self._life.phase is Phase.EPOCH else None)
                self._waits(waits_for_offsets(query))
                # Spark's `stop` would cancel the running epoch, so it is called only between two epochs.
                if self._life.may_stop:
                    query.stop()
        except (PySparkException, Py4JError, ConnectionError) as error:
            meant = self._life.stop_requested or self._life.phase is Phase.REREADING or self._succession.has_taken_over
            if self._life.failure is not None or not meant:
                raise self._explained(error) from error
        finally:
            self._query = None
            self._spark_times.batches(query)  # keeps them
        if self._life.failure is not None:
            raise self._life.failure
        return self._succession.has_taken_over or not self._life.stop_requested

    def await_ready(self, timeout: float) -> bool:
        """Wait until the first batch and the warm-up of Spark have ended; False: `timeout` seconds were not enough."""
        return self._batch_ended.wait(timeout) and self._warm_up.wait(timeout)

    def stop(self) -> None:
        """Let `run` return at the end of the running epoch; this only sets a flag, so a signal handler may call it."""
        self._life.request_stop()

    def request(self, make: Make | Prepare) -> Future[int]:
        """Request a change, recorded between two epochs or at once if none run; the result is its record number."""
        done, running = self._changes.request(make)
        if not running:
            self.make_changes()
        return done

    def make_changes(self) -> None:
        """Record the waiting changes, and put them into force; to be called only between two epochs.

        Raises:
            FencedError, PlaceError, …: see `errors`; waiting changes that are not recorded were not made.
        """
        for make in self._advisers.changes():
            self._changes.request(make)
        if self._changes.idle:
            return
        with self._head.lock:
            reached("change.before")
            try:
                self._changes.work(self._head.catch_up, self._record, self._head.writer.token, self._head.now())
            except MillpondError as error:
                self._changes.give_up(error)
                raise
            self._head.arrange(self._head.manifest)
            reached("change.in_force")

    @property
    def setting(self) -> Setting:
        """The plan and settings of the next epoch, as far as they are known."""
        return self._head.setting

    @property
    def reads(self) -> bool:
        """Whether a streaming query runs; a change may require it to read more."""
        return self._query is not None

    @property
    def manifest(self) -> Manifest:
        """The manifest of the log, up to the record that this driver has read."""
        return self._head.manifest

    def behind(self) -> list[Behind]:
        """The backlog of each source that is read."""
        return self._intake.behind(source_names(self.setting.streams), self._head.manifest.offsets, self._query)

    @property
    def direct_note(self) -> str | None:
        """How many epochs ran without the shuffle, for people; None if no topic is declared as partitioned by a key."""
        return self._advisers.direct.note

    @property
    def reader_notes(self) -> Mapping[str, str]:
        """By stream that can be read with Arrow: in how many epochs this was done, and why not, for people."""
        return {**self._advisers.files.notes, **self._advisers.texts.notes}

    def timelines(self, epochs: int) -> list[EpochTimeline]:
        """The timelines of the newest epochs of this driver, with what Spark reports about them."""
        found = self._epochs.timelines.newest(epochs)
        if not found:
            return []
        stages, batches = self._spark_times.stages(found[0].start_us), self._spark_times.batches(self._query)
        return [with_spark(one, None if one.batch is None else batches.get(one.batch), stages) for one in found]

    def offer(self, reading: Reading) -> None:
        """Announce the input of the next requested change, so that its query can start beside an epoch."""
        self._succession.offer(reading)

    @property
    def checkpoint(self) -> Path:
        """The folder in which Spark stores the positions that it has read."""
        return self._checkpoint

    @property
    def in_epoch(self) -> bool:
        """Whether the calling thread is running an epoch, and so must not wait for something that follows the epoch."""
        return self._life.in_callback

    def _record(self, record: ChangeRecord) -> Manifest:
        self._head.commit(record)
        reached("change.recorded")
        return self._head.manifest

    def settle(self) -> None:
        """Run epochs without input until no rows of a query wait to be read by other queries."""
        while True:
            with self._head.lock:
                if not pending(self.setting, self._head.catch_up().manifest):
                    return
                self._without_input()

    def drain(self) -> None:
        """Close all open windows, in one epoch without input per level of queries that read other queries' rows."""
        for level in range(depth(self.setting) + 1):
            self._without_input(level)

    def _without_input(self, level: int | None = None) -> None:
        """Run an epoch without input; if `level` is given, it closes every window over streams of that level."""
        with self._head.lock:
            try:
                self._epochs.run(self._epochs.plan_without_input(level))
            except (PySparkException, Py4JError, ConnectionError) as error:
                raise self._explained(error) from error

    def _epoch(self, rows: BatchRows, number: int) -> None:
        """Spark's callback for a batch; an exception ends the streaming query, so `run` raises the kept failure."""
        if not self._life.begin():
            raise Stopped
        successor = None
        try:
            with self._head.lock:
                if not self._changes.idle:
                    successor = self._succession.begin(self._checkpoint, self._epoch, once=self._once)
                if successor is None:
                    self.make_changes()
                self._run_batch(rows, number)
                if successor is not None:
                    self._hand_over(successor)
            self._tables.renew()  # Spark plans a batch before it calls us, so this is for the next batch
        except (MillpondError, PySparkException, Py4JError, ConnectionError) as error:
            failure = fetch_missing_schema(self.setting.streams, self._explained(error))
            if failure is None:
                self._life.reread()
            else:
                self._life.fail(failure)
            raise
        finally:
            self._life.end()
            if successor is not None:
                successor.decide()
        self._batch_ended.set()
        reached("batch.return")

    def _run_batch(self, rows: BatchRows, number: int) -> None:
        planned = self._epochs.plan_batch(rows, number, self._checkpoint, lambda: offset_request_us(self._query))
        ended = self._epochs.run(planned)
        if isinstance(ended, Deferred):
            self._life.reread()
            raise Stopped
        if self._frame is not None and not (self._once or self._batch_ended.is_set() or ended.events):
            self._warm_up.begin(self._frame)  # rather than beside an epoch that has events
        self._limits.set(self._query, self._advisers.pace.limits)
        rows.postpone(self._advisers.files.next_by_tasks)

    def _hand_over(self, successor: Successor) -> None:
        """Record the changes that waited for the epoch's end, and continue with the successor or another query."""
        self.make_changes()
        if is_read(self.setting):
            return  # the change was refused
        reading = successor.reading
        fits = is_read(self.setting._replace(layout=reading.layout))
        fits = fits and self._advisers.pace.begun(paced(self.setting.streams)).keys() == reading.limits.keys()
        if fits and not self._life.stop_requested and successor.takes_over():
            self._checkpoint = successor.checkpoint
            self._reads(reading)
            self._tables.renew()
            self._succession.note_takeover(successor)
        else:
            self._life.reread()
        raise Stopped

    def _job(self, begun: Begun, gathering: GatherTask, task: FoldTask) -> list[tuple[Receipt, bytes]]:
        """Run an epoch's job in Spark: a direct one if possible, otherwise one task or a job with the shuffle."""
        batch, rows = begun.planned.batch, begun.planned.rows
        spark = self._spark if rows is None else rows.session
        files, by_spark = None, list[str]()
        if rows is not None:
            self._advisers.batches.limit(spark)
            files = self._advisers.files.choose(
                batch.start, batch.end, begun.sources, lambda *sources: without_sources(rows, *sources)
            )
            by_spark += self._advisers.texts.by_spark(self.setting.layout, batch.start, batch.end)

        def result() -> list[tuple[Receipt, bytes]] | Obstacle:
            nonlocal files
            read = TextParsing(gathering, self.setting.streams, by_spark)
            if rows is not None:
                made = self._advisers.direct.deltas(self.setting, batch, rows, read, task, self._files.open_files)
                if made is not None:
                    return made
            if files is not None:
                others = None if files.others is None else ArrowRows.of(read.frame(files.others))
                try:
                    found = self._folded(spark, batch, others, files, read.task, task)
                except (PySparkException, Py4JError) as error:
                    if not (files.contents and isinstance(explained(error), NoMemoryError)):
                        raise
                    self._advisers.files.read_remote_files_with_spark(files)
                else:
                    if not isinstance(found, Obstacle):
                        self._advisers.files.note_success(files)
                        return found
                    if not files.reads(found.source):
                        return found
                    self._advisers.files.note_obstacle(files, found)
                files = None  # another attempt does not meet the obstacle again
            return self._folded(spark, batch, None if rows is None else read.rows(rows), None, read.task, task)

        def attempt() -> list[tuple[Receipt, bytes]]:
            try:
                while isinstance(found := result(), Obstacle):
                    if found.source in by_spark or not self._advisers.texts.note_obstacle(found):
                        raise CorruptError(f"Spark's rows cannot be gathered: {found.why}.", "Run the batch again.")
                    by_spark.append(found.source)
                self._advisers.texts.note_success()
                return found
            except (PySparkException, Py4JError) as error:
                known = explained(error)
                if isinstance(known, FilesLostError | HostError):
                    raise known from error
                raise

        return self._files.run(begun.run.manifest, attempt)

    def _folded(
        self, spark: SparkSession, batch: Batch, rows: ArrowRows | None, files: ChosenFiles | None,
        gathering: GatherTask, task: FoldTask,
    ) -> list[tuple[Receipt, bytes]] | Obstacle:  # fmt: skip
        """Gather Spark's rows and some files, and fold: in one task if the epoch is small, otherwise in two stages."""
        open_files = self._files.open_files
        read, contents = (None, ()) if files is None else (files.task, files.contents)
        sizes = {} if read is None else read.sizes
        is_small = not contents and self._advisers.small.fits(batch.start, batch.end, sizes, gathering, task)
        if is_small and not expressions_above(task.plan):
            found = one_task_deltas_of(spark, rows, read, gathering, task, open_files)
            if found != NOTHING_READ:
                return found
        hosts = self._hosts.choose(task.owners, task.instances, self._shards())
        packets = packets_of(spark, rows, read, contents, gathering, open_files)
        return deltas_of(packets, task, open_files, hosts, self._evaluate)

    def _explained(self, error: Exception) -> MillpondError:
        """The first failure, as a `MillpondError`; errors that follow from a dying JVM are never the reason."""
        if self._life.failure is not None:
            return self._life.failure
        found = explained(error)
        if isinstance(found, SparkError):
            found = jvm_failure() or found
        return self._fenced_or(found)

    def _fenced_or(self, error: MillpondError) -> MillpondError:
        """`FencedError` if another driver has taken over, as that explains any failure; otherwise `error`."""
        try:
            self._head.catch_up()  # only reads the log
        except FencedError as fenced:
            return fenced
        return error
