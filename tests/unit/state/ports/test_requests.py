"""Requests to a server on the same host are counted as local, whichever address of the host they use."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from millpond.state.ports.requests import Requests, count, counted, stays_on_host


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.9"])
def test_a_loopback_connection_stays_on_its_host(address: str) -> None:
    with socket.create_server((address, 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert stays_on_host(client)


def test_a_connection_between_addresses_of_one_host_stays_there(tmp_path: Path) -> None:
    own = socket.gethostbyname(socket.gethostname())
    with socket.create_server((own, 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert stays_on_host(client)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "s"))
        server.listen()
        client.connect(str(tmp_path / "s"))
        assert stays_on_host(client)


class _Remote(socket.socket):
    """A connection from one host to another, without a network."""

    def getsockname(self) -> tuple[str, int]:
        return "10.0.0.1", 40000

    def getpeername(self) -> tuple[str, int]:
        return "10.0.0.2", 6379


def test_a_connection_to_another_address_leaves_the_host() -> None:
    with _Remote() as connection:
        assert not stays_on_host(connection)


def test_requests_are_counted() -> None:
    before = counted()
    count(3, True)
    count(2, False)
    assert counted().since(before) == Requests(5, 3)
