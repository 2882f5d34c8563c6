"""Computes rows of joins: takes columns of both sides by position, and evaluates conditions and outputs over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, Mask
from millpond.errors import OverflowedError
from millpond.kernels.columns import NO_ROWS, Values, from_arrow, to_arrow, unnested
from millpond.kernels.evaluate import Evaluator
from millpond.model.expressions import Call, Column, Expression, foreigns_in
from millpond.model.join import LEFT, RIGHT, Join
from millpond.model.selection import input_type
from millpond.model.types import WINDOW
from millpond.runtime.rows.foreign_values import values_of
from millpond.runtime.rows.window_rows import ARROW_WINDOW, take_values
from millpond.state.keys.keys import equal_keys

_NOBODY = -1


class SideEvents(NamedTuple):
    """Events of one side: the hashes of their keys, their times, canonical keys and values."""

    hashes: Ints
    times_us: Ints
    keys: list[pa.Array]
    values: list[pa.Array]

    @property
    def has_key(self) -> Mask:
        """Which events have no NULL in their key."""
        known = np.ones(len(self.hashes), bool)
        for key in self.keys:
            if key.null_count:
                known &= ~np.asarray(key.is_null())
        return known


class Joined(NamedTuple):
    """Rows: the positions of their left and right events (`_NOBODY` if there is none), and their windows' bounds."""

    sides: Mapping[str, SideEvents]
    left: Ints
    right: Ints
    window: tuple[Ints, Ints] | None

    @classmethod
    def alone(
        cls, sides: Mapping[str, SideEvents], side: str, events: Ints, window: tuple[Ints, Ints] | None
    ) -> Joined:  # fmt: skip
        """Rows of events of one side without a partner."""
        nobody = np.full(len(events), _NOBODY)
        left, right = (events, nobody) if side == LEFT else (nobody, events)
        return cls(sides, left, right, window)

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.left)

    def take(self, rows: Ints) -> Joined:
        """Some of the rows, by position."""
        if len(rows) == self.size:
            return self
        window = None if self.window is None else (self.window[0][rows], self.window[1][rows])
        return Joined(self.sides, self.left[rows], self.right[rows], window)

    def of(self, side: str) -> Ints:
        """The positions of one side's events."""
        return self.left if side == LEFT else self.right

    def missing(self, side: str) -> Mask:
        """Which rows have no event of a side."""
        absent = self.of(side) == _NOBODY
        return absent if absent.any() else NO_ROWS


class PossibleRows(NamedTuple):
    """Candidates for rows of a join, and a mask of those that are rows; None: Spark evaluates the condition later."""

    rows: Joined
    valid: Mask | None


class _Columns(dict[str, Values]):
    """The columns of rows, created on first use."""

    def __init__(self, join: Join, rows: Joined, known: Mapping[str, Values] = MappingProxyType({})) -> None:
        super().__init__(known)
        self._join, self._rows = join, rows

    def __missing__(self, name: str) -> Values:
        side, _, what = name.partition(":")
        missing = self._rows.missing(side)
        if what.startswith("window"):
            assert self._rows.window is not None
            start, end = self._rows.window
            self[name] = Values(end if what == "window.end" else start, missing)
        else:
            events, at = self._rows.sides[side].values[int(what)], self._rows.of(side)
            places = pa.array(at, mask=missing if missing.ndim else None)
            self[name] = from_arrow(events.take(places), self._join.sides[side].values[int(what)].type)
        return self[name]


def equal_rows(rows: Joined) -> Mask:
    """Which pairs have equal keys."""
    left, right = ([key.take(pa.array(rows.of(side))) for key in rows.sides[side].keys] for side in (LEFT, RIGHT))
    return equal_keys(left, right, rows.size)


def passing(
    join: Join, condition: Expression, rows: Joined, known: Mapping[str, Values] = MappingProxyType({})
) -> Mask:  # fmt: skip
    """Which rows meet a condition; `known`: the values of expressions in it that Spark has evaluated.

    Raises:
        OverflowedError: the condition raises an error for a row.
    """
    values = _checked(join, Evaluator(_Columns(join, rows, known), rows.size)(condition))
    return np.broadcast_to(values.is_true(), (rows.size,))


