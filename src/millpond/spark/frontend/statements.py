"""Parses pond files.

`CREATE TABLE` declares a stream, `CREATE STREAMING TABLE … AS SELECT` a query, `CREATE TEMPORARY VIEW` a name for a
SELECT or a batch table, and `DECLARE VARIABLE` a live parameter.

Spark parses all of them, but nothing in a file is executed as a statement: the parsed tree is read. A relative path
is relative to the current directory, as in Spark.
"""

from __future__ import annotations

import difflib
import re
from typing import NamedTuple

import msgspec
from pyspark.sql import SparkSession

from millpond.errors import QueryError, QueryRefused, QuerySyntaxError, QueryTypeError, UnsupportedQuery
from millpond.followers.sinks.kinds import BUILT_IN, QUERY_PROPERTIES, SinkKind, declared_names, late_names, sink_kind
from millpond.model.budget import Budget, budget_of
from millpond.model.endpoints import NOWHERE, Sink, Source, SourceKind, source_kind, stream_names, table_names
from millpond.model.stream import Field, Generated, Stream
from millpond.plan.options.output_modes import BY_EVENT, FINAL
from millpond.spark.analysis.properties import STREAM_PROPERTIES, Mode, Repeats, with_times
from millpond.spark.catalyst.cures import ANY_STATEMENT, STATEMENTS
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, items, kind_of, optional, pairs
from millpond.spark.frontend.create_clauses import columns_of, refuse_clauses, refuse_view_clauses, view_columns
from millpond.spark.frontend.gate import check_size, parse
from millpond.spark.frontend.match_recognize import blanked
from millpond.spark.frontend.variables import Variable, variable_of
from millpond.spark.reading.event_source import completed
from millpond.spark.sources.kafka import refuse_kafka
from millpond.spark.sources.pond_tables import FORMAT

_REFRESH = "refresh"
"""An option that Millpond adds to batch tables: how often their list of files is refreshed."""

_TOKEN = re.compile(
    r"""--(?:\\\n|[^\r\n])*          # a comment to the end of the line
      | /\*                          # a bracketed one, which may nest
      | (?<![A-Za-z0-9_])[rR](?:'[^']*'|"[^"]*")   # raw strings: no escapes
      | '(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" | `[^`]*`
      | \$(?P<tag>[A-Za-z_]\w*|)\$.*?\$(?P=tag)\$
      | (?P<end>;) | (?P<open>['"`])""",
    re.VERBOSE | re.DOTALL,
)


class Statement(NamedTuple):
    """One statement of a file, and the line (from 1) on which its text starts."""

    text: str
    line: int
    start: int


class QueryStatement(NamedTuple):
    """A `CREATE STREAMING TABLE`: `text` is its SELECT, exactly as written, from character `start` of the file."""

    name: str
    text: str
    sink: Sink
    serve: bool
    line: int
    start: int
    late: Sink | None = None
    mode: Mode = Mode()
    repeats: Repeats = Repeats()
    budget: Budget | None = None
    ttl: str | None = None


class ViewStatement(NamedTuple):
    """A `CREATE TEMPORARY VIEW`: `text` is its SELECT, exactly as written, or `table` is its batch table.

    `refresh` says how often the table's list of files is refreshed, as an interval in Spark's syntax.
    """

    name: str
    text: str | None
    table: Source | None
    schema: str | None
    line: int
    refresh: str | None = None


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
    streams: dict[str, Stream] = {}
    views: dict[str, ViewStatement] = {}
    queries: dict[str, QueryStatement] = {}
    variables: dict[str, Variable] = {}
    for statement in split(text):
        try:
            made = _read(catalyst, statement, blank(text[: statement.start]))
            name = made.name.lower()
            if isinstance(made, Variable):
                known = made.name in variables  # names of parameters are case-sensitive, and separate from other names
            else:
                known = name in streams or name in views or name in queries
            if known:
                raise QueryTypeError(f"{made.name} is created twice.", "Give one of them another name.")
        except QueryError as error:
            raise type(error)(f"In the statement on line {statement.line}: {error.what}", error.cure) from error
        if isinstance(made, Variable):
            variables[made.name] = made
        elif isinstance(made, Stream):
            streams[name] = made
        elif isinstance(made, ViewStatement):
            views[name] = made
        else:
            queries[name] = made
    return PondFile((*streams.values(),), (*views.values(),), (*queries.values(),), (*variables.values(),))


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
    found: list[Statement] = []
    start = position = 0
    empty = True  # whether the statement has contained only comments until now
    while True:
        token = _TOKEN.search(text, position)
        stop = len(text) if token is None else token.start()
        empty = empty and not text[position:stop].strip()
        if token is None or token.group("end"):
            if not empty:
                lead = len(text[start:stop]) - len(text[start:stop].lstrip())
                line = text.count("\n", 0, start + lead) + 1
                found.append(Statement(text[start:stop].strip(), line, start + lead))
            if token is None:
                return found
            start = position = token.end()
            empty = True
        elif token.group("open"):
            raise _unclosed(text, stop, "quote")
        elif token.group() == "/*":
            position = _comment_end(text, stop)
        else:
            empty = empty and token.group().startswith("--")
            position = token.end()


