"""Counts the requests that this process sends to stores on the network, and those that stay on its host."""

from __future__ import annotations

from ipaddress import ip_address
from socket import AF_UNIX, socket
from threading import Lock
from typing import NamedTuple


class Requests(NamedTuple):
    """The number of requests, and of those to a server on the host of the sender."""

    sent: int = 0
    local: int = 0

    def __add__(self, other: object) -> Requests:
        """The sums of both."""
        assert isinstance(other, Requests)
        return Requests(self.sent + other.sent, self.local + other.local)

    def since(self, earlier: Requests) -> Requests:
        """The requests that were counted after `earlier`."""
        return Requests(self.sent - earlier.sent, self.local - earlier.local)


_counted = Requests()
_lock = Lock()


def count(sent: int, local: bool) -> None:
    """Count requests to one server; threads may count at the same time."""
    global _counted
    with _lock:
        _counted += Requests(sent, sent if local else 0)


def counted() -> Requests:
    """All requests of this process until now."""
    return _counted


def stays_on_host(connection: socket) -> bool:
    """Whether both ends of a connection are on one host: the system then gives both ends the same address."""
    if connection.family == AF_UNIX:
        return True
    own, other = connection.getsockname()[0], connection.getpeername()[0]
    return bool(own == other or ip_address(other.partition("%")[0]).is_loopback)
