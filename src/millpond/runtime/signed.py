"""Rows from cells that are split by signature: for many filters at once, what `combine` makes for one.

Queries that differ in their filters alone form chains: what one takes, the next takes too, as thresholds do. So in the
chain a cell belongs to all queries from some place on, and the result of a key and window changes only at the few
places where one of its cells comes in. Results are made once for each run of queries between two such places, by one
running sum, and copied for those queries whose rows somebody reads: work grows with cells, not with queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from millpond.arrays import WIDE, Ints, Mask, new_values, ordered, repeated
from millpond.plan.plan import GroupPlan, Measure, QueryPlan
from millpond.runtime.closing import Closing
from millpond.runtime.combine import Extremes
from millpond.state.cells import Cells, better, extreme_of, merge_rule, no_extreme, word_names, words_of
from millpond.state.exact import digits_of_words, words_of_digits
from millpond.state.signatures import Ranks, Signatures, union

_ENTRIES = 1 << 19
"""Cells, each as often as it comes into a chain, that are worked on together."""

_ADDED_AT_ONCE = 1024  # normalised words are below 2**51: int64 has room for 2**11 of them


class SignedBlock(NamedTuple):
    """Cells of slots `first` … `first + size - 1`, in the order of panes: pane i begins at `bounds[i]`, and `of` are
    their slots, counted from `first`; `edges_us`: the pane that begins there.

    `signatures` are positions in `table`; its last row is of none of them.
    """

    first: int
    size: int
    edges_us: Mapping[int, int]
    table: Signatures
    of: Ints
    signatures: Ints
    bounds: list[int]
    columns: Mapping[str, Extremes]

    @property
    def slots(self) -> Ints:
        """Its slots, in order."""
        return np.arange(self.first, self.first + self.size)


class Runs(NamedTuple):
    """Results: each is of the queries at places `first` … `until` - 1 of their chains, of a window (its position) and a
    slot (within the block); in the order of windows, then slots. `columns` are of the first query's measures.
    """

    first: Ints
    until: Ints
    windows: Ints
    slots: Ints
    columns: dict[str, Extremes]


class Chains:
    """Some queries in chains, one after the other, in each the query first that takes least: `order` are positions.

    `ends[p]` is where the chain of place p ends.
    """

    def __init__(self, group: GroupPlan, plans: Sequence[QueryPlan], table: Signatures) -> None:
        """`plans` have measures that are alike but for their filters."""
        asked = [[plan.presence, *(i for places in plan.measures for i in places)] for plan in plans]
        columns = [[group.measures[i] for i in same] for same in zip(*asked, strict=True)]
        places, nowhere = table.places, (len(table.lengths), 0)
        found: dict[bytes, int] = {}
        self._of: list[tuple[Measure, int]] = []
        filters: list[Ints] = []
        for same in columns:
            at = np.array([places.get(measure.filter_id, nowhere) for measure in same])
            mine = found.setdefault(at.tobytes(), len(filters))
            if mine == len(filters):
                filters.append(at)
            self._of.append((same[0], mine))
        ladders = np.stack([at[:, 0] for at in filters], axis=1)
        steps = np.stack([at[:, 1] for at in filters], axis=1)
        self.order = np.lexsort([*-steps.T[::-1], *ladders.T[::-1]])
        ladders, steps = ladders[self.order], steps[self.order]
        begins = np.append(True, (np.diff(ladders, axis=0) != 0).any(axis=1) | (np.diff(steps, axis=0) > 0).any(axis=1))
        starts = np.flatnonzero(begins)
        self._chain = np.cumsum(begins) - 1
        self._ends = np.append(starts[1:], len(begins))
        self.ends: Ints = self._ends[self._chain]
        self._entries = [
            _entries(table.ranks, ladders[starts, u], steps[:, u], starts, self._ends) for u in range(len(filters))
        ]

    def runs(self, block: SignedBlock, windows: Sequence[Closing]) -> Runs:
        """The results of some windows."""
        rows, of = _rows_of(block, windows)
        cells, count = of * block.size + block.of[rows], len(self.order)
        spread = [_spread(entries, block.signatures[rows], cells * count) for entries in self._entries]
        keys = np.concatenate([keys for keys, _ in spread])
        order = ordered(keys)
        keys, rows = keys[order], np.concatenate([rows[at] for _, at in spread])[order]
        by = np.repeat(np.arange(len(spread)), [len(own) for own, _ in spread])[order]
        cells = keys // count
        places = keys - cells * count
        chain = self._chain[places]
        begins = new_values(cells) | new_values(chain)
        lasts = np.flatnonzero(np.append(new_values(keys)[1:], True)[: len(keys)])
        running = _Running(begins)
        columns: dict[str, Extremes] = {}
        for measure, own in self._of:
            taken = _taken_by(block.columns, measure.base.id, rows, None if len(spread) == 1 else by == own)
            found = running.of(measure.base.id, taken, lasts)
            columns |= {f"{measure.id}:{name.partition(':')[2]}": column for name, column in found.items()}
        until, within = self.ends[places[lasts]], np.flatnonzero(~begins[(lasts + 1)[:-1]])
        until[within] = places[lasts[within + 1]]
        present = columns.get(f"{self._of[0][0].id}:n")
        kept = np.zeros(0, np.int64) if present is None else np.flatnonzero(present > 0)
        lasts, until = lasts[kept], until[kept]
        columns = {name: column[kept] for name, column in columns.items()}
        return Runs(places[lasts], until, cells[lasts] // block.size, cells[lasts] % block.size, columns)


class _Entries(NamedTuple):
    """Where cells come into chains: those of signature i do at `places[bounds[i] : bounds[i + 1]]`."""

    bounds: Ints
    places: Ints


def _entries(ranks: Ranks, ladders: Ints, steps: Ints, starts: Ints, ends: Ints) -> _Entries:
    """For one filter of each query: `ladders` of chains, `steps` of places; chains begin at `starts`."""
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
    return _Entries(np.searchsorted(rows[some], np.arange(len(ranks) + 1)), ends[chains[some]] - held[some])


def _spread(entries: _Entries, signatures: Ints, bases: Ints) -> tuple[Ints, Ints]:
    """Each cell as often as it comes into a chain: its base and the place there, and which cell it is."""
    rows, nth = repeated((entries.bounds[1:] - entries.bounds[:-1])[signatures])
    return bases[rows] + entries.places[entries.bounds[signatures[rows]] + nth], rows


def _rows_of(block: SignedBlock, windows: Sequence[Closing]) -> tuple[Ints, Ints]:
    """The cells in some windows, and the window (its position) of each."""
    rows, of = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for i, window in enumerate(windows):
        first, end = (block.bounds[block.edges_us[edge]] for edge in (window.start_us, window.end_us))
        rows.append(np.arange(first, end))
        of.append(np.full(end - first, i))
    return np.concatenate(rows), np.concatenate(of)


def _taken_by(columns: Mapping[str, Extremes], measure: str, rows: Ints, mine: Mask | None) -> dict[str, Extremes]:
    """The columns of a measure at some cells; where they are not `mine`, what changes nothing."""
    taken = {name: column[rows] for name, column in columns.items() if name.partition(":")[0] == measure}
    if mine is not None:
        for name, column in taken.items():
            column[~mine] = no_extreme(merge_rule(name), column.dtype, ())
    return taken


class _Running:
    """Columns added up, or their best, from the beginning of each part on."""

    def __init__(self, begins: Mask) -> None:
        """`begins`: where parts begin."""
        starts = np.flatnonzero(begins)
        self._lengths = np.diff(np.append(starts, len(begins)))
        self._starts, self._longest = starts, int(self._lengths.max(initial=0))
        self._nth = np.arange(len(begins)) - np.repeat(starts, self._lengths)

    def of(self, measure: str, columns: Mapping[str, Extremes], chosen: Ints) -> dict[str, Extremes]:
        """The columns of a measure, at the chosen rows."""
        words = words_of(measure, columns)
        if words and self._longest > _ADDED_AT_ONCE:
            digits = {place: self._added(digit)[chosen] for place, digit in digits_of_words(words).items()}
            summed = words_of_digits(digits) or {0: np.zeros(len(chosen), np.int64)}
        else:
            summed = {place: self._added(word)[chosen] for place, word in words.items()}
        others = {name: column for name, column in columns.items() if ":w" not in name}
        return word_names(measure, summed) | {
            name: (self._added(column) if merge_rule(name) == "add" else self._best(merge_rule(name), column))[chosen]
            for name, column in others.items()
        }

    def _added(self, column: Ints) -> Ints:
        total = np.cumsum(column)
        before = total[self._starts] - column[self._starts]
        added: Ints = total - np.repeat(before, self._lengths)
        return added

    def _best(self, how: str, column: Extremes) -> Extremes:
        """By doubling: after k steps each is the best of 2**k up to it (Hillis, Steele 1986)."""
        step = 1
        while step < self._longest:
            rows = np.flatnonzero(self._nth >= step)
            found = better(how, column[rows], column[rows - step])
            column = column.copy()
            column[rows] = found
            step *= 2
        return column


def signed_blocks(
    edges: list[int], parts: Sequence[Cells], chosen: Sequence[Mask], measures: Sequence[Measure], keys: int
) -> Iterator[SignedBlock]:
    """The cells of the chosen slices between `edges`, block by block of slots, for some measures."""
    tables = [cells.slices.signed.table for cells in parts if cells.slices.signed is not None]
    if not tables:
        return
    table = union(tables)
    entered = np.count_nonzero(table.ranks, axis=1)
    flat = _flat(edges, parts, chosen, {measure.base.id for measure in measures}, table, _asked(table, measures))
    count = max(1, int(entered[flat.signatures].sum()) // _ENTRIES)
    step = max(1, -(-keys // count), keys >> 15)
    owners, panes = flat.slots // step, len(edges) - 1
    order = ordered(owners * panes + flat.panes)
    bounds = np.searchsorted(owners[order] * panes + flat.panes[order], np.arange(-(-keys // step) * panes + 1))
    places = {edge: place for place, edge in enumerate(edges)}
    for block, (low, high) in enumerate(pairwise(bounds[::panes].tolist())):
        if low < high:
            rows, first = order[low:high], block * step
            yield SignedBlock(
                first, min(step, keys - first), places, table, flat.slots[rows] - first, flat.signatures[rows],
                (bounds[block * panes : (block + 1) * panes + 1] - low).tolist(),
                {name: column[rows] for name, column in flat.columns.items()},
            )  # fmt: skip


def _asked(table: Signatures, measures: Sequence[Measure]) -> Mask:
    """The signatures that pass the filter of some measure."""
    least, places = np.array(table.lengths), table.places
    for name in {measure.filter_id for measure in measures}:
        ladder, step = places.get(name, (-1, 0))
        if ladder >= 0:
            least[ladder] = min(least[ladder], step)
    return np.asarray((table.ranks > least).any(axis=1))


class _Flat(NamedTuple):
    """Rows of many cells one after the other: slot, pane, and place of the signature in the table."""

    slots: Ints
    panes: Ints
    signatures: Ints
    columns: Mapping[str, Extremes]


def _flat(
    edges: list[int], parts: Sequence[Cells], chosen: Sequence[Mask], measures: set[str], table: Signatures, asked: Mask
) -> _Flat:
    """The rows of the chosen slices whose signature is asked for."""
    borders = np.array(edges, np.int64)
    names = sorted({name for cells in parts for name in cells.columns if name.partition(":")[0] in measures})
    slots, panes, signatures = [], [], []
    columns: dict[str, list[Extremes]] = {name: [] for name in names if merge_rule(name) != "low"}
    are_wide = {name for name in columns if f"{name}low" in names}
    for cells, mask in zip(parts, chosen, strict=True):
        if cells.slices.signed is None:
            continue
        own = np.searchsorted(table.ids, cells.slices.signatures, "right") - 1  # UNSIGNED is before all of them
        wanted = mask & (own >= 0) & asked[own]
        owners = np.repeat(np.arange(len(mask)), np.diff(cells.offsets))
        rows = np.flatnonzero(wanted[owners])
        owners = owners[rows]
        slots.append(cells.slots[rows].astype(np.int64))
        panes.append((np.searchsorted(borders, cells.slices.start_us, "right") - 1)[owners])
        signatures.append(own[owners])
        for name, found in columns.items():
            found.append(_taken(name, cells, rows, WIDE if name in are_wide else np.dtype(np.int64)))
    joined = {name: np.concatenate(found) for name, found in columns.items()}
    return _Flat(np.concatenate(slots), np.concatenate(panes), np.concatenate(signatures), joined)


def _taken(name: str, cells: Cells, rows: Ints, dtype: np.dtype[Any]) -> Extremes:
    """Some rows of a column; of one that the cells lack, what changes nothing."""
    how = merge_rule(name)
    column = cells.columns.get(name) if how == "add" else extreme_of(name, cells.columns)
    if column is None:
        return np.zeros(len(rows), np.int64) if how == "add" else no_extreme(how, dtype, len(rows))
    return column[rows].astype(dtype, copy=False)
