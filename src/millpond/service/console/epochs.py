"""The page with the timeline of the newest epoch with events, and the steps that the newest epochs spent time in."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from millpond.runtime.inspect.timeline import EPOCH, KEPT, Trace, TraceEvent, pieces
from millpond.service.console.layout import CHART_TEXT, fill, page, pushed, table
from millpond.service.console.readings import TRACE_SECONDS, Readings

_STEPS = ("track", "step", "median ms", "epochs")
_PIXELS = 22
_NO_EPOCH = "This leader has committed no epoch yet."


def show_epochs(readings: Readings) -> None:
    """Show the page."""
    with page("Epochs"):
        title = ui.label().props('role="status"')
        chart = ui.echart(_chart()).classes("w-full").props('role="img" aria-label="Timeline of the newest epoch"')
        steps = table(f"Steps of the newest epochs, at most {KEPT}", _STEPS, _STEPS[2:], pagination=0)

        shown: list[Trace] = []

        async def update() -> None:
            trace = await readings.trace()
            if shown and shown[0] is trace:
                return
            shown[:] = [trace]
            rows = newest(trace)
            title.text = _title(trace, rows)
            chart.style(f"height: {(len(rows) + 3) * _PIXELS}px")
            chart.options["yAxis"]["data"] = [name for name, _, _ in rows]
            chart.options["series"][0]["data"] = [start for _, start, _ in rows]
            chart.options["series"][1]["data"] = [took for _, _, took in rows]
            found = ((one.track, one.name, round(one.median_us / 1e3, 1), one.epochs) for one in pieces(trace))
            fill(steps, [dict(zip(_STEPS, one, strict=True)) for one in found], _NO_EPOCH)

        pushed(readings, TRACE_SECONDS, update)


def newest(trace: Trace) -> list[tuple[str, float, float]]:
    """The spans of the newest epoch with events: track and step, and the milliseconds of its start in the epoch and its
    duration. Without such an epoch, of the newest one.

    >>> named = TraceEvent("thread_name", "M", 1, 1, args={"name": "driver"})
    >>> spans = [TraceEvent("epoch", "X", 1, 1, 5_000, 4_000, {"record": 7, "events": 3}),
    ...          TraceEvent("epoch", "X", 1, 1, 9_000, 1_000, {"record": 8, "events": 0}),
    ...          TraceEvent("job", "X", 1, 1, 6_000, 2_000, {"record": 7})]
    >>> newest(Trace([named, *spans]))
    [('driver epoch', 0.0, 4.0), ('driver job', 1.0, 2.0)]
    """
    spans = [event for event in trace.trace_events if event.ph == "X"]
    epoch = _epoch(spans)
    if epoch is None:
        return []
    own = [one for one in spans if one.args.get("record") == epoch.args["record"] and one.ts >= epoch.ts]
    tracks = trace.tracks
    rows = [(f"{tracks[one.tid]} {one.name}", (one.ts - epoch.ts) / 1e3, (one.dur or 0) / 1e3) for one in own]
    return sorted(rows, key=lambda row: row[1])


def _epoch(spans: list[TraceEvent]) -> TraceEvent | None:
    return max((one for one in spans if one.name == EPOCH), key=_by_events, default=None)


def _by_events(epoch: TraceEvent) -> tuple[bool, int]:
    return bool(epoch.args.get("events")), epoch.ts


def _title(trace: Trace, rows: list[tuple[str, float, float]]) -> str:
    epoch = _epoch([event for event in trace.trace_events if event.ph == "X"])
    if epoch is None or not rows:
        return _NO_EPOCH
    events = int(epoch.args.get("events", 0))
    return f"Record {epoch.args['record']}: {(epoch.dur or 0) / 1e3:,.0f} ms, {events:,} events"


def _chart() -> dict[str, Any]:
    hidden = {"type": "bar", "stack": "time", "data": [], "itemStyle": {"color": "transparent"}, "silent": True}
    shown = {"type": "bar", "stack": "time", "data": [], "barMinWidth": 2}
    return {
        "animation": False,
        "grid": {"left": 190, "right": 30, "top": 10, "bottom": 30},
        "tooltip": {"trigger": "item"},
        "xAxis": {"type": "value", "axisLabel": {"formatter": "{value} ms", "color": CHART_TEXT, "hideOverlap": True}},
        "yAxis": {"type": "category", "inverse": True, "data": [], "axisLabel": {"color": CHART_TEXT}},
        "series": [hidden, shown],
    }
