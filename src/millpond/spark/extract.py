"""An analysed Spark plan -> our frozen `Query`, `Stream` and the expressions that Spark must project.

The plan is read from the top: HAVING and output columns, one `Aggregate`, one window, filters and derived
columns, one streaming source. Spark has settled names, types and casts; anything else is refused by name.

A watermark belongs to the stream: one that stands above a filter is taken as if it stood below, so events
that the filter drops move it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column, Expression, Foreign, Literal, call, may_raise
from millpond.model.query import Named, Query
from millpond.model.stream import Stream
from millpond.model.types import KEY_TYPES, WINDOW, is_known
from millpond.model.windows import Sliding
from millpond.spark.aggregates import aggregate_of
from millpond.spark.below import Below, read_below
from millpond.spark.catalyst import (
    Catalyst,
    JavaObject,
    analysed,
    children,
    delay_ms,
    id_of,
    items,
    kind_of,
    references,
    text_of,
    type_of,
)
from millpond.spark.expressions import Translator, conjunction, refused_above
from millpond.spark.foreign import Projected, project
from millpond.spark.sources import Derived, Found, find_source

_ABOVE = {
    "Sort": "ORDER BY",
    "GlobalLimit": "LIMIT",
    "LocalLimit": "LIMIT",
    "Limit": "LIMIT",
    "Offset": "OFFSET",
    "Distinct": "SELECT DISTINCT",
    "Deduplicate": "dropDuplicates",
    "Window": "an OVER (…) window",
    "Join": "a join",
    "Union": "a union",
    "Generate": "explode",
}
_FIELDS = ("start", "end")


class Extraction(NamedTuple):
    """A query, the stream it reads, and the Catalyst expressions behind its `Foreign` parts, by key.

    `derived`: how the stream is made of others, if it is.
    """

    query: Query
    stream: Stream
    foreigns: dict[str, Projected]
    derived: Derived | None = None


class Terms(NamedTuple):
    """What a query is called and where it goes; `window` overrides the one that the plan shows."""

    name: str
    window: Sliding | None = None
    sink: Sink = Sink()
    serve: bool = False
    text: str = ""


def extract_query(
    catalyst: Catalyst,
    frame: DataFrame,
    terms: Terms,
    streams: Sequence[Stream] = (),
    relation: str | None = None,
) -> Extraction:
    """Read a streaming DataFrame that was not started.

    The stream is called `relation`, or as the one of `streams` that equals it by value, or by its digest.

    Raises:
        UnsupportedQuery: its shape, or an expression, is none that this version answers.
        QueryTypeError: it has no watermark, or something is no stream or has a wrong type.
    """
    plan = catalyst.clean(analysed(frame))
    above: list[JavaObject] = []
    while kind_of(plan) in ("Project", "Filter", "SubqueryAlias"):
        above.append(plan)
        plan = plan.child()
    if kind_of(plan) != "Aggregate":
        raise _no_aggregation(plan)
    below = read_below(catalyst, plan.child())
    return _Reader(catalyst, terms, find_source(catalyst, below, streams, relation), below).read(plan, above)


def _no_aggregation(plan: JavaObject) -> UnsupportedQuery:
    kind = kind_of(plan)
    if kind in _ABOVE:
        return UnsupportedQuery(f"The query ends in {_ABOVE[kind]}, which is not answered.", "Leave it out.")
    return UnsupportedQuery(
        f"The query has no aggregation at its top, but {kind}.", "Group by window(time, size) and aggregate."
    )


class _Reader:
    """Reads one plan; `above` and `below` are the two sides of its aggregation."""

    def __init__(self, catalyst: Catalyst, terms: Terms, source: Found, below: Below) -> None:
        self._catalyst = catalyst
        self._terms = terms
        self._source = source
        self._stream = source.stream
        self._below = below
        self._foreigns: dict[str, Projected] = {}
        self._scope: dict[int, Expression] = {}
        self._defined: dict[int, JavaObject] = {}
        self._down = Translator(catalyst, self._column, self._projected)
        self._up = Translator(catalyst, self._result, refused_above, self._field, rounding=True)

    def read(self, plan: JavaObject, above: list[JavaObject]) -> Extraction:
        groups, calls, results = self._catalyst.aggregation(plan)
        time, window = self._window(groups)
        keys = self._keys(groups)
        aggregates = self._aggregates(calls)
        delay = delay_ms(time)
        if delay is None:
            raise QueryTypeError(
                f"The event time {time.name()} has no watermark, so no window would ever end.",
                f"Write FROM STREAM {self._stream.name} WATERMARK {time.name()} DELAY OF INTERVAL 10 SECONDS."
                if self._terms.text
                else f"Add .withWatermark('{time.name()}', '10 seconds') before groupBy.",
            )
        event_time = self._column(time)
        if not isinstance(event_time, Column):
            raise UnsupportedQuery(
                f"The event time {time.name()} is computed, which is planned, not answered yet.",
                "Window over a column of the stream.",
            )
        having, output = self._finish(results, above)
        terms = self._terms
        query = Query(
            name=terms.name,
            stream=self._stream.name,
            event_time=event_time.name,
            delay_us=delay * 1000,
            window=terms.window or window,
            keys=keys,
            aggregates=aggregates,
            output=output,
            where=self._where(),
            having=having,
            sink=terms.sink,
            serve=terms.serve,
            text=terms.text,
        )
        used = {node.key for node in _foreign_nodes(query)}
        foreigns = {key: self._foreigns[key] for key in sorted(used)}
        return Extraction(query, self._stream, foreigns, self._source.derived)

    def _where(self) -> Expression | None:
        """Conditions on events; of a join, that its key does not raise and, if it is an inner one, finds a partner."""
        source = self._source
        parts = [] if source.taken is None else [self._projected(source.taken)]
        for index, step in enumerate(self._below.steps):
            if index not in source.markers:
                parts.append(self._down(step.condition))
                continue
            keys = [self._down(probe) for probe in source.probes[index]]
            parts += [call("ran", (key,), "boolean") for key in keys if may_raise(key)]
            parts += [Column(source.markers[index], "boolean")] if step.inner else []
        return conjunction(parts)

    def _window(self, groups: list[JavaObject]) -> tuple[JavaObject, Sliding]:
        for group in groups:
            found = self._below.window_part(group)
            if found is not None:
                return found.window.time, found.window.sliding
        raise UnsupportedQuery(
            "The query does not group by a window, so its answer would never be final.",
            "Add window(time, size) to GROUP BY.",
        )

    def _keys(self, groups: list[JavaObject]) -> tuple[Expression, ...]:
        keys: list[Expression] = []
        for group in groups:
            identity = id_of(group)
            part = self._below.window_part(group)
            if part is not None:
                kind = WINDOW if part.field is None else "timestamp"
                self._scope[identity] = Column("window" if part.field is None else f"window.{part.field}", kind)
                continue
            if not is_known(type_of(group)):
                raise UnsupportedQuery(
                    f"The key `{text_of(group)}` is a {type_of(group)}, which is planned, not answered yet.",
                    f"Cast it to one of {', '.join(sorted(KEY_TYPES))} or a decimal.",
                )
            key = self._down(group)
            if isinstance(key, Literal):
                self._scope[identity] = key
                continue
            if key not in keys:
                keys.append(key)
            self._scope[identity] = Column(f"key:{keys.index(key)}", type_of(group))
        return tuple(keys)

    def _aggregates(self, calls: list[JavaObject]) -> tuple[Aggregate, ...]:
        found: list[Aggregate] = []
        for asked in calls:
            aggregate = aggregate_of(self._catalyst, asked, self._down)
            if aggregate not in found:
                found.append(aggregate)
            self._scope[id_of(asked.resultAttribute())] = Column(f"agg:{found.index(aggregate)}", aggregate.type)
        return tuple(found)

    def _finish(
        self, results: list[JavaObject], above: list[JavaObject]
    ) -> tuple[Expression | None, tuple[Named, ...]]:
        """HAVING and output, from the aggregation's own columns up."""
        having: list[Expression] = []
        outputs = results
        self._define(results)
        for node in reversed(above):
            if kind_of(node) == "Filter":
                having.append(self._up(node.condition()))
            elif kind_of(node) == "Project":
                outputs = items(node.projectList())
                self._define(outputs)
        named = tuple(Named(str(output.name()), self._result(output)) for output in outputs)
        names = [column.name for column in named]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise QueryTypeError(f"Two columns of the query are called {twice[0]}.", "Give one another name with AS.")
        return conjunction(having), named

    def _define(self, columns: list[JavaObject]) -> None:
        for column in columns:
            if kind_of(column) == "Alias":
                self._defined[id_of(column)] = column.child()

    def _result(self, attribute: JavaObject) -> Expression:
        """The meaning of a column above the aggregation."""
        identity = id_of(attribute)
        if identity not in self._scope:
            self._scope[identity] = self._up(self._defined[identity])
        return self._scope[identity]

    def _field(self, node: JavaObject) -> Expression | None:
        """`window.start`, `window.end` and `window_time(window)` above the aggregation."""
        if kind_of(node) == "PreciseTimestampConversion":
            # (conversion of end to a number) - 1, converted back
            end = next((part for part in children(children(node.child())[0])), None) if children(node.child()) else None
            whole = self._up(end) if end is not None and kind_of(end) == "GetStructField" else None
            return Column("window.time", "timestamp") if whole == Column("window.end", "timestamp") else None
        if kind_of(node.child()) != "AttributeReference":
            return None
        whole = self._result(node.child())
        if not isinstance(whole, Column) or whole.type != WINDOW:
            return None
        return Column(f"window.{_FIELDS[node.ordinal()]}", "timestamp")

    def _column(self, attribute: JavaObject) -> Expression:
        """The meaning of a column below the aggregation."""
        identity = id_of(attribute)
        if identity in self._below.windows:
            raise UnsupportedQuery(
                f"The window {attribute.name()} is used inside an expression below the aggregation.",
                "Use it as a grouping key only.",
            )
        alias = self._below.definitions.get(identity)
        if alias is not None:
            return self._down(alias.child())
        name = self._source.names.get(identity, str(attribute.name()))
        if name in self._source.computed or not is_known(type_of(attribute)):
            return self._projected(attribute)
        self._check_declared((name,))
        return Column(name, type_of(attribute))

    def _check_declared(self, names: Sequence[str]) -> None:
        declared = {field.name for field in self._stream.columns}
        for name in names:
            if name not in declared:
                raise UnsupportedQuery(
                    f"{name} is no column of {self._stream.name}, but a hidden one of its source.",
                    "Use the columns of the stream.",
                )

    def _unqualified(self, expression: JavaObject) -> JavaObject:
        """The expression over columns by their names in the stream alone, so that equal expressions print alike."""
        named = []
        for column in references(expression):
            if name := self._source.names.get(id_of(column)):
                named.append(self._catalyst.alias(self._catalyst.named(column, name), name, column))
        return self._catalyst.substitute(expression, named)

    def _projected(self, expression: JavaObject) -> Expression:
        """A `Foreign`, over the stream's own columns."""
        if not is_known(type_of(expression)):
            raise UnsupportedQuery(
                f"`{text_of(expression)}` is a {type_of(expression)}, which is planned, not answered yet.",
                "Cast it to double, bigint or string.",
            )
        for layer in self._below.layers:
            expression = self._catalyst.substitute(expression, layer)
        projected = project(self._catalyst, self._unqualified(expression))
        self._check_declared(projected.value.columns)
        self._foreigns.setdefault(projected.value.key, projected)
        return projected.value


def _foreign_nodes(query: Query) -> list[Foreign]:
    found: list[Foreign] = []
    stack: list[Expression | None] = [query.where, *query.keys]
    for aggregate in query.aggregates:
        stack += [aggregate.argument, aggregate.filter]
    while stack:
        node = stack.pop()
        if isinstance(node, Foreign):
            found.append(node)
        elif node is not None and not isinstance(node, Column | Literal):
            stack.extend(node.args)
    return found
