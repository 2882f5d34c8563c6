"""Restarts a service in its own process: the same command and process id, with a new JVM."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

VARIABLE = "MILLPOND_RESTARTED"


class Restarts(NamedTuple):
    """How often the service was restarted since its last epoch, and the port at which it listened."""

    times: int = 0
    port: int = 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Restarts:
        """The value that the process had before its restart; without a restart, zero restarts.

        >>> Restarts.from_environment({"MILLPOND_RESTARTED": "2:40713"})
        Restarts(times=2, port=40713)
        >>> Restarts.from_environment({"MILLPOND_RESTARTED": "x"})
        Restarts(times=0, port=0)
        """
        times, _, port = environment.get(VARIABLE, "").partition(":")
        return cls(int(times), int(port)) if times.isdecimal() and port.isdecimal() else cls()


class RestartNeeded(Exception):
    """Raised by the supervisor when this process cannot continue, but a restarted one may."""


def restart(restarts: Restarts) -> NoReturn:
    """Replace this process by a new one with the same command; the caller has cleaned up before."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    variables = {VARIABLE: f"{restarts.times}:{restarts.port}"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **variables})
