"""The pages of the console, as one application for all browsers."""

from __future__ import annotations

from fastapi import FastAPI
from nicegui import app, ui

from millpond.service.console.dead_letters import show_dead_letters
from millpond.service.console.epochs import show_epochs
from millpond.service.console.graph import show_graph
from millpond.service.console.lists import show_history, show_parameters, show_queries
from millpond.service.console.overview import show_overview
from millpond.service.console.query_page import show_query
from millpond.service.console.readings import Readings
from millpond.service.server.guard import Application
from millpond.service.server.hosted_pond import HostedPond
from millpond.service.server.log_reader import LogReader
from millpond.service.server.row_stream import RowStream

_RECONNECT_SECONDS = 10.0


class Site:
    """The console of this process."""

    @staticmethod
    async def opened(verbs: HostedPond, rows: RowStream, reader: LogReader) -> Application:
        """Add the pages for a pond, and start what NiceGUI runs beside them."""
        readings = Readings(verbs, rows, reader)
        _add_pages(readings)
        # long polling only: the listening socket bounds requests of HTTP, and would have to do so for other protocols
        app.config.socket_io_js_transports = ["polling"]
        # otherwise a bar at the top would show each poll as a page that loads
        app.config.quasar_config["loadingBar"]["skipHijack"] = True
        site = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        ui.run_with(
            site, title="Millpond", dark=None, language="en-US", show_welcome_message=False,
            binding_refresh_interval=None, reconnect_timeout=_RECONNECT_SECONDS,
        )  # fmt: skip
        await site.router.lifespan_context(site).__aenter__()
        return site


def _add_pages(readings: Readings) -> None:
    ui.page("/")(lambda: show_overview(readings))
    ui.page("/queries")(lambda: show_queries(readings))
    ui.page("/graph")(lambda: show_graph(readings))
    ui.page("/epochs")(lambda: show_epochs(readings))
    ui.page("/parameters")(lambda: show_parameters(readings))
    ui.page("/dead-letters")(lambda: show_dead_letters(readings))
    ui.page("/history")(lambda: show_history(readings))

    @ui.page("/queries/{name}")
    async def query(name: str) -> None:
        await show_query(readings, name)
