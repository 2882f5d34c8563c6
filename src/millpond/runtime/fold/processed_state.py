"""State of a group with a processor of the user's: its event log has the events that wait, and the state of each key.

The time of a state is that of the key's last event or timer, so it is at or before the watermark, and the newest row of
a key is its state. A row that another one has replaced, or an event that was processed, stays until its section is
merged; it is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays import Ints, Mask
from millpond.errors import UserFunctionError
from millpond.kernels.columns import from_arrow
from millpond.model.expressions import Call, Expression, literal
from millpond.model.functions import UserFunction
from millpond.plan.groups.build import presence_filter
from millpond.plan.groups.event_log import LogPlan, logged_rows, ties_of
from millpond.plan.groups.plan import GroupPlan, QueryPlan
from millpond.runtime.event_log.event_aggregates import passing
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.event_log.event_order import POSITION, in_order
from millpond.runtime.event_log.retention import events_needed_from
from millpond.runtime.event_log.select_events import column_types, value_column, value_name
from millpond.runtime.fold.next_due import Due
from millpond.runtime.fold.state import State
from millpond.runtime.fold.state_size import Sizes, Stored, sizes_of_events
from millpond.runtime.functions.call_functions import process_host
from millpond.runtime.functions.processor import NEVER_US, KeyEvents, KeyRows, KeyStates, processed, value_schema
from millpond.runtime.packets.packet import GroupPart
from millpond.runtime.packets.unpack import number_keys
from millpond.runtime.rows.query_families import QueryRows
from millpond.runtime.rows.window_rows import BlockKeys, rows_of_results, with_key
from millpond.runtime.task.levels import Levels
from millpond.runtime.task.task_values import Watermark
from millpond.state.layout.event_log import OFFSET, Events, concatenated

_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_KEPT = Call("state", (literal("", "string"),), "boolean")
"""The column that is NULL for an event, true for a state, and false for one that was forgotten."""

_TIMER = Call("state", (literal("timer", "string"),), "bigint")
"""The column with the time of a key's timer."""

_KEPT_NAME, _TIMER_NAME = value_name(_KEPT), value_name(_TIMER)