def _comment_end(text: str, start: int) -> int:
    depth = 0
    for mark in re.compile(r"/\*|\*/").finditer(text, start):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    raise _unclosed(text, start, "comment")


def _unclosed(text: str, position: int, what: str) -> QuerySyntaxError:
    return QuerySyntaxError(
        f"The {what} opened on line {text.count(chr(10), 0, position) + 1} is never closed.", "Close it."
    )


def _read(catalyst: Catalyst, statement: Statement, before: str) -> Stream | ViewStatement | QueryStatement | Variable:
    check_size(statement.text)
    plan = parse(catalyst, before + blanked(statement.text))
    kind = kind_of(plan)
    if kind == "CreateTable":
        return _stream(catalyst, plan)
    if kind == "CreateStreamingTableAsSelect":
        return _query(plan, statement)
    if kind == "CreateViewCommand":
        return _view(plan, statement)
    if kind == "CreateTempViewUsing":
        return _table_view(plan, statement.line)
    if kind == "CreateVariable":
        return variable_of(plan)
    what, cure = STATEMENTS.get(kind, (f"the statement {kind}", ANY_STATEMENT))
    if kind == "CreateStreamingTable":
        what = "a streaming table without AS SELECT"
    raise QueryRefused(f"A pond file may not have {what}.", cure)


def _name(node: JavaObject) -> str:
    parts = [str(part) for part in items(node.nameParts())]
    if len(parts) != 1:
        raise QueryRefused(f"The name {'.'.join(parts)} has several parts.", "Use one plain name.")
    return parts[0]


def _partitioned(name: str, plan: JavaObject) -> str | msgspec.UnsetType:
    """The column by which the producers of a stream's topic choose partitions, if the statement declares it."""
    found = items(plan.partitioning())
    if not found:
        return msgspec.UNSET
    plain = kind_of(found[0]) == "IdentityTransform"
    fields = [str(part) for part in found[0].reference().fieldNames()] if plain else []
    if len(found) > 1 or len(fields) != 1:
        raise QueryRefused(
            f"{name} has PARTITIONED BY or CLUSTER BY of another form than a column.", "Write PARTITIONED BY (column)."
        )
    return fields[0]


def _stream(catalyst: Catalyst, plan: JavaObject) -> Stream:
    name = _name(plan.name())
    spec = plan.tableSpec()
    refuse_clauses(name, spec)
    provider = str(optional(spec.provider()) or "").lower()
    kind = source_kind(provider)
    if not kind.stream:
        what = f"the source {provider}" if provider else "no USING clause"
        cure = f"Use one of {', '.join(stream_names())}"
        if kind.table_options:
            cure += f"; a batch table is a CREATE TEMPORARY VIEW {name} USING {provider} OPTIONS (…)"
        raise UnsupportedQuery(f"The stream {name} has {what}.", f"{cure}.")
    options = {str(entry._1()): _text(name, entry) for entry in items(spec.optionExpression().options())}
    location = optional(spec.location())
    if location is not None:
        options["path"] = _plain_path(str(location))
    known = {option.lower(): option for option in kind.options}
    for option in options:
        if kind.topics:
            refuse_kafka(name, option)
        _known(option, known, f"an option of {provider}")
    declared = columns_of(catalyst, plan, name, provider)
    columns = tuple(column for column in declared if isinstance(column, Field))
    generated = tuple(column for column in declared if isinstance(column, Generated))
    made = Stream(name, _columns(name, kind, columns, options), _source(provider, options, known))
    stream = completed(msgspec.structs.replace(
        made, partitioned=_partitioned(name, plan), computed=generated or msgspec.UNSET
    ))  # fmt: skip
    return with_times(catalyst, stream, _properties(spec, STREAM_PROPERTIES, "a property of a stream"))


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
        _known(option, known | {_REFRESH: _REFRESH}, f"an option of {provider}")
    refresh = next((value for option, value in options.items() if option.lower() == _REFRESH), None)
    source = _source(provider, {key: value for key, value in options.items() if key.lower() != _REFRESH}, known)
    schema = optional(plan.userSpecifiedSchema())
    if schema and provider == FORMAT:
        raise QueryTypeError(f"The view {name} lists columns; they follow from its query.", "Leave the list out.")
    return ViewStatement(name, None, source, view_columns(name, schema), line, refresh)


def _written(parsed_text: str, statement: Statement) -> str:
    """The SELECT at the end of a statement, as it is written; Spark parsed it as `parsed_text`."""
    parsed = blanked(statement.text)
    return parsed_text if parsed == statement.text else statement.text[parsed.rindex(parsed_text) :]


