"""The naive twin of windowed queries: computes one query with one plain loop over its events.

No sharing, no slices, no arrays. A result that differs from this one is wrong, or this file is. The stream has no
order, so lateness is judged as for files: by the largest event time of the previous batches.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from typing import NamedTuple

import msgspec

from kit.naive.aggregates import of_pairs, of_powers, percentile_of_bins
from kit.naive.event_aggregates import of_events, place_of
from kit.naive.expressions import EXACT, Raised, Row, Value, evaluate, fit_decimal, order
from kit.naive.hyperloglog import approximate_count
from kit.naive.queries.frames import Event, frames_by_epoch
from millpond.errors import OverflowedError
from millpond.model.aggregates import APPROX_DISTINCT, PERCENTILE, Aggregate
from millpond.model.query import Query
from millpond.model.types import FARTHEST_US, Digits, digits_of, integer_range, is_decimal, is_integer
from millpond.model.windows import Framed, Interval, Session, Sliced
from millpond.plan.groups.aggregate_functions import PAIRED, result_type
from millpond.plan.groups.tallies import keeps_tallies

__all__ = [
    "Batch", "Raised", "Result", "Row", "Value",
    "aggregate", "answer", "answer_after_each", "answer_by_epoch",
    "counts", "evaluate", "late_marks", "late_rows", "watermarks",
]  # fmt: skip

Batch = Sequence[Row]
Result = dict[str, Value]

FATES = ("applied", "late", "dead", "filtered")
"""The fates of an event that a query reads; each event has exactly one."""


class _Judged(NamedTuple):
    """The fate of one event for one query; `taken`: the argument of each aggregate that takes it."""

    fate: str
    keys: tuple[Value, ...] = ()
    taken: tuple[tuple[int, Value], ...] = ()
    of_event: tuple[Value, ...] = ()


class _Cell(NamedTuple):
    """One window of one key: per aggregate, the arguments of the events it took."""

    window: Interval
    keys: tuple[Value, ...]
    arguments: tuple[list[Value], ...]
    of_event: tuple[Value, ...] = ()


def answer(query: Query, epochs: Sequence[Batch], *, drained: bool = False) -> list[Result]:
    """All rows that `query` has emitted after `epochs`; `drained` closes the windows that are still open.

    Raises:
        Raised: HAVING or an output expression raises.
        OverflowedError: an integer sum left its type.
    """
    return [row for rows in answer_by_epoch(query, epochs, drained=drained) for row in rows]


def answer_by_epoch(
    query: Query, epochs: Sequence[Batch], *, drained: bool = False, marks: Sequence[int | None] | None = None
) -> list[list[Result]]:  # fmt: skip
    """The rows that each epoch emits; `drained` appends one more list: the windows still open at the end.

    `marks`: the watermark before the first epoch and after each one, if it does not follow from the events.
    """
    if isinstance(query.window, Framed):
        return _answer_of_frames(query, epochs, drained)
    cells: dict[tuple[Value, ...], _Cell] = {}
    emitted = []
    marks = watermarks(query, epochs) if marks is None else marks
    for batch, before, after in zip(epochs, marks, marks[1:], strict=False):
        _take(query, batch, before, cells)
        emitted.append(list(_emit(query, _closed(cells, after))))
    if drained:
        emitted.append(list(_emit(query, list(cells.values()))))
    return emitted


def answer_after_each(query: Query, epochs: Sequence[Batch]) -> Iterator[list[Result]]:
    """After each epoch, all rows as if the windows that are still open were closed: `answer` with `drained`.

    Raises:
        Raised, OverflowedError: as `answer`, at the epoch whose rows cannot be computed.
    """
    cells: dict[tuple[Value, ...], _Cell] = {}
    emitted: list[Result] = []
    known: dict[tuple[Value, ...], tuple[list[int], list[Result]]] = {}
    marks = watermarks(query, epochs)
    for batch, before, after in zip(epochs, marks, marks[1:], strict=False):
        _take(query, batch, before, cells)
        emitted += _emit(query, _closed(cells, after))
        for place, cell in cells.items():
            taken = [len(values) for values in cell.arguments]
            if place not in known or known[place][0] != taken:  # the arguments of a window only become more
                known[place] = taken, list(_emit(query, [cell]))
        yield [*emitted, *(row for place in cells for row in known[place][1])]


def _take(query: Query, batch: Batch, watermark: int | None, cells: dict[tuple[Value, ...], _Cell]) -> None:
    for row in batch:
        judged = _judge(query, row, watermark)
        if judged.fate == "applied":
            _place(query, row, judged, cells)


def _closed(cells: dict[tuple[Value, ...], _Cell], watermark: int | None) -> list[_Cell]:
    """Remove and return the windows that end at the watermark or before."""
    ripe = [key for key, cell in cells.items() if watermark is not None and cell.window.end_us <= watermark]
    return [cells.pop(key) for key in ripe]


def _answer_of_frames(query: Query, epochs: Sequence[Batch], drained: bool) -> list[list[Result]]:
    """As `answer_by_epoch`, for windows that are runs of a key's events."""
    seen: list[list[Event]] = []
    for batch, before in zip(epochs, watermarks(query, epochs), strict=False):
        judged = [(row[query.event_time], _judge(query, row, before)) for row in batch]
        seen.append([Event(time, *found[1:]) for time, found in judged if found.fate == "applied"])
    marks = [*watermarks(query, epochs)[1:], *([math.inf] if drained else [])]
    return [
        list(_emit(query, [_Cell(*frame) for frame in frames]))
        for frames in frames_by_epoch(query, [*seen, *([[]] if drained else [])], marks)
    ]