class ProcessedState(State):
    """The state of a processor: events that wait for the watermark, and the values and timer of each key."""


    @classmethod
    def stored_log(cls, group: GroupPlan) -> LogPlan | None:
        """The arguments of the processor, and the values that it keeps of each key."""
        assert group.events is not None
        fields = _fields(function_of(group))
        return LogPlan((*group.events.values, _KEPT, _TIMER, *fields.values()), group.events.filters, True)

    @classmethod
    def size(cls, stored: Stored) -> Sizes:
        """The size of the events that wait, and of the state of each key."""
        horizon = events_needed_from(stored.group, stored.mark)

        def needed(plan: QueryPlan, _log: EventLog, every: Events) -> Mask:
            at = stored.mark.at(plan.query.delay_us)
            if at is None:
                return np.ones(every.rows, bool)
            live = every.times_us > at
            rest = np.flatnonzero(~live if horizon is None else ~live & (every.times_us >= horizon))
            live[rest[_newest(every.slots[rest], every.times_us[rest])]] = True  # a state is as new as its last event
            return live

        return sizes_of_events(stored, stored.group.queries, needed)

    @classmethod
    def next_due(cls, stored: Sequence[Stored], plan: QueryPlan) -> Due | None:
        """The earliest event that was not processed yet, or timer."""
        times_us = list[int]()
        for one in stored:
            at, horizon = one.mark.at(plan.query.delay_us), events_needed_from(one.group, one.mark)
            log = one.log(cls.stored_log(one.group))
            events = passing(log.events_in(_FIRST if at is None else at + 1, _LAST, plan.delay), _condition(plan))
            times_us += [int(events.times_us.min())] if events.rows else []
            if at is not None:
                states = _newest_states(log.events_in(_FIRST if horizon is None else horizon, at + 1, plan.delay))
                timers = states.columns[_TIMER_NAME].drop_null().to_numpy()
                times_us += [int(timers.min())] if len(timers) else []
        return Due(min(times_us), min(times_us) + 1, min(times_us) + plan.query.delay_us) if times_us else None

    def ingest(self, parts: Sequence[GroupPart], before: Watermark, after: Watermark) -> None:
        """Write the new events."""
        assert self.group.events is not None
        logged = number_keys(self.group, self.keys, parts).logged
        if logged:
            ordered = any(OFFSET in part.columns for part in logged)
            self._write(concatenated(logged, column_types(self.group.events, ordered)))

    def close(self, before: Watermark, after: Watermark) -> None:
        """Process the events and timers that the watermark passes; write the new states, and collect the rows."""
        delay_us = self.group.queries[0].query.delay_us
        low, high = before.at(delay_us), after.at(delay_us)
        plans = [plan for plan in self.group.queries if self.writer.is_active(plan.query.name)]
        if high is None or (low is not None and low >= high) or not plans:
            return
        outcome: _Outcome | UserFunctionError
        try:
            horizon = events_needed_from(self.group, before)
            outcome = self._processed(_FIRST if low is None else low, high, _FIRST if horizon is None else horizon)
        except UserFunctionError as error:
            outcome = error
        for plan in plans:
            self.writer.collect((plan.query.name,), partial(self._rows, plan, outcome))

    def merge(self, after: Watermark) -> None:
        """Write the new keys, or begin a generation without unused keys; merge events and states by level."""
        horizon = events_needed_from(self.group, after)
        if self.roll([], [], horizon):
            return
        self.add_keys()
        places = self._log.places
        due = Levels(places, self.fan_in).due()
        if due is None:
            return
        at = after.at(self.group.queries[0].query.delay_us)
        full = due.sections_in(places)
        events = self._log.concat_stored([self._log.section(place) for place in full])
        events = events.take(_live(events, _FIRST if at is None else at, horizon))
        if len(full) == len(places):  # no older state of a key whose state was forgotten is stored elsewhere
            events = events.take(events.columns[_KEPT_NAME].fill_null(True).to_numpy(zero_copy_only=False))
        self._log.write(self.delta, events, due.level, tuple(place.id for place in full))

    def _write(self, events: Events) -> None:
        self._log.add(events)
        self._log.write(self.delta, events, 0, ())

    def _processed(self, low: int, high: int, horizon: int) -> _Outcome:
        """Process what is due after `low` and up to `high`, and write the new states.

        States before the horizon are forgotten: a newer one of the same key may be stored no longer.
        """
        plan, function = self.group.queries[0], function_of(self.group)
        arrived = self._log.events_in(low + 1, high + 1, plan.delay)
        arrived = passing(arrived.take(arrived.columns[_KEPT_NAME].is_null().to_numpy(False)), _condition(plan))
        named = self._with_timers(high)
        named[arrived.slots] = True
        slots, position = np.flatnonzero(named), np.cumsum(named) - 1
        states = _newest_states(self._log.events_in(horizon, low + 1, plan.delay, fresh=False, named=named))
        arrived = in_order(arrived._replace(slots=position[arrived.slots]), ties_of(plan.query.aggregates))
        order = np.argsort(np.asarray(arrived.columns[POSITION]), kind="stable")  # by key, then in the order of events
        columns = {
            name: value_column(arrived, value).take(pa.array(order))
            for name, value in zip(function.state.arguments, plan.query.aggregates[0].arguments, strict=True)
        }
        events = KeyEvents(arrived.slots[order].astype(np.int64), arrived.times_us[order], columns)
        old = _states_of(states._replace(slots=position[states.slots]), len(slots), function)
        keys = BlockKeys(self.group, self.keys, slots)
        try:
            rows, new = processed(process_host(), function, events, old, high)
        except UserFunctionError as error:
            raise with_key(error, np.arange(len(slots)), keys) from error
        changed = np.flatnonzero((new.touched_us > low) & (new.present | old.present))
        if len(changed):
            self._write(_stored(slots, new, changed, function))
        return _Outcome(keys, rows)

    def _with_timers(self, until_us: int) -> Mask:
        """The slots with a timer that is due, perhaps one that was replaced."""
        named = np.zeros(len(self.keys), bool)
        if function_of(self.group).state.timer_after_us is not None:
            for part in self._log.overlapping_parts(_FIRST, _LAST, fresh=False):
                if _TIMER_NAME in part.columns:
                    timers = part.columns[_TIMER_NAME].fill_null(NEVER_US).to_numpy(zero_copy_only=False)
                    named[part.slots[timers <= until_us]] = True
        return named

    def _rows(self, plan: QueryPlan, outcome: _Outcome | UserFunctionError) -> QueryRows:
        if isinstance(outcome, UserFunctionError):
            raise outcome
        keys, rows = outcome
        inputs = {"agg:0": from_arrow(rows.values, plan.query.aggregates[0].type)}
        bounds = rows.times_us, rows.times_us + 1
        return rows_of_results(self.group, plan, rows.keys, bounds, inputs, keys, self.task.buckets)


