"""The first page of the console: rates, backlog, followers and problems of the pond."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from nicegui import ui

from millpond.clock import utc
from millpond.model.endpoints import READ
from millpond.plan.explain.amounts import backlog, remaining_text
from millpond.service.api.messages import FollowerShown, QueryShown, SourceShown, Status
from millpond.service.console.changes import ScaleForm
from millpond.service.console.layout import CHART_TEXT, Figures, fill, page, pushed, table
from millpond.service.console.readings import QUERIES_SECONDS, STATUS_SECONDS, Readings
from millpond.service.terminal.text import instances_text, listed_problems

_POINTS = 120
_BACKLOG = ("source", "partition", "committed", "end", "behind")
_STREAMS = ("stream", "source", "newest event time", "how it is read")
_SHARES = ("instance", "buckets", "shard with most of them", "buckets there")
_FOLLOWERS = ("name", "records behind", "state")


def show_overview(readings: Readings) -> None:
    """Show the page."""
    with page("Overview"):
        figures, totals = Figures(), {"State": "not known yet"}
        rates: deque[float] = deque(maxlen=_POINTS)
        chart = ui.echart(_chart()).classes("w-full h-48").props('role="img" aria-label="Events per second"')
        problems = ui.column().classes("w-full gap-1").props('role="status" aria-label="Problems"')
        sources = table("Sources", _BACKLOG, _BACKLOG[2:])
        streams = table("Streams", _STREAMS)
        followers = table("Sinks and view", _FOLLOWERS, _FOLLOWERS[1:2])
        shares = table("Shards of served rows", _SHARES, _SHARES[:2] + _SHARES[3:])
        shares.visible = False
        ScaleForm(readings)

        async def update() -> None:
            status = await readings.status()
            figures.show(_figures(status) | totals)
            rates.append(round(status.events_per_s, 1))
            chart.options["series"][0]["data"] = [*rates]
            chart.options["title"]["text"] = _chart_title(status, len(rates))
            problems.clear()
            with problems:
                for line in _problems(status):
                    ui.label(line).classes("text-red-700 dark:text-red-300")
            fill(sources, [row for source in status.sources for row in _backlog(source)], _none("source", status))
            readers = {one.name.removeprefix(READ): one.note or "" for one in status.followers}
            shown = (
                (one.name, one.source, utc(one.newest_us), readers.get(one.name, ""))
                for one in await readings.streams()
            )
            fill(streams, [dict(zip(_STREAMS, one, strict=True)) for one in shown], _none("stream", status))
            others = (one for one in status.followers if not one.name.startswith(READ))
            rows = [{"name": one.name, "records behind": one.behind, "state": _follower_state(one)} for one in others]
            fill(followers, rows, _none("sink", status))

        async def update_totals() -> None:
            totals["State"] = _state_text(await readings.queries())
            shares.rows = [dict(zip(_SHARES, one.values(), strict=True)) for one in await readings.shares()]
            shares.visible = bool(shares.rows)

        pushed(readings, STATUS_SECONDS, update)
        pushed(readings, QUERIES_SECONDS, update_totals)


def _none(what: str, status: Status) -> str:
    """Why there is no source, stream or sink.

    >>> _none("stream", Status("leader", "p", -1, -1, 0)), _none("source", Status("standby", "p", 7, 5, 2))
    ('No stream yet: the pond is starting.', 'The console of the leader shows it.')
    >>> _none("sink", Status("leader", "p", 7, 5, 2))
    'The queries of the pond have no sink.'
    """
    if status.epoch < 0:
        return f"No {what} yet: the pond is starting."
    if status.role != "leader":
        return "The console of the leader shows it."
    return f"The queries of the pond have no {what}."


def _state_text(queries: Iterable[QueryShown]) -> str:
    """The bytes of state of all queries: each has its own and its share of what several need.

    >>> _state_text([])
    'not known yet'
    """
    found = [one.counts["own_bytes"] + one.counts["shared_bytes"] for one in queries if "own_bytes" in one.counts]
    return f"{sum(found) / 1e3:,.1f} kB" if found else "not known yet"


def _figures(status: Status) -> dict[str, str]:
    """The figures of the status.

    >>> _figures(Status("leader", "p", 7, 5, 2, instances=3, epoch_s=0.25))["Epoch time"]
    '250 ms, p99 0 ms'
    >>> sources = SourceShown("a", "files", 1), SourceShown("b", "records", 5), SourceShown("c", "records", 2)
    >>> _figures(Status("leader", "p", 7, 5, 2, sources=sources))["Behind"]
    '1 file, 7 records'
    """
    since = "-" if status.since_epoch_s is None else f"{status.since_epoch_s:.0f} s ago"
    waiting = dict[str, list[int | None]]()
    for one in status.sources:
        waiting.setdefault(one.unit, []).append(one.waiting)
    behind = (backlog(None if None in of else sum(n or 0 for n in of), unit) for unit, of in waiting.items())
    return {
        "This process": status.role if status.starting_s is None else f"starting, since {status.starting_s:.0f} s",
        "Leader": (status.leader if status.starting_s is None else None) or "-",
        "Standbys": ", ".join(status.standbys) or "none is known",
        "Events per second": f"{status.events_per_s:,.0f}",
        "Epoch time": f"{status.epoch_s * 1e3:,.0f} ms, p99 {status.epoch_p99_s * 1e3:,.0f} ms",
        "Last epoch": since,
        "Behind": ", ".join(dict.fromkeys(behind)) or "not known yet",
        "Events since this process leads": f"{status.events:,}",
        "Epoch": "none is committed yet" if status.epoch < 0 else f"{status.epoch:,} (record {status.record:,})",
        "Queries": f"{status.queries:,}",
        "Instances": instances_text(status),
    }


def _follower_state(one: FollowerShown) -> str:
    """What delays a sink or the view, or what it has to report.

    >>> _follower_state(FollowerShown("view", 900, remaining_s=12)), _follower_state(FollowerShown("view", 1))
    ('is catching up, about 12 seconds left', 'up to date')
    """
    # one record was just committed
    behind = f"is catching up{remaining_text(one.remaining_s)}" if one.behind > 1 else ""
    return one.error or behind or one.note or "up to date"


def _problems(status: Status) -> Iterator[str]:
    yield from listed_problems(status)
    if (failure := status.failure) is not None:
        yield f"[{failure.code}] {failure.what} {failure.cure} Next try in {failure.retry_in_s:.0f} s."


def _backlog(source: SourceShown) -> Iterator[dict[str, Any]]:
    """A row per partition, or one for a source without partitions."""
    if not source.partitions:
        behind = (source.stream, "-", "-", "-", backlog(source.waiting, source.unit))
        yield dict(zip(_BACKLOG, behind, strict=True))
    for one in source.partitions:
        partition = f"{one.topic} {one.partition}"
        values = (source.stream, partition, f"{one.committed:,}", f"{one.end:,}", f"{one.end - one.committed:,}")
        yield dict(zip(_BACKLOG, values, strict=True))


def _chart_title(status: Status, points: int) -> str:
    """What the chart shows, and from when.

    >>> _chart_title(Status("leader", "p", 7, 5, 2), 120), _chart_title(Status("leader", "p", -1, -1, 0), 3)
    ('Events per second, the last 120 s', 'Events per second: no epoch is committed yet')
    """
    if status.epoch < 0:
        return "Events per second: no epoch is committed yet"
    return f"Events per second, the last {points * STATUS_SECONDS:.0f} s"


def _chart() -> dict[str, Any]:
    return {
        "animation": False,
        "grid": {"left": 10, "right": 20, "top": 36, "bottom": 10, "containLabel": True},
        "title": {"text": "Events per second", "textStyle": {"fontSize": 13, "color": CHART_TEXT}},
        "xAxis": {"type": "category", "show": False},
        "yAxis": {
            "type": "value", "min": 0, "axisLabel": {"color": CHART_TEXT},
            "splitLine": {"lineStyle": {"color": "#8884"}},
        },
        "series": [{"type": "line", "data": [], "showSymbol": False, "areaStyle": {"opacity": 0.2}}],
    }
