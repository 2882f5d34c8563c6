"""Describes a plan in text: what queries share, what each needs alone, and what one more would cost."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from millpond.model.aggregates import APPROX_DISTINCT
from millpond.model.calendars.grids import Regular
from millpond.model.endpoints import source_kind
from millpond.model.expressions import Column, Expression, Foreign, Literal, columns_of, render, walk
from millpond.model.join import Join
from millpond.model.query import Query
from millpond.model.selection import Selection, is_inner, query_name, zone_of
from millpond.model.stream import Stream
from millpond.model.windows import NEVER_LATE_US, RUNNING, Framed, Session, Sliced
from millpond.plan.explain.amounts import count_of, duration
from millpond.plan.explain.event_log_text import error_lines, event_lines, rank_lines, tally_lines, top_lines
from millpond.plan.explain.join_text import join_lines, log_lines
from millpond.plan.explain.subqueries import subquery_lines
from millpond.plan.explain.words import grouping_text, predicate_text, waiting_text, window_text
from millpond.plan.groups.build import build_plan, needed_columns, needed_foreign
from millpond.plan.groups.edges import edges_between, phases
from millpond.plan.groups.measures import precision_of
from millpond.plan.groups.plan import GroupPlan, Measure, Plan, QueryPlan, measures_read
from millpond.plan.groups.stateless import carried, moved_selections, row_bytes
from millpond.plan.options.arrow_reading import why_spark
from millpond.plan.options.kafka_parsers import why_spark_parses
from millpond.plan.options.keyed_lookups import is_by_owners

_HOUR_US = 3_600_000_000
_LONG = 60
"""Expressions with more characters are shown once."""

_NUMBER = re.compile("\0[0-9]+\0")
_WORD = re.compile(r"\w+")
_COUNTED_EDGES = 1 << 20
"""Above this number of edges in one common period of all windows, edges are summed by window, not counted once each."""


def explain(plan: Plan, declared: Sequence[Stream] = ()) -> str:
    """The plan as text, with the origins and declarations of its streams; equal plans give equal text."""
    streams = plan.streams
    stateless = f" and {len(plan.selections)} stateless" if plan.selections else ""
    stateless += f" and {count_of(len(plan.joins.plans), 'join')}" if plan.joins.plans else ""
    lines = [
        f"plan {plan.id}: {_counted(plan)} in "
        f"{count_of(len(plan.groups), 'group')}{stateless} over {count_of(len(streams), 'stream')}",
        *_sources_of(streams, declared),
    ]
    for stream in streams:
        columns = ", ".join(needed_columns(plan, stream))
        known = next((one for one in declared if one.name == stream), Stream(stream, ()))
        origin = known.derived
        if known.upstreams:
            what = f"the rows of {'the query ' if len(known.upstreams) == 1 else ''}{' and '.join(known.upstreams)}"
            lines.append(f"  {stream}: {what}, one epoch later: {columns}")
            joined = any(one.join.name in known.upstreams for one in plan.joins.plans)
            follows = "final rows of that join" if joined else "closed windows of that query"
            follows = follows if len(known.upstreams) == 1 else "query that is furthest behind"
            lines.append(f"    its watermark follows the {follows}: no row is late")
            continue
        if origin is None:
            lines.append(f"  {stream} is read once: {columns}")
        else:
            lines += [f"  {stream} is computed while {' and '.join(origin.reads)} is read: {columns}"]
            lines += [f"    {origin.text}"]
        lines += [line for one in declared if one.name == stream for line in _reader_of(plan, one, declared)]
        lines += [line for one in declared if one.name == stream for line in _times_of(one)]
        lines += [line for one in declared if one.name == stream for line in _retained_of(plan, one)]
        lines += [line for one in declared if one.name == stream for line in _partitioned_of(plan, one)]
    lines += [f"  {one.name} has the time zone {zone}" for one in plan.all_queries if (zone := zone_of(one))]
    for group in plan.groups:
        lines += ["", *_group(plan, group)]
    for stream in streams:
        if plan.selections_of(stream):
            by_owners = any(is_by_owners(one, plan.all_queries) for one in declared if one.name == stream)
            lines += ["", *stateless_lines(plan, stream, by_owners=by_owners)]
    for log in plan.joins.logs:
        lines += ["", *log_lines(plan.joins, log)]
    for plan_of_join in plan.joins.plans:
        lines += ["", *join_lines(plan_of_join.join)]
    if declared:  # the origin of a query's rows is known only with the streams
        lines += ["", *subquery_lines(plan, declared)]
    return readable("\n".join(lines) + "\n", plan)


def _counted(plan: Plan) -> str:
    """The number of queries, and how many of them are not those of users: shadows, old versions and inner queries."""
    names = [query.name for query in plan.all_queries]
    kinds = {
        "shadow": sum(name.endswith("@shadow") for name in names),
        "old version": sum(query_name(name) != name for name in names),
        "inner query": sum(map(is_inner, names)),
    }
    others = ", ".join(count_of(count, kind) for kind, count in kinds.items() if count)
    own = count_of(len(names) - sum(kinds.values()), "query")
    return f"{own} and {others}" if others else own


def _sources_of(streams: Sequence[str], declared: Sequence[Stream]) -> Iterator[str]:
    """How often the sources are read that queries read only as parts of derived streams."""
    parts = [one.derived.reads for one in declared if one.derived is not None and one.name in streams]
    rows = {one.name for one in declared if one.upstreams}
    for source in dict.fromkeys(name for reads in parts for name in reads):
        copies = sum(source in reads for reads in parts)
        if source not in rows.union(streams):
            copied = f", and its rows are copied for {count_of(copies, 'stream')}" if copies > 1 else ""
            yield f"  {source} is read once{copied}"


def readable(text: str, plan: Plan) -> str:
    """A text about a plan with the SQL of what Spark evaluates, instead of the name of its column.

    Each long expression stands once, after a number that stands for it elsewhere.
    """
    found: list[Expression | None] = [key for group in plan.groups for key in group.keys]
    for group in plan.groups:
        found += [part for one in group.measures for part in (one.filter, *one.values)]
    for query in plan.all_queries:
        found += [side.where for side in (query.sides.values() if isinstance(query, Join) else (query,))]
        found += [item.expression for item in query.output]
    nodes = {part for one in dict.fromkeys(found) if one is not None for part in walk(one)}
    columns = {part.name: part.sql for part in nodes if isinstance(part, Foreign)}
    text = _WORD.sub(lambda found: columns.get(found[0], found[0]), text) if columns else text
    parts = set(map(render, nodes))
    long = sorted((part for part in parts if len(part) > _LONG), key=lambda part: (-len(part), part))
    for number, part in enumerate(long):
        before, _, after = text.partition(part)
        if part in after:
            mark = f"\0{number}\0"
            text = f"{before}{mark} {part}{after.replace(part, mark)}"
    places: dict[str, int] = {}
    return _NUMBER.sub(lambda found: f"[{places.setdefault(found[0], len(places) + 1)}]", text)


def _reader_of(plan: Plan, stream: Stream, declared: Sequence[Stream]) -> Iterator[str]:
    """Who reads the files of a stream, or parses its values."""
    if stream.source is None:
        return
    foreign = needed_foreign(plan, stream.name)
    names = {*needed_columns(plan, stream.name)} - {expression.name for expression in foreign}
    streams = [other for other in declared if other.name in plan.streams]
    if stream.source.has_topics:
        why = why_spark_parses(stream, [*names, *(expression.name for expression in foreign)], streams)
        yield "    its values are parsed with Arrow" if why is None else f"    its values are parsed by Spark: {why}"
    elif source_kind(stream.source.format).files:
        read = sorted(names.union(*(expression.columns for expression in foreign)))
        why = why_spark(stream, read, streams)
        if why is None and foreign:
            shown = ", ".join(sorted(expression.sql for expression in foreign))
            yield f"    its files are read with Arrow if these have equal functions over columns: {shown}"
        else:
            yield "    its files are read with Arrow" if why is None else f"    its files are read by Spark: {why}"
    elif source_kind(stream.source.format).appends:
        yield "    the files that are added to its table are read with Arrow, and pass through Spark"


def _times_of(stream: Stream) -> Iterator[str]:
    order = stream.order
    if order is None:
        yield "    no order: which events are late depends on how the input is divided into epochs"
    else:
        awaited = f", and waits for {', '.join(order.partitions)}" if order.partitions else ""
        by = f"{order.offset} within each {order.partition}" if stream.derived is None else "its source"
        yield f"    in the order of {by}{awaited}"
        yield f"    a partition without events for {duration(order.idle_after_us)} does not hold back the watermark"
    if stream.max_ahead_us is not None:
        yield f"    an event more than {duration(stream.max_ahead_us)} ahead of the clock is dead"


def _retained_of(plan: Plan, stream: Stream) -> Iterator[str]:
    kept, events = stream.retention, plan.retained_of(stream.name)
    if kept.slices_us or kept.grain_us:
        cut = f", cut at multiples of {duration(kept.grain_us)}" if kept.grain_us else ""
        lasting = f"for {duration(kept.slices_us)}" if kept.slices_us else "as long as windows need them"
        yield f"    slices are retained {lasting}{cut}"
    if events is not None:
        names = ", ".join(column.name for column in events.columns)
        yield f"    events are retained for {duration(events.kept_us)}, shared by all that may come: {names}"


def _partitioned_of(plan: Plan, stream: Stream) -> Iterator[str]:
    """Which queries over a partitioned topic need the shuffle, and which do not."""
    if stream.partitioned_by is None:
        return
    key = stream.partitioned_by
    others = [group for group in plan.groups if group.stream == stream.name and group.spread_by is None]
    names = [one.query.name for group in others for one in group.queries]
    names += [one.join.name for one in plan.joins.plans if stream.name in one.join.streams]
    yield f"    partitioned by {key}: the shuffle is skipped where the keys of each instance are in one partition"
    if names:
        yield f"    {', '.join(names)}: not grouped by {key}, so it is skipped only while they exchange little data"
    if stream.retention.events_us:
        yield "    retained events are exchanged in the same way"
    if len(plan.streams) > 1:
        yield "    epochs that also read other streams do not skip it"


def _group(plan: Plan, group: GroupPlan) -> Iterator[str]:
    filters = list(dict.fromkeys(measure.filter for measure in group.measures if measure.filter is not None))
    readers = _readers_by_measure(group)
    uses = sum(sum(by.values()) for by in readers)
    time = f"event time {group.event_time}" if group.event_time else "no event time"
    yield f"group {group.id}: {group.stream} {grouping_text(group)}, {time}"
    yield f"  windows   {', '.join(map(window_text, group.windows))}"
    if group.own_end is not None:
        yield "  atoms     runs of events whose own gaps overlap or touch"
    elif group.gaps_us:
        least = duration(group.gaps_us[0])
        yield f"  atoms     split where a key has no event for more than {least}: a session is a run of atoms"
    elif group.sliding:
        yield f"  edges     {'none' if group.windows == (RUNNING,) else edges_text(group.cuts)}"
    delays = [duration(delay) if delay < NEVER_LATE_US else "none: nothing is late" for delay in group.delays_us]
    yield f"  delays    {', '.join(delays)}{'' if group.late_by is None else '; late if the window has closed'}"
    how = "cells are stored by signature" if group.signed else "each evaluated once per event"
    once = f"{count_of(len(filters), 'predicate')}, {how}"
    found = group.deduplicated
    if found is not None:
        names = ", ".join(column.name for column in found.columns)
        within = duration(found.within_us)
        yield f"  repeated  events equal in {names} within {within} are dropped; events wait for the watermark"
    yield f"  filters   {once if filters else 'none'}"
    for filter_ in filters:
        yield f"    {predicate_text(filter_)}"
    used = f", used {_times(uses)}, each stored once" if uses else ""
    yield f"  measures  {sum(map(bool, readers)) or 'none'}{used}"
    for measure, by in zip(group.measures, readers, strict=True):
        if not by:
            continue
        names = ", ".join(name if times == 1 else f"{name} ({times} times)" for name, times in by.items())
        yield f"    {measure_text(measure)}  <- {names}"
    yield from event_lines(group)
    yield from top_lines(group)
    yield from tally_lines(group)
    yield "  queries"
    for query in group.queries:
        yield from _query(plan, group, query)


def _query(plan: Plan, group: GroupPlan, query: QueryPlan) -> Iterator[str]:
    mine = _places(query)
    others = [other for other in group.queries if other is not query]
    theirs = {place for other in others for place in _places(other)}
    private = mine - theirs
    yield f"    {query.query.name}: {window_text(query.query.window)}, {waiting_text(query.query)}"
    late = query.query.late_sink
    if late is not None:
        yield f"      late rows  {' '.join(filter(None, (late.format, late.path)))}"
    for i, aggregate in enumerate(query.query.aggregates):
        if isinstance(aggregate.other, Literal) and aggregate.function == APPROX_DISTINCT:
            read = [one.name for one in query.query.output if f"agg:{i}" in columns_of(one.expression)]
            named = f"{aggregate.function}({', '.join(map(render, aggregate.arguments))})"
            error = 1.04 / math.sqrt(1 << precision_of(aggregate.other))
            yield f"      approximate  {', '.join(read) or 'HAVING'}: {named}, standard error {error:.2%}"
    yield from error_lines(query.query)
    yield from rank_lines(query.query)
    for made in query.query.user_functions.values():
        limits = f"{duration(made.deadline_ms * 1000)} a call, {made.memory_bytes >> 20} MB"
        yield f"      function  {made.label} ({made.kind}) of {made.module}: {limits}"
    if isinstance(query.query.window, Framed):
        yield f"      computed from {'new' if group.kind == 'distinct' else 'stored'} events"
    else:
        yield f"      measures  {len(mine)}: {len(mine) - len(private)} shared, {len(private)} private"
    yield f"      if added last  {', '.join(_marginal(plan, group, query.query, len(private)))}"


def _marginal(plan: Plan, group: GroupPlan, query: Query, measures: int) -> Iterator[str]:
    """The marginal cost of the query, given all others."""
    rest = [other for other in plan.all_queries if other != query]
    same_group = [member.query.window for member in group.queries if member.query != query]
    if not same_group:
        yield "a group of its own"
    yield f"{measures or 'no'} more {'measure' if measures == 1 else 'measures'}"
    if group.gaps_us:
        others = [window.gap_us for window in same_group if isinstance(window, Session)]
        yield "finer atoms" if others and min(others) > group.gaps_us[0] else "no finer atoms"
    else:
        before = edges_per_hour([window for window in same_group if isinstance(window, Sliced)])
        more = edges_per_hour(group.cuts)[0] - before[0]
        yield f"{rate_text(more)} more {'edge' if more == 1 else 'edges'} per hour" if more > 0 else "no more edges"
    columns = set(needed_columns(plan, query.stream)) - set(needed_columns(build_plan(rest), query.stream))
    if columns:
        yield f"alone reads {', '.join(sorted(columns))}"


def _places(query: QueryPlan) -> set[int]:
    """The positions of the measures that a query keeps; a query that is answered from events keeps none."""
    return set() if isinstance(query.query.window, Framed) else {*measures_read([query])}


def _readers_by_measure(group: GroupPlan) -> list[dict[str, int]]:
    """For each measure, the queries that need it and how often."""
    readers: list[dict[str, int]] = [{} for _ in group.measures]
    for query in group.celled:
        positions = [query.presence, *(place for places in query.measures for place in places)]
        for place in positions:
            by = readers[place]
            by[query.query.name] = by.get(query.query.name, 0) + 1
    return readers


def edges_per_hour(windows: Sequence[Sliced]) -> tuple[Fraction, bool]:
    """The number of edges of the windows per hour of event time, and whether it is exact (else an upper bound).

    Sessions and the window over all event time have no edges.

    >>> from millpond.model.windows import Sliding
    >>> edges_per_hour([Sliding(3_600_000_000, 900_000_000)])
    (Fraction(4, 1), True)
    """
    windows = [window for window in windows if window != RUNNING]
    if not windows:
        return Fraction(0), True
    grids = phases(windows)
    summed = sum((Fraction(_HOUR_US, grid.typical_us) for grid in grids), Fraction(0))
    regular = [grid for grid in grids if isinstance(grid, Regular)]
    period = math.lcm(*(grid.step_us for grid in regular))
    if len(regular) < len(grids) or summed * period > _COUNTED_EDGES * _HOUR_US:
        return summed, False
    # from an edge to the same edge one period later
    start = min(grid.phase_us for grid in regular)
    edges = edges_between(windows, start, start + period - 1)
    return Fraction((len(edges) - 1) * _HOUR_US, period), True


def edges_text(windows: Sequence[Sliced]) -> str:
    """The rate of edges of the windows, as text."""
    rate, exact = edges_per_hour(windows)
    return f"{'' if exact else 'at most '}{rate_text(rate)} per hour: the number of slices per key with events"


def measure_text(measure: Measure) -> str:
    """A measure as text."""
    value = ", ".join(map(render, measure.values)) or "*"
    where = "" if measure.filter is None else f" where {predicate_text(measure.filter)}"
    return f"{measure.kind}({value}){where}"


def rate_text(rate: Fraction) -> str:
    """A rate as text, with four digits.

    >>> rate_text(Fraction(6)), rate_text(Fraction(1, 24))
    ('6', '0.04167')
    """
    return str(rate.numerator) if rate.denominator == 1 else f"{float(rate):.4g}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def stateless_lines(plan: Plan, stream: str, *, by_owners: bool = False) -> Iterator[str]:
    """The lines about the stateless queries over one stream; `by_owners`: owners of keys look up their rows."""
    selections = plan.selections_of(stream)
    filters = dict.fromkeys(selection.where for selection in selections if selection.where is not None)
    moved = moved_selections(selections, plan.compared_names)
    yield f"stateless: {stream}, rows are emitted in the epoch that reads their events"
    once = f"{count_of(len(filters), 'predicate')}, each evaluated once per event"
    yield f"  filters   {once if filters else 'none'}"
    yield from (f"    {predicate_text(filter_)}" for filter_ in filters)
    by_key = "each event that a query may take, once, to the instance that looks up its row"
    yield f"  moved     {by_key if by_owners else _moved(moved)}"
    yield "  queries"
    for selection in selections:
        where = "every event" if selection.where is None else f"where {predicate_text(selection.where)}"
        yield f"    {selection.name}: {', '.join(item.name for item in selection.output)}; {where}"


def price_of_selection(plan: Plan, query: Selection) -> str:
    """What one more stateless query would add, as text.

    Raises:
        QueryTypeError: its name is already in use.
    """
    build_plan([*plan.all_queries, query])
    others = plan.selections_of(query.stream)
    read = needed_columns(plan, query.stream)
    columns = needed_columns(build_plan([query]), query.stream)
    more = [name for name in columns if name not in read]
    known = {one.where for one in others} | {
        measure.filter for group in plan.groups if group.stream == query.stream for measure in group.measures
    }
    shared = "none" if query.where is None else "1 shared" if query.where in known else "1 more"
    moved = (moved_selections(some, plan.compared_names) for some in (others, [*others, query]))
    before, after = map(row_bytes, map(carried, moved))
    lines = [
        f"one more query: {query.name}",
        f"  columns   {len(more) or 'none'} more{': ' * bool(more)}{', '.join(more)}; "
        f"{len(columns) - len(more) or 'none'} shared",
        f"  filters   {shared}",
        f"  moved     about {after - before:.3g} bytes more for each row, and the rows that only this query takes",
        "  state     none: a row is emitted in the epoch that reads its event",
    ]
    return "\n".join(lines) + "\n"


def _moved(moved: tuple[Selection, ...]) -> str:
    if not moved:
        return "nothing: their rows are only counted"
    parts = carried(moved)
    what = "columns" if all(isinstance(part, Column) for part in parts) else "columns and expressions"
    return f"each row that a query takes, once, with its {what}: {', '.join(map(render, parts)) or 'none'}"
