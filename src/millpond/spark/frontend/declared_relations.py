"""Declares the streams, views, tables and functions that texts may name, in the session that analyses them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from millpond.errors import QueryTypeError, UnsupportedQuery, from_text, one_of
from millpond.model.endpoints import Source
from millpond.model.functions import UserFunction
from millpond.model.selection import AnyQuery
from millpond.model.spec import relations_of
from millpond.model.stream import Relation, Stream, can_be_stored, check_order, check_retention
from millpond.plan.explain.stream_differences import stream_differences
from millpond.plan.upstream.steps import with_inner
from millpond.runtime.functions.host import FunctionHost
from millpond.runtime.packets.row_batches import dead_letters_of
from millpond.spark.analysis.derived_streams import Derived, TableJoin
from millpond.spark.analysis.properties import option_duration_us
from millpond.spark.analysis.user_aggregates import UserFunctions, declared_function
from millpond.spark.catalyst.private_names import Catalyst, analysed
from millpond.spark.catalyst.quiet_errors import unlogged
from millpond.spark.catalyst.refusals import spark_refusal, within
from millpond.spark.catalyst.spark_expressions import Projected
from millpond.spark.frontend.gate import check_size, judge, parse
from millpond.spark.frontend.match_recognize import rewritten
from millpond.spark.reading.event_source import completed
from millpond.spark.reading.file_source import list_in_driver
from millpond.spark.reading.read_frame import EventTime, WantedStream, load, register
from millpond.spark.reading.time_zones import ZonedSessions
from millpond.spark.sources.arrow_functions import BatchFunction, batches_of
from millpond.spark.sources.batch_table_reader import MakeTable, read_table
from millpond.spark.sources.batch_tables import relation_text
from millpond.spark.sources.count_malformed_rows import MalformedRows
from millpond.spark.sources.declared_paths import check_sink, located_options
from millpond.spark.sources.file_tables import Places, Refreshed, RefreshedTables, refreshed, refreshed_tables


class NamedRelations(NamedTuple):
    """The relations and functions that texts may name: ours, and those that the user registered in the session.

    `ambiguous` are the names, in lower case, of temporary views of the user's that are named like a query.
    """

    relations: tuple[str, ...]
    functions: tuple[str, ...]
    ambiguous: Set[str]


class DeclaredRelations:
    """What texts may name. Declarations are made in a clone of the user's session, under ANSI rules.

    `homes` has the folder in which each query or stream was declared, to which its relative paths refer.
    """

    def __init__(self, spark: SparkSession, own: Mapping[str, MakeTable]) -> None:
        self._own = own
        self._user = Catalyst(spark)
        self._spark = self._user.analysis_session()
        self._catalyst = Catalyst(self._spark)
        self._streams: dict[str, Stream] = {}
        self._views, self._derived = dict[str, int](), dict[str, Derived]()
        self._queries, self._chained = dict[str, AnyQuery](), dict[str, Stream]()
        self._functions, self._zoned = UserFunctions(self._catalyst), ZonedSessions(self._catalyst)
        self._refreshed: dict[Places, Refreshed] = {}
        self._relations: dict[str, Relation] = {}  # views and tables that the log can store
        self.homes: dict[str, str] = {}
        self.lock = threading.RLock()

    @property
    def streams(self) -> Mapping[str, Stream]:
        """Streams by name: the declared ones, then those that queries derive from them, then the rows of queries."""
        derived = {name: derived.stream for name, derived in self._derived.items()}
        return MappingProxyType(self._streams | derived | self._chained)

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
            restart = known.meaning == stream.meaning
            raise QueryTypeError(
                f"A stream {known.name} is declared already: {stream_differences(known, stream)}.",
                f"Choose another name{', or declare it so before the pond is opened' if restart else ''}.",
            )
        check_sink(f"The folder of dead letters of {stream.name}", stream.on_malformed.sink)
        home = self.homes.setdefault(dead_letters_of(stream.name), os.getcwd())
        self._list_in_driver(stream.source)
        frame = register(self._spark, stream, watermark, home)
        self._streams[stream.name] = stream
        return frame

    def frame(self, name: str) -> DataFrame:
        """The DataFrame of a declared stream.

        Raises:
            QueryTypeError: no declared stream has this name.
        """
        if name not in self._streams:
            raise QueryTypeError(f"No stream {name!r} is declared.", one_of(name, self._streams))
        return self._spark.table(name)

    @unlogged()
    def view(self, name: str, text: str, zone: str | None = None) -> None:
        """Register `name` as a view of a SELECT without an aggregation, for later texts; `zone`: its time zone.

        Raises:
            QuerySyntaxError, QueryRefused, QueryTypeError, UnsupportedQuery: see `errors`.
        """
        check_size(text)
        judged = judge(parse(self._catalyst, rewritten(self._catalyst, text)), *self._registered()[:2], self._sizes())
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
        self._list_in_driver(source)
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
        every_us = option_duration_us(self._catalyst, name, "refresh", every)
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

    def relations(self, queries: Iterable[AnyQuery]) -> tuple[Relation, ...]:
        """The views and tables that the texts of queries name, and the streams that are parts of derived ones."""
        return relations_of(with_inner(queries, self.streams), self._streams, self._relations)

    def refreshed_tables(
        self, wanted: Iterable[WantedStream], above: Iterable[Projected], report: Callable[[MalformedRows], None]
    ) -> RefreshedTables:  # fmt: skip
        """The tables whose lists of files are refreshed while a pond reads these streams.

        `above`: the expressions that Spark evaluates, which may read tables. `report` receives malformed rows.
        """
        branches = (branch for want in wanted if want.derived is not None for branch in want.derived.branches)
        sides = (side for branch in branches for side in branch.sides)
        plans = [side.plan for side in sides if isinstance(side, TableJoin)]
        plans += (table.plan for one in above for table in one.tables)
        return refreshed_tables(self._spark, self._refreshed, plans, report)

    def _declare_again(self, relation: Relation) -> None:
        """Declare a stream, view or table of the log, unless its name is taken, as by a file that was loaded."""
        taken = relation.name in self._views or self._known(relation.name) is not None
        with within(relation.name):
            if isinstance(relation.stream, Stream):
                self._continue(relation.stream)
            elif isinstance(relation.text, str) and not taken:
                self.view(relation.name, relation.text, relation.zone or None)
            elif isinstance(relation.table, Source) and not taken:
                self.table(relation.name, relation.table, relation.schema or None, relation.refresh or None)

    def _continue(self, recorded: Stream) -> None:
        """Declare a stream of the log; a declaration of it, as by a file that was loaded, may change how it is read.

        Raises:
            QueryTypeError: the declaration changes its events.
        """
        declared = self._known(recorded.name)
        if declared is None:
            self.declare(recorded)
        elif declared.meaning == recorded.meaning:
            self._streams[declared.name] = declared.continuing(recorded)
        else:
            raise QueryTypeError(
                f"The stream {recorded.name} of this pond cannot change while queries read it: "
                f"{stream_differences(recorded.meaning, declared.meaning)}.",
                "Declare it as before, or add a stream of another name and queries that read it.",
            )

    def _list_in_driver(self, declared: Source | None) -> None:
        """See `list_in_driver`; the session also lists the tables that are refreshed."""
        sources = [stream.source for stream in self._streams.values()]
        sources += [one.table for one in self._relations.values() if isinstance(one.table, Source)]
        list_in_driver(self._spark, [*sources, declared])

    def _show(self, name: str, make: Callable[[], DataFrame], text: str, size: int = 1) -> DataFrame:
        for what, names in (("stream", self._all()), ("query", self._queries.values())):
            if any(one.name.lower() == name.lower() for one in names):
                raise QueryTypeError(f"A {what} {name} is declared already.", "Choose another name.")
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

    def _registered(self, queries: Collection[str] = ()) -> NamedRelations:
        """What texts may name, if they may also read the rows of these queries."""
        found = self._user.temporary()
        rows = {name.lower() for name in queries}
        ours = {name.lower() for name in (*self._streams, *self._views)}
        functions = self._functions.names
        named = {name.lower() for name in functions}
        adopted = found._replace(
            views=tuple(name for name in found.views if name.lower() not in ours | rows),
            functions=tuple(name for name in found.functions if name.lower() not in named),
        )
        self._catalyst.adopt(self._user, adopted)
        relations = (*self._streams, *self._views, *adopted.views)
        ambiguous = rows & {name.lower() for name in found.views} - ours
        return NamedRelations(relations, (*adopted.functions, *functions), ambiguous)

    def _all(self) -> list[Stream]:
        return [*self._streams.values(), *self._chained.values()]

    def _known(self, name: str) -> Stream | None:
        return next((stream for stream in self._all() if stream.name.lower() == name.lower()), None)
