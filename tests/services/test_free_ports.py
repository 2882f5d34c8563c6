"""The ports of the servers of tests: processes that run at once never get the same one."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

from kit.servers.servers import free_ports

OTHER = "import json; from kit.servers.servers import free_ports; print(json.dumps(free_ports(3)))"


def test_a_port_is_given_once_although_nothing_listens_to_it() -> None:
    ports = free_ports(3)
    other = subprocess.run([sys.executable, "-c", OTHER], capture_output=True, text=True, check=True)
    assert not {*ports} & {*json.loads(other.stdout)}
    ports += free_ports(3)
    assert len({*ports}) == 6
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_a_connection_does_not_take_a_port_that_was_given() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as limits:
        first, last = map(int, limits.read().split())
    assert not {*range(first, last + 1)} & {*free_ports(2)}


def test_a_port_that_another_program_uses_is_left_out() -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port + 1)):
        assert port + 1 not in free_ports(2)
