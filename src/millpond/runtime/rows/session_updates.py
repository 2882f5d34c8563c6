"""Updating sessions: which sessions an epoch's events change, for `update` queries and for corrected closed sessions.

As in `window_updates`, no emitted row is stored. The atoms from before the epoch give the previous sessions, all atoms
the current ones, and the two are compared for keys with new events. A session only grows, so each previous session
lies within a current one. A session whose bounds changed is deleted, and the one that contains it is a new window with
revision 0. Corrections are counted in rows of their own, with (slot, start, end) stored like an atom's slot, first
and last time, in separate segments.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, Mask, distinct_of, places_of
from millpond.model.windows import Session
from millpond.plan.groups.plan import GroupPlan, QueryPlan, measures_read
from millpond.runtime.event_log.event_aggregates import needs_events
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.packets.row_batches import RowBatch
from millpond.runtime.rows.query_families import QueryRows
from millpond.runtime.rows.window_rows import BlockKeys, located_rows_of_sessions
from millpond.runtime.rows.window_updates import DELETE, UPSERT, joined_rows, revisions_of, with_operation
from millpond.runtime.task.task_values import Watermark
from millpond.runtime.windows.sessions import AT_ONCE, Sessions, open_sessions, sessions_of
from millpond.state.keys.key_dictionary import KeyDictionary
from millpond.state.layout.cells import Cells, Piece, Slices, piece_of, taken
from millpond.state.layout.merge_rules import LARGEST, SMALLEST
from millpond.state.layout.session_atoms import FIRST, LAST, joined, merge_atoms, reduced, some_atoms


class _SessionComparison(NamedTuple):
    """The current sessions of one gap and delay; which of them contain a new event; the previous sessions in these."""

    current: Sessions
    touched: Mask
    previous: Sessions


class _SessionRows(NamedTuple):
    """Rows of one query, the position of each row's session among the given ones, and how many rows HAVING withheld."""

    rows: list[pa.RecordBatch]
    places: Ints
    withheld: int


