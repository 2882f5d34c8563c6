"""Reads and writes messages of the PostgreSQL protocol, version 3.0.

Source: https://www.postgresql.org/docs/current/protocol-message-formats.html
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

PROTOCOL = 3 << 16
CANCEL, TLS, GSS = (1234 << 16 | code for code in (5678, 5679, 5680))

MESSAGE_BYTES = 256 << 10
"""The largest message of a client, as the largest body of an HTTP request."""

STARTUP_BYTES = 10_000
"""The largest first message of a client, which has not shown the token yet."""


class ProtocolError(Exception):
    """The client violates the protocol; its connection is closed."""


class ResultColumn(NamedTuple):
    """A column of a result: its name, and the object id of its PostgreSQL type."""

    name: str
    oid: int


class Fields:
    """Reads the fields of a message one after the other.

    Raises:
        ProtocolError: the message is too short; by every method.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise ProtocolError("a message is too short")
        found, self._at = self._data[self._at : end], end
        return found

    def int16(self) -> int:
        """A signed integer of two bytes."""
        return int.from_bytes(self.take(2), "big", signed=True)

    def int32(self) -> int:
        """A signed integer of four bytes."""
        return int.from_bytes(self.take(4), "big", signed=True)

    def text(self) -> str:
        """A string that ends with a zero byte."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise ProtocolError("a string has no end")
        found = self.take(end - self._at)
        self._at += 1
        try:
            return found.decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("a string is not UTF-8") from error

    def many16(self) -> list[int]:
        """A counted list of integers of two bytes."""
        return [self.int16() for _ in range(self.int16())]

    def value(self) -> bytes | None:
        """A value with its length; None: NULL."""
        size = self.int32()
        return None if size == -1 else self.take(size)


def read_startup(data: bytes) -> dict[str, str]:
    """The parameters of a start-up message after its version, such as `user` and `database`.

    Raises:
        ProtocolError: it is not one.
    """
    fields, found = Fields(data), dict[str, str]()
    while name := fields.text():
        found[name] = fields.text()
    return found


def read_message(read: Callable[[int], bytes]) -> tuple[bytes, Fields] | None:
    """The type and the fields of the next message; None: the client has closed the connection.

    `read`: returns a number of bytes, or fewer at the end of the connection.

    Raises:
        ProtocolError: the message is too long, or incomplete.
    """
    head = read(5)
    if not head:
        return None
    if len(head) < 5:
        raise ProtocolError("a message has no length")
    size = int.from_bytes(head[1:], "big") - 4
    if not 0 <= size <= MESSAGE_BYTES:
        raise ProtocolError(f"a message has {size} bytes, more than {MESSAGE_BYTES}")
    body = read(size)
    if len(body) < size:
        raise ProtocolError("a message is incomplete")
    return head[:1], Fields(body)


def message(kind: bytes, *parts: bytes) -> bytes:
    """A message of the server."""
    body = b"".join(parts)
    return kind + (len(body) + 4).to_bytes(4, "big") + body


def text(value: str) -> bytes:
    """A string that ends with a zero byte."""
    return value.replace("\0", "").encode() + b"\0"


def parameter_status(settings: Mapping[str, str]) -> bytes:
    """ParameterStatus messages."""
    return b"".join(message(b"S", text(name), text(value)) for name, value in settings.items())


def row_description(columns: Sequence[ResultColumn], formats: Sequence[int]) -> bytes:
    """RowDescription: names, types and formats (0: text, 1: binary) of the columns of a result."""
    parts = [len(columns).to_bytes(2, "big")]
    for column, form in zip(columns, formats, strict=True):
        parts += [text(column.name), struct.pack(">ihihih", 0, 0, column.oid, -1, -1, form)]
    return message(b"T", *parts)


def parameter_description(oids: Iterable[int]) -> bytes:
    """ParameterDescription: the types of the parameters of a prepared statement."""
    found = list(oids)
    return message(b"t", len(found).to_bytes(2, "big"), *(oid.to_bytes(4, "big") for oid in found))


def error_response(severity: str, state: str, what: str, cure: str = "") -> bytes:
    """ErrorResponse; `state`: an SQLSTATE."""
    fields = {"S": severity, "V": severity, "C": state, "M": what, **({"H": cure} if cure else {})}
    return message(b"E", *(kind.encode() + text(value) for kind, value in fields.items()), b"\0")


def complete(tag: str) -> bytes:
    """CommandComplete."""
    return message(b"C", text(tag))
