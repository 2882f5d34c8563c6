"""What a group's event log keeps, in words: each value and filter once, and who asks for it."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.model.expressions import render
from millpond.plan.build import presence_filter
from millpond.plan.event_log import logged_rows
from millpond.plan.plan import GroupPlan
from millpond.plan.words import count_of, predicate_text


def event_lines(group: GroupPlan) -> Iterator[str]:
    """The lines of a group; none without an event log."""
    log = group.events
    if log is None:
        return
    askers: dict[object, list[str]] = {}
    for plan in group.queries:
        presence = presence_filter(plan.query)
        for aggregate in plan.query.aggregates:
            if aggregate.logged:
                for asked in {*aggregate.arguments, logged_rows(aggregate, presence)}:
                    names = askers.setdefault(asked, [])
                    names += [] if plan.query.name in names else [plan.query.name]
    values, filters = count_of(len(log.values), "value"), count_of(len(log.filters), "predicate")
    yield f"  events    kept as events, each once: {values}, {filters}"
    for value in log.values:
        yield f"    {render(value)}  <- {', '.join(askers[value])}"
    for condition in log.filters:
        yield f"    where {predicate_text(condition)}  <- {', '.join(askers[condition])}"
