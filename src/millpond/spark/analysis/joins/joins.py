"""Translates a plan whose last step is a join of two streams to a frozen `Join`.

Each side is read like a stateless query. In the condition, equalities between the sides become keys, comparisons of the
event times become bounds, and an equality of two windows becomes the window. Other conditions are evaluated for each
pair.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.expressions import Call, Column, Expression, call, conjuncts_of, foreigns_in, struct_of
from millpond.model.join import ANTI, LEFT, RIGHT, SEMI, Join, Side, Within
from millpond.model.query import Named, named_once
from millpond.model.types import KEY_TYPES, WINDOW, is_known, is_storable
from millpond.model.windows import Sliding
from millpond.plan.groups.distinct import Timing
from millpond.plan.upstream.upstream_joins import made_window
from millpond.spark.analysis.aggregation_input import WindowPart, read_input_plan, timing_of
from millpond.spark.analysis.below_aggregation import InputTranslator
from millpond.spark.analysis.expressions import Translator, all_true
from millpond.spark.analysis.joins.bounds import Bound, bound_of
from millpond.spark.analysis.joins.kinds import join_kind
from millpond.spark.analysis.joins.rows_above import RowsAbove, unnested_above
from millpond.spark.analysis.joins.ttl import Ttl
from millpond.spark.analysis.query_terms import Extraction
from millpond.spark.analysis.result_expressions import TableAbove, null_for_null, projected_above
from millpond.spark.analysis.steps.inputs import StepContext
from millpond.spark.analysis.upstream.sides import RowsSide, same_window
from millpond.spark.catalyst.cures import cast_cure
from millpond.spark.catalyst.private_names import (
    JavaObject,
    children,
    conjuncts,
    delay_ms,
    id_of,
    items,
    kind_of,
    optional,
    outputs,
    references,
    text_of,
    type_of,
)
from millpond.spark.catalyst.spark_expressions import Projected

_FIELDS = ("start", "end")
MOST_PAIRS = 10_000_000
"""The most pairs that a join without equal keys may evaluate in one epoch."""


class JoinReader:
    """Reads one plan; `above` are the nodes above the join, from the lowest up."""

    def __init__(self, context: StepContext, join: JavaObject, needed: Collection[int]) -> None:
        catalyst, terms = context.catalyst, context.terms
        self._catalyst, self._terms, self._join = catalyst, terms, join
        self._kind = join_kind(join, by_text=bool(terms.text))
        self._sides: dict[str, InputTranslator] = {}
        self._rows: dict[str, RowsSide] = {}
        self._owned: dict[int, str] = {}
        for side, plan in ((LEFT, join.left()), (RIGHT, join.right())):
            input_plan = read_input_plan(catalyst, plan, cut_at_repeats=True)
            if input_plan.repeats is not None:
                raise UnsupportedQuery(
                    f"{terms.name} is a join, and leaves repeated events out, which is not supported.",
                    "Join all events, and leave repeated rows out in a query without a join.",
                )
            found = context.source(input_plan, needed)
            self._sides[side] = InputTranslator(context, found, input_plan)
            columns = outputs(plan)
            if found.upstreams:
                self._rows[side] = RowsSide(catalyst, self._sides[side], columns)
            self._owned |= {id_of(column): side for column in columns}
        self._times: dict[str, JavaObject] = {}
        self._values: dict[str, list[Expression]] = {LEFT: [], RIGHT: []}
        self._where: dict[str, list[Expression]] = {LEFT: [], RIGHT: []}
        self._starts: list[Expression] = []
        self._layers: list[list[JavaObject]] = []
        self._extended = False
        self._foreigns: dict[str, Projected] = {}
        self._tables: dict[int, TableAbove] = {}
        self._needed = needed
        self._ttl = Ttl(terms)
        self._over = Translator(catalyst, self._resolved, self._computed, self._field, rounding=True)

    def read(self, outputs: list[JavaObject], above: list[JavaObject]) -> Extraction:
        terms = self._terms
        if terms.serve:
            raise UnsupportedQuery(f"The join {terms.name} has no latest row per key to serve.", "Leave out 'serve'.")
        pair_conditions = [] if (condition := optional(self._join.condition())) is None else conjuncts(condition)
        later: list[JavaObject] = []
        rows = RowsAbove(self._catalyst, self._lowered, self._needed, self._tables)
        for node in above:
            conditions = conjuncts(node.condition()) if kind_of(node) == "Filter" else []
            if kind_of(node) == "Project":
                aliases = [column for column in items(node.projectList()) if kind_of(column) == "Alias"]
                self._layers.append(aliases)
            elif kind_of(node) == "Generate":
                rows.generate(node)
            elif kind_of(node) == "Join":
                condition, aliases = rows.join(node)
                self._layers.append(aliases)
                conditions = [] if condition is None else [condition]
            for part in (rows.filtered(part) for part in conditions):
                if part is not None:
                    # For an inner join, a WHERE condition on rows is a condition on pairs.
                    (pair_conditions if self._kind == "inner" else later).append(self._lowered(part))
        when, keys, rest = self._separated(pair_conditions)
        self._when = when
        conditions = [self._over(part) for part in rest]
        self._extended = self._kind != "inner"
        # Of an inner join, a condition on pairs that needs Spark is one on rows, as in stored queries.
        on_rows = [] if self._extended else [part for part in conditions if foreigns_in(part)]
        condition = all_true([*self._starts, *(part for part in conditions if part not in on_rows)])
        having = all_true([*on_rows, *(self._over(part) for part in later)])
        shown = terms.named(outputs)
        of_rows = [column for _, column in shown if rows.reads(column)]
        named = [
            Named(name, Column(f"each.{of_rows.index(column)}", type_of(column))) if column in of_rows
            else Named(name, self._output(self._lowered(column))) for name, column in shown
        ]  # fmt: skip
        output = named_once(named)
        unnest = self._unnested(rows, of_rows) if rows.text else msgspec.UNSET
        made = [self._side(side, keys[i]) for i, side in enumerate((LEFT, RIGHT))]
        join = Join(
            terms.name, made[0], made[1], self._kind, when, output, condition, having, terms.sink, terms.text,
            msgspec.UNSET if keys[0] else MOST_PAIRS, self._ttl.used, unnest=unnest,
        )  # fmt: skip
        left, right = (self._sides[side].extraction(join) for side in (LEFT, RIGHT))
        foreigns = left.foreigns | right.foreigns | self._foreigns
        return left._replace(foreigns=foreigns, also=((right.stream, right.derived),))

    def _lowered(self, expression: JavaObject) -> JavaObject:
        """The expression over the columns of the two sides."""
        for layer in self._layers[::-1]:
            expression = self._catalyst.substitute(expression, layer)
        return expression

    def _separated(
        self, pair_conditions: list[JavaObject]
    ) -> tuple[Within | Sliding, tuple[list[Expression], list[Expression]], list[JavaObject]]:
        """The bounds or window, the keys of both sides, and the remaining conditions."""
        keys: tuple[list[Expression], list[Expression]] = ([], [])
        windows: list[Sliding] = []
        bounds: list[Bound] = []
        rest: list[JavaObject] = []
        timed: list[tuple[JavaObject, Bound]] = []
        for part in pair_conditions:
            pair = self._equated(part)
            window = None if pair is None else self._same_window(*pair)
            bound = None if pair is None else self._same_rows_window(part, *pair)
            if bound is not None:
                bounds.append(bound)
                continue
            bound = bound_of(self._catalyst, part, self._side_of_time, self._defined)
            if window is not None:
                windows.append(window)
            elif bound is not None:
                timed.append((part, bound))
            elif pair is not None and kind_of(part) == "EqualTo":
                for found, side, key in zip(keys, (LEFT, RIGHT), pair, strict=True):
                    found.append(self._key(side, key))
            elif not self._is_of_events(part):
                rest.append(part)
        if windows:
            # Within a window, a comparison of the times is an ordinary condition.
            shared = self._terms.window or windows[0]
            if not isinstance(shared, Sliding):
                raise UnsupportedQuery(
                    "Count windows, and windows that grow by steps, cannot be joined.", "Join in other windows of time."
                )
            return shared, keys, [*rest, *(part for part, _ in timed)]
        bounds += [bound for _, bound in timed]
        rest += [part for part, bound in timed if not bound.exact]
        return self._within(bounds), keys, rest

    def _is_of_events(self, part: JavaObject) -> bool:
        """Add a condition on one side's events to that side, so that fewer events are kept; False for a condition on
        pairs.
        """
        side = self._side_of(part)
        if side is None or self._preserves(side) or self._has_window(part):
            return False
        self._where[side].append(self._sides[side].translate(part))
        return True

    def _preserves(self, side: str) -> bool:
        """Whether an event of a side is emitted although it meets no condition of the join."""
        return self._kind in ("full", side) or (self._kind == ANTI and side == LEFT)

    def _has_window(self, expression: JavaObject) -> bool:
        """Whether an expression reads a window of a side."""
        return any(self._sides[self._owned[id_of(one)]].input_plan.window_part(one) for one in references(expression))

    def _equated(self, part: JavaObject) -> tuple[JavaObject, JavaObject] | None:
        """The left and the right part of an equality between the two sides; None for other conditions."""
        if kind_of(part) not in ("EqualTo", "EqualNullSafe"):
            return None
        by_side = {self._side_of(one): one for one in (part.left(), part.right())}
        return (by_side[LEFT], by_side[RIGHT]) if {LEFT, RIGHT} == by_side.keys() else None

    def _side_of(self, expression: JavaObject) -> str | None:
        """The only side whose columns an expression uses; None if there is no such side."""
        sides = {self._owned.get(id_of(column)) for column in references(expression)}
        return sides.pop() if len(sides) == 1 else None

    def _same_window(self, left: JavaObject, right: JavaObject) -> Sliding | None:
        """The common window, if both expressions are the complete window of their side, or the same bound of it."""
        if len(self._rows) == 1:
            return self._window_of_rows(left, right)
        parts = [self._sides[side].input_plan.window_part(one) for side, one in ((LEFT, left), (RIGHT, right))]
        first, second = parts
        if first is None or second is None or first.field != second.field:
            return None
        kinds = [part.window.kind for part in (first, second)]
        if not all(isinstance(kind, Sliding) for kind in kinds):
            raise UnsupportedQuery("A join on session windows is not supported.", "Join on window(time, size).")
        if kinds[0] != kinds[1]:
            raise UnsupportedQuery("The windows of both sides differ, so few are equal.", "Use the same window.")
        self._times = {LEFT: first.window.time, RIGHT: second.window.time}
        return kinds[0] if isinstance(kinds[0], Sliding) else None

    def _window_of_rows(self, left: JavaObject, right: JavaObject) -> Sliding | None:
        """The common window, if one side has rows with their complete window and the other is a stream with that
        window.
        """
        [(rows_side, rows)] = self._rows.items()
        mine, other = (left, right) if rows_side == LEFT else (right, left)
        reading = RIGHT if rows_side == LEFT else LEFT
        name, part = rows.window(mine), self._sides[reading].input_plan.window_part(other)
        if name is None or part is None or part.field is not None:
            return None
        kind = part.window.kind
        if not isinstance(kind, Sliding) or kind != rows.sliding or not kind.tumbling:
            raise UnsupportedQuery(
                f"Rows of {self._sides[rows_side].stream.name} have other windows than the stream, or these overlap.",
                f"Select the events that lie in a window: time >= {name}.start AND time < {name}.end.",
            )
        self._times[reading] = part.window.time
        rows.named_after_us(f"{name}.time")
        return kind

    def _same_rows_window(self, part: JavaObject, left: JavaObject, right: JavaObject) -> Bound | None:
        """The bound on the event times that follows from equal windows in the rows of both sides."""
        if len(self._rows) < 2 or kind_of(part) != "EqualTo":
            return None
        names = self._rows[LEFT].window(left), self._rows[RIGHT].window(right)
        if names[0] is None or names[1] is None:
            return None
        grids = self._rows[LEFT].sliding, self._rows[RIGHT].sliding
        if grids[0] and grids[1] and grids[0].size_us != grids[1].size_us:
            raise UnsupportedQuery("The windows of both sides differ, so none are equal.", "Use the same window.")
        bound = same_window(self._rows[LEFT], self._rows[RIGHT], (names[0], names[1]))
        if bound is not None and not bound.exact:
            starts = (self._value(side, Column(f"{name}.start", "timestamp"))
                      for side, name in zip((LEFT, RIGHT), names, strict=True))  # fmt: skip
            self._starts.append(call("eq", tuple(starts), "boolean"))
        return bound

    def _side_of_time(self, node: JavaObject) -> tuple[str, int] | None:
        """The side whose event time a column gives, or would give with a watermark."""
        side = self._side_of(node)
        if side in self._rows:
            after = self._rows[side].after_us(node)
            return None if after is None else (side, after)
        if side is None or kind_of(node) != "AttributeReference" or type_of(node) != "timestamp":
            return None
        if delay_ms(node) is None and (self._ttl.us is None or self._timing(side) is not None):
            return None
        known = self._times.setdefault(side, node)
        return (side, 0) if id_of(known) == id_of(node) else None

    def _defined(self, node: JavaObject) -> JavaObject:
        """The expression that a column of one side stands for; the node itself if it stands for none."""
        side = self._side_of(node)
        return node if side is None else self._sides[side].input_plan.unaliased(node)

    def _timing(self, side: str) -> Timing | None:
        """The event time and delay that a side declares, whether or not the condition uses them."""
        reader = self._sides[side]
        return timing_of(reader.input_plan, reader.stream, reader.translate)

    def _within(self, bounds: Sequence[Bound]) -> Within:
        lower = max((bound.lower_us for bound in bounds if bound.lower_us is not None), default=None)
        upper = min((bound.upper_us for bound in bounds if bound.upper_us is not None), default=None)
        if lower is None or upper is None:
            times = ", ".join(dict.fromkeys(time for rows in self._rows.values() for time in rows.times))
            lower, upper = self._ttl.bounds(lower, upper, times)
        if lower > upper:
            raise QueryTypeError("No two events can be as far apart as the join requires.", "Exchange the bounds.")
        return Within(lower, upper)

    def _key(self, side: str, key: JavaObject) -> Expression:
        if not is_known(type_of(key)):
            raise UnsupportedQuery(
                f"The key `{text_of(key)}` has the type {type_of(key)}, which is not supported.",
                f"Cast it to one of {', '.join(sorted(KEY_TYPES))} or a decimal.",
            )
        return self._sides[side].translate(key)

    def _side(self, side: str, keys: list[Expression]) -> Side:
        reader = self._sides[side]
        if side in self._rows:
            rows = self._rows[side]
            if rows.event_time is None and rows.times:  # there is no bound on it
                rows.named_after_us(rows.times[0])
            if rows.event_time is None:
                raise self._ttl.without_time(reader.stream.name)
            return self._of_side(side, keys, rows.event_time, rows.delay_us)
        time, timing = self._times.get(side), self._timing(side)
        if time is None:
            if timing is None:
                raise self._ttl.without_time(reader.stream.name)
            return self._of_side(side, keys, timing.event_time.name, timing.delay_us)
        delay, event_time = delay_ms(time), reader.event_time(time)
        delay_us = self._ttl.delay_us(reader.stream.name, str(time.name())) if delay is None else delay * 1000
        return self._of_side(side, keys, event_time.name, delay_us)

    def _of_side(self, side: str, keys: list[Expression], event_time: str, delay_us: int) -> Side:
        reader, values = self._sides[side], tuple(self._values[side])
        own = reader.where()
        where = all_true([*conjuncts_of(own), *self._where[side]])
        return Side(reader.stream.name, event_time, delay_us, tuple(keys), values, where)

    def _value(self, side: str, expression: Expression) -> Column:
        """The column of the joined rows that holds the value of an expression over one side's events."""
        values = self._values[side]
        if expression not in values:
            values.append(expression)
        return Column(f"{side}:{values.index(expression)}", expression.type)

    def _window(self, side: str, part: WindowPart) -> Column:
        if not isinstance(self._when, Sliding):
            raise UnsupportedQuery(
                "The join has a window, but not in its condition.",
                "Add ON a.w = b.w." if self._terms.text else "Add F.expr('a.w = b.w') to the condition.",
            )
        if part.field is None:
            return Column(f"{side}:window", WINDOW)
        return Column(f"{side}:window.{part.field}", "timestamp")

    def _resolved(self, attribute: JavaObject) -> Expression:
        """Translate a column of a side."""
        side = self._owned[id_of(attribute)]
        part = self._sides[side].input_plan.window_part(attribute)
        return self._value(side, self._sides[side].translate(attribute)) if part is None else self._window(side, part)

    def _field(self, node: JavaObject) -> Expression | None:
        """Translate `w.start` and `w.end`; None for other nodes."""
        side = self._side_of(node)
        if side in self._rows:
            return self._field_of_rows(side, node)
        part = None if side is None else self._sides[side].input_plan.window_part(node)
        return None if side is None or part is None else self._window(side, part)

    def _field_of_rows(self, side: str, node: JavaObject) -> Expression | None:
        """The same for rows; in the join's window it uses the join's own bounds, which are stricter for future rows."""
        found = self._rows[side].bound(node)
        if found is None:
            return None
        bound = found.name.rpartition(".")[2]
        if isinstance(self._when, Sliding) and bound in _FIELDS:
            return Column(f"{side}:window.{bound}", "timestamp")
        return self._value(side, found)

    def _whole_window(self, column: JavaObject) -> Expression | None:
        """The complete window of an upstream query's rows, or the window of whichever side is present."""
        node = column.child() if kind_of(column) == "Alias" else column
        if kind_of(node) == "Coalesce":
            parts = [self._whole_window(part) for part in children(node)]
            made = [part for part in parts if isinstance(part, Call)]
            if len(made) < len(parts):
                return None
            bounds = zip(*(part.args for part in made), strict=True)
            return made_window(*(call("coalesce", tuple(some), "timestamp") for some in bounds))
        side = self._side_of(node)
        name = self._rows[side].window(node) if side in self._rows else None
        if side is None or name is None:
            return None
        if isinstance(self._when, Sliding):
            return Column(f"{side}:window", WINDOW)
        return made_window(*(self._value(side, Column(f"{name}.{field}", "timestamp")) for field in _FIELDS))

    def _window_struct(self, column: JavaObject) -> Expression | None:
        """Like `_whole_window`, as a struct that an expression of Spark can read."""
        made = self._whole_window(column)
        if not isinstance(made, Call):
            return made
        return struct_of(made.args, WINDOW, call("isnotnull", made.args[:1], "boolean"))

    def _computed(self, node: JavaObject) -> Expression:
        """An expression that the model cannot express.

        It is computed where the events of its side are read. If it reads both sides, events that may be missing,
        windows or rows of another query, Spark evaluates it for the joined rows. An expression of a full join that is
        NULL for NULL is still computed where events are read, as in stored queries.
        """
        side = self._side_of(node)
        present = not self._extended or self._kind == side or (self._kind in (SEMI, ANTI) and side == LEFT)
        when_read = present or (self._kind == "full" and null_for_null(node))
        if side is None or side in self._rows or not when_read or self._has_window(node):
            return self._of_rows(node)
        return self._value(side, self._sides[side].translate(node))

    def _of_rows(self, node: JavaObject) -> Expression:
        """An expression that Spark evaluates for joined rows."""
        projected = projected_above(self._catalyst, node, node, self._meaning, self._tables)
        self._foreigns.setdefault(projected.value.key, projected)
        return projected.value

    def _meaning(self, column: JavaObject) -> Expression:
        return self._window_struct(column) or self._resolved(column)

    def _unnested(self, rows: RowsAbove, of_rows: list[JavaObject]) -> Expression:
        """The array with a struct of some outputs for each row that a joined row has."""
        made = unnested_above(self._catalyst, rows, of_rows, self._meaning, self._tables)
        self._foreigns.setdefault(made.value.key, made)
        return made.value

    def _output(self, column: JavaObject) -> Expression:
        if not is_storable(type_of(column)):
            raise UnsupportedQuery(
                f"`{text_of(column)}` has the type {type_of(column)}, which is not supported.",
                cast_cure(type_of(column)),
            )
        if self._is_common_window(column):
            return Column("window", WINDOW)
        whole = self._whole_window(column) if type_of(column) == WINDOW else None
        return self._over(column) if whole is None else whole

    def _is_common_window(self, column: JavaObject) -> bool:
        """Whether a node is the expression that FULL JOIN USING (w) makes from the windows of both sides."""
        whole = column.child() if kind_of(column) == "Alias" else column
        if kind_of(whole) != "Coalesce" or not isinstance(self._when, Sliding):
            return False
        sides = [self._side_of(part) for part in children(whole)]
        return {*sides} == {LEFT, RIGHT} and all(
            side is not None and self._is_whole_window(side, part)
            for side, part in zip(sides, children(whole), strict=True)
        )

    def _is_whole_window(self, side: str, part: JavaObject) -> bool:
        if side in self._rows:
            return self._rows[side].window(part) is not None
        return self._sides[side].input_plan.window_part(part) is not None
