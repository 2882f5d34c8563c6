"""Reads the rows of a query from a service as they are committed, and continues after a cut at the same position."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeAlias

import msgspec

from millpond.errors import NotServingError, of_code
from millpond.service.api.messages import Refusal, RowsSent

FIRST_DELAY, LONGEST_DELAY = 0.2, 5.0

Open: TypeAlias = Callable[[str, str], AbstractContextManager[Iterator[str]]]
"""Opens the response of a service at an address, as lines, with the rows after an id.

NotServingError: the connection fails, or is cut. MillpondError: the service refuses.
"""


class SentEvent(NamedTuple):
    """A server-sent event."""

    id: str
    kind: str
    data: str


class RowSubscription(Iterator[dict[str, Any]]):
    """The rows of a query, each once and in the order of the log; `next` waits for a row.

    `position`: the id after which rows are still to come. It advances with the last row of each event: then all rows
    that `next` has returned are before it. Store it at such a moment, together with what you do with the rows, and pass
    it as `after` to continue there.

    Raises:
        GoneError: rows after the position were deleted. RequestError: the query was not found.
        NotServingError: no service has answered for `patience` seconds.
    """

    def __init__(self, open_at: Open, urls: Sequence[str], after: str, patience: float) -> None:
        self.position = after
        self._open, self._urls, self._patience = open_at, list(urls), patience
        self._rows = self._received()

    def __next__(self) -> dict[str, Any]:
        return next(self._rows)

    def close(self) -> None:
        """End the subscription."""
        self._rows.close()

    def _received(self) -> Generator[dict[str, Any], None, None]:
        delay, heard = FIRST_DELAY, monotonic()
        while True:
            try:
                with self._open(self._urls[0], self.position) as lines:
                    for event in sent_events(lines):
                        delay, heard = FIRST_DELAY, monotonic()
                        if event.kind == "error":
                            refused = msgspec.json.decode(event.data, type=Refusal)
                            raise of_code(refused.code)(refused.what, refused.cure)
                        rows = msgspec.json.decode(event.data, type=RowsSent).rows if event.kind == "rows" else []
                        yield from rows[:-1]
                        self.position = event.id
                        yield from rows[-1:]
            except NotServingError:
                if monotonic() - heard > self._patience:
                    raise
            sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY)
            self._urls = self._urls[1:] + self._urls[:1]


def sent_events(lines: Iterator[str]) -> Iterator[SentEvent]:
    """The complete events of a response: https://html.spec.whatwg.org/multipage/server-sent-events.html.

    >>> list(sent_events(iter(["id: 7", "event: rows", "data: {}", "", "id: 8"])))
    [SentEvent(id='7', kind='rows', data='{}')]
    """
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        if line and name:
            fields[name] = value.removeprefix(" ")
        elif not line and fields:
            yield SentEvent(fields.get("id", ""), fields.get("event", "message"), fields.get("data", ""))
            fields = {}

