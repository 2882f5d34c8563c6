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
from millpond.model.windows import Sliding
from millpond.plan.groups.plan import GroupPlan, Measure, QueryPlan, fingerprint
from millpond.plan.options.output_modes import OP, REVISION
from millpond.runtime.event_log.event_aggregates import needs_events
from millpond.runtime.event_log.event_log import GroupLog
from millpond.runtime.event_log.tallies import TallyLog, needs_tallies
from millpond.runtime.packets.row_batches import RowBatch
from millpond.runtime.rows.query_families import Family, Made
from millpond.runtime.rows.window_rows import BlockKeys, located_rows_of_block
from millpond.runtime.task.task_values import Watermark
from millpond.runtime.windows.choose_combine import blocks_of
from millpond.runtime.windows.closing import Closing, at_once, batches, ends_over
from millpond.runtime.windows.combine import edges_of, slices_between
from millpond.runtime.windows.rollups import Held
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
        self, group: GroupPlan, keys: KeyDictionary, buckets: int, old: Held, now: Held, fresh: Cells,
        revisions: Sequence[Cells], log: GroupLog | None, tallies: TallyLog | None,
    ) -> None:  # fmt: skip
        """`old`: state before the epoch; `now`: state with the new cells, `fresh`; `revisions`: earlier corrections."""
        self._group, self._keys, self._buckets = group, keys, buckets
        self._old, self._now, self._fresh, self._revisions = old, now, fresh, revisions
        self._log, self._tallies = log, tallies
        self._corrected: dict[str, list[Piece]] = {}

    def rows(self, plan: QueryPlan, before: Watermark, after: Watermark) -> Made:
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
                found = self._answered(plan, self._now, run, None, None)
                emitted += [marked(rows, UPSERT, np.zeros(len(rows), np.int64)) for rows in found.rows]
                withheld += found.withheld
        if query.updating or closed is not None:
            for run in batches(self._touched(plan, None if query.updating else closed), most):
                rows, more = self._changed(plan, run)
                emitted, withheld = emitted + rows, withheld + more
        whole = joined_rows(emitted)
        batches_made = () if whole is None else (RowBatch(query.name, whole),)
        return Made(batches_made, {query.name: withheld} if withheld else {})

    def corrected(self, queries: Collection[str]) -> Cells:
        """How often rows of these queries were corrected in this epoch, to be added to the earlier numbers."""
        return merge([piece for name in queries for piece in self._corrected.get(name, ())], max(len(self._keys), 1))

    def _closing(self, plan: QueryPlan, low_us: int | None, high_us: int | None) -> list[Closing]:
        """The windows that close in this epoch."""
        if high_us is None or not self._now.slices:
            return []
        return self._windows(plan, *self._now.bounds_us(), low_us, high_us)

    def _touched(self, plan: QueryPlan, most_us: int | None) -> list[Closing]:
        """The windows that contain a new event of the query; if `most_us` is given, only those that end by then."""
        taken = _present(self._group.measures[plan.presence], plan.delay, self._fresh)
        touched = distinct_of(taken.slices)
        if not len(touched):
            return []
        starts, ends = self._fresh.slices.start_us[touched], self._fresh.slices.end_us[touched]
        last = int(ends.max()) + _window_of(plan).size_us
        return self._windows(plan, starts, ends, None, last if most_us is None else min(last, most_us))

    def _windows(self, plan: QueryPlan, starts: Ints, ends: Ints, low: int | None, high: int) -> list[Closing]:
        if low is not None and low >= high:
            return []
        window = _window_of(plan)
        place = self._group.windows.index(window)
        found = (
            Closing(end, end - window.size_us, place, plan.delay) for end in ends_over(window, starts, ends, low, high)
        )
        return [closing for closing in found if plan.from_us <= closing.start_us < plan.before_us]

    def _changed(self, plan: QueryPlan, run: Sequence[Closing]) -> tuple[list[pa.RecordBatch], int]:
        """The rows of a run's windows that new events changed, and how many rows HAVING withheld."""
        query, fresh = plan.query, self._fresh
        taken = _present(self._group.measures[plan.presence], plan.delay, fresh)
        starts, ends = fresh.slices.start_us[taken.slices], fresh.slices.end_us[taken.slices]
        inside = [np.flatnonzero((starts >= one.start_us) & (ends <= one.end_us)) for one in run]
        slots = distinct_of(taken.slots[distinct_of(np.concatenate(inside))])
        places = np.searchsorted(slots, taken.slots)
        pairs = distinct_of(np.concatenate([i * len(slots) + places[rows] for i, rows in enumerate(inside)]))
        now = self._answered(plan, self._now, run, slots, pairs)
        was = _Pairs([], np.zeros(0, np.int64), 0)
        if query.having is not None:
            was = self._answered(plan, self._old, run, slots, pairs)
        elif query.corrected_for_us:
            was = self._answered(_bare(plan), self._old, run, slots, pairs)._replace(rows=[])
        gone = ~np.isin(was.pairs, now.pairs)
        upserts, deletes = joined_rows(now.rows), joined_rows(was.rows, gone)
        changed = [(upserts, UPSERT, now.pairs), (deletes, DELETE, was.pairs[gone])]
        if not query.corrected_for_us:
            return [marked(rows, how, None) for rows, how, _ in changed if rows is not None], now.withheld
        every: Ints = np.concatenate([of for _, _, of in changed])
        earlier = self._earlier(plan, run, slots, every)
        again = (earlier > 0) | np.isin(every, was.pairs)
        self._note(plan, run, slots, every[again])
        numbers = np.split(np.where(again, earlier + 1, 0), [len(now.pairs)])
        return [
            marked(rows, how, number)
            for (rows, how, _), number in zip(changed, numbers, strict=True)
            if rows is not None
        ], now.withheld

    def _answered(
        self, plan: QueryPlan, held: Held, run: Sequence[Closing], slots: Ints | None, pairs: Ints | None
    ) -> _Pairs:
        """The rows of windows from the state `held`: of all keys, or of given pairs of a window and one of `slots`."""
        group, edges, found, withheld = self._group, edges_of(run), list[pa.RecordBatch](), 0
        places = dict.fromkeys([plan.presence, *(i for own in plan.measures for i in own)])
        measures = [group.measures[i] for i in places]
        chosen, parts = slices_between(held, edges, plan.delay), held.parts
        count = len(self._keys) if slots is None else len(slots)
        if slots is not None:
            ids = {measure.base.id if group.signed else measure.id for measure in measures}
            parts = [narrowed(cells, mask, slots, ids) for cells, mask in zip(parts, chosen, strict=True)]
            parts = [cells for cells in parts if cells.rows]
            chosen = [np.ones(len(cells.slices.start_us), bool) for cells in parts]
        if not parts:
            return _Pairs([], np.zeros(0, np.int64), 0)
        made = blocks_of(group, run, parts, chosen, measures, count)
        events, tallies = None, None
        if self._log is not None and needs_events(plan):
            events = self._log.within(edges[0], edges[-1], plan.delay, fresh=held is self._now)
        if self._tallies is not None and needs_tallies(plan):
            tallies = self._tallies.within(edges[0], edges[-1], plan.delay, fresh=held is self._now)
        family, of = Family(group, [plan]), list[Ints]()
        for block in made:
            here = block.slots
            keys = BlockKeys(self._group, self._keys, here if slots is None else slots[here], events, tallies)
            answer = located_rows_of_block(group, family, block, run, keys, self._buckets, _among(pairs, count, here))
            if answer is not None:
                of.append(answer.windows * count + here[answer.slots])
                found.append(answer.rows)
                withheld += answer.withheld
        return _Pairs(found, np.concatenate(of) if of else np.zeros(0, np.int64), withheld)

    def _earlier(self, plan: QueryPlan, run: Sequence[Closing], slots: Ints, pairs: Ints) -> Ints:
        """For each pair, how often its row was corrected in earlier epochs."""
        counts = np.zeros(len(pairs), np.int64)
        order = np.argsort(pairs)
        if not len(pairs):
            return counts
        windows = {(one.start_us, one.end_us): i for i, one in enumerate(run)}
        for cells in self._revisions:
            column = cells.columns.get(revisions_of(plan))
            bounds = zip(cells.slices.start_us.tolist(), cells.slices.end_us.tolist(), strict=True)
            mine = np.array([windows.get(of, -1) for of in bounds], np.int64)
            if column is None or not (mine >= 0).any():
                continue
            held = narrowed(cells, mine >= 0, slots, {revisions_of(plan).partition(":")[0]})
            own = np.repeat(mine[mine >= 0], np.diff(held.offsets)) * len(slots) + held.slots
            at = np.minimum(np.searchsorted(pairs, own, sorter=order), len(pairs) - 1)
            same = pairs[order[at]] == own
            np.add.at(counts, order[at[same]], held.columns[revisions_of(plan)][same])
        return counts

    def _note(self, plan: QueryPlan, run: Sequence[Closing], slots: Ints, pairs: Ints) -> None:
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


