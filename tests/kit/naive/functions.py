"""The naive twin of calls of user functions: key by key, event by event, state by state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa


def naive_holistic(function: Callable[[pa.Array], Any], events: Sequence[tuple[int, float]], rows: int) -> list[Any]:
    """The result of the function for the values of each key; None for a key without values."""
    groups = [[value for key, value in events if key == row] for row in range(rows)]
    return [function(pa.array(values, pa.float64())) if values else None for values in groups]


def naive_mergeable(function: Any, events: Sequence[tuple[int, float]], cells: Sequence[Sequence[int]]) -> list[Any]:
    """The value of each row: the states of its cells merged from left to right; a cell without events has no state."""
    found = []
    for members in cells:
        states = [state for cell in members if (state := _state(function, cell, events)) is not None]
        found.append(pa.array(function.finish(reduce(function.merge, states)))[0].as_py() if states else None)
    return found


def _state(function: Any, cell: int, events: Sequence[tuple[int, float]]) -> pa.Table | None:
    values = [value for key, value in events if key == cell]
    state = function.create(1)
    for value in values:
        state = function.update(state, pa.array([0]), pa.table({"value": [value]}))
    return state if values else None
