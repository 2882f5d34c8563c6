"""Translates an analysed Spark plan to a frozen `Query`, its `Stream`, and the expressions that Spark must project.

The plan is read from the top: HAVING and output columns, one `Aggregate`, one window, filters and derived columns, and
one streaming source. A plan without an aggregation is a stateless query. Spark has already resolved names, types and
casts. Any other part of a plan is refused by name.

A watermark belongs to the stream. A watermark that is declared above a filter is treated as if it were below, so events
that the filter drops also advance it.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from millpond.errors import UnsupportedQuery
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Call, Column, Expression, Literal, conjunction, literal, struct_of
from millpond.model.functions import UserFunction
from millpond.model.query import GroupingSet, Named, Query, named_once
from millpond.model.types import WINDOW, has_floats, has_json
from millpond.model.windows import NEVER_LATE_US, RUNNING, Framed, Pattern, Session, Sliced, Sliding, Window
from millpond.plan.upstream.upstream_joins import WINDOW_OF
from millpond.spark.analysis.aggregates import aggregate_of
from millpond.spark.analysis.aggregation_input import InputPlan, read_input_plan
from millpond.spark.analysis.below_aggregation import InputTranslator
from millpond.spark.analysis.expressions import Translator, all_true
from millpond.spark.analysis.frames import Frames
from millpond.spark.analysis.grouping.calendar_keys import calendar_key, of_start
from millpond.spark.analysis.grouping.grouping_sets import Sets, by_set, check_column_of_sets, grouping_sets, sets_of
from millpond.spark.analysis.grouping.keys import check_key, key_of
from millpond.spark.analysis.grouping.pivots import flattened, is_pivot
from millpond.spark.analysis.grouping.row_patterns import PatternNote, pattern_of, with_matched
from millpond.spark.analysis.grouping.window_rows import check_grouped
from millpond.spark.analysis.input_streams import QueryInput
from millpond.spark.analysis.joins.rows_above import RowsAbove, unnested_above
from millpond.spark.analysis.live_parameters import clock_of
from millpond.spark.analysis.query_terms import Extraction
from millpond.spark.analysis.result_expressions import (
    TableAbove,
    check_window_time,
    inlined,
    projected_above,
    with_bounds,
)
from millpond.spark.analysis.steps.group_by_window import grouped_rows, has_windows, row_column
from millpond.spark.analysis.steps.inputs import StepContext
from millpond.spark.analysis.steps.repeats_below import RepeatsBelow
from millpond.spark.analysis.steps.step_boundaries import (
    makes_rows_of_results,
    output_ids,
    referenced_ids,
    repeats_below_rows,
    streaming_child,
)
from millpond.spark.catalyst.cures import CLAUSES, without_time
from millpond.spark.catalyst.private_names import (
    JavaObject,
    children,
    id_of,
    items,
    kind_of,
    outputs,
    references,
    timed_column,
    type_of,
    window_mark,
)

_FIELDS = ("start", "end")
NO_TIME = Column("", "timestamp")
"""The event time of a query that needs none."""


def extract_query(context: StepContext, plan: JavaObject) -> Extraction:
    """Read the analysed plan of a streaming DataFrame that was not started.

    Raises:
        UnsupportedQuery: this version does not support the plan's shape or an expression in it.
        QueryTypeError: it has no watermark, an input is not a stream, or a type is wrong.
    """
    whole, catalyst = plan, context.catalyst
    above: list[JavaObject] = []
    while kind_of(plan) in ("Project", "Filter", "SubqueryAlias") or makes_rows_of_results(plan):
        above.append(plan)
        plan = streaming_child(plan)
    if kind_of(plan) != "Aggregate":
        if kind_of(plan) in CLAUSES:
            what, cure = CLAUSES[kind_of(plan)]
            raise UnsupportedQuery(f"The query ends in {what}, which is not supported.", cure)
        if (repeats := repeats_below_rows(whole)) is not None:
            return _with_rows_of_tables(context, *repeats)
        input_plan = read_input_plan(catalyst, whole, emitted=True)
        source = context.source(input_plan, output_ids(whole), timed=input_plan.time_of_repeats() is not None)
        reader = InputTranslator(context, source, input_plan)
        return (reader.select if input_plan.repeats is None else reader.distinct)(outputs(whole))
    if is_pivot(plan):
        plan, above = flattened(catalyst, plan, above)
    sets = sets_of(plan)
    input_plan = read_input_plan(catalyst, sets.below)
    if input_plan.repeats is not None:
        with suppress(RepeatsBelow):
            if not input_plan.is_step and (input_plan.repeats.rank is None or input_plan.keeps_one):
                return Reader(context, context.source(input_plan, ()), input_plan).read(plan, above, sets)
        input_plan = read_input_plan(catalyst, sets.below, cut_at_repeats=True)
    needed = set[int]()
    if input_plan.is_step:  # only inner queries leave columns out
        needed = referenced_ids([plan]) if sets.id is None else output_ids(sets.below)
    return Reader(context, context.source(input_plan, needed), input_plan).read(plan, above, sets)


def _with_rows_of_tables(context: StepContext, node: JavaObject, above: list[JavaObject]) -> Extraction:
    """The query of the rows of `node`, which removes repeated events, joined with tables by the nodes `above`."""
    input_plan = read_input_plan(context.catalyst, node, emitted=True)
    source = context.source(input_plan, output_ids(node), timed=input_plan.time_of_repeats() is not None)
    columns = {id_of(column): f"c{place}" for place, column in enumerate(outputs(node))}
    lower = context._replace(terms=context.terms._replace(columns=columns))
    found = InputTranslator(lower, source, input_plan).distinct(outputs(node))
    return Reader(context, source, input_plan).rows_above(found, outputs(node), above)


class Reader(InputTranslator):
    """Reads a plan with an aggregation; `above` refers to the part above it."""

    def __init__(self, context: StepContext, source: QueryInput, input_plan: InputPlan) -> None:
        super().__init__(context, source, input_plan)
        self._functions = context.functions
        self._called: set[UserFunction] = set()
        self._scope: dict[int, Expression] = {}
        self._defined: dict[int, JavaObject] = {}
        self._event: list[Expression] | None = None
        self._event_time: Expression | None = None
        self._sets = Sets(None)
        self._grouping: tuple[GroupingSet, ...] = ()
        self._pattern: Pattern | None = None
        self._row_parts: dict[int, str] = {}
        self._date: JavaObject | None = None
        self._tables: dict[int, TableAbove] = {}
        self._unnest: Expression | None = None
        self._up = Translator(context.catalyst, self._result, self._above, self._field, rounding=True, structs=True)

    def read(self, plan: JavaObject, above: list[JavaObject], sets: Sets) -> Extraction:
        self._sets = sets
        groups, calls, results = self._catalyst.aggregation(plan)
        time, window = self._window([sets.input(group) for group in groups], plan.child())
        keys = self._keys(groups)
        aggregates = self._aggregates(calls)
        having, output = self._finish(results, above)
        return self._query(time, window, keys, aggregates, having, output)

    def frames(self, frames: Frames, results: list[JavaObject], above: list[JavaObject]) -> Extraction:
        """The query of a `Window` node, which has one row per event; `results` are its columns."""
        if self.input_plan.windows:
            raise UnsupportedQuery("The query has a window and OVER (…).", "Make them two queries.")
        keys = self._keys(frames.keys)
        aggregates: list[Aggregate] = []
        for call_ in frames.calls:
            self._scope[call_.identity] = frames.value(call_, self._aggregate, self.translate, aggregates)
        time, _ = self._event_time_and_delay(frames.time)
        self.check_never_null(time)
        self._event, self._event_time = [], time
        for key in frames.keys:
            # the event keeps its own zero and NaN, the key has only one of each
            if has_floats(type_of(key)):
                self._scope.pop(id_of(key))
        having, output = self._finish(results, above)
        return self._query(frames.time, frames.window, keys, tuple(aggregates), having, output)

    def rows_above(self, found: Extraction, columns: list[JavaObject], above: list[JavaObject]) -> Extraction:
        """The query of the rows of `found`, whose outputs are `columns`, with the nodes `above` them."""
        query = found.query
        assert isinstance(query, Query)
        self._scope |= {id_of(one): item.expression for one, item in zip(columns, query.output, strict=True)}
        having, output = self._finish(columns, above)
        having = conjunction([part for part in (query.having, having) if part is not None])
        unnest = self._unnest or msgspec.UNSET
        made = self._extracted(msgspec.structs.replace(query, output=output, having=having, unnest=unnest))
        return made._replace(foreigns=found.foreigns | made.foreigns, timing=found.timing)

    def _query(
        self, time: JavaObject, window: Window, keys: tuple[Expression, ...], aggregates: tuple[Aggregate, ...],
        having: Expression | None, output: tuple[Named, ...],
    ) -> Extraction:  # fmt: skip
        (event_time, delay_us), terms = self._event_time_and_delay(time), self._terms
        if self._event is None:
            check_window_time(window, [*(item.expression for item in output), *([] if having is None else [having])])
        query = Query(
            name=terms.name,
            stream=self.stream.name,
            event_time=event_time.name,
            delay_us=NEVER_LATE_US if window == RUNNING else delay_us,
            window=window,
            keys=keys,
            aggregates=aggregates,
            output=output,
            where=self.where(window, event_time),
            having=having,
            sink=terms.sink,
            serve=terms.serve,
            text=terms.text,
            functions=tuple(sorted(self._called, key=lambda made: made.function)) or msgspec.UNSET,
            event=msgspec.UNSET if self._event is None else tuple(self._event),
            sets=self._grouping or msgspec.UNSET,
            unnest=self._unnest or msgspec.UNSET,
        )
        return self.extraction(query)

    def _window(self, groups: list[JavaObject], below: JavaObject) -> tuple[JavaObject, Window]:
        """The event time and window of a grouping; without a window the event time is the column with a watermark."""
        for group in groups:
            if (found := self.input_plan.window_part(group)) is not None:
                if isinstance(kind := found.window.kind, PatternNote):
                    kind = self._pattern = pattern_of(kind, self.translate)
                kind = self._terms.window or kind if isinstance(kind, Sliding) else kind
                check_grouped(kind, [part.field for part in map(self.input_plan.window_part, groups) if part])
                whole = isinstance(kind, Sliced | Session | Framed)
                return found.window.time, kind if whole else Session(0, self.translate(kind))
        if self.input_plan.windows:
            raise UnsupportedQuery("The query has a window that it does not group by.", "Group by it, or leave it out.")
        names = {id_of(one): row_column(one, self.input_plan, self.source) for one in groups}
        final = not self._terms.updates
        if (rows := grouped_rows(names, self.source, self.nullable_times(), final=final)) is not None:
            self._row_parts = rows.parts
            return Column(rows.event_time, "timestamp"), rows.window
        time = timed_column(outputs(below))
        if time is None or has_windows(self.stream.steps):
            if self._terms.updates:
                return NO_TIME, RUNNING  # no event is late for it, and every event is in its only window
            raise without_time(self.stream, self._terms.text)
        if self._terms.updates or (key := calendar_key(self._catalyst, self.input_plan, groups)) is None:
            return time, RUNNING
        self._row_parts, self._date = {key.group: "window.start"}, key.value
        return key.time, key.window

    def _keys(self, groups: list[JavaObject]) -> tuple[Expression, ...]:
        keys, places = list[Expression](), dict[int, int]()
        window: int | None = None
        for group in groups:
            identity, below = id_of(group), self._sets.input(group)
            if identity == self._sets.id:
                continue
            part = self.input_plan.window_part(below)
            if part is not None:
                kind, window = WINDOW if part.field is None else "timestamp", identity
                self._scope[identity] = Column("window" if part.field is None else f"window.{part.field}", kind)
                continue
            if (name := self._row_parts.get(id_of(below))) is not None:
                window = identity
                at = Column(name, WINDOW if name == "window" else "timestamp")
                date = self._date
                self._scope[identity] = at if date is None else self._register_foreign(of_start(self._catalyst, date))
                continue
            check_key(group, self._terms.name if self._terms.serve else None)
            before = len(keys)
            self._scope[identity] = key_of(self._key(below), keys)
            if self._sets.id is not None:
                places[identity] = check_column_of_sets(group, before, len(keys))
        if self._sets.id is not None:
            self._scope[self._sets.id] = Column(f"key:{len(keys)}", "bigint")
            keys.append(literal(0, "bigint"))
            self._grouping = grouping_sets(self._catalyst, self._sets, places, window)
        return tuple(keys)

    def _key(self, node: JavaObject) -> Expression:
        """The value of a key; a window of rows is made of its bounds."""
        name = row_column(node, self.input_plan, self.source) if type_of(node) == WINDOW else None
        if name is None:
            return self.translate(node)
        if window_mark(node) == "session":
            raise UnsupportedQuery(
                f"Rows are grouped by {name}, a session, which Spark would merge with sessions that overlap it.",
                f"Group by a window over it, such as window({name}, '1 hour'), which makes other groups.",
            )
        return struct_of([Column(f"{name}.{field}", "timestamp") for field in _FIELDS], WINDOW)

    def _aggregates(self, calls: list[JavaObject]) -> tuple[Aggregate, ...]:
        found: list[Aggregate] = []
        for node in calls:
            aggregate = self._aggregate(node)
            if aggregate not in found:
                found.append(aggregate)
            self._scope[id_of(node.resultAttribute())] = Column(f"agg:{found.index(aggregate)}", aggregate.type)
        return tuple(found)

    def _aggregate(self, node: JavaObject) -> Aggregate:
        own = self._functions.aggregate(node, self.translate)
        if own is not None:
            self._called.add(own[1])
        found = aggregate_of(self._catalyst, node, self.translate) if own is None else own[0]
        return with_matched(found, self._pattern)

    def _finish(
        self, results: list[JavaObject], above: list[JavaObject]
    ) -> tuple[Expression | None, tuple[Named, ...]]:
        """HAVING and output, translated from the columns of the aggregation upwards."""
        having, columns = list[Expression](), results
        self._define(results)
        needed = referenced_ids(above)
        if self._terms.columns is not None:
            needed |= {*self._terms.columns}
        elif above:
            needed |= output_ids(above[0])
        rows = RowsAbove(self._catalyst, self._inlined, needed, self._tables)
        for node in reversed(above):
            condition = node.condition() if kind_of(node) == "Filter" else None
            if kind_of(node) == "Project":
                columns = items(node.projectList())
                self._define(columns)
            elif kind_of(node) == "Generate":
                rows.generate(node)
                columns = outputs(node)
            elif kind_of(node) == "Join":
                condition, exists = rows.join(node)
                self._define(exists)
                columns = outputs(node)
            if condition is not None:
                rest = rows.filtered(condition)
                having += [] if rest is None else [with_bounds(self._up(rest))]
        named: list[Named] = []
        of_rows: list[JavaObject] = []
        for name, output in self._terms.named(columns):
            if rows.reads(output):
                named.append(Named(name, Column(f"each.{len(of_rows)}", type_of(output))))
                of_rows.append(output)
            else:
                named.append(Named(name, with_bounds(self._result(output))))
        if rows.text:
            self._unnest = self._unnested(rows, of_rows)
        for item in named:
            if self._terms.serve and not has_json(item.expression.type):
                raise UnsupportedQuery(
                    f"{self._terms.name} is served as JSON, which cannot represent its column {item.name} of type "
                    f"{item.expression.type}.",
                    "Select parts of a map, or the base64 of bytes.",
                )
        return all_true(having), named_once(named)

    def _unnested(self, rows: RowsAbove, of_rows: list[JavaObject]) -> Expression:
        """The array with a struct of some outputs for each row of a result."""
        if self._terms.serve:
            raise UnsupportedQuery(
                f"{self._terms.name} joins results with a table, or explodes them, so a key may have several rows, and "
                "none of them can be served.",
                "Join the table below the aggregation, or leave 'serve' out.",
            )
        return self._register_foreign(unnested_above(self._catalyst, rows, of_rows, self._result, self._tables))

    def _inlined(self, expression: JavaObject) -> JavaObject:
        return inlined(self._catalyst, expression, self._defined)

    def _define(self, columns: list[JavaObject]) -> None:
        # Spark may name the result of an aggregate by an alias with the same id, which would be defined by itself.
        named = [column for column in columns if kind_of(column) == "Alias" and id_of(column) not in self._scope]
        self._defined |= {id_of(column): column.child() for column in named}

    def _result(self, attribute: JavaObject) -> Expression:
        """Translate a column above the aggregation."""
        identity = id_of(attribute)
        if identity not in self._scope:
            if self._event is not None and identity not in self._defined:
                self._scope[identity] = self._of_event(attribute, self._event)
            else:
                self._scope[identity] = self._up(self._defined[identity])
        return self._scope[identity]

    def _above(self, node: JavaObject) -> Expression:
        """Translate an expression over results that only Spark evaluates."""
        expression = self._inlined(node)
        if (clock := clock_of(self._catalyst, expression)) is not None:
            return clock.parameter
        if {id_of(one) for one in references(expression)} == {self._sets.id}:
            return by_set(self._catalyst, self._sets, expression, self._result(self._sets.attribute))
        return self._register_foreign(projected_above(self._catalyst, node, expression, self._result, self._tables))

    def _of_event(self, attribute: JavaObject, event_values: list[Expression]) -> Expression:
        """Translate a column of the event that a row belongs to."""
        value = self.translate(attribute)
        if isinstance(value, Literal):
            return value
        if value == self._event_time:
            return Column("window.time", "timestamp")
        if value not in event_values:
            event_values.append(value)
        return Column(f"event:{event_values.index(value)}", value.type)

    def _field(self, node: JavaObject) -> Expression | None:
        """Translate `window.start`, `window.end` and `window_time(window)` above the aggregation; else None."""
        if kind_of(node) == "PreciseTimestampConversion":
            # (conversion of end to a number) - 1, converted back
            end = next((part for part in children(children(node.child())[0])), None) if children(node.child()) else None
            whole = self._up(end) if end is not None and kind_of(end) == "GetStructField" else None
            return Column("window.time", "timestamp") if whole == Column("window.end", "timestamp") else None
        if kind_of(node.child()) != "AttributeReference":
            return None
        whole = self._result(node.child())
        if isinstance(whole, Call) and whole.op == WINDOW_OF:
            return whole.args[int(node.ordinal())]
        if not isinstance(whole, Column) or whole.type != WINDOW:
            return None
        return Column(f"window.{_FIELDS[node.ordinal()]}", "timestamp")
