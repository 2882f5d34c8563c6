"""Reads the pond for the pages of the console: once for all pages, at most once in a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from nicegui import Event as Signal
from starlette.concurrency import run_in_threadpool

from millpond.clock import cpu_us, lap_us
from millpond.control.diagnose.why_message import WIDEST
from millpond.errors import NotServingError, RequestError, StoreError
from millpond.model.spec import PondSpec
from millpond.runtime.inspect.timeline import KEPT
from millpond.service.api.messages import Event, QueryShown
from millpond.service.server.hosted_pond import HostedPond
from millpond.service.server.log_reader import LogReader
from millpond.service.server.row_stream import RowStream

T = TypeVar("T")

STATUS_SECONDS = 1.0
QUERIES_SECONDS = 4.0
"""How old the figures of queries may be: with 1,000 queries they take much longer to read than the status."""

TRACE_SECONDS = 2.0
LETTERS_SECONDS = 10.0
"""How old the table of dead letters may be: all their files are read."""

_COST_TO_AGE = 100
"""How many times as old as the CPU time of its reading a value may become."""

CHANGES = 200
"""The number of newest changes that are shown."""


class Shared(Generic[T]):
    """A value that is read in another thread, and read again when it is requested and older than `seconds`.

    If reading it takes long, as with a thousand queries, it may be older: reading takes 1 % of a core at most.
    """

    def __init__(self, read: Callable[[], T], seconds: float) -> None:
        self._read, self._lasts_us = read, round(seconds * 1e6)
        self._found: tuple[int, T] | None = None
        self._cost_us = 0
        self._reading = asyncio.Lock()

    async def __call__(self) -> T:
        """The value, as old as it may be."""
        async with self._reading:
            due_us = max(self._lasts_us, _COST_TO_AGE * self._cost_us)
            if self._found is None or lap_us() - self._found[0] > due_us:
                value, cost_us = await run_in_threadpool(self._measured)
                if self._found is not None:  # the first reading also loads what later ones need
                    self._cost_us = cost_us
                self._found = lap_us(), value
            return self._found[1]

    def _measured(self) -> tuple[T, int]:
        """The value, and the CPU time that reading it took."""
        began = cpu_us()
        value = self._read()
        return value, cpu_us() - began

    def forget(self) -> None:
        """Read the value again at the next call, because a change was made."""
        self._found = None


class Readings:
    """What the pages show of one pond. `changed` is emitted after each change that a page makes."""

    def __init__(self, verbs: HostedPond, rows: RowStream, reader: LogReader) -> None:
        self.verbs, self.rows, self._reader = verbs, rows, reader
        self.status = Shared(verbs.status, STATUS_SECONDS)
        self.queries = Shared(verbs.queries, QUERIES_SECONDS)
        self.shares = Shared(self._shares, QUERIES_SECONDS)
        self.streams = Shared(verbs.streams, STATUS_SECONDS)
        self.history: Shared[list[Event]] = Shared(lambda: verbs.history(CHANGES), STATUS_SECONDS)
        self.parameters = Shared(verbs.parameters, STATUS_SECONDS)
        self.dead_letters = Shared(verbs.dead_letters, LETTERS_SECONDS)
        self.trace = Shared(lambda: verbs.trace(KEPT), TRACE_SECONDS)
        self.changed: Signal[[]] = Signal()

    def _shares(self) -> tuple[dict[str, int | str], ...]:
        """The buckets of served rows by instance; none if no query is served, or this process does not lead."""
        with suppress(NotServingError, StoreError):
            return self.verbs.placement().shares
        return ()

    async def query(self, name: str) -> QueryShown:
        """A query in force.

        Raises:
            RequestError: there is none of that name.
        """
        found = next((one for one in await self.queries() if one.name == name), None)
        if found is None:
            raise RequestError(f"There is no query {name[:80]!r}.", "The page Queries lists them.")
        return found

    def why(self, name: str) -> str:
        """Why a query emits no rows, as `millpond why` reports it."""
        return self.verbs.why(name, WIDEST).text

    def spec(self) -> PondSpec | None:
        """The streams and queries in force; None: the pond has no query yet."""
        found = self._reader.now()
        return None if found is None else found[1]

    def newest(self) -> int:
        """The newest record of the log; -1: there is none."""
        found = self._reader.now()
        return -1 if found is None else found[0].manifest.n

    def forget(self) -> None:
        """Read everything again and update all open pages, because a change was made."""
        for shared in (self.status, self.queries, self.streams, self.history, self.parameters, self.dead_letters):
            shared.forget()
        self.changed.emit()
