"""Servers that tests start on loopback ports: programs that stop with the process that started them."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from os import kill as send_signal
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

SECONDS = 60.0
"""The default time to wait for a condition."""

_WATCHED = '"$@" >{out} & child=$!; echo $child; cat >/dev/null; kill -9 $child; wait $child 2>/dev/null'
"""The shell kills the server when its own input ends, which is when the test process ends for any reason."""

T = TypeVar("T", bound="Watched")


class Host(NamedTuple):
    """Where a server runs: its address, and the words before a command that is to run there."""

    address: str
    inside: tuple[str, ...] = ()


LOOPBACK = Host("127.0.0.1")
"""The machine itself, without a network."""


def free_ports(count: int) -> list[int]:
    """Unused loopback ports."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports


def until(condition: Any, what: str, seconds: float = SECONDS) -> None:
    """Wait until a condition holds; AssertionError if it does not hold in time."""
    deadline = time.monotonic() + seconds
    began = time.monotonic()
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"{what}: not within {seconds} seconds"
        # A slow condition is checked for at most a fifth of the time, to leave the core to the server.
        time.sleep(max(0.02, 4 * (now - began)))
        began = time.monotonic()


class Watched:
    """A program that can be started, paused and killed; a context manager that starts it, if necessary, and kills it.

    `out`: the target of its output, in shell syntax. `patience`: how long its end may take, in seconds.
    """

    out = "/dev/null"
    patience = SECONDS

    def __init__(self) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def start(self: T) -> T:
        """Start the program and wait until it answers."""
        raise NotImplementedError

    def launch(self, command: list[str], folder: Path | None = None) -> None:
        """Start the process, in `folder`."""
        words = ["sh", "-c", _WATCHED.format(out=self.out), "sh", *command]
        self._shell = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder)
        assert self._shell.stdout is not None
        self.pid = int(self._shell.stdout.readline())

    def kill(self) -> None:
        """Kill the program; only its stored data remain."""
        shell, self._shell = self._shell, None
        if shell is not None:
            assert shell.stdin is not None and shell.stdout is not None
            shell.stdin.close()
            shell.wait(self.patience)
            shell.stdout.close()

    def pause(self) -> None:
        """Suspend the program until `resume`."""
        send_signal(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the program."""
        send_signal(self.pid, signal.SIGCONT)

    def __enter__(self: T) -> T:
        return self if self._shell is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
