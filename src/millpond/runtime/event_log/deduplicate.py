"""Deduplication: events wait in the event log until the watermark passes them, and then become cells.

After the watermark has passed an event, no earlier one can arrive. So whether it repeats another event is decided
once, from all events in time order, not by arrival. Events stay in the log for as long as later ones may repeat them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, Mask, places_of
from millpond.kernels.columns import Array, from_arrow
from millpond.kernels.ranks import ranks, ranks_and_signs
from millpond.kernels.semijoin import Sieve
from millpond.model.expressions import Expression
from millpond.model.query import Deduplication
from millpond.plan.groups.edges import slices_of
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.event_log.select_events import passed_mask, value_name
from millpond.runtime.keys.current_slots import used_slots
from millpond.runtime.packets.raw_columns import RawRows, piece_of_raw, values_of
from millpond.runtime.task.task_values import Watermark
from millpond.state.keys.keys import canonical, hashes_of
from millpond.state.layout.cells import Piece, Slices
from millpond.state.layout.event_log import OFFSET, PARTITION, Events

_ALWAYS = np.iinfo(np.int64).min


class Decided(NamedTuple):
    """The events that the watermark passed: the cells of the non-repeated ones, and the number of repeats by filter."""

    piece: Piece | None
    repeated: dict[Expression | None, int]


def decided(group: GroupPlan, log: EventLog, keys: int, before: Watermark, after: Watermark) -> Decided:
    """Decides about the events between the watermarks `before` and `after`; `keys`: the number of slots."""
    rule, delay = group.deduplicated, group.delays_us[0]
    low, high = before.at(delay), after.at(delay)
    if rule is None or high is None or (low is not None and low >= high):
        return Decided(None, {})
    low = _ALWAYS if low is None else low
    first = _ALWAYS if low < _ALWAYS + rule.within_us else low - rule.within_us
    new = log.events_in(low + 1, high + 1, 0)
    if not new.rows:
        return Decided(None, {})
    earlier = log.events_in(first, low + 1, 0, named=used_slots([new], keys))
    events = log.concat_stored([earlier.take(Sieve([_hashes(rule, new)])(_hashes(rule, earlier))), new])
    passed = events.times_us > low
    repeats = repeated(rule, events, passed, group)
    gone = events.take(passed & repeats)
    masks = {one.filter: _mask(gone, one.filter) for one in group.measures}
    counts = {condition: int(np.count_nonzero(mask)) for condition, mask in masks.items()}
    kept = events.take(passed & ~repeats)
    return Decided(_piece(group, kept) if kept.rows else None, counts)


def _hashes(found: Deduplication, events: Events) -> Ints:
    """Hashes that are equal for events with equal values in the compared columns."""
    columns = [canonical(events.columns[value_name(column)]) for column in found.columns]
    return hashes_of(columns, events.rows).view(np.int64)


def repeated(rule: Deduplication, events: Events, passed: Mask, group: GroupPlan) -> Mask:
    """Which of the events that the watermark passed (`passed`) repeat an earlier event."""
    codes = np.zeros(events.rows, np.int64)
    for column in rule.columns:
        part = _dense(ranks(events.columns[value_name(column)], column.type))
        codes = _dense(codes * (int(part.max()) + 1) + part)
    # only events with an equal one are sorted; they are usually few
    several = (np.bincount(codes) > 1) & (np.bincount(codes, passed) > 0)
    rows = np.flatnonzero(several[codes])
    some, codes = events.take(rows), codes[rows]
    order = np.lexsort((*ties_in(some, group), some.times_us, codes))
    times, codes = some.times_us[order], codes[order]
    result = np.zeros(events.rows, bool)
    result[rows[order[1:]]] = (codes[1:] == codes[:-1]) & (times[1:] - times[:-1] <= rule.within_us)
    return result


def _dense(values: Ints) -> Ints:
    """Dense integer codes from 0: equal values have equal codes, in the order of the values."""
    codes: Ints = np.unique(values, return_inverse=True)[1].reshape(-1)
    return codes


def ties_in(events: Events, group: GroupPlan) -> list[Ints]:
    """Sort keys for events of equal time, the major key last: source order if known, else all logged values."""
    if OFFSET in events.columns:
        return [np.asarray(events.columns[OFFSET]), ranks(events.columns[PARTITION], "string")]
    log = group.events
    assert log is not None
    values = ranks_and_signs([(events.columns[value_name(value)], value.type) for value in log.values])
    return [*(_mask(events, condition).astype(np.int64) for condition in log.filters), *values]


def _mask(events: Events, condition: Expression | None) -> Mask:
    if condition is None:
        return np.ones(events.rows, bool)
    return passed_mask(events.columns, condition)


def _piece(group: GroupPlan, events: Events) -> Piece:
    """The cells of events, equal to those that a gather would have computed."""
    starts, ends, slices = slices_of(group.cuts, events.times_us)
    slots, keys = places_of(events.slots)
    masks: list[Array] = []
    places: dict[Expression | None, int] = {None: -1}
    filters = []
    for ladder in group.ladders if group.signed else ():
        filters.append(len(masks))
        masks.append(np.sum([_mask(events, condition) for condition in ladder.conditions], axis=0))
    for condition in () if group.signed else (measure.filter for measure in group.kept):
        if condition not in places:
            places[condition] = len(masks)
            masks.append(_mask(events, condition))
        filters.append(places[condition])
    values = [_values(events.columns[value_name(value)], value.type) for value in values_of(group)]
    every = Slices(starts, ends, np.zeros(len(starts), np.int64))
    piece = piece_of_raw(group, RawRows(every, slices, keys.reshape(-1), values, masks, filters), len(slots))
    return piece._replace(slots=slots[piece.slots])


def _values(column: pa.Array, kind: str) -> Array:
    """The values of a column with 0 in place of NULL, so that exact sums get no words for arbitrary data."""
    known = from_arrow(column, kind)
    data: Array = known.data
    if known.null.any():
        data = data.copy()
        data[known.null] = 0
    return data
