"""Orders the events of a key for count windows, and names what is stored of events that were counted in this order."""

from __future__ import annotations

import numpy as np

from millpond.arrays import Ints
from millpond.kernels.ranks import ranks, signs
from millpond.model.expressions import Expression, Literal
from millpond.model.types import has_floats
from millpond.model.windows import Counted
from millpond.plan.groups.build import presence_filter
from millpond.plan.groups.event_log import logged_rows
from millpond.plan.groups.measures import measures_of
from millpond.plan.groups.plan import Measure, QueryPlan, fingerprint
from millpond.runtime.event_log.select_events import passed_mask, value_column
from millpond.state.layout.event_log import OFFSET, PARTITION, Events


def counter_of(plan: QueryPlan) -> str:
    """The id of a query's counts, twelve hex digits; queries with equal filter, delay and start share the counts."""
    return fingerprint((presence_filter(plan.query), plan.query.delay_us, plan.from_us))


def totals_of(plan: QueryPlan) -> dict[str, Measure]:
    """The measures of a query's running totals, by the ids of their stored columns.

    Queries share a column if they count the same events, store equally many of them, and order events of equal time by
    the same values: otherwise their totals would contain different events of equal time.
    """
    presence, window = presence_filter(plan.query), plan.query.window
    assert isinstance(window, Counted)
    measures = [one for each in plan.query.aggregates if each.running for one in measures_of(each, presence)]
    if not measures:
        return {}
    shared = counter_of(plan), window.size, _tied_values(plan)
    return {fingerprint((measure, *shared)): measure for measure in measures}


def counted_order(events: Events, plan: QueryPlan) -> Ints:
    """The order by slot and time; events of equal time by source partition and offset, or else by contribution."""
    if OFFSET in events.columns:
        ties = [ranks(events.columns[PARTITION], "string"), np.asarray(events.columns[OFFSET])]
    else:
        ties = _contributions(events, plan)
    return np.lexsort((*reversed(ties), events.times_us, events.slots))


def _contributions(events: Events, plan: QueryPlan) -> list[Ints]:
    """For each aggregate, whether it takes an event, and the values that it takes; then what rows show of the event.

    Events that are equal in all of these are interchangeable for the query.
    """
    contributions, zeros = list[Ints](), list[Ints]()
    for rows, values in _tied_values(plan):
        takes = np.ones(events.rows, bool)
        if rows is not None:
            takes = passed_mask(events.columns, rows)
            contributions.append(takes.astype(np.int64))
        for value in values:
            column = value_column(events, value)
            contributions.append(np.where(takes, ranks(column, value.type), 0))
            if has_floats(value.type):
                zeros.append(np.where(takes, signs(column, value.type), 0))
    return contributions + zeros


def _tied_values(plan: QueryPlan) -> tuple[tuple[Expression | None, tuple[Expression, ...]], ...]:
    """What orders events of equal time: filters, each with the values that are read of the events that pass it."""
    presence, found = presence_filter(plan.query), list[tuple[Expression | None, tuple[Expression, ...]]]()
    for aggregate in plan.query.aggregates:
        rows = logged_rows(aggregate, presence) if aggregate.logged else measures_of(aggregate, presence)[-1].filter
        found.append((rows, tuple(one for one in aggregate.arguments if not isinstance(one, Literal))))
    return (*dict.fromkeys(found), (None, plan.query.of_event))
