"""Reads the part of an analysed plan below its aggregation: filters, derived columns, one window, joins with batch
relations, and generated rows of arrays and maps.

The walk goes down from the aggregation and stops at a stream, at a function of batches, or at a union, whose branches
`sources` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.expressions import Column, Expression
from millpond.model.stream import Stream
from millpond.model.windows import Keeps, Sliding, Window
from millpond.plan.groups.distinct import Timing
from millpond.spark.analysis.grouping.row_patterns import PatternNote
from millpond.spark.analysis.grouping.window_rows import exploded_windows, ungrouped_window_error
from millpond.spark.analysis.joins.plan_nodes import renamed
from millpond.spark.analysis.steps.step_boundaries import REPEATS, child_of, cut_below, numbers_events
from millpond.spark.analysis.windows import is_noted, time_and_session, time_and_window
from millpond.spark.catalyst.cures import CLAUSES, ONE_ROW
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    computed_in,
    conjuncts,
    delay_ms,
    id_of,
    items,
    kind_of,
    optional,
    outputs,
    references,
    text_of,
    timed_column,
    window_mark,
)
from millpond.spark.sources.arrow_functions import MAPPED
from millpond.spark.sources.declared_paths import STREAMS
from millpond.spark.sources.keyed_tables import keyed_in

WITHIN = "DeduplicateWithinWatermark"
_STATEFUL = {
    "Window": "An OVER (…) window",
    "GlobalLimit": "LIMIT",
    "Sort": "ORDER BY",
    "Expand": "CUBE, ROLLUP or GROUPING SETS",
    "Sample": "A sample",
}
JOINS = {"Inner": True, "Cross": True, "LeftOuter": False, "RightOuter": False}
"""Supported joins with a batch relation, and whether they drop events without a partner."""
_EXISTENCE = ("LeftSemi", "LeftAnti", "ExistenceJoin")
"""Joins with a batch relation that only find out whether an event has a partner."""
GENERATORS = ("Explode", "PosExplode", "Inline")
"""Spark's generators that make a row for each element of an array or map."""
_FIELDS = ("start", "end")
LOWER = "Remove them in a query of its own, say `lower`, and read its rows: FROM STREAM lower."


class WindowColumn(NamedTuple):
    """A window that the analyser made: the attribute of its time, and its kind.

    For sessions whose gap differs from event to event, `kind` is the expression of the timestamp at which the session
    that an event opens would end. For a row pattern, its conditions are not translated yet.
    """

    time: JavaObject
    kind: Window | PatternNote | JavaObject


class WindowPart(NamedTuple):
    """A window, or its `start` or `end`."""

    window: WindowColumn
    field: str | None


class Generated(NamedTuple):
    """A function that makes a row for each element of an array or map, and the attributes of these rows.

    `text` describes the array for people, if its SQL would be too long.
    """

    generator: JavaObject
    attributes: list[JavaObject]
    text: str | None = None


class Step(NamedTuple):
    """One step between the source and the aggregation.

    It is a condition on events; with `side` a join with a batch relation; with `generate` the generation of a row for
    each element of an array or map. `depth` layers of aliases are above it. `inner` says that events without a partner
    or element are dropped. `exists` is the only column of a join that only finds out whether there is a partner.
    """

    condition: JavaObject | None
    depth: int
    side: JavaObject | None = None
    inner: bool = False
    generate: Generated | None = None
    exists: JavaObject | None = None

    @property
    def makes_rows(self) -> bool:
        """Whether it is a join or generates rows, so that it is more than a condition."""
        return self.side is not None or self.generate is not None


class FirstOfRepeats(NamedTuple):
    """A step that keeps the first of several events with equal `keys`; the first `below` steps are below it.

    `within`: only events near in time count as repeated. `output` are the columns of its input. `keeps`: the
    earliest or latest event is kept instead, by `row_number() = 1`, and `rank` is the id of that number's column.
    """

    keys: list[JavaObject]
    output: list[JavaObject]
    below: int
    within: bool
    keeps: Keeps | None = None
    rank: int | None = None


class WatermarkNode(NamedTuple):
    """The attribute that has the watermark; `depth` layers of aliases are above it. `output`: the columns with it."""

    time: JavaObject
    depth: int
    output: JavaObject