def withheld(query: Query, epochs: Sequence[Batch], answered: int, *, drained: bool = False) -> int:
    """The number of rows of closed windows that did not meet HAVING, given the number of rows that did.

    Raises:
        Raised, OverflowedError: as `answer`.
    """
    if query.having is None:
        return 0
    every = msgspec.structs.replace(query, having=None, output=())
    return len(answer(every, epochs, drained=drained)) - answered


def counts(query: Query, epochs: Sequence[Batch]) -> dict[str, int]:
    """The number of events that were read, and of each fate: read = applied + late + dead + filtered."""
    result = dict.fromkeys(("read", *FATES), 0)
    for batch, watermark in zip(epochs, watermarks(query, epochs), strict=False):
        for row in batch:
            result["read"] += 1
            result[_judge(query, row, watermark).fate] += 1
    return result


def watermarks(query: Query, epochs: Sequence[Batch]) -> list[int | None]:
    """The watermark before the first epoch (none) and after each epoch."""
    largest: int | None = None
    marks: list[int | None] = [None]
    for batch in epochs:
        for row in batch:
            time = row[query.event_time]
            if _is_known(time) and (largest is None or time > largest):
                largest = time
        marks.append(None if largest is None else largest - query.late_after_us)
    return marks


def late_marks(query: Query, epochs: Sequence[Batch]) -> list[bool]:
    """Whether each event, in order, is late for `query`."""
    marks = watermarks(query, epochs)
    return [
        _is_late(query, row[query.event_time], watermark)
        for batch, watermark in zip(epochs, marks, strict=False)
        for row in batch
    ]


def late_rows(query: Query, epochs: Sequence[Batch]) -> list[Row]:
    """The complete late events that WHERE takes, with the watermark that they missed and their epoch's position."""
    found: list[Row] = []
    for epoch, (batch, watermark) in enumerate(zip(epochs, watermarks(query, epochs), strict=False)):
        for row in batch:
            if _judge(query, row, watermark).fate == "late" and _is_taken(query, row):
                found.append({**row, "_watermark": watermark, "_epoch": epoch})
    return found


def _is_taken(query: Query, row: Row) -> bool:
    try:
        return query.where is None or evaluate(query.where, row) is True
    except Raised:
        return False


def _is_known(time: int | None) -> bool:
    """Whether the time is usable; times whose windows exceed int64 count as missing."""
    return time is not None and abs(time) <= FARTHEST_US


def _is_late(query: Query, time: int | None, watermark: int | None) -> bool:
    if time is None or not _is_known(time) or watermark is None:
        return False
    if query.late_by == "window" and isinstance(query.window, Sliced):
        first = query.window.assign(time)[0]
        return first.end_us <= watermark
    return time <= watermark