def joined_rows(join: Join, made: Sequence[PossibleRows]) -> tuple[list[pa.RecordBatch], int]:
    """The valid rows in the form in which they are emitted, and how many HAVING withheld.

    Raises:
        OverflowedError: a condition or an output raises an error for a row.
    """
    expressions = [item.expression for item in join.output] + ([] if join.having is None else [join.having])
    expressions += [] if join.unnested is None else [join.unnested]
    batches, withheld = [], 0
    for possible, valid in made:
        values = evaluated(join, expressions, possible)
        if values is None or valid is None:
            continue
        rows, values = _taken(possible, values, np.flatnonzero(valid))
        kept = rows
        if join.having is not None:
            kept, values = _taken(rows, values, np.flatnonzero(passing(join, join.having, rows, values)))
        withheld += rows.size - kept.size
        if join.unnested is not None:
            kept, values = _unnested(join, join.unnested, kept, values)
        if kept.size:
            batches.append(_outputs(join, kept, values))
    return batches, withheld


def _unnested(
    join: Join, array: Expression, rows: Joined, known: Mapping[str, Values]
) -> tuple[Joined, Mapping[str, Values]]:
    """The rows, once for each element of their arrays, with the fields of the elements."""
    found = _checked(join, Evaluator(_Columns(join, rows, known), rows.size)(array))
    positions, fields = unnested(found, array.type, rows.size)
    window = None if rows.window is None else (rows.window[0][positions], rows.window[1][positions])
    values = {name: take_values(known[name], positions) for name in known}
    return Joined(rows.sides, rows.left[positions], rows.right[positions], window), values | fields


def _taken(rows: Joined, known: Mapping[str, Values], positions: Ints) -> tuple[Joined, Mapping[str, Values]]:
    if len(positions) == rows.size:
        return rows, known
    return rows.take(positions), {name: take_values(known[name], positions) for name in known}


def evaluated(join: Join, expressions: Sequence[Expression], rows: Joined) -> Mapping[str, Values] | None:
    """The values of those parts of expressions that only Spark evaluates; None if only their inputs are collected."""
    foreigns = tuple(dict.fromkeys(foreign for part in expressions for foreign in foreigns_in(part)))
    if not foreigns:
        return {}
    columns = _Columns(join, rows)
    inputs = {name: _arrow_input(join, name, columns, rows) for foreign in foreigns for name in foreign.columns}
    return values_of(join.name, foreigns, inputs, rows.size)


def _arrow_input(join: Join, name: str, columns: Mapping[str, Values], rows: Joined) -> pa.Array:
    side, _, what = name.partition(":")
    if what == "window":
        return _windows(rows, rows.missing(side))
    return to_arrow(columns[name], input_type(join, name), rows.size)


def _outputs(join: Join, rows: Joined, known: Mapping[str, Values]) -> pa.RecordBatch:
    evaluator = Evaluator(_Columns(join, rows, known), rows.size)
    arrays = []
    for item in join.output:
        expression = item.expression
        if expression.type == WINDOW and isinstance(expression, Call):
            bounds = [_checked(join, evaluator(bound)) for bound in expression.args]
            arrays.append(_made_windows([to_arrow(bound, "timestamp", rows.size) for bound in bounds]))
        elif expression.type == WINDOW and isinstance(expression, Column):
            side, _, own = expression.name.partition(":")
            arrays.append(_windows(rows, rows.missing(side) if own else NO_ROWS))
        else:
            arrays.append(to_arrow(_checked(join, evaluator(expression)), expression.type, rows.size))
    return pa.RecordBatch.from_arrays(arrays, names=[item.name for item in join.output])


def _windows(rows: Joined, missing: Mask) -> pa.Array:
    assert rows.window is not None
    parts = [pa.array(bound).view(field.type) for bound, field in zip(rows.window, ARROW_WINDOW, strict=True)]
    absent = pa.array(missing) if missing.ndim else None
    return pa.StructArray.from_arrays(parts, fields=list(ARROW_WINDOW), mask=absent)


def _made_windows(bounds: Sequence[pa.Array]) -> pa.Array:
    """Windows of the upstream query's rows; NULL where an event is missing."""
    parts = [bound.view(pa.int64()).view(field.type) for bound, field in zip(bounds, ARROW_WINDOW, strict=True)]
    return pa.StructArray.from_arrays(parts, fields=list(ARROW_WINDOW), mask=bounds[0].is_null())


def _checked(join: Join, values: Values) -> Values:
    if values.error.any():
        raise OverflowedError(
            f"A result of query {join.name!r} leaves its type or divides by zero.",
            "Widen the type (cast to double) or guard the expression.",
        )
    return values