@dataclass(frozen=True)
class InputPlan:
    """The input of an aggregation: its steps, from the lowest up, and its layers of aliases, from the highest down.

    `leaf` is a stream or a union. `watermark` is the highest watermark that was set above it, if any. `repeats` is the
    removal of repeated events among the steps, if there is one. `emitted` says that windows are columns of the rows,
    because there is no aggregation. `is_step`: the leaf is neither a stream nor a union, but keeps state, so that its
    rows come from an inner query. `nodes` are the nodes above it.
    """

    leaf: JavaObject
    watermark: WatermarkNode | None = None
    steps: list[Step] = field(default_factory=list)
    layers: list[list[JavaObject]] = field(default_factory=list)
    definitions: dict[int, JavaObject] = field(default_factory=dict)
    windows: dict[int, WindowColumn] = field(default_factory=dict)
    repeats: FirstOfRepeats | None = None
    emitted: bool = False
    is_step: bool = False
    nodes: Sequence[JavaObject] = ()

    def unaliased(self, node: JavaObject) -> JavaObject:
        """The expression behind an alias, or behind a column that is one."""
        while True:
            if kind_of(node) == "AttributeReference" and id_of(node) in self.definitions:
                node = self.definitions[id_of(node)]
            elif kind_of(node) in ("Alias", "KnownNotNull", "KnownNullable"):
                node = node.child()
            else:
                return node

    def time_of_repeats(self) -> JavaObject | None:
        """The event time of the events among which repeated ones are removed; None: they have none, as in Spark."""
        return None if self.repeats is None else timed_column(self.repeats.output)

    @property
    def keeps_one(self) -> bool:
        """Whether the events above the removal of repeated ones are the first by `row_number()`."""
        if self.repeats is None or self.repeats.rank is None:
            return False
        above = (step.condition for step in self.steps[self.repeats.below :] if step.condition is not None)
        parts = (part for condition in above for part in conjuncts(condition))
        return any(_is_first(part, self.repeats.rank) for part in parts)

    def above_repeats(self) -> list[JavaObject]:
        """The conditions above the removal of repeated events.

        Raises:
            UnsupportedQuery: there are steps that make rows above it.
        """
        above = [] if self.repeats is None else self.steps[self.repeats.below :]
        if any(step.makes_rows for step in above):
            raise UnsupportedQuery("A join or explode above the removal of repeated events is not supported.", LOWER)
        parts = [part for step in above for part in conjuncts(step.condition)]
        if self.repeats is None or self.repeats.rank is None:
            return parts
        rank = self.repeats.rank
        rest = [part for part in parts if not _is_first(part, rank)]
        if len(rest) == len(parts) or any(id_of(column) == rank for part in rest for column in references(part)):
            raise UnsupportedQuery(
                "A condition other than n = 1 reads n, the column of row_number() over events.",
                "Leave that condition out.",
            )
        return rest

    def window_part(self, expression: JavaObject) -> WindowPart | None:
        """The window, or the bound of a window, that a grouping key stands for; None for other keys."""
        kind = kind_of(expression)
        if kind == "AttributeReference":
            identity = id_of(expression)
            if identity in self.windows:
                return WindowPart(self.windows[identity], None)
            return self.window_part(self.definitions[identity]) if identity in self.definitions else None
        if kind == "Alias":
            return self.window_part(expression.child())
        if kind == "GetStructField":
            whole = self.window_part(expression.child())
            if whole is not None and whole.field is None:
                if not isinstance(whole.window.kind, Sliding):
                    raise UnsupportedQuery(
                        "Grouped by a part of it, a session window makes no sessions, nor a count window its windows.",
                        "Group by the whole window.",
                    )
                return WindowPart(whole.window, _FIELDS[expression.ordinal()])
        return None


