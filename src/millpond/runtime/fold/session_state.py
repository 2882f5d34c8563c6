"""State of a group of session windows: session fragments, which are kept while their session is open."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from millpond.arrays import Ints, places_of
from millpond.plan.groups.plan import measures_read
from millpond.runtime.fold.state import State
from millpond.runtime.keys.key_compaction import full_level
from millpond.runtime.packets.packet import GroupPart
from millpond.runtime.rows.query_families import Family
from millpond.runtime.rows.session_updates import SessionChanges, added_up, corrected_until
from millpond.runtime.rows.window_rows import BlockKeys, rows_of_sessions
from millpond.runtime.task.task_values import Watermark
from millpond.runtime.windows.sessions import (
    AT_ONCE,
    Asked,
    Read,
    Sessions,
    asked_of,
    closing,
    first_needed,
    read_atoms,
)
from millpond.state.layout.cells import Cells, piece_of
from millpond.state.layout.session_fragments import LAST, merge_atoms


class SessionState(State):
    """Session windows."""

    _read: Read
    _level: int | None

    def ingest(self, parts: Sequence[GroupPart], before: Watermark, after: Watermark) -> None:
        """Read the fragments that new events may extend or join, and those that may close."""
        places = self.committed.segments
        came = merge_atoms(self.number(parts), self.group.gaps_us[0]).cells
        self._level = full_level([place for place in places if place.rows], self.fan_in)
        whole = self.log is not None  # events are needed from the first event of an open session on
        self._read = read_atoms(self.group, places, self.old, came, len(self.keys), self._level, whole, before, after)

    def close(self, before: Watermark, after: Watermark) -> None:
        """Collect the rows of sessions that the watermark passes, and of sessions with updating results."""
        self._close(self._read.atoms, self._read.came, before, after)

    def merge(self, after: Watermark) -> None:
        """Write the fragments of open sessions, retire segments without any, and merge the others by level."""
        read, level, places = self._read, self._level, self.committed.segments
        expired = [i in read.live and not read.live[i].rows for i in range(len(places))]
        fresh, until = read.fresh, corrected_until(self.group, after)
        ended = [int(cells.columns[LAST].max()) <= until for cells in self.old_revisions]
        rolled = self.roll([fresh], [*expired, *ended])
        sealed = [place.id for place, gone in zip(places, expired, strict=True) if gone and place.rows]
        horizon = first_needed(read.atoms, read.needed)  # over all atoms, as they were all read if there is a log
        sealed += [place.id for place, gone in zip(self.committed.revisions, ended, strict=True) if gone]
        if self.log is not None:
            sealed += self.log.before(horizon)
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
        """Merge `fan_in` segments with the revision numbers of sessions into one; `ended`: which of them expire."""
        pairs = zip(self.committed.revisions, self.old_revisions, ended, strict=True)
        going = [(place, cells) for place, cells, gone in pairs if not gone]
        level = full_level([place for place, _ in going], self.fan_in)
        if level is not None:
            chosen = [(place, cells) for place, cells in going if place.level == level]
            merged = added_up([piece_of(cells) for _, cells in chosen], until)
            self.write_segment(merged, level + 1, tuple(place.id for place, _ in chosen), "revisions")

    def _close(self, atoms: Cells, fresh: Ints, before: Watermark, after: Watermark) -> None:
        """Collect the rows of sessions; `fresh`: the atoms that contain an event of this epoch."""
        kept = self.old_revisions, self.log
        make = partial(SessionChanges, self.group, self.keys, self.task.buckets, self.old, atoms, fresh, *kept)
        self.collect_changes(make, before, after)
        for asked in asked_of(self.group):
            for some in closing(self.group, asked, atoms, before, after).runs(AT_ONCE):
                self._answer(asked, atoms, some)

    def _answer(self, asked: Asked, atoms: Cells, found: Sessions) -> None:
        """Collect the rows of the queries to which these closing sessions belong."""
        plans = [plan for plan in asked.plans if not plan.query.changing and self.collected.is_going(plan)]
        if not plans:
            return
        columns = found.columns(atoms, {self.group.measures[i].id for i in measures_read(plans)})
        slots, places = places_of(found.slots)
        events = self.events_between(plans, int(found.starts_us.min()), int(found.ends_us.max()), asked.delay)
        keys, mine = BlockKeys(self.group, self.keys, slots, events), found._replace(slots=places)
        for family in (Family(self.group, [plan]) for plan in plans):
            make = partial(rows_of_sessions, self.group, family, mine, columns, keys, self.task.buckets)
            self.collected.take(family, make)
