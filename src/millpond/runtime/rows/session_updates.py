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
from millpond.runtime.event_log.event_log import GroupLog
from millpond.runtime.packets.row_batches import RowBatch
from millpond.runtime.rows.query_families import Made
from millpond.runtime.rows.window_rows import BlockKeys, located_rows_of_sessions
from millpond.runtime.rows.window_updates import DELETE, UPSERT, joined_rows, marked, revisions_of
from millpond.runtime.task.task_values import Watermark
from millpond.runtime.windows.sessions import AT_ONCE, Sessions, open_ones, sessions_of
from millpond.state.keys.key_dictionary import KeyDictionary
from millpond.state.layout.cells import Cells, Piece, Slices, piece_of, taken
from millpond.state.layout.merge_rules import LARGEST, SMALLEST
from millpond.state.layout.session_atoms import FIRST, LAST, joined, merge_atoms, reduced, some_atoms


class _Compared(NamedTuple):
    """The current sessions of one gap and delay; which of them contain a new event; the previous sessions in these."""

    now: Sessions
    touched: Mask
    was: Sessions


class _SessionRows(NamedTuple):
    """Rows of one query, the position of each row's session among the given ones, and how many rows HAVING withheld."""

    rows: list[pa.RecordBatch]
    places: Ints
    withheld: int


class SessionChanges:
    """Computes the updated rows of one group of session windows, on one instance, in one epoch."""

    def __init__(
        self, group: GroupPlan, keys: KeyDictionary, buckets: int, old: Sequence[Cells], atoms: Cells, fresh: Ints,
        revisions: Sequence[Cells], log: GroupLog | None,
    ) -> None:  # fmt: skip
        """Prepares the comparison of previous and current sessions.

        `old`: atoms from before the epoch; `atoms`: all current atoms, merged; `fresh`: the positions of the atoms with
        new events; `revisions`: how often sessions were corrected.
        """
        self._group, self._keys, self._buckets = group, keys, buckets
        self._atoms, self._revisions, self._log = atoms, revisions, log
        self._fresh = np.zeros(atoms.rows, bool)
        self._fresh[fresh] = True
        met = np.zeros(len(keys), bool)
        met[atoms.slots[fresh]] = True
        before = [some_atoms(cells, met[cells.slots]) for cells in old if cells.rows]
        self._before = merge_atoms([piece_of(cells) for cells in before], group.gaps_us[0]).cells
        self._compared: dict[tuple[int, int], _Compared] = {}
        self._corrected: dict[str, list[Piece]] = {}

    def rows(self, plan: QueryPlan, before: Watermark, after: Watermark) -> Made:
        """The updated rows of a query, and how many rows HAVING withheld, both by the query's name.

        Raises:
            OverflowedError: an exact sum, or an output expression, leaves its SQL type.
        """
        query, (now, was, places) = plan.query, self._asked(plan, before, after)
        size, having = len(now.slots), plan.query.having is not None
        upserts = self._answered(plan, now, self._atoms, fresh=True)
        asked = np.ones(len(places), bool) if having else places >= size  # else an upsert replaces it
        held = self._answered(plan, was.take(asked), self._before, fresh=False)
        emitted_before = places[asked][held.places]
        gone = ~np.isin(emitted_before, upserts.places)
        deletes = joined_rows(held.rows, gone)
        changed = [(joined_rows(upserts.rows), UPSERT, upserts.places), (deletes, DELETE, emitted_before[gone])]
        numbers: list[Ints | None] = [None, None]
        if query.corrected_for_us:
            every = np.concatenate([of for _, _, of in changed])
            bounds = (np.concatenate(pair)[every] for pair in zip(now[:3], was[:3], strict=True))
            earlier = self._earlier(plan, *bounds)
            again = (earlier > 0) | np.isin(every, emitted_before if having else places)
            self._note(plan, now, every[again & (every < size)], after)
            numbers = list(np.split(np.where(again, earlier + 1, 0), [len(upserts.places)]))
        whole = joined_rows(
            [marked(rows, how, of) for (rows, how, _), of in zip(changed, numbers, strict=True) if rows is not None]
        )
        withheld = {query.name: upserts.withheld} if upserts.withheld else {}
        return Made(() if whole is None else (RowBatch(query.name, whole),), withheld)

    def corrected(self, queries: Collection[str]) -> Cells:
        """How often sessions of these queries were corrected in this epoch, to be added to the earlier numbers."""
        return added_up([piece for name in queries for piece in self._corrected.get(name, ())])

    def _asked(self, plan: QueryPlan, before: Watermark, after: Watermark) -> tuple[Sessions, Sessions, Ints]:
        """The current sessions to emit, the previously emitted sessions that current ones contain, and their numbers.

        The number of a previously emitted session is the position of the current session with the same bounds. If there
        is none, it is a number of its own, above all positions.
        """
        query, (now, touched, was) = plan.query, self._sessions(plan)
        mine, emitted = touched & (now.starts_us >= plan.from_us), was.starts_us >= plan.from_us
        if not query.updating:
            was_closed, closed = (~open_ones(now, mark.at(query.delay_us)) for mark in (before, after))
            mine = closed & (~was_closed | touched) & (now.starts_us >= plan.from_us)
            emitted &= ~open_ones(was, before.at(query.delay_us))
        now, was = now.take(mine), was.take(emitted)
        size = len(now.slots)
        places = np.arange(size, size + len(was.slots))
        if size:
            at = _holding(now, was)
            pairs = ((ours[at], theirs) for ours, theirs in zip(now[:3], was[:3], strict=True))
            places = np.where(np.logical_and.reduce([left == right for left, right in pairs]), at, places)
        return now, was, places

    def _sessions(self, plan: QueryPlan) -> _Compared:
        assert isinstance(plan.query.window, Session)
        asked = plan.query.window.gap_us, plan.delay
        if asked not in self._compared:
            now, was = sessions_of(self._atoms, *asked), sessions_of(self._before, *asked)
            touched = np.zeros(len(now.slots), bool)
            touched[(np.cumsum(now.new) - 1)[self._fresh[now.rows]]] = True
            if len(was.slots):
                was = was.take(touched[_holding(now, was)])
            self._compared[asked] = _Compared(now, touched, was)
        return self._compared[asked]

    def _answered(self, plan: QueryPlan, sessions: Sessions, atoms: Cells, *, fresh: bool) -> _SessionRows:
        """The rows of sessions, from their atoms and from the events of the log."""
        ids, first = {self._group.measures[i].id for i in measures_read([plan])}, 0
        rows, places, withheld = list[pa.RecordBatch](), [np.zeros(0, np.int64)], 0
        for some in sessions.runs(AT_ONCE):
            slots, own = places_of(some.slots)
            events = None
            if self._log is not None and needs_events(plan):
                span = int(some.starts_us.min()), int(some.ends_us.max())
                events = self._log.within(*span, plan.delay, fresh=fresh)
            keys, columns = BlockKeys(self._group, self._keys, slots, events), some.columns(atoms, ids)
            found = located_rows_of_sessions(self._group, plan, some._replace(slots=own), columns, keys, self._buckets)
            rows.append(found.rows)
            places.append(found.windows + first)
            first, withheld = first + len(some.slots), withheld + found.withheld
        return _SessionRows(rows, np.concatenate(places), withheld)

    def _earlier(self, plan: QueryPlan, slots: Ints, starts_us: Ints, ends_us: Ints) -> Ints:
        """For each session, how often its row was corrected in earlier epochs."""
        name, known = revisions_of(plan), [[slots, starts_us, ends_us]]
        counts = [np.zeros(len(slots), np.int64)]
        for cells in self._revisions:
            if name in cells.columns:
                rows = np.flatnonzero(np.isin(cells.slots, slots))
                held = (cells.slots, cells.columns[FIRST], cells.columns[LAST])
                known.append([column[rows].astype(np.int64) for column in held])
                counts.append(cells.columns[name][rows].astype(np.int64))
        order, new = _alike(*(np.concatenate(column) for column in zip(*known, strict=True)))
        owners = np.empty(len(order), np.int64)
        owners[order] = np.cumsum(new) - 1
        total = np.zeros(int(np.count_nonzero(new)), np.int64)
        np.add.at(total, owners, np.concatenate(counts))
        return total[owners[: len(slots)]]

    def _note(self, plan: QueryPlan, sessions: Sessions, places: Ints, after: Watermark) -> None:
        """Count a correction of each of these sessions that may be corrected again."""
        final = after.at(plan.query.late_after_us)
        places = places if final is None else places[sessions.ends_us[places] > final]
        if not len(places):
            return
        starts, ends = sessions.starts_us[places], sessions.ends_us[places]
        once = {FIRST: starts, LAST: ends, revisions_of(plan): np.ones(len(places), np.int64)}
        piece = Piece(_spanned(starts, ends), np.zeros(len(places), np.int64), sessions.slots[places], once)
        self._corrected.setdefault(plan.query.name, []).append(piece)


