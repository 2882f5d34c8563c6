"""Reads where the rows of a query go, and its options: `CREATE STREAMING TABLE`, or a `CREATE TABLE` that is a sink.

A file names the sink and the SELECT in one statement (`CREATE STREAMING TABLE … AS SELECT`), or declares the sink and
inserts into it (`INSERT INTO name SELECT`). Both make the same query, which has the name of the sink.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from millpond.errors import QueryRefused, QueryTypeError, UnsupportedQuery, one_of
from millpond.followers.sinks.kinds import BUILT_IN, QUERY_PROPERTIES, SinkKind, declared_names, late_names, sink_kind
from millpond.model.budget import Budget, budget_of
from millpond.model.endpoints import NOWHERE, Sink
from millpond.model.stream import Field, Generated
from millpond.plan.options.output_modes import BY_EVENT, FINAL
from millpond.spark.analysis.properties import Mode, Repeats, ttl_us
from millpond.spark.analysis.query_terms import OutputOptions, Terms
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, kind_of, optional, pairs
from millpond.spark.frontend.create_clauses import columns_of, refuse_clauses
from millpond.spark.frontend.insert_into import fitted
from millpond.spark.frontend.options import checked_properties, name_of, options_of, plain_path
from millpond.spark.reading.time_zones import checked_zone

SELECTED = "CreateStreamingTableAsSelect"
"""The kind of a statement that has both a sink and its SELECT."""
TABLES = ("CreateTable", "ReplaceTable")
"""The kinds of a CREATE TABLE, which declares a stream or, if INSERT INTO names it, a sink."""


class Declared(NamedTuple):
    """The sink and the options of a query. `columns` are the declared columns of the sink, if any are declared."""

    name: str
    sink: Sink
    serve: bool
    late: Sink | None = None
    mode: Mode = Mode()
    repeats: Repeats = Repeats()
    budget: Budget | None = None
    ttl: str | None = None
    zone: str | None = None
    columns: tuple[Field, ...] = ()


class QueryStatement(NamedTuple):
    """A query of a file: `text` is its SELECT, exactly as written, from character `start` of the file.

    `line` is the line of the statement that has the SELECT. `by_name`: the columns of the SELECT are matched with those
    of the sink by their names, else by their positions. `zone`: the time zone of its text; None: that of the session.
    """

    declared: Declared
    text: str
    line: int
    start: int
    by_name: bool = False
    zone: str | None = None

    @property
    def name(self) -> str:
        """The name of the query and of its sink."""
        return self.declared.name

    def terms(self, catalyst: Catalyst) -> Terms:
        """The terms of the query.

        Raises:
            QueryTypeError: its time to live is not a duration.
        """
        ttl = ttl_us(catalyst, self.name, self.declared.ttl)
        return Terms(self.name, None, self.declared.sink, self.declared.serve, self.text, ttl_us=ttl)

    @property
    def leaving(self) -> OutputOptions:
        """The options of the query's output."""
        fit = partial(fitted, columns=self.declared.columns, by_name=self.by_name)
        return OutputOptions(self.declared.late, self.declared.mode, self.declared.repeats, fit, self.zone)


def declared_query(catalyst: Catalyst, plan: JavaObject) -> Declared:
    """The sink and the options in a `CREATE STREAMING TABLE`, or in a `CREATE TABLE` that an INSERT INTO names.

    Raises:
        QueryRefused: it has a clause that a query cannot have.
        QueryTypeError: an option is unknown, or the path is missing.
        UnsupportedQuery: there is no such sink.
    """
    name, spec = name_of(plan.name()), plan.tableSpec()
    refuse_clauses(name, spec)
    kind_of_plan = kind_of(plan)
    if plan.partitioning().size():
        raise QueryRefused(f"{name} has PARTITIONED BY or CLUSTER BY, which a query cannot have.", "Leave it out.")
    if kind_of_plan == SELECTED and plan.columns().size():
        raise QueryRefused(f"{name} lists columns; they follow from its SELECT.", "Leave the list out.")
    options = dict(pairs(spec.properties()))
    if kind_of_plan in TABLES:
        options |= options_of(name, spec)
    elif spec.options().size():
        raise QueryTypeError(f"{name} has OPTIONS.", "Use TBLPROPERTIES ('path' = '…').")
    location = optional(spec.location())
    options |= {} if location is None else {"path": plain_path(str(location))}
    provider = optional(spec.provider())
    if kind_of_plan in TABLES and provider is None:
        raise UnsupportedQuery(f"The sink {name} has no USING clause.", f"Use one of {', '.join(declared_names())}.")
    kind = _kind(f"{name} is", str(provider or NOWHERE).lower(), declared_names())
    columns = () if kind_of_plan == SELECTED else columns_of(catalyst, plan, name, kind.name)
    return _declared(name, kind, options)._replace(columns=_plain_columns(name, columns))


