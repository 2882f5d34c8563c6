"""The front end: takes SQL text, pond files or DataFrames and returns immutable queries.

It also declares streams, tables and functions, and says which of their columns the queries read.
"""

from __future__ import annotations

import logging
import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millpond.clock import lap_us
from millpond.errors import QueryError, QueryTypeError, UnsupportedQuery
from millpond.model.endpoints import Sink, Source
from millpond.model.expressions import Literal
from millpond.model.selection import AnyQuery, foreign_keys
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream
from millpond.plan.explain.amounts import with_progress
from millpond.plan.upstream.steps import inner_of, streams_of, ttl_us_of, with_inner
from millpond.spark.analysis.derived_streams import Derived, placeholder
from millpond.spark.analysis.grouping.window_rows import check_emitted, emits_windows, is_hopping
from millpond.spark.analysis.joins.extract_any import extract_any
from millpond.spark.analysis.joins.subqueries import frame_of
from millpond.spark.analysis.live_parameters import marked
from millpond.spark.analysis.properties import Mode, Repeats, ttl_us
from millpond.spark.analysis.query_terms import Extraction, OutputOptions, Terms, leaving_of, options_again
from millpond.spark.analysis.upstream.upstream_queries import check_chained, show_rows
from millpond.spark.analysis.windows import Twin, tumbling_twin
from millpond.spark.catalyst.analysis_threads import storing_results
from millpond.spark.catalyst.private_names import analysed
from millpond.spark.catalyst.quiet_errors import unlogged
from millpond.spark.catalyst.refusals import check_streaming, not_stored, placed, spark_refusal, within
from millpond.spark.catalyst.selfcheck import self_check
from millpond.spark.catalyst.spark_expressions import Projected
from millpond.spark.catalyst.value_bounds import accepted
from millpond.spark.frontend.declare_variable import with_value
from millpond.spark.frontend.declared_relations import DeclaredRelations
from millpond.spark.frontend.deferred_lookups import by_owners
from millpond.spark.frontend.gate import check_size, judge, parse
from millpond.spark.frontend.match_recognize import rewritten
from millpond.spark.frontend.statements import blank, parse_file
from millpond.spark.frontend.stored_keys import stored_keys
from millpond.spark.reading.columns_of_sources import ReadColumns, columns_of_sources, needed_columns, times_of
from millpond.spark.reading.read_frame import WantedStream, with_places
from millpond.spark.sources.batch_table_reader import MakeTable
from millpond.spark.sources.declared_paths import check_folder, check_sink

_ANALYSED = "queries are analysed"
_log = logging.getLogger("millpond.pond")

NEWEST = 256
"""How many of the newest analysed queries keep their expressions before the log has them, or if they are dropped."""


