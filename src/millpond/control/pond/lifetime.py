"""Opens, runs and closes a pond: claims its log, and starts and ends its driver and followers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from millpond.control.checks.input_files import check_files
from millpond.control.checks.same_queries import checked_spec, initial_instances, spec_to_claim, with_relations
from millpond.control.checks.sinks_and_log import check_sinks, reconcile
from millpond.control.pond.backfill_run import BackfillRun, clear_staged
from millpond.control.pond.declare import Declarations
from millpond.control.pond.move import RowMover, routed
from millpond.control.pond.problems import LOGGER
from millpond.control.pond.readings import Readings
from millpond.control.pond.stalled_epoch import StalledEpoch
from millpond.control.wiring.file_transport import PondFiles, delta_check, pond_files
from millpond.control.wiring.stores_and_followers import (
    STOP_SECONDS,
    Followers,
    follow,
    new_writer,
    owners_for,
)
from millpond.control.wiring.truth import Truth, holds_pond, open_truth
from millpond.errors import (
    ChangeRefused,
    MillpondError,
    NoMemoryError,
    NotServingError,
    QueryTypeError,
    SparkError,
    StoreError,
    UnsupportedQuery,
)
from millpond.followers.view.move_shards import ShardMover
from millpond.log.follower import Follower
from millpond.log.locations.address import Address
from millpond.log.manifest import Manifest, load
from millpond.model.change_json import Move, Resharded, Scale
from millpond.model.spec import PondSpec
from millpond.placement.alignment import owners_in, with_owners
from millpond.reconfigure.apply import setting_of
from millpond.reconfigure.catalog import in_force, visible, without_old_history
from millpond.reconfigure.changes import Add, Alter, Change, Discard, Drop, Promote, Shadow
from millpond.reconfigure.inner_reports import visible_record
from millpond.reconfigure.lifecycle import current, query_of
from millpond.reconfigure.placement_changes import resharded
from millpond.reconfigure.probation import Probation, evaluated, quarantine_changes
from millpond.spark.driver.driver import Driver
from millpond.spark.driver.epochs import Epoch
from millpond.spark.driver.spark_progress import Alive
from millpond.spark.session.session import Session, default_instances, explaining
from millpond.spark.session.task_hosts import TaskHosts
from millpond.state.layout.delta import check_deltas
from millpond.version import VERSION

_LOOK_SECONDS = 0.2
_WAITS = "at work, or waiting for its server; a stopped process that holds a store's lock must be continued or killed"


class Location(NamedTuple):
    """Where a pond is and how it is divided, as `Pond` takes it.

    - `address`: its folder or prefix, and `cache`: the folder of this host for copies of its state.
    - `store`: the address of the store of served rows.
    - `instances`: the number of parallel folds; None for the default.
    """

    address: Address
    cache: Path
    store: str
    instances: int | None


class Observers(NamedTuple):
    """What is called while a pond is open: after it was opened, for each epoch, and for each change in force.

    `waits` is called each second with whether Spark waits for the offsets of its sources.
    """

    opened: Callable[[PondSpec], None]
    epoch: Callable[[Epoch], None]
    change: Callable[[Change], None]
    waits: Callable[[bool], None]


class OpenPond:
    """A pond that this process has claimed.

    - `spec`: the catalog in force.
    - `backfills`: those that run, by query.
    """

    def __init__(
        self, truth: Truth, driver: Driver, followers: Followers, files: PondFiles, spec: PondSpec, store: str
    ) -> None:
        self.truth, self.driver, self.followers, self.files = truth, driver, followers, files
        self.spec = spec
        self.moving = RowMover(truth, followers, store)
        writer = driver.manifest.writer
        self.resharding = ShardMover(
            followers.store, followers.slots, lambda: self.manifest().writer == writer,
            lambda target: driver.request(lambda pond: resharded(pond, target)).result(),
        )  # fmt: skip
        self.resharding.aim(spec.effects.shards)
        self.backfills: dict[str, BackfillRun] = {}

    def manifest(self) -> Manifest:
        """The manifest at the newest record of the log, whoever has written it."""
        return load(self.truth.log, self.truth.manifests, known=self.driver.manifest)

    def close(self) -> None:
        """Stop the followers and close the store."""
        self.moving.close()
        self.resharding.close()
        self.followers.close()


class Lifetime:
    """Opens and closes a pond, any number of times; `opened` is the pond while it is open.

    `stalled_after`, `on_alive`: see `Pond`.
    """

    def __init__(
        self, spark: Session, location: Location, declarations: Declarations, readings: Readings,
        observers: Observers, stalled_after: float, on_alive: Alive | None,
    ) -> None:  # fmt: skip
        self.location = location
        self.opened: OpenPond | None = None
        self._spark, self._declarations, self._readings, self._observers = spark, declarations, readings, observers
        self._opening, self._running, self._ended = threading.RLock(), threading.Lock(), False
        self._probation = Probation(location.address.folder)
        self._stalled = StalledEpoch(stalled_after, self._suspects, self._evaluated, on_alive)

    def is_open(self) -> bool:
        """Whether the pond was opened, so that requests are changes of a running pond.

        Raises:
            NotServingError: the pond was ended in this process.
        """
        if self.opened is None and self._ended:
            raise NotServingError("This process no longer leads the pond.", "Use the leader, or try again soon.")
        return self.opened is not None

    @explaining()
    def open(self) -> OpenPond:
        """Claim the pond and start its followers, unless it is open.

        Raises:
            ForeignPondError: the folder holds another pond, or one with other queries.
            AheadError: a sink has rows of records that the log has lost.
            LateSchemaError: an existing file does not fit its stream.
            NotServingError: `end` was called.
        """
        return self.opened or self._open(check_sinks)

    def _open(self, compare: Callable[[Truth, Sequence[Follower]], None]) -> OpenPond:
        with self._opening:
            self.is_open()
            if self.opened is None:
                self.opened = self._claim(compare)
                self._observers.opened(self.opened.spec)
                self._quarantine_unsupported(self.opened)
            return self.opened

    def _claim(self, compare: Callable[[Truth, Sequence[Follower]], None]) -> OpenPond:
        declared, (address, cache, store, _) = self._declarations, self.location
        truth = self._known_truth()
        if not declared.queries and not (truth and truth.manifest.spec):
            raise QueryTypeError("The pond has no queries.", "Add one first.")
        readings = declared.front.readings((*declared.queries.values(),))
        check_files(readings)
        truth = truth or open_truth(address, cache)
        spec = self._spec_of(truth)
        queries = (*declared.queries.values(),)
        declared.front.adopt(spec.streams)
        hosts = TaskHosts(self._readings.session)
        files = pond_files(self._readings.session, truth, spec, cache, store, hosts)
        read_streams = [reading.stream for reading in readings]
        followers = follow(
            truth, queries, spec, store, files.settle, files, streams=read_streams,
            functions=declared.foreach, homes=declared.front.homes, write=files.upsert,
        )  # fmt: skip
        try:
            compare(truth, followers.runner.followers())
            spec = without_old_history(spec, followers.attached.lagging, truth.manifest.map)
            setting = setting_of(truth.pond, truth.folder, cache, spec, owners_in(spec))
            driver = Driver(
                self._readings.session, setting, truth.log, truth.manifests, new_writer(truth),
                followers.runner.notify, followers.oldest_cursor, self._committed, self._changed,
                files, hosts, followers.shards, followers.wanted, self._stalled, self._declarations.front.foreigns,
                self._observers.waits,
            )  # fmt: skip
            check_deltas(delta_check(truth), truth.log, truth.manifests, truth.manifest)
            head = driver.take_over(VERSION, partial(spec_to_claim, truth.manifest, spec))
            clear_staged(truth.files())
            self._probation.began(spec, truth.log, driver.manifest)
            if self._probation.ran_out_of_memory_in(_next_batch(driver.manifest)):
                driver.read_remote_files_with_spark()
            followers.runner.start()
            followers.runner.notify(head)
            return OpenPond(truth, driver, followers, files, spec, store)
        except BaseException:
            followers.close()
            raise

    def _quarantine_unsupported(self, opened: OpenPond) -> None:
        """Quarantine the queries that an earlier release of Millpond accepted, and this one does not."""
        for version, error in self._declarations.front.unsupported.items():
            why = UnsupportedQuery(
                f"An earlier release of Millpond stored {version}, which cannot continue. {error.what}",
                f"Drop the query, and add it again. {error.cure}",
            )
            for halt in quarantine_changes(opened.spec, {version}, str(why)):
                opened.driver.request(halt).result()

    def _spec_of(self, truth: Truth) -> PondSpec:
        """The spec of the declared queries, with the owners of buckets that the pond was created with."""
        (address, _, store, given), declared = self.location, self._declarations
        known = in_force(truth.manifest) if truth.manifest.spec else None
        instances = initial_instances(known, given) or default_instances(self._spark)
        stored = {} if known is None else {query.name: query for query in visible(known).all_queries}
        declared.set_current(
            declared.front.with_stored_keys(stored.get(name, query), query) for name, query in declared.queries.items()
        )
        queries = (*declared.queries.values(),)
        spec = checked_spec(address, known, queries, declared.streams, instances, declared.front.parameters)
        # recorded changes of owners apply to the owners that the pond was created with
        owned = owners_in(known) if known else owners_for(queries, store, instances, spec.buckets)
        return with_relations(with_owners(spec, owned), declared.front.relations(spec.all_queries))

    def _known_truth(self) -> Truth | None:
        """The existing pond in the folder if no queries were given: it continues with the queries in force."""
        declared, (address, cache, _, _) = self._declarations, self.location
        if declared.queries or not holds_pond(address):
            return None
        truth = open_truth(address, cache)
        if truth.manifest.spec:
            spec = in_force(truth.manifest)
            declared.front.parameters |= spec.effects.parameters
            declared.front.restore(spec, current(spec))
            declared.set_current(current(spec))
        return truth

    @explaining()
    def run(self, *, once: bool = True, drain: bool = False) -> bool:
        """Run epochs: with `once` until all existing input has been read, else until `stop`.

        `drain` then closes every open window, unless `stop` was called. Returns when all sinks have all rows (after
        `stop`: ten seconds later at most, or earlier if the sinks that lack rows keep failing), and whether it ended
        without `stop`. It does not say whether the results are complete: see `problems`. Each problem is also a warning
        of the logger `millpond.pond` when it happens.

        Raises:
            ChangeRefused: it is running already. FencedError, OffsetGapError, CorruptError, PlaceError, …: see
            `errors`; committed results are not affected.
        """
        if not self._running.acquire(blocking=False):
            raise _running_already()
        try:
            return self._run(once=once, drain=drain)
        finally:
            self._running.release()

    def _run(self, *, once: bool, drain: bool) -> bool:
        opened = self.open()
        try:
            finished = opened.driver.run(
                lambda limits: self._readings.read(opened.spec, limits, tick=not once), once=once
            )
        except (NoMemoryError, SparkError) as error:
            raise self._blamed(error) from error
        if finished and drain:
            self.drain()
        elif finished:
            opened.driver.settle()
        if finished:
            self.settle()
        else:
            self._settle(STOP_SECONDS, patient=False)
        return finished

    def _blamed(self, error: NoMemoryError | SparkError) -> MillpondError:
        """Quarantine the queries that caused the error, and return it; needs only the log, not the JVM."""
        fatal, opened = self._stalled.error or error, self.opened
        if opened is None or isinstance(fatal, SparkError):
            return fatal
        found, halts = self._probation.failed(fatal, opened.spec, _next_batch(opened.driver.manifest))
        for halt in halts:
            with suppress(MillpondError):  # one that is refused is no reason to leave out the others
                opened.driver.request(halt).result()
        return found

    @explaining()
    def drain(self) -> None:
        """Close every open window while no epoch runs; later events of these windows will be late.

        Raises:
            FencedError, PlaceError, …: see `errors`.
        """
        self.open().driver.drain()
        self.settle()

    def stop(self) -> None:
        """Let `run` return after the current epoch; may be called from a signal handler or another thread."""
        opened = self.opened
        if opened is not None:
            opened.driver.stop()

    @explaining()
    def repair(self) -> list[str]:
        """Rewind the sinks that have rows of records which the log has lost; return one sentence for each of them.

        Use it after the log was lost, or restored from an older copy. The events of the lost records are read again.

        Raises:
            AheadError: a sink cannot be rewound; the message says what is left to do.
        """
        done: list[str] = []
        self._open(lambda truth, sinks: done.extend(reconcile(truth, sinks)))
        return done

    def settle(self, timeout: float = 60.0) -> None:
        """Wait until every sink and the view have every committed row.

        Raises:
            DiskFullError, TruthError: one of them cannot continue until its location, which is named, is repaired.
            StoreError: one of them keeps failing; the message says which and why.
        """
        self._settle(timeout, patient=True)

    def _settle(self, timeout: float, *, patient: bool) -> None:
        opened = self.opened
        if opened is None:
            return
        head, runner = opened.manifest().n, opened.followers.runner
        # the newest record may be of another driver, which has taken over
        runner.notify(head)
        if not runner.wait(head, timeout, patient=patient):
            late = [f"{status.name}: {status.error or _WAITS}" for status in runner.status() if status.behind]
            raise StoreError(f"Not every sink has all rows ({'; '.join(late)}).", "Mend it and run again.")

    def close(self) -> None:
        """Stop the followers and close the store; the Spark session stays as it was."""
        opened = self.opened
        if opened is not None:
            opened.close()
        self.opened = None

    def end(self) -> None:
        """Close the pond for good: later requests are refused, and so are queries that are being analysed."""
        self._ended = True
        self._declarations.end()
        with self._opening:
            self.close()

    def _suspects(self) -> list[str]:
        names, shadows = ([], []) if self.opened is None else self._probation.suspects(self.opened.spec)
        return [*names, *shadows]

    def _evaluated(self) -> list[str]:
        return [] if self.opened is None else evaluated(self.opened.spec)

    def _committed(self, epoch: Epoch) -> None:
        self._probation.committed(epoch.record)
        opened = self.opened
        self._observers.epoch(
            epoch if opened is None else epoch._replace(record=visible_record(epoch.record, opened.spec))
        )

    def _changed(self, n: int, change: Change, spec: PondSpec) -> None:
        """Take a recorded change into account: it is in force from the next epoch on."""
        assert self.opened is not None
        followers, declared, before = self.opened.followers, self._declarations, self.opened.spec
        attached, self.opened.spec = followers.attached, spec
        declared.set_current(current(spec))
        declared.front.parameters = dict(spec.effects.parameters)
        declared.front.retain(spec.computed)
        self._observers.change(change)
        self._probation.changed(change)
        if isinstance(change, Move) and followers.store is not None:
            routed(followers.store, spec)
        if isinstance(change, Scale | Resharded):
            self.opened.resharding.aim(spec.effects.shards)
        if isinstance(change, Add):
            attached.add_letters(declared.sources_of(change.stored.query), n)
            attached.add(change.stored.query, n)
            declared.remember(change.stored.query)
        elif isinstance(change, Alter):
            declared.remember(change.stored.query)
        elif isinstance(change, Shadow):
            attached.compare(change.name, n, self.opened.manifest())
        elif isinstance(change, Promote):
            declared.remember(declared.queries[change.name])
        elif isinstance(change, Discard):
            attached.stop_comparing(change.name)
        elif isinstance(change, Drop):
            attached.stop_comparing(change.name)
            attached.detach(query_of(before, change.name), n)
            with declared.front.lock:
                declared.front.forget(change.name)
                declared.front.forget_rows(change.name)
            declared.forget_folder(change.name)


def _running_already() -> ChangeRefused:
    return ChangeRefused("The pond is running already.", "Call stop() and await_termination() first.")


def _next_batch(manifest: Manifest) -> tuple[str, int]:
    """The Spark batch of the epoch after a manifest."""
    return manifest.spark_query, manifest.batch + 1


class BackgroundRun:
    """At most one run of a pond at a time, in a thread, so that a notebook or a program can go on meanwhile."""

    def __init__(self, lifetime: Lifetime) -> None:
        self._lifetime = lifetime
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        """Open the pond, and run epochs in the background until `stop` or `close`; see `await_termination`.

        Raises:
            ChangeRefused: it is running already. ForeignPondError, AheadError, LateSchemaError: see `open`.
        """
        if self.is_active():
            raise _running_already()
        self._lifetime.open()
        self._error = None
        self._thread = threading.Thread(target=self._run, name="millpond-pond", daemon=True)
        self._thread.start()

    def is_active(self) -> bool:
        """Whether the pond runs in the background."""
        return self._thread is not None and self._thread.is_alive()

    def await_ready(self, timeout: float | None = None) -> bool:
        """Wait until a run in the background reads new records at once; returns False after `timeout` seconds.

        Its first batch has then ended and, if that was empty, generated rows have passed two Python workers of Spark.
        More old input than one batch reads is still to be read.

        Raises:
            MillpondError: the run failed, or nothing runs; with the error that `run` would raise.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.is_active() and (opened := self._lifetime.opened) is not None:
            if opened.driver.await_ready(_LOOK_SECONDS):
                return True
            if deadline is not None and time.monotonic() > deadline:
                return False
        self.await_termination()
        raise ChangeRefused("The pond does not run.", "Call start() first.")

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the run in the background ends, at most `timeout` seconds; returns whether it has ended.

        Raises:
            MillpondError: the run failed; with the error that `run` would raise.
        """
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                return False
        if self._error is not None:
            raise self._error
        return True

    def end(self) -> None:
        """Stop the run in the background; wait until its epoch has ended, unless this is called within the epoch."""
        if self._thread is not None:
            self._lifetime.stop()
            opened = self._lifetime.opened
            if opened is None or not opened.driver.in_epoch:
                self._thread.join()

    def _run(self) -> None:
        try:
            self._lifetime.run(once=False)
        except BaseException as error:
            self._error = error
            logging.getLogger(LOGGER).error("The pond has ended: %s", error)
