"""Calls a processor for the due events and timers of many keys at once, so that results do not depend on the cut.

Without timers and time to live, a processor is called once for all events of an epoch. With them, it is called in
rounds: a round gives each key the events before its next timer, before a new timer could be due, and before a gap in
which its state is forgotten. The number of rounds depends on the time that an epoch covers, not on the number of keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Ints, Mask, places_of, repeated
from millpond.kernels.columns import arrow_type
from millpond.model.functions import KeyedState, UserFunction
from millpond.runtime.functions.call_functions import EVENTS_AT_ONCE
from millpond.runtime.functions.host import FunctionHost, function_error
from millpond.runtime.functions.kinds import KEY, TIME, TIMER

NEVER_US = int(np.iinfo(np.int64).max)
"""The time of a timer that is not set."""

_TIMESTAMP = arrow_type("timestamp")


class KeyEvents(NamedTuple):
    """Events, sorted by key (a position in the states), then in their order; the arguments by their names."""

    keys: Ints
    times_us: Ints
    columns: Mapping[str, pa.Array]


class KeyStates(NamedTuple):
    """One state per key; `touched_us`: the time of its last event or timer, `timers_us`: its next timer or `NEVER_US`.

    Where a key has no state (`present`), the other values are arbitrary.
    """

    present: Mask
    touched_us: Ints
    timers_us: Ints
    values: pa.Table


class KeyRows(NamedTuple):
    """Rows that a processor has made: their keys and times, and one struct each."""

    keys: Ints
    times_us: Ints
    values: pa.StructArray


def value_schema(keyed: KeyedState) -> pa.Schema:
    """The columns of a table of states, without the timer."""
    return pa.schema([(name, arrow_type(kind)) for name, kind in keyed.fields])


def processed(
    host: FunctionHost, function: UserFunction, events: KeyEvents, states: KeyStates, until_us: int
) -> tuple[KeyRows, KeyStates]:
    """The rows for these events and for timers up to `until_us`, and the states after them.

    Raises:
        UserFunctionError: the processor failed; `row` is the key that it was processing, if known.
    """
    rounds = _Rounds(host, function, events, states)
    while rounds.advance(until_us):
        pass
    return rounds.rows(), rounds.states()


class _Rounds:
    """The states between two rounds; `_at`: the row of each key's state in `_pool`, whose first row is NULL."""

    def __init__(self, host: FunctionHost, function: UserFunction, events: KeyEvents, states: KeyStates) -> None:
        self._host, self._function, self._keyed, self._events = host, function, function.state, events
        count, times = len(states.present), events.times_us
        bounds = np.searchsorted(events.keys, np.arange(count + 1))
        self._next, self._end = bounds[:-1].copy(), bounds[1:]
        schema = value_schema(self._keyed)
        none = pa.Table.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
        self._pool = pa.concat_tables([none, states.values])
        self._at = np.where(states.present, np.arange(1, count + 1), 0)
        self._touched = states.touched_us.copy()
        self._timers = np.where(states.present, states.timers_us, NEVER_US)
        self._made: list[KeyRows] = []
        self._forgets = _forgets(self._keyed, events)
        self._times, ranks = places_of(times)
        self._width = len(self._times) + 1
        self._order = events.keys * self._width + ranks  # ascending

    def advance(self, until_us: int) -> bool:
        """Calls the processor for the keys that have something due; False if no key has."""
        upcoming = np.full(len(self._at), NEVER_US)
        waiting = np.flatnonzero(self._next < self._end)
        upcoming[waiting] = self._events.times_us[self._next[waiting]]
        timers, ttl = self._timers, self._keyed.lasts_us
        if ttl is not None:
            timers = np.where(timers - self._touched < ttl, timers, NEVER_US)
        due = np.flatnonzero((timers <= until_us) & (timers < upcoming))
        waiting = np.setdiff1d(waiting, due, assume_unique=True)
        if len(due):
            self._fire(due)
        if len(waiting):
            self._process(waiting)
        return bool(len(due) or len(waiting))

    def rows(self) -> KeyRows:
        """All rows that were made."""
        none = np.zeros(0, np.int64)
        made = self._made or [KeyRows(none, none, pa.array([], arrow_type(self._function.returns)))]
        keys, times = (np.concatenate([one[i] for one in made]) for i in (0, 1))
        return KeyRows(keys, times, pa.concat_arrays([one.values for one in made]))

    def states(self) -> KeyStates:
        """The states of all keys."""
        return KeyStates(self._at > 0, self._touched, self._timers, self._values(np.arange(len(self._at))))

    def _fire(self, keys: Ints) -> None:
        times = self._timers[keys]
        self._timers[keys] = NEVER_US
        due = pa.table({KEY: pa.array(np.arange(len(keys))), TIME: pa.array(times).view(_TIMESTAMP)})
        self._call("timer", keys, due, times, times)

    def _process(self, keys: Ints) -> None:
        """Calls `process` for the next events of keys that have some, up to about `EVENTS_AT_ONCE` events."""
        first, events, ttl, after = self._next[keys], self._events, self._keyed.lasts_us, self._keyed.timer_after_us
        begins = events.times_us[first]
        if ttl is not None:
            gone = keys[(self._at[keys] > 0) & (begins - self._touched[keys] >= ttl)]
            self._at[gone], self._timers[gone] = 0, NEVER_US
        end = self._forgets[np.searchsorted(self._forgets, first, "right")]
        if after is not None:
            before_new = np.searchsorted(self._times, begins + after)
            rank = np.minimum(before_new, np.searchsorted(self._times, self._timers[keys], "right"))
            end = np.minimum(end, np.searchsorted(self._order, keys * self._width + rank))
        some = np.cumsum(end - first) - (end - first) < EVENTS_AT_ONCE
        keys, first, end, begins = keys[some], first[some], end[some], begins[some]
        local, nth = repeated(end - first)
        index = first[local] + nth
        columns = {name: column.take(pa.array(index)) for name, column in events.columns.items()}
        times = pa.array(events.times_us[index]).view(_TIMESTAMP)
        self._next[keys] = end
        self._call("process", keys, pa.table({KEY: pa.array(local), TIME: times, **columns}),
                   begins, events.times_us[end - 1])  # fmt: skip

    def _call(self, step: str, keys: Ints, given: pa.Table, first_us: Ints, last_us: Ints) -> None:
        """Calls a step for some keys, whose events or timers are from `first_us` to `last_us`."""
        state, before, after = self._values(keys), self._timers[keys], self._keyed.timer_after_us
        if after is not None:
            state = state.append_column(TIMER, pa.array(before, mask=before == NEVER_US).view(_TIMESTAMP))
        try:
            rows, state = self._host.step(self._function, step, given, state)
            if after is not None:
                timers = _microseconds(state.column(TIMER))
                self._check((timers != before) & (timers < first_us + after), "set a timer earlier than it may be")
                self._timers[keys], state = timers, state.drop_columns([TIMER])
            made, times = rows.column(KEY).to_numpy(), _microseconds(rows.column(TIME))
            wrong = np.zeros(len(keys), bool)
            wrong[made[(times < first_us[made]) | (times > last_us[made])]] = True
            self._check(wrong, "gave a row with a time at which the key has neither event nor timer")
        except Exception as error:
            row = getattr(error, "row", None)
            if row is not None:
                error.row = int(keys[row])  # type: ignore[attr-defined]
            raise
        self._touched[keys] = last_us
        self._at[keys] = np.where(_all_null(state) & (self._timers[keys] == NEVER_US), 0,
                                  self._pool.num_rows + np.arange(len(keys)))  # fmt: skip
        self._pool = pa.concat_tables([self._pool, state])
        values = rows.drop_columns([KEY]).combine_chunks().to_struct_array()
        self._made.append(KeyRows(keys[made], times, _in_one(values)))

    def _check(self, wrong: Mask, what: str) -> None:
        if wrong.any():
            raise function_error(self._function, what, int(np.flatnonzero(wrong)[0]))

    def _values(self, keys: Ints) -> pa.Table:
        """The states of some keys."""
        return self._pool.take(pa.array(self._at[keys])).combine_chunks()


def _forgets(keyed: KeyedState, events: KeyEvents) -> Ints:
    """The positions, ascending, at which the events of another key begin, or those of a key after its state is
    forgotten; the last one is the number of events.
    """
    begins = np.diff(events.keys, append=-1, prepend=-1) != 0
    if keyed.lasts_us is not None:
        begins[1:-1] |= np.diff(events.times_us) >= keyed.lasts_us
    return np.flatnonzero(begins)


def _microseconds(column: pa.ChunkedArray) -> Ints:
    """The times of a column; `NEVER_US` where it is NULL."""
    found: Ints = pc.fill_null(column.cast(pa.int64()), NEVER_US).to_numpy()
    return found


def _all_null(state: pa.Table) -> Mask:
    """The rows in which every value is NULL."""
    null = np.ones(len(state), bool)
    for column in state.columns:
        null &= pc.is_null(column).to_numpy()
    return null


def _in_one(values: pa.StructArray | pa.ChunkedArray) -> pa.StructArray:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
