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
from collections.abc import AsyncGenerator
from time import monotonic
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
from millpond.model.spec import PondSpec
from millpond.plan.groups.stateless import moved_selections
from millpond.reconfigure.lifecycle import current
from millpond.service.api.messages import Refusal
from millpond.service.server.log_reader import LogReader

ROWS_OF_EVENT = 1000
SUBSCRIBERS = 64
_LOOK_SECONDS = 0.1
_SILENT_SECONDS = 10.0
"""After this time without rows, an event says how far the log was read, so that proxies keep the connection."""

_RECORDS_AT_ONCE = 64
"""The most records that are read before the subscriber's thread is free again."""

_ENTRIES = 64
_ID = re.compile(r"(-1|\d{1,18})(?:\.(\d{1,9}))?", re.ASCII)


class Position(NamedTuple):
    """How far a subscriber has read: all records up to and including `n`, and `parts` events of record `n + 1`.

    `oldest`: the subscriber has read nothing yet, and begins with the oldest rows that are still there.
    """

    n: int
    parts: int = 0
    oldest: bool = False

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position of an id.

        >>> str(Position.parse("57")), str(Position.parse("57.2"))
        ('57', '57.2')

        Raises:
            RequestError: the text is not an id.
        """
        found = _ID.fullmatch(text)
        if found is None:
            raise RequestError(f"{text[:40]!r} is not the id of an event.", "Send an id that was received, or -1.")
        return cls(int(found[1]), int(found[2] or 0), found[1] == "-1")

    def __str__(self) -> str:
        return f"{self.n}.{self.parts}" if self.parts else str(self.n)


class NextEvent(NamedTuple):
    """An event to send, if there is one, and the position after it."""

    event: bytes | None
    position: Position


class RowStream:
    """The rows of the queries of one pond."""

    def __init__(self, reader: LogReader) -> None:
        self._reader, self._ended = reader, False
        self._lock = threading.Lock()
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._rows: tuple[str, RowsReader] | None = None
        self._seen: tuple[float, tuple[Truth, PondSpec] | None] = (-_LOOK_SECONDS, None)
        self._subscribers = 0

    def begin(self, query: str, after: str | None) -> NextEvent:
        """What a subscription begins with: the event after the one with the id `after`, or that of the next record.

        Raises:
            RequestError: there is no such query, or the id is not one. GoneError: rows after it were deleted.
            BusyError: there are as many subscriptions as the service allows.
        """
        truth = self._pond_with(query)
        newest = truth.manifest.n
        position = Position(newest) if after is None else Position.parse(after)
        if position.n > newest:
            raise RequestError(f"The newest record is {newest}, before {position}.", "Use an id of this pond.")
        first = self._after(query, position)
        self._check_number()
        return first

    async def events(self, query: str, first: NextEvent) -> AsyncGenerator[bytes, None]:
        """The events of a subscription from the first one on, until the service stops or the rows cannot be read."""
        self._subscribers += 1
        heard, (event, position) = monotonic(), first
        try:
            self._check_number(own=1)
            while not self._ended:
                if event is None and monotonic() - heard > _SILENT_SECONDS:
                    event = _event("position", str(position), b"{}")
                if event is not None:
                    heard = monotonic()
                    yield event
                elif position.n >= self._newest():
                    await asyncio.sleep(_LOOK_SECONDS)
                event, position = await run_in_threadpool(self._after, query, position)
        except MillpondError as error:
            refusal = Refusal(error.code, error.what, error.cure, error.retry)
            yield _event("error", str(position), msgspec.json.encode(refusal))
        finally:
            self._subscribers -= 1

    def end(self) -> None:
        """End all subscriptions, because the service stops."""
        self._ended = True

    def _check_number(self, own: int = 0) -> None:
        if self._subscribers - own >= SUBSCRIBERS:
            raise BusyError(f"There are {SUBSCRIBERS} subscriptions already.", "End one of them.")

    def _now(self) -> tuple[Truth, PondSpec] | None:
        """The pond as of at most a tenth of a second ago, so that subscribers share one look at the log."""
        with self._lock:
            if monotonic() - self._seen[0] >= _LOOK_SECONDS:
                self._seen = monotonic(), self._reader.now()
            return self._seen[1]

    def _newest(self) -> int:
        found = self._seen[1]
        return -1 if found is None else found[0].manifest.n

    def _pond_with(self, name: str) -> Truth:
        """The log of the pond.

        Raises:
            RequestError: it has no such query in force, or the query's rows are not in the log.
        """
        found = self._now()
        query = next((one for one in current(found[1]) if one.name == name), None) if found is not None else None
        if found is None or query is None:
            raise RequestError(f"There is no query {name[:80]!r}.", "`millpond list` lists them.")
        if isinstance(query, Selection) and not moved_selections([query]):
            raise RequestError(f"The rows of {name} are only counted.", "Give it a sink, such as `subscribers`.")
        return found[0]

    def _after(self, query: str, position: Position) -> NextEvent:
        """The next event after the position, if one of the next records has rows."""
        truth = self._pond_with(query)
        for n in range(position.n + 1, min(truth.manifest.n, position.n + _RECORDS_AT_ONCE) + 1):
            entry = self._entry(truth, n)
            try:
                table = self._reading(truth).table(entry, query)
            except RowsGone as error:
                if not position.oldest:
                    cure = "Subscribe without an id: from the next record on. A sink gets every row."
                    raise GoneError(f"The rows of {query} in record {n} were deleted.", cure) from error
                table = None
            if table is not None:
                return _part(n, table, position.parts)
            position = Position(n, oldest=position.oldest)
        return NextEvent(None, position)

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


def _part(n: int, table: pa.Table, parts: int) -> NextEvent:
    """The event with the rows of record `n` after its first `parts` events; the id of the last event is `n`."""
    rows = table.slice(parts * ROWS_OF_EVENT, ROWS_OF_EVENT)
    last = (parts + 1) * ROWS_OF_EVENT >= len(table)
    position = Position(n) if last else Position(n - 1, parts + 1)
    objects = ",".join(json_objects(rows, omit_nulls=False).to_pylist())
    return NextEvent(_event("rows", str(position), f'{{"record":{n},"rows":[{objects}]}}'.encode()), position)


def _event(kind: str, position: str, data: bytes) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (position.encode(), kind.encode(), data)
