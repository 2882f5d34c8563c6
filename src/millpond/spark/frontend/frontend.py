"""The front end: takes SQL text, pond files or DataFrames and returns immutable queries.

It also declares streams, tables and functions, and says which of their columns the queries read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from millpond.errors import QueryError, QueryTypeError, UnsupportedQuery, from_text
from millpond.model.endpoints import Sink, Source
from millpond.model.expressions import Literal
from millpond.model.functions import UserFunction
from millpond.model.selection import AnyQuery, foreign_keys
from millpond.model.spec import PondSpec, relations_of
from millpond.model.stream import Relation, Stream, can_be_stored, check_order, check_retention
from millpond.plan.chains.steps import inner_of, streams_of, ttl_us_of, with_inner
from millpond.runtime.functions.host import FunctionHost
from millpond.runtime.packets.row_batches import dead_letters_of
from millpond.spark.analysis.chains.upstream_queries import check_chained, show_rows
from millpond.spark.analysis.derived_streams import Derived, Side
from millpond.spark.analysis.grouping.window_rows import check_emitted, emits_windows, is_hopping
from millpond.spark.analysis.joins.joins import extract_any
from millpond.spark.analysis.joins.subqueries import frame_of
from millpond.spark.analysis.live_parameters import marked
from millpond.spark.analysis.properties import Mode, Repeats, duration_us, ttl_us
from millpond.spark.analysis.query_terms import Extraction, OutputOptions, Terms, leaving_of, options_again
from millpond.spark.analysis.user_aggregates import UserFunctions, declared_function
from millpond.spark.analysis.windows import Twin, tumbling_twin
from millpond.spark.catalyst.deadline import keeping
from millpond.spark.catalyst.private_names import Catalyst, analysed
from millpond.spark.catalyst.quiet_errors import unlogged
from millpond.spark.catalyst.refusals import check_streaming, not_stored, placed, spark_refusal, within
from millpond.spark.catalyst.selfcheck import self_check
from millpond.spark.catalyst.spark_expressions import Projected
from millpond.spark.catalyst.value_bounds import accepted
from millpond.spark.frontend.gate import check_size, judge, parse
from millpond.spark.frontend.match_recognize import rewritten
from millpond.spark.frontend.owner_lookups import by_owners
from millpond.spark.frontend.statements import blank, parse_file
from millpond.spark.frontend.variables import with_value
from millpond.spark.reading.columns_of_sources import ReadColumns, columns_of_sources, needed_columns, times_of
from millpond.spark.reading.event_source import completed
from millpond.spark.reading.read_frame import EventTime, WantedStream, load, register, with_places
from millpond.spark.reading.time_zones import ZonedSessions
from millpond.spark.sources.arrow_functions import BatchFunction, batches_of
from millpond.spark.sources.batch_tables import relation_text
from millpond.spark.sources.declared_paths import check_folder, check_sink, located_options
from millpond.spark.sources.file_tables import Lookups, Places, Refreshed, lookups, refreshed
from millpond.spark.sources.malformed_tables import MalformedRows
from millpond.spark.sources.providers import MakeTable, read_table


class FrontEnd:
    """Declares streams, turns texts and DataFrames into queries, and keeps the expressions that only Spark can
    evaluate.

    Texts are analysed in a clone of the session, under ANSI rules. So none of our views or settings appear in the
    user's session, and the time zone stays as it was when the front end was created.

    Raises:
        SetupError: this Spark lacks a private name that Millpond needs.
    """

    def __init__(self, spark: SparkSession, own: Mapping[str, MakeTable] = MappingProxyType({})) -> None:
        """`own` creates batch tables of formats that Spark cannot read by itself, by format."""
        self_check(spark)
        self._own = own
        self._user = Catalyst(spark)
        self._spark = self._user.analysis_session()
        self._catalyst = Catalyst(self._spark)
        self._streams: dict[str, Stream] = {}
        self._views, self._derived = dict[str, int](), dict[str, Derived]()
        self._queries, self._chained = dict[str, AnyQuery](), dict[str, Stream]()
        self._foreigns, self.homes = dict[str, Projected](), dict[str, str]()
        self._functions, self._zoned = UserFunctions(self._catalyst), ZonedSessions(self._catalyst)
        self._refreshed: dict[Places, Refreshed] = {}
        self._relations: dict[str, Relation] = {}  # views and tables that the log can store
        self.parameters: dict[str, Literal] = {}
        self.declared: dict[str, Literal] = {}  # type and default value of each DECLARE VARIABLE
        self.lock = threading.RLock()

    @property
    def streams(self) -> Mapping[str, Stream]:
        """Streams by name: the declared ones, then those that queries derive from them, then the rows of queries."""
        derived = {name: derived.stream for name, derived in self._derived.items()}
        return MappingProxyType(self._streams | derived | self._chained)

    @property
    def foreigns(self) -> Mapping[str, Projected]:
        """Expressions that Spark projects, by the key of their `Foreign`."""
        return MappingProxyType(self._foreigns)

    @unlogged()
    def declare(self, stream: Stream, watermark: EventTime | None = None) -> DataFrame:
        """Register a stream under its name and return its DataFrame; with a `watermark`, texts need not declare one.

        Raises:
            QueryTypeError: another stream has this name, it has no source, or the name is not a plain word.
            SourceError: Spark cannot open it.
        """
        if not (stream.name.isidentifier() and stream.name.isascii()):
            raise QueryTypeError(f"`{stream.name}` cannot name a stream.", "Use letters, digits and underscores.")
        stream = completed(stream)
        check_order(stream)
        check_retention(stream)
        known = self._known(stream.name)
        if known is not None and known != stream:
            raise QueryTypeError(
                f"A stream {known.name} is declared already, with another value.", "Choose another name."
            )
        check_sink(f"The folder of dead letters of {stream.name}", stream.on_malformed.sink)
        home = self.homes.setdefault(dead_letters_of(stream.name), os.getcwd())
        frame = register(self._spark, stream, watermark, home)
        self._streams[stream.name] = stream
        return frame

    @unlogged()
    def view(self, name: str, text: str, zone: str | None = None) -> None:
        """Register `name` as a view of a SELECT without an aggregation, for later texts; `zone`: its time zone.

        Raises:
            QuerySyntaxError, QueryRefused, QueryTypeError, UnsupportedQuery: see `errors`.
        """
        check_size(text)
        judged = judge(parse(self._catalyst, rewritten(self._catalyst, text)), *self._registered(), self._sizes())
        if judged.windows:
            raise UnsupportedQuery(f"The view {name} has a window.", "Window where the view is grouped.")
        self._show(name, lambda: self._zoned.sql(zone, text, judged.relations), text, judged.size)
        self._zoned.show(zone, name)
        self._relations[name] = Relation(name, text=text, zone=zone or msgspec.UNSET)

    def table(self, name: str, source: Source, schema: str | None = None, refresh: str | None = None) -> DataFrame:
        """Register `name` as a batch table with which later texts can join streams.

        Raises:
            QueryTypeError: it cannot be read, its name is taken, or as `refresh`.
        """
        made = self._own.get(source.format, partial(read_table, source.format))
        options = located_options(source, os.getcwd())
        frame = self._show(name, lambda: made(self._spark, name, schema, options), "")
        if can_be_stored(source):
            self._relations[name] = Relation(name, table=source, schema=msgspec.UNSET if schema is None else schema)
        if refresh is not None:
            self.refresh(name, refresh)
        return frame

    def refresh(self, table: str | DataFrame, every: str) -> None:
        """Refresh the list of files of a batch table, a frame or a registered view periodically while a pond runs.

        Raises:
            QueryTypeError: the view does not exist, it has no files, its path is a pattern, or `every` is not a
            duration.
        """
        name = table if isinstance(table, str) else relation_text(analysed(table))
        every_us = duration_us(self._catalyst, name, "refresh", every)
        if isinstance(table, str):
            self._registered()
            try:
                table = self._spark.table(table)
            except PySparkException as error:
                raise QueryTypeError(f"There is no table {name}.", "Make a temporary view of it first.") from error
        self._refreshed |= refreshed(self._spark, name, analysed(table), every_us)
        if name in self._relations:
            self._relations[name] = msgspec.structs.replace(self._relations[name], refresh=every)

    @unlogged()
    def function(
        self, name: str, module: str, kind: str, takes: Sequence[str] | Mapping[str, str],
        returns: str | Mapping[str, str], **options: Any,
    ) -> Callable[..., Column]:  # fmt: skip
        """Register a user function under its name, as it is installed now; return it for DataFrames.

        The arguments and `options` are those of `declared_function`.

        Raises:
            QueryTypeError: an argument is not valid, or the name is taken.
            UserFunctionError: the function cannot be imported, or is not of this kind.
        """
        made = declared_function(self._catalyst, name, module, kind, takes, returns, **options)
        with FunctionHost() as host:
            return self._functions.register(host.load(made))

    @property
    def functions(self) -> tuple[UserFunction, ...]:
        """The newest version of each user function."""
        return self._functions.known

    def map_batches(
        self, name: str, stream: str, function: BatchFunction, schema: str | StructType, version: str | None = None
    ) -> DataFrame:
        """Register `name` as the result of a function of a stream's Arrow batches, for later texts.

        Raises:
            QueryTypeError: the stream does not exist, the name is taken, or the schema is not valid.
            UnsupportedQuery: workers cannot import the function.
        """
        known = self._known(stream)
        if known is None:
            raise QueryTypeError(f"There is no stream {stream}.", "Declare it first.")
        evolves = self._spark.conf.get("spark.sql.streaming.queryEvolution.enableSourceEvolution") == "true"
        home = self.homes.get(dead_letters_of(known.name))
        frame = load(self._spark, known, named=evolves, analysed_only=True, home=home)
        batches = batches_of(known.name, function, tuple(frame.columns), schema, version)
        return self._show(name, lambda: frame.mapInArrow(batches, batches.makes), "")  # type: ignore[arg-type]

    def _show(self, name: str, make: Callable[[], DataFrame], text: str, size: int = 1) -> DataFrame:
        if self._known(name) is not None:
            raise QueryTypeError(f"A stream {name} is declared already.", "Choose another name.")
        try:
            frame = make()
            frame.createOrReplaceTempView(name)
        except PySparkException as error:
            raise from_text(str(error)) or spark_refusal(error, text) from error
        self._views[name] = size
        return frame

    def _sizes(self) -> dict[str, int]:
        """The number of plan nodes of each view, for the gate."""
        return {name.lower(): size for name, size in self._views.items()}

    def _registered(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Relations and functions that texts may name: ours, and those that the user registered in the session."""
        found = self._user.temporary()
        ours = {name.lower() for name in (*self._streams, *self._views)}
        functions = self._functions.names
        named = {name.lower() for name in functions}
        found = found._replace(
            views=tuple(name for name in found.views if name.lower() not in ours),
            functions=tuple(name for name in found.functions if name.lower() not in named),
        )
        self._catalyst.adopt(self._user, found)
        return (*self._streams, *self._views, *found.views), (*found.functions, *functions)

    def query_from_sql(
        self, name: str, text: str, *, sink: Sink | None = None, serve: bool = False, late: Sink | None = None,
        mode: Mode | None = None, repeats: Repeats | None = None, ttl: str | int | None = None,
        zone: str | None = None, remember: bool = True,
    ) -> AnyQuery:  # fmt: skip
        """The query of a SELECT: `late` is the sink of late events, `mode` the output mode, `ttl` the `state.ttl`.

        Raises:
            QuerySyntaxError, QueryRefused, QueryTypeError, UnsupportedQuery: see `errors`.
        """
        with within(name):
            terms = Terms(name, None, sink or Sink(), serve, text, ttl_us=ttl_us(self._catalyst, name, ttl))
            return self._query(terms, text, leaving_of(late, mode, repeats, zone), remember=remember)

    @unlogged()
    def _query(self, terms: Terms, text: str, leaving: OutputOptions, *, remember: bool = True) -> AnyQuery:
        """The query of a text; for a query from a file, `text` has leading blanks up to its position in the file."""
        check_size(terms.text)
        marks = marked(rewritten(self._catalyst, text), self.parameters)
        text = marks.text
        with self.lock:
            (others, functions), sizes = self._registered(), self._sizes()
            queries = {name: query for name, query in self._queries.items() if name != terms.name}
        allowed = (*others, *(name for name in queries if name.isidentifier() and name.isascii())), functions, sizes
        judged = judge(parse(self._catalyst, text), *allowed)
        with keeping(), self.lock:
            upstreams = self._upstreams(queries, judged.relations, others)
        try:
            plain = self._functions.without_filters(text, judged.calls)
            twin = tumbling_twin(self._catalyst, plain, judged.windows)
            if twin.text != text:
                judge(parse(self._catalyst, twin.text), *allowed)  # only text that passed the gate is analysed
            session = self._zoned.of(leaving.zone, judged.relations, self._functions.names)
            frame = frame_of(session, twin.text)
            if is_hopping(twin.window) and emits_windows(analysed(frame)):
                check_emitted(-(-twin.window.size_us // twin.window.slide_us))
                frame, twin = frame_of(session, plain), Twin(plain, None)
            read = [stream for name in judged.relations if (stream := self._known(name))]
            relation, terms = read[0].name if len(read) == 1 else None, leaving.terms(terms, twin.window)
            lower = partial(leaving.of_lower, self._catalyst, terms.name, marks.restored)
            found = extract_any(session, frame, terms, self._all(), relation, self._functions, queries, lower)
            check_chained(found, upstreams)
            return self._kept(marks.of(found), leaving, remember=remember)
        except PySparkException as error:
            raise spark_refusal(error, text) from error
        except QueryError as error:
            raise placed(error, text, judged.nodes) from error

    @unlogged()
    def query_from_dataframe(
        self, name: str, frame: DataFrame, *, sink: Sink | None = None, serve: bool = False, late: Sink | None = None,
        mode: Mode | None = None, repeats: Repeats | None = None, ttl: str | int | None = None, remember: bool = True,
    ) -> AnyQuery:  # fmt: skip
        """The query of a streaming DataFrame, whose plan is read but never started.

        Its stream is the declared stream with the same format, options and columns, or else is declared by this call.

        Raises:
            QueryTypeError, UnsupportedQuery: see `errors`.
        """
        check_streaming(name, frame)
        check_folder(self._spark, name, analysed(frame))
        with within(name):
            leaving = leaving_of(late, mode, repeats)
            terms = leaving.terms(Terms(name, None, sink or Sink(), serve, ttl_us=ttl_us(self._catalyst, name, ttl)))
            lower = partial(leaving.of_lower, self._catalyst, name, lambda query: query)
            found = extract_any(self._catalyst, frame, terms, self._all(), functions=self._functions, lower=lower)
            check_chained(found, ())
            return self._kept(found, leaving, remember=remember)

    @unlogged()
    def load_file(
        self, text: str, opened: Callable[[Source], Source] = lambda source: source, *, queries: bool = True
    ) -> list[AnyQuery]:
        """Declare the streams of a pond file and read its `queries`, in order.

        `opened` maps each source to the one that is read in its place; by default, the same.

        Raises:
            QueryError: one of its statements is wrong; the message names it and its line.
        """
        pond = parse_file(self._spark, text)
        for variable in pond.variables:
            self.declared[variable.name] = variable.value
            self.parameters[variable.name] = with_value(variable, self.parameters.get(variable.name))
        for stream in pond.streams:
            self.declare(msgspec.structs.replace(stream, source=stream.source and opened(stream.source)))
        for view in pond.views:
            with within(view.name, view.line):
                if view.table is not None:
                    self.table(view.name, opened(view.table) if view.schema else view.table, view.schema, view.refresh)
                else:
                    self.view(view.name, view.text or "", view.zone)
        made = []
        for statement in pond.queries if queries else ():
            with within(statement.name, statement.line):
                written = blank(text[: statement.start]) + statement.text
                query = self._query(statement.terms(self._catalyst), written, statement.leaving)
                made.append(msgspec.structs.replace(query, budget=statement.declared.budget or msgspec.UNSET))
        return made

    def wanted(
        self, queries: Iterable[AnyQuery], kept: Iterable[str] = (), times: Mapping[str, str] | None = None,
        halted: Collection[str] = (),
    ) -> tuple[WantedStream, ...]:  # fmt: skip
        """What to read for these queries: streams in the order of declaration, columns in the order of the stream.

        `kept` are streams that are read whether or not a query needs them. `times` gives the event-time column of each
        stream whose time is observed. `halted` are queries that are not computed; Spark evaluates nothing for them.

        Raises:
            KeyError: a query was not made by this front end.
        """
        registered, watched = with_inner(queries, self.streams), times or {}
        needed, answered = needed_columns(registered, self.streams, kept, watched, halted)
        by_name = {projected.value.name: projected for projected in self._foreigns.values()}
        found = []
        for name, stream in self.streams.items():
            if name in needed and not stream.upstreams:
                plain = tuple(field.name for field in stream.columns if field.name in needed[name])
                foreigns = tuple(by_name[column] for column in sorted(needed[name] - set(plain)))
                wanted = WantedStream(stream, plain, foreigns, self._derived.get(name), name not in answered)
                found.append(by_owners(with_places(wanted, self.homes), registered, watched.get(name)))
        return tuple(found)

    def forget(self, name: str) -> AnyQuery | None:
        """Free the name of a query; return the query that had it, or None."""
        return self._queries.pop(name, None)

    def forget_rows(self, name: str) -> None:
        """Forget the stream of a query's rows, which no query reads any longer."""
        self._chained.pop(name, None)

    def remember(self, query: AnyQuery) -> None:
        """Allow later texts to read the rows of a query by its name."""
        self._queries[query.name] = query

    def relations(self, queries: Iterable[AnyQuery]) -> tuple[Relation, ...]:
        """The views and tables that the texts of queries name, and the streams that are parts of derived ones."""
        return relations_of(with_inner(queries, self.streams), self._streams, self._relations)

    def restore(self, spec: PondSpec, queries: Sequence[AnyQuery]) -> None:
        """Restore the streams and queries of a pond that is opened without them; `queries` are the current versions.

        Expressions that only Spark evaluates are analysed again from texts, with the current `parameters` and views.

        Raises:
            ChangeRefused: a part of them exists only in the program or file that made them.
        """
        by_name = {stream.name: stream for stream in spec.streams}
        for stream in spec.streams:
            if stream.derived is None and not stream.upstreams:
                self.declare(stream)
        for relation in spec.relations:
            self._declare_again(relation)
        self._queries |= {query.name: query for query in queries}
        for query in spec.all_queries:
            if not self._is_known(query, by_name):
                self._analyse_again(query, by_name)
            if not self._is_known(query, by_name):
                raise not_stored(query.name)
        for stream in spec.streams:
            if stream.upstreams:
                shown = stream if stream.steps else show_rows(self._spark, self._queries[stream.name])
                self._chained[stream.name] = shown

    def adopt(self, streams: Iterable[Stream]) -> None:
        """Let derived streams inherit from their bases what the log says; an older version inherited nothing."""
        made = self._derived
        made |= {one.name: made[one.name]._replace(stream=one) for one in streams if one.name in made}

    def _declare_again(self, relation: Relation) -> None:
        """Declare a stream, view or table of the log, unless its name is taken, as by a file that was loaded."""
        taken = relation.name in self._views or self._known(relation.name) is not None
        with within(relation.name):
            if isinstance(relation.stream, Stream):
                self.declare(relation.stream)
            elif isinstance(relation.text, str) and not taken:
                self.view(relation.name, relation.text, relation.zone or None)
            elif isinstance(relation.table, Source) and not taken:
                self.table(relation.name, relation.table, relation.schema or None, relation.refresh or None)

    def _is_known(self, query: AnyQuery, streams: Mapping[str, Stream]) -> bool:
        """Whether this front end has the expressions of a query that only Spark evaluates; they are not stored."""
        known = {stream.meaning for stream in self.streams.values()}
        made = (stream for name in streams_of(query, streams) if (stream := streams[name]).derived is not None)
        keys = {key for step in (*inner_of(query, streams), query) for key in foreign_keys(step)}
        return {stream.meaning for stream in made} <= known and keys <= self._foreigns.keys()

    def _analyse_again(self, query: AnyQuery, streams: Mapping[str, Stream]) -> None:
        terms = Terms(query.name, None, query.sink, query.serve, query.text, ttl_us=ttl_us_of(query, streams))
        try:
            with accepted():
                self._query(terms, query.text, options_again(query), remember=False)
        except QueryError as error:
            raise not_stored(query.name) from error

    def derived(self, query: AnyQuery) -> list[Derived]:
        """The derived streams that a query and its inner queries read."""
        return [self._derived[name] for name in streams_of(query, self.streams) if name in self._derived]

    def lookups(self, wanted: Iterable[WantedStream], report: Callable[[MalformedRows], None]) -> Lookups:
        """The tables whose lists of files are refreshed while a pond reads these streams; `report`: malformed rows."""
        branches = (branch for want in wanted if want.derived is not None for branch in want.derived.branches)
        sides = (side for branch in branches for side in branch.sides)
        return lookups(self._spark, self._refreshed, [side.plan for side in sides if isinstance(side, Side)], report)

    def readings(self, queries: Sequence[AnyQuery]) -> list[ReadColumns]:
        """The sources that these queries read, with the needed columns of each, including sources below a join.

        Raises:
            KeyError: a query was not made by this front end.
        """
        return columns_of_sources(self.wanted(queries), times_of(with_inner(queries, self.streams)))

    def _upstreams(
        self, queries: Mapping[str, AnyQuery], relations: Collection[str], others: Sequence[str]
    ) -> list[AnyQuery]:
        """The earlier queries whose rows a text reads; `others` are streams and views, whose names take precedence."""
        known = {name.lower() for name in others}
        named = [query for name, query in queries.items() if name.lower() in relations and name.lower() not in known]
        for upstream in named:
            if upstream.name not in self._chained:
                self._chained[upstream.name] = show_rows(self._spark, upstream)
        return named

    def _kept(self, found: Extraction, leaving: OutputOptions, *, remember: bool) -> AnyQuery:
        """Store the streams and expressions of a query; those that another query stored are not replaced."""
        query = leaving.of(self._catalyst, found.query, found)
        check_sink(f"The sink of {query.name}", query.sink)
        check_sink(f"The folder of late rows of {query.name}", query.late_sink)
        with keeping(), self.lock:
            self.homes[query.name] = os.getcwd()
            for step in (*found.inner, found):
                self._keep(step)
            self._chained |= {stream.name: stream for stream in found.rows_read}
            if remember:
                self._queries.setdefault(query.name, query)
        return query

    def _keep(self, found: Extraction) -> None:
        for read, derived in ((found.stream, found.derived), *found.also):
            for stream in [read] if derived is None else [branch.base for branch in derived.branches]:
                if stream.name not in self._streams and not stream.upstreams:
                    self.declare(stream)
            if derived is not None:
                self._derived.setdefault(derived.stream.name, derived)
        for key, projected in found.foreigns.items():
            self._foreigns.setdefault(key, projected)

    def _all(self) -> list[Stream]:
        return [*self._streams.values(), *self._chained.values()]

    def _known(self, name: str) -> Stream | None:
        return next((stream for stream in self._all() if stream.name.lower() == name.lower()), None)
