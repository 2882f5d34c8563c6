"""The class `Pond`: add queries, run, read results."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from millpond.control.pond.add import Asking, Backfill, backfill_from
from millpond.control.pond.backfill import clear_staged
from millpond.control.pond.change import Changing, ToRead
from millpond.control.pond.check_inputs import empty_inputs
from millpond.control.pond.check_schemas import check_files
from millpond.control.pond.check_spec import agreed, born_with, claimed
from millpond.control.pond.compile import compiled_of, write_compiled
from millpond.control.pond.declare import Declaring
from millpond.control.pond.event_totals import Tally
from millpond.control.pond.move import Moving
from millpond.control.pond.problems import Problems, dropping
from millpond.control.pond.reconcile import check_sinks, reconcile
from millpond.control.pond.report import Reporting
from millpond.control.wiring.adapters import (
    STOP_SECONDS,
    Followers,
    Truth,
    checked_store,
    follow,
    new_writer,
    open_truth,
    owners_for,
)
from millpond.control.wiring.bucket_map import placed_now, unserved
from millpond.control.wiring.file_transport import Carriage, carriage
from millpond.control.wiring.latest_rows import own_tables
from millpond.control.wiring.reader import read_truth
from millpond.errors import (
    IncompleteError,
    InputError,
    MillpondError,
    NoMemoryError,
    QueryTypeError,
    StoreError,
)
from millpond.followers.sinks.foreach import Foreach
from millpond.followers.view.view import Served, lookup
from millpond.kernels.columns import arrow_type
from millpond.local_path import local_path
from millpond.log.follower import Follower
from millpond.log.manifest import Manifest, load
from millpond.model.endpoints import Sink
from millpond.model.selection import AnyQuery
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream
from millpond.placement.alignment import Placement, owners_in, with_owners
from millpond.placement.moves import maps_in
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.plan import Plan
from millpond.plan.options.retention import with_declared
from millpond.reconfigure.apply import plan_of, setting_of
from millpond.reconfigure.catalog import in_force, still_leaving
from millpond.reconfigure.lifecycle import current
from millpond.reconfigure.probation import Probation
from millpond.runtime.inspect.sharing import Sharing, sharing
from millpond.runtime.rows.window_rows import served_key
from millpond.spark.analysis.properties import Mode, Repeats
from millpond.spark.catalyst.deadline import Analyses
from millpond.spark.driver.driver import Driver
from millpond.spark.driver.epochs import Epoch
from millpond.spark.driver.replace_query import Reading
from millpond.spark.frontend.frontend import FrontEnd
from millpond.spark.session.session import (
    Frame,
    Session,
    check_session,
    default_instances,
    explaining,
    reading_session,
    spark_session,
)
from millpond.state.layout.delta import check_deltas
from millpond.state.ports.files import IDENTITY
from millpond.state.ports.private_folder import own_folder
from millpond.version import VERSION

_MEMORY = Sink("memory")
_WAITS = "at work or waiting; a stopped process that holds the lock of its store must be continued or killed"


class Pond(Reporting, Changing, Declaring):
    """Runs many continuous queries over the same streams; each event is read, shuffled and stored once for all of them.

    `path`: the pond's folder, created if needed; a later pond on the same folder with the same queries, or with none,
    continues where the last one stopped. `spark`: your classic Spark session, or None to start one. `instances`: the
    number of parallel folds (default: Spark's parallelism), unless `scale` has changed it. `store`: where the rows of
    served queries are kept: `lmdb`, `lmdb:PATH`, `redis://HOST:PORT` or `memory`. `on_epoch`: called with each
    committed epoch. `on_alive`: called each second in which Spark responds while `run` waits; its argument says
    whether an epoch is running.

    Raises:
        SetupError: this Spark session cannot be used.
        PlaceError: a path is not local.
    """

    def __init__(
        self,
        spark: Session | None = None,
        path: str | os.PathLike[str] = "pond",
        *,
        instances: int | None = None,
        store: str = "lmdb",
        cache: str | os.PathLike[str] | None = None,
        on_epoch: Callable[[Epoch], None] | None = None,
        on_alive: Callable[[bool], None] | None = None,
    ) -> None:
        self.path = local_path(path, "The pond's folder")
        self._instances, self._store = instances, checked_store(store)
        self.spark = spark_session() if spark is None else spark
        check_session(self.spark)
        self._reading = reading_session(self.spark)
        self._cache = local_path(cache, "The cache") if cache is not None else _host_local_folder()
        self._on_epoch, self._on_alive = on_epoch or (lambda _epoch: None), on_alive
        self._tally, self._problems = Tally(), Problems()
        self._front = FrontEnd(self.spark, own_tables(store))
        self._queries: dict[str, AnyQuery] = {}
        self._functions: dict[str, Foreach] = {}
        self._truth: Truth | None = None
        self._driver: Driver | None = None
        self._followers: Followers | None = None
        self._carriage: Carriage | None = None
        self._spec: PondSpec | None = None
        self._moving: Moving | None = None
        self._to_read: ToRead | None = None
        self._ahead: tuple[ToRead, Reading] | None = None
        self._backfills = {}
        self._analysing, self._opening, self._analyses = self._front.lock, threading.RLock(), Analyses()
        self._ended = False
        self._probation = Probation(self.path)
        self.refused = []

    @explaining()
    def add(
        self, name: str, query: str | Frame, *, sink: Sink = _MEMORY, serve: bool = False, late: Sink | None = None,
        emit: str = "final", correct_for: str | None = None, deduplicate: Sequence[str] = (),
        deduplicate_within: str | None = None, budget: str | None = None, incomplete: bool = False,
        backfill: Backfill = False, who: str | None = None,
    ) -> AnyQuery:  # fmt: skip
        """Add a query, also while the pond runs: Spark SQL, or a Structured Streaming DataFrame that is not started.

        SQL may read the rows of an earlier query (`FROM STREAM its_name`), one epoch later. Rows go to `sink` (default:
        memory, see `table`); `serve` keeps the latest row per key for `lookup`; late events that WHERE takes go to
        `late`, else they are only counted. By default a row is emitted once, when the watermark passes its window; with
        `emit="update"` in each epoch that changes it (`_op`: upsert or delete); with `correct_for="1 hour"` once, and
        again if events arrive up to an hour later than the delay (`_revision`). An event is left out if it equals an
        event at most `deduplicate_within` before it in the columns `deduplicate`. A query added to a running pond
        emits the windows that start after all events that were read, and those that kept data completes. `incomplete`:
        also emit windows that are open now, from later events; `_complete` marks the rows of complete windows.
        `backfill`: read earlier events again from the source, and also emit the windows, even closed ones, that the
        query would have emitted before: all (True), or those that start at a time (ISO 8601 or a datetime, UTC without
        a zone) or later; the call returns when this is in the log. `budget` (`state 100 MB, keys 1000000, time 50 ms`:
        bytes of state, keys, workers' time per epoch): above it the query is quarantined. `who` (default: this
        process's user) is stored in the history.

        Raises:
            QueryError: the query is wrong, refused or not supported; nothing was added.
            GoneError: the source does not have everything that a backfill needs; nothing was added.
        """
        mode, repeats = Mode(emit, correct_for), Repeats(tuple(deduplicate), deduplicate_within)
        asking = Asking(sink, serve, late, mode, repeats, budget, incomplete, backfill_from(backfill))
        if self._is_open():
            return self._add(name, query, asking, who)
        if asking.backfill_us is not None and (self.path / IDENTITY).is_file():
            raise QueryTypeError(f"{name} can be backfilled when the pond is open.", "Call `pond.open()` first.")
        if name in self._queries:
            raise QueryTypeError(f"The query name {name!r} is used twice.", "Give each query its own name.")
        made = self._queries[name] = self._analysed(name, query, asking)
        return made

    @explaining()
    def load(self, text: str, *, queries: bool = True) -> tuple[AnyQuery, ...]:
        """Declare the streams of a pond file (Spark's own statements) and, if `queries`, add its queries.

        Raises:
            QueryError: a statement is wrong; the message names its line.
        """
        self.load_functions()
        made = self._front.load_file(text, queries=queries)
        for query in made:
            if query.name in self._queries:
                raise QueryTypeError(f"The query name {query.name!r} is used twice.", "Rename one.")
            self._queries[query.name] = query
        return tuple(made)

    def compile(self, path: str | os.PathLike[str]) -> None:
        """Write the analysed streams and queries for `millpond.testing.Trial`, which reads them without Spark.

        Raises:
            PlaceError: the file holds something else, or cannot be written.
        """
        write_compiled(Path(path), compiled_of(self.streams, self.queries))

    @property
    def queries(self) -> tuple[AnyQuery, ...]:
        """The queries, in the order they were added."""
        return tuple(self._queries.values())

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams: those that are declared, and those that queries derive from them."""
        return tuple(self._front.streams.values())

    @property
    def plan(self) -> Plan:
        """The shared plan of the queries."""
        if self._spec is not None:
            return plan_of(self._spec)
        return with_declared(build_plan(self._queries.values()), self.streams)

    @explaining()
    def notes(self) -> list[InputError]:
        """Possible mistakes: folders that are still empty, files that lack a column, sources that drop records without
        counting them.

        Raises:
            LateSchemaError: a file does not fit its stream; `run` would raise the same before it reads an event.
        """
        readings = self._front.readings(self.queries)
        streams = [reading.stream for reading in readings]
        dropped = (IncompleteError(one.text) for one in dropping(streams))
        return [*empty_inputs(streams), *check_files(readings), *dropped]

    @explaining()
    def run(self, *, once: bool = True, drain: bool = False) -> bool:
        """Run epochs: with `once` until all existing input has been read, else until `stop`.

        `drain` then closes every open window, unless `stop` was called. Returns when all sinks have all rows (after
        `stop`: ten seconds later at most), and whether it ended without `stop`. It does not say whether the results are
        complete: see `problems`. Each problem is also a warning of the logger `millpond.pond` when it happens.

        Raises:
            FencedError, OffsetGapError, CorruptError, PlaceError, …: see `errors`; what was committed stands.
        """
        self.open()
        assert self._driver is not None and self._spec is not None
        try:
            finished = self._driver.run(lambda limits: self._read(limits, tick=not once), once=once)
        except NoMemoryError as error:
            raise self._blamed(error) from error
        if finished and drain:
            self.drain()
        elif finished:
            self._driver.settle()
        if finished:
            self.settle()
        else:
            self.settle(STOP_SECONDS)
        return finished

    def _blamed(self, error: NoMemoryError) -> NoMemoryError:
        """Quarantine the queries that caused the error, and return it; needs only the log, not the JVM."""
        if self._driver is None or self._spec is None:
            return error
        manifest = self._driver.manifest
        found, halts = self._probation.failed(error, self._spec, (manifest.spark_query, manifest.batch + 1))
        with suppress(MillpondError):
            for halt in halts:
                self._driver.ask(halt).result()
        return found

    @explaining()
    def drain(self) -> None:
        """Close every open window while no epoch runs; later events of these windows will be late.

        Raises:
            FencedError, PlaceError, …: see `errors`.
        """
        self.open()
        assert self._driver is not None
        self._driver.drain()
        self.settle()

    @explaining()
    def open(self) -> None:
        """Claim the pond and start its followers; `run` does it by itself.

        Raises:
            ForeignPondError: the folder holds another pond, or one with other queries.
            AheadError: a sink has rows of records that the log has lost.
            LateSchemaError: an existing file does not fit its stream.
            NotServingError: `end` was called.
        """
        if self._driver is not None:
            return
        with self._opening:
            if not self._is_open():
                self._open()

    def _open(self, compare: Callable[[Truth, Sequence[Follower]], None] = check_sinks) -> None:
        truth = self._known_truth()
        if not self._queries and not (truth and truth.manifest.spec):
            raise QueryTypeError("The pond has no queries.", "Add one first.")
        readings = self._front.readings(self.queries)
        check_files(readings)
        truth = truth or open_truth(self.path)
        known = in_force(truth.manifest) if truth.manifest.spec else None
        instances = born_with(known, self._instances) or default_instances(self.spark)
        asked = agreed(self.path, known, self.queries, self.streams, instances, self._front.parameters)
        # recorded changes of owners apply to the owners that the pond was created with
        owned = owners_in(known) if known else owners_for(self.queries, self._store, instances, asked.buckets)
        spec = with_owners(asked, owned)
        carried = self._carriage = carriage(self._reading, truth, spec, self._cache, self._store)
        read_streams = [reading.stream for reading in readings]
        followers = follow(
            truth, self.queries, spec, self._store, carried.settle, carried, streams=read_streams,
            functions=self._functions, homes=self._front.homes,
        )  # fmt: skip
        try:
            compare(truth, followers.runner.followers())
            spec = still_leaving(spec, followers.joining.lagging, truth.manifest.map)
            setting = setting_of(truth.pond, self.path, self._cache, spec, owners_in(spec))
            driver = Driver(
                self._reading, setting, truth.log, truth.manifests, new_writer(truth),
                followers.runner.notify, followers.followed, self._committed, self._changed,
                carried, followers.wanted, self._on_alive,
            )  # fmt: skip
            check_deltas(self.path, truth.log, truth.manifests, truth.manifest)
            head = driver.take_over(VERSION, partial(claimed, truth.manifest, spec))
        except BaseException:
            followers.close()
            raise
        clear_staged(self.path)
        self._probation.began(spec, truth.log, driver.manifest)
        followers.runner.start()
        followers.runner.notify(head)
        self._truth, self._driver, self._followers, self._spec = truth, driver, followers, spec
        self._moving = Moving(truth, followers, self._store)
        self._declare_parameters(spec)

    def _known_truth(self) -> Truth | None:
        """The existing pond in the folder if no queries were given: it continues with the queries in force."""
        if self._queries or not (self.path / IDENTITY).is_file():
            return None
        truth = open_truth(self.path)
        if truth.manifest.spec:
            spec = in_force(truth.manifest)
            self._front.parameters |= spec.left.parameters
            self._front.restore(spec.streams, current(spec), spec.asked)
            self._queries = {query.name: query for query in current(spec)}
        return truth

    def stop(self) -> None:
        """Let `run` return after the current epoch; may be called from a signal handler or another thread."""
        if self._driver is not None:
            self._driver.stop()

    @explaining()
    def repair(self) -> list[str]:
        """Make Spark's checkpoint and the sinks agree with the log again; returns one sentence for each action.

        Use it if the checkpoint or the log was lost, damaged or restored from an older copy. A sink that has rows of
        records which the log has lost is rewound first, because the events of these records are read again.

        Raises:
            AheadError: a sink cannot be rewound; the message says what is left to do.
            OffsetGapError: the lost data was stored nowhere else; the message says what is left to do.
        """
        done: list[str] = []
        with self._opening:
            if not self._is_open():
                self._open(lambda truth, sinks: done.extend(reconcile(truth, sinks)))
        assert self._driver is not None
        return [*done, self._driver.repair()]

    def settle(self, timeout: float = 60.0) -> None:
        """Wait until every sink and the view have every committed row.

        Raises:
            DiskFullError, TruthError: one of them cannot continue until its location, which is named, is repaired.
            StoreError: one of them keeps failing; the message says which and why.
        """
        if self._followers is None or self._truth is None:
            return
        head = self.manifest().n
        # the newest record may be of another driver, which has taken over
        self._followers.runner.notify(head)
        if not self._followers.runner.wait(head, timeout):
            late = [f"{status.name}: {status.error or _WAITS}" for status in self.status() if status.behind]
            raise StoreError(f"Not every sink has all rows ({'; '.join(late)}).", "Mend it and run again.")

    def table(self, name: str) -> pa.Table:
        """All rows of a query whose sink is `memory`.

        Raises:
            QueryError: the query has another sink.
            KeyError: no such query.
        """
        if self._followers is None:
            raise KeyError(name)
        return self._followers.tables.table(name)

    def late_rows(self, name: str) -> pa.Table:
        """All late events so far of a query whose `late` sink is `memory`; `_watermark`: the one that made it late.

        Raises:
            QueryError: its late events go elsewhere.
            KeyError: no such query, or the pond is not open.
        """
        if self._followers is None:
            raise KeyError(name)
        return self._followers.late_tables.table(name)

    def lookup(self, name: str, *key: Any) -> Served:
        """The latest row of a served query for a key (its values in order), and the record as of which it is current.

        Raises:
            KeyError: no such query.
            StoreError: the query is not served.
        """
        if self._followers is None or self._followers.store is None or not self._queries[name].serve:
            raise StoreError(f"The query {name!r} is not served.", "Add it with serve=True.")
        group, _ = self.plan.of_query(name)
        columns = [
            pa.array([value], arrow_type(kind.type)) for value, kind in zip(key, group.keys, strict=True)
        ]
        text, bucket = served_key(columns, 1, self._spec.buckets if self._spec else 1, group.spread_by)
        return lookup(self._followers.store, name, text[0].as_py(), bucket[0].as_py())

    def manifest(self) -> Manifest:
        """The manifest at the newest record of the log.

        Raises:
            KeyError: the pond was not opened.
        """
        if self._truth is None:
            raise KeyError("the pond is not open")
        known = None if self._driver is None else self._driver.manifest
        return load(self._truth.log, self._truth.manifests, known=known)

    def placement(self) -> Placement:
        """Which instance owns which buckets, on which shards of the store they are now, and the local-hit rate.

        Raises:
            StoreError: no query is served, the pond is not open, or the store cannot be asked.
        """
        if self._followers is None or self._followers.store is None or self._spec is None:
            raise unserved()
        return placed_now(*read_truth(self.path), self._followers.store)

    def sharing(self) -> Sharing:
        """How much state the queries share now, compared to one copy per query; see `runtime.inspect.sharing`.

        Raises:
            KeyError: the pond was not opened.
        """
        manifest = self.manifest()
        instances = maps_in(self._spec, manifest)[0].instances if self._spec is not None else 0
        assert self._truth is not None
        return self._truth.sections(lambda now: sharing(self.plan, now, self.path, instances), manifest)

    def close(self) -> None:
        """Stop the followers and close the store; the Spark session stays as it was."""
        if self._moving is not None:
            self._moving.close()
        if self._followers is not None:
            self._followers.close()
        self._moving = self._driver = self._followers = self._truth = self._spec = None

    def end(self) -> None:
        """`close` permanently: later requests of other threads are refused, and so are queries being analysed now."""
        self._ended = True
        self._analyses.end()
        with self._opening:
            self.close()

    def __enter__(self) -> Pond:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _host_local_folder() -> Path:
    """The folder for key tables cached on this host; memory-backed if the system offers that."""
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
    return own_folder(base)
