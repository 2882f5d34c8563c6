"""The class `Pond`: add queries, run, read results.

`Pond` is a facade: it creates the parts, and each of its methods is a method of one of them, with that method's text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from millpond.control.diagnose.notebook import QueryList, queries_table
from millpond.control.diagnose.plan_graph import MOST_QUERIES, links_of, picture
from millpond.control.pond.add import QueryAdditions
from millpond.control.pond.change import QueryChanges
from millpond.control.pond.declare import Declarations
from millpond.control.pond.lifetime import BackgroundRun, Lifetime, Location, Observers, OpenPond
from millpond.control.pond.placement import BucketPlacement
from millpond.control.pond.readings import Readings
from millpond.control.pond.report import Reports
from millpond.control.pond.request_change import ChangeRequests
from millpond.control.stall_limits import STALLED_SECONDS
from millpond.control.wiring.latest_rows import own_tables
from millpond.control.wiring.output_folders import OutputFolders
from millpond.control.wiring.pond_reader import not_served
from millpond.control.wiring.stores_and_followers import checked_store
from millpond.control.wiring.truth import host_cache
from millpond.errors import MillpondError, QueryError, QueryTypeError, one_of
from millpond.followers.view.documents import decoded, rows_of_one_record
from millpond.followers.view.view import Served, lookup
from millpond.kernels.columns import arrow_type
from millpond.local_path import local_path
from millpond.log.locations.address import Given, address_of
from millpond.log.manifest import Manifest
from millpond.model.functions import UserFunction
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.model.stream import Relation, Stream
from millpond.placement.moves import maps_in
from millpond.plan.explain.amounts import count_of
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.plan import Plan
from millpond.plan.options.retention import with_declared
from millpond.plan.upstream.steps import with_inner
from millpond.reconfigure.apply import plan_of
from millpond.reconfigure.inner_reports import declared_names, labels
from millpond.runtime.inspect.sharing import Sharing, sharing
from millpond.runtime.rows.served_keys import served_key
from millpond.runtime.rows.window_rows import output_schema, with_flat_windows
from millpond.spark.driver.epochs import Epoch
from millpond.spark.driver.spark_progress import Alive
from millpond.spark.frontend.frontend import FrontEnd
from millpond.spark.session.session import Session, check_session, reading_session, spark_session
from millpond.state.ports.store import BucketStore

P = ParamSpec("P")
T = TypeVar("T")


def _delegate(part: str, method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Pond, P], T]:
    """A method of `Pond` that calls `method` of one of its parts; `part` is the attribute that has the part."""

    @wraps(method)
    def call(pond: Pond, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(getattr(pond, part), *args, **kwargs)

    return call


class Pond:
    """Runs many continuous queries over the same streams; each event is read, shuffled and stored once for all of them.

    `path`: the pond's folder, created if needed, or an address such as `s3://BUCKET/PREFIX`; a later pond on the same
    folder with the same queries, or with none, continues where the last one stopped. `spark`: your classic Spark
    session, or None to start one. `instances`: the number of parallel folds (default: Spark's parallelism), unless
    `scale` has changed it. `store`: where the rows of served queries are kept: `lmdb`, `lmdb:PATH`, `redis://HOST:PORT`
    or `memory`. `on_epoch`: called with each committed epoch. `on_alive`: called each second in which Spark responds
    while `run` waits; its argument is None between epochs, and else numbers that change as the running epoch
    progresses. `stalled_after`: the seconds without progress after which an epoch with a new query is ended, and the
    query quarantined. `out`: the folder for rows of queries whose sink names none (default: `out` in the pond).

    Raises:
        SetupError: this Spark session cannot be used.
        PlaceError: the address is not supported, or another path is not local.
    """

    def __init__(
        self,
        spark: Session | None = None,
        path: Given = "pond",
        *,
        instances: int | None = None,
        store: str = "lmdb",
        cache: str | os.PathLike[str] | None = None,
        on_epoch: Callable[[Epoch], None] | None = None,
        on_alive: Alive | None = None,
        stalled_after: float = STALLED_SECONDS,
        out: Given | None = None,
    ) -> None:
        self.address = address_of(path)
        store = checked_store(store)
        self.spark = spark_session() if spark is None else spark
        check_session(self.spark)
        session = reading_session(self.spark)
        cache = local_path(cache, "The cache") if cache is not None else host_cache(self.address)
        folders = OutputFolders(self.address, None if out is None else address_of(out, "The folder of results"))
        self._declarations = Declarations(FrontEnd(self.spark, own_tables(store)), folders)
        self._reports = Reports(self.address, cache, self._declarations, lambda: self._lifetime.opened, on_epoch)
        self._readings = Readings(session, self._declarations, self._reports.malformed)
        observers = Observers(
            lambda spec: self._changes.declare_parameters(spec), self._reports.committed, self._reports.changed,
            self._reports.waits,
        )
        self._lifetime = Lifetime(
            self.spark, Location(self.address, cache, store, instances), self._declarations, self._readings, observers,
            stalled_after, on_alive,
        )  # fmt: skip
        self._background = BackgroundRun(self._lifetime)
        self._requests = ChangeRequests(self._lifetime, self._readings)
        self._additions = QueryAdditions(self._lifetime, self._declarations, self._readings, self._requests)
        self._changes = QueryChanges(self._lifetime, self._declarations, self._requests, self._additions)
        self._placement = BucketPlacement(self._lifetime, self._requests, self._reports)

    # Declare streams, functions and tables before the queries that name them.
    stream = _delegate("_declarations", Declarations.stream)
    function = _delegate("_declarations", Declarations.function)
    load_functions = _delegate("_declarations", Declarations.load_functions)
    map_batches = _delegate("_declarations", Declarations.map_batches)
    lookup_table = _delegate("_declarations", Declarations.lookup_table)
    refresh = _delegate("_declarations", Declarations.refresh)
    load = _delegate("_declarations", Declarations.load)
    compile = _delegate("_declarations", Declarations.compile)
    notes = _delegate("_declarations", Declarations.notes)

    # Open, run and close the pond.
    run = _delegate("_lifetime", Lifetime.run)
    start = _delegate("_background", BackgroundRun.start)
    is_active = _delegate("_background", BackgroundRun.is_active)
    await_ready = _delegate("_background", BackgroundRun.await_ready)
    await_termination = _delegate("_background", BackgroundRun.await_termination)
    drain = _delegate("_lifetime", Lifetime.drain)
    stop = _delegate("_lifetime", Lifetime.stop)
    repair = _delegate("_lifetime", Lifetime.repair)
    settle = _delegate("_lifetime", Lifetime.settle)
    end = _delegate("_lifetime", Lifetime.end)

    # Add, change and inspect queries and live parameters, also while the pond runs.
    add = _delegate("_additions", QueryAdditions.add)
    foreach = _delegate("_changes", QueryChanges.foreach)
    drop = _delegate("_changes", QueryChanges.drop)
    pause = _delegate("_changes", QueryChanges.pause)
    resume = _delegate("_changes", QueryChanges.resume)
    alter = _delegate("_changes", QueryChanges.alter)
    shadow = _delegate("_changes", QueryChanges.shadow)
    promote = _delegate("_changes", QueryChanges.promote)
    rollback = _delegate("_changes", QueryChanges.rollback)
    discard = _delegate("_changes", QueryChanges.discard)
    diff = _delegate("_changes", QueryChanges.diff)
    param = _delegate("_changes", QueryChanges.param)
    unset = _delegate("_changes", QueryChanges.unset)
    params = _delegate("_changes", QueryChanges.params)
    feed = _delegate("_changes", QueryChanges.feed)
    price_of = _delegate("_changes", QueryChanges.price_of)
    history = _delegate("_changes", QueryChanges.history)
    costs = _delegate("_changes", QueryChanges.costs)

    # Say which instance and which store has which part of the state.
    scale = _delegate("_placement", BucketPlacement.scale)
    price_of_scale = _delegate("_placement", BucketPlacement.price_of_scale)
    servers = _delegate("_placement", BucketPlacement.servers)
    stop_resharding = _delegate("_placement", BucketPlacement.stop_resharding)
    assign = _delegate("_placement", BucketPlacement.assign)
    move = _delegate("_placement", BucketPlacement.move)
    price_of_move = _delegate("_placement", BucketPlacement.price_of_move)
    placement = _delegate("_placement", BucketPlacement.placement)

    # Ask how the pond is.
    counts = _delegate("_reports", Reports.counts)
    why = _delegate("_reports", Reports.why)
    status = _delegate("_reports", Reports.status)
    behind = _delegate("_reports", Reports.behind)
    problems = _delegate("_reports", Reports.problems)
    trace = _delegate("_reports", Reports.trace)

    def open(self) -> None:
        """Claim the pond and start its followers; `run` calls this itself.

        Raises:
            ForeignPondError: the folder holds another pond, or one with other queries.
            AheadError: a sink has rows of records that the log has lost.
            LateSchemaError: an existing file does not fit its stream.
            NotServingError: `end` was called.
        """
        self._lifetime.open()

    def close(self) -> None:
        """End a run in the background, stop the followers and close the store; the Spark session stays as it was."""
        self._background.end()
        self._lifetime.close()

    @property
    def queries(self) -> QueryList:
        """The queries, in the order they were added."""
        found = QueryList(self._declarations.queries.values())
        found.streams, found.relations = self.streams, self.relations
        return found

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams: those that are declared, and those that queries derive from them."""
        return self._declarations.streams

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The views and tables that the texts of the queries name."""
        return self._declarations.relations

    @property
    def texts_in_file(self) -> Mapping[str, str]:
        """The texts of the queries in the pond file that was loaded last, by name, whether or not they were added."""
        return self._declarations.texts_in_file

    @property
    def functions(self) -> tuple[UserFunction, ...]:
        """The newest version of each declared function."""
        return self._declarations.functions

    @property
    def refused(self) -> list[MillpondError]:
        """The refusals of changes that were requested within `on_epoch`."""
        return self._requests.refused

    @property
    def plan(self) -> Plan:
        """The shared plan of the queries."""
        opened = self._lifetime.opened
        if opened is not None:
            return plan_of(opened.spec)
        with declared_names(self.streams, self.relations):
            return with_declared(build_plan(with_inner(self.queries, self._declarations.front.streams)), self.streams)

    def table(self, name: str, *, flat_windows: bool = False) -> pa.Table:
        """All rows of a query whose sink is `memory`; before the first row, a table with its columns.

        `flat_windows`: a window `w` is two columns, `w_start` and `w_end`, by which a DataFrame can be grouped.

        Raises:
            QueryError: there is no such query, it has another sink, or the pond is not open.
        """
        tables = self._opened().followers.tables
        query = self._query(name) if name not in tables else self._declarations.queries.get(name)  # it may be dropped
        rows = tables.table(name)
        found = rows if rows.num_columns or query is None else output_schema(query).empty_table()
        return with_flat_windows(found) if flat_windows else found

    def late_rows(self, name: str) -> pa.Table:
        """All late events until now of a query whose `late` sink is `memory`; `_watermark`: the watermark they missed.

        Raises:
            QueryError: there is no such query, its late events go elsewhere, or the pond is not open.
        """
        tables = self._opened().followers.late_tables
        if name not in tables:
            self._query(name)
        return tables.table(name)

    def lookup(self, name: str, *key: Any) -> Served:
        """The latest row of a served query for a key (its values in order), and the record as of which it is current.

        Raises:
            QueryError: there is no such query, it is not served, the pond is not open, or the values are not its key.
        """
        store, _ = self._served(name)
        group, _ = self.plan.of_query(name)
        try:
            columns = [pa.array([value], arrow_type(kind.type)) for value, kind in zip(key, group.keys, strict=True)]
        except (ValueError, TypeError) as error:  # errors of Arrow are subclasses
            types = ", ".join(one.type for one in group.keys)
            raise QueryTypeError(
                f"{key} is not a key of {name}; its key has {count_of(len(group.keys), 'value')}: {types}.",
                f"Write pond.lookup({name!r}, …) with a value of each type.",
            ) from error
        text, bucket = served_key(columns, 1, self._opened().spec.buckets, group.spread_by)
        return lookup(store, name, text[0].as_py(), bucket[0].as_py())

    def served_rows(self, name: str, *, flat_windows: bool = False) -> pa.Table:
        """The latest rows of all keys of a served query, as of the record that the metadata of the schema names.

        All of them are in memory. `flat_windows`: as for `table`.

        Raises:
            QueryError: there is no such query, it is not served, or the pond is not open.
            BusyError: the rows change too fast to be read as of one record.
        """
        store, query = self._served(name)
        record, scanned = rows_of_one_record(store, range(self._opened().spec.buckets), [name])
        found = pa.Table.from_batches([*decoded(query, (bucket[0] for bucket in scanned))])
        found = with_flat_windows(found) if flat_windows else found
        return found.replace_schema_metadata({"record": str(record)})

    def _served(self, name: str) -> tuple[BucketStore, Query]:
        opened, query = self._opened(), self._query(name)
        if opened.followers.store is None or not isinstance(query, Query) or not query.serve:
            raise not_served(name, [one.name for one in self.queries if isinstance(one, Query) and one.serve])
        return opened.followers.store, query

    def manifest(self) -> Manifest:
        """The manifest at the newest record of the log.

        Raises:
            QueryError: the pond is not open.
        """
        return self._opened().manifest()

    def sharing(self) -> Sharing:
        """How much state the queries share now, compared to one copy per query; see `runtime.inspect.sharing`.

        Raises:
            QueryError: the pond is not open.
        """
        opened = self._opened()
        manifest = opened.manifest()
        instances = maps_in(opened.spec, manifest)[0].instances
        return opened.truth.sections(lambda now: sharing(self.plan, now, opened.truth.files(), instances), manifest)

    def _query(self, name: str) -> AnyQuery:
        queries = self._declarations.queries
        if name not in queries:
            raise QueryError(f"There is no query {name!r}.", one_of(name, queries))
        return queries[name]

    def _opened(self) -> OpenPond:
        if self._lifetime.opened is None:
            raise QueryError("The pond is not open.", "Call `pond.run()`, `pond.start()` or `pond.open()` first.")
        return self._lifetime.opened

    def __repr__(self) -> str:
        queries, streams = count_of(len(self.queries), "query"), count_of(len(self.streams), "stream")
        return f"<Pond {self.address}: {queries} over {streams}{', running' if self.is_active() else ''}>"

    def _repr_html_(self) -> str:
        """How a notebook shows the pond: a table of its queries, and a picture of what they share."""
        plan = self.plan
        shown = dict.fromkeys((query.name for query in self.queries[:MOST_QUERIES]), 1)
        links = links_of(plan, self.streams, shown, labels(plan.all_queries, self.streams, self.relations))
        return f"{queries_table(repr(self)[1:-1], self.queries)}{picture(links)}"

    def __enter__(self) -> Pond:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
