"""Combines cells that are split by signature, for many filters at once (`combine` does it for one).

Queries that differ only in their filters form chains: each query takes every event that the previous one takes, as
thresholds do. In a chain, a cell belongs to all queries from some position on, where it *enters* the chain. So the
result of a key and window changes only at positions at which one of its cells enters. Each distinct result is computed
once, by one running sum, and copied to the queries that emit it. The work grows with the number of cells, not of
queries.

The cells of a block are sorted once, by key and position in the chain; each window selects its panes in that order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.arrays import Ints, Mask, new_values, ordered, places_among, repeated
from millpond.plan.groups.plan import GroupPlan, Measure, QueryPlan
from millpond.runtime.windows.closing import Closing
from millpond.runtime.windows.combine import ColumnValues
from millpond.runtime.windows.combine_by_filter import SignedBlock
from millpond.state.keys.filter_signatures import Ranks, Signatures
from millpond.state.layout.cells import word_names, words_of
from millpond.state.layout.merge_rules import ADD, MergeRule, identities, merged, merged_runs, rule_of
from millpond.state.numbers.exact_sums import digits_of_words, words_of_digits

_PAIRS = 1 << 16
"""The number of cells that are processed together, each counted per window and chain; so few stay in the CPU cache."""

_EVERY = -1  # stands for a filter that every entry passes

_ADDED_AT_ONCE = 1024  # normalised words are below 2**51: int64 has room for 2**11 of them


class Runs(NamedTuple):
    """Results, each of a window (position) and a slot (within the block), in the order of windows, then slots.

    A result belongs to the queries at places `first` … `until` - 1 of their chains. `columns` are those of the first
    query's measures.
    """

    first: Ints
    until: Ints
    windows: Ints
    slots: Ints
    columns: dict[str, ColumnValues]


class Chains:
    """Arranges queries in chains; in each chain, the query that takes the fewest events is first.

    `order`: the positions of the queries, chain after chain. `ends[p]`: the end of the chain that contains place p.
    """

    def __init__(self, group: GroupPlan, plans: Sequence[QueryPlan], table: Signatures) -> None:
        """The measures of all `plans` must be equal except for their filters."""
        positions = [[plan.presence, *(i for places in plan.measures for i in places)] for plan in plans]
        columns = [[group.measures[i] for i in same] for same in zip(*positions, strict=True)]
        places, nowhere = table.places, (len(table.lengths), 0)
        known: dict[bytes, int] = {}
        filtered: list[tuple[Measure, int]] = []
        filters: list[Ints] = []
        for same in columns:
            at = np.array([places.get(measure.filter_id, nowhere) for measure in same])
            mine = known.setdefault(at.tobytes(), len(filters))
            if mine == len(filters):
                filters.append(at)
            filtered.append((same[0], mine))
        ladders = np.stack([at[:, 0] for at in filters], axis=1)
        steps = np.stack([at[:, 1] for at in filters], axis=1)
        self.order = np.lexsort([*-steps.T[::-1], *ladders.T[::-1]])
        ladders, steps = ladders[self.order], steps[self.order]
        begins = np.append(True, (np.diff(ladders, axis=0) != 0).any(axis=1) | (np.diff(steps, axis=0) > 0).any(axis=1))
        starts = np.flatnonzero(begins)
        self._chain = np.cumsum(begins) - 1
        ends = np.append(starts[1:], len(begins))
        self.ends: Ints = ends[self._chain]
        self._entries = _joined(
            [_entries(table.ranks, ladders[starts, u], steps[:, u], starts, ends) for u in range(len(filters))],
            len(table.ids), len(begins),
        )  # fmt: skip
        by = self._entries.by
        self._of = [(measure, _EVERY if by[:, own].all() else own) for measure, own in filtered]

    def runs(self, block: SignedBlock, windows: Sequence[Closing]) -> Runs:
        """The results of some windows for a block."""
        entered = self._entered(block)
        panes = [(block.edges_us[window.start_us], block.edges_us[window.end_us]) for window in windows]
        found = [self._results(entered, rows, of) for rows, of in _pairs(entered.panes, panes)]
        first, until, of, slots = (np.concatenate(parts) for parts in zip(*(runs[:4] for runs in found), strict=True))
        names = dict.fromkeys(name for runs in found for name in runs.columns)
        columns = {}
        for name in names:  # a word that is zero everywhere is left out
            parts = [runs.columns.get(name, np.zeros(len(runs.first), np.int64)) for runs in found]
            columns[name] = np.concatenate(parts)
        return Runs(first, until, of, slots, columns)

    def _entered(self, block: SignedBlock) -> _Entered:
        entries = self._entries
        rows, nth = repeated(np.diff(entries.bounds)[block.signatures])
        at = entries.bounds[block.signatures[rows]] + nth
        codes = block.of[rows] * len(self.order) + entries.places[at]
        order = ordered(codes)
        rows, at = rows[order], at[order]
        panes = np.repeat(np.arange(len(block.bounds) - 1, dtype=np.int32), np.diff(block.bounds))
        taken = {name: column[rows] for name, column in block.columns.items()}
        by_filter: dict[tuple[str, int], dict[str, ColumnValues]] = {}
        for measure, by in self._of:
            if (measure.base.id, by) not in by_filter:
                columns = {name: column for name, column in taken.items() if name.partition(":")[0] == measure.base.id}
                by_filter[measure.base.id, by] = columns if by == _EVERY else _only(entries.by[at, by], columns)
        return _Entered(codes[order], panes[rows], by_filter)

    def _results(self, entered: _Entered, rows: Ints, of: Ints) -> Runs:
        """The results of some entries; `of` is the window (position) of each, in ascending order."""
        codes = entered.codes[rows]
        starts = np.flatnonzero(new_values(codes) | new_values(of))
        of, (slots, places) = of[starts], np.divmod(codes[starts], len(self.order))
        begins = new_values(self._chain[places]) | new_values(slots) | new_values(of)
        groups = _Groups(starts, len(rows), begins)
        values: dict[tuple[str, int], dict[str, ColumnValues]] = {}
        columns: dict[str, ColumnValues] = {}
        for measure, by in self._of:
            base = measure.base.id, by
            if base not in values:
                values[base] = groups.of(base[0], {name: own[rows] for name, own in entered.columns[base].items()})
            columns |= {f"{measure.id}:{name.partition(':')[2]}": value for name, value in values[base].items()}
        until, within = self.ends[places], np.flatnonzero(~begins[1:])
        until[within] = places[within + 1]
        present = columns.get(f"{self._of[0][0].id}:n")
        kept = np.zeros(0, np.int64) if present is None else np.flatnonzero(present > 0)
        taken = {name: column[kept] for name, column in columns.items()}
        return Runs(places[kept], until[kept], of[kept], slots[kept], taken)


class _Entries(NamedTuple):
    """The places at which cells enter chains.

    Cells of signature i enter at `places[bounds[i] : bounds[i + 1]]`, and at each of these places by the filters
    (columns) for which `by` is true.
    """

    bounds: Ints
    places: Ints
    by: Mask


def _joined(found: Sequence[tuple[Ints, Ints]], signatures: int, queries: int) -> _Entries:
    """Combines the signatures and places of all filters."""
    distinct, targets = places_among([rows * queries + places for rows, places in found], signatures * queries)
    by = np.zeros((len(distinct), len(found)), bool)
    for column, own in enumerate(targets):
        by[own, column] = True
    rows = distinct // queries
    return _Entries(np.searchsorted(rows, np.arange(signatures + 1)), distinct - rows * queries, by)


class _Entered(NamedTuple):
    """The cells of a block, once per chain that they enter, in the order of slots, then places, then panes.

    `codes`: slot * number of queries + place. `columns`: by the id of the measure without its filter, and the position
    of the filter.
    """

    codes: Ints
    panes: npt.NDArray[np.int32]
    columns: dict[tuple[str, int], dict[str, ColumnValues]]


def _entries(ranks: Ranks, ladders: Ints, steps: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """For one filter of each query, the signatures that enter a chain, and the places at which they do.

    `ladders`: the ladder of the filter in each chain. `steps`: its step in the ladder at each place. `starts` and
    `ends`: the bounds of the chains.
    """
    by_ladder = np.argsort(ladders, kind="stable")
    used, first, many = np.unique(ladders[by_ladder], return_index=True, return_counts=True)
    known = used < ranks.shape[1]
    used, first, many = used[known], first[known], many[known]
    rows, at = np.nonzero(ranks[:, used])
    reached = ranks[rows, used[at]].astype(np.int64)
    of, nth = repeated(many[at])
    rows, reached, chains = rows[of], reached[of], by_ladder[first[at][of] + nth]
    apart = int(max(steps.max(initial=0), reached.max(initial=0))) + 1
    above = np.sort(np.repeat(np.arange(len(starts)), ends - starts) * apart + steps)
    held = np.searchsorted(above, chains * apart + reached) - starts[chains]
    some = np.flatnonzero(held)
    return rows[some], ends[chains[some]] - held[some]


def _only(mine: Mask, columns: Mapping[str, ColumnValues]) -> dict[str, ColumnValues]:
    """Copies of the columns, with values that change no result in the rows that are not `mine`."""
    kept = {name: column.copy() for name, column in columns.items()}
    for name, column in kept.items():
        column[~mine] = identities(rule_of(name), column.dtype, ())
    return kept


def _pairs(panes: npt.NDArray[np.int32], windows: Sequence[tuple[int, int]]) -> Iterator[tuple[Ints, Ints]]:
    """The entries of each window, and the window (position) of each entry; several windows at once.

    `windows`: the range of panes [first, end) of each window.
    """
    rows, of, count = list[Ints](), list[Ints](), 0
    for window, (first, end) in enumerate(windows):
        own = np.flatnonzero((panes >= first) & (panes < end))
        rows.append(own)
        of.append(np.full(len(own), window))
        count += len(own)
        if count >= _PAIRS or window == len(windows) - 1:
            yield np.concatenate(rows), np.concatenate(of)
            rows, of, count = [], [], 0


class _Groups:
    """Running results of groups of rows: for each group, of all rows from the start of its part to its own end.

    A part consists of consecutive groups.
    """

    def __init__(self, starts: Ints, rows: int, begins: Mask) -> None:
        """`starts`: the first row of each group, of `rows` in total; `begins`: which groups begin a part."""
        parts = np.flatnonzero(begins)
        first = np.repeat(parts, np.diff(np.append(parts, len(starts))))
        self._starts, self._alone = starts, len(starts) == rows
        self._ends = np.append(starts[1:], rows) if len(starts) else starts
        self._from = starts[first]
        self._nth = np.arange(len(starts)) - first
        self._rows = int((self._ends - self._from).max(initial=0))

    def of(self, measure: str, columns: Mapping[str, ColumnValues]) -> dict[str, ColumnValues]:
        """The running sums or extremes of the columns of a measure."""
        words = words_of(measure, columns)
        if words and self._rows > _ADDED_AT_ONCE:
            digits = {place: self._running(ADD, digit) for place, digit in digits_of_words(words).items()}
            summed = words_of_digits(digits) or {0: np.zeros(len(self._starts), np.int64)}
        else:
            summed = {place: self._running(ADD, word) for place, word in words.items()}
        rules = {name: rule_of(name) for name in columns if ":w" not in name}
        return word_names(measure, summed) | {
            name: self._doubled(rule, columns[name]) if rule.inverse is None else self._running(rule, columns[name])
            for name, rule in rules.items()
        }

    def _running(self, rule: MergeRule, column: Ints) -> Ints:
        """Takes the running result before each part away from that at the end of each group."""
        assert rule.inverse is not None
        total = np.full(len(column) + 1, rule.identity, np.int64)
        rule.ufunc.accumulate(column, out=total[1:])
        return np.asarray(rule.inverse(total[self._ends], total[self._from]))

    def _doubled(self, rule: MergeRule, column: ColumnValues) -> ColumnValues:
        """Merges each group, then by doubling: after k steps, 2**k groups up to each (Hillis, Steele 1986)."""
        if not self._alone:
            column = merged_runs(rule, column, self._starts)
        step, longest = 1, int(self._nth.max(initial=0))
        while step <= longest:
            rows = np.flatnonzero(self._nth >= step)
            found = merged(rule, column[rows], column[rows - step])
            column = column.copy()
            column[rows] = found
            step *= 2
        return column
