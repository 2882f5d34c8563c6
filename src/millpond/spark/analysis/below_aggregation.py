"""Translates the part of an analysed plan below its aggregation: columns, conditions, event time.

For queries without an aggregation and sides of joins this is the complete reader. `extract.Reader` reads what is above
an aggregation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.expressions import Column, Expression, call, literal, may_raise
from millpond.model.query import Named, Query, named_once
from millpond.model.selection import AnyQuery, Selection, foreign_keys
from millpond.model.types import WINDOW, is_known, is_storable
from millpond.model.windows import Session, Sliding, Window
from millpond.plan.groups.distinct import Timing, distinct_rows
from millpond.spark.analysis.aggregation_input import InputPlan, timing_of
from millpond.spark.analysis.expressions import Translator, all_true, raises_as
from millpond.spark.analysis.grouping.storable_keys import compared_value
from millpond.spark.analysis.grouping.window_rows import ungrouped_window_error
from millpond.spark.analysis.input_streams import QueryInput
from millpond.spark.analysis.query_terms import Extraction
from millpond.spark.analysis.steps.group_by_window import null_rejected_columns, unqualified
from millpond.spark.analysis.steps.inputs import StepContext
from millpond.spark.analysis.steps.repeats_below import without_repeats
from millpond.spark.catalyst.cures import cast_cure
from millpond.spark.catalyst.private_names import (
    JavaObject,
    delay_ms,
    id_of,
    kind_of,
    text_of,
    type_of,
)
from millpond.spark.catalyst.spark_expressions import Projected, project


class InputTranslator:
    """Translates the part of a plan below its aggregation: `source` is the input, `input_plan` what was found above it.

    `translate` translates an expression over the columns of the input.
    """

    def __init__(self, context: StepContext, source: QueryInput, input_plan: InputPlan) -> None:
        self._catalyst, self._terms = context.catalyst, context.terms
        self.source, self.stream, self.input_plan = source, source.stream, input_plan
        self.bound = partial(source.bound, input_plan)
        self.translate = Translator(
            context.catalyst, self._column, self._projected, self.bound, structs=bool(source.stream.upstreams)
        )
        self._foreigns: dict[str, Projected] = {}
        self._columns: dict[int, Expression] = {}

    def _event_time_and_delay(self, time: JavaObject) -> tuple[Column, int]:
        """The event time as a column of the stream, and its delay in microseconds."""
        if isinstance(time, Column):
            return time, 0
        declared = not self.stream.upstreams or self.input_plan.watermark is not None
        delay = delay_ms(time) if declared else 0  # no row is late: the rows of a closed window are complete
        if delay is None:
            raise QueryTypeError(
                f"The event time {time.name()} has no watermark, so no window would ever end.",
                f"Write FROM STREAM {self.stream.name} WATERMARK {time.name()} DELAY OF INTERVAL 10 SECONDS."
                if self._terms.text
                else f"Add .withWatermark('{time.name()}', '10 seconds') before groupBy.",
            )
        return self.event_time(time), delay * 1000

    def event_time(self, time: JavaObject) -> Column:
        """The column of the stream that an event time is.

        Raises:
            UnsupportedQuery: it is computed from rows of another query.
        """
        event_time = self._column(time)
        if not isinstance(event_time, Column):
            raise UnsupportedQuery(
                f"The event time {time.name()} is computed from rows of {self.stream.name}, which is not supported.",
                f"Compute it in {self.stream.name}, or use a time of its windows.",
            )
        return event_time

    def nullable_times(self) -> frozenset[str]:
        """The times of one side of an outer join, unless the query leaves out the rows in which they are NULL."""
        nullable = self.source.nullable_times
        return nullable - null_rejected_columns(self.where()) if nullable else nullable

    def check_never_null(self, time: Column) -> None:
        """Refuse rows in the order of a time that they may lack.

        Raises:
            UnsupportedQuery: the time is that of one side of an outer join.
        """
        if time.name in self.nullable_times():
            raise UnsupportedQuery(
                f"Rows of an outer join are ordered by {time.name}, which is NULL in rows without a partner, and these "
                "rows would be lost.",
                f"Order by the event time of the other side, or leave out these rows: WHERE {time.name} IS NOT NULL.",
            )

    def select(self, outputs: list[JavaObject]) -> Extraction:
        """The stateless query for a plan without an aggregation."""
        terms = self._terms
        if terms.window is not None and not isinstance(terms.window, Sliding):
            raise ungrouped_window_error()
        if terms.serve:
            raise UnsupportedQuery(
                f"{terms.name} has no key, so it has no latest row per key to serve.", "Group it by a key and a window."
            )
        named = named_once([Named(name, self._output_expression(output)) for name, output in terms.named(outputs)])
        found = self._extracted(Selection(terms.name, self.stream.name, named, self.where(), terms.sink, terms.text))
        return found._replace(timing=timing_of(self.input_plan, self.stream, self._column))

    def distinct(self, outputs: list[JavaObject]) -> Extraction:
        """The query for a plan without an aggregation that removes repeated events."""
        plan, repeats = self.input_plan, self.input_plan.repeats
        assert repeats is not None
        found = self.select(outputs)
        selection = found.query
        assert isinstance(selection, Selection)
        time = plan.time_of_repeats()
        timing = None if time is None else found.timing
        if time is not None and type_of(time) != WINDOW:
            timing = Timing(*self._event_time_and_delay(time))
            if repeats.keeps is not None:
                self.check_never_null(timing.event_time)
            elif timing.event_time.name in self.nullable_times():
                timing = None  # rows without it are compared, too
        keys = [self.translate(compared_value(self._catalyst, key)) for key in repeats.keys]
        above = [self.translate(condition) for condition in plan.above_repeats()]
        selection = msgspec.structs.replace(selection, where=self.where(until=repeats.below))
        made = distinct_rows(
            selection, keys, timing, within=repeats.within, above=above, keeps=repeats.keeps, ttl_us=self._terms.ttl_us
        )
        return self._extracted(made)

    def extraction(self, query: AnyQuery) -> Extraction:
        """The query, with those of its expressions that Spark projects."""
        if isinstance(query, Query):
            query = without_repeats(self.input_plan, query, self.stream, self._column)
        return self._extracted(query)

    def _extracted(self, query: AnyQuery) -> Extraction:
        used = foreign_keys(query)
        foreigns = {key: self._foreigns[key] for key in sorted(used & self._foreigns.keys())}
        return Extraction(query, self.stream, foreigns, self.source.derived)

    def _output_expression(self, column: JavaObject) -> Expression:
        """Translate an output column; values of types that the model has no operators for pass through unchanged."""
        if is_known(type_of(column)):
            return self.translate(column)
        if not is_storable(type_of(column)):
            raise UnsupportedQuery(
                f"The column {column.name()} has the type {type_of(column)}, which is not supported.",
                cast_cure(type_of(column)),
            )
        if kind_of(column) == "Alias":
            return self._output_expression(column.child())
        if kind_of(column) == "AttributeReference":
            alias = self.input_plan.definitions.get(id_of(column))
            if alias is not None:
                return self._output_expression(alias)
            name = self.source.names.get(id_of(column), str(column.name()))
            if name not in self.source.computed:
                self._check_declared((name,))
                return Column(name, type_of(column))
        return self._projected(column, passing=True)

    def where(
        self, window: Window | None = None, event_time: Column | None = None, until: int | None = None
    ) -> Expression | None:
        """The conditions on events, those of the steps from `until` on left out.

        A join adds the condition that its key does not raise and, if it is an inner join, that there is a partner.
        Sessions add the condition that the gap is positive, as Spark's own filter does.
        """
        source = self.source
        parts = [] if source.passes_filters is None else [self._projected(source.passes_filters)]
        for index, step in enumerate(self.input_plan.steps[:until]):
            if index not in source.markers:
                parts.append(self.translate(step.condition))
                continue
            keys = [self.translate(probe) for probe in source.probes[index]]
            if step.generate is not None:
                parts += [raises_as(key) for key in keys]
            else:
                parts += [call("ran", (key,), "boolean") for key in keys if may_raise(key)]
            parts += [Column(source.markers[index], "boolean")] if step.inner else []
        generators = [index for index, step in enumerate(self.input_plan.steps) if step.generate is not None]
        if len(generators) > 1 and not any(self.input_plan.steps[index].inner for index in generators):
            # dead if the event makes too many rows
            parts.append(raises_as(Column(source.markers[generators[-1]], "boolean")))
        if isinstance(window, Session) and window.own_end is not None and event_time is not None:
            parts.append(call("lt", (event_time, window.own_end), "boolean"))
        return all_true(parts)

    def _column(self, attribute: JavaObject) -> Expression:
        """Translate a column below the aggregation."""
        identity = id_of(attribute)
        if identity in self.input_plan.windows:
            raise UnsupportedQuery(
                f"The window {attribute.name()} is used inside an expression below the aggregation.",
                "Use it as a grouping key only.",
            )
        if self.input_plan.repeats is not None and identity == self.input_plan.repeats.rank:
            return literal(1, "int")
        if identity in self.source.times:
            return Column(self.source.times[identity], "timestamp")
        alias = self.input_plan.definitions.get(identity)
        if alias is not None:
            return self._columns.get(identity) or self._columns.setdefault(identity, self.translate(alias.child()))
        name = self.source.names.get(identity, str(attribute.name()))
        if name in self.source.computed or not is_storable(type_of(attribute)):
            return self._projected(attribute)
        self._check_declared((name,))
        return Column(name, type_of(attribute))

    def _check_declared(self, names: Sequence[str]) -> None:
        declared = {field.name for field in self.stream.columns}
        for name in names:
            if name not in declared:
                what = f"{name} is no column of {self.stream.name}, but a hidden one of its source."
                raise UnsupportedQuery(what, "Use the columns of the stream.")

    def _projected(self, expression: JavaObject, *, passing: bool = False) -> Expression:
        """A `Foreign` over the stream's own columns; `passing` says that its values are emitted unchanged."""
        if not (passing or is_storable(type_of(expression))):
            raise UnsupportedQuery(
                f"`{text_of(expression)}` has the type {type_of(expression)}, which is not supported.",
                "Cast it to double, bigint or string.",
            )
        for layer in self.input_plan.layers:
            expression = self._catalyst.substitute(expression, layer)
        projected = project(self._catalyst, unqualified(self._catalyst, self.source.names, expression))
        self._check_declared(projected.value.columns)
        return self._register_foreign(projected)

    def _register_foreign(self, projected: Projected) -> Expression:
        self._foreigns.setdefault(projected.value.key, projected)
        return projected.value