class SessionChanges:
    """Computes the updated rows of one group of session windows, on one instance, in one epoch."""

    def __init__(
        self, group: GroupPlan, keys: KeyDictionary, buckets: int, old: Sequence[Cells], atoms: Cells, fresh: Ints,
        revisions: Sequence[Cells], log: EventLog | None,
    ) -> None:  # fmt: skip
        """Prepares the comparison of previous and current sessions.

        `old`: atoms from before the epoch; `atoms`: all current atoms, merged; `fresh`: the positions of the atoms with
        new events; `revisions`: how often sessions were corrected.
        """
        self._group, self._keys, self._buckets = group, keys, buckets
        self._atoms, self._revisions, self._log = atoms, revisions, log
        self._fresh = np.zeros(atoms.rows, bool)
        self._fresh[fresh] = True
        with_events = np.zeros(len(keys), bool)
        with_events[atoms.slots[fresh]] = True
        old_atoms = [some_atoms(cells, with_events[cells.slots]) for cells in old if cells.rows]
        self._before = merge_atoms([piece_of(cells) for cells in old_atoms], group.gaps_us[0]).cells
        self._comparisons: dict[tuple[int, int], _SessionComparison] = {}
        self._corrected: dict[str, list[Piece]] = {}

    def rows(self, plan: QueryPlan, before: Watermark, after: Watermark) -> QueryRows:
        """The updated rows of a query, and how many rows HAVING withheld, both by the query's name.

        Raises:
            OverflowedError: an exact sum, or an output expression, leaves its SQL type.
        """
        query, (current, previous, places) = plan.query, self._sessions_to_emit(plan, before, after)
        size = len(current.slots)
        having = plan.query.having is not None or plan.query.unnested is not None
        upserts = self._rows_of_sessions(plan, current, self._atoms, fresh=True)
        compared = np.ones(len(places), bool) if having else places >= size  # else an upsert replaces it
        previous_rows = self._rows_of_sessions(plan, previous.take(compared), self._before, fresh=False)
        emitted_before = places[compared][previous_rows.places]
        removed = ~np.isin(emitted_before, upserts.places)
        deletes = joined_rows(previous_rows.rows, removed)
        changed = [(joined_rows(upserts.rows), UPSERT, upserts.places), (deletes, DELETE, emitted_before[removed])]
        numbers: list[Ints | None] = [None, None]
        if query.corrected_for_us:
            all_places = np.concatenate([places_of_rows for _, _, places_of_rows in changed])
            bounds = (np.concatenate(pair)[all_places] for pair in zip(current[:3], previous[:3], strict=True))
            corrections = self._earlier_corrections(plan, *bounds)
            corrected = (corrections > 0) | np.isin(all_places, emitted_before if having else places)
            self._count_corrections(plan, current, all_places[corrected & (all_places < size)], after)
            numbers = list(np.split(np.where(corrected, corrections + 1, 0), [len(upserts.places)]))
        emitted = joined_rows(
            [
                with_operation(rows, operation, revisions)
                for (rows, operation, _), revisions in zip(changed, numbers, strict=True)
                if rows is not None
            ]
        )
        withheld = {query.name: upserts.withheld} if upserts.withheld else {}
        return QueryRows(() if emitted is None else (RowBatch(query.name, emitted),), withheld)

    def corrected(self, queries: Collection[str]) -> Cells:
        """How often sessions of these queries were corrected in this epoch, to be added to the earlier numbers."""
        return merge_corrections([piece for name in queries for piece in self._corrected.get(name, ())])

    def _sessions_to_emit(
        self, plan: QueryPlan, before: Watermark, after: Watermark
    ) -> tuple[Sessions, Sessions, Ints]:  # fmt: skip
        """The current sessions to emit, the previously emitted sessions that current ones contain, and their numbers.

        The number of a previously emitted session is the position of the current session with the same bounds. If there
        is none, it is a number of its own, above all positions.
        """
        query, (current, touched, previous) = plan.query, self._sessions(plan)
        emitted_now, emitted_before = touched & (current.starts_us >= plan.from_us), previous.starts_us >= plan.from_us
        if not query.updating:
            was_closed, closed = (~open_sessions(current, mark.at(query.delay_us)) for mark in (before, after))
            emitted_now = closed & (~was_closed | touched) & (current.starts_us >= plan.from_us)
            emitted_before &= ~open_sessions(previous, before.at(query.delay_us))
        current, previous = current.take(emitted_now), previous.take(emitted_before)
        size = len(current.slots)
        places = np.arange(size, size + len(previous.slots))
        if size:
            at = _containing(current, previous)
            pairs = ((ours[at], theirs) for ours, theirs in zip(current[:3], previous[:3], strict=True))
            places = np.where(np.logical_and.reduce([left == right for left, right in pairs]), at, places)
        return current, previous, places

    def _sessions(self, plan: QueryPlan) -> _SessionComparison:
        assert isinstance(plan.query.window, Session)
        gap_and_delay = plan.query.window.gap_us, plan.delay
        if gap_and_delay not in self._comparisons:
            current, previous = sessions_of(self._atoms, *gap_and_delay), sessions_of(self._before, *gap_and_delay)
            touched = np.zeros(len(current.slots), bool)
            touched[(np.cumsum(current.new) - 1)[self._fresh[current.rows]]] = True
            if len(previous.slots):
                previous = previous.take(touched[_containing(current, previous)])
            self._comparisons[gap_and_delay] = _SessionComparison(current, touched, previous)
        return self._comparisons[gap_and_delay]

    def _rows_of_sessions(self, plan: QueryPlan, sessions: Sessions, atoms: Cells, *, fresh: bool) -> _SessionRows:
        """The rows of sessions, from their atoms and from the events of the log."""
        ids, first = {self._group.measures[i].id for i in measures_read([plan])}, 0
        rows, places, withheld = list[pa.RecordBatch](), [np.zeros(0, np.int64)], 0
        for part in sessions.runs(AT_ONCE):
            slots, places_of_slots = places_of(part.slots)
            events = None
            if self._log is not None and needs_events(plan):
                span = int(part.starts_us.min()), int(part.ends_us.max())
                events = self._log.events_in(*span, plan.delay, fresh=fresh)
            keys, columns = BlockKeys(self._group, self._keys, slots, events), part.columns(atoms, ids)
            part = part._replace(slots=places_of_slots)
            located = located_rows_of_sessions(self._group, plan, part, columns, keys, self._buckets)
            rows.append(located.rows)
            places.append(located.windows + first)
            first, withheld = first + len(part.slots), withheld + located.withheld
        return _SessionRows(rows, np.concatenate(places), withheld)

    def _earlier_corrections(self, plan: QueryPlan, slots: Ints, starts_us: Ints, ends_us: Ints) -> Ints:
        """For each session, how often its row was corrected in earlier epochs."""
        name, bounds = revisions_of(plan), [[slots, starts_us, ends_us]]
        counts = [np.zeros(len(slots), np.int64)]
        for cells in self._revisions:
            if name in cells.columns:
                rows = np.flatnonzero(np.isin(cells.slots, slots))
                stored = (cells.slots, cells.columns[FIRST], cells.columns[LAST])
                bounds.append([column[rows].astype(np.int64) for column in stored])
                counts.append(cells.columns[name][rows].astype(np.int64))
        order, new = _group_equal(*(np.concatenate(column) for column in zip(*bounds, strict=True)))
        owners = np.empty(len(order), np.int64)
        owners[order] = np.cumsum(new) - 1
        total = np.zeros(int(np.count_nonzero(new)), np.int64)
        np.add.at(total, owners, np.concatenate(counts))
        return total[owners[: len(slots)]]

    def _count_corrections(self, plan: QueryPlan, sessions: Sessions, places: Ints, after: Watermark) -> None:
        """Count a correction of each of these sessions that may be corrected again."""
        final = after.at(plan.query.late_after_us)
        places = places if final is None else places[sessions.ends_us[places] > final]
        if not len(places):
            return
        starts, ends = sessions.starts_us[places], sessions.ends_us[places]
        once = {FIRST: starts, LAST: ends, revisions_of(plan): np.ones(len(places), np.int64)}
        piece = Piece(_spanned(starts, ends), np.zeros(len(places), np.int64), sessions.slots[places], once)
        self._corrected.setdefault(plan.query.name, []).append(piece)


