"""Updating results: which rows an epoch's events change, for `update` queries and for corrected closed windows.

No emitted row is stored. An epoch knows the older cells and events, and the new ones. The windows and keys to emit
are those with new cells, and a row was emitted before if and only if the older cells alone produce it. The number of
corrections cannot be derived like this. It is counted in cells `<query>:n` by (window, key), in segments of their
own; these merge by addition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays import Ints, Mask, distinct_of
from millpond.model.windows import Sliced
from millpond.plan.groups.plan import GroupPlan, Measure, QueryPlan, fingerprint, measures_read
from millpond.plan.options.output_modes import OP, REVISION, only_distinct
from millpond.runtime.event_log.event_aggregates import needs_events
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.event_log.tallies import TallyLog, needs_tallies
from millpond.runtime.packets.row_batches import RowBatch
from millpond.runtime.rows.query_families import Family, QueryRows
from millpond.runtime.rows.shadow_diff import bytes_of_rows
from millpond.runtime.rows.window_rows import BlockKeys, located_rows_of_block
from millpond.runtime.task.task_values import Watermark
from millpond.runtime.windows.choose_combine import blocks_of
from millpond.runtime.windows.closing import Closing, at_once, batches, ends_over
from millpond.runtime.windows.combine import edges_of, slices_between
from millpond.runtime.windows.tiles import LiveCells
from millpond.state.keys.key_dictionary import KeyDictionary
from millpond.state.layout.cells import Cells, Piece, Slices, merge, taken

AT_ONCE = 64
"""The number of windows that are computed together."""

UPSERT, DELETE = "upsert", "delete"


class _Pairs(NamedTuple):
    """Rows of one query, and for each row its pair (window of a run, key) as one number; how many HAVING withheld."""

    rows: list[pa.RecordBatch]
    pairs: Ints
    withheld: int


class Changes:
    """Computes the updated rows of one group, on one instance, in one epoch; slots are those of its dictionary."""

    def __init__(
        self, group: GroupPlan, keys: KeyDictionary, buckets: int, old: LiveCells, current: LiveCells, fresh: Cells,
        revisions: Sequence[Cells], log: EventLog | None, tallies: TallyLog | None,
    ) -> None:  # fmt: skip
        """`old`: state before the epoch; `current`: with the new cells, `fresh`; `revisions`: earlier corrections."""
        self._group, self._keys, self._buckets = group, keys, buckets
        self._old, self._current, self._fresh, self._revisions = old, current, fresh, revisions
        self._log, self._tallies = log, tallies
        self._corrected: dict[str, list[Piece]] = {}

    def rows(self, plan: QueryPlan, before: Watermark, after: Watermark) -> QueryRows:
        """The updated rows of a query, and how many rows HAVING withheld, both by the query's name.

        Raises:
            OverflowedError: an exact sum, or an output expression, leaves its SQL type.
        """
        query, emitted, withheld = plan.query, list[pa.RecordBatch](), 0
        closed, most = before.at(query.delay_us), AT_ONCE
        if self._log is not None and needs_events(plan):
            most = at_once(self._log.rows)
        if query.corrected_for_us:
            for run in batches(self._closing(plan, closed, after.at(query.delay_us)), most):
                closed_rows = self._rows_of_windows(plan, self._current, run, None, None)
                emitted += [with_operation(rows, UPSERT, np.zeros(len(rows), np.int64)) for rows in closed_rows.rows]
                withheld += closed_rows.withheld
        if query.updating or closed is not None:
            present = _present(self._group.measures[plan.presence], plan.delay, self._fresh)
            for run in batches(self._windows_with_events(plan, present, None if query.updating else closed), most):
                rows, more_withheld = self._changed_rows(plan, present, run)
                emitted, withheld = emitted + rows, withheld + more_withheld
        joined = joined_rows(emitted)
        batches_made = () if joined is None else (RowBatch(query.name, joined),)
        return QueryRows(batches_made, {query.name: withheld} if withheld else {})

    def corrected(self, queries: Collection[str]) -> Cells:
        """How often rows of these queries were corrected in this epoch, to be added to the earlier numbers."""
        return merge([piece for name in queries for piece in self._corrected.get(name, ())], max(len(self._keys), 1))

    def _closing(self, plan: QueryPlan, low_us: int | None, high_us: int | None) -> list[Closing]:
        """The windows that close in this epoch."""
        if high_us is None or not self._current.slices:
            return []
        return self._windows(plan, *self._current.bounds_us(), low_us, high_us)

    def _windows_with_events(self, plan: QueryPlan, present: _Present, most_us: int | None) -> list[Closing]:
        """The windows that contain a new event of the query; if `most_us` is given, only those that end by then."""
        touched = distinct_of(present.slices)
        if not len(touched):
            return []
        starts, ends = self._fresh.slices.start_us[touched], self._fresh.slices.end_us[touched]
        last_us = int(ends.max()) + _window_of(plan).longest_us
        return self._windows(plan, starts, ends, None, last_us if most_us is None else min(last_us, most_us))

    def _windows(self, plan: QueryPlan, starts: Ints, ends: Ints, low: int | None, high: int) -> list[Closing]:
        if low is not None and low >= high:
            return []
        window = _window_of(plan)
        place = self._group.windows.index(window)
        candidates = (
            Closing(end, window.start_of(end), place, plan.delay) for end in ends_over(window, starts, ends, low, high)
        )
        return [closing for closing in candidates if plan.from_us <= closing.start_us < plan.before_us]

    def _changed_rows(
        self, plan: QueryPlan, present: _Present, run: Sequence[Closing]
    ) -> tuple[list[pa.RecordBatch], int]:
        """The rows of a run's windows that new events changed, and how many rows HAVING withheld."""
        query, inside = plan.query, [distinct_of(present.slots[present.within(one)]) for one in run]
        slots = distinct_of(np.concatenate(inside))
        pairs = np.concatenate([i * len(slots) + np.searchsorted(slots, some) for i, some in enumerate(inside)])
        current = self._rows_of_windows(plan, self._current, run, slots, pairs)
        previous = _Pairs([], np.zeros(0, np.int64), 0)
        # earlier outputs and values of live parameters are not known, so the emitted rows cannot be computed again
        repeats_nothing = query.updating and only_distinct(query) and not plan.outputs_vary
        if query.having is not None or query.unnested is not None or repeats_nothing:
            previous = self._rows_of_windows(plan, self._old, run, slots, pairs)
        elif query.corrected_for_us:
            previous = self._rows_of_windows(_bare(plan), self._old, run, slots, pairs)._replace(rows=[])
        removed = ~np.isin(previous.pairs, current.pairs)
        differs = _differ(current, previous) if repeats_nothing else None
        upserts, deletes = joined_rows(current.rows, differs), joined_rows(previous.rows, removed)
        changed = [(upserts, UPSERT, current.pairs), (deletes, DELETE, previous.pairs[removed])]
        if not query.corrected_for_us:
            emitted = [with_operation(rows, operation, None) for rows, operation, _ in changed if rows is not None]
            return emitted, current.withheld
        all_pairs: Ints = np.concatenate([pairs_of_rows for _, _, pairs_of_rows in changed])
        corrections = self._earlier_corrections(plan, run, slots, all_pairs)
        corrected = (corrections > 0) | np.isin(all_pairs, previous.pairs)
        self._count_corrections(plan, run, slots, all_pairs[corrected])
        numbers = np.split(np.where(corrected, corrections + 1, 0), [len(current.pairs)])
        return [
            with_operation(rows, operation, number)
            for (rows, operation, _), number in zip(changed, numbers, strict=True)
            if rows is not None
        ], current.withheld

    def _rows_of_windows(
        self, plan: QueryPlan, live: LiveCells, run: Sequence[Closing], slots: Ints | None, pairs: Ints | None
    ) -> _Pairs:
        """The rows of windows from the cells `live`: of all keys, or of given pairs of a window and one of `slots`."""
        group, edges, rows, withheld = self._group, edges_of(run), list[pa.RecordBatch](), 0
        measures = [group.measures[i] for i in measures_read([plan])]
        chosen, parts = slices_between(live, edges, plan.delay), live.parts
        count = len(self._keys) if slots is None else len(slots)
        if slots is not None:
            ids = {measure.base.id if group.signed else measure.id for measure in measures}
            parts = [narrowed(cells, mask, slots, ids) for cells, mask in zip(parts, chosen, strict=True)]
            parts = [cells for cells in parts if cells.rows]
            chosen = [np.ones(len(cells.slices.start_us), bool) for cells in parts]
        if not parts:
            return _Pairs([], np.zeros(0, np.int64), 0)
        blocks = blocks_of(group, run, parts, chosen, measures, count)
        events, tallies = None, None
        if self._log is not None and needs_events(plan):
            events = self._log.events_in(edges[0], edges[-1], plan.delay, fresh=live is self._current)
        if self._tallies is not None and needs_tallies(plan):
            tallies = self._tallies.events_in(edges[0], edges[-1], plan.delay, fresh=live is self._current)
        family, pairs_of_rows = Family(group, [plan]), list[Ints]()
        for block in blocks:
            block_slots = block.slots
            key_slots = block_slots if slots is None else slots[block_slots]
            keys = BlockKeys(self._group, self._keys, key_slots, events, tallies)
            among = _among(pairs, count, block_slots)
            located = located_rows_of_block(group, family, block, run, keys, self._buckets, among)
            if located is not None:
                pairs_of_rows.append(located.windows * count + block_slots[located.slots])
                rows.append(located.rows)
                withheld += located.withheld
        return _Pairs(rows, np.concatenate(pairs_of_rows) if pairs_of_rows else np.zeros(0, np.int64), withheld)

    def _earlier_corrections(self, plan: QueryPlan, run: Sequence[Closing], slots: Ints, pairs: Ints) -> Ints:
        """For each pair, how often its row was corrected in earlier epochs."""
        counts = np.zeros(len(pairs), np.int64)
        order = np.argsort(pairs)
        if not len(pairs):
            return counts
        windows = {(one.start_us, one.end_us): i for i, one in enumerate(run)}
        for cells in self._revisions:
            column = cells.columns.get(revisions_of(plan))
            bounds = zip(cells.slices.start_us.tolist(), cells.slices.end_us.tolist(), strict=True)
            window_of_slice = np.array([windows.get(bounds_of_slice, -1) for bounds_of_slice in bounds], np.int64)
            if column is None or not (window_of_slice >= 0).any():
                continue
            cells_of_slots = narrowed(cells, window_of_slice >= 0, slots, {revisions_of(plan).partition(":")[0]})
            windows_of_cells = np.repeat(window_of_slice[window_of_slice >= 0], np.diff(cells_of_slots.offsets))
            pairs_of_cells = windows_of_cells * len(slots) + cells_of_slots.slots
            at = np.minimum(np.searchsorted(pairs, pairs_of_cells, sorter=order), len(pairs) - 1)
            same = pairs[order[at]] == pairs_of_cells
            np.add.at(counts, order[at[same]], cells_of_slots.columns[revisions_of(plan)][same])
        return counts

    def _count_corrections(self, plan: QueryPlan, run: Sequence[Closing], slots: Ints, pairs: Ints) -> None:
        """Count a correction of the row of each pair."""
        if not len(pairs):
            return
        starts, ends = np.array([one.start_us for one in run]), np.array([one.end_us for one in run])
        slices = Slices(starts, ends, np.zeros(len(run), np.int64))
        once = {revisions_of(plan): np.ones(len(pairs), np.int64)}
        piece = Piece(slices, pairs // len(slots), slots[pairs % len(slots)], once)
        self._corrected.setdefault(plan.query.name, []).append(piece)


def revisions_of(plan: QueryPlan) -> str:
    """The column that counts corrections of a query's rows; the same for all versions of the query."""
    return f"{fingerprint(('revisions', plan.query.name.partition('@')[0]))}:n"


def _bare(plan: QueryPlan) -> QueryPlan:
    """The query without aggregates and outputs: enough to find out which rows it has."""
    query = msgspec.structs.replace(plan.query, aggregates=(), output=(), serve=False)
    return msgspec.structs.replace(plan, query=query, measures=())


def _differ(current: _Pairs, previous: _Pairs) -> Mask:
    """The rows that are not equal to the previous row of their pair, bit for bit.

    If an output column is an array or a map, all rows differ, because `bytes_of_rows` cannot compare them.
    """
    differs = np.ones(len(current.pairs), bool)
    both, now, then = np.intersect1d(current.pairs, previous.pairs, return_indices=True)
    if len(both):
        sides = ((current, now), (previous, then))
        rows = pa.concat_tables([pa.Table.from_batches(side.rows).take(pa.array(at)) for side, at in sides])
        found = bytes_of_rows(rows)
        if found is not None:
            codes = found.dictionary_encode().indices.to_numpy()
            differs[now] = codes[: len(both)] != codes[len(both) :]
    return differs


def _window_of(plan: QueryPlan) -> Sliced:
    window = plan.query.window
    assert isinstance(window, Sliced)
    return window


class _Present(NamedTuple):
    """New cells with events of a query, sorted by the start of their slice; one value per cell."""

    slots: Ints
    slices: Ints
    starts_us: Ints
    ends_us: Ints

    def within(self, window: Closing) -> Ints:
        """The positions of the cells in a window."""
        first, end = map(int, np.searchsorted(self.starts_us, [window.start_us, window.end_us]))
        return first + np.flatnonzero(self.ends_us[first:end] <= window.end_us)


def _present(presence: Measure, delay: int, cells: Cells) -> _Present:
    counted, passing = counted_in(presence, cells)
    if counted is None:
        return _Present(*np.zeros((4, 0), np.int64))
    owners = np.repeat(np.arange(len(cells.slices.start_us)), np.diff(cells.offsets))
    rows = np.flatnonzero((counted > 0) & (passing & (cells.slices.late_class <= delay))[owners])
    starts_us = cells.slices.start_us[owners[rows]]
    order = np.argsort(starts_us, kind="stable")
    rows, owners = rows[order], owners[rows[order]]
    return _Present(cells.slots[rows].astype(np.int64), owners, starts_us[order], cells.slices.end_us[owners])


def counted_in(measure: Measure, cells: Cells) -> tuple[npt.NDArray[np.integer] | None, Mask]:
    """The column that counts a measure's events (None: it does not exist), and the slices for which it does so."""
    signed = cells.slices.signed
    if signed is None:
        return cells.columns.get(f"{measure.id}:n"), np.ones(len(cells.slices.start_us), bool)
    passing = signed.table.passing([measure.filter_id], signed.ids)[:, 0]
    return cells.columns.get(f"{measure.base.id}:n"), passing


def narrowed(cells: Cells, chosen: Mask, slots: Ints, measures: Collection[str]) -> Cells:
    """The cells of the chosen slices that are of `slots` (ascending), with the columns of some measures.

    The slots of the result are positions in `slots`. Slots are sorted within a slice, so a few slots are found without
    reading the whole slice.
    """
    slices = np.flatnonzero(chosen)
    # stored slots have the narrowest type that fits, so slots too large for this type occur in no cell
    wanted_slots = slots[slots <= np.iinfo(cells.slots.dtype).max].astype(cells.slots.dtype)
    rows, places = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for low, high in zip(cells.offsets[slices].tolist(), cells.offsets[slices + 1].tolist(), strict=True):
        slice_slots = cells.slots[low:high]
        few_wanted = len(wanted_slots) < len(slice_slots)
        shorter, longer = (wanted_slots, slice_slots) if few_wanted else (slice_slots, wanted_slots)
        at = np.minimum(np.searchsorted(longer, shorter), len(longer) - 1)
        same = np.flatnonzero(longer[at] == shorter)
        rows.append(low + (at[same] if longer is slice_slots else same))
        places.append(same if longer is slice_slots else at[same])
    offsets = np.cumsum([0, *(len(part) for part in places[1:])])
    all_rows = np.concatenate(rows)
    columns = {name: column for name, column in cells.columns.items() if name.partition(":")[0] in measures}
    numbers = np.concatenate(places).astype(np.int32)
    return Cells(cells.slices.take(slices), offsets, numbers, taken(columns, all_rows))


def _among(pairs: Ints | None, count: int, block_slots: Ints) -> Callable[[Ints, Ints], Mask]:
    """Selects the rows whose window and slot (a position in `block_slots`) are one of the pairs; None: all rows."""

    def is_among(windows: Ints, slots: Ints) -> Mask:
        if pairs is None:
            return np.ones(len(slots), bool)
        return np.isin(windows * count + block_slots[slots], pairs)

    return is_among


def joined_rows(row_batches: Sequence[pa.RecordBatch], mask: Mask | None = None) -> pa.RecordBatch | None:
    """All rows, or only those in the `mask`, as one batch; None if there are none."""
    if not row_batches:
        return None
    table = pa.Table.from_batches(row_batches)
    if mask is not None:
        table = table.filter(pa.array(mask))
    table = table.combine_chunks()
    return table.to_batches()[0] if len(table) else None


def with_operation(rows: pa.RecordBatch, operation: str, revisions: Ints | None) -> pa.RecordBatch:
    """The rows with the `operation` and, if given, their revisions.

    Rows of served queries also get the column `__deleted`, for the view.
    """
    names, arrays = [*rows.schema.names, OP], [*rows.columns, pa.array([operation] * len(rows), pa.string())]
    if revisions is not None:
        names, arrays = [*names, REVISION], [*arrays, pa.array(revisions, pa.int64())]
    if "__key" in names:
        names, arrays = [*names, "__deleted"], [*arrays, pa.array(np.full(len(rows), operation == DELETE))]
    return pa.RecordBatch.from_arrays(arrays, names=names)