def read_input_plan(
    catalyst: Catalyst, node: JavaObject, *, emitted: bool = False, cut_at_repeats: bool = False
) -> InputPlan:
    """Read down to the streaming source, or to a lower step.

    `emitted`: windows are columns of the rows, as there is no aggregation. `cut_at_repeats`: see `cut_below`.

    Raises:
        UnsupportedQuery: the input contains an unsupported join or union, another aggregation, ….
        QueryTypeError: the relation that is read is not a stream.
    """
    steps, layers = list[Step](), list[list[JavaObject]]()
    watermark, repeats = None, None
    definitions, windows = dict[int, JavaObject](), dict[int, WindowColumn]()
    cut, nodes = cut_below(node, at_repeats=cut_at_repeats), list[JavaObject]()
    while node is not cut and not _is_leaf(node):
        kind = kind_of(node)
        nodes.append(node)
        found_windows: dict[int, WindowColumn] = {}
        if kind == "Project":
            aliases = [column for column in computed_in(node) if kind_of(column) == "Alias"]
            found_windows = {} if emitted else _projected_windows(catalyst, aliases)
            if emitted and any(window_mark(alias) and is_noted(alias) for alias in aliases):
                raise ungrouped_window_error()
            layer = [alias for alias in aliases if id_of(alias) not in found_windows]
            layers.append(layer)
            definitions.update((id_of(alias), alias) for alias in layer)
        elif kind == "Expand" and emitted:
            steps.append(Step(None, len(layers), None, True, _window_rows(catalyst, node)))
        elif kind == "Expand":
            found_windows = _expanded_window(catalyst, node)
        elif kind == "Filter":
            # The analyser adds a condition of its own directly above the panes of a hopping window, or a session
            # window.
            if emitted or not _has_own_condition(node.child()):
                steps.append(Step(node.condition(), len(layers)))
        elif kind == "Join":
            node, joined, layer = _joined(catalyst, node, len(layers))
            steps += joined
            layers += [layer] if layer else []
            definitions.update((id_of(alias), alias) for alias in layer)
            cut = cut_below(node)
            continue
        elif kind == "Generate":
            steps.append(Step(None, len(layers), None, not node.outer(), _generated(node)))
        elif kind == "EventTimeWatermark":
            watermark = watermark or WatermarkNode(node.eventTime(), len(layers), node.output())
        elif kind == "Window" and (one := one_per_key(node, len(steps))) is not None and repeats is None:
            repeats = one
        elif kind in REPEATS:
            repeats = _repeats(node, kind, len(steps), repeats)
        elif kind not in ("SubqueryAlias", "ResolvedHint"):
            raise _refused(node, kind)
        windows.update(found_windows)
        node = child_of(node)
        if found_windows and kind == "Project":
            node = _without_time_filter(node, found_windows)
    if repeats is not None:
        repeats = repeats._replace(below=len(steps) - repeats.below)
    return InputPlan(node, watermark, steps[::-1], layers, definitions, windows, repeats, emitted, node is cut, nodes)


def _is_leaf(node: JavaObject) -> bool:
    """Whether a node is a stream, a function of batches, or a union of streams."""
    return kind_of(node) in (*STREAMS, MAPPED) or (kind_of(node) == "Union" and bool(node.isStreaming()))


def _repeats(node: JavaObject, kind: str, above: int, higher: FirstOfRepeats | None) -> FirstOfRepeats:
    """The removal of repeated events, with the number of steps above it as `below`; `higher`: one further up."""
    output = outputs(node.child())
    repeats = FirstOfRepeats(output if kind == "Distinct" else items(node.keys()), output, above, kind == WITHIN)
    if higher is None:
        return repeats
    # of events that are equal in more columns, the higher one keeps the first as well
    if not higher.within and {id_of(key) for key in higher.keys} <= {id_of(key) for key in repeats.keys}:
        return higher
    raise UnsupportedQuery(
        "Repeated events are removed twice, by different columns.",
        "Make the lower removal a query of its own, say `lower`, and read its rows: FROM STREAM lower.",
    )


def one_per_key(node: JavaObject, above: int) -> FirstOfRepeats | None:
    """The choice of one event per key by `row_number()`, in the order of the event time; None for other windows.

    `above`: the number of steps above it.
    """
    if not numbers_events(node):
        return None
    keeps: Keeps = "latest" if str(items(node.orderSpec())[0].direction().sql()) == "DESC" else "earliest"
    rank = id_of(items(node.windowExpressions())[0])
    return FirstOfRepeats(items(node.partitionSpec()), outputs(node.child()), above, False, keeps, rank)