def _judge(query: Query, row: Row, watermark: int | None) -> _Judged:
    time = row[query.event_time]
    if not _is_known(time):
        return _Judged("dead")
    if _is_late(query, time, watermark):
        return _Judged("late")
    try:
        if query.where is not None and evaluate(query.where, row) is not True:
            return _Judged("filtered")
        keys = tuple(_shown(evaluate(key, row)) for key in query.keys)
        of_event = tuple(evaluate(value, row) for value in query.of_event)
        taken: list[tuple[int, Value]] = []
        for i, wanted in enumerate(query.aggregates):
            if wanted.filter is None or evaluate(wanted.filter, row) is True:
                given = tuple(evaluate(argument, row) for argument in wanted.arguments)
                if wanted.logged:
                    taken.append((i, (place_of(query, row, time), *given)))
                else:
                    taken.append((i, given if len(given) > 1 else given[0] if given else True))
    except Raised:
        return _Judged("dead")
    return _Judged("applied", keys, tuple(taken), of_event)


def _place(query: Query, row: Row, judged: _Judged, cells: dict[tuple[Value, ...], _Cell]) -> None:
    time = row[query.event_time]
    for window in query.window.assign(time):
        if isinstance(query.window, Session):
            own = query.window.own_end
            window = _merged(window if own is None else Interval(time, evaluate(own, row)), judged.keys, cells)
        # `order` makes every NaN the same dictionary key.
        key = (window, *(None if value is None else order(value) for value in judged.keys))
        if key not in cells:
            cells[key] = _Cell(window, judged.keys, tuple([] for _ in query.aggregates))
        for i, value in judged.taken:
            cells[key].arguments[i].append(value)


def _merged(window: Interval, keys: tuple[Value, ...], cells: dict[tuple[Value, ...], _Cell]) -> Interval:
    """Merges the window with all open windows of the key that it overlaps or touches; returns their outer bounds."""
    identity = tuple(None if value is None else order(value) for value in keys)
    met = [
        known for known, cell in cells.items()
        if known[1:] == identity and cell.window.start_us <= window.end_us and window.start_us <= cell.window.end_us
    ]  # fmt: skip
    if not met:
        return window
    old = [cells.pop(known) for known in met]
    bounds = [window, *(cell.window for cell in old)]
    whole = Interval(min(start for start, _ in bounds), max(end for _, end in bounds))
    columns = zip(*(cell.arguments for cell in old), strict=True)
    arguments = tuple([value for part in parts for value in part] for parts in columns)
    place: tuple[Value, ...] = (whole, *identity)
    cells[place] = _Cell(whole, old[0].keys, arguments)
    return whole


def _shown(value: Value) -> Value:
    return value + 0.0 if isinstance(value, float) else value  # -0.0 + 0.0 is 0.0


def _emit(query: Query, cells: list[_Cell]) -> Iterator[Result]:
    for cell in sorted(cells, key=lambda cell: cell.window):
        start, end = cell.window
        row: Result = {"window": {"start": start, "end": end}, "window.start": start, "window.end": end}
        row["window.time"] = end - 1
        row.update({f"key:{i}": value for i, value in enumerate(cell.keys)})
        row.update({f"event:{i}": value for i, value in enumerate(cell.of_event)})
        for i, (wanted, values) in enumerate(zip(query.aggregates, cell.arguments, strict=True)):
            if wanted.function == PERCENTILE and keeps_tallies(query):
                row[f"agg:{i}"] = percentile_of_bins(wanted, [value for _, value in values])
                continue
            row[f"agg:{i}"] = aggregate(wanted, values)
        if query.having is None or evaluate(query.having, row) is True:
            yield {column.name: evaluate(column.expression, row) for column in query.output}


# --- aggregates --------------------------------------------------------------------------------------------

_UNIT = 1 << 1074
"""Every finite double is a whole number of 1/_UNIT, so sums of doubles are sums of Python integers: exact."""


