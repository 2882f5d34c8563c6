"""The page with the graph of the pond: from streams through shared groups to queries and sinks, and what each costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from nicegui import events, ui
from starlette.concurrency import run_in_threadpool

from millpond.errors import NotServingError
from millpond.model.endpoints import NOWHERE
from millpond.model.spec import PondSpec
from millpond.plan.explain.amounts import count_of
from millpond.plan.explain.plan_text import explain
from millpond.plan.explain.words import grouping_text
from millpond.plan.groups.plan import GroupPlan, Plan
from millpond.reconfigure.apply import plan_of
from millpond.reconfigure.inner_reports import labels, relabelled
from millpond.service.api.messages import QueryShown
from millpond.service.console.layout import code, page, pushed
from millpond.service.console.readings import QUERIES_SECONDS, Readings
from millpond.service.server.browser.access import CONSOLE

MOST_QUERIES = 40
"""The most queries in the graph; the most expensive ones of those whose names match."""

_QUERY = "query "
_PIXELS = 28


class Link(NamedTuple):
    """An arrow of the graph. `us`: the microseconds of the newest epoch that it stands for."""

    source: str
    target: str
    us: int


class _Planned(NamedTuple):
    """The plan of a spec, readable names of inner queries, and the plan as text."""

    spec: PondSpec
    plan: Plan
    names: dict[str, str]
    explained: str


def _plan(spec: PondSpec) -> _Planned:
    plan = plan_of(spec)
    names = labels(plan.all_queries, spec.streams)
    return _Planned(spec, plan, names, relabelled(explain(plan, spec.streams), names))


def show_graph(readings: Readings) -> None:
    """Show the page."""
    with page("Graph"):
        text = ui.input("Name of a query").props("clearable outlined dense").classes("w-full")
        note = ui.label().props('role="status"')
        chart = ui.echart(_chart()).classes("w-full").props('role="img" aria-label="Streams, groups, queries, sinks"')
        with ui.expansion("What is shared").classes("w-full border") as shared:
            sharing = code("")
        drawn: list[tuple[Link, ...]] = []
        planned: list[_Planned] = []

        async def update() -> None:
            found = await run_in_threadpool(readings.spec)
            if found is None:
                raise NotServingError("The pond has no query yet.", "Add one.")
            if not planned or planned[0].spec is not found:
                planned[:] = [await run_in_threadpool(_plan, found)]
            _, plan, names, explained = planned[0]
            sharing.text = explained if shared.value else ""
            queries = await readings.queries()
            wanted = [one for one in queries if (text.value or "").strip().lower() in one.name.lower()]
            wanted = sorted(wanted, key=lambda one: -one.counts.get("time_us", 0))[:MOST_QUERIES]
            note.text = f"{len(wanted)} of {count_of(len(queries), 'query')}, wide where the newest epoch took long."
            links = tuple(links_of(plan, found, wanted, names))
            if drawn != [links]:
                drawn[:] = [links]
                chart.style(f"height: {max(12 * _PIXELS, (len(wanted) + 2) * _PIXELS)}px")
                series = chart.options["series"][0]
                series["data"] = [{"name": name} for name in dict.fromkeys(end for link in links for end in link[:2])]
                series["links"] = [{"source": one.source, "target": one.target, "value": one.us} for one in links]

        def clicked(event: events.GenericEventArguments) -> None:
            name = str(event.args.get("name", ""))
            if name.startswith(_QUERY):
                ui.navigate.to(f"{CONSOLE}/queries/{quote(name.removeprefix(_QUERY))}")

        chart.on("chart:click", clicked, ["name"])
        text.on_value_change(update)
        shared.on_value_change(update)
        pushed(readings, QUERIES_SECONDS, update)


def links_of(
    plan: Plan, spec: PondSpec, queries: Sequence[QueryShown], names: Mapping[str, str]
) -> Iterator[Link]:  # fmt: skip
    """The arrows of the graph of these queries: each from a stream, through its group if it has one, to its sink.

    `names`: readable names of the inner queries of texts of several steps.
    """
    shown = {one.name: max(1, one.counts.get("time_us", 0)) for one in queries}
    steps = {name for name, label in names.items() if label.rpartition(" of ")[2] in shown}
    costs = dict.fromkeys(steps, 1) | shown
    grouped, read = set[str](), set[str]()
    for group in plan.groups:
        members = [one.query.name for one in group.queries if one.query.name in costs]
        grouped.update(members)
        if members:
            read.add(group.stream)
            name = _group_name(group)
            yield Link(_stream(group.stream, names), name, sum(costs[one] for one in members))
            yield from (Link(name, _query(one, names), costs[one]) for one in members)
    for query in plan.all_queries:
        if query.name in costs and query.name not in grouped:
            read.update(query.streams)
            for source in query.streams:
                yield Link(_stream(source, names), _query(query.name, names), costs[query.name])
        if query.name in shown and query.sink.format != NOWHERE:
            yield Link(_query(query.name, names), f"sink {query.sink.format}", shown[query.name])
    for stream in spec.streams:
        for upstream in stream.upstreams if stream.name in read else ():
            if upstream in costs:
                yield Link(_query(upstream, names), _stream(stream.name, names), costs[upstream])


def _group_name(group: GroupPlan) -> str:
    shared = f"{count_of(len(group.queries), 'query')}, {count_of(len(group.measures), 'measure')}"
    return f"group {group.id[:4]} {grouping_text(group)}: {shared}"


def _query(name: str, names: Mapping[str, str]) -> str:
    return names.get(name, f"{_QUERY}{name}")


def _stream(name: str, names: Mapping[str, str]) -> str:
    return f"rows of {names[name]}" if name in names else f"stream {name}"


def _chart() -> dict[str, Any]:
    series = {
        "type": "sankey", "data": [], "links": [], "emphasis": {"focus": "adjacency"}, "nodeGap": 12, "right": "18%",
        "label": {"color": "inherit", "width": 220, "overflow": "break", "lineHeight": 15},
        "lineStyle": {"color": "gradient"},
    }  # fmt: skip
    return {"animation": False, "tooltip": {"trigger": "item"}, "series": [series]}