def _is_first(condition: JavaObject, rank: int) -> bool:
    """Whether a condition says that the rank is the first."""
    last = {"EqualTo": "1", "EqualNullSafe": "1", "LessThanOrEqual": "1", "LessThan": "2"}.get(kind_of(condition))
    if last is None:
        return False
    left, right = children(condition)
    if kind_of(left) == "Literal" and kind_of(condition) in ("EqualTo", "EqualNullSafe"):
        left, right = right, left
    return kind_of(left) == "AttributeReference" and id_of(left) == rank and text_of(right) == last


def _generated(node: JavaObject) -> Generated:
    kind = kind_of(node.generator())
    if kind not in GENERATORS:
        raise UnsupportedQuery(
            f"The rows of {kind.lower()} are not answered.", "Use explode, posexplode or inline, outer or not."
        )
    return Generated(node.generator(), items(node.generatorOutput()))


def _window_rows(catalyst: Catalyst, node: JavaObject) -> Generated:
    position = _window_position(node)
    rows = [projection.apply(position) for projection in items(node.projections())]
    text = f"{len(rows)} windows of the event"
    return Generated(exploded_windows(catalyst, rows), [node.output().apply(position)], text)


def _joined(
    catalyst: Catalyst, node: JavaObject, depth: int
) -> tuple[JavaObject, list[Step], list[JavaObject]]:
    """The streaming side of a join; the join as steps, the highest first; and a layer of aliases above the lowest."""
    left, right = node.left(), node.right()
    kind = kind_of(node.joinType())
    if left.isStreaming() and right.isStreaming():
        raise UnsupportedQuery(
            "A join of two streams below DISTINCT, dropDuplicates or row_number() is not supported.",
            "Group the joined rows: SELECT a.id, a.ts, max_by(b.x, b.ts) … GROUP BY a.id, a.ts.",
        )
    stream, side = (left, right) if left.isStreaming() else (right, left)
    if not stream.isStreaming():
        raise _refused(node, "Join")
    if kind in _EXISTENCE and stream is left:
        return _existence(catalyst, node, depth)
    if kind == "LeftSingle":
        raise UnsupportedQuery("A sub-query may have more than one row for an event.", ONE_ROW)
    if kind not in JOINS or (kind == "LeftOuter" and stream is right) or (kind == "RightOuter" and stream is left):
        raise UnsupportedQuery(
            f"A join of this kind ({node.joinType().sql()}) is not supported.",
            "Write stream [INNER | LEFT | LEFT SEMI | LEFT ANTI] JOIN table ON ….",
        )
    return stream, [Step(optional(node.condition()), depth, side, JOINS[kind])], []


def _existence(
    catalyst: Catalyst, node: JavaObject, depth: int
) -> tuple[JavaObject, list[Step], list[JavaObject]]:
    """The same for a join that only finds out whether an event has a partner; a semi or anti join filters by that."""
    kind, condition = kind_of(node.joinType()), optional(node.condition())
    side, layer = _narrowed(catalyst, node.right(), condition)
    condition = None if condition is None else catalyst.substitute(condition, layer)
    exists = node.joinType().exists() if kind == "ExistenceJoin" else catalyst.boolean("exists")
    above = [] if kind == "ExistenceJoin" else [exists if kind == "LeftSemi" else catalyst.make("Not", exists)]
    filters = [Step(one, depth) for one in above]
    if keyed_in(side) is None:
        return node.left(), [*filters, Step(condition, depth, side, exists=exists)], []
    found = catalyst.boolean("partner")  # NULL without a partner
    layer = [catalyst.alias(catalyst.not_null(found), "exists", exists)]
    return node.left(), [*filters, Step(condition, depth + 1, side, exists=found)], layer


def _narrowed(
    catalyst: Catalyst, plan: JavaObject, condition: JavaObject | None
) -> tuple[JavaObject, list[JavaObject]]:
    """The rows of a batch plan with only the columns that a condition reads, so that more queries have an equal join.

    See `renamed`.
    """
    ids = set() if condition is None else {id_of(column) for column in references(condition)}
    ids &= {id_of(column) for column in outputs(plan)}
    while kind_of(plan) in ("Project", "Distinct", "SubqueryAlias"):
        if not ids <= {id_of(column) for column in outputs(plan.child())}:
            break
        plan = plan.child()
    return renamed(catalyst, plan, ids)


