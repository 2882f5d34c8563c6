"""The page of a query: its text and versions, its rows as they are committed, its history, and why it is silent."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import msgspec
from nicegui import Client, background_tasks, ui
from starlette.concurrency import run_in_threadpool

from millpond.clock import utc
from millpond.errors import GoneError, MillpondError, RequestError
from millpond.service.api.messages import QueryShown, Refusal, RowsSent
from millpond.service.api.row_subscription import sent_events
from millpond.service.console.changes import actions
from millpond.service.console.layout import SINCE, Alert, Figures, code, fill, page, pushed, table
from millpond.service.console.lists import NO_CHANGE, history_rows, history_table
from millpond.service.console.readings import QUERIES_SECONDS, Readings
from millpond.service.terminal.text import diff_lines

_ROWS = 100
"""The newest rows that a page keeps."""

_EXACT_INTEGER = 2**53
"""The largest integer up to which a browser shows all of them exactly."""

_RECENT_RECORDS = 20
"""The number of records before the newest one whose rows are shown first, if they still exist."""


async def show_query(readings: Readings, name: str) -> None:
    """Show the page of a query."""
    with page(name):
        try:
            query = await readings.query(name)
        except MillpondError as error:
            Alert().show(error)
            return
        figures = Figures()
        ui.label(SINCE).classes("text-sm")
        buttons, shown, receiving = ui.row().classes("gap-2"), list[str](), list[asyncio.Task[None]]()
        with ui.tabs().props("align=left no-caps").classes("w-full") as tabs:
            for label in ("Text", "Rows", "Why", "History", "Shadow"):
                ui.tab(label)
        with ui.tab_panels(tabs, value="Text").classes("w-full"):
            with ui.tab_panel("Text"):
                text = code("Text", query.text)
                columns = table("Columns", ("column", "type"))
            with ui.tab_panel("Rows"):
                rows = table("Rows", [column.name for column in query.columns], pagination=_ROWS)
            with ui.tab_panel("Why"):
                why = code("Why")
            with ui.tab_panel("History"):
                history = history_table()
            with ui.tab_panel("Shadow"):
                difference = code("Shadow")

        async def update() -> None:
            try:
                current = await readings.query(name)
            except RequestError:  # it was dropped: there is nothing left to change
                shown.clear()
                buttons.clear()
                raise
            figures.show(_figures(current))
            text.text = current.text.strip()
            fill(columns, [{"column": one.name, "type": one.type} for one in current.columns], "It has no column.")
            if shown != [current.state]:
                shown[:] = [current.state]
                buttons.clear()
                with buttons:
                    actions(readings, current)
            if tabs.value == "Why":
                why.text = await run_in_threadpool(readings.why, name)
            elif tabs.value == "History":
                changes = [one for one in await readings.history() if _of(one.name, name)]
                fill(history, history_rows(changes), NO_CHANGE)
            elif tabs.value == "Shadow":
                difference.text = await _difference(readings, current)

        async def opened() -> None:
            if tabs.value == "Rows" and not receiving:
                client = ui.context.client
                received = _receive(readings, name, rows, client)
                receiving.append(background_tasks.create(received, name=f"rows of {name}"))
                client.on_delete(lambda: [task.cancel() for task in receiving])
            await update()

        tabs.on_value_change(opened)
        pushed(readings, QUERIES_SECONDS, update)


def _of(changed: str, query: str) -> bool:
    """Whether a change of this name is one of the query or of one of its versions.

    >>> _of("spend@1", "spend"), _of("spending", "spend")
    (True, False)
    """
    return changed.partition("@")[0] == query


def _figures(query: QueryShown) -> dict[str, str]:
    counts = query.counts
    return {
        "State": query.state if query.reason is None else f"{query.state}: {query.reason}",
        "Version": f"{query.version}, {query.kind}",
        "Reads": ", ".join(query.streams),
        "Sink": query.sink,
        "Complete from": utc(query.complete_from_us),
        "Earlier version until": utc(query.earlier_until_us),
        "Rows": f"{counts.get('rows', 0):,}",
        "Late events": f"{counts.get('late', 0):,}",
        "Dead events": f"{counts.get('dead', 0):,}",
        "Time in the newest epoch": _time(counts),
        "State of its own": f"{counts.get('own_bytes', 0) / 1e3:,.1f} kB",
        "Its share of state": f"{counts.get('shared_bytes', 0) / 1e3:,.1f} kB",
        "Keys": f"{counts.get('keys', 0):,}",
    }


def _time(counts: dict[str, int]) -> str:
    """The time of a query, and how many queries share the measured time of which it is a part.

    >>> _time({"time_us": 500, "group_queries": 8}), _time({"time_us": 500, "group_queries": 1})
    ('0.5 ms, 1 of 8 in its group', '0.5 ms')
    """
    queries = counts.get("group_queries", 0)
    part = f", 1 of {queries:,} in its group" if queries > 1 else ""
    return f"{counts.get('time_us', 0) / 1e3:,.1f} ms{part}"


async def _difference(readings: Readings, query: QueryShown) -> str:
    if query.shadow is None:
        return "The query has no shadow."
    try:
        lines = [*diff_lines(await run_in_threadpool(readings.verbs.diff, query.name))]
    except MillpondError as error:
        lines = [str(error)]
    return "\n".join([*lines, "", query.shadow.strip()])


async def _receive(readings: Readings, name: str, shown: ui.table, client: Client) -> None:
    """Show rows as they are committed, the newest first, until the page is closed."""
    newest_rows: list[dict[str, Any]] = []
    try:
        position = await run_in_threadpool(_beginning, readings, name)
        with client:
            fill(shown, [], "No row yet: each row is shown when it is committed. Why says what the query waits for.")
    except MillpondError as error:  # the rows of some queries are in no log
        with client:
            fill(shown, [], str(error))
        return
    async with aclosing(readings.rows.events(name, position)) as events:
        async for event in events:
            (sent,) = sent_events(iter(event.decode().split("\n")))
            with client:
                if sent.kind == "rows":
                    found = msgspec.json.decode(sent.data, type=RowsSent).rows
                    newest_rows[:] = [*reversed(found[-_ROWS:]), *newest_rows][:_ROWS]
                    shown.rows = [{column: _cell(value) for column, value in row.items()} for row in newest_rows]
                elif sent.kind == "error":
                    refused = msgspec.json.decode(sent.data, type=Refusal)
                    ui.notify(f"[{refused.code}] {refused.what} {refused.cure}")


def _beginning(readings: Readings, name: str) -> Any:
    recent = readings.newest() - _RECENT_RECORDS
    try:
        return readings.rows.begin(name, str(max(-1, recent)))
    except GoneError:
        return readings.rows.begin(name, None)


def _cell(value: Any) -> Any:
    """A value as a browser shows it exactly: nested values and large integers as JSON.

    >>> _cell(2**53), _cell(2**53 + 1), _cell([1, None])
    (9007199254740992, '9007199254740993', '[1,null]')
    """
    exact = isinstance(value, str | float | None) or (isinstance(value, int) and abs(value) <= _EXACT_INTEGER)
    return value if exact else msgspec.json.encode(value).decode()
