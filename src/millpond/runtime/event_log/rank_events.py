"""Ranks events among the events of their key and time: `row_number`, `rank` and `dense_rank`."""

from __future__ import annotations

import numpy as np

from millpond.arrays import Ints
from millpond.kernels.columns import Values
from millpond.kernels.ranks import directed, ranks, signs
from millpond.model.aggregates import Aggregate
from millpond.model.types import has_floats
from millpond.runtime.event_log.select_events import value_column
from millpond.state.layout.event_log import Events


def ranked(aggregate: Aggregate, events: Events, at: Ints) -> Values:
    """The ranks of the events at `at`; `events` has all events of their keys and times.

    One sort by (key, time, order) answers all partitions at once.
    """
    keys, partitions = _order_keys(aggregate, events), [events.times_us, events.slots.astype(np.int64)]
    order = np.lexsort((*keys, *partitions))
    begins, differs = _changes(partitions, order), _changes(keys, order)
    places = np.arange(len(order))
    first = np.maximum.accumulate(np.where(begins, places, 0))
    if aggregate.function == "row_number":
        numbers = places
    elif aggregate.function == "rank":
        numbers = np.maximum.accumulate(np.where(begins | differs, places, 0))
    else:
        numbers = np.cumsum(begins | differs) - 1
    result = np.empty(len(order), np.int64)
    result[order] = numbers - (numbers[first] if aggregate.function == "dense_rank" else first) + 1
    return Values(result[at])


def _order_keys(aggregate: Aggregate, events: Events) -> list[Ints]:
    """Sort keys of ORDER BY, the major key last; for `row_number` the two zeros differ where all else is equal."""
    parameters = aggregate.parameters if isinstance(aggregate.parameters, tuple) else ()
    keys: list[Ints] = []
    exact: list[Ints] = []
    for value, direction in zip(reversed(aggregate.arguments), reversed(parameters), strict=True):
        column = value_column(events, value)
        keys += directed(ranks(column, value.type), str(direction.value))
        if aggregate.function == "row_number" and has_floats(value.type):
            exact.append(signs(column, value.type))
    return [*exact, *keys]


def _changes(keys: list[Ints], order: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Where a sorted event differs in a key from the previous one."""
    changes = np.zeros(len(order), bool)
    changes[:1] = True
    for key in keys:
        sorted_key = key[order]
        changes[1:] |= sorted_key[1:] != sorted_key[:-1]
    return changes