def _projected_windows(catalyst: Catalyst, aliases: list[JavaObject]) -> dict[int, WindowColumn]:
    windows = {}
    for alias in aliases:
        mark = window_mark(alias)
        if mark is None or _is_renamed(alias):
            continue
        if mark == "session":
            windows[id_of(alias)] = WindowColumn(*time_and_session(catalyst, alias))
        else:
            windows[id_of(alias)] = WindowColumn(*time_and_window(catalyst, alias, [alias]))
    return windows


def _is_renamed(alias: JavaObject) -> bool:
    """Whether an alias with the mark of a window only renames a window column."""
    return kind_of(alias.child()) in ("AttributeReference", "GetStructField")


def _has_own_condition(node: JavaObject) -> bool:
    """Whether the filter above a node was added by the analyser."""
    if kind_of(node) == "Project":
        aliases = [column for column in items(node.projectList()) if kind_of(column) == "Alias"]
        return any(window_mark(alias) == "session" and not _is_renamed(alias) for alias in aliases)
    return kind_of(node) == "Expand" and bool(_marked(node))


def _expanded_window(catalyst: Catalyst, node: JavaObject) -> dict[int, WindowColumn]:
    position = _window_position(node)
    projections = node.projections()
    rows = [projections.apply(i).apply(position) for i in range(min(2, projections.size()))]
    column = node.output().apply(position)
    return {id_of(column): WindowColumn(*time_and_window(catalyst, column, rows))}


def _window_position(node: JavaObject) -> int:
    marked = _marked(node)
    if not marked:
        raise _refused(node, "Expand")
    return marked[0]


def _marked(node: JavaObject) -> list[int]:
    """Positions of the output columns of an `Expand` that are windows."""
    first = node.projections().apply(0)
    marked = [i for i, column in enumerate(outputs(node)) if window_mark(column)]
    return [i for i in marked if kind_of(first.apply(i)) != "AttributeReference"]


def _without_time_filter(node: JavaObject, found: dict[int, WindowColumn]) -> JavaObject:
    """The node below the filter `time IS NOT NULL` that the analyser adds under a tumbling window."""
    times = {id_of(window.time) for window in found.values()}
    if kind_of(node) == "Filter" and kind_of(node.condition()) == "IsNotNull":
        tested = node.condition().child()
        if is_noted(tested) or (kind_of(tested) == "AttributeReference" and id_of(tested) in times):
            return child_of(node)
    return node


def _refused(node: JavaObject, kind: str) -> UnsupportedQuery | QueryTypeError:
    if kind in _STATEFUL:
        return UnsupportedQuery(
            f"{_STATEFUL[kind]} is not supported at this place of a text.",
            "Query one stream with filters, derived columns and one windowed aggregation; write LIMIT at the end.",
        )
    if not children(node) and not node.isStreaming():
        return QueryTypeError(
            f"What the query reads is no stream ({kind}).", "Use spark.readStream, or a declared stream."
        )
    if kind in CLAUSES:
        what, cure = CLAUSES[kind]
        return UnsupportedQuery(f"{what} is not supported below the window.", cure)
    return UnsupportedQuery(
        f"The plan has {kind} below the window, which is not supported.",
        "Query one stream with filters, derived columns and one windowed aggregation.",
    )


def timing_of(plan: InputPlan, stream: Stream, meaning: Callable[[JavaObject], Expression]) -> Timing | None:
    """The event time of a query that needs none itself, if there is one that is not computed.

    Of the rows of another query it is the end of their window.
    """
    if stream.upstreams:
        ends = (field.name for field in stream.columns if field.name.endswith(".end"))
        return next((Timing(Column(name, "timestamp"), 0) for name in ends), None)
    columns = outputs(plan.leaf) if plan.watermark is None else items(plan.watermark.output)
    time = timed_column(columns)
    found = None if time is None else meaning(time)
    return Timing(found, (delay_ms(time) or 0) * 1000) if isinstance(found, Column) else None
