"""Finds the matches of a query that are due in an epoch, and the events of which each match consists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints
from millpond.model.patterns.variables import split
from millpond.plan.groups.build import of_event_alone, presence_filter
from millpond.plan.groups.event_log import logged_rows, stored_values
from millpond.plan.groups.measures import measures_of
from millpond.plan.groups.plan import QueryPlan, fingerprint
from millpond.runtime.event_log.select_events import filter_name, passed_mask, value_name
from millpond.runtime.matching.automaton import Automaton, automaton_of
from millpond.runtime.matching.match_events import Codes, attempted, matched_events, one_after_another
from millpond.runtime.matching.read_events import EventOrders, pattern_of
from millpond.runtime.rows.frame_rows import DueFrames, cut_by
from millpond.state.layout.cells import Cells, Piece, Slices
from millpond.state.layout.event_log import Events
from millpond.state.layout.merge_rules import SMALLEST


class LastMatches(NamedTuple):
    """For each key, the time of the last event of its last match, and which event of the key and time it is, from 1."""

    times_us: Ints
    numbers: Ints

    @classmethod
    def stored(cls, parts: Sequence[Cells], plan: QueryPlan, keys: int) -> LastMatches:
        """The last matches of a query in cells; all slots are below `keys`."""
        name = matches_id(plan)
        held = [cells for cells in parts if f"{name}:max" in cells.columns]
        last = cls(np.full(keys, SMALLEST), np.zeros(keys, np.int64))
        for cells in held:
            np.maximum.at(last.times_us, cells.slots, cells.columns[f"{name}:max"])
        for cells in held:
            newest = cells.columns[f"{name}:max"] == last.times_us[cells.slots]
            np.maximum.at(last.numbers, cells.slots[newest], cells.columns[f"{name}:n"][newest])
        return last


class DueMatches(NamedTuple):
    """The matches of a query that are due: they end before `ends` and begin at `starts`, positions in `events`.

    `number`: which event of its key and time each event is, from 1.
    """

    plan: QueryPlan
    automaton: Automaton
    events: Events
    codes: Codes
    starts: Ints
    ends: Ints
    numbers: Ints

    def piece(self, mark_us: int) -> Piece | None:
        """The end of the last match of each key, in a slice at the watermark; None if later matches may overlap them.

        When the watermark is `Pattern.within_us` later, all events that an epoch still reads come after these ends. So
        the ends are then dropped, like slices.
        """
        if pattern_of(self.plan).overlapping or not len(self.starts):
            return None
        last = self.ends[np.diff(self.events.slots[self.starts], append=-1) != 0] - 1
        at = Slices(np.array([mark_us]), np.array([mark_us + 1]), np.zeros(1, np.int64))
        name = matches_id(self.plan)
        columns = {f"{name}:max": self.events.times_us[last], f"{name}:n": self.numbers[last]}
        return Piece(at, np.zeros(len(last), np.int64), self.events.slots[last], columns)

    def frames(self) -> Iterator[DueFrames]:
        """The rows of the matches, in parts that are computed one after the other."""
        for first, end in cut_by(self.ends - self.starts):
            yield self._frames(self.starts[first:end], self.ends[first:end])

    def _frames(self, starts: Ints, ends: Ints) -> DueFrames:
        found = matched_events(self.automaton, self.codes, starts, ends)
        times, needed = self.events.times_us, _columns_read(self.plan)
        columns = {name: column for name, column in self.events.columns.items() if name in needed}
        events = self.events._replace(columns=columns).take(found.places)
        events = events._replace(columns=events.columns | dict(self._filters(events, found.variables)))
        low, high = found.offsets[:-1], found.offsets[1:]
        lows, highs = ([bound] * (len(self.plan.query.aggregates) + 1) for bound in (low, high))
        return DueFrames(events, lows, highs, high - 1, times[starts], times[ends - 1])

    def _filters(self, events: Events, variables: Ints) -> Iterator[tuple[str, pa.Array]]:
        """The filters of the query's aggregates, as columns of the log."""
        presence = presence_filter(self.plan.query)
        for aggregate in self.plan.query.aggregates:
            names, alone = split(aggregate.filter)[0], of_event_alone(aggregate)
            if not names:
                continue
            if aggregate.logged:
                pairs = [(logged_rows(aggregate, presence), logged_rows(alone, presence))]
            else:
                both = zip(measures_of(aggregate, presence), measures_of(alone, presence), strict=True)
                pairs = [(one.filter, other.filter) for one, other in both]
            matched = np.ones(events.rows, bool)
            for name in names:
                matched &= variables == self.automaton.names.index(name)
            for condition, stored in pairs:
                assert condition is not None
                held = matched if stored is None else matched & passed_mask(events.columns, stored)
                yield filter_name(condition), pa.array(held)


def due_matches(
    plan: QueryPlan, orders: EventOrders, before: Sequence[Cells], keys: int, low: int | None, high: int
) -> DueMatches:
    """The matches of a query that are decided when its watermark moves from `low` to `high`.

    `orders`: of the events that `read_events` returned. `before`: the cells with the ends of earlier matches.

    Raises:
        OverflowedError: a condition that reads the previous event fails.
    """
    pattern, ordered = pattern_of(plan), orders.of(plan)
    events, numbers, automaton = ordered.events, ordered.numbers, automaton_of(pattern.text)
    automaton.begin()
    codes = ordered.codes(plan, automaton)
    starts = np.arange(events.rows) if low is None else np.flatnonzero(events.times_us > low - pattern.within_us)
    if not pattern.overlapping:
        last = LastMatches.stored(before, plan, keys)
        slots, times = events.slots[starts], events.times_us[starts]
        after = (times == last.times_us[slots]) & (numbers[starts] > last.numbers[slots])
        starts = starts[after | (times > last.times_us[slots])]
    tried = attempted(automaton, codes, events.times_us, ordered.ends, starts, pattern.within_us)
    if not pattern.overlapping:
        taken = one_after_another(tried, ordered.ends, high)
    else:
        taken = (tried.ends > 0) & (tried.decided_us <= high)
        if low is not None:
            taken &= tried.decided_us > low
    return DueMatches(plan, automaton, events, codes, tried.starts[taken], tried.ends[taken], numbers)


def matches_id(plan: QueryPlan) -> str:
    """The id of a query's last matches, twelve hex digits; queries with the same matches share them."""
    return fingerprint((plan.query.window, presence_filter(plan.query), plan.query.delay_us, plan.from_us))


def _columns_read(plan: QueryPlan) -> set[str]:
    """The columns of the log that the aggregates of a query read."""
    presence, found = presence_filter(plan.query), set[str]()
    for aggregate in map(of_event_alone, plan.query.aggregates):
        found |= {value_name(stored) for value in aggregate.arguments for stored in stored_values(value)}
        one = logged_rows(aggregate, presence) if aggregate.logged else None
        filters = [one] if aggregate.logged else [measure.filter for measure in measures_of(aggregate, presence)]
        found |= {filter_name(condition) for condition in filters if condition is not None}
    return found
