"""Reads and orders the events that patterns need in an epoch, and evaluates the conditions of their variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, Mask, new_values, repeated
from millpond.kernels.columns import Values, from_arrow
from millpond.kernels.evaluate import Evaluator
from millpond.kernels.ranks import ranks_and_signs
from millpond.model.expressions import Column, Expression, Foreign, Literal
from millpond.model.patterns.variables import FIRST, PREVIOUS, reads_first, reads_others
from millpond.model.windows import Pattern
from millpond.plan.groups.build import of_event_alone, presence_filter
from millpond.plan.groups.plan import QueryPlan
from millpond.runtime.event_log.event_aggregates import passing
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.event_log.event_order import deciding
from millpond.runtime.event_log.select_events import passed_mask, value_column
from millpond.runtime.keys.current_slots import used_slots
from millpond.runtime.matching.automaton import Automaton
from millpond.runtime.matching.match_events import Codes
from millpond.state.layout.event_log import OFFSET, Events

_ALWAYS = np.iinfo(np.int64).min


def pattern_of(plan: QueryPlan) -> Pattern:
    """The pattern of a query."""
    window = plan.query.window
    assert isinstance(window, Pattern)
    return window


def read_events(log: EventLog, plans: Sequence[QueryPlan], keys: int, low: int | None, high: int) -> Events | None:
    """The events that decide matches of some queries when their watermark moves from `low` to `high`; None: none do.

    The queries have one delay. These are all recent events of keys of which the watermark passes an event, or the time
    within which a match must end. They are sorted by slot, time and, if the source has an order, its order. All slots
    are below `keys`.
    """
    if low is None:
        events = log.events_in(_ALWAYS, high + 1, plans[0].delay)
    else:
        times_us = {pattern_of(plan).within_us for plan in plans}
        changed = [log.events_in(low + 1, high + 1, plans[0].delay)]
        changed += [log.events_in(low + 1 - us, min(high - us, low) + 1, plans[0].delay) for us in times_us]
        since = min(low + 1 - pattern_of(plan).reaches_us for plan in plans)
        events = log.events_in(since, high + 1, plans[0].delay, named=used_slots(changed, keys))
    if not events.rows:
        return None
    return events.take(np.lexsort((*deciding(events, ()), events.times_us, events.slots)))


class OrderedEvents:
    """The events that some queries take, in their order; conditions are evaluated once for all of these queries."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self._met: dict[tuple[Expression, tuple[int, tuple[Expression, ...]] | None], Mask] = {}

    @cached_property
    def ends(self) -> Ints:
        """For each event, the position after the last event of its key."""
        return np.searchsorted(self.events.slots, self.events.slots, "right")

    @cached_property
    def numbers(self) -> Ints:
        """For each event, which of the events of its key and time it is, from 1."""
        firsts = np.flatnonzero(new_values(self.events.slots) | new_values(self.events.times_us))
        return repeated(np.diff(np.append(firsts, self.events.rows)))[1] + 1

    def codes(self, plan: QueryPlan, automaton: Automaton) -> Codes:
        """The codes of the events for the automaton of a query's pattern.

        An event for which a condition on another event fails does not meet it, as if it were NULL. (An event for which
        a condition on itself fails is dead, and not among the events.)
        """
        defined = {one.name: one.condition for one in pattern_of(plan).variables}
        bits, relative = np.zeros(self.events.rows, np.int64), dict[int, Expression]()
        for i, name in enumerate(automaton.names):
            if name in defined and reads_first(defined[name]):
                relative[i] = defined[name]
                continue
            met = self._mask(plan, defined[name]) if name in defined else np.ones(self.events.rows, bool)
            bits |= met.astype(np.int64) << i
        if relative:
            return RelativeCodes(plan, automaton, self.events, bits, relative)
        fixed = automaton.encode(bits)
        return lambda _starts, at: fixed[at]

    def _mask(self, plan: QueryPlan, condition: Expression) -> Mask:
        pattern = pattern_of(plan)
        # what a column of the previous event means depends on the pattern
        near = (pattern.within_us, pattern.previous) if reads_others(condition) else None
        if (condition, near) not in self._met:
            if near is None:
                met = passed_mask(self.events.columns, condition)
            else:
                read = _read(pattern, self.events)
                columns = {name: from_arrow(column, kind) for name, (column, kind) in read.items()}
                met = Evaluator(columns, self.events.rows)(condition).is_true()
            self._met[condition, near] = np.broadcast_to(met, (self.events.rows,))
        return self._met[condition, near]


