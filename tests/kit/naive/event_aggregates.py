"""The naive twin of aggregates that are computed from the event log: plain sorting of plain lists."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cmp_to_key
from typing import Any

from kit.naive.aggregates import histogram
from kit.naive.expressions import Raised, Row, Value, evaluate, order
from millpond.model.aggregates import (
    DESCENDING,
    IGNORE_NULLS,
    LISTAGGS,
    NEIGHBOURS,
    NTH,
    ORDERED,
    RUNNING_TOTAL,
    Aggregate,
)
from millpond.model.expressions import Expression, literal
from millpond.model.query import Query
from millpond.plan.groups.event_log import ties_of

Plain = Callable[[Aggregate, Sequence[Value]], Value]


def of_events(wanted: Aggregate, events: Sequence[Any], plain: Plain) -> Any:
    """The aggregate of (place, argument, …) of the events it takes; `plain` computes functions that ignore order."""
    function, count = wanted.function, len(wanted.arguments)
    if function in ORDERED:
        return _ordered(wanted, events[0], events[1:], plain)
    if function not in ("first", "last", NTH):
        needed = [1] if function in ("min_by", "max_by") else [0] if function in LISTAGGS else range(count)
        events = [event for event in events if all(event[1 + i] is not None for i in needed)]
    in_time = sorted(events, key=lambda event: (event[0], *reversed([_rank(value) for value in event[1:]])))
    if function in ("first", "last"):
        return in_time[0 if function == "first" else -1][1] if in_time else None
    if function == NTH:
        assert isinstance(wanted.parameters, tuple)
        place = int(str(wanted.parameters[0].value)) - 1
        return in_time[place][1] if place < len(in_time) else None
    if function in ("min_by", "max_by"):
        return _by(wanted, in_time)
    if function in LISTAGGS:
        return _joined(wanted, in_time)
    distinct = {tuple(order(value) for value in event[1:]): event[1:] for event in events}
    if function == "count_distinct":
        return len(distinct)
    if function == "collect_list":
        return [event[1] for event in in_time]
    if function == "product":
        return math.prod(event[1] for event in in_time) if in_time else None
    values = sorted((event[1] for event in events), key=order)
    if function.endswith("_distinct"):
        alone = Aggregate(function.removesuffix("_distinct"), wanted.argument, None, wanted.type)
        return plain(alone, [value for (value,) in distinct.values()])
    if function == "collect_set":
        return sorted((value for (value,) in distinct.values()), key=order)
    if not values:
        return None
    if function == "histogram_numeric":
        assert isinstance(wanted.parameters, tuple)
        return histogram(values, int(str(wanted.parameters[0].value)), wanted.type)
    if function in ("min", "max"):
        return values[0 if function == "min" else -1]
    if function == "mode":
        prefer = order if _is_descending(wanted) else _Least
        return max(values, key=lambda value: (sum(order(other) == order(value) for other in values), prefer(value)))
    return _percentiles(wanted, values)


def place_of(query: Query, row: Row, time: int) -> tuple[Any, ...]:
    """The sort key of an event in the query's order of events: its time, then the values that its aggregates read."""
    values = [_known(value, row) for value in ties_of(query.aggregates)]
    signs = [math.copysign(1, value) if isinstance(value, float) else 0 for value in values]
    return (time, [_rank(value) for value in values], signs)


def _known(value: Expression, row: Row) -> Value:
    """The value; NULL if it fails, which can only happen where the aggregate's own filter excludes the event."""
    try:
        return evaluate(value, row)
    except Raised:
        return None


class _Least:
    """Reverses the order of values."""

    def __init__(self, value: Value) -> None:
        self._value = value

    def __lt__(self, other: _Least) -> bool:
        return order(other._value) < order(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Least) and order(other._value) == order(self._value)

    def __hash__(self) -> int:
        return hash(order(self._value))


def _rank(value: Value) -> Any:
    return (0, 0) if value is None else (1, order(value))


def _joined(wanted: Aggregate, in_time: Sequence[Any]) -> str | None:
    """The joined text; stable sorts by the last expression first."""
    assert isinstance(wanted.parameters, tuple)
    delimiter, *directions = [str(one.value) for one in wanted.parameters]
    events = list(in_time)
    if wanted.function == "listagg_distinct":
        events = sorted({event[1]: event for event in events}.values(), key=lambda event: str(event[1]))
    for place, direction in reversed(list(enumerate(directions, 2))):
        nulls = [event for event in events if event[place] is None]
        others = [event for event in events if event[place] is not None]
        if direction.startswith("desc"):
            others.sort(key=lambda event: _Least(event[place]))
        else:
            others.sort(key=lambda event: order(event[place]))
        events = others + nulls if direction.endswith("last") else nulls + others
    return delimiter.join(event[1] for event in events) if events else None


