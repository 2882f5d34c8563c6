"""Reads ranks, `lag` and the like over the rows of an upstream query's windows, ORDER BY … LIMIT per window, and LIMIT.

All rows of a window have the same event time, and are events of one epoch. So a rank is a value of a frame that has
only the events of one key and time: a `Range` window of length 0. The condition on the rank is its HAVING.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millpond.errors import UnsupportedQuery
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, Expression, Literal, call, conjunction, literal
from millpond.model.selection import Selection
from millpond.model.types import WINDOW, is_known
from millpond.model.windows import Range
from millpond.plan.options.output_modes import updates_cure
from millpond.plan.upstream.first_rows import first_rows
from millpond.plan.upstream.upstream_joins import made_window
from millpond.spark.analysis.aggregation_input import InputPlan, one_per_key, read_input_plan
from millpond.spark.analysis.below_aggregation import InputTranslator
from millpond.spark.analysis.extract import Reader
from millpond.spark.analysis.frames import frames_of
from millpond.spark.analysis.input_streams import QueryInput
from millpond.spark.analysis.query_terms import Extraction
from millpond.spark.analysis.steps.inputs import StepContext
from millpond.spark.analysis.steps.step_boundaries import child_of, output_ids, sorted_below
from millpond.spark.analysis.upstream.ordered_functions import (
    is_ordered,
    numbers_in_time,
    ordered_function,
    ordering,
    rank_by,
)
from millpond.spark.analysis.upstream.sides import RowsSide
from millpond.spark.analysis.upstream.updating_ranks import Limit, UpdatingRankReader
from millpond.spark.catalyst.private_names import JavaObject, delay_ms, id_of, items, kind_of, outputs, text_of, type_of

_WINDOW_FIRST = (
    "Aggregate by a window w first, in FROM (…) or in an earlier query: … OVER (PARTITION BY w ORDER BY …) FROM STREAM "
    "lower. Of events, lag(x) OVER (PARTITION BY k ORDER BY ts) gives an earlier value, lead(x) a later one, and "
    "max_by(x, y, 10) the first 10 of a window. In update mode, a query may rank all events since it was added."
)


def ranks_rows(node: JavaObject) -> bool:
    """Whether a `Window` node, or one of its run, ranks rows or reads all rows of its partition."""
    return any(map(is_ordered, _run(node)))


def _run(node: JavaObject) -> list[JavaObject]:
    """A `Window` node and those directly below it with the same PARTITION BY; others are a step of their own.

    A `Window` node that numbers events below one with frames of time is a step of its own, too.
    """
    run = [node]
    while kind_of(below := run[-1].child()) == "Window" and _partition(below) == _partition(node):
        if numbers_in_time(below) and not is_ordered(run[-1]):
            break
        run.append(below)
    return run


def _partition(node: JavaObject) -> set[str]:
    return {str(key.canonicalized().toString()) for key in items(node.partitionSpec())}


def read_ranks(context: StepContext, node: JavaObject, above: list[JavaObject]) -> Extraction:
    """The query of `Window` nodes that rank rows, or of one that keeps one event of each key.

    `above` are the nodes above them, the highest first.

    Raises:
        UnsupportedQuery: the rows are not those of an upstream query's windows, or a function is not supported.
    """
    windows = _run(node)
    if len(windows) == 1 and one_per_key(node, 0) is not None:
        whole = above[0] if above else node
        input_plan = read_input_plan(context.catalyst, whole)
        one = input_plan.keeps_one or not (context.terms.updates or numbers_in_time(node))
        if one and not input_plan.is_step and not (source := context.source(input_plan, ())).upstreams:
            if not input_plan.keeps_one:
                raise _refused_number(node, by_text=bool(context.terms.text))
            return InputTranslator(context, source, input_plan).distinct(outputs(whole))
    if len(windows) == 1 and not context.terms.updates and numbers_in_time(node):
        input_plan = read_input_plan(context.catalyst, node.child(), cut_at_repeats=True)
        timed = delay_ms(items(node.orderSpec())[0].child()) is not None
        in_windows = any(type_of(key) == "timestamp" for key in items(node.partitionSpec()))
        upstreams = context.source(input_plan, output_ids(node)).upstreams
        if (upstreams and not in_windows) or (timed and not upstreams):
            return read_frames(context, node, above)
    what = text_of(items(node.windowExpressions())[0].child())
    return _reader(context, windows[-1].child(), f"`{what}`").ranks(windows, above)


def _refused_number(node: JavaObject, *, by_text: bool) -> UnsupportedQuery:
    """The error for a `row_number()` over events that final mode cannot compute, without the condition that it is 1."""
    time = items(node.orderSpec())[0].child().name()
    if any(type_of(key) == WINDOW for key in items(node.partitionSpec())):
        return UnsupportedQuery(
            "row_number() over events has a window in PARTITION BY.",
            f"Use a time instead, such as date_trunc('HOUR', {time}).",
        )
    return UnsupportedQuery(
        f"row_number() OVER (… ORDER BY {time} DESC) gives all events of a key new numbers with each event, but final "
        "mode emits each row only once.",
        f"Order by {time} without DESC. Or emit updates ({updates_cure(by_text=by_text)}), with a condition such as "
        "n <= 10, where n is the column of row_number().",
    )


def read_frames(context: StepContext, node: JavaObject, above: list[JavaObject]) -> Extraction:
    """The query of a `Window` node with frames before each event, or before each row of an upstream query.

    Raises:
        UnsupportedQuery: an order, a frame or a function is not supported.
    """
    input_plan = read_input_plan(context.catalyst, node.child(), cut_at_repeats=True)
    found = frames_of(context.catalyst, node, input_plan.unaliased)
    source = context.source(input_plan, output_ids(node))
    reader = Reader(context, source, input_plan)
    if source.upstreams and (found.by_row or type_of(found.time) == WINDOW):  # others keep the time of state
        reader = _RankReader(context, source, input_plan)
        reader.check_order(found.time)
    return reader.frames(found, outputs(node), above)


def read_first(context: StepContext, node: JavaObject) -> Extraction:
    """The query of LIMIT without ORDER BY: the first rows of the whole stream, each emitted once.

    Raises:
        UnsupportedQuery: the rows are not those of a stream or of a lower step, or cannot be compared.
    """
    below = node.child().child() if kind_of(node.child()) == "LocalLimit" else node.child()
    input_plan = read_input_plan(context.catalyst, below, emitted=True, cut_at_repeats=True)
    reader = InputTranslator(context, context.source(input_plan, output_ids(below)), input_plan)
    found = reader.select(outputs(below))
    assert isinstance(found.query, Selection)
    rows = int(str(context.catalyst.constant(node.limitExpr())))
    time = None if found.timing is None else found.timing.event_time
    return reader.extraction(first_rows(found.query, time, rows))


def limit_of(plan: JavaObject, above: Sequence[JavaObject]) -> Limit | None:
    """The ORDER BY … LIMIT of a LIMIT node with the nodes `above` it; None if it has no ORDER BY."""
    sort, node, between = sorted_below(plan), plan.child(), list[JavaObject]()
    while sort is not None and node is not sort:
        between += [node] if kind_of(node) == "Project" else []
        node = child_of(node)
    return None if sort is None else Limit(sort, plan.limitExpr(), [*above, *between])


def read_limit(context: StepContext, limit: Limit) -> Extraction:
    """The query of ORDER BY … LIMIT, which emits the first rows of each window, or in update mode of all events.

    Raises:
        UnsupportedQuery: the rows are not those of an upstream query's windows.
    """
    rows = int(str(context.catalyst.constant(limit.rows)))
    return _reader(context, limit.sort.child(), "ORDER BY … LIMIT").first_rows(limit, rows)


def _reader(context: StepContext, ranked: JavaObject, what: str) -> _RankReader | UpdatingRankReader:
    """A reader of the rows with the plan `ranked`: those of each window or, in update mode, all rows."""
    input_plan = read_input_plan(context.catalyst, ranked, cut_at_repeats=True)
    source = context.source(input_plan, output_ids(ranked))
    if context.terms.updates:
        return UpdatingRankReader(context, source, input_plan)
    if not source.upstreams:
        raise UnsupportedQuery(f"{what} is over single events, which belong to no window.", _WINDOW_FIRST)
    return _RankReader(context, source, input_plan)


def read_rows(context: StepContext, node: JavaObject, above: list[JavaObject]) -> Extraction | None:
    """The query of the rows of an earlier query, of which Spark evaluates expressions, joins with tables or `explode`
    as of results; `node` stands for the rows, and `above` are the nodes above it. None: nothing is known of the rows.
    """
    input_plan = read_input_plan(context.catalyst, node)
    source = context.source(input_plan, output_ids(node))
    return _RankReader(context, source, input_plan).rows(outputs(node), above) if source.upstreams else None


class _RankReader(Reader):
    """Reads ranks over the rows of upstream queries."""

    def __init__(self, context: StepContext, source: QueryInput, input_plan: InputPlan) -> None:
        super().__init__(context, source, input_plan)
        self._upstream = source.upstreams[0]
        self._rows = RowsSide(context.catalyst, self, outputs(input_plan.leaf))
        self._parts: tuple[Expression, ...] = ()
        self._found: list[Aggregate] = []

    def ranks(self, windows: Sequence[JavaObject], above: list[JavaObject]) -> Extraction:
        """The query of some `Window` nodes."""
        self._partition(items(windows[0].partitionSpec()))
        for node in windows:
            orders = items(node.orderSpec())
            by = ordering(orders, self.translate)
            for alias in items(node.windowExpressions()):
                aggregate = self._call(alias.child(), by, ordered=bool(orders))
                if aggregate not in self._found:
                    self._found.append(aggregate)
                self._scope[id_of(alias)] = Column(f"agg:{self._found.index(aggregate)}", aggregate.type)
        return self._ranked(outputs(windows[0]), above)

    def rows(self, results: list[JavaObject], above: list[JavaObject]) -> Extraction | None:
        """The query of the rows themselves; None if they have no event time."""
        if all(self._rows.named_after_us(time) is None for time in self._rows.times):
            return None
        values = ((item.name, item.expression) for item in self._upstream.output)
        keys = {name for name, value in values if isinstance(value, Column) and value.name.startswith("key:")}
        self._parts = tuple(Column(field.name, field.type) for field in self.stream.columns if field.name in keys)
        return self._ranked(results, above)

    def check_order(self, time: JavaObject) -> None:
        """Refuses an ORDER BY of frames that is not the time of the rows."""
        window = self._rows.window(time)
        after = self._rows.named_after_us(f"{window}.end") if window else self._rows.after_us(time)
        if after is None:
            raise UnsupportedQuery(
                f"OVER (… ORDER BY {text_of(time)}) is not in the order of the windows of {self._upstream.name}.",
                f"Order by {' or '.join(self._rows.times)}.",
            )

    def first_rows(self, limit: Limit, rows: int) -> Extraction:
        """The query of the first rows of each window."""
        time = next((time for time in self._rows.times if self._rows.named_after_us(time) is not None), None)
        if time is None or self._rows.sliding is None:
            raise UnsupportedQuery(
                f"ORDER BY … LIMIT gives the first rows of each window, but rows of {self._upstream.name} are not of "
                "tumbling or hopping windows.",
                "Write row_number() OVER (PARTITION BY …) instead.",
            )
        by = ordering(items(limit.sort.order()), self.translate)
        number = rank_by("row_number", by | self._ties() | by)
        self._found.append(number)
        first = call("le", (Column("agg:0", number.type), literal(rows, "int")), "boolean")
        return self._ranked(outputs(limit.sort), limit.above, first)

    def _ranked(
        self, results: list[JavaObject], above: list[JavaObject], first: Expression | None = None
    ) -> Extraction:  # fmt: skip
        self._event, self._event_time = [], self._time
        having, output = self._finish(results, above)
        having = conjunction([one for one in (first, having) if one is not None])
        return self._query(None, Range(0), self._parts, tuple(self._found), having, output)

    @property
    def _time(self) -> Column:
        return Column(str(self._rows.event_time), "timestamp")

    def _event_time_and_delay(self, time: JavaObject) -> tuple[Column, int]:
        return self._time, self._rows.delay_us

    def _partition(self, keys: Sequence[JavaObject]) -> None:
        """Split PARTITION BY into the event time and other keys."""
        timed, parts = False, dict[Expression, None]()
        for key in keys:
            window = self._rows.window(key)
            after = self._rows.named_after_us(f"{window}.end") if window else self._rows.after_us(key)
            timed |= after is not None
            if after is None or self._rows.sliding is None:  # windows that end together may begin at different times
                value = Column(f"{window}.start", "timestamp") if window else self.translate(key)
                parts |= {} if isinstance(value, Literal) else {value: None}
        if not timed:
            raise UnsupportedQuery(
                f"PARTITION BY {', '.join(text_of(key) for key in keys) or 'nothing'} has no window of "
                f"{self._upstream.name}, so its ranks would change with each epoch.",
                f"Add the window to PARTITION BY: {' or '.join(self._rows.times)}.",
            )
        self._parts = tuple(parts)

    def _call(self, over: JavaObject, by: Mapping[Expression, str], *, ordered: bool) -> Aggregate:
        """A function of the rows in an order, or an aggregate over all rows of the partition."""
        if kind_of(over.windowFunction()) == "AggregateExpression" and not ordered:
            return self._aggregate(over.windowFunction())
        return ordered_function(self._catalyst, over, by, self._ties(), self.translate)

    def _ties(self) -> dict[Expression, str]:
        """The columns that decide between rows with equal values of ORDER BY, and their directions: all columns."""
        windows = {item.name for item in self._upstream.output if item.expression.type == WINDOW}
        fields = (field for field in self.stream.columns if field.name.rpartition(".")[0] not in windows)
        return {Column(field.name, field.type): "asc nulls first" for field in fields if is_known(field.type)}

    def _of_event(self, attribute: JavaObject, known: list[Expression]) -> Expression:
        window = self._rows.window(attribute)
        if window is None:
            return super()._of_event(attribute, known)
        bounds = []
        for part in ("start", "end"):
            value = Column(f"{window}.{part}", "timestamp")
            known += [] if value in known else [value]
            bounds.append(Column(f"event:{known.index(value)}", "timestamp"))
        return made_window(*bounds)
