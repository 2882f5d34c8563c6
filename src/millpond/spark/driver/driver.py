"""The driver: one streaming query over all streams of a pond; each of its batches becomes a record of the log.

Begin, gather, shuffle, fold, commit; then the followers continue. Decisions are made in `log.protocol`, and values
are computed in `runtime`. Here both meet Spark.
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
    """Runs one pond. Made by `control.wiring`, used from one thread besides Spark's own; changes are asked from any.

    Instances reach the pond's `files` as these say. `announce(n)` tells followers that
    record n is true; `followed()` is the record they all have applied; `on_epoch` is told of every commit,
    `on_change` of every change of queries that is in force from then on, `alive` each second that Spark answers, and
    whether an epoch is at hand. `wanted` gives better owners of buckets than those of now, if there are any.
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
        self._head = threading.RLock()  # whoever appends holds it
        self._epochs_in: int | None = None
        self._read_for: Setting | None = None
        self._arranged: PondSpec | None = None
        self._watch = IdleWatch(setting.streams, lap_us())
        self._breaker, self._budgets, self._pace, self._calm = Breaker(), Budgets(), Pace(), Calm()
        self._direct, self._batches, self._intake = Direct(), Batches(spark), Intake()
        self._advisers: tuple[Adviser, ...] = self._watch, self._direct, self._batches, self._budgets, self._pace
        self._ended, self._ended_lap = now_us(), lap_us()

    def take_over(self, version: str, spec: Callable[[Manifest], str]) -> int:
        """Claim the log, see `Writer.take_over`; every older driver is fenced from then on. Returns the number."""
        reached("claim.before")
        done = self._perform(
            self._writer.take_over(now_us(), socket.gethostname(), os.getpid(), version, spec)
        )
        try:
            root, query = Path(self._setting.folder) / "spark", done.manifest.spark_query
            self._checkpoint = own_checkpoint(root, done.n, query)
        except MillpondError as error:
            raise self._fenced_or(error) from error  # or cleared by whoever came after
        self._files.begin(self._writer.manifest)
        self._arranged = self._desk.spec(done.manifest)
        return done.n

    def repair(self) -> str:
        """Set Spark's checkpoint to the log, after one of them was lost, damaged or restored; says what was done.

        Raises:
            OffsetGapError: what was lost stood only there.
        """
        return repair(self._checkpoint, self._writer.manifest)

    def run(self, reading: Callable[[Mapping[str, int]], Reading], *, once: bool) -> bool:
        """Run epochs until all input there is has been taken (`once`) or `stop` is called; tells whether it was not.

        `reading` says what to read, with limits of records for some streams; it is asked again when a change needs what
        is not read yet, or when other limits fit the epochs better.

        Raises:
            MillpondError: whatever ended the query, with its code.
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
        """Start a streaming query that goes on where the log ends."""
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
        """Wait for the end of a streaming query; tells whether it was not ended by `stop`."""
        self._query = query
        try:
            while not query.awaitTermination(1):
                self._alive(self._busy)
                # Spark's stop would cancel the epoch at hand, so it waits for a moment between two
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
        """Let `run` return at the end of the epoch at hand; only sets a flag, so a signal handler may call it."""
        self._stopping = True

    def _may_stop(self) -> bool:
        with self._gate:
            return self._stopping and not self._busy

    def ask(self, make: Make | Prepare) -> Future[int]:
        """Have a change recorded between two epochs, or at once where none run; its result is its record."""
        done, running = self._desk.ask(make)
        if not running:
            self.make_changes()
        return done

    def make_changes(self) -> None:
        """Record the changes that wait, and answer by what is in force; between two epochs only.

        Raises:
            FencedError, PlaceError, …: see `errors`; what waited and is not recorded was not done.
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
        """By what the next epoch is answered, as far as it is known."""
        return self._setting

    @property
    def reads(self) -> bool:
        """Whether a streaming query runs, which a change may ask to read more."""
        return self._query is not None

    @property
    def manifest(self) -> Manifest:
        """What the log amounts to, as far as this driver has read it."""
        return self._writer.manifest

    def behind(self) -> list[Behind]:
        """How far the pond is behind each source that is read."""
        read = [stream.name for stream in self._setting.streams if stream.source is not None]
        return self._intake.behind(read, self._writer.manifest.offsets, self._query)

    @property
    def direct_note(self) -> str | None:
        """How many epochs went without the shuffle, for people; None: no topic is said to be partitioned by a key."""
        return self._direct.note

    def offer(self, reading: Reading) -> None:
        """What is to be read from a change on that will be asked next, so that Spark need not start with it while
        epochs wait.
        """
        self._succession.offer(reading)

    @property
    def checkpoint(self) -> Path:
        """Where Spark keeps what it has read."""
        return self._checkpoint

    @property
    def in_epoch(self) -> bool:
        """Whether this thread is the one that runs an epoch, so that it must not wait for what comes after."""
        return self._epochs_in == threading.get_ident()

    def _record(self, record: ChangeRecord) -> Manifest:
        self._perform(self._writer.commit(record))
        reached("change.recorded")
        return self._writer.manifest

    def _arrange(self, manifest: Manifest) -> None:
        """Answer by what is in force after the manifest's record, however it came into the log."""
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
        """Run epochs that read nothing until no rows of a query wait for others."""
        while self._pending():
            self._without_input()

    def _pending(self) -> bool:
        with self._head:
            return pending(self._setting, self._perform(self._writer.drain()).manifest)

    def drain(self) -> None:
        """Close every open window, in an epoch that reads nothing, and one more for each query that follows another."""
        for level in range(depth(self._setting) + 1):
            self._without_input(level)

    def _without_input(self, drained: int | None = None) -> None:
        """An epoch that reads nothing; it closes every window over streams of the level `drained`, if any."""
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
        """Spark's callback: an exception that leaves it ends the streaming query, so it is kept for `run`."""
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
            self._lookups.renew()  # Spark plans a batch before it calls, so this is for the next one
        except (MillpondError, PySparkException, Py4JError, ConnectionError) as error:
            self._rereading, self._failure = learnt(self._setting.streams, self._explained(error))
            raise
        finally:
            self._busy, self._epochs_in = False, None
            if successor is not None:
                successor.decide()
        reached("batch.return")

    def _hand_over(self, successor: Successor) -> None:
        """Record what has waited for the end of the epoch, and let the successor go on, or another query."""
        self.make_changes()
        if is_read(self._setting):
            return  # it was refused
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
        news = moved(start, end, self._writer.manifest.offsets)  # of a tick nothing moves
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
        """Give buckets the owners that fit the store or the topic better, if there are any, by a record of its own."""
        now = map_asked(self._setting, self._writer.manifest)
        wanted = self._direct.wanted(self._setting, end, now, self._wanted(now))
        if wanted is not None:
            self._record_map(lambda run: map_record(self._setting, run, self._writer.token, *wanted, now_us()))

    def _step(self, taken: int) -> Waits:
        """Record the next step of many buckets towards their owners, if it should not wait; tells what should."""
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
        """Wait for all source partitions that offsets name."""
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
        """What the instances returned; their deltas are in the pond's folder, as the receipts say."""
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
        """The first failure, as an error of ours; what a dying JVM says is never the reason."""
        if self._failure is not None:
            return self._failure
        found = explained(error)
        if isinstance(found, SparkError):
            found = jvm_failure() or found
        return self._fenced_or(found)

    def _fenced_or(self, error: MillpondError) -> MillpondError:
        """That another driver has taken over, if so: that explains whatever happens here."""
        try:
            self._perform(self._writer.drain())  # reads the log, no more
        except FencedError as fenced:
            return fenced
        return error
