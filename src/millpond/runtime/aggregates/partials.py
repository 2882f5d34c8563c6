"""Partial aggregates of one chunk by cell (key and slice); each distinct filter and value is computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from millpond.arrays import WIDE, Ints, Mask, new_values, ordered, places_of
from millpond.kernels.columns import Array
from millpond.kernels.evaluate import Evaluator
from millpond.model.expressions import Expression, conjuncts_of
from millpond.model.types import is_decimal, is_integer
from millpond.plan.groups.plan import GroupPlan, Measure
from millpond.runtime.aggregates.hyperloglog import registers
from millpond.state.layout.cells import Piece, Slices, extreme_names, order_codes, taken, word_names
from millpond.state.layout.merge_rules import identities, merge_at, rule_of
from millpond.state.layout.session_atoms import reduced
from millpond.state.numbers.exact_moments import sums_of_powers
from millpond.state.numbers.exact_sums import (
    Words,
    sums_of_doubles,
    sums_of_integers,
    sums_of_products,
    sums_of_squares,
    sums_of_wide,
)


class PartialsInput(Protocol):
    """The input of `Partials`: which rows pass a filter, and the values of an expression."""

    def filter_of(self, condition: Expression | None) -> Hashable:
        """A name for the set of rows that pass a filter; equal names mean equal sets, whose work is shared."""

    def passed(self, name: Hashable) -> Mask | None:
        """The rows of a named set; None: all of them."""

    def values(self, expression: Expression) -> Array:
        """The expression's value in each row; it is arbitrary where the expression is NULL."""


class Rows:
    """The rows of a chunk that a group processes: those with an event time that are in time for some query."""

    def __init__(self, evaluator: Evaluator, keep: Mask) -> None:
        self.evaluator = evaluator
        self.index: Ints | None = None if keep.all() else np.flatnonzero(keep)
        self.count = evaluator.rows if self.index is None else len(self.index)
        self._filters: dict[Expression | None, tuple[Expression, ...]] = {}

    def at(self, chosen: Ints) -> Rows:
        """Some of these rows, in the order of `chosen`."""
        rows = Rows.__new__(Rows)
        rows.evaluator, rows.count, rows._filters = self.evaluator, len(chosen), {}
        rows.index = chosen if self.index is None else self.index[chosen]
        return rows

    def take(self, data: Array) -> Array:
        """The group's rows of a column; constants are repeated."""
        whole = np.broadcast_to(data, (self.evaluator.rows,))
        return whole if self.index is None else whole[self.index]

    def filter_of(self, condition: Expression | None) -> tuple[Expression, ...]:
        """The parts of a conjunction that some row of this chunk fails."""
        known = self._filters.get(condition)
        if known is None:
            known = tuple(part for part in conjuncts_of(condition) if not self._always(part))
            self._filters[condition] = known
        return known

    def _always(self, part: Expression) -> bool:
        held = self.evaluator(part).is_true()
        return held.ndim == 0 and bool(held)

    def passed(self, name: Hashable) -> Mask | None:
        """The rows where every part is TRUE; errors and NULLs in other parts cannot make a conjunction TRUE."""
        assert isinstance(name, tuple)
        if not name:
            return None
        true: Mask = np.ones((), bool)
        for part in name:
            true = true & self.evaluator(part).is_true()
        passed: Mask = self.take(true)
        return passed

    def values(self, expression: Expression) -> Array:
        known = self.evaluator(expression)
        data, unknown = self.take(known.data), known.null | known.error
        # the sum may have no filter of its own, and must not get words for arbitrary data in place of NULLs
        if unknown.any():
            data = data.copy()
            data[self.take(unknown)] = 0
        return data


class Partials:
    """Columns of partial results, one row per distinct cell of `ids` (ascending)."""

    def __init__(self, facts: PartialsInput, cells: Ints, size: int) -> None:
        """`cells`: the cell (below `size`) of each row."""
        self._facts = facts
        self.ids, self._cells = places_of(cells, size)
        self._columns: dict[str, Ints] = {}
        self._chosen: dict[Hashable, tuple[Ints, Ints | None]] = {}
        self._counts: dict[Hashable, Ints] = {}

    def add(self, measure: Measure) -> None:
        """Computes the columns of a measure."""
        name = self._facts.filter_of(measure.filter)
        if measure.kind == "count":
            self._columns[f"{measure.id}:n"] = self._count(name)
            return
        cells, index = self._selected(name)
        found = [self._facts.values(value) for value in measure.values]
        values = found if index is None else [column[index] for column in found]
        kind = "registers" if measure.precision else measure.kind
        partial = PARTIALS.get(kind)
        if partial is None:
            raise ValueError(f"No partial result is defined for a measure of the kind {measure.kind!r}.")
        self._columns.update(partial(measure, cells, values, len(self.ids)))

    def _selected(self, name: Hashable) -> tuple[Ints, Ints | None]:
        """Cells of the rows that pass, and their positions among all rows (None: all pass)."""
        selected = self._chosen.get(name)
        if selected is None:
            passed = self._facts.passed(name)
            index = None if passed is None else np.flatnonzero(passed)
            if index is None or len(index) == len(self._cells):
                selected = self._cells, None
            else:
                selected = self._cells[index], index
            self._chosen[name] = selected
        return selected

    def _count(self, name: Hashable) -> Ints:
        if name not in self._counts:
            cells, _ = self._selected(name)
            self._counts[name] = np.bincount(cells, minlength=len(self.ids))
        return self._counts[name]

    def present(self, presences: Sequence[Measure]) -> Ints:
        """Positions of the cells in which at least one of `presences` counts events."""
        seen = np.zeros(len(self.ids), bool)
        for measure in set(presences):
            seen |= self._columns[f"{measure.id}:n"] > 0
        return np.flatnonzero(seen)

    def columns(self, chosen: Ints) -> dict[str, Ints]:
        """All columns restricted to some cells; names that share an array share the restricted one, too."""
        if len(chosen) == len(self.ids):
            return self._columns
        cut: dict[int, Ints] = {}
        return {name: cut.setdefault(id(column), column[chosen]) for name, column in self._columns.items()}