def _window_of(plan: QueryPlan) -> Sliding:
    window = plan.query.window
    assert isinstance(window, Sliding)
    return window


class _Present(NamedTuple):
    """Cells with events of a query: the position of the slice, and the slot, of each."""

    slices: Ints
    slots: npt.NDArray[np.integer]


def _present(presence: Measure, delay: int, cells: Cells) -> _Present:
    counted, passing = counted_in(presence, cells)
    if counted is None:
        return _Present(np.zeros(0, np.int64), np.zeros(0, np.int64))
    owners = np.repeat(np.arange(len(cells.slices.start_us)), np.diff(cells.offsets))
    rows = np.flatnonzero((counted > 0) & (passing & (cells.slices.late_class <= delay))[owners])
    return _Present(owners[rows], cells.slots[rows])


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
    picked = np.flatnonzero(chosen)
    # stored slots have the narrowest type that fits, so slots too large for this type occur in no cell
    wanted = slots[slots <= np.iinfo(cells.slots.dtype).max].astype(cells.slots.dtype)
    rows, places = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for low, high in zip(cells.offsets[picked].tolist(), cells.offsets[picked + 1].tolist(), strict=True):
        own = cells.slots[low:high]
        few, many = (wanted, own) if len(wanted) < len(own) else (own, wanted)
        at = np.minimum(np.searchsorted(many, few), len(many) - 1)
        same = np.flatnonzero(many[at] == few)
        rows.append(low + (at[same] if many is own else same))
        places.append(same if many is own else at[same])
    offsets = np.cumsum([0, *(len(part) for part in places[1:])])
    every = np.concatenate(rows)
    columns = {name: column for name, column in cells.columns.items() if name.partition(":")[0] in measures}
    numbers = np.concatenate(places).astype(np.int32)
    return Cells(cells.slices.take(picked), offsets, numbers, taken(columns, every))