def merge_corrections(pieces: Sequence[Piece], until_us: int | None = None) -> Cells:
    """Merges counts of corrections, summed by session; drops sessions that end at or before `until_us`."""
    pieces = [piece for piece in pieces if len(piece.slots)]
    none = np.zeros(0, np.int64)
    columns = joined(pieces) if pieces else {FIRST: none, LAST: none}
    slots: Ints = np.concatenate([none, *(piece.slots.astype(np.int64) for piece in pieces)])
    rows = np.flatnonzero(columns[LAST] > until_us) if until_us is not None else np.arange(len(slots))
    order, new = _group_equal(slots[rows], columns[FIRST][rows], columns[LAST][rows])
    order = rows[order]
    merged = reduced(taken(columns, order), new) if len(order) else {FIRST: none, LAST: none}
    session_slots = slots[order][new]
    spanned = _spanned(merged[FIRST], merged[LAST])
    offsets = np.array([0, len(session_slots)][: len(spanned.start_us) + 1])
    return Cells(spanned, offsets, session_slots.astype(np.int32), merged)


def corrected_until(group: GroupPlan, mark: Watermark) -> int:
    """The time at or before which ended sessions can no longer be corrected."""
    times = [mark.at(plan.query.late_after_us) for plan in group.queries if plan.query.corrected_for_us]
    return min((int(SMALLEST) if time is None else time for time in times), default=int(LARGEST))


def _containing(current: Sessions, sessions: Sessions) -> Ints:
    """For each of `sessions`, the position of the last current session of its slot that begins no later.

    If a current session contains the given one, it is this session. `current` must not be empty.
    """
    times = distinct_of(np.concatenate([current.starts_us, sessions.starts_us]))
    current_codes, codes = (
        each.slots * len(times) + np.searchsorted(times, each.starts_us) for each in (current, sessions)
    )
    return np.maximum(np.searchsorted(current_codes, codes, "right") - 1, 0)


def _group_equal(slots: Ints, starts_us: Ints, ends_us: Ints) -> tuple[Ints, Mask]:
    """An order in which equal sessions are adjacent, and a mask of where in it a different session begins."""
    order = np.lexsort((ends_us, starts_us, slots))
    new = np.ones(len(order), bool)
    pairs = [column[order] for column in (slots, starts_us, ends_us)]
    new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in pairs])
    return order, new


def _spanned(starts_us: Ints, ends_us: Ints) -> Slices:
    """One slice that contains all sessions; no slice if there are no sessions."""
    if not len(starts_us):
        return Slices(starts_us, ends_us, starts_us)
    return Slices(np.array([starts_us.min()]), np.array([ends_us.max()]), np.zeros(1, np.int64))
