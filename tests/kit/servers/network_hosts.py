"""Hosts with a network between them, on one machine: network namespaces on a bridge, for programs that tests start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress

from kit.servers.servers import Host


class NetworkHosts:
    """Hosts 1 … `count`; the machine itself is host 0. A context manager that removes them; needs root and Linux.

    `delay_ms`: how much later each packet arrives that a host but the machine itself sends. `loss`: the part of the
    packets to and from these hosts that are lost; afterwards `lost` is their number. A program delays and loses them,
    see `delay_program`. `mbit`: how much each host can send, in Mbit/s. 0: no delay, no loss, no limit.
    """

    def __init__(self, count: int, delay_ms: float = 0.0, mbit: int = 0, loss: float = 0.0) -> None:
        self.count, self._delay_ms, self._mbit, self._loss = count, delay_ms, mbit, loss
        self.lost = 0
        self._delays: subprocess.Popen[bytes] | None = None
        self._bridge, self._name = f"mpb{os.getpid()}", f"mp{os.getpid()}-"
        # processes have networks of their own, so that one that was killed leaves nothing in the way
        self._network = f"10.{64 + os.getpid() % 128}.{os.getpid() // 128 % 256}"

    @staticmethod
    def missing() -> str | None:
        """Why there can be no such hosts here; None: there can."""
        try:
            done = subprocess.run(["unshare", "-n", "ip", "link"], capture_output=True, text=True)
        except FileNotFoundError as error:
            return str(error)
        return None if done.returncode == 0 else f"unshare -n: {done.stderr.strip()}"

    def host(self, number: int) -> Host:
        """One of the hosts."""
        address = f"{self._network}.{number + 1}"
        return Host(address, ("ip", "netns", "exec", f"{self._name}{number}")) if number else Host(address)

    def cut(self, number: int) -> None:
        """Let no packet of a host pass, in either direction; no error is returned."""
        _run("ip", "link", "set", self._link(number), "nomaster")

    def heal(self, number: int) -> None:
        """Let the packets of a host pass again."""
        _run("ip", "link", "set", self._link(number), "master", self._bridge)

    def sent(self) -> int:
        """The bytes that all hosts but the machine itself have sent to others."""
        return sum(self._sent(host) for host in range(1, self.count + 1))

    def __enter__(self) -> NetworkHosts:
        try:
            # A bridge without an address of its own takes that of a link, which others do not learn when a link leaves.
            _run("ip", "link", "add", self._bridge, "address", "02:00:00:00:00:01", "type", "bridge")
            _run("ip", "addr", "add", f"{self.host(0).address}/24", "dev", self._bridge)
            _run("ip", "link", "set", self._bridge, "up")
            if self._delay_ms or self._loss:
                self._start_delays()
            for host in range(1, self.count + 1):
                self._add(f"{self._name}{host}", self._link(host), self.host(host).address)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._delays is not None:  # before the hosts, with which their devices go away
            self.lost = int((self._delays.communicate()[0].split() or [b"0"])[-1])
        for host in range(1, self.count + 1):
            with suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "del", f"{self._name}{host}")
        with suppress(subprocess.CalledProcessError):
            _run("ip", "link", "del", self._bridge)

    def _add(self, name: str, link: str, address: str) -> None:
        _run("ip", "netns", "add", name)
        if self._delays is None:
            _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        else:
            _run("ip", "link", "set", f"{link}-", "netns", name, "name", "eth0")
        _run("ip", "link", "set", link, "master", self._bridge, "up")
        _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run("ip", "-n", name, "link", "set", device, "up")
        if self._mbit:
            shape = ("tbf", "rate", f"{self._mbit}mbit", "burst", "64kb", "latency", "1s")
            _run("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", *shape)

    def _start_delays(self) -> None:
        links = [self._link(host) for host in range(1, self.count + 1)]
        words = ["-m", "kit.programs.delay_program", str(self._delay_ms / 1e3), str(self._loss), *links]
        self._delays = subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._delays.stdout is not None and self._delays.stdout.readline(), "no devices can be made"

    def _link(self, host: int) -> str:
        return f"mpv{os.getpid()}-{host}"

    def _sent(self, host: int) -> int:
        shown = _run("ip", "-n", f"{self._name}{host}", "-s", "-j", "link", "show", "eth0")
        return int(json.loads(shown)[0]["stats64"]["tx"]["bytes"])


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout
