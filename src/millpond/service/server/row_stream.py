"""Sends the rows of a query to subscribers as server-sent events, in the order of the log.

The format is that of https://html.spec.whatwg.org/multipage/server-sent-events.html. Each event has the rows of one
record, or a part of them, and an id. A subscriber that was cut off sends the last id that it has processed, to any
process of the service, and gets the rows after it, each exactly once.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec
import pyarrow as pa
from starlette.concurrency import run_in_threadpool

from millpond.control.wiring.truth import Truth
from millpond.errors import BusyError, GoneError, MillpondError, RequestError
from millpond.followers.record_rows import RowsGone, RowsReader, section_reader
from millpond.followers.sinks.text import json_objects
from millpond.log.records import Entry, decode
from millpond.model.selection import Selection
from millpond.plan.groups.stateless import moved_selections
from millpond.reconfigure.lifecycle import current
from millpond.service.api.messages import Refusal
from millpond.service.server.log_reader import LogReader

ROWS_OF_EVENT = 1000
SUBSCRIBERS = 64
_LOOK_SECONDS = 0.1
_SILENT_SECONDS = 10.0
"""After this time without rows, an event says how far the log was read, so that proxies keep the connection."""

_ENTRIES = 64
_ID = re.compile(r"(-1|\d{1,18})(?:\.(\d{1,9}))?")


class Position(NamedTuple):
    """How far a subscriber has read: all of the records up to `n`, and the first `parts` events of the record after."""

    n: int
    parts: int = 0

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position of an id.

        >>> Position.parse("57"), Position.parse("57.2")
        (Position(n=57, parts=0), Position(n=57, parts=2))

        Raises:
            RequestError: the text is not an id.
        """
        found = _ID.fullmatch(text)
        if found is None:
            raise RequestError(f"{text[:40]!r} is not the id of an event.", "Send an id that was received, or -1.")
        return cls(int(found[1]), int(found[2] or 0))

    def __str__(self) -> str:
        return f"{self.n}.{self.parts}" if self.parts else str(self.n)


class _Read(NamedTuple):
    """Events to send, and the position after them."""

    events: list[bytes]
    position: Position


class RowStream:
    """The rows of the queries of one pond."""

    def __init__(self, reader: LogReader) -> None:
        self._reader, self._ended = reader, False
        self._lock = threading.Lock()
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._rows: tuple[str, RowsReader] | None = None
        self._subscribers = 0

    def begin(self, query: str, after: str | None) -> Position:
        """Where a subscription begins: after the event with the id `after`, or with the rows of the next record.

        Raises:
            RequestError: there is no such query, or the id is not one. GoneError: rows after it were deleted.
            BusyError: there are as many subscriptions as the service allows.
        """
        found = self._reader.now()
        asked = next((one for one in current(found[1]) if one.name == query), None) if found is not None else None
        if found is None or asked is None:
            raise RequestError(f"There is no query {query[:80]!r}.", "`millpond list` lists them.")
        if isinstance(asked, Selection) and not moved_selections([asked]):
            raise RequestError(f"The rows of {query} are only counted.", "Give it a sink, such as `subscribers`.")
        newest = found[0].manifest.n
        position = Position(newest) if after is None else Position.parse(after)
        if position.n > newest:
            raise RequestError(f"The newest record is {newest}, before {position}.", "Use an id of this pond.")
        self._after(query, position)  # raises if the rows are no longer there
        if self._subscribers >= SUBSCRIBERS:
            raise BusyError(f"There are {SUBSCRIBERS} subscriptions already.", "End one of them.")
        return position

    async def events(self, query: str, position: Position) -> AsyncIterator[bytes]:
        """The events of a subscription, until the service stops or the rows cannot be read."""
        self._subscribers += 1
        silent = 0.0
        try:
            while not self._ended:
                found = await run_in_threadpool(self._after, query, position)
                for event in found.events:
                    yield event
                silent = 0.0 if found.events else silent + _LOOK_SECONDS
                position = found.position
                if not found.events:
                    if silent >= _SILENT_SECONDS:
                        silent = 0.0
                        yield _event("position", str(position), b"{}")
                    await asyncio.sleep(_LOOK_SECONDS)
        except MillpondError as error:
            refusal = Refusal(error.code, error.what, error.cure, error.retry)
            yield _event("error", str(position), msgspec.json.encode(refusal))
        finally:
            self._subscribers -= 1

    def end(self) -> None:
        """End all subscriptions, because the service stops."""
        self._ended = True

    def _after(self, query: str, position: Position) -> _Read:
        """The events of the first record after the position that has rows; none if no record has."""
        found = self._reader.now()
        if found is None:
            return _Read([], position)
        truth = found[0]
        for n in range(position.n + 1, truth.manifest.n + 1):
            entry = self._entry(truth, n)
            try:
                table = self._reading(truth).table(entry, query)
            except RowsGone as error:
                cure = "Subscribe without an id: from the next record on. A sink gets every row."
                raise GoneError(f"The rows of {query} in record {n} were deleted.", cure) from error
            if table is not None:
                return _Read(_parts(n, table)[position.parts :], Position(n))
            position = Position(n)
        return _Read([], position)

    def _entry(self, truth: Truth, n: int) -> Entry:
        with self._lock:
            if n in self._entries:
                return self._entries[n]
        entry = decode(truth.log.read(n) or b"", truth.log.describe(n))
        with self._lock:
            self._entries[n] = entry
            while len(self._entries) > _ENTRIES:
                self._entries.popitem(last=False)
        return entry

    def _reading(self, truth: Truth) -> RowsReader:
        with self._lock:
            if self._rows is None or self._rows[0] != truth.pond:
                self._rows = truth.pond, RowsReader(section_reader(truth.files()))
            return self._rows[1]


def _parts(n: int, table: pa.Table) -> list[bytes]:
    """The rows of a record as events; the id of the last one is the record's number."""
    starts = range(0, len(table), ROWS_OF_EVENT)
    events = []
    for part, start in enumerate(starts, 1):
        rows = ",".join(json_objects(table.slice(start, ROWS_OF_EVENT), omit_nulls=False).to_pylist())
        last = part == len(starts)
        position = Position(n) if last else Position(n - 1, part)
        events.append(_event("rows", str(position), f'{{"record":{n},"rows":[{rows}]}}'.encode()))
    return events


def _event(kind: str, position: str, data: bytes) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (position.encode(), kind.encode(), data)
