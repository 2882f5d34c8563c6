"""The page with the graph of the pond: from streams through shared groups to queries and sinks, and what each costs."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote

from nicegui import events, ui
from starlette.concurrency import run_in_threadpool

from millpond.control.diagnose.plan_graph import MOST_QUERIES, QUERY, Link, links_of
from millpond.errors import NotServingError
from millpond.model.spec import PondSpec
from millpond.plan.explain.amounts import count_of
from millpond.plan.explain.plan_text import explain
from millpond.plan.groups.plan import Plan
from millpond.reconfigure.apply import plan_of
from millpond.reconfigure.inner_reports import labels, relabelled
from millpond.service.console.layout import CHART_TEXT, code, page, pushed
from millpond.service.console.readings import QUERIES_SECONDS, Readings

_PIXELS = 28


class _Planned(NamedTuple):
    """The plan of a spec, and readable names of inner queries."""

    spec: PondSpec
    plan: Plan
    names: dict[str, str]

    def explained(self) -> str:
        """The plan as text; with a thousand queries it takes seconds."""
        return relabelled(explain(self.plan, self.spec.streams), self.names)


def _plan(spec: PondSpec) -> _Planned:
    plan = plan_of(spec)
    return _Planned(spec, plan, labels(plan.all_queries, spec.streams, spec.relations))


def show_graph(readings: Readings) -> None:
    """Show the page."""
    with page("Graph"):
        text = ui.input("Name of a query").props("clearable outlined dense").classes("w-full")
        note = ui.label().props('role="status"')
        chart = ui.echart(_chart()).classes("w-full").props('role="img" aria-label="Streams, groups, queries, sinks"')
        with ui.expansion("What is shared").classes("w-full border") as shared:
            sharing = code("What is shared")
        drawn: list[tuple[Link, ...]] = []
        planned: list[_Planned] = []

        async def update() -> None:
            spec = await run_in_threadpool(readings.spec)
            if spec is None:
                raise NotServingError("The pond has no query yet.", "Add one.")
            if not planned or planned[0].spec is not spec:
                planned[:] = [await run_in_threadpool(_plan, spec)]
                sharing.text = ""
            _, plan, names = planned[0]
            if shared.value and not sharing.text:
                sharing.text = await run_in_threadpool(planned[0].explained)
            queries = await readings.queries()
            wanted = [query for query in queries if (text.value or "").strip().lower() in query.name.lower()]
            wanted = sorted(wanted, key=lambda query: -query.counts.get("time_us", 0))[:MOST_QUERIES]
            note.text = f"{len(wanted)} of {count_of(len(queries), 'query')}, wide where the newest epoch took long."
            costs = {query.name: max(1, query.counts.get("time_us", 0)) for query in wanted}
            links = tuple(links_of(plan, spec.streams, costs, names))
            if drawn != [links]:
                drawn[:] = [links]
                chart.style(f"height: {max(12 * _PIXELS, (len(wanted) + 2) * _PIXELS)}px")
                series = chart.options["series"][0]
                series["data"] = [{"name": name} for name in dict.fromkeys(end for link in links for end in link[:2])]
                series["links"] = [{"source": link.source, "target": link.target, "value": link.us} for link in links]

        def clicked(event: events.GenericEventArguments) -> None:
            name = str(event.args.get("name", ""))
            if name.startswith(QUERY):
                ui.navigate.to(f"/queries/{quote(name.removeprefix(QUERY))}")  # NiceGUI puts CONSOLE before it

        chart.on("chart:click", clicked, ["name"])
        text.on_value_change(update)
        shared.on_value_change(update)
        pushed(readings, QUERIES_SECONDS, update)


def _chart() -> dict[str, Any]:
    series = {
        "type": "sankey", "data": [], "links": [], "emphasis": {"focus": "adjacency"}, "nodeGap": 12, "right": 160,
        "label": {"color": CHART_TEXT, "textBorderWidth": 0, "width": 150, "overflow": "break", "lineHeight": 15},
        "lineStyle": {"color": "gradient"},
    }  # fmt: skip
    return {"animation": False, "tooltip": {"trigger": "item"}, "series": [series]}
