"""Webhook sink: sends the rows of each epoch to an HTTP address, as one POST or, if there are many, as several.

Delivery is at least once: a request that may have arrived is repeated with the same `Idempotency-Key`. The key contains
the pond, the query, the epoch, the number of the request within it, and the digest of the epoch's record, because an
epoch that was lost with its record and is computed again may have other rows. The address is a named connection, so
that no query can choose which hosts are called.
"""

from __future__ import annotations

import json
import ssl
from typing import Literal, NamedTuple
from urllib.parse import quote

import httpx
import msgspec
import pyarrow as pa

from millpond.connections import Secret, named
from millpond.errors import QueryTypeError, SetupError, StoreError
from millpond.followers.cursors import CursorPath
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.context import SinkContext
from millpond.followers.sinks.delivery import RepeatingDelivery
from millpond.followers.sinks.text import json_objects
from millpond.log.records import Entry
from millpond.model.endpoints import Sink

_ROWS = 1000
_DIGITS = 16
"""The number of digits of a record's digest in a key."""

_PASSING = (408, 425, 429)
"""Response statuses below 500 after which the request is retried later."""


class WebhookConnection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The address to call, as a named connection.

    A header may be a secret. `ca`: a PEM file to trust instead of the system's authorities. `seconds`: the limit of
    connecting, of writing and of waiting for a response. `remote`: queries that are added over the network may name
    this connection.
    """

    kind: Literal["http"]
    url: str
    headers: dict[str, str | Secret] = {}
    ca: str | None = None
    seconds: float = 10.0
    remote: bool = False

    def client(self) -> httpx.Client:
        """A client of the address that follows no redirects and uses no proxy.

        Raises:
            SetupError: the address is invalid, or a secret or a file does not exist.
        """
        headers = {name: text if isinstance(text, str) else text.value() for name, text in self.headers.items()}
        try:
            if not _is_called_by_http(self.url):  # it is not shown, because a part of it may be a secret
                raise SetupError(
                    "A webhook cannot be called: its `url` is none of `https://HOST…` or `http://HOST…`.",
                    "Mend the named connection.",
                )
            verify = ssl.create_default_context(cafile=self.ca) if self.ca is not None else True
            return httpx.Client(headers=headers, timeout=self.seconds, trust_env=False, verify=verify)
        except OSError as error:
            raise SetupError(f"A webhook cannot be called: {error}.", "Mend the named connection.") from error


def _is_called_by_http(url: str) -> bool:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.host)


class WebhookOptions(NamedTuple):
    """The options of a sink: the connection to call, and the most rows per request."""

    connection: str | None
    rows: int

    @classmethod
    def of(cls, query: str, sink: Sink) -> WebhookOptions:
        """The options of a sink as a value.

        Raises:
            QueryTypeError: an option is invalid.
        """
        options = dict(sink.options)
        rows = options.get("rows", str(_ROWS))
        if not rows.isdecimal() or not int(rows):
            raise QueryTypeError(f"'rows' of the webhook of {query} is {rows!r}.", "Write a number from 1 on.")
        return cls(options.get("connection"), int(rows))


class WebhookSink(RepeatingDelivery):
    """Sends rows to an address; starts after record `since` if there is no cursor.

    It connects at the first use.
    """

    def __init__(self, query: str, pond_id: str, sink: Sink, rows: RowsReader, cursor: CursorPath, since: int) -> None:
        self._options = WebhookOptions.of(query, sink)
        super().__init__(query, rows, f"The address of {query}", cursor, since)
        self._pond = pond_id
        self._called: tuple[httpx.Client, str] | None = None
        self._answered_parts = ("", 0)
        """The digest of a record, and how many of its requests were answered: these need not be repeated."""

    @classmethod
    def open(cls, context: SinkContext) -> WebhookSink:
        """Open the sink of a query.

        Raises:
            QueryTypeError: an option is invalid.
        """
        query, rows = context.query.name, context.rows
        return cls(query, context.pond, context.sink, rows, context.cursor_file, context.since)

    def close(self) -> None:
        """Close the connections."""
        called, self._called = self._called, None
        if called is not None:
            called[0].close()

    def _hand_over(self, record: Entry, table: pa.Table) -> None:
        n, size = record.n, self._options.rows
        count = -(-len(table) // size)
        for part in range(self._answered_parts[1] if self._answered_parts[0] == record.digest else 0, count):
            rows = json_objects(table.slice(part * size, size), omit_nulls=False)
            head = {"pond": self._pond, "query": self._query, "epoch": n, "part": part, "parts": count}
            text = f'{json.dumps(head, ensure_ascii=False)[:-1]}, "rows": [{",".join(rows.to_pylist())}]}}'
            key = f"{self._pond}/{quote(self._query, safe='')}/{n}/{part}/{record.digest[:_DIGITS]}"
            self._post(text.encode(), key)
            self._answered_parts = (record.digest, part + 1)

    def _post(self, body: bytes, key: str) -> None:
        if self._called is None:
            address = named(self._options.connection, "http", WebhookConnection)
            self._called = address.client(), address.url
        client, url = self._called
        headers = {"content-type": "application/json", "idempotency-key": key}
        try:
            answer = client.post(url, content=body, headers=headers)
        except httpx.HTTPError as error:
            reason, is_temporary = f"did not answer: {type(error).__name__} {error}".rstrip(), True
        else:
            if answer.is_success:
                return
            code = answer.status_code
            reason, is_temporary = f"answered {code} {answer.reason_phrase}".rstrip(), code >= 500 or code in _PASSING
        self.close()  # so that a connection that was repaired in the meantime is read again
        raise StoreError(
            f"The address of {self._query} {reason}, to {key}.",
            "It is called again; nothing is lost meanwhile." if is_temporary
            else "Mend the address or its headers; it is called again, and no later row is sent before.",
        )  # fmt: skip
