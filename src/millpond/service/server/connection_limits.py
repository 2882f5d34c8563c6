"""Limits idle connections, and those of clients without the token, so that clients with it can always connect.

A connection is unauthenticated until a request with the token arrives over it. The number of these connections is
limited, per address and in total. When the limit is reached, the oldest connection of the address with the most
connections is closed. The next connection is accepted a moment later, so that a new one has time to send its request.
Connections count from `accept` on, before the TLS handshake. `IdleTimeout` closes connections that send no request
within a time limit; Uvicorn alone would wait without limit.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import weakref
from collections import Counter
from contextlib import suppress
from typing import Any, NamedTuple

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

UNAUTHENTICATED_PER_ADDRESS = 128
UNAUTHENTICATED_IN_TOTAL = 320

ACCEPTED_AT_ONCE = 2
"""The most connections that are accepted before arrived requests are read: a burst of connections must not close a
connection whose request has arrived and is not read yet.
"""

PAUSE_SECONDS = 0.001
"""The pause of accepting after a connection was closed for another: 128 pauses are an eighth of a second."""

_QUEUE = 1024
_IPV6_PREFIX = 64


class _Unauthenticated(NamedTuple):
    origin: str
    connection: weakref.ref[socket.socket]

    @property
    def is_closed(self) -> bool:
        found = self.connection()
        return found is None or found.fileno() < 0


class UnauthenticatedConnections:
    """The open connections without a request with the token, the oldest first. Thread-safe."""

    def __init__(self, of_address: int = UNAUTHENTICATED_PER_ADDRESS, in_total: int = UNAUTHENTICATED_IN_TOTAL) -> None:
        self._of_address, self._in_total = of_address, in_total
        self._known: dict[tuple[str, int], _Unauthenticated] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def enter(self, connection: socket.socket, peer: Any) -> bool:
        """Count an accepted connection, and close the oldest one if there are too many; returns whether it did."""
        with self._lock:
            return self._enter(connection, peer)

    def _enter(self, connection: socket.socket, peer: Any) -> bool:
        for client in [client for client, known in self._known.items() if known.is_closed]:
            del self._known[client]
        origin = origin_of(peer[0])
        self._known.pop((peer[0], peer[1]), None)
        self._known[peer[0], peer[1]] = _Unauthenticated(origin, weakref.ref(connection))
        counts = Counter(known.origin for known in self._known.values())
        if counts[origin] > self._of_address:
            self._close_oldest(origin)
        elif len(self._known) > self._in_total:
            self._close_oldest(max(counts, key=counts.__getitem__))
        else:
            return False
        return True

    def trust(self, client: tuple[str, int]) -> None:
        """Stop counting the connection of this address and port, over which a request with the token came."""
        with self._lock:
            self._known.pop((client[0], client[1]), None)

    def _close_oldest(self, origin: str) -> None:
        client = next(client for client, known in self._known.items() if known.origin == origin)
        connection = self._known.pop(client).connection()
        if connection is not None:
            with suppress(OSError):  # the client has closed it in the meantime
                connection.shutdown(socket.SHUT_RDWR)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address, which is one of IPv6 if it has a colon.

    Raises:
        OSError: the address is in use, or none of this host.
    """
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


class CountingSocket(socket.socket):
    """A listening socket that counts the connections it accepts."""

    unauthenticated: UnauthenticatedConnections
    _pause: threading.Event

    @classmethod
    def of(cls, listener: socket.socket) -> CountingSocket:
        """Take over a bound socket."""
        made = cls(fileno=listener.detach())
        made.unauthenticated, made._pause = UnauthenticatedConnections(), threading.Event()
        return made

    def accept(self) -> tuple[socket.socket, Any]:
        connection, peer = super().accept()
        if self.unauthenticated.enter(connection, peer):
            self._pause.wait(PAUSE_SECONDS)
        return connection, peer

    def listen(self, _backlog: int = _QUEUE, /) -> None:
        """Listen with the largest backlog that the system allows, although asyncio accepts few connections at once."""
        super().listen(_QUEUE)


def origin_of(host: str) -> str:
    """The unit that counts as one address: for IPv6 a /64 network, because a host usually has all of it.

    >>> origin_of("10.0.0.7"), origin_of("2001:db8::1"), origin_of("::ffff:10.0.0.7")
    ('10.0.0.7', '2001:db8::/64', '10.0.0.7')
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))


HEAD_SECONDS = 10.0
"""Seconds that an idle connection has to send the head of its next request; it is closed within twice that time."""


class IdleTimeout(H11Protocol):
    """Uvicorn's HTTP protocol, which also closes a connection that is idle for `HEAD_SECONDS`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of a new connection."""
        super().connection_made(transport)
        self.loop.call_later(HEAD_SECONDS, self._look, None)

    def _look(self, before: RequestResponseCycle | None) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is before and (before is None or before.response_complete):
            self.transport.close()
        else:
            self.loop.call_later(HEAD_SECONDS, self._look, self.cycle)
