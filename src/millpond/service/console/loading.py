"""Loads the web console in the loop that answers requests; its libraries are imported in another thread."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the libraries of the service may be missing, which `run_service` reports
    from millpond.service.console.site import Site
    from millpond.service.server.guard import Application
    from millpond.service.server.hosted_pond import HostedPond
    from millpond.service.server.log_reader import LogReader
    from millpond.service.server.row_stream import RowStream


def is_installed() -> bool:
    """Whether the libraries of the console are installed."""
    return find_spec("nicegui") is not None


async def open_console(verbs: HostedPond, rows: RowStream, reader: LogReader) -> Application:
    """The console of a pond; a process has one, because NiceGUI keeps its pages in the process."""

    def load() -> type[Site]:
        from millpond.service.console.site import Site

        return Site

    site = await asyncio.to_thread(load)
    return await site.opened(verbs, rows, reader)
