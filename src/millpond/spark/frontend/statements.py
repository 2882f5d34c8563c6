"""Parses pond files.

`CREATE TABLE` declares a stream, `CREATE STREAMING TABLE … AS SELECT` a query, `CREATE TEMPORARY VIEW` a name for a
SELECT or a batch table, and `DECLARE VARIABLE` a live parameter. `INSERT INTO` names a table of the file, which is then
a sink, and its SELECT is the query. `OR REPLACE` has no effect, because a file creates each name once.

Spark parses all of them, but nothing in a file is executed as a statement: the parsed tree is read. A relative path
is relative to the current directory, as in Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
from pyspark.sql import SparkSession

from millpond.errors import QueryError, QueryRefused, QuerySyntaxError, QueryTypeError, UnsupportedQuery, one_of
from millpond.model.endpoints import Source, SourceKind, source_kind, stream_names, table_names
from millpond.model.stream import Field, Generated, Stream
from millpond.spark.analysis.properties import STREAM_PROPERTIES, with_times
from millpond.spark.catalyst.cures import in_a_file
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, items, kind_of, optional, pairs
from millpond.spark.catalyst.text_span import COMMENT, QUOTED_NAME, STRING, TextSpan
from millpond.spark.frontend.create_clauses import columns_of, refuse_clauses, refuse_view_clauses, view_columns
from millpond.spark.frontend.declare_variable import Variable, variable_of
from millpond.spark.frontend.gate import check_comments, check_size, parse
from millpond.spark.frontend.insert_into import INSERT, insert_of, parsable, target_of
from millpond.spark.frontend.match_recognize import blanked
from millpond.spark.frontend.options import check_known, name_of, options_of, properties_of
from millpond.spark.frontend.query_statements import (
    SELECTED,
    TABLES,
    Declared,
    QueryStatement,
    declared_query,
    zone_of_query,
)
from millpond.spark.reading.event_source import completed
from millpond.spark.reading.time_zones import refuse_quoted_key, zone_set_by
from millpond.spark.sources.kafka import refuse_kafka
from millpond.spark.sources.pond_tables import FORMAT

_REFRESH = "refresh"
"""An option that Millpond adds to batch tables: how often their list of files is refreshed."""

_TOKEN = re.compile(
    rf"""(?P<comment>{COMMENT}) | {STRING} | {QUOTED_NAME}
      | (?P<end>;) | (?P<open>['"`] | /\*)""",
    re.VERBOSE | re.DOTALL,
)


class Statement(NamedTuple):
    """One statement of a file, and the line (from 1) on which its text starts."""

    text: str
    line: int
    start: int


class ViewStatement(NamedTuple):
    """A `CREATE TEMPORARY VIEW`: `text` is its SELECT, exactly as written, or `table` is its batch table.

    `refresh` says how often the table's list of files is refreshed, as an interval in Spark's syntax. `zone` is the
    time zone of the SELECT; None: that of the session.
    """

    name: str
    text: str | None
    table: Source | None
    schema: str | None
    line: int
    refresh: str | None = None
    zone: str | None = None


class PondFile(NamedTuple):
    """The streams, views, queries and live parameters of a file, in its order."""

    streams: tuple[Stream, ...]
    views: tuple[ViewStatement, ...]
    queries: tuple[QueryStatement, ...]
    variables: tuple[Variable, ...] = ()


def parse_file(spark: SparkSession, text: str) -> PondFile:
    """Read a pond file.

    Raises:
        QuerySyntaxError: a statement does not parse, or a quote is never closed.
        QueryRefused: a statement has another kind.
        QueryTypeError: a name is used twice, an option is unknown, or a path is missing.
        UnsupportedQuery: this version does not support a source or sink.
    """
    catalyst = Catalyst(spark)
    parsed: list[tuple[Statement, JavaObject]] = []
    for statement in split(text):
        with _of(statement):
            check_size(statement.text)
            refuse_quoted_key(statement.text)
            parsed.append((statement, parse(catalyst, blank(text[: statement.start]) + _parsed(statement))))
    sinks = frozenset(target_of(plan) for _, plan in parsed if kind_of(plan) == INSERT)
    made = _Made()
    for statement, plan in parsed:
        with _of(statement):
            _read(catalyst, plan, statement, made, sinks)
    for name, (declared, statement) in made.sinks.items():
        with _of(statement):
            raise QueryTypeError(
                f"{declared.name} has no SELECT, and no statement inserts into it.",
                f"Write CREATE STREAMING TABLE {name} AS SELECT …, or add INSERT INTO {name} SELECT ….",
            )
    return made.file


@contextmanager
def _of(statement: Statement) -> Iterator[None]:
    """A context that adds to errors which statement they are about."""
    try:
        yield
    except QueryError as error:
        raise type(error)(f"In the statement on line {statement.line}: {error.what}", error.cure) from error


class _Made:
    """What the statements of a file have declared until now, by name in lower case (parameters: by name).

    `sinks` are those that no INSERT INTO has named yet, with their statements. `zone` is what SET TIME ZONE has set.
    """

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.views: dict[str, ViewStatement] = {}
        self.queries: dict[str, QueryStatement] = {}
        self.variables: dict[str, Variable] = {}
        self.sinks: dict[str, tuple[Declared, Statement]] = {}
        self.zone: str | None = None

    @property
    def file(self) -> PondFile:
        """All of it."""
        return PondFile(
            (*self.streams.values(),), (*self.views.values(),), (*self.queries.values(),), (*self.variables.values(),)
        )

    def check_free(self, name: str) -> None:
        """Refuse a name that the file has created already.

        Raises:
            QueryTypeError: it has.
        """
        if any(name.lower() in known for known in (self.streams, self.views, self.queries, self.sinks)):
            raise QueryTypeError(f"{name} is created twice.", "Give one of them another name.")

    def inserted(self, name: str) -> Declared:
        """The sink that an INSERT INTO names.

        Raises:
            QueryTypeError: the file does not declare it, or it has a SELECT already.
        """
        if name in self.queries:
            raise QueryTypeError(
                f"{name} has a SELECT already, and a query has one.",
                "Join both with UNION ALL, or insert into another sink.",
            )
        if name not in self.sinks:
            raise QueryTypeError(
                f"INSERT INTO names {name}, and no statement before it declares this sink.",
                f"Write CREATE STREAMING TABLE {name} USING parquet TBLPROPERTIES ('path' = '…') before it.",
            )
        return self.sinks.pop(name)[0]


def blank(text: str) -> str:
    """The shortest blank text of as many lines, so that text after it keeps its line and column in the file.

    >>> blank("SELECT 1;\\n  a")
    '\\n   '
    """
    return "\n" * text.count("\n") + " " * (len(text) - text.rfind("\n") - 1)


def split(text: str) -> list[Statement]:
    """The statements of a file: `;` ends one, except in strings, backticks and comments.

    Raises:
        QuerySyntaxError: a quote or a comment is never closed.
    """
    statements: list[Statement] = []
    start = position = 0
    empty = True  # whether the statement has contained only comments until now
    while True:
        token = _TOKEN.search(text, position)
        stop = len(text) if token is None else token.start()
        empty = empty and not text[position:stop].strip()
        if token is None or token.group("end"):
            if not empty:
                lead = len(text[start:stop]) - len(text[start:stop].lstrip())
                line = TextSpan(text, start + lead, stop).line
                statements.append(Statement(text[start:stop].strip(), line, start + lead))
            if token is None:
                return statements
            start = position = token.end()
            empty = True
        elif token.group("open"):
            check_comments(text[stop:])
            what, line = "comment" if token.group() == "/*" else "quote", TextSpan(text, stop, stop).line
            raise QuerySyntaxError(f"The {what} opened on line {line} is never closed.", "Close it.")
        else:
            empty = empty and token.group("comment") is not None
            position = token.end()


def _read(
    catalyst: Catalyst, plan: JavaObject, statement: Statement, file: _Made, sinks: frozenset[str]
) -> None:  # fmt: skip
    """Add what a statement declares; `sinks` are the names after INSERT INTO in the file."""
    kind = kind_of(plan)
    if kind == "CreateVariable":
        variable = variable_of(plan)
        if variable.name in file.variables:  # names of parameters are case-sensitive, and separate from other names
            raise QueryTypeError(f"{variable.name} is created twice.", "Give one of them another name.")
        file.variables[variable.name] = variable
    elif kind == INSERT:
        insert = insert_of(plan, statement.text)
        declared = file.inserted(insert.sink)
        file.queries[insert.sink] = QueryStatement(
            declared, insert.text, statement.line, statement.start + insert.start, insert.by_name,
            zone_of_query(catalyst, declared, file.zone),
        )  # fmt: skip
    elif kind == "CreateStreamingTable" or (kind in TABLES and name_of(plan.name()).lower() in sinks):
        declared = declared_query(catalyst, plan)
        file.check_free(declared.name)
        file.sinks[declared.name.lower()] = declared, statement
    elif kind == SELECTED:
        declared = declared_query(catalyst, plan)
        file.check_free(declared.name)
        text = _written(str(plan.originalText()), statement)
        start = statement.start + statement.text.rindex(text)
        file.queries[declared.name.lower()] = QueryStatement(
            declared, text, statement.line, start, zone=zone_of_query(catalyst, declared, file.zone)
        )  # fmt: skip
    elif kind in ("CreateViewCommand", "CreateTempViewUsing"):
        view = _view(plan, statement) if kind == "CreateViewCommand" else _table_view(plan, statement.line)
        file.check_free(view.name)
        file.views[view.name.lower()] = view._replace(zone=file.zone, table=_zoned(view.table, file.zone))
    elif kind in TABLES and (kind == "CreateTable" or plan.orCreate()):
        stream = _stream(catalyst, plan, file.zone)
        file.check_free(stream.name)
        file.streams[stream.name.lower()] = stream
    elif kind == "SetCommand":
        file.zone = zone_set_by(catalyst, plan, statement.text) or file.zone
    else:
        what, cure = in_a_file(statement.text)
        raise QueryRefused(f"A pond file may not have {what}.", cure)


def _partitioned(name: str, plan: JavaObject, kind: SourceKind, columns: Sequence[Field]) -> str | msgspec.UnsetType:
    """The column by which the producers of a stream's topic choose partitions, if the statement declares it.

    For a folder of files, PARTITIONED BY lists the columns that Spark finds in the names of its folders (`dt=…`). They
    are columns like others, so the list is only checked.
    """
    found = items(plan.partitioning())
    if not found:
        return msgspec.UNSET
    fields = [_column_of(one) for one in found]
    wrong = None in fields or (len(fields) > 1 and not kind.files)
    if wrong:
        raise QueryRefused(
            f"{name} has PARTITIONED BY or CLUSTER BY of another form than a column.", "Write PARTITIONED BY (column)."
        )
    if not kind.files:
        return fields[0] or msgspec.UNSET
    known = {column.name.lower() for column in columns}
    for field in fields:
        if field is not None and field.lower() not in known:
            raise QueryTypeError(
                f"{name} is PARTITIONED BY {field}, which is not one of its columns.",
                f"Add it with its type: PARTITIONED BY ({field} STRING), or in the list of columns.",
            )
    return msgspec.UNSET


def _column_of(transform: JavaObject) -> str | None:
    """The column of a partitioning; None: it is something else, such as a bucket of a column."""
    if kind_of(transform) != "IdentityTransform":
        return None
    fields = [str(part) for part in transform.reference().fieldNames()]
    return fields[0] if len(fields) == 1 else None


def _stream(catalyst: Catalyst, plan: JavaObject, zone: str | None) -> Stream:
    name = name_of(plan.name())
    spec = plan.tableSpec()
    refuse_clauses(name, spec)
    provider = str(optional(spec.provider()) or "").lower()
    kind = source_kind(provider)
    if not kind.stream:
        what = f"the source {provider}" if provider else "no USING clause"
        cure = one_of(provider, stream_names()).removesuffix(".")
        if kind.table_options:
            cure += f"; a batch table is a CREATE TEMPORARY VIEW {name} USING {provider} OPTIONS (…)"
        raise UnsupportedQuery(f"The stream {name} has {what}.", f"{cure}.")
    options = options_of(name, spec)
    options_by_name = {option.lower(): option for option in kind.options}
    for option in options:
        if kind.topics:
            refuse_kafka(name, option)
        check_known(option, options_by_name, f"an option of {provider}")
    declared = columns_of(catalyst, plan, name, provider)
    columns = tuple(column for column in declared if isinstance(column, Field))
    made_in = msgspec.UNSET if zone is None else zone
    generated = tuple(msgspec.structs.replace(one, zone=made_in) for one in declared if isinstance(one, Generated))
    if zone is not None:
        _refuse_local_defaults(name, columns)
    source = _zoned(_source(provider, options, options_by_name), zone)
    made = Stream(name, _columns(name, kind, columns, options), source)
    stream = completed(msgspec.structs.replace(
        made, partitioned=_partitioned(name, plan, kind, columns), computed=generated or msgspec.UNSET
    ))  # fmt: skip
    return with_times(catalyst, stream, properties_of(spec, STREAM_PROPERTIES, "a property of a stream"))


def _refuse_local_defaults(name: str, columns: Sequence[Field]) -> None:
    """Refuse a TIMESTAMP DEFAULT after SET TIME ZONE: Spark reads the recorded text in the zone of the session."""
    for column in columns:
        if column.type == "timestamp" and not isinstance(column.default, msgspec.UnsetType):
            raise QueryRefused(
                f"The column {column.name} of {name} has a DEFAULT of type TIMESTAMP after SET TIME ZONE.",
                "Declare the stream before SET TIME ZONE, and write the offset: TIMESTAMP '2026-01-01 00:00:00+01:00'.",
            )


def _zoned(source: Source | None, zone: str | None) -> Source | None:
    """The source whose texts are read in a time zone, unless it has none or its options name one."""
    if source is None or zone is None or "timeZone" not in source_kind(source.format).options:
        return source
    if source.option("timeZone") is not None:
        return source
    return msgspec.structs.replace(source, options=tuple(sorted((*source.options, ("timeZone", zone)))))


def _source(provider: str, options: dict[str, str], known: dict[str, str]) -> Source:
    return Source(provider, tuple(sorted((known[option.lower()], value) for option, value in options.items())))


def _columns(name: str, kind: SourceKind, columns: tuple[Field, ...], options: dict[str, str]) -> tuple[Field, ...]:
    if kind.columns:
        own = tuple(Field(*column) for column in kind.columns)
        if columns and columns != own:
            raise QueryTypeError(
                f"The stream {name} has other columns than {kind.name} makes.", "Drop the list of columns."
            )
        return own
    if not columns:
        raise QueryTypeError(f"The stream {name} declares no columns.", "List them: CREATE TABLE name (a INT, …).")
    if kind.files and not any(option.lower() == "path" for option in options):
        raise QueryTypeError(f"The stream {name} has no path.", "Add OPTIONS (path '…').")
    return columns


def _view(plan: JavaObject, statement: Statement) -> ViewStatement:
    name = str(plan.name().unquotedString())
    if str(plan.viewType().toString()) != "LocalTempView" or "." in name:
        raise QueryRefused(f"The view {name} would outlive this session.", "Write CREATE TEMPORARY VIEW name AS ….")
    if plan.userSpecifiedColumns().size() or plan.properties().size():
        raise QueryRefused(f"The view {name} lists columns or properties.", "Name the columns in its SELECT, with AS.")
    refuse_view_clauses(name, plan)
    text = optional(plan.originalText())
    if text is None:
        raise QueryRefused(f"The view {name} has no text.", "Write CREATE TEMPORARY VIEW name AS SELECT ….")
    return ViewStatement(name, _written(str(text), statement), None, None, statement.line)


def _table_view(plan: JavaObject, line: int) -> ViewStatement:
    name = str(plan.tableIdent().unquotedString())
    provider = str(plan.provider()).lower()
    if getattr(plan, "global")() or "." in name:
        raise QueryRefused(f"The view {name} would outlive this session.", "Write CREATE TEMPORARY VIEW name USING ….")
    kind = source_kind(provider)
    if not kind.table_options:
        raise UnsupportedQuery(f"The view {name} is USING {provider}.", f"Use one of {', '.join(table_names())}.")
    known = {option.lower(): option for option in kind.table_options}
    options = dict(pairs(plan.options()))
    for option in options:
        check_known(option, known | {_REFRESH: _REFRESH}, f"an option of {provider}")
    refresh = next((value for option, value in options.items() if option.lower() == _REFRESH), None)
    source = _source(provider, {key: value for key, value in options.items() if key.lower() != _REFRESH}, known)
    schema = optional(plan.userSpecifiedSchema())
    if schema and provider == FORMAT:
        raise QueryTypeError(f"The view {name} lists columns; they follow from its query.", "Leave the list out.")
    return ViewStatement(name, None, source, view_columns(name, schema), line, refresh)


def _parsed(statement: Statement) -> str:
    """The text that Spark parses: the statement with blanks in place of what Spark's parser lacks."""
    return blanked(parsable(statement.text))


def _written(parsed_text: str, statement: Statement) -> str:
    """The SELECT at the end of a statement, as it is written; Spark parsed it as `parsed_text`."""
    parsed = _parsed(statement)
    return parsed_text if parsed == statement.text else statement.text[parsed.rindex(parsed_text) :]
