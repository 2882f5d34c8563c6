"""The pages with a table: queries, live parameters and the history of changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from nicegui import events, ui

from millpond.clock import utc
from millpond.service.api.messages import Event, Parameter, QueryShown
from millpond.service.console.changes import add_query, propose, set_parameter, unset_parameter
from millpond.service.console.layout import PARTS, SINCE, fill, page, pushed, table
from millpond.service.console.readings import QUERIES_SECONDS, STATUS_SECONDS, Readings
from millpond.service.server.browser.access import CONSOLE

ROWS_OF_PAGE = 25
NO_CHANGE = "Nothing was changed since the pond was created."

_QUERIES = ("name", "state", "version", "kind", "sink", "rows", "late", "dead", "ms", "own kB", "shared kB")
_LINK = '<q-td :props="props"><a class="text-primary underline" :href="props.row.link">{{ props.value }}</a></q-td>'
_NUMBERS = (*_QUERIES[5:], "version")
_PARAMETERS = ("name", "value", "type", "source")
_HISTORY = ("record", "time", "change", "by", "text")


def show_queries(readings: Readings) -> None:
    """Show the list of queries; a browser gets one page of it at a time."""
    with page("Queries"):
        with ui.row().classes("w-full items-center"):
            text = ui.input("Name or state").props("clearable outlined dense").classes("grow")
            ui.button("Add a query", on_click=lambda: add_query(readings)).props("no-caps")
        shown = table(
            "Queries", _QUERIES, _NUMBERS,
            pagination={"rowsPerPage": ROWS_OF_PAGE, "page": 1, "rowsNumber": 0, "sortBy": "name", "descending": False},
        )  # fmt: skip
        for column in shown.columns:
            column["sortable"] = True
        shown.add_slot("body-cell-name", _LINK)
        ui.label(f"{SINCE} {PARTS}").classes("text-sm")

        async def update() -> None:
            found = matching(await readings.queries(), text.value or "")
            rows, at = page_of(found, shown.pagination)
            nothing = "No query has this name or state." if text.value else "The pond has no query yet: add one."
            fill(shown, rows, nothing)
            wanted = dict(shown.pagination) | {"page": at, "rowsNumber": len(found)}
            if wanted != shown.pagination:
                shown.pagination = wanted

        async def turned(event: events.GenericEventArguments) -> None:
            shown.pagination = dict(shown.pagination) | event.args["pagination"]
            await update()

        shown.on("request", turned)
        shown.on_pagination_change(update)  # the browser's own idea of the number of rows may be outdated
        text.on_value_change(update)
        pushed(readings, QUERIES_SECONDS, update)


def matching(queries: Sequence[QueryShown], text: str) -> list[QueryShown]:
    """The queries whose name contains a text, or whose state it is."""
    text = text.strip().lower()
    return [one for one in queries if text in one.name.lower() or text == one.state]


def page_of(queries: Sequence[QueryShown], pagination: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """The rows of a page of the list in its order, and the number of the page, which is the last one at most.

    >>> queries = [QueryShown(name, "windowed", "running", 1, "", (), (), "", False) for name in "cab"]
    >>> rows, at = page_of(queries, {"rowsPerPage": 2, "page": 9, "sortBy": "name", "descending": False})
    >>> [row["name"] for row in rows], at
    (['c'], 2)
    """
    size = int(pagination["rowsPerPage"]) or ROWS_OF_PAGE
    at = max(1, min(int(pagination["page"]), -(-len(queries) // size)))
    by = pagination.get("sortBy") or "name"
    rows = sorted(map(_row, queries), key=lambda row: row[by], reverse=bool(pagination["descending"]))
    return rows[(at - 1) * size : at * size], at


def _row(query: QueryShown) -> dict[str, Any]:
    counts = query.counts
    costs = [round(counts.get(name, 0) / 1e3, 1) for name in ("time_us", "own_bytes", "shared_bytes")]
    fates = [counts.get(name, 0) for name in ("rows", "late", "dead")]
    values = (query.name, query.state, query.version, query.kind, query.sink, *fates, *costs)
    return dict(zip(_QUERIES, values, strict=True)) | {"link": f"{CONSOLE}/queries/{quote(query.name)}"}


def show_parameters(readings: Readings) -> None:
    """Show the live parameters, and set them."""
    with page("Parameters"):
        shown = table("Parameters", _PARAMETERS)
        shown.add_slot(
            "body-cell-value",
            '<q-td :props="props">{{ props.value }} <q-btn flat dense no-caps label="Set" '
            """:aria-label="'Set ' + props.row.name" @click="$parent.$emit('set', props.row.name)" />"""
            '<q-btn flat dense no-caps label="Unset" '
            """:aria-label="'Unset ' + props.row.name" @click="$parent.$emit('unset', props.row.name)" /></q-td>""",
        )

        async def chosen(event: events.GenericEventArguments) -> None:
            found = [one for one in await readings.parameters() if one.name == event.args]
            if found:
                set_parameter(readings, found[0])

        async def removed(event: events.GenericEventArguments) -> None:
            for one in [one for one in await readings.parameters() if one.name == event.args]:
                await propose(readings, unset_parameter(readings, one))

        async def update() -> None:
            rows = [_parameter(one) for one in await readings.parameters()]
            fill(shown, rows, "No query uses a live parameter: DECLARE VARIABLE declares one.")

        shown.on("set", chosen)
        shown.on("unset", removed)
        pushed(readings, STATUS_SECONDS, update)


def _parameter(one: Parameter) -> dict[str, str]:
    value = msgspec.json.encode(one.value).decode()
    return dict(zip(_PARAMETERS, (one.name, value, one.type, one.source or "set by hand"), strict=True))


def show_history(readings: Readings) -> None:
    """Show the newest changes of the pond."""
    with page("History"):
        shown = history_table()

        async def update() -> None:
            fill(shown, history_rows(await readings.history()), NO_CHANGE)

        pushed(readings, STATUS_SECONDS, update)


def history_table() -> ui.table:
    """An empty table for changes, with all rows in the browser."""
    return table("Changes", _HISTORY, _HISTORY[:1], pagination=ROWS_OF_PAGE)


def history_rows(changes: Sequence[Event]) -> list[dict[str, Any]]:
    """Rows for `history_table`."""
    return [
        {
            "record": one.record,
            "time": utc(one.at_us, 0),
            "change": f"{one.kind} {one.name}" + ("" if one.value is None else f" = {one.value}"),
            "by": one.who or "the pond itself",
            "text": one.text or "",
        }
        for one in changes
    ]