class RelativeCodes:
    """The codes of events of which some conditions depend on the first event of the match.

    `bits`: the variables whose other conditions the events meet. `relative`: the conditions that depend on it.
    """

    def __init__(
        self, plan: QueryPlan, automaton: Automaton, events: Events, bits: Ints, relative: Mapping[int, Expression]
    ) -> None:
        self._automaton, self._bits, self._relative = automaton, bits, relative
        pattern = pattern_of(plan)
        self._own = _read(pattern, events)
        self._first = {f"{FIRST}{i}": (value_column(events, one), one.type) for i, one in enumerate(pattern.first)}

    def __call__(self, starts: Ints, at: Ints) -> Ints:
        columns = dict[str, Values]()
        for places, some in ((pa.array(at), self._own), (pa.array(starts), self._first)):
            columns |= {name: from_arrow(column.take(places), kind) for name, (column, kind) in some.items()}
        evaluate, bits = Evaluator(columns, len(at)), self._bits[at]
        for i, condition in self._relative.items():
            met = np.broadcast_to(evaluate(condition).is_true(), (len(at),))
            bits |= met.astype(np.int64) << i
        return self._automaton.encode(bits)


def _read(pattern: Pattern, events: Events) -> dict[str, tuple[pa.Array, str]]:
    """The columns of events and of the previous events of their keys that conditions read, with their types."""
    columns = {}
    for value in pattern.values:
        if isinstance(value, Column | Foreign):
            columns[value.name] = value_column(events, value), value.type
    near = np.zeros(events.rows, bool)
    near[1:] = (events.slots[1:] == events.slots[:-1]) & (np.diff(events.times_us) <= pattern.within_us)
    before = pa.array(np.arange(events.rows) - 1, mask=~near)
    for i, value in enumerate(pattern.previous):
        columns[f"{PREVIOUS}{i}"] = value_column(events, value).take(before), value.type
    return columns


class EventOrders:
    """The events that queries of one delay take, from those that `read_events` returned."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._known: dict[tuple[object, ...], OrderedEvents] = {}

    def of(self, plan: QueryPlan) -> OrderedEvents:
        """The events that a query takes, in its order.

        Without an order of the source, events of equal time are ordered by the conditions that they meet and the values
        that the query reads of them. Events that are equal in all of these are interchangeable for the query.
        """
        taken: tuple[object, ...] = (presence_filter(plan.query), plan.from_us)
        if taken not in self._known:
            self._known[taken] = OrderedEvents(self._taken(plan))
        found = self._known[taken]
        tied = self._tied(found)
        if tied is None:
            return found
        some, order = found.events.take(tied), np.arange(found.events.rows)
        order[tied] = tied[np.lexsort((*_contributions(plan, some), some.times_us, some.slots))]
        return OrderedEvents(found.events.take(order))

    def _taken(self, plan: QueryPlan) -> Events:
        late = self._events.times_us < plan.from_us
        return passing(self._events.take(~late) if late.any() else self._events, presence_filter(plan.query))

    @staticmethod
    def _tied(found: OrderedEvents) -> Ints | None:
        """The events that have the time of another event of their key, if nothing orders them."""
        if OFFSET in found.events.columns or not (found.numbers > 1).any():
            return None
        tied = np.append(found.numbers, 1) > 1
        return np.flatnonzero(tied[:-1] | tied[1:])


def _contributions(plan: QueryPlan, events: Events) -> list[Ints]:
    """What a query reads of events, as sort keys with the major key last.

    What its pattern reads is major to what only its aggregates read. So queries with equal patterns have matches at
    equal positions, and share the stored ends of their last matches.
    """
    pattern = pattern_of(plan)
    arguments = (one for aggregate in plan.query.aggregates for one in of_event_alone(aggregate).arguments)
    of_pattern = [one for one in pattern.values if not isinstance(one, Literal)]
    of_aggregates = [one for one in dict.fromkeys(arguments) if not isinstance(one, Literal) and one not in of_pattern]
    masks = [passed_mask(events.columns, condition).astype(np.int64) for condition in pattern.conditions]
    ranked = (
        ranks_and_signs([(value_column(events, one), one.type) for one in values])
        for values in (of_aggregates, of_pattern)
    )  # fmt: skip
    return [*chain.from_iterable(ranked), *masks]