def zone_of_query(catalyst: Catalyst, declared: Declared, zone: str | None) -> str | None:
    """The time zone of a query: its property `time.zone`, else the `zone` that SET TIME ZONE has set.

    Raises:
        QueryTypeError: Spark does not know the zone of the property.
    """
    return zone if declared.zone is None else checked_zone(catalyst.spark, declared.zone)


def _plain_columns(name: str, columns: Sequence[Field | Generated]) -> tuple[Field, ...]:
    for column in columns:
        if isinstance(column, Generated):
            raise QueryRefused(
                f"The column {column.name} of the sink {name} is GENERATED.", "Compute it in the SELECT of INSERT INTO."
            )
        if not isinstance(column.default, msgspec.UnsetType):
            raise QueryRefused(
                f"The column {column.name} of the sink {name} has a DEFAULT.", "Write the value in the SELECT."
            )
    return tuple(column for column in columns if isinstance(column, Field))


def _declared(name: str, kind: SinkKind, given: dict[str, str]) -> Declared:
    options = (option for one in (*BUILT_IN, kind) for option in one.options)
    properties = checked_properties(given, (*QUERY_PROPERTIES, *dict.fromkeys(options)), "a property of a query")
    sink = _sink(name, kind, "path", properties.get("path"))
    sink = msgspec.structs.replace(sink, options=_sink_options(name, kind, properties))
    serve = properties.get("serve", "false").lower()
    if serve not in ("true", "false"):
        raise QueryTypeError(f"'serve' of {name} is {serve}.", "Write 'true' or 'false'.")
    late = _late(name, kind, properties)
    late_by = properties.get("late.by", BY_EVENT).lower()
    mode = Mode(properties.get("emit", FINAL).lower(), properties.get("correct.for"), late_by)
    columns = tuple(one.strip() for one in properties.get("deduplicate", "").split(",") if one.strip())
    repeats = Repeats(columns, properties.get("deduplicate.within"))
    budget = budget_of(properties["budget"]) if "budget" in properties else None
    ttl, zone = properties.get("state.ttl"), properties.get("time.zone")
    return Declared(name, sink, serve == "true", late, mode, repeats, budget, ttl, zone)


def _kind(subject: str, sink: str, known: tuple[str, ...]) -> SinkKind:
    if sink not in known:
        raise UnsupportedQuery(f"{subject} to be written as {sink}.", one_of(sink, known))
    return sink_kind(sink)


def _sink_options(name: str, kind: SinkKind, properties: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """The sink's options from TBLPROPERTIES; a property of another sink is refused."""
    for option, other in ((option, one.name) for one in BUILT_IN for option in one.options):
        if option in properties and option not in kind.options:
            raise QueryTypeError(f"{name} has a {option}, but is written as {kind.name}.", f"Write USING {other}.")
    kind.check_env(name, properties)
    return tuple(sorted((option, properties[option]) for option in kind.options if option in properties))


def _late(name: str, kind: SinkKind, properties: dict[str, str]) -> Sink | None:
    """The sink of late rows: in the format that is named, or in that of the query's own files, or else in Parquet."""
    path, format_ = properties.get("late.path"), properties.get("late.format", "").lower()
    if path is None and not format_:
        return None
    format_ = format_ or (kind.name if kind.late and kind.path else "parquet")
    subject = f"The late rows of {name} are"
    of_late = _kind(subject, format_, declared_names())
    if not of_late.late:
        raise UnsupportedQuery(f"{subject} to be written as {format_}.", f"Use one of {', '.join(late_names())}.")
    return _sink(name, of_late, "late.path", path)


def _sink(name: str, kind: SinkKind, key: str, path: str | None) -> Sink:
    if path and not kind.path:
        known = ", ".join(one.name for one in BUILT_IN if one.path)
        raise QueryTypeError(f"{name} has a {key}, but {kind.name} is not a folder.", f"Use one of {known}.")
    if path == "":
        raise QueryTypeError(f"The {key} of {name} is empty.", "Name a folder, or leave it out.")
    return Sink(kind.name, path)