class FrontEnd(DeclaredRelations):
    """Declares streams, turns texts and DataFrames into queries, and keeps the expressions that only Spark can
    evaluate.

    `unsupported`: versions of queries that an earlier release of Millpond accepted and this one does not, with the
    reason.

    Texts are analysed in a clone of the session, under ANSI rules. So none of our views or settings appear in the
    user's session, and the time zone stays as it was when the front end was created.

    Raises:
        SetupError: this Spark lacks a private name that Millpond needs.
    """

    def __init__(self, spark: SparkSession, own: Mapping[str, MakeTable] = MappingProxyType({})) -> None:
        """`own` creates batch tables of formats that Spark cannot read by itself, by format."""
        self_check(spark)
        super().__init__(spark, own)
        self._foreigns = dict[str, Projected]()
        self._newest: deque[AnyQuery] = deque(maxlen=NEWEST)
        self._uncomputed = set[str]()  # the steps of `unsupported` versions
        self.unsupported: dict[str, UnsupportedQuery] = {}
        self.parameters: dict[str, Literal] = {}
        self.declared: dict[str, Literal] = {}  # type and default value of each DECLARE VARIABLE
        self.texts_in_file: dict[str, str] = {}  # of the pond file that was loaded last, by query

    @property
    def foreigns(self) -> Mapping[str, Projected]:
        """Expressions that Spark projects, by the key of their `Foreign`."""
        return MappingProxyType(self._foreigns)

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
            queries = {name: query for name, query in self._queries.items() if name != terms.name}
            (others, functions, ambiguous), sizes = self._registered(queries), self._sizes()
        allowed = (*others, *(name for name in queries if name.isidentifier() and name.isascii())), functions, sizes
        judged = judge(parse(self._catalyst, text), *allowed)
        for name in sorted(judged.relations & ambiguous):
            raise QueryTypeError(
                f"{name} is both a query and a temporary view of the session.", "Drop or rename the view."
            )
        with storing_results(), self.lock:
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
        self.texts_in_file = {statement.name: statement.text for statement in pond.queries}
        made = []
        for statement in with_progress(pond.queries if queries else (), _ANALYSED, _log.info, lap_us):
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
        stream whose time is observed. `halted` are queries that are not computed, in addition to those that are not
        supported; Spark evaluates nothing for them.

        Raises:
            KeyError: a query was not made by this front end.
        """
        registered, watched = with_inner(queries, self.streams), times or {}
        halted = {*halted, *self._uncomputed}
        needed, answered = needed_columns(registered, self.streams, kept, watched, halted)
        by_name = {projected.value.name: projected for projected in list(self._foreigns.values())}
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

    def retain(self, queries: Iterable[AnyQuery]) -> None:
        """Free the expressions of other queries than these, those that texts may read, and the newest ones."""
        with self.lock:
            used = {key for query in (*queries, *self._queries.values(), *self._newest) for key in foreign_keys(query)}
            for key in self._foreigns.keys() - used:
                del self._foreigns[key]

    def remember(self, query: AnyQuery) -> None:
        """Allow later texts to read the rows of a query by its name."""
        self._queries[query.name] = query

    def restore(self, spec: PondSpec, queries: Sequence[AnyQuery]) -> None:
        """Restore the streams and queries of a pond that is opened without them; `queries` are the current versions.

        Expressions that only Spark evaluates are analysed again from texts, with the current `parameters` and views.
        Queries that are no longer supported are added to `unsupported`.

        Raises:
            ChangeRefused: a part of them exists only in the program or file that made them.
        """
        by_name = {stream.name: stream for stream in spec.streams}
        for stream in spec.streams:
            if stream.derived is None and not stream.upstreams:
                self._continue(stream)
        for relation in spec.relations:
            self._declare_again(relation)
        self._queries |= {query.name: query for query in queries}
        for query in with_progress(spec.all_queries, _ANALYSED, _log.info, lap_us):
            if not self._is_known(query, by_name):
                self._analyse_again(query, by_name)
            if not (self._is_known(query, by_name) or query.name in self.unsupported):
                if not query.text:
                    raise not_stored(query.name)
                self.unsupported[query.name] = UnsupportedQuery(
                    "Expressions that Spark evaluates have other keys in its state.", "Its text need not change."
                )
        if self.unsupported:
            self._leave_out_unsupported(spec, by_name)
        for stream in spec.streams:
            if stream.upstreams:
                shown = stream if stream.steps else show_rows(self._spark, self._queries[stream.name])
                self._chained[stream.name] = shown

    def _leave_out_unsupported(self, spec: PondSpec, by_name: Mapping[str, Stream]) -> None:
        """Compute no steps that only unsupported queries have, and read NULLs of derived streams that are not known."""
        steps = {query.name: {step.name for step in (*inner_of(query, by_name), query)} for query in spec.all_queries}
        needed = {step for name, some in steps.items() if name not in self.unsupported for step in some}
        for query in spec.all_queries:
            if query.name not in self.unsupported:
                continue
            self._uncomputed |= steps[query.name] - needed
            for stream in (by_name[name] for name in streams_of(query, by_name)):
                if stream.derived is not None and stream.name not in self._derived:
                    bases = (self._streams[base] for base in stream.derived.reads)
                    self._derived[stream.name] = placeholder(self._spark, stream, bases)

    def adopt(self, streams: Iterable[Stream]) -> None:
        """Let derived streams inherit from their bases what the log says; an older version inherited nothing."""
        made = self._derived
        made |= {one.name: made[one.name]._replace(stream=one) for one in streams if one.name in made}

    def _is_known(self, query: AnyQuery, streams: Mapping[str, Stream]) -> bool:
        """Whether this front end has the expressions of a query that only Spark evaluates; they are not stored."""
        known = {stream.meaning for stream in self.streams.values()}
        made = (stream for name in streams_of(query, streams) if (stream := streams[name]).derived is not None)
        keys = {key for step in (*inner_of(query, streams), query) for key in foreign_keys(step)}
        return {stream.meaning for stream in made} <= known and keys <= self._foreigns.keys()

    def _analyse_again(self, query: AnyQuery, streams: Mapping[str, Stream]) -> None:
        if not query.text:
            return
        terms = Terms(query.name, None, query.sink, query.serve, query.text, ttl_us=ttl_us_of(query, streams))
        try:
            with accepted():
                analysed = self._query(terms, query.text, options_again(query), remember=False)
            self.with_stored_keys(query, analysed)
        except UnsupportedQuery as error:
            words = {word.lower() for word in re.findall(r"\w+", query.text)}
            if any(view.lower() in words for view in self._user.temporary().views):
                raise not_stored(query.name, error.what) from error  # with another view, it may be supported
            self.unsupported[query.name] = error
        except QueryError as error:
            raise not_stored(query.name, error.what) from error

    def with_stored_keys(self, stored: AnyQuery, analysed: AnyQuery) -> AnyQuery:
        """The stored query if `analysed` differs from it only in keys, whose expressions it then has; or `analysed`."""
        keys = stored_keys(stored, analysed, self._foreigns)
        with self.lock:
            for key, old in keys.items():
                if old not in self._foreigns:
                    one = self._foreigns[key]
                    self._foreigns[old] = one._replace(value=msgspec.structs.replace(one.value, key=old))
        return stored if keys else analysed

    def derived(self, query: AnyQuery) -> list[Derived]:
        """The derived streams that a query and its inner queries read."""
        return [self._derived[name] for name in streams_of(query, self.streams) if name in self._derived]

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

    def _kept(self, extraction: Extraction, leaving: OutputOptions, *, remember: bool) -> AnyQuery:
        """Store the streams and expressions of a query; those that another query stored are not replaced."""
        query = leaving.of(self._catalyst, extraction.query, extraction)
        check_sink(f"The sink of {query.name}", query.sink)
        check_sink(f"The folder of late rows of {query.name}", query.late_sink)
        with storing_results(), self.lock:
            self.homes[query.name] = os.getcwd()
            for step in (*extraction.inner, extraction):
                self._keep(step)
            self._newest += (query, *(step.query for step in extraction.inner))
            self._chained |= {stream.name: stream for stream in extraction.rows_read}
            if remember:
                self._queries.setdefault(query.name, query)
        return query

    def _keep(self, found: Extraction) -> None:
        for read, derived in ((found.stream, found.derived), *found.also):
            for stream in [read] if derived is None else [branch.base for branch in derived.branches]:
                if stream.name not in self._streams and not stream.upstreams:
                    self.declare(stream)
            if derived is not None:
                known = self._derived.get(derived.stream.name)
                if known is None or known.is_placeholder:
                    self._derived[derived.stream.name] = derived
        self._uncomputed.discard(found.query.name)
        for key, projected in found.foreigns.items():
            self._foreigns.setdefault(key, projected)