class _Outcome(NamedTuple):
    """The rows of an epoch, and the keys to which they refer."""

    keys: BlockKeys
    rows: KeyRows


def function_of(group: GroupPlan) -> UserFunction:
    """The processor of a group."""
    (function,) = group.queries[0].query.user_functions.values()
    return function


def _fields(function: UserFunction) -> dict[str, Call]:
    """The column of each value that is kept of a key."""
    return {name: Call("state", (literal(f"{name} of key", "string"),), kind) for name, kind in function.state.fields}


def _condition(plan: QueryPlan) -> Expression | None:
    """Which events are processed."""
    return logged_rows(plan.query.aggregates[0], presence_filter(plan.query))


def _newest(slots: npt.NDArray[np.integer], times_us: Ints) -> Ints:
    """The positions of the newest row of each slot."""
    order = np.lexsort((times_us, slots))
    return order[np.flatnonzero(np.diff(slots[order], append=-1))]


def _newest_states(events: Events) -> Events:
    """The newest state of each slot, also if it was forgotten."""
    states = events.take(events.columns[_KEPT_NAME].is_valid().to_numpy(False))
    return states.take(_newest(states.slots, states.times_us))


def _live(events: Events, at_us: int, horizon_us: int | None) -> Mask:
    """The events that wait at a watermark, and the newest states from the horizon on."""
    states = events.columns[_KEPT_NAME].is_valid().to_numpy(False)
    live: Mask = ~states & (events.times_us > at_us)
    rows = np.flatnonzero(states if horizon_us is None else states & (events.times_us >= horizon_us))
    live[rows[_newest(events.slots[rows], events.times_us[rows])]] = True
    return live


def _states_of(states: Events, count: int, function: UserFunction) -> KeyStates:
    """The states of keys 0 … `count` - 1 from the newest row of each."""
    row = np.full(count, -1)
    row[states.slots] = np.arange(states.rows)
    there = row >= 0
    touched, timers, present = np.zeros(count, np.int64), np.full(count, NEVER_US), np.zeros(count, bool)
    touched[there] = states.times_us[row[there]]
    timers[there] = states.columns[_TIMER_NAME].fill_null(NEVER_US).to_numpy(False)[row[there]]
    present[there] = states.columns[_KEPT_NAME].to_numpy(False)[row[there]]
    at = pa.array(row, mask=~there)
    values = [states.columns[value_name(field)].take(at) for field in _fields(function).values()]
    return KeyStates(present, touched, timers, pa.Table.from_arrays(values, schema=value_schema(function.state)))


def _stored(slots: Ints, states: KeyStates, chosen: Ints, function: UserFunction) -> Events:
    """The states of the chosen keys as rows of the log."""
    timers, at = states.timers_us[chosen], pa.array(chosen)
    columns = {_KEPT_NAME: pa.array(states.present[chosen]), _TIMER_NAME: pa.array(timers, mask=timers == NEVER_US)}
    for name, field in _fields(function).items():
        columns[value_name(field)] = states.values.column(name).take(at).combine_chunks()
    return Events(slots[chosen], states.touched_us[chosen], np.zeros(len(chosen), np.int64), columns)
