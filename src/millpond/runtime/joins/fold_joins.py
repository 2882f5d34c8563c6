"""Joins in the fold: stores events in the logs of their sides and emits rows that have become final.

`plan.groups.joins` explains when a row is final and why it is emitted exactly once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from millpond.arrays import Ints, Mask, distinct_of, ordered
from millpond.errors import TooManyPairsError
from millpond.kernels.semijoin import Live, reduced
from millpond.model.expressions import conjunction, conjuncts_of, foreigns_in
from millpond.model.join import LEFT, RIGHT, SEMI, Join, Within
from millpond.model.selection import foreign_above
from millpond.model.windows import Sliding
from millpond.plan.groups.joins import JoinPlan, Joins, SideLog, alone_after_us, kept_rows, kept_us
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.event_log.select_events import passed_mask, value_name
from millpond.runtime.joins.joined_rows import (
    Joined,
    PossibleRows,
    SideEvents,
    equal_rows,
    evaluated,
    joined_rows,
    passing,
)
from millpond.runtime.joins.merge_join import Candidates, Placed
from millpond.runtime.packets.packet import GroupPart
from millpond.runtime.packets.row_batches import RowBatch
from millpond.runtime.rows.query_families import QueryRows
from millpond.runtime.rows.row_writer import RowWriter
from millpond.runtime.task.task_values import FoldTask, Watermark
from millpond.state.keys.keys import canonical, hashes_of
from millpond.state.layout.delta import DeltaWriter
from millpond.state.layout.event_log import Events
from millpond.state.ports.files import Files

Marks: TypeAlias = Mapping[str, tuple[Watermark, Watermark]]
"""The watermark of each stream before and after an epoch."""

_FIRST = -(1 << 63)


class WatermarkSpan(NamedTuple):
    """The lesser watermark of a join before and after an epoch: rows that become final in between are due."""

    before: int
    after: int

    def holds(self, final_us: Ints) -> Mask:
        """Which rows with these final times are due."""
        due: Mask = (final_us > self.before) & (final_us <= self.after)
        return due


def lesser_mark(join: Join, marks: Mapping[str, Watermark]) -> int | None:
    """The lesser of the watermarks of both sides; None if one of them has no watermark yet."""
    found = [marks.get(side.stream, Watermark()).at(side.delay_us) for side in join.sides.values()]
    known = [mark for mark in found if mark is not None]
    return min(known) if len(known) == len(found) else None


def joins_need_from(joins: Joins, log: SideLog, after: Mapping[str, Watermark]) -> int | None:
    """The time before which events of a log are in no future row; None if all events are needed."""
    times = []
    for join, side in joins.users_of(log):
        mark = lesser_mark(join, after)
        if mark is None:
            return None
        times.append(mark - kept_us(join, side) + 1)
    return min(times)


def fold_joins(
    task: FoldTask, instance: int, parts: Mapping[str, Sequence[GroupPart]], marks: Marks, files: Files,
    delta: DeltaWriter, writer: RowWriter, fan_in: int,
) -> None:  # fmt: skip
    """Store new events, write the rows that become final, and merge sections."""
    joins, after = task.plan.joins, {stream: mark for stream, (_, mark) in marks.items()}
    logs = _filled_logs(task, instance, parts, files, delta=delta)
    for plan in joins.plans:
        _collect(task, plan, logs, marks, writer)
        writer.flush()
    for side_log, log in zip(joins.logs, logs, strict=True):
        log.merge(delta, joins_need_from(joins, side_log, after), fan_in)


def request_values(
    task: FoldTask, instance: int, parts: Mapping[str, Sequence[GroupPart]], marks: Marks, files: Files,
    writer: RowWriter,
) -> None:  # fmt: skip
    """Request the values that `fold_joins` needs from Spark; what `writer` gets is discarded."""
    plans = [plan for plan in task.plan.joins.plans if foreign_above(plan.join)]
    used = {position for plan in plans for position in plan.logs.values()}
    logs = _filled_logs(task, instance, parts, files, used)
    for plan in plans:
        _collect(task, plan, logs, marks, writer)


def _filled_logs(
    task: FoldTask, instance: int, parts: Mapping[str, Sequence[GroupPart]], files: Files,
    used: Collection[int] | None = None, delta: DeltaWriter | None = None,
) -> list[EventLog]:  # fmt: skip
    """The log of each side with the new events, which are written to `delta` if it is given.

    `used`: the positions of logs that get new events; None: all.
    """
    logs = []
    for position, side_log in enumerate(task.plan.joins.logs):
        log = EventLog(files, side_log, side_log.kept, task.of(instance, side_log), ())
        packets = parts.get(side_log.id, ()) if used is None or position in used else ()
        arrived = [_hashed(part) for part in packets]
        if arrived:
            events = log.concat_stored(arrived)
            log.add(events)
            if delta is not None:
                log.write(delta, events, 0, ())
        logs.append(log)
    return logs


def _collect(task: FoldTask, plan: JoinPlan, logs: Sequence[EventLog], marks: Marks, writer: RowWriter) -> None:
    """Collect the rows of a join that become final."""
    span = _span(plan.join, marks)
    if span is not None and plan.join.name not in task.quarantined:
        sides = {side: (task.plan.joins.logs[at], logs[at]) for side, at in plan.logs.items()}
        writer.collect((plan.join.name,), _JoinFold(plan, sides, span).rows)


def _hashed(part: GroupPart) -> Events:
    """The events of a packet, with the hashes of their keys as slots."""
    assert isinstance(part.body, Events)
    return part.body._replace(slots=hashes_of(part.keys, part.key_count).view(np.int64)[part.body.slots])


def _span(join: Join, marks: Marks) -> WatermarkSpan | None:
    before, after = (lesser_mark(join, {stream: pair[i] for stream, pair in marks.items()}) for i in (0, 1))
    if after is None or (before is not None and after <= before):
        return None
    return WatermarkSpan(_FIRST if before is None else before, after)


class _JoinFold:
    """Computes the due rows of one join, on one instance, in one epoch."""

    def __init__(self, plan: JoinPlan, logs: Mapping[str, tuple[SideLog, EventLog]], span: WatermarkSpan) -> None:
        self._join, self._span = plan.join, span
        read = reduced({side: self._live(plan, side, *of) for side, of in logs.items()})
        self._sides = {side: self._side(side, log.concat_stored(read[side])) for side, (_, log) in logs.items()}
        distinct = distinct_of(np.concatenate([side.hashes for side in self._sides.values()]))
        self._placed = {name: self._place(side, distinct) for name, side in self._sides.items()}
        self._tried = 0
        parts = conjuncts_of(plan.join.condition)
        by_spark = [part for part in parts if foreigns_in(part)]
        self._plain = conjunction([part for part in parts if part not in by_spark])
        self._by_spark = conjunction(by_spark)

    def _live(self, plan: JoinPlan, side: str, side_log: SideLog, log: EventLog) -> list[Live]:
        """The events of a side that may be in due rows, and the role of each, as `kernels.semijoin.Live` describes."""
        join, span, live_events = plan.join, self._span, list[Live]()
        start, end = self._reach(side)
        start, delay = max(start, plan.from_us), side_log.delays_us.index(join.sides[side].delay_us)
        for events in log.overlapping_parts(start, end) if start < end else ():
            times = events.times_us
            live = (times >= start) & (times < end) & (events.late_class <= delay)
            if isinstance(join.when, Sliding):
                live_events.append(Live(events, live, live if join.preserves(side) else np.zeros_like(live), live))
                continue
            searching = span.holds(times)
            if join.preserves(side):
                searching |= span.holds(times + alone_after_us(join, side))
            searching &= live
            live_events.append(Live(events, searching, searching, live))
        return live_events

    def _reach(self, side: str) -> tuple[int, int]:
        """The range of times [first, end) of the events of a side that may be in due rows."""
        before, after, window = self._span.before, self._span.after, self._join.when
        if isinstance(window, Sliding):
            first, still_open = window.first_open(before), window.first_open(after)
            last = still_open - window.slide_us + window.size_us
            return (max(first, _FIRST), last) if first < still_open else (last, last)
        return (_FIRST if before == _FIRST else before - kept_us(self._join, side) + 1), after + 1

    def _side(self, side: str, events: Events) -> SideEvents:
        """The keys and values of those events of a side that may be in a row."""
        join, rows = self._join, np.arange(events.rows)
        condition = kept_rows(join, side)
        if condition is not None:
            rows = np.flatnonzero(passed_mask(events.columns, condition))
        events = events.take(rows[ordered(events.slots[rows])])  # so that consecutive lookups are close in memory
        keys = [canonical(events.columns[value_name(key)]) for key in join.sides[side].keys]
        values = [events.columns[value_name(value)] for value in join.sides[side].values]
        return SideEvents(events.slots.astype(np.int64, copy=False), events.times_us, keys, values)

    def _place(self, side: SideEvents, distinct: Ints) -> Placed:
        """The events of a side without a NULL in their keys, as `Placed`: once, or once per window."""
        chosen = np.flatnonzero(side.has_key)
        codes = np.searchsorted(distinct, side.hashes[chosen])
        return self._in_windows(Placed(chosen, codes, side.times_us[chosen]))

    def _in_windows(self, rows: Placed) -> Placed:
        """Repeats each row once per due window that contains it; without windows, returns `rows` unchanged."""
        window = self._join.when
        if not isinstance(window, Sliding):
            return rows
        last = rows.at - (rows.at - window.offset_us) % window.slide_us
        placed_in_windows = []
        for back in range(-(-window.size_us // window.slide_us)):
            starts = last - back * window.slide_us
            due = (starts + window.size_us > rows.at) & self._span.holds(starts + window.size_us)
            placed_in_windows.append(Placed(rows.events[due], rows.codes[due], starts[due]))
        return Placed(*(np.concatenate(columns) for columns in zip(*placed_in_windows, strict=True)))

    def rows(self) -> QueryRows:
        """The due rows.

        Raises:
            OverflowedError: a condition or an output raises an error for a row.
            TooManyPairsError: a join without keys would try more pairs than its limit.
        """
        join = self._join
        pairs = self._pairs() if join.pairs else []
        made = [*pairs, *(self._alone(side) for side in (LEFT, RIGHT) if join.preserves(side))]
        batches, withheld = joined_rows(join, [possible for possible in made if possible.rows.size])
        return QueryRows([RowBatch(join.name, batch) for batch in batches], {join.name: withheld} if withheld else {})

    def _pairs(self) -> list[PossibleRows]:
        """All due pairs that can meet the condition."""
        left, right = self._placed[LEFT], self._placed[RIGHT]
        when = self._join.when
        if not isinstance(when, Within):
            return list(self._matching(left, left.at, left.at, right, LEFT))
        # a pair is due with its later event; looking up from there finds each pair once
        due = left.take(self._span.holds(left.at))
        found = list(self._matching(due, due.at + when.lower_us, due.at + min(when.upper_us, 0), right, LEFT))
        due = right.take(self._span.holds(right.at))
        low, high = due.at - when.upper_us, due.at - max(when.lower_us, 1)
        return [*found, *self._matching(due, low, high, left, RIGHT)]

    def _matching(self, searching: Placed, low: Ints, high: Ints, other: Placed, side: str) -> list[PossibleRows]:
        """Pairs of searching rows, which belong to `side`, and rows of the other side with a place in [low, high]."""
        candidates, found = Candidates(searching, low, high, other), []
        self._check(candidates)
        for mine, theirs in candidates.runs():
            pairs = {side: searching.events[mine], (RIGHT if side == LEFT else LEFT): other.events[theirs]}
            rows = Joined(self._sides, pairs[LEFT], pairs[RIGHT], self._window_of(searching, mine))
            positions, met = self._tested(rows)
            found.append(PossibleRows(rows.take(positions), met))
        return found

    def _check(self, candidates: Candidates) -> None:
        """Count the pairs that are tried in the epoch.

        Raises:
            TooManyPairsError: there are more than the limit of the join.
        """
        self._tried += candidates.count
        most = self._join.most_pairs
        if isinstance(most, int) and self._tried > most:
            raise TooManyPairsError(
                f"The join {self._join.name!r} has no key and would try {self._tried} pairs in an epoch, of {most}.",
                "Join on equal keys, filter both sides, or make the bounds narrower.",
            )

    def _window_of(self, rows: Placed, at: Ints) -> tuple[Ints, Ints] | None:
        when = self._join.when
        return (rows.at[at], rows.at[at] + when.size_us) if isinstance(when, Sliding) else None

    def _tested(self, rows: Joined) -> tuple[Ints, Mask | None]:
        """The positions of the pairs with equal keys, not only equal hashes, that meet our part of the condition.

        Also a mask of those that meet Spark's part; None if Spark has not evaluated it yet.
        """
        kept = np.flatnonzero(equal_rows(rows))
        some = rows.take(kept)
        if self._plain is not None:
            kept = kept[passing(self._join, self._plain, some)]
            some = rows.take(kept)
        if self._by_spark is None:
            return kept, np.ones(len(kept), bool)
        known = evaluated(self._join, [self._by_spark], some)
        return kept, None if known is None else passing(self._join, self._by_spark, some, known)

    def _alone(self, side: str) -> PossibleRows:
        """The due events of a side that are rows of their own: without a partner or, in a semi join, with one."""
        mine, other = self._placed[side], self._placed[RIGHT if side == LEFT else LEFT]
        when, events = self._join.when, self._sides[side]
        keyless = np.flatnonzero(~events.has_key)
        without = self._in_windows(Placed(keyless, np.zeros_like(keyless), events.times_us[keyless]))
        if isinstance(when, Sliding):
            low = high = mine.at
        else:
            after = alone_after_us(self._join, side)
            mine, without = (rows.take(self._span.holds(rows.at + after)) for rows in (mine, without))
            bounds = (when.lower_us, when.upper_us) if side == LEFT else (-when.upper_us, -when.lower_us)
            low, high = mine.at + bounds[0], mine.at + bounds[1]
        partners, known = np.zeros(len(mine.at), bool), True
        candidates = Candidates(mine, low, high, other)
        self._check(candidates)
        for searching, theirs in candidates.runs():
            pairs = {side: mine.events[searching], (RIGHT if side == LEFT else LEFT): other.events[theirs]}
            rows = Joined(self._sides, pairs[LEFT], pairs[RIGHT], self._window_of(mine, searching))
            positions, met = self._tested(rows)
            if met is None:
                known = False
            else:
                partners[searching[positions[met]]] = True
        if self._join.kind == SEMI:
            alone, valid = mine, partners
        else:
            alone = Placed(*(np.concatenate(pair) for pair in zip(mine, without, strict=True)))
            valid = np.concatenate([~partners, np.ones(len(without.at), bool)])
        if self._by_spark is None:
            alone, valid = alone.take(valid), valid[valid]
        window = self._window_of(alone, np.arange(len(alone.at)))
        return PossibleRows(Joined.alone(self._sides, side, alone.events, window), valid if known else None)
