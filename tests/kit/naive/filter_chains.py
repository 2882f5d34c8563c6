"""The naive twin of `runtime.windows.filter_chains`: computes results from cells split by signature, cell by cell."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from millpond.arrays import WIDE
from millpond.plan.groups.plan import GroupPlan, QueryPlan
from millpond.runtime.windows.closing import Closing
from millpond.runtime.windows.combine import ColumnValues
from millpond.state.layout.cells import Cells, extreme_of
from millpond.state.layout.merge_rules import is_low_word, rule_of

Results: TypeAlias = dict[tuple[int, int, int], dict[str, int]]
"""(position of the query, position of the window, slot) -> columns by the id of the first query's measure; columns with
their initial value are left out."""


def results(
    group: GroupPlan, plans: Sequence[QueryPlan], parts: Sequence[Cells], windows: Sequence[Closing]
) -> Results:
    """Every result with events; adds each cell to each query whose filter its signature passes."""
    found: Results = {}
    for query, plan in enumerate(plans):
        for measure, first in zip(_measures_of(plan), _measures_of(plans[0]), strict=True):
            for window, closing in enumerate(windows):
                for cells in parts:
                    _add(found, (query, window), group, measure, first, cells, closing)
    counts = f"{group.measures[plans[0].presence].id}:n"
    return {place: columns for place, columns in found.items() if columns.get(counts, 0) > 0}


def _measures_of(plan: QueryPlan) -> list[int]:
    return list(dict.fromkeys([plan.presence, *(place for places in plan.measures for place in places)]))


def _add(
    found: Results, of: tuple[int, int], group: GroupPlan, index: int, first: int, cells: Cells, window: Closing
) -> None:
    measure, signed = group.measures[index], cells.slices.signed
    assert signed is not None
    for i in range(len(signed.ids)):
        inside = window.start_us <= cells.slices.start_us[i] and cells.slices.end_us[i] <= window.end_us
        if not inside or not signed.table.passing([measure.filter_id], signed.ids[i : i + 1])[0, 0]:
            continue
        for row in range(int(cells.offsets[i]), int(cells.offsets[i + 1])):
            columns = found.setdefault((*of, int(cells.slots[row])), {})
            for name in cells.columns:
                base, _, part = name.partition(":")
                if base == measure.base.id and not is_low_word(name):
                    own = f"{group.measures[first].id}:{part}"
                    columns[own] = _merged(rule_of(name).name, columns.get(own), number(name, cells.columns, row))


def number(name: str, columns: Mapping[str, ColumnValues], row: int) -> int:
    """The value of a column in a row, with its low word if it has one."""
    found = extreme_of(name, columns)
    assert found is not None
    value = found[row]
    return (int(value["high"]) << 64) + int(value["low"]) if found.dtype == WIDE else int(value)


def _merged(how: str, known: int | None, value: int) -> int:
    if known is None:
        return value
    return _MERGED[how](known, value)


def _larger_bytes(left: int, right: int) -> int:
    pairs = zip(left.to_bytes(8, "little"), right.to_bytes(8, "little"), strict=True)
    return int.from_bytes(bytes(map(max, pairs)), "little")


_MERGED: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "minimum": min, "maximum": max, "registers": _larger_bytes,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor,
}  # fmt: skip
"""How two values merge, by the name of the rule."""