def _ordered(wanted: Aggregate, own: Any, events: Sequence[Any], plain: Plain) -> Any:
    """A function of one event among all events of its key and time, itself included; a sort key per expression."""
    assert isinstance(wanted.parameters, tuple)
    count = len(wanted.arguments) - (wanted.function in NEIGHBOURS)
    directions = [str(one.value) for one in wanted.parameters[:count]]
    constants: list[Any] = [one.value for one in wanted.parameters[count:]]

    def place(event: Any) -> list[Any]:
        keys: list[Any] = []
        for value, direction in zip(event[1 : 1 + count], directions, strict=True):
            shown: Any = 0 if value is None else _Least(value) if direction.startswith("desc") else order(value)
            keys.append(((value is None) == direction.endswith("last"), shown))
        if wanted.function not in ("rank", "dense_rank", "percent_rank", "cume_dist"):
            keys += [[math.copysign(1, value) if isinstance(value, float) else 0 for value in event[1 : 1 + count]]]
        return keys

    before = [event for event in events if place(event) < place(own)]
    rank, size = 1 + len(before), len(events)
    if wanted.function == "dense_rank":
        return 1 + sum(not any(place(a) == place(b) for b in before[:i]) for i, a in enumerate(before))
    if wanted.function == "percent_rank":
        return (rank - 1) / (size - 1) if size > 1 else 0.0
    if wanted.function == "cume_dist":
        return sum(not place(own) < place(event) for event in events) / size
    if wanted.function == "ntile":
        sizes = [size // constants[0] + (part < size % constants[0]) for part in range(constants[0])]
        return next(part for part in range(1, constants[0] + 1) if rank <= sum(sizes[:part]))
    if wanted.function not in NEIGHBOURS:
        return rank
    ordered = sorted(events, key=cmp_to_key(lambda a, b: -1 if place(a) < place(b) else int(place(b) < place(a))))
    nulls = constants[-1] == IGNORE_NULLS
    if wanted.function == "nth_value":
        peers = sum(not place(own)[: constants[2]] < place(event)[: constants[2]] for event in events)
        frames = {"rows": rank, "partition": size, "peers": peers}
        values = [one[-1] for one in ordered[: frames[constants[1]]] if not nulls or one[-1] is not None]
        number = constants[0] - (constants[0] > 0)
        return values[number] if -len(values) <= number < len(values) else None
    if wanted.function == RUNNING_TOTAL:
        peers = sum(not place(own)[: constants[2]] < place(event)[: constants[2]] for event in events)
        values = [one[-1] for one in ordered[: {"rows": rank, "partition": size, "peers": peers}[constants[1]]]]
        return plain(Aggregate(constants[0], wanted.arguments[-1], None, wanted.type), values)
    ahead = constants[0] if wanted.function == "lead" else -constants[0]
    if ahead == 0:
        return own[-1]
    beside = ordered[rank:] if ahead > 0 else ordered[: rank - 1][::-1]
    values = [one[-1] for one in beside if not nulls or one[-1] is not None]
    return values[abs(ahead) - 1] if abs(ahead) <= len(values) else constants[1]


def _by(wanted: Aggregate, in_time: Sequence[Any]) -> Any:
    """The result of `min_by` or `max_by`; of equal values the first in time is the least, the last one the largest."""
    ranked = sorted(in_time, key=lambda event: order(event[2]))
    if wanted.function == "max_by":
        ranked.reverse()
    if not ranked:
        return None
    if isinstance(wanted.parameters, tuple):
        return [event[1] for event in ranked[: int(str(wanted.parameters[0].value))]]
    return ranked[0][1]


def _is_descending(wanted: Aggregate) -> bool:
    return isinstance(wanted.parameters, tuple) and wanted.parameters[-1:] == (literal(DESCENDING, "string"),)


def _percentiles(wanted: Aggregate, values: Sequence[Any]) -> Any:
    assert isinstance(wanted.parameters, tuple)
    fractions = [float(str(one.value)) for one in wanted.parameters if one.type == "double"]
    values = values[::-1] if _is_descending(wanted) else values
    if wanted.function == "percentile":
        found = [_between([float(value) for value in values], fraction) for fraction in fractions]
    else:
        found = [values[max(math.ceil(len(values) * fraction) - 1, 0)] for fraction in fractions]
        if wanted.function == "percentile_disc":
            found = [float(value) for value in found]
    return found if wanted.type.startswith("array<") else found[0]


def _between(values: Sequence[float], fraction: float) -> float:
    place = (len(values) - 1) * fraction
    low, high = math.floor(place), math.ceil(place)
    left, right = values[low], values[high]
    if low == high or left == right or (math.isnan(left) and math.isnan(right)):
        return left
    return left + (right - left) * (place - low)
