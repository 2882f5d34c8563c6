"""The front door for queries: SQL text, files of statements or DataFrames in, frozen queries out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millpond.errors import QueryError, QueryTypeError
from millpond.model.endpoints import Sink
from millpond.model.expressions import columns_of
from millpond.model.query import Query
from millpond.model.stream import Stream, check_order
from millpond.plan.late import check_late, late_columns
from millpond.spark.catalyst import Catalyst, self_check, unlogged
from millpond.spark.extract import Extraction, Terms, extract_query
from millpond.spark.foreign import Projected
from millpond.spark.gate import check_size, judge, parse
from millpond.spark.read import Wanted, Watermark, register
from millpond.spark.refusals import placed, spark_refusal
from millpond.spark.statements import blank, parse_file
from millpond.spark.windows import tumbling_twin


class FrontEnd:
    """Declares streams and turns what users have into queries; keeps what only Spark can evaluate.

    Texts are analysed in a clone of the session, under ANSI rules: no view or setting of ours appears in the
    user's, and the time zone stays as it was when the front end was made.

    Raises:
        SetupError: this Spark lacks a private name that Millpond needs.
    """

    def __init__(self, spark: SparkSession) -> None:
        self_check(spark)
        self._spark = Catalyst(spark).analysis_session()
        self._catalyst = Catalyst(self._spark)
        self._streams: dict[str, Stream] = {}
        self._foreigns: dict[str, Projected] = {}

    @property
    def streams(self) -> Mapping[str, Stream]:
        """Declared streams by name."""
        return MappingProxyType(self._streams)

    @property
    def foreigns(self) -> Mapping[str, Projected]:
        """Expressions that Spark projects, by the key of their `Foreign`."""
        return MappingProxyType(self._foreigns)

    @unlogged()
    def declare(self, stream: Stream, watermark: Watermark | None = None) -> None:
        """Make a stream readable by its name; with a `watermark`, texts need none of their own.

        Raises:
            QueryTypeError: another stream has this name, or it has no source, or the name is no plain word.
            SourceError: Spark cannot open it.
        """
        if not (stream.name.isidentifier() and stream.name.isascii()):
            raise QueryTypeError(f"`{stream.name}` cannot name a stream.", "Use letters, digits and underscores.")
        check_order(stream)
        known = self._known(stream.name)
        if known is not None and known != stream:
            raise QueryTypeError(
                f"A stream {known.name} is declared already, with another value.", "Choose another name."
            )
        register(self._spark, stream, watermark)
        self._streams[stream.name] = stream

    def query_from_sql(
        self, name: str, text: str, *, sink: Sink | None = None, serve: bool = False, late: Sink | None = None
    ) -> Query:
        """The query that a SELECT means; its late events go to `late`.

        Raises:
            QuerySyntaxError, QueryRefused, QueryTypeError, UnsupportedQuery: see `errors`.
        """
        return self._query(Terms(name, None, sink or Sink(), serve, text), text, late)

    @unlogged()
    def _query(self, terms: Terms, text: str, late: Sink | None = None) -> Query:
        """The query of a text; `text` is it with blanks before, where it stands in a file."""
        check_size(terms.text)
        judged = judge(parse(self._catalyst, text), self._streams)
        try:
            twin = tumbling_twin(self._catalyst, text, judged.windows)
            if twin.text != text:
                judge(parse(self._catalyst, twin.text), self._streams)  # only judged text is analysed
            frame = self._spark.sql(twin.text)
            read = [stream for name in judged.relations if (stream := self._known(name))]
            relation = read[0].name if len(read) == 1 else None
            terms = terms._replace(window=twin.window)
            return self._kept(extract_query(self._catalyst, frame, terms, self._all(), relation), late)
        except PySparkException as error:
            raise spark_refusal(error, text) from error
        except QueryError as error:
            raise placed(error, text, judged.places) from error

    @unlogged()
    def query_from_dataframe(
        self, name: str, frame: DataFrame, *, sink: Sink | None = None, serve: bool = False, late: Sink | None = None
    ) -> Query:
        """The query that a streaming DataFrame means; it is read, never started.

        Its stream is the declared one that equals it by format, options and columns, or is declared here.

        Raises:
            QueryTypeError, UnsupportedQuery: see `errors`.
        """
        if not frame.isStreaming:
            raise QueryTypeError(f"The frame of {name} is no stream.", "Build it with spark.readStream.")
        terms = Terms(name, None, sink or Sink(), serve)
        found = extract_query(self._catalyst, frame, terms, self._all())
        if found.stream.name not in self._streams:
            self.declare(found.stream)
        return self._kept(found, late)

    @unlogged()
    def load_file(self, text: str) -> list[Query]:
        """Declare the streams of a pond file and read its queries, in order.

        Raises:
            QueryError: one of its statements is wrong; the message names it and its line.
        """
        pond = parse_file(self._spark, text)
        for stream in pond.streams:
            self.declare(stream)
        queries = []
        for statement in pond.queries:
            try:
                terms = Terms(statement.name, None, statement.sink, statement.serve, statement.text)
                queries.append(self._query(terms, blank(text[: statement.start]) + statement.text, statement.late))
            except QueryError as error:
                what = f"In {statement.name} (line {statement.line} of the file): {error.what}"
                raise type(error)(what, error.cure) from error
        return queries

    def wanted(self, queries: Iterable[Query]) -> tuple[Wanted, ...]:
        """What to read for these queries: streams in the order of declaration, columns in that of the stream.

        Raises:
            KeyError: a query was not made here.
        """
        needed: dict[str, set[str]] = {}
        for query in queries:
            names = needed.setdefault(query.stream, set())
            names.add(query.event_time)
            parts = [*query.keys, query.where]
            for aggregate in query.aggregates:
                parts += [aggregate.argument, aggregate.filter]
            for part in parts:
                if part is not None:
                    names |= columns_of(part)
            if query.late_sink is not None:
                names.update(late_columns(query, self._streams[query.stream]))
        for name, columns in needed.items():
            if order := self._streams[name].order:
                columns |= {order.partition, order.offset}
        by_name = {projected.value.name: projected for projected in self._foreigns.values()}
        found = []
        for name, stream in self._streams.items():
            if name not in needed:
                continue
            plain = tuple(field.name for field in stream.columns if field.name in needed[name])
            rest = sorted(needed[name] - set(plain))
            found.append(Wanted(stream, plain, tuple(by_name[column] for column in rest)))
        return tuple(found)

    def _kept(self, found: Extraction, late: Sink | None) -> Query:
        """Remember the expressions of a query; one that another query brought stays as it is."""
        query = found.query
        if late is not None:
            query = msgspec.structs.replace(query, late=late)
            check_late(query, found.stream)
        for key, projected in found.foreigns.items():
            self._foreigns.setdefault(key, projected)
        return query

    def _all(self) -> list[Stream]:
        return list(self._streams.values())

    def _known(self, name: str) -> Stream | None:
        return next((stream for stream in self._streams.values() if stream.name.lower() == name.lower()), None)
