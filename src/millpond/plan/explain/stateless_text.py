"""Describes stateless queries in text: shared filters, transferred columns, and the cost of one more query."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.model.expressions import Column, render
from millpond.model.selection import Selection
from millpond.plan.explain.words import count_of, predicate_text
from millpond.plan.groups.build import build_plan, needed_columns
from millpond.plan.groups.plan import Plan
from millpond.plan.groups.stateless import carried, moved_selections, row_bytes


def stateless_lines(plan: Plan, stream: str) -> Iterator[str]:
    """The lines about the stateless queries over one stream."""
    selections = plan.selections_of(stream)
    filters = dict.fromkeys(one.where for one in selections if one.where is not None)
    moved = moved_selections(selections, plan.compared_names)
    yield f"stateless: {stream}, rows leave in the epoch that reads them"
    once = f"{count_of(len(filters), 'predicate')}, each evaluated once per event"
    yield f"  filters   {once if filters else 'none'}"
    yield from (f"    {predicate_text(filter_)}" for filter_ in filters)
    yield f"  moved     {_moved(moved)}"
    yield "  queries"
    for one in selections:
        where = "every event" if one.where is None else f"where {predicate_text(one.where)}"
        yield f"    {one.name}: {', '.join(item.name for item in one.output)}; {where}"


def price_of_selection(plan: Plan, query: Selection) -> str:
    """What one more stateless query would add, as text.

    Raises:
        QueryTypeError: its name is already in use.
    """
    build_plan([*plan.asked, query])
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
        f"  moved     about {after - before:.3g} more bytes per row that is moved, and its rows where no other query "
        "takes them",
        "  state     none: a row leaves in the epoch that reads its event",
    ]
    return "\n".join(lines) + "\n"


def _moved(moved: tuple[Selection, ...]) -> str:
    if not moved:
        return "nothing: their rows are only counted"
    parts = carried(moved)
    what = "columns" if all(isinstance(part, Column) for part in parts) else "columns and expressions"
    return f"once per row that some query takes, {what}: {', '.join(map(render, parts)) or 'none'}"