def aggregate(wanted: Aggregate, arguments: Sequence[Value]) -> Value:
    """The aggregate of the arguments of the events it takes, in any order.

    The argument of `count(*)` is True, that of a function of two arguments a pair, and that of a function of the event
    log (place in the order of events, argument, …).

    >>> aggregate(Aggregate("sum", None, None, "double"), [1e100, 1.0, -1e100])
    1.0

    Raises:
        OverflowedError: an integer sum left its type.
    """
    if wanted.logged:
        return of_events(wanted, arguments, aggregate)
    if wanted.function in PAIRED:
        return of_pairs(wanted.function, [(y, x) for y, x in arguments if y is not None and x is not None])
    if wanted.function == APPROX_DISTINCT:
        value, error = wanted.arguments
        return approximate_count({x for x, _ in arguments if x is not None}, value.type, evaluate(error, {}))
    values = [value for value in arguments if value is not None]
    if wanted.function == "count":
        return len(values)
    if not values:
        return None
    if wanted.function == "min":
        return _shown(min(values, key=order))
    if wanted.function == "max":
        return _shown(max(values, key=order))
    if wanted.function in _BITS:
        return reduce(_BITS[wanted.function], values)
    if wanted.argument is not None and is_decimal(wanted.argument.type):
        return _decimal(wanted.function, values, digits_of(wanted.argument.type), wanted.type)
    if wanted.function == "sum":
        return _sum(values, wanted.type)
    if wanted.function == "avg":
        return float(_sum(values, "double")) / float(len(values))
    if wanted.function in ("skewness", "kurtosis"):
        return of_powers(wanted.function, values)
    if wanted.function not in _VARIANCES:
        raise ValueError(f"The oracle has no answer for {wanted.function!r}.")
    return _variance(wanted.function, values)


def _decimal(function: str, values: Sequence[Decimal], given: Digits, kind: str) -> Decimal:
    """A sum or an average; Spark sums in a type of ten more digits, and divides up to 11 digits as doubles."""
    total = sum(map(Fraction, values), Fraction())
    try:
        summed = fit_decimal(_written(total), result_type("sum", given.type))
        if function == "sum":
            return summed
        if given.precision <= 11:
            mean = float(int(total * 10**given.scale)) / float(len(values)) / 10.0**given.scale
            return fit_decimal(Decimal(repr(mean)), kind)
        scale = digits_of(kind).scale
        ties_up = math.floor(abs(total) / len(values) * 10**scale + Fraction(1, 2))
        return fit_decimal(_written(Fraction(ties_up, 10**scale) * (1 if total > 0 else -1)), kind)
    except Raised as error:
        raise OverflowedError(f"A {function} of decimals: {error}.", "Cast its argument to double.") from error


def _written(value: Fraction) -> Decimal:
    """A fraction with a finite decimal expansion, as a decimal."""
    return EXACT.divide(Decimal(value.numerator), Decimal(value.denominator))


def _sum(values: Sequence[Value], kind: str) -> int | float:
    if is_integer(kind):
        total = sum(values)
        low, high = integer_range(kind)
        if not low <= total <= high:
            raise OverflowedError(f"A sum of {total} is no {kind}.", "Cast its argument to double.")
        return int(total)
    special = [value for value in values if not math.isfinite(value)]
    if special:
        return math.fsum(special) if len(set(special)) == 1 else math.nan
    return _rounded(sum(map(_units, values)), _UNIT)


def _units(value: int | float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator * (_UNIT // denominator)


def _rounded(numerator: int, denominator: int) -> float:
    try:
        return numerator / denominator  # of integers: correctly rounded, for any size
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf


_BITS = {"bit_and": operator.and_, "bit_or": operator.or_, "bit_xor": operator.xor}
_VARIANCES = ("var_samp", "var_pop", "stddev_samp", "stddev_pop", "regr_sxx")


def _variance(function: str, values: Sequence[Value]) -> float | None:
    n = len(values)
    pairs = n if function == "regr_sxx" else n * (n - 1) if function.endswith("_samp") else n * n
    if pairs == 0:
        return None
    if not all(math.isfinite(value) for value in values):
        return math.nan
    units = [_units(value) for value in values]
    numerator = n * sum(x * x for x in units) - sum(units) ** 2
    variance = _rounded(numerator, _UNIT * _UNIT) / float(pairs)
    return math.sqrt(variance) if function.startswith("stddev") else variance