def _among(pairs: Ints | None, count: int, here: Ints) -> Callable[[Ints, Ints], Mask]:
    """Selects the rows whose window and slot (a position in `here`) are one of the pairs; None: selects all rows."""

    def wanted(windows: Ints, slots: Ints) -> Mask:
        if pairs is None:
            return np.ones(len(slots), bool)
        return np.isin(windows * count + here[slots], pairs)

    return wanted


def joined_rows(batches_: Sequence[pa.RecordBatch], kept: Mask | None = None) -> pa.RecordBatch | None:
    """All rows, or only those that are `kept`, as one batch; None if there are none."""
    if not batches_:
        return None
    table = pa.Table.from_batches(batches_)
    if kept is not None:
        table = table.filter(pa.array(kept))
    table = table.combine_chunks()
    return table.to_batches()[0] if len(table) else None


def marked(rows: pa.RecordBatch, how: str, revisions: Ints | None) -> pa.RecordBatch:
    """The rows with the operation `how` and, if given, their revisions.

    Rows of served queries also get the column `__deleted`, for the view.
    """
    names, arrays = [*rows.schema.names, OP], [*rows.columns, pa.array([how] * len(rows), pa.string())]
    if revisions is not None:
        names, arrays = [*names, REVISION], [*arrays, pa.array(revisions, pa.int64())]
    if "__key" in names:
        names, arrays = [*names, "__deleted"], [*arrays, pa.array(np.full(len(rows), how == DELETE))]
    return pa.RecordBatch.from_arrays(arrays, names=names)
