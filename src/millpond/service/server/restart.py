"""Starts a service anew in its own process: the same command and process id, with a new Java machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

VARIABLE = "MILLPOND_RESTARTED"


class Restarts(NamedTuple):
    """How often the service was started anew since its last epoch, and at which port it answered."""

    times: int = 0
    port: int = 0

    @classmethod
    def told(cls, environment: Mapping[str, str] = os.environ) -> Restarts:
        """What the process before this one told; without one there were none.

        >>> Restarts.told({"MILLPOND_RESTARTED": "2:40713"}), Restarts.told({"MILLPOND_RESTARTED": "x"})
        (Restarts(times=2, port=40713), Restarts(times=0, port=0))
        """
        times, _, port = environment.get(VARIABLE, "").partition(":")
        return cls(int(times), int(port)) if times.isdecimal() and port.isdecimal() else cls()


class RestartNeeded(Exception):
    """Leaves the supervisor when the same process cannot go on, and a new one may."""


def restart(restarts: Restarts) -> NoReturn:
    """Replace this process by one of the same command; whatever must be cleaned up was."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    told = {VARIABLE: f"{restarts.times}:{restarts.port}"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **told})
