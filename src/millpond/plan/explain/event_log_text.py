"""Describes a group's event log in text: each stored value and filter, who needs it, and for how long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millpond.model.aggregates import ORDERED, RUNNING_TOTAL
from millpond.model.expressions import Expression, columns_of, render
from millpond.model.query import Query
from millpond.model.windows import Counted, Distinct, Framed, Pattern, Processed, Range
from millpond.plan.explain.amounts import count_of, duration
from millpond.plan.explain.words import predicate_text
from millpond.plan.groups.build import build_plan, logged_of, tallies_needed
from millpond.plan.groups.plan import GroupPlan, QueryPlan, measures_read
from millpond.plan.groups.ranked_rows import counted_rows
from millpond.plan.groups.tallies import bits_of, error_of, keeps_tallies
from millpond.plan.groups.top_rows import order_of, tops_of

_WORD_BYTES = 8


def event_lines(group: GroupPlan) -> Iterator[str]:
    """The lines about the event log of a group; none without an event log."""
    log = group.events
    if log is None:
        return
    readers: dict[object, dict[str, None]] = {}
    for plan in group.queries:
        for some, rows in _stored(group, plan):
            for expression in (*some, rows):
                readers.setdefault(expression, {})[plan.query.name] = None
    values, filters = count_of(len(log.values), "value"), count_of(len(log.filters), "predicate")
    stored, counted = "stored individually, each once", counted_rows(group.windows[0])
    if group.kind == "distinct":
        first = "event of each key" if counted is None else count_of(counted, "event")
        stored = f"of the first {first}, not stored"
    yield f"  events    {stored}: {values}, {filters}"
    if framed := [plan for plan in group.queries if isinstance(plan.query.window, Framed)]:
        yield f"            {kept_text(framed)}"
    if (found := group.deduplicated) is not None:
        kept = duration(group.delays_us[0] + found.within_us)
        yield f"            for {kept} of event time: the delay and the time within which repeats are dropped"
    for value in log.values:
        yield f"    {render(value)}  <- {', '.join(readers[value])}"
    for condition in log.filters:
        yield f"    where {predicate_text(condition)}  <- {', '.join(readers[condition])}"


def tally_lines(group: GroupPlan) -> Iterator[str]:
    """The lines about the tallies of a group; none without tallies."""
    if not group.tallies:
        return
    readers: dict[object, dict[str, None]] = {}
    for plan in group.queries:
        for tally in tallies_needed([plan.query]):
            readers.setdefault(tally.values, {})[plan.query.name] = None
    filters = len({condition for tally in group.tallies for condition in tally.filters})
    counted = f"{count_of(len(group.tallies), 'value')}, {count_of(filters, 'predicate')}"
    yield f"  tallies   counted by value in each slice, each once: {counted}"
    for tally in group.tallies:
        values, names = ", ".join(map(render, tally.values)), ", ".join(readers[tally.values])
        how = f"{1 << tally.bits} bins per power of two" if tally.bits else "a count for each distinct value"
        yield f"    {values}: {how}  <- {names}"


def error_lines(query: Query) -> Iterator[str]:
    """Lines with the maximum relative error of percentiles that are answered from bins."""
    for i, aggregate in enumerate(query.aggregates if keeps_tallies(query) else ()):
        if not aggregate.logged or not bits_of(aggregate):
            continue
        read = [one.name for one in query.output if f"agg:{i}" in columns_of(one.expression)]
        named = f"{aggregate.function}({', '.join(map(render, aggregate.arguments))})"
        error = f"relative error at most {100 * error_of(bits_of(aggregate)):.2g}%"
        yield f"      approximate  {', '.join(read) or 'HAVING'}: {named}, {error}"


def rank_lines(query: Query) -> Iterator[str]:
    """Lines with the order of each rank of a query."""
    for i, aggregate in enumerate(query.aggregates):
        if aggregate.function not in ORDERED:
            continue
        read = [one.name for one in query.output if f"agg:{i}" in columns_of(one.expression)]
        by = ", ".join(f"{render(value)} {direction}" for value, direction in order_of(aggregate))
        what = aggregate.function
        if what == RUNNING_TOTAL and isinstance(aggregate.parameters, tuple):
            total = aggregate.parameters[len(order_of(aggregate))].value
            what = f"{total}({render(aggregate.arguments[-1])}) up to each row"
        yield f"      rank  {', '.join(read) or 'HAVING'}: {what} by {by}"


def top_lines(group: GroupPlan) -> Iterator[str]:
    """A line with the numbers of first rows that each task sends of a partition, if it leaves out the others."""
    first = sorted({top.rows for top in tops_of(group)})
    if first:
        yield f"  top rows  each task sends only its first {' or '.join(map(str, first))} rows of each partition"


def _stored(group: GroupPlan, plan: QueryPlan) -> Iterator[tuple[tuple[Expression, ...], Expression | None]]:
    """The values that a query reads from events, each list with its row filter."""
    if group.deduplicated is None:
        yield from logged_of(plan.query)
        return
    yield group.deduplicated.columns, None
    yield from ((group.measures[i].values, group.measures[i].filter) for i in measures_read([plan]))


def kept_text(plans: Sequence[QueryPlan]) -> str:
    """How long events are kept for queries of one kind, as text."""
    windows = [plan.query.window for plan in plans]
    processed = [window.lasts_us for window in windows if isinstance(window, Processed)]
    if processed:
        ttl = processed[0]
        lasts = "indefinitely" if ttl is None else f"for {duration(ttl)} of event time after its last event"
        return f"until the watermark reaches them; and one state of each key, {lasts}"
    sizes = [window.size for window in windows if isinstance(window, Counted)]
    ranked = [window.ranked for window in windows if isinstance(window, Distinct) and window.ranked is not None]
    if ranked:  # equal for all queries of a group
        return f"the events of each key up to rank {ranked[0]}, indefinitely"
    if any(isinstance(window, Distinct) and window.keeps for window in windows):
        return "one event of each key, indefinitely"
    if counted_rows(windows[0]) is not None:
        return "the times of the rows that were emitted, indefinitely"
    lasting = [window.lasts_us for window in windows if isinstance(window, Distinct)]
    if lasting:  # equal for all queries of a group
        return "each key, indefinitely" if lasting[0] is None else f"each key, for {duration(lasting[0])} of event time"
    if sizes:
        running = any(one.running for plan in plans for one in plan.query.aggregates)
        counts = f"{'its running totals, and ' if running else ''}a count for each key and filter"
        return f"the last {max(sizes) - 1:,} events of each key, of any age, and {counts}"
    patterns = [(plan, plan.query.window) for plan in plans if isinstance(plan.query.window, Pattern)]
    if patterns:
        longest = max(window.reaches_us + plan.query.delay_us for plan, window in patterns)
        return f"for {duration(longest)} of event time: the longest pattern and its delay; and where matches ended"
    kept = max(
        plan.query.window.preceding_us + plan.query.delay_us for plan in plans if isinstance(plan.query.window, Range)
    )
    return f"for {duration(kept)} of event time: the longest frame and its delay"


def event_bytes(plan: QueryPlan) -> int:
    """The approximate bytes per event in the log of a query alone: slot, time, values, and a bit per filter."""
    log = build_plan([plan.query]).groups[0].events
    return 0 if log is None else _WORD_BYTES * (2 + len(log.values)) + -(-len(log.filters) // _WORD_BYTES)