def added_up(pieces: Sequence[Piece], until_us: int | None = None) -> Cells:
    """Merges counts of corrections, summed by session; drops sessions that end at or before `until_us`."""
    pieces = [piece for piece in pieces if len(piece.slots)]
    none = np.zeros(0, np.int64)
    columns = joined(pieces) if pieces else {FIRST: none, LAST: none}
    slots: Ints = np.concatenate([none, *(piece.slots.astype(np.int64) for piece in pieces)])
    rows = np.flatnonzero(columns[LAST] > until_us) if until_us is not None else np.arange(len(slots))
    order, new = _alike(slots[rows], columns[FIRST][rows], columns[LAST][rows])
    order = rows[order]
    merged = reduced(taken(columns, order), new) if len(order) else {FIRST: none, LAST: none}
    held = slots[order][new]
    spanned = _spanned(merged[FIRST], merged[LAST])
    return Cells(spanned, np.array([0, len(held)][: len(spanned.start_us) + 1]), held.astype(np.int32), merged)


def corrected_until(group: GroupPlan, mark: Watermark) -> int:
    """The time at or before which ended sessions can no longer be corrected."""
    times = [mark.at(plan.query.late_after_us) for plan in group.queries if plan.query.corrected_for_us]
    return min((int(SMALLEST) if time is None else time for time in times), default=int(LARGEST))


def _holding(now: Sessions, some: Sessions) -> Ints:
    """For each of `some` sessions, the position of the last current session of its slot that begins no later.

    If a current session contains the given one, it is this session. `now` must not be empty.
    """
    times = distinct_of(np.concatenate([now.starts_us, some.starts_us]))
    known, asked = (each.slots * len(times) + np.searchsorted(times, each.starts_us) for each in (now, some))
    return np.maximum(np.searchsorted(known, asked, "right") - 1, 0)


def _alike(slots: Ints, starts_us: Ints, ends_us: Ints) -> tuple[Ints, Mask]:
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
