"""Plans joins: one event log per stream and key for all joins over it, and the time at which rows are final.

W is the lesser of the watermarks of both sides, each for its own delay. An accepted event is above the watermark of
its stream or of the other one when its epoch begins, so above W. A pair is final when W passes its final time: the
later of its two times, or the end of its window. Both events have arrived by then, because the final time is above W
while one of them is missing. W never decreases. So each pair is emitted exactly once, in the epoch in which W passes
its final time. An event without a partner is final when no partner can arrive any more. The same argument holds,
because that is never before its own time. Then also an event of a semi join is emitted that has a partner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from millpond.model.expressions import Call, Expression, call, conjunction, may_raise
from millpond.model.join import LEFT, RIGHT, SEMI, Join, Side
from millpond.model.windows import Sliding
from millpond.plan.groups.event_log import LogPlan

_ALWAYS = -(1 << 63)

ROW, COLUMN, ONE, EVERY = "row", "column", "one", "every"
"""The instances that store an event of a join without keys: a row or column of their grid, one, or all."""


class SideLog(msgspec.Struct, frozen=True):
    """Events of one stream, kept by key for every join that has this key on some side.

    `kept` names the keys among its values. `dealt`: the instances that store an event of a join without keys; see the
    function `dealt`. `late_beside`: an event is late only if the watermark of this other stream, for this delay, has
    also passed it when the epoch begins.
    """

    id: str
    stream: str
    event_time: str
    keys: tuple[Expression, ...]
    delays_us: tuple[int, ...]
    kept: LogPlan
    dealt: str | msgspec.UnsetType = msgspec.UNSET
    late_beside: tuple[str, int] | msgspec.UnsetType = msgspec.UNSET


class JoinPlan(msgspec.Struct, frozen=True):
    """A join and the logs of its sides, as positions in `Joins.logs`.

    `since_us`: set if the join was added after the first events; earlier events take no part.
    """

    join: Join
    left: int
    right: int
    since_us: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def logs(self) -> dict[str, int]:
        """The log of each side."""
        return {LEFT: self.left, RIGHT: self.right}

    @property
    def from_us(self) -> int:
        """The earliest event that takes part."""
        return _ALWAYS if isinstance(self.since_us, msgspec.UnsetType) else self.since_us


class Joins(msgspec.Struct, frozen=True):
    """All joins of a pond, and the logs that they share."""

    logs: tuple[SideLog, ...] = ()
    plans: tuple[JoinPlan, ...] = ()

    def logs_of(self, stream: str) -> tuple[SideLog, ...]:
        """The logs of one stream."""
        return tuple(log for log in self.logs if log.stream == stream)

    def users_of(self, log: SideLog) -> list[tuple[Join, str]]:
        """The joins that read a log, each with the side for which it does."""
        return [(plan.join, side) for plan in self.plans for side, at in plan.logs.items() if self.logs[at] == log]


def plan_joins(joins: Sequence[Join], since_us: Mapping[str, int], name: Mapping[object, str]) -> Joins:
    """The shared logs of `joins`; `name` gives each `identity_of` a log's name."""
    sides: dict[object, list[tuple[Join, str]]] = {}
    for join in joins:
        for side in join.sides:
            sides.setdefault(identity_of(join, side), []).append((join, side))
    logs = tuple(_log(name[identity], users) for identity, users in sides.items())
    places = {identity: place for place, identity in enumerate(sides)}
    return Joins(
        logs,
        tuple(
            JoinPlan(
                join, places[identity_of(join, LEFT)], places[identity_of(join, RIGHT)],
                since_us.get(join.name, msgspec.UNSET),
            )
            for join in joins
        ),
    )  # fmt: skip


def identity_of(join: Join, side: str) -> object:
    """The properties that all sides with a shared log have in common."""
    of, how = join.sides[side], dealt(join, side)
    alike = (of.stream, of.event_time, of.keys, "joined")
    beside = join.other_marks.get(side)
    judged = () if beside is None else (of.delay_us, *beside)
    return (*alike, *judged) if how is None else (*alike, *judged, how)


def dealt(join: Join, side: str) -> str | None:
    """Which instances store an event of a join without keys; None if the key determines it.

    The two events of a pair meet on exactly one instance. An event that may be emitted without a partner is stored on
    one instance, together with all its candidates.
    """
    if join.left.keys or join.kind == "full":
        return None
    if join.kind == "inner":
        return ROW if side == LEFT else COLUMN
    return ONE if join.preserves(side) else EVERY


def _log(name: str, users: Iterable[tuple[Join, str]]) -> SideLog:
    values: dict[Expression, None] = {}
    filters: dict[Expression | None, None] = {}
    delays: set[int] = set()
    for join, side in users:
        of = join.sides[side]
        values.update(dict.fromkeys((*of.keys, *of.values)))
        filters[kept_rows(join, side)] = None
        delays.add(of.delay_us)
    kept = LogPlan(tuple(values), tuple(one for one in filters if one is not None), None in filters)
    how = dealt(join, side)
    beside = join.other_marks.get(side, msgspec.UNSET)
    return SideLog(name, of.stream, of.event_time, of.keys, tuple(sorted(delays)), kept, how or msgspec.UNSET, beside)


def presence_of(side: Side) -> Expression | None:
    """The events that take part: WHERE is TRUE and no expression of the join raises an error."""
    parts: list[Expression] = [] if side.where is None else [side.where]
    parts += [call("ran", (part,), "boolean") for part in (*side.keys, *side.values) if may_raise(part)]
    return conjunction(parts)


def kept_rows(join: Join, side: str) -> Expression | None:
    """The events that are stored: those that take part and can be in a pair or be emitted alone."""
    of = join.sides[side]
    present = presence_of(of)
    parts = [] if present is None else [present]
    if not join.preserves(side) or join.kind == SEMI:
        parts += [Call("isnotnull", (key,), "boolean") for key in of.keys]
    return conjunction(parts)


def alone_after_us(join: Join, side: str) -> int:
    """How long after its time an event without a partner is final. With windows, the end of the window decides."""
    assert not isinstance(join.when, Sliding)
    return max(join.when.upper_us if side == LEFT else -join.when.lower_us, 0)


def kept_us(join: Join, side: str) -> int:
    """An event at time t is stored until W reaches t plus this duration."""
    when = join.when
    if isinstance(when, Sliding):
        return when.size_us
    other = RIGHT if side == LEFT else LEFT
    in_pairs = alone_after_us(join, side)
    if not join.preserves(other):
        return in_pairs
    # it must be visible to the latest event on the other side that may be its partner
    farthest = when.upper_us if side == LEFT else -when.lower_us
    return max(in_pairs, farthest + alone_after_us(join, other))


def last_final_us(join: Join, newest_us: int) -> int:
    """The value of W at which all rows of events up to `newest_us` are final."""
    if isinstance(join.when, Sliding):
        return join.when.assign(newest_us)[-1].end_us
    return newest_us + max(alone_after_us(join, side) for side in join.sides)
