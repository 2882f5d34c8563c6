"""Wraps each task of a Spark worker: version check, error codes, garbage collection, a silent end after a lost JVM."""

from __future__ import annotations

import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from millpond.errors import MillpondError, SetupError, of_machine
from millpond.gc_freeze import freeze_loaded_objects
from millpond.version import VERSION

SAME_VERSION_CURE = (
    "Install the driver's version where Spark's workers run, or send them the driver's environment (spark.archives)."
)

_freezes_left = 3
"""How many further tasks freeze what is loaded: gathering and folding tasks load different modules, so the first three
tasks do."""


class VersionChecked:
    """Base class of the functions that tasks run: a worker with another version of Millpond refuses to load them.

    The version comes first in the pickled state, so it is checked before anything is loaded that may have changed.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {"version": _Version()} | self.__dict__


class _Version:
    def __reduce__(self) -> tuple[Any, ...]:
        return check_version, (VERSION,)


def check_version(driver: str) -> str:
    """Returns the driver's version, which must be the version of this process.

    Raises:
        SetupError: it is not.
    """
    if driver != VERSION:
        error = SetupError(
            f"A Python worker on {socket.gethostname()} has Millpond {VERSION}, and the driver has {driver}.",
            SAME_VERSION_CURE,
        )
        error.flattened = True
        raise error
    return driver


@contextmanager
def worker_task() -> Iterator[None]:
    """Wraps one task of a worker: error codes, garbage collection, and no output after a lost connection.

    It gives failures of a full disk or memory a code, because only the text of an error reaches the driver. It excludes
    what the first tasks load from garbage collection, and it suppresses output if the JVM has closed the connection.
    """
    _freeze_loaded_objects()
    hide_lost_connections()
    try:
        yield
    except MillpondError as error:
        error.flattened = True
        raise
    except (OSError, MemoryError) as error:
        known = of_machine(error)
        if known is None:
            raise
        known.flattened = True
        raise known from error


def _freeze_loaded_objects() -> None:
    """Exclude what the first tasks load from collections.

    Spark's worker collects garbage after each of an epoch's four tasks (`pyspark/daemon.py`).
    """
    global _freezes_left
    if _freezes_left:
        _freezes_left -= 1
        freeze_loaded_objects()


def hide_lost_connections() -> None:
    """Print no traceback in this process, and in those that it forks, for an error of a lost connection to the JVM."""
    traceback.print_exc, sys.excepthook = _printed, _uncaught


_print = traceback.print_exc


def _printed(*values: Any, **how: Any) -> None:
    """Replaces `traceback.print_exc` in a worker, and prints nothing for a lost connection.

    If a task was cancelled or its JVM has ended, Spark's daemon would otherwise print that it could not send the
    remaining results, for which nobody waits.
    """
    if not isinstance(sys.exc_info()[1], ConnectionError):
        _print(*values, **how)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Replaces `sys.excepthook`, likewise: the process that plans a source in Python writes to a closed connection."""
    if not issubclass(kind, ConnectionError):
        sys.__excepthook__(kind, error, trace)
