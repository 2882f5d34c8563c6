"""Hosts of tests: what they send takes as long as it should, and arrives, although packets are lost."""

from __future__ import annotations

import subprocess
import sys
from time import monotonic

import pytest

from kit.inputs.required_services import skip_without
from kit.servers.network_hosts import NetworkHosts

pytestmark = pytest.mark.services

CONNECT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 60) as connection:
    connection.sendall(b"x" * 100_000)
    assert connection.recv(1) == b"y"
"""
SERVE = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    with listener.accept()[0] as connection:
        left = 100_000
        while left:
            left -= len(connection.recv(left))
        connection.sendall(b"y")
"""


def test_what_hosts_send_arrives_late_although_packets_are_lost() -> None:
    skip_without("hosts", NetworkHosts.missing())
    with NetworkHosts(2, delay_ms=50.0, mbit=100, loss=0.05) as hosts:
        first, second = hosts.host(1), hosts.host(2)
        words = [*second.inside, sys.executable, "-c", SERVE, second.address]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            began = monotonic()
            subprocess.run([*first.inside, sys.executable, "-c", CONNECT, second.address, port], check=True)
            # at least the handshake, the data and the reply
            assert monotonic() - began >= 4 * 0.05
            assert hosts.sent() > 100_000
            assert server.wait(60) == 0
    assert hosts.lost > 0, "TCP has sent them again"
