"""The graph of a plan: from streams through shared groups to queries and sinks, as links and as a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from millpond.model.endpoints import NOWHERE
from millpond.model.selection import is_inner
from millpond.model.stream import Stream
from millpond.plan.explain.amounts import count_of
from millpond.plan.explain.words import grouping_text
from millpond.plan.groups.plan import GroupPlan, Plan

QUERY = "query "
"""What the names of queries in the graph begin with."""

MOST_QUERIES = 40
"""The most queries in a picture."""

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _LETTERS = 280, 26, 60, 10, 46
_FILL = {"stream": "#cfe3f5", "group": "#f7e3b5", "query": "#d5ecd0", "sink": "#e6dcf0"}


class Link(NamedTuple):
    """An arrow of the graph. `us`: the microseconds of the newest epoch that it stands for."""

    source: str
    target: str
    us: int


def links_of(
    plan: Plan, streams: Sequence[Stream], shown: Mapping[str, int], names: Mapping[str, str]
) -> Iterator[Link]:  # fmt: skip
    """The arrows of the graph of some queries: each from a stream, through its group if it has one, to its sink.

    `shown`: the queries, and what each of them costs. `names`: readable names of derived streams, and of the inner
    queries of texts of several steps.
    """
    steps = {name for name, label in names.items() if is_inner(name) and label.rpartition(" of ")[2] in shown}
    costs = dict.fromkeys(steps, 1) | dict(shown)
    grouped, read = set[str](), Counter[str]()
    for group in plan.groups:
        members = [one.query.name for one in group.queries if one.query.name in costs]
        grouped.update(members)
        if members:
            name, us = _group_name(group), sum(costs[one] for one in members)
            read[group.stream] += us
            yield Link(_stream(group.stream, names), name, us)
            yield from (Link(name, _query(one, names), costs[one]) for one in members)
    for query in plan.all_queries:
        if query.name in costs and query.name not in grouped:
            for source in query.streams:
                read[source] += costs[query.name]
                yield Link(_stream(source, names), _query(query.name, names), costs[query.name])
        if query.name in shown and query.sink.format != NOWHERE:
            yield Link(_query(query.name, names), f"sink {query.sink.format}", shown[query.name])
    for stream in streams:
        for base in stream.derived.reads if stream.derived and stream.name in read else ():
            yield Link(_stream(base, names), _stream(stream.name, names), read[stream.name])
            read[base] += read[stream.name]
    for stream in streams:
        for upstream in stream.upstreams if stream.name in read else ():
            if upstream in costs:
                yield Link(_query(upstream, names), _stream(stream.name, names), costs[upstream])


def _group_name(group: GroupPlan) -> str:
    shared = f"{count_of(len(group.queries), 'query')}, {count_of(len(group.measures), 'measure')}"
    return f"group {group.id[:4]} {grouping_text(group)}: {shared}"


def _query(name: str, names: Mapping[str, str]) -> str:
    return names.get(name, f"{QUERY}{name}")


def _stream(name: str, names: Mapping[str, str]) -> str:
    label = names.get(name, name)
    return f"rows of {label}" if is_inner(name) else f"stream {label}"


def picture(links: Iterable[Link]) -> str:
    """The graph as SVG: each node right of all that it reads. Long names are cut, and stand in full in a tooltip.

    >>> picture([Link("stream tx", "query a", 1)]).count("<rect")
    2
    """
    arrows = list(dict.fromkeys((one.source, one.target) for one in links))
    columns = dict.fromkeys((node for arrow in arrows for node in arrow), 0)
    for _ in columns:  # the longest path has fewer arrows than there are nodes
        for source, target in arrows:
            columns[target] = max(columns[target], columns[source] + 1)
    rows = dict.fromkeys(columns.values(), 0)
    places: dict[str, tuple[int, int]] = {}
    for node, column in columns.items():
        places[node] = column * (_WIDTH + _GAP_X), rows[column] * (_HEIGHT + _GAP_Y)
        rows[column] += 1
    width = (max(rows, default=0) + 1) * (_WIDTH + _GAP_X) - _GAP_X
    height = max(rows.values(), default=0) * (_HEIGHT + _GAP_Y)
    drawn = [*map(_arrow, (places[one] for one, _ in arrows), (places[one] for _, one in arrows))]
    drawn += [_box(node, *place) for node, place in places.items()]
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img"'
    return f'{opening} font-family="sans-serif" font-size="11">{"".join(drawn)}</svg>'


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    x, y, to_x, to_y = start[0] + _WIDTH, start[1] + _HEIGHT // 2, end[0], end[1] + _HEIGHT // 2
    middle = (x + to_x) // 2
    return f'<path d="M{x} {y}C{middle} {y} {middle} {to_y} {to_x} {to_y}" fill="none" stroke="#888"/>'


def _box(node: str, x: int, y: int) -> str:
    fill = _FILL.get(node.partition(" ")[0], "#eee")
    text = node if len(node) <= _LETTERS else f"{node[: _LETTERS - 1]}…"
    return (
        f"<g><title>{escape(node)}</title>"
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="4" fill="{fill}" stroke="#888"/>'
        f'<text x="{x + 8}" y="{y + 17}" fill="#000">{escape(text)}</text></g>'
    )