def _query(plan: JavaObject, statement: Statement) -> QueryStatement:
    name = _name(plan.name())
    spec = plan.tableSpec()
    refuse_clauses(name, spec)
    if plan.partitioning().size():
        raise QueryRefused(f"{name} has PARTITIONED BY or CLUSTER BY, which a query cannot have.", "Leave it out.")
    if plan.columns().size():
        raise QueryRefused(f"{name} lists columns; they follow from its SELECT.", "Leave the list out.")
    if spec.options().size():
        raise QueryTypeError(f"{name} has OPTIONS.", "Use TBLPROPERTIES ('path' = '…').")
    kind = _kind(f"{name} is", str(optional(spec.provider()) or NOWHERE).lower(), declared_names())
    options = (option for one in (*BUILT_IN, kind) for option in one.options)
    properties = _properties(spec, (*QUERY_PROPERTIES, *dict.fromkeys(options)), "a property of a query")
    sink = _sink(name, kind, "path", properties.get("path"))
    sink = msgspec.structs.replace(sink, options=_sink_options(name, kind, properties))
    serve = properties.get("serve", "false").lower()
    if serve not in ("true", "false"):
        raise QueryTypeError(f"'serve' of {name} is {serve}.", "Write 'true' or 'false'.")
    late = _late(name, kind, properties)
    text = _written(str(plan.originalText()), statement)
    start = statement.start + statement.text.rindex(text)
    late_by = properties.get("late.by", BY_EVENT).lower()
    mode = Mode(properties.get("emit", FINAL).lower(), properties.get("correct.for"), late_by)
    columns = tuple(one.strip() for one in properties.get("deduplicate", "").split(",") if one.strip())
    repeats = Repeats(columns, properties.get("deduplicate.within"))
    budget = budget_of(properties["budget"]) if "budget" in properties else None
    ttl = properties.get("state.ttl")
    return QueryStatement(name, text, sink, serve == "true", statement.line, start, late, mode, repeats, budget, ttl)


def _kind(subject: str, sink: str, known: tuple[str, ...]) -> SinkKind:
    if sink not in known:
        raise UnsupportedQuery(f"{subject} to be written as {sink}.", f"Use one of {', '.join(known)}.")
    return sink_kind(sink)


def _sink_options(name: str, kind: SinkKind, properties: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """The sink's options from TBLPROPERTIES; a property of another sink is refused."""
    for option, other in ((option, one.name) for one in BUILT_IN for option in one.options):
        if option in properties and option not in kind.options:
            raise QueryTypeError(f"{name} has a {option}, but is written as {kind.name}.", f"Write USING {other}.")
    kind.check_env(name, properties)
    return tuple(sorted((option, properties[option]) for option in kind.options if option in properties))


def _late(name: str, kind: SinkKind, properties: dict[str, str]) -> Sink | None:
    """The sink of late rows: a folder in the query's own format or in another one."""
    path, format_ = properties.get("late.path"), properties.get("late.format", "").lower()
    if path is None and not format_:
        return None
    if not format_:
        if not (kind.late and kind.path):
            raise QueryTypeError(f"'late.path' of {name} has no format.", "Add 'late.format' = 'parquet'.")
        format_ = kind.name
    subject = f"The late rows of {name} are"
    of_late = _kind(subject, format_, declared_names())
    if not of_late.late:
        raise UnsupportedQuery(f"{subject} to be written as {format_}.", f"Use one of {', '.join(late_names())}.")
    return _sink(name, of_late, "late.path", path)


def _sink(name: str, kind: SinkKind, key: str, path: str | None) -> Sink:
    if kind.path and not path:
        cure = f"Add TBLPROPERTIES ('{key}' = '…')."
        raise QueryTypeError(f"{name} is written as {kind.name}, but has no {key}.", cure)
    if path and not kind.path:
        known = ", ".join(one.name for one in BUILT_IN if one.path)
        raise QueryTypeError(f"{name} has a {key}, but {kind.name} is no folder.", f"Use one of {known}.")
    return Sink(kind.name, path)


def _properties(spec: JavaObject, known: tuple[str, ...], what: str) -> dict[str, str]:
    properties = dict(pairs(spec.properties()))
    for key in properties:
        _known(key, {name: name for name in known}, what)
    return {key.lower(): value for key, value in properties.items()}


def _known(name: str, known: dict[str, str], what: str) -> None:
    if name.lower() not in known:
        near = difflib.get_close_matches(name.lower(), known, 3, 0.5)
        names = " or ".join(known[key] for key in near) if near else ", ".join(known.values())
        raise QueryTypeError(f"`{name}` is not {what}.", f"Did you mean: {names}?")


def _text(name: str, entry: JavaObject) -> str:
    value = entry._2()
    if kind_of(value) != "Literal":
        raise QueryTypeError(f"The option {entry._1()} of {name} is no literal.", "Write the value itself.")
    plain = value.eval(None)
    return str(plain).lower() if isinstance(plain, bool | int | float) else str(plain.toString())


def _plain_path(location: str) -> str:
    # Spark returns a path as a URI.
    return (
        location.removeprefix("file:")
        if location.startswith("file:/") and not location.startswith("file://")
        else location
    )
