"""The driver: one streaming query over all streams of a pond; each of its batches becomes a record of the log.

The steps of an epoch are begin, gather, shuffle, fold and commit; then the followers continue. `log.protocol` makes the
decisions and `runtime` computes the values; this module connects both with Spark.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millpond.clock import lap_us, now_us
from millpond.errors import FencedError, FilesLostError, HostError, MillpondError, OffsetGapError, SparkError
from millpond.faults import reached
from millpond.followers.view.shard_watch import Wanted
from millpond.log.manifest import Manifest, Manifests
from millpond.log.port import Log
from millpond.log.protocol import AlreadyTrue, Committed, Run, Steps, Writer, moved, perform
from millpond.log.records import ChangeRecord, Offsets, Receipt
from millpond.model.spec import PondSpec
from millpond.placement.moves import BucketMap
from millpond.reconfigure import validate
from millpond.reconfigure.apply import arranged, clear_tables, is_read
from millpond.reconfigure.budgets import Budgets
from millpond.reconfigure.change_queue import Desk, Make, Prepare
from millpond.reconfigure.changes import Change
from millpond.runtime.epoch import (
    Batch,
    Idle,
    Setting,
    assemble,
    depth,
    fold_task,
    gather_task,
    map_asked,
    map_record,
    next_step,
    pending,
    step_record,
    watermarks,
)
from millpond.runtime.gather.dead_letters import Breaker
from millpond.runtime.scheduling.committed_epoch import Adviser, CommittedEpoch
from millpond.runtime.scheduling.epoch_size import Pace
from millpond.runtime.scheduling.idle_partitions import IdleWatch
from millpond.runtime.scheduling.offsets import with_partitions
from millpond.runtime.scheduling.quiet_epochs import Calm, Waits, is_behind
from millpond.runtime.task.file_sync import FileTransport
from millpond.runtime.task.task_values import FoldTask, GatherTask
from millpond.spark.driver.checkpoint import (
    check_continues,
    check_names,
    own_checkpoint,
    query_id,
    read_offsets,
    read_taken,
    repair,
)
from millpond.spark.driver.choose_shuffle import Direct
from millpond.spark.driver.epochs import Epoch
from millpond.spark.driver.progress import asking_us
from millpond.spark.driver.replace_query import Reading, Stopped, Succession, Successor, started
from millpond.spark.driver.tasks import deltas_of, packets_of
from millpond.spark.reading.intake import Behind, Intake
from millpond.spark.session.batch_limits import Batches
from millpond.spark.session.failures import explained
from millpond.spark.session.session import jvm_failure
from millpond.spark.sources.file_tables import Lookups
from millpond.spark.sources.kafka import paced
from millpond.spark.sources.parsed_values import learnt

T = TypeVar("T")


class Driver:
    """Runs one pond.

    `control.wiring` creates it. One thread besides Spark's own uses it, but any thread may request changes.

    - `files`: how instances reach the pond's files.
    - `announce(n)`: notifies followers that record n is in the log.
    - `followed()`: the newest record that all followers have applied.
    - `on_epoch`: called for every commit.
    - `on_change`: called for every change of queries once it is in force.
    - `alive(busy)`: called each second in which Spark responds; `busy` says whether an epoch is running.
    - `wanted`: returns better owners of buckets than the current ones, if there are any.
    """

    def __init__(
        self, spark: SparkSession, setting: Setting, log: Log, manifests: Manifests, writer: Writer,
        announce: Callable[[int], None], followed: Callable[[], int], on_epoch: Callable[[Epoch], None],
        on_change: Callable[[int, Change, PondSpec], None], files: FileTransport,
        wanted: Callable[[BucketMap], Wanted | None] = lambda _now: None, alive: Callable[[bool], None] | None = None,
    ) -> None:  # fmt: skip
        self._spark, self._setting = spark, setting
        self._log, self._manifests, self._writer = log, manifests, writer
        self._announce, self._followed, self._on_epoch, self._wanted = announce, followed, on_epoch, wanted
        self._files, self._alive = files, alive or (lambda _busy: None)
        self._checkpoint = Path()
        self._failure: MillpondError | None = None
        self._query: StreamingQuery | None = None
        self._once, self._succession = False, Succession()
        self._lookups = Lookups(())
        self._stopping = self._busy = self._rereading = False
        self._desk = Desk(on_change)
        self._gate = threading.Lock()
        self._head = threading.RLock()  # held by the thread that appends to the log
        self._epochs_in: int | None = None
        self._read_for: Setting | None = None
        self._arranged: PondSpec | None = None
        self._watch = IdleWatch(setting.streams, lap_us())
        self._breaker, self._budgets, self._pace, self._calm = Breaker(), Budgets(), Pace(), Calm()
        self._direct, self._batches, self._intake = Direct(), Batches(spark), Intake()
        self._advisers: tuple[Adviser, ...] = self._watch, self._direct, self._batches, self._budgets, self._pace
        self._ended, self._ended_lap = now_us(), lap_us()

    def take_over(self, version: str, spec: Callable[[Manifest], str]) -> int:
        """Claim the log (see `Writer.take_over`), which fences every older driver; return the claim's record number."""
        reached("claim.before")
        done = self._perform(
            self._writer.take_over(now_us(), socket.gethostname(), os.getpid(), version, spec)
        )
        try:
            root, query = Path(self._setting.folder) / "spark", done.manifest.spark_query
            self._checkpoint = own_checkpoint(root, done.n, query)
        except MillpondError as error:
            raise self._fenced_or(error) from error  # or a newer driver removed the checkpoint
        self._files.begin(self._writer.manifest)
        self._arranged = self._desk.spec(done.manifest)
        return done.n

    def repair(self) -> str:
        """Set Spark's checkpoint to the log after one of the two was lost, damaged or restored; return what was done.

        Raises:
            OffsetGapError: the lost information was stored nowhere else.
        """
        return repair(self._checkpoint, self._writer.manifest)

    def run(self, reading: Callable[[Mapping[str, int]], Reading], *, once: bool) -> bool:
        """Run epochs until all existing input has been read (`once`) or `stop` is called; return False after `stop`.

        `reading` returns what to read, given limits of records for some streams. It is called again when a change needs
        input that is not read yet, or when other limits suit the epochs better.

        Raises:
            MillpondError: the failure that ended the streaming query, with its code.
        """
        self._desk.runs(True)
        self._watch.begin(lap_us())
        self._failure, self._once = None, once
        try:
            query: StreamingQuery | None = self._begun(reading)
            while query is not None and self._awaited(query):
                query = self._succession.take()
                if query is None and self._rereading:
                    reached("read.again")
                    query = self._begun(reading)
        except BaseException as error:
            self._desk.runs(False)
            self._desk.give_up(error)
            raise
        finally:
            stopped, self._stopping = self._stopping, False
            self._succession.end()
        self._desk.runs(False)
        self.make_changes()
        return not stopped

    def _begun(self, reading: Callable[[Mapping[str, int]], Reading]) -> StreamingQuery:
        """Start a streaming query that continues where the log ends."""
        found = reading(self._pace.begun(paced(self._setting.streams)))
        self._rereading = False
        self._reads(found)
        try:
            check_continues(self._checkpoint, self._writer.manifest)
            self._lookups.renew()
        except (OffsetGapError, Py4JError) as error:
            raise self._explained(error) from error
        return started(found.frame, self._epoch, self._checkpoint, once=self._once)

    def _reads(self, reading: Reading) -> None:
        self._lookups, self._direct.between = reading.lookups, reading.between
        self._setting = self._setting._replace(layout=reading.layout)

    def _awaited(self, query: StreamingQuery) -> bool:
        """Wait until a streaming query ends; return False if `stop` ended it."""
        self._query = query
        try:
            while not query.awaitTermination(1):
                self._alive(self._busy)
                # Spark's `stop` would cancel the running epoch, so it is called only between two epochs.
                if self._may_stop():
                    query.stop()
        except (PySparkException, Py4JError, ConnectionError) as error:
            if self._failure is not None or not (self._stopping or self._rereading or self._succession.has_come):
                raise self._explained(error) from error
        finally:
            self._query = None
        if self._failure is not None:
            raise self._failure
        return self._succession.has_come or not self._stopping

    def stop(self) -> None:
        """Let `run` return at the end of the running epoch; this only sets a flag, so a signal handler may call it."""
        self._stopping = True

    def _may_stop(self) -> bool:
        with self._gate:
            return self._stopping and not self._busy

    def ask(self, make: Make | Prepare) -> Future[int]:
        """Request a change, recorded between two epochs or at once if none run; the result is its record number."""
        done, running = self._desk.ask(make)
        if not running:
            self.make_changes()
        return done

    def make_changes(self) -> None:
        """Record the waiting changes, and put them into force; to be called only between two epochs.

        Raises:
            FencedError, PlaceError, …: see `errors`; waiting changes that are not recorded were not made.
        """
        for name, why in self._budgets.over().items():
            self._desk.ask(partial(validate.halt, name=name, why=why))
        if self._desk.idle:
            return
        with self._head:
            reached("change.before")
            try:
                self._desk.work(lambda: self._perform(self._writer.drain()), self._record, self._writer.token, now_us())
            except MillpondError as error:
                self._desk.give_up(error)
                raise
            self._arrange(self._writer.manifest)
            reached("change.in_force")

    @property
    def setting(self) -> Setting:
        """The plan and settings of the next epoch, as far as they are known."""
        return self._setting

    @property
    def reads(self) -> bool:
        """Whether a streaming query runs; a change may require it to read more."""
        return self._query is not None

    @property
    def manifest(self) -> Manifest:
        """The manifest of the log, up to the record that this driver has read."""
        return self._writer.manifest

    def behind(self) -> list[Behind]:
        """The backlog of each source that is read."""
        read = [stream.name for stream in self._setting.streams if stream.source is not None]
        return self._intake.behind(read, self._writer.manifest.offsets, self._query)

    @property
    def direct_note(self) -> str | None:
        """How many epochs ran without the shuffle, for people; None if no topic is declared as partitioned by a key."""
        return self._direct.note

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
        return self._epochs_in == threading.get_ident()

    def _record(self, record: ChangeRecord) -> Manifest:
        self._perform(self._writer.commit(record))
        reached("change.recorded")
        return self._writer.manifest

    def _arrange(self, manifest: Manifest) -> None:
        """Apply the catalog in force after the manifest's record, whichever driver appended it."""
        before, spec = self._setting.streams, self._desk.spec(manifest)
        if spec is self._arranged:
            return
        groups = {group.id for group in self._setting.plan.groups}
        self._setting, self._arranged = arranged(self._setting, spec), spec
        gone = groups - {group.id for group in self._setting.plan.groups}
        clear_tables(Path(self._setting.cache) / self._setting.pond, gone)
        if before != spec.streams:
            self._watch.watch(spec.streams, lap_us())

    def settle(self) -> None:
        """Run epochs without input until no rows of a query wait to be read by other queries."""
        while self._pending():
            self._without_input()

    def _pending(self) -> bool:
        with self._head:
            return pending(self._setting, self._perform(self._writer.drain()).manifest)

    def drain(self) -> None:
        """Close all open windows, in one epoch without input per level of queries that read other queries' rows."""
        for level in range(depth(self._setting) + 1):
            self._without_input(level)

    def _without_input(self, drained: int | None = None) -> None:
        """Run an epoch without input; if `drained` is given, it closes every window over streams of that level."""
        reached("drain.before")
        with self._head:
            run = self._perform(self._writer.drain())
            self._arrange(run.manifest)
            offsets = dict(run.manifest.offsets)
            self._expect(offsets)
            batch = Batch(run.manifest.spark_query, run.manifest.batch, offsets, offsets)
            try:
                self._run_batch(run, batch, None, gather_task(self._setting, run), drained)
            except (PySparkException, Py4JError, ConnectionError) as error:
                raise self._explained(error) from error

    def _epoch(self, frame: DataFrame, number: int) -> None:
        """Spark's callback for a batch; an exception ends the streaming query, so `run` raises the kept failure."""
        with self._gate:
            if self._stopping:
                raise Stopped
            self._busy = True
        self._epochs_in, successor = threading.get_ident(), None
        try:
            with self._head:
                if not self._desk.idle:
                    successor = self._succession.begin(self._checkpoint, self._epoch, once=self._once)
                if successor is None:
                    self.make_changes()
                self._begin(frame, number)
                if successor is not None:
                    self._hand_over(successor)
            self._lookups.renew()  # Spark plans a batch before it calls us, so this is for the next batch
        except (MillpondError, PySparkException, Py4JError, ConnectionError) as error:
            self._rereading, self._failure = learnt(self._setting.streams, self._explained(error))
            raise
        finally:
            self._busy, self._epochs_in = False, None
            if successor is not None:
                successor.decide()
        reached("batch.return")

    def _hand_over(self, successor: Successor) -> None:
        """Record the changes that waited for the epoch's end, and continue with the successor or another query."""
        self.make_changes()
        if is_read(self._setting):
            return  # the change was refused
        reading = successor.reading
        fits = is_read(self._setting._replace(layout=reading.layout))
        fits = fits and self._pace.begun(paced(self._setting.streams)) == reading.limits
        if fits and not self._stopping and successor.takes_over():
            self._checkpoint = successor.checkpoint
            self._reads(reading)
            self._lookups.renew()
            self._succession.came(successor)
        else:
            self._rereading = True
        raise Stopped

    def _begin(self, frame: DataFrame, number: int) -> None:
        reached("begin.start")
        start, (end, taken) = read_offsets(self._checkpoint, number - 1), read_taken(self._checkpoint, number)
        layout = self._setting.layout
        check_names(end, layout.sources if layout is not None else ())
        batch = Batch(query_id(self._checkpoint), number, start, end)
        self._follow_slots(end)
        news = moved(start, end, self._writer.manifest.offsets)  # a tick alone moves no offsets
        waits = self._step(taken) if news else Waits()
        run = self._perform(self._writer.begin(number, start, end, batch.spark_query))
        reached("begin.decided")
        if isinstance(run, AlreadyTrue):
            return
        self._intake.planned(self._checkpoint, start, end)
        self._arrange(run.manifest)
        self._expect(end)
        if self._pace.has_changed or (self._setting is not self._read_for and not is_read(self._setting)):
            self._rereading = True
            raise Stopped
        self._read_for = self._setting
        idle = self._watch.idle(run.manifest.max_time, lap_us())
        if run.idle and not (self._watch.is_news(idle) or pending(self._setting, run.manifest)):
            return
        gathering = gather_task(self._setting, run, now_us())
        self._run_batch(run, batch, frame, gathering, idle=idle, merges_wait=waits.merges)

    def _follow_slots(self, end: Offsets) -> None:
        """Record a bucket map that suits the store or the topic better than the current one, if there is such a map."""
        now = map_asked(self._setting, self._writer.manifest)
        wanted = self._direct.wanted(self._setting, end, now, self._wanted(now))
        if wanted is not None:
            self._record_map(lambda run: map_record(self._setting, run, self._writer.token, *wanted, now_us()))

    def _step(self, taken: int) -> Waits:
        """Record a migration's next step unless it should wait for a quiet epoch; return what should wait."""
        manifest = self._writer.manifest
        behind = is_behind(self._ended, asking_us(self._query), taken, now_us())
        waits = self._calm.waits(self._setting.plan.groups, watermarks(manifest), behind, lap_us())
        found = next_step(self._setting, manifest, waits.step)
        if found is not None:
            self._record_map(lambda run: step_record(self._setting, run, self._writer.token, found, now_us()))
        return waits

    def _record_map(self, made: Callable[[Run], ChangeRecord]) -> None:
        reached("map.before")
        run = self._perform(self._writer.drain())
        self._perform(self._writer.commit(made(run)))
        reached("map.after")

    def _expect(self, offsets: Offsets) -> None:
        """Make the watermark wait for all source partitions that the offsets name."""
        streams = with_partitions(self._setting.streams, offsets)
        if streams != self._setting.streams:
            self._setting = self._setting._replace(streams=streams)
            self._watch.expect(streams, lap_us())

    def _run_batch(
        self, run: Run, batch: Batch, frame: DataFrame | None, gathering: GatherTask, drained: int | None = None,
        idle: Idle | None = None, merges_wait: bool = False,
    ) -> None:  # fmt: skip
        began, token = lap_us(), self._writer.token
        task = fold_task(self._setting, run, token, drained is not None, idle, drained or 0, merges_wait)
        if frame is not None:
            self._batches.limit(frame.sparkSession)
        reached("epoch.before_job")
        deltas = self._folded(run, batch, frame, gathering, task)
        worked = lap_us() - began
        reached("epoch.after_job")
        record, body = assemble(self._setting, run, task, batch, deltas, now_us(), self._followed())
        self._breaker.check(self._setting.layout, record)
        done = self._perform(self._writer.commit(record, body))
        if isinstance(done, Committed):
            between, self._ended, self._ended_lap = (began - self._ended_lap) / 1e6, now_us(), lap_us()
            seconds, streams, plan = (self._ended_lap - began) / 1e6, self._setting.streams, self._setting.plan
            epoch = CommittedEpoch(
                record, streams, self._arranged, plan, run.manifest, self._ended_lap, seconds, between
            )
            for adviser in self._advisers:
                adviser.committed(epoch)
            self._on_epoch(Epoch(record, seconds, worked / 1e6, self._intake.missing()))

    def _folded(
        self, run: Run, batch: Batch, frame: DataFrame | None, gathering: GatherTask, task: FoldTask
    ) -> list[tuple[Receipt, bytes]]:
        """Run the epoch's job; return receipts and deltas, which are in the pond's folder if the receipts say so."""
        spark = self._spark if frame is None else frame.sparkSession

        def attempt() -> list[tuple[Receipt, bytes]]:
            open_files = self._files.open_files
            try:
                if frame is not None:
                    made = self._direct.deltas(self._setting, batch, frame, gathering, task, open_files)
                    if made is not None:
                        return made
                return deltas_of(packets_of(spark, frame, gathering, open_files), task, open_files)
            except (PySparkException, Py4JError) as error:
                known = explained(error)
                if isinstance(known, FilesLostError | HostError):
                    raise known from error
                raise

        return self._files.run(run.manifest, attempt)

    def _perform(self, steps: Steps[T]) -> T:
        return perform(steps, self._log, self._manifests, self._announce)

    def _explained(self, error: Exception) -> MillpondError:
        """The first failure, as a `MillpondError`; errors that follow from a dying JVM are never the reason."""
        if self._failure is not None:
            return self._failure
        found = explained(error)
        if isinstance(found, SparkError):
            found = jvm_failure() or found
        return self._fenced_or(found)

    def _fenced_or(self, error: MillpondError) -> MillpondError:
        """`FencedError` if another driver has taken over, as that explains any failure; otherwise `error`."""
        try:
            self._perform(self._writer.drain())  # only reads the log
        except FencedError as fenced:
            return fenced
        return error
