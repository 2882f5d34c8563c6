"""Servers that tests start on the loopback: programs that end with the process that made them."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from os import kill as send_signal
from pathlib import Path
from typing import Any, TypeVar

SECONDS = 60.0
"""How long is waited for a condition unless told."""

_WATCHED = '"$@" >{out} & child=$!; echo $child; cat >/dev/null; kill -9 $child; wait $child 2>/dev/null'
"""The shell ends the server when its own input ends, that is when the test is over, however it ended."""

T = TypeVar("T", bound="Watched")


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens at."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports


def until(condition: Any, what: str, seconds: float = SECONDS) -> None:
    """Wait until a condition holds; AssertionError when it does not in time."""
    deadline = time.monotonic() + seconds
    began = time.monotonic()
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"{what}: not within {seconds} seconds"
        # A condition that takes long to look at leaves four fifths of a core to what it waits for.
        time.sleep(max(0.02, 4 * (now - began)))
        began = time.monotonic()


class Watched:
    """A program that may be started, paused and killed; a context manager that starts it, if need be, and kills it.

    What it prints goes to `out`, in words of the shell; `patience` is how long its end may take, in seconds.
    """

    out = "/dev/null"
    patience = SECONDS

    def __init__(self) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def start(self: T) -> T:
        """Start it, and wait until it answers."""
        raise NotImplementedError

    def launch(self, command: list[str], folder: Path | None = None) -> None:
        """Start its process, in `folder`."""
        words = ["sh", "-c", _WATCHED.format(out=self.out), "sh", *command]
        self._shell = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder)
        assert self._shell.stdout is not None
        self.pid = int(self._shell.stdout.readline())

    def kill(self) -> None:
        """End it at once; only what it has stored stays."""
        shell, self._shell = self._shell, None
        if shell is not None:
            assert shell.stdin is not None and shell.stdout is not None
            shell.stdin.close()
            shell.wait(self.patience)
            shell.stdout.close()

    def pause(self) -> None:
        """Let it answer nobody, until `resume`."""
        send_signal(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        send_signal(self.pid, signal.SIGCONT)

    def __enter__(self: T) -> T:
        return self if self._shell is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
