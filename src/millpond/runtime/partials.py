"""Partial aggregates of one chunk by cell (key and slice): each distinct filter and value is handled once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, Mask
from millpond.model.expressions import Call, Expression
from millpond.plan.plan import Measure
from millpond.runtime.columns import Array
from millpond.runtime.evaluate import Evaluator
from millpond.state.cells import LARGEST, SMALLEST, order_codes, word_names
from millpond.state.exact import sums_of_doubles, sums_of_integers, sums_of_squares

_DENSE_FACTOR = 4


class Rows:
    """The rows of a chunk that a group takes at all: not late for everybody, with an event time."""

    def __init__(self, evaluator: Evaluator, keep: Mask) -> None:
        self.evaluator = evaluator
        self.index: Ints | None = None if keep.all() else np.flatnonzero(keep)
        self.count = evaluator.rows if self.index is None else len(self.index)

    def take(self, data: Array) -> Array:
        """The group's rows of a column; constants are repeated."""
        whole = np.broadcast_to(data, (self.evaluator.rows,))
        return whole if self.index is None else whole[self.index]


class Partials:
    """Columns of partial results, one row per distinct cell of `ids` (ascending)."""

    def __init__(self, rows: Rows, cells: Ints, size: int) -> None:
        self._rows = rows
        self.ids, self._cells = _compact(cells, size)
        self._columns: dict[str, Ints] = {}
        self._masks: dict[Expression | None, tuple[Expression, ...]] = {}
        self._chosen: dict[tuple[Expression, ...], tuple[Ints, Ints | None]] = {(): (self._cells, None)}
        self._counts: dict[tuple[Expression, ...], Ints] = {}

    def add(self, measure: Measure, integer: bool) -> None:
        """Compute the columns of a measure."""
        filters = self._filters(measure.filter)
        if measure.kind == "count":
            self._columns[f"{measure.id}:n"] = self._count(filters)
            return
        assert measure.value is not None
        cells, index = self._selected(filters)
        values = self._rows.take(self._rows.evaluator(measure.value).data)
        if index is not None:
            values = values[index]
        size = len(self.ids)
        if measure.kind in ("min", "max"):
            self._columns[f"{measure.id}:{measure.kind}"] = _extreme(measure.kind, cells, values, size)
        elif integer and measure.kind == "sum":
            self._columns.update(word_names(measure.id, sums_of_integers(cells, values, size)))
        else:
            self._columns.update(_inexact(measure, cells, values.astype(np.float64), size))

    def _filters(self, condition: Expression | None) -> tuple[Expression, ...]:
        """The parts of a condition that some row of this chunk fails: equal sets share all their work."""
        known = self._masks.get(condition)
        if known is None:
            parts = condition.args if isinstance(condition, Call) and condition.op == "and" else (condition,)
            known = tuple(part for part in parts if part is not None and not self._always(part))
            self._masks[condition] = known
        return known

    def _always(self, part: Expression) -> bool:
        held = self._rows.evaluator(part).is_true()
        return held.ndim == 0 and bool(held)

    def _selected(self, filters: tuple[Expression, ...]) -> tuple[Ints, Ints | None]:
        """Cells of the rows that pass, and their positions among the group's rows (None: all pass)."""
        known = self._chosen.get(filters)
        if known is None:
            passed = self._passed(filters)
            index = np.flatnonzero(passed)
            known = (self._cells, None) if len(index) == len(passed) else (self._cells[index], index)
            self._chosen[filters] = known
        return known

    def _passed(self, filters: tuple[Expression, ...]) -> Mask:
        """A conjunction is TRUE exactly where every part is: errors and NULLs elsewhere cannot change that."""
        true: Mask = np.ones((), bool)
        for part in filters:
            true = true & self._rows.evaluator(part).is_true()
        passed: Mask = self._rows.take(true)
        return passed

    def _count(self, filters: tuple[Expression, ...]) -> Ints:
        if filters not in self._counts:
            cells, _ = self._selected(filters)
            self._counts[filters] = np.bincount(cells, minlength=len(self.ids))
        return self._counts[filters]

    def present(self, presences: Sequence[Measure]) -> Ints:
        """Positions of the cells that some query has rows in."""
        seen = np.zeros(len(self.ids), bool)
        for measure in set(presences):
            seen |= self._columns[f"{measure.id}:n"] > 0
        return np.flatnonzero(seen)

    def columns(self, chosen: Ints) -> dict[str, Ints]:
        """All columns at some cells; columns that are one array stay one."""
        if len(chosen) == len(self.ids):
            return self._columns
        cut: dict[int, Ints] = {}
        return {name: cut.setdefault(id(column), column[chosen]) for name, column in self._columns.items()}


def _compact(cells: Ints, size: int) -> tuple[Ints, Ints]:
    """Distinct cells ascending, and for each row the position of its cell among them."""
    if size <= max(_DENSE_FACTOR * len(cells), 1 << 16):
        seen = np.zeros(size, bool)
        seen[cells] = True
        ids = np.flatnonzero(seen)
        if len(ids) == size:
            return ids, cells
        place = np.empty(size, np.int64)
        place[ids] = np.arange(len(ids))
        return ids, place[cells]
    encoded = pa.array(cells).dictionary_encode()
    found = np.asarray(encoded.dictionary)
    order = np.argsort(found)
    place = np.empty(len(found), np.int64)
    place[order] = np.arange(len(found))
    return found[order], place[np.asarray(encoded.indices)]


def _extreme(kind: str, cells: Ints, values: Array, size: int) -> Ints:
    codes = order_codes(values) if values.dtype.kind == "f" else values.astype(np.int64)
    out = np.full(size, LARGEST if kind == "min" else SMALLEST, np.int64)
    (np.minimum if kind == "min" else np.maximum).at(out, cells, codes)
    return out


def _inexact(measure: Measure, cells: Ints, values: Array, size: int) -> dict[str, Ints]:
    """Sums of doubles or their squares: exact over the finite ones, the others counted apart."""
    columns: dict[str, Ints] = {}
    finite = np.isfinite(values)
    if not finite.all():
        for name, chosen in (
            ("nan", np.isnan(values)),
            ("inf", values == np.inf),
            ("-inf", values == -np.inf),
        ):
            if chosen.any():
                columns[f"{measure.id}:{name}"] = np.bincount(cells[chosen], minlength=size)
        cells, values = cells[finite], values[finite]
    sums = sums_of_squares if measure.kind == "squares" else sums_of_doubles
    return columns | word_names(measure.id, sums(cells, values, size))
