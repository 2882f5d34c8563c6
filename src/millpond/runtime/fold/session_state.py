"""State of a group of session windows: atoms, kept while a session that they belong to is open.

An atom is a partial session (see `state.layout.session_atoms`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from millpond.arrays import Ints, places_of
from millpond.model.windows import Session
from millpond.plan.groups.plan import QueryPlan, measures_read
from millpond.runtime.fold.next_due import Due, next_session
from millpond.runtime.fold.state import State
from millpond.runtime.fold.state_size import Sizes, Stored, measures_of, sizes_of_cells
from millpond.runtime.packets.packet import GroupPart
from millpond.runtime.rows.query_families import Family
from millpond.runtime.rows.session_updates import SessionChanges, corrected_until, merge_corrections
from millpond.runtime.rows.window_rows import BlockKeys, rows_of_sessions
from millpond.runtime.task.levels import Levels
from millpond.runtime.task.task_values import Watermark
from millpond.runtime.windows.sessions import (
    AT_ONCE,
    AtomsRead,
    SessionQueries,
    Sessions,
    closing,
    first_needed,
    needed_atoms,
    open_sessions,
    read_atoms,
    session_queries,
    sessions_of,
)
from millpond.state.layout.cells import Cells, piece_of
from millpond.state.layout.session_atoms import LAST, merge_atoms, some_atoms


class SessionState(State):
    """Session windows, whose atoms are read, closed and merged."""

    _read: AtomsRead
    _level: int | None

    @classmethod
    def needed_cells(cls, stored: Stored) -> Cells:
        """The stored atoms of open sessions."""
        pieces = [piece_of(cells) for cells in stored.segments()]
        atoms = merge_atoms(pieces, stored.group.gaps_us[0]).cells
        return some_atoms(atoms, needed_atoms(stored.group, atoms, stored.mark))

    @classmethod
    def size(cls, stored: Stored) -> Sizes:
        """The size of atoms and events; alone, a query has one atom for each of its open sessions."""
        atoms = cls.needed_cells(stored)

        def alone(plan: QueryPlan) -> tuple[Ints, set[str]]:
            assert isinstance(plan.query.window, Session)
            sessions = sessions_of(atoms, plan.query.window.gap_us, plan.delay)
            open_now = open_sessions(sessions, stored.mark.at(plan.query.late_after_us))
            return sessions.slots[open_now], {*measures_of(stored.group, plan), "first", "last"}

        return sizes_of_cells(stored, atoms, alone, events=True)

    @classmethod
    def next_due(cls, stored: Sequence[Stored], plan: QueryPlan) -> Due | None:
        """The open session that closes first, if no further event extends it."""
        return next_session(stored, plan)

    def ingest(self, parts: Sequence[GroupPart], before: Watermark, after: Watermark) -> None:
        """Read the atoms that new events may extend or join, and those that may close."""
        places = self.committed.segments
        new_atoms = merge_atoms(self.number(parts), self.group.gaps_us[0]).cells
        self._level = Levels([place for place in places if place.rows], self.fan_in).lowest_full
        read_all = self.log is not None  # an event log needs the first event of each open session
        self._read = read_atoms(
            self.group, places, self.old, new_atoms, len(self.keys), self._level, read_all, before, after
        )

    def close(self, before: Watermark, after: Watermark) -> None:
        """Collect the rows of sessions that the watermark passes, and of sessions with updating results."""
        atoms, extended, logs = self._read.atoms, self._read.extended, (self.old_revisions, self.log)
        make = partial(SessionChanges, self.group, self.keys, self.task.buckets, self.old, atoms, extended, *logs)
        self.collect_changes(make, before, after)
        for queries in session_queries(self.group):
            for sessions in closing(self.group, queries, atoms, before, after).runs(AT_ONCE):
                self._emit_sessions(queries, atoms, sessions)

    def merge(self, after: Watermark) -> None:
        """Write the atoms of open sessions, retire segments without any, and merge the others by level."""
        read, level, places = self._read, self._level, self.committed.segments
        expired = [i in read.live and not read.live[i].rows for i in range(len(places))]
        fresh, until = read.fresh, corrected_until(self.group, after)
        ended = [int(cells.columns[LAST].max()) <= until for cells in self.old_revisions]
        rolled = self.roll([fresh], [*expired, *ended])
        sealed = [place.id for place, is_expired in zip(places, expired, strict=True) if is_expired and place.rows]
        horizon = first_needed(read.atoms, read.needed)  # if there is an event log, all atoms were read
        sealed += [place.id for place, is_expired in zip(self.committed.revisions, ended, strict=True) if is_expired]
        if self.log is not None:
            sealed += self.log.expired_ids(horizon)
        if fresh.rows or sealed:
            self.write_segment(fresh, 0, tuple(sealed))
        if rolled:
            return
        self.add_keys()
        chosen = [i for i, place in enumerate(places) if place.level == level and not expired[i]]
        if level is not None and len(chosen) >= self.fan_in:
            merged = merge_atoms([piece_of(read.live[i]) for i in chosen], self.group.gaps_us[0]).cells
            self.write_segment(merged, level + 1, tuple(places[i].id for i in chosen))
        self._merge_corrections(ended, until)
        self.merge_events(horizon)

    def _merge_corrections(self, ended: Sequence[bool], until: int) -> None:
        """Merge segments with the revision numbers of sessions by level; `ended`: which of them expire."""
        pairs = zip(self.committed.revisions, self.old_revisions, ended, strict=True)
        live = [(place, cells) for place, cells, is_expired in pairs if not is_expired]
        due = Levels([place for place, _ in live], self.fan_in).due()
        if due is not None:
            merged = merge_corrections([piece_of(live[at][1]) for at in due.chosen], until)
            self.write_segment(merged, due.level, tuple(live[at][0].id for at in due.chosen), "revisions")

    def _emit_sessions(self, queries: SessionQueries, atoms: Cells, sessions: Sessions) -> None:
        """Collect the rows of the queries to which these closing sessions belong."""
        plans = [plan for plan in queries.plans if not plan.query.changing and self.writer.is_active(plan.query.name)]
        if not plans:
            return
        columns = sessions.columns(atoms, {self.group.measures[i].id for i in measures_read(plans)})
        slots, places = places_of(sessions.slots)
        events = self.events_between(plans, int(sessions.starts_us.min()), int(sessions.ends_us.max()), queries.delay)
        keys, numbered = BlockKeys(self.group, self.keys, slots, events), sessions._replace(slots=places)
        for family in (Family(self.group, [plan]) for plan in plans):
            make = partial(rows_of_sessions, self.group, family, numbered, columns, keys, self.task.buckets)
            self.writer.collect(family.names, make)