class Rolled(NamedTuple):
    """Partials of a group: for each cell (ascending) its id, key * slice_count + slice, and the columns."""

    ids: Ints
    columns: dict[str, Ints]


def roll_up(group: GroupPlan, partials: Partials) -> Rolled:
    """Computes all measures that the group keeps, for the cells in which some query has events."""
    for measure in group.kept:
        partials.add(measure)
    if group.signed:  # rows that pass no filter were left out before
        return Rolled(partials.ids, partials.columns(np.arange(len(partials.ids))))
    present = partials.present([group.measures[query.presence] for query in group.celled])
    return Rolled(partials.ids[present], partials.columns(present))


def coarser(rolled: Rolled, keys: Ints, slice_count: int) -> Rolled:
    """The cells under coarser keys: `keys` is the coarser key of each key. Cells of equal key and slice are merged."""
    owners, slices = np.divmod(rolled.ids, slice_count)
    ids = keys[owners] * slice_count + slices
    order = ordered(ids)
    new = new_values(ids[order])
    return Rolled(ids[order][new], reduced(taken(rolled.columns, order), new))


def piece_of_cells(rolled: Rolled, every: Slices, low: int, high: int, first_key: int) -> Piece:
    """Cells `low` … `high` - 1 as a piece: keys are counted from `first_key`, and only slices that occur are kept."""
    slice_count = max(len(every.start_us), 1)
    cells = rolled.ids[low:high]
    key_rows = cells // slice_count
    used, slice_rows = places_of(cells - key_rows * slice_count)
    return Piece(every.take(used), slice_rows, key_rows - first_key, taken(rolled.columns, slice(low, high)))


def _one_column(measure: Measure, cells: Ints, values: Sequence[Array], size: int) -> dict[str, Ints]:
    """A column that is named by the kind of the measure and merges values, or their order codes, by its rule."""
    value, name = values[0], f"{measure.id}:{measure.kind}"
    if value.dtype != WIDE:
        value = order_codes(value) if value.dtype.kind == "f" else value.astype(np.int64)
    rule = rule_of(name)
    found = identities(rule, value.dtype, size)
    merge_at(rule, found, cells, value)
    return extreme_names(name, found)


def _registers(measure: Measure, cells: Ints, values: Sequence[Array], size: int) -> dict[str, Ints]:
    found = registers(cells, values[0].astype(np.int64, copy=False), measure.precision, size)
    return {f"{measure.id}:r{k}": column for k, column in found.items()}


def _products(measure: Measure, cells: Ints, values: Sequence[Array], size: int) -> dict[str, Ints]:
    """Exact sums of products of pairs; pairs that are not finite are counted by the sums of each side."""
    left, right = (value.astype(np.float64) for value in values)
    finite = np.isfinite(left) & np.isfinite(right)
    if not finite.all():
        cells, left, right = cells[finite], left[finite], right[finite]
    return word_names(measure.id, sums_of_products(cells, left, right, size))


def _sums(measure: Measure, cells: Ints, values: Sequence[Array], size: int) -> dict[str, Ints]:
    if is_decimal(measure.type):
        return word_names(measure.id, sums_of_wide(cells, values[0], size))
    if is_integer(measure.type):
        return word_names(measure.id, sums_of_integers(cells, values[0].astype(np.int64, copy=False), size))
    return _inexact(sums_of_doubles)(measure, cells, values, size)


Partial: TypeAlias = Callable[[Measure, Ints, Sequence[Array], int], dict[str, Ints]]
"""Computes the columns of a measure from the cell of each row, its values, and the number of cells."""


def _inexact(sums: Callable[[Ints, Array, int], Words]) -> Partial:
    """Sums of doubles or of their powers: exact for finite values; other values are counted separately."""

    def partial(measure: Measure, cells: Ints, values: Sequence[Array], size: int) -> dict[str, Ints]:
        columns: dict[str, Ints] = {}
        value = values[0].astype(np.float64)
        finite = np.isfinite(value)
        if not finite.all():
            for name, chosen in (
                ("nan", np.isnan(value)),
                ("inf", value == np.inf),
                ("-inf", value == -np.inf),
            ):
                if chosen.any():
                    columns[f"{measure.id}:{name}"] = np.bincount(cells[chosen], minlength=size)
            cells, value = cells[finite], value[finite]
        return columns | word_names(measure.id, sums(cells, value, size))

    return partial


PARTIALS: dict[str, Partial] = {
    "sum": _sums,
    "squares": _inexact(sums_of_squares),
    "power3": _inexact(lambda cells, values, size: sums_of_powers(cells, values, 3, size)),
    "power4": _inexact(lambda cells, values, size: sums_of_powers(cells, values, 4, size)),
    "products": _products,
    "registers": _registers,
    **dict.fromkeys(("min", "max", "and", "or", "xor"), _one_column),
}
"""How the columns of each kind of measure are computed; `count` is the number of rows."""
