"""Sessions from atoms: which sessions a query has, which of them the watermark closes, and their merged columns.

A session of gap g is a run of a key's atoms without a hole longer than g. It closes when the watermark reaches its
end. No event that is in time can join a closed session, because such an event is above the watermark, so at or after
the end.

An epoch changes or closes only sessions of keys with a new atom, or whose end the watermark passes. All atoms of
these keys are read; of other keys only their last times. Atoms that no open session needs are found when segments are
merged, or when none of a segment's atoms can be the last of an open session. (With an event log all atoms are read in
each epoch, because the log is kept from the first event of an open session on.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.arrays import Ints, Mask
from millpond.model.selection import query_name
from millpond.model.windows import Session
from millpond.plan.groups.plan import GroupPlan, QueryPlan
from millpond.runtime.task.task_values import SectionPlace, Watermark
from millpond.state.layout.cells import Cells, extreme_of, piece_of, taken
from millpond.state.layout.merge_rules import is_low_word
from millpond.state.layout.session_atoms import FIRST, LAST, begins, merge_atoms, reduced, some_atoms, sorted_by

AT_ONCE = 1 << 18
"""The number of sessions that are computed at once."""

_EARLIEST = np.iinfo(np.int64).min


class Sessions(NamedTuple):
    """The sessions of one gap and delay, ordered by slot and start: those of all atoms, including closed sessions.

    `rows`: the atoms of the sessions, session by session. `new`: which of these atoms begin a session.
    """

    slots: Ints
    starts_us: Ints
    ends_us: Ints
    rows: Ints
    new: Mask

    def take(self, chosen: Mask) -> Sessions:
        """Some of the sessions."""
        if chosen.all():
            return self
        inside = chosen[np.cumsum(self.new) - 1]
        return Sessions(
            self.slots[chosen], self.starts_us[chosen], self.ends_us[chosen], self.rows[inside], self.new[inside]
        )

    def columns(self, atoms: Cells, measures: Collection[str]) -> dict[str, npt.NDArray[Any]]:
        """The merged columns of the measures with these ids, one row per session; 128-bit extremes are one column."""
        wanted = {name: c for name, c in atoms.columns.items() if name.partition(":")[0] in measures}
        merged = reduced(taken(wanted, self.rows), self.new)
        whole: dict[str, npt.NDArray[Any]] = {}
        for name in (name for name in merged if not is_low_word(name)):
            extremes = extreme_of(name, merged)
            whole[name] = merged[name] if extremes is None else extremes
        return whole

    def runs(self, most: int) -> Iterator[Sessions]:
        """The sessions in parts of at most `most` sessions."""
        places = np.arange(len(self.slots)) // most
        for place in range(int(places[-1]) + 1 if len(places) else 0):
            yield self.take(places == place)


class SessionRange(NamedTuple):
    """A gap, a delay and a range of session starts.

    `earlier`: those of versions that were replaced before. Events in sessions that these emit are in no other session.
    """

    gap_us: int
    delay: int
    from_us: int
    before_us: int
    earlier: tuple[SessionRange, ...] = ()


class SessionQueries(NamedTuple):
    """Queries of one range, so they have the same sessions."""

    range: SessionRange
    plans: list[QueryPlan]

    @property
    def gap_us(self) -> int:
        """The gap."""
        return self.range.gap_us

    @property
    def delay(self) -> int:
        """The position of the delay among those of the group."""
        return self.range.delay


def session_queries(group: GroupPlan) -> list[SessionQueries]:
    """The queries of a group of session windows, by gap, delay and the range of session starts that they answer."""
    plans_by_range: dict[SessionRange, list[QueryPlan]] = {}
    earlier: dict[tuple[str, int], tuple[SessionRange, ...]] = {}
    for plan in sorted(group.queries, key=lambda plan: plan.before_us):
        assert isinstance(plan.query.window, Session)
        of = query_name(plan.query.name), plan.delay
        own = SessionRange(plan.query.window.gap_us, plan.delay, plan.from_us, plan.before_us)
        versions = () if plan.query.changing else earlier.get(of, ())
        plans_by_range.setdefault(own._replace(earlier=versions), []).append(plan)
        if not plan.query.changing:
            earlier[of] = (*versions, own)
    return [SessionQueries(*pair) for pair in sorted(plans_by_range.items(), key=lambda pair: pair[0])]


def own_sessions(atoms: Cells, of: SessionRange) -> Sessions:
    """The sessions of a range of starts, of the events that no session of an earlier version holds.

    While such a session matters, all of its atoms are stored: they are in one session of the largest gap of all
    versions, which is open, and atoms with a hole longer than the least gap are not merged.
    """
    free = np.ones(atoms.rows, bool) if of.earlier else None
    for version in (*of.earlier, of):
        sessions = sessions_of(atoms, version.gap_us, version.delay, free)
        sessions = sessions.take((sessions.starts_us >= version.from_us) & (sessions.starts_us < version.before_us))
        if free is not None:
            free[sessions.rows] = False
    return sessions


def sessions_of(atoms: Cells, gap_us: int, delay: int, chosen: Mask | None = None) -> Sessions:
    """The sessions of all events of lateness classes 0 … `delay`; `chosen`: only of these atoms."""
    low, high = np.searchsorted(atoms.slices.late_class, [0, delay + 1]).tolist()
    rows = np.arange(int(atoms.offsets[low]), int(atoms.offsets[high]))
    rows = rows if chosen is None else rows[chosen[rows]]
    slots, first = atoms.slots[rows].astype(np.int64), atoms.columns[FIRST][rows].astype(np.int64)
    if high - low > 1:
        order = sorted_by(slots, first)
        rows, slots, first = rows[order], slots[order], first[order]
    last = atoms.columns[LAST][rows].astype(np.int64)
    new = begins(slots, first, last, gap_us)
    starts = np.flatnonzero(new)
    ends = np.maximum.reduceat(last, starts) + gap_us if len(starts) else starts
    return Sessions(slots[starts], first[starts], ends, rows, new)


def open_sessions(sessions: Sessions, mark_us: int | None) -> Mask:
    """Which sessions end above the watermark."""
    if mark_us is None:
        return np.ones(len(sessions.ends_us), bool)
    is_open: Mask = sessions.ends_us > mark_us
    return is_open


class AtomsRead(NamedTuple):
    """The atoms that an epoch reads: all atoms of some keys, merged.

    `needed`: which of them an open session contains. `extended`: the positions of the atoms that contain new atoms.
    `fresh`: the new atoms that an open session contains. `live`: for each segment that is examined completely, by
    position, its atoms that an open session contains.
    """

    atoms: Cells
    needed: Mask
    extended: Ints
    fresh: Cells
    live: dict[int, Cells]


def read_atoms(
    group: GroupPlan, places: Sequence[SectionPlace], old: Sequence[Cells], new_atoms: Cells, keys: int,
    level: int | None, read_all: bool, before: Watermark, after: Watermark,
) -> AtomsRead:  # fmt: skip
    """The `old` atoms that an epoch reads, with the `new_atoms`; all slots are below `keys`.

    Some segments are examined completely: those of the `level` that is merged, if any, and those in which no atom can
    be the last of an open session, so that they may have expired. If `read_all`, these are all segments.
    """
    over_us = _over_us(group, after)
    examined = [
        i for i, place in enumerate(places)
        if read_all or place.level == level or not old[i].rows or int(old[i].columns[LAST].max()) <= over_us
    ]  # fmt: skip
    touched = _touched(group, old, keys, before, after)
    for cells in (new_atoms, *(old[i] for i in examined)):
        touched[cells.slots] = True
    parts = [*(some_atoms(cells, touched[cells.slots]) for cells in old), new_atoms]
    atoms, targets = merge_atoms([piece_of(cells) for cells in parts], group.gaps_us[0])
    needed = needed_atoms(group, atoms, after)
    live = {i: some_atoms(parts[i], needed[targets[i]]) for i in examined}
    return AtomsRead(atoms, needed, targets[-1], some_atoms(new_atoms, needed[targets[-1]]), live)


def _over_us(group: GroupPlan, mark: Watermark) -> int:
    """A time: an atom that ends at or before it is not the last of an open session, though it may be an earlier one."""
    ends = [(mark.at(group.delays_us[queries.delay]), queries.gap_us) for queries in session_queries(group)]
    return min((_EARLIEST if at is None else at - gap_us for at, gap_us in ends), default=_EARLIEST)


def _touched(group: GroupPlan, old: Sequence[Cells], keys: int, before: Watermark, after: Watermark) -> Mask:
    """For each slot below `keys`, whether the watermark passes a time at which a session of the slot may end."""
    touched, spans = np.zeros(keys, bool), set[tuple[int, int]]()
    for queries in session_queries(group):
        for delay_us in {group.delays_us[queries.delay], *(plan.query.delay_us for plan in queries.plans)}:
            low, high = before.at(delay_us), after.at(delay_us)
            if high is not None and (low is None or low < high):
                spans.add((_EARLIEST if low is None else low - queries.gap_us, high - queries.gap_us))
    for cells in old if spans else ():
        last = cells.columns[LAST] if cells.rows else np.zeros(0, np.int64)
        for low, high in spans:
            touched[cells.slots[(last > low) & (last <= high)]] = True
    return touched


def needed_atoms(group: GroupPlan, atoms: Cells, mark: Watermark) -> Mask:
    """Which atoms an open session of some query contains."""
    needed = np.zeros(atoms.rows, bool)
    for queries in session_queries(group):
        sessions = sessions_of(atoms, queries.gap_us, queries.delay)
        needed[sessions.take(open_sessions(sessions, mark.at(group.delays_us[queries.delay]))).rows] = True
    return needed


def first_needed(atoms: Cells, needed: Mask) -> int:
    """The time of the earliest event of a needed atom; the largest int64 if no atom is needed."""
    times = atoms.columns[FIRST][needed] if atoms.rows else np.zeros(0, np.int64)
    return int(times.min()) if len(times) else int(np.iinfo(np.int64).max)


def closing(group: GroupPlan, queries: SessionQueries, atoms: Cells, before: Watermark, after: Watermark) -> Sessions:
    """The sessions that close when the watermark moves."""
    delay_us = group.delays_us[queries.delay]
    sessions = own_sessions(atoms, queries.range)
    return sessions.take(open_sessions(sessions, before.at(delay_us)) & ~open_sessions(sessions, after.at(delay_us)))
