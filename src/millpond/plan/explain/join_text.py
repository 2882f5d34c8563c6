"""Describes joins in text: what is stored of each side, for how long, and when rows are emitted."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.model.expressions import Call, Column, Expression, columns_of, render
from millpond.model.join import LEFT, SEMI, Join, Within
from millpond.plan.explain.amounts import count_of, duration
from millpond.plan.explain.words import keys_text, predicate_text, window_text
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.joins import Joins, SideLog, kept_us
from millpond.plan.groups.plan import Plan


def log_lines(joins: Joins, log: SideLog) -> Iterator[str]:
    """The lines about the stored events of a stream, with the joins that share them."""
    users = joins.users_of(log)
    longest = max(_kept_us(join, side) for join, side in users)
    names = dict.fromkeys(join.name for join, _ in users)
    yield f"events {log.id}: {log.stream} {keys_text(log.keys)}, event time {log.event_time}"
    yield f"  values    {', '.join(map(render, log.kept.values)) or 'none'}"
    yield f"  kept      {duration(longest)} of event time, and longer while the other stream is behind"
    if isinstance(log.late_beside, tuple):
        yield f"  late      if the watermark of {log.late_beside[0]} has passed the event, too"
    yield f"  joins     {', '.join(names)}"


def join_lines(join: Join) -> Iterator[str]:
    """The lines about a join, with the time at which its rows are emitted."""
    yield f"join {join.name}: {join_text(join)}"
    for name, side in join.sides.items():
        if side.where is not None:
            yield f"  {name:<9} where {predicate_text(side.where)}"
    for name, condition in (("condition", join.condition), ("rows", join.having)):
        if condition is not None:
            yield f"  {name:<9} {'where ' * (name == 'rows')}{render(_over_values(join, condition))}"
    if isinstance(join.ttl_us, int):
        yield f"  ttl       {duration(join.ttl_us)} ('state.ttl'), for bounds or delays that are not declared"
    if not join.pairs:
        what = "a" if join.kind == SEMI else "no"
        yield f"  rows      a left event with {what} partner is emitted when no partner can arrive any more"
    elif isinstance(join.when, Within):
        yield "  rows      a pair is emitted when both watermarks have passed both events"
    else:
        yield "  rows      a pair is emitted when both watermarks have passed the end of its window"
    if join.kind != "inner" and join.pairs:
        alone = {"left": "of the left side", "right": "of the right side", "full": "of either side"}[join.kind]
        yield f"            an event {alone} without a partner is emitted when no partner can arrive any more"
    if not join.left.keys:
        most = f"; at most {join.most_pairs:,} pairs are tried per epoch" if isinstance(join.most_pairs, int) else ""
        yield f"  no key    {_WITHOUT_KEY[join.kind if join.pairs else LEFT]}{most}"


_WITHOUT_KEY = {
    "inner": "the instances form a grid: a left event goes to one row, a right event to one column",
    "left": "a left event goes to one instance, a right event to every instance",
    "right": "a right event goes to one instance, a left event to every instance",
    "full": "all events go to one instance",
}


def join_text(join: Join) -> str:
    """Both sides, their keys, and the maximum distance of events in time, as text."""
    sides = [f"{side.stream} {keys_text(side.keys)}" for side in join.sides.values()]
    delays = " and ".join(duration(side.delay_us) for side in join.sides.values())
    return f"{sides[0]} {join.kind} join {sides[1]}, {near_text(join)}, delays {delays}"


def near_text(join: Join) -> str:
    """The condition on the event times of a pair, as text."""
    if not isinstance(join.when, Within):
        return f"in the same window of {window_text(join.when)}"
    if join.when.lower_us == join.when.upper_us:
        return f"a right event {_after(join.when.lower_us) if join.when.lower_us else 'at the time of'} the left one"
    return f"a right event from {_after(join.when.lower_us)} to {_after(join.when.upper_us)} the left one"


def _over_values(join: Join, expression: Expression) -> Expression:
    """The expression with the text of each value in place of its position."""
    if isinstance(expression, Call):
        return Call(expression.op, tuple(_over_values(join, arg) for arg in expression.args), expression.type)
    if not isinstance(expression, Column):
        return expression
    side, _, what = expression.name.partition(":")
    text = render(join.sides[side].values[int(what)]) if what.isdecimal() else what
    return Column(f"{side}.{text}", expression.type)


def _kept_us(join: Join, side: str) -> int:
    """How long an event is kept, in µs, while both streams have advanced equally far."""
    return kept_us(join, side) + max(of.delay_us for of in join.sides.values())


def _after(us: int) -> str:
    return f"{duration(abs(us))} {'before' if us < 0 else 'after'}"


def price_of_join(plan: Plan, join: Join) -> str:
    """What one more join would add, as text.

    Raises:
        QueryTypeError: its name is already in use.
    """
    build_plan([*plan.all_queries, join])
    known = {log.id: log for log in plan.joins.logs}
    alone = build_plan([join]).joins
    lines = [f"one more join: {join.name}"]
    for side, at in alone.plans[0].logs.items():
        log, of = alone.logs[at], join.sides[side]
        shared = known.get(log.id)
        more = [value for value in log.kept.values if shared is None or value not in shared.kept.values]
        what = "stores its own events" if shared is None else "shares stored events"
        columns = sorted({name for value in more for name in columns_of(value)})
        lines.append(
            f"  {side:<9} {what}: {of.stream}, {count_of(len(more), 'more value')}{': ' * bool(columns)}"
            f"{', '.join(columns)}, for {duration(_kept_us(join, side))} of event time"
        )
    lines.append("  epoch     a pass over the stored events of both sides, and each pair that becomes final")
    return "\n".join(lines) + "\n"
