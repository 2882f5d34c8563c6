"""The event log of one instance during a fold: its stored events, its new events, and the parts that are read.

It belongs to a group, whose events carry the slots of their keys, or to one side of a join, whose events carry hashes
of their keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, Mask, ordered
from millpond.log.records import SectionKind
from millpond.plan.groups.event_log import LogPlan
from millpond.plan.groups.joins import SideLog
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.event_log.select_events import column_types
from millpond.runtime.keys.current_slots import current_class_of, current_slot_of, departed_slots, read_section
from millpond.runtime.task.levels import Levels
from millpond.runtime.task.task_values import GroupState, SectionPlace
from millpond.state.layout.delta import DeltaWriter
from millpond.state.layout.event_log import OFFSET, Events, concatenated, decode_events, encode_events
from millpond.state.layout.segments import to_bytes
from millpond.state.ports.files import Files

MOST_ROWS = 1 << 20
"""The most rows of a merged section of events, which bounds the time of a merge."""


class EventLog:
    """The live events of a group or a join side on one instance, and those of this epoch.

    A section is read when it is first used.
    """

    kind: SectionKind = "events"
    most_rows: int | None = MOST_ROWS

    def __init__(
        self, files: Files, group: GroupPlan | SideLog, log: LogPlan, state: GroupState, keys: Sequence[pa.RecordBatch]
    ) -> None:
        self._files, self._group, self._log, self._state = files, group, log, state
        self._current_slot_of = current_slot_of(keys)
        self._present_slots: Mask | None = None
        if (departed := departed_slots(files, state)) is not None:
            self._present_slots = np.ones(sum(section.num_rows for section in keys), bool)
            self._present_slots[departed] = False
        self._read: dict[str, Events] = {}
        self._fresh: list[Events] = []

    @property
    def places(self) -> tuple[SectionPlace, ...]:
        """The live sections."""
        return self._state.events

    @property
    def rows(self) -> int:
        """The number of events in the log, including those of this epoch."""
        return sum(place.rows for place in self.places) + sum(events.rows for events in self._fresh)

    def section(self, stored: SectionPlace) -> Events:
        """The events of a section in slots of the newest generation and late classes of the current delays.

        Events whose keys were dropped or have moved to another instance are left out.

        Raises:
            CorruptError: the section is not readable.
        """
        if stored.id not in self._read:
            events = decode_events(read_section(self._files, stored))
            if stored.generation != self._state.generation:
                # no window needs events of a dropped key, and its slot may belong to another key by now
                events = events.take(events.slots < len(self._current_slot_of))
                slots = self._current_slot_of[events.slots]
                events = events._replace(slots=slots).take(slots >= 0)
            if self._present_slots is not None:
                events = events.take(self._present_slots[events.slots])
            if stored.delays_us not in ((), self._group.delays_us):
                classes = np.array(current_class_of(stored.delays_us, self._group.delays_us))
                events = events._replace(late_class=classes[events.late_class])
            self._read[stored.id] = events
        return self._read[stored.id]

    def expired_ids(self, horizon_us: int | None) -> list[str]:
        """The ids of the sections whose events are all before the horizon; None: no section."""
        if horizon_us is None:
            return []
        return [place.id for place in self.places if place.last_us is not None and place.last_us <= horizon_us]

    def parts(self) -> list[Events]:
        """The events of each live section, then those of this epoch."""
        return [*(self.section(place) for place in self.places), self.concat_stored(self._fresh)]

    def needed(self, horizon_us: int | None) -> list[Events]:
        """All events at or after the horizon."""
        gone = self.expired_ids(horizon_us)
        found = [*(self.section(place) for place in self.places if place.id not in gone), *self._fresh]
        if horizon_us is None:
            return found
        return [events.take(events.times_us >= horizon_us) for events in found]

    def add(self, events: Events) -> None:
        """Adds events of this epoch."""
        self._fresh.append(events)

    def write(self, delta: DeltaWriter, events: Events, level: int, supersedes: tuple[str, ...]) -> None:
        """Add events to the delta as a section."""
        info: dict[str, int | str | list[int]] = {
            "first": int(events.times_us.min()) if events.rows else 0,
            "last": int(events.times_us.max()) + 1 if events.rows else 0,
            "level": level,
            "generation": self._state.generation,
            "delays": list(self._group.delays_us),
            **({"counted": 1} if self.kind == "events" and isinstance(self._group, GroupPlan) else {}),
        }
        delta.add(self.kind, self._group.id, to_bytes(encode_events(events)), events.rows, info, supersedes)

    def merge(self, delta: DeltaWriter, horizon_us: int | None, fan_in: int) -> None:
        """Merges sections by level, and drops events before the horizon from them; large sections are not merged."""
        ending = self.expired_ids(horizon_us)
        live = [place for place in self.places if place.id not in ending]
        due = Levels(live, fan_in, self.most_rows).due(fan_in)
        if due is None:
            return
        full = due.sections_in(live)
        events = self.concat_stored([self.section(place) for place in full])
        events = events if horizon_us is None else events.take(events.times_us >= horizon_us)
        self.write(delta, events, due.level, tuple(place.id for place in full))

    def concat_stored(self, parts: Sequence[Events]) -> Events:
        """Concatenates parts of the log, in the form in which a section is stored."""
        return self.concat_expanded(parts)

    def concat_expanded(self, parts: Sequence[Events]) -> Events:
        """Concatenates parts of the log."""
        has_offsets = any(OFFSET in part.columns for part in parts)
        return concatenated(parts, column_types(self._log, has_offsets))

    def events_by_slot(self, start_us: int, end_us: int, delay: int) -> Events:
        """All events in [start, end) that are in time for a delay (its position), sorted by slot."""
        every = self.events_in(start_us, end_us, delay)
        return every.take(ordered(every.slots))

    def events_in(
        self, start_us: int, end_us: int, delay: int, *, fresh: bool = True, named: Mask | None = None
    ) -> Events:
        """Like `events_by_slot`, but in the order of the sections.

        `fresh`: whether to include the events of this epoch. `named`: which slots to include (None: all).
        """
        parts = []
        for events in self.overlapping_parts(start_us, end_us, fresh=fresh):
            wanted = (events.times_us >= start_us) & (events.times_us < end_us) & (events.late_class <= delay)
            if named is not None:
                wanted &= named[events.slots]
            parts.append(events if wanted.all() else events.take(wanted))
        return self.concat_expanded(parts)

    def overlapping_parts(self, start_us: int, end_us: int, *, fresh: bool = True) -> list[Events]:
        """The events of each section that may overlap [start, end), then those of this epoch if `fresh`."""
        places = [place for place in self.places if place.last_us is None or place.last_us > start_us]
        places = [place for place in places if place.first_us is None or place.first_us < end_us]
        return [*map(self.section, places), *(self._fresh if fresh else ())]


def among(events: Events, slots: Ints) -> Events:
    """The events whose slots are in `slots` (ascending); their new slots are positions in `slots`."""
    places = np.searchsorted(slots, events.slots)
    held = np.flatnonzero(slots[np.minimum(places, len(slots) - 1)] == events.slots) if len(slots) else places[:0]
    return events.take(held)._replace(slots=places[held])


def of_slots(events: Events, first: int, size: int) -> Events:
    """The events of slots `first` … `first + size - 1`, renumbered from 0; `events` are sorted by slot."""
    low, high = np.searchsorted(events.slots, [first, first + size]).tolist()
    some = events.between(low, high)
    return some._replace(slots=some.slots - first)
