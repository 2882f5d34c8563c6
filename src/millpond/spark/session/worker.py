"""Wraps each task of a Spark worker: error codes, garbage collection, and a silent end after a lost JVM."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from millpond.errors import MillpondError, of_machine
from millpond.gc_freeze import pass_by_what_is_loaded

_freezes_left = 3
"""How many further tasks freeze what is loaded: gathering and folding tasks load different modules, so the first three
tasks do."""


@contextmanager
def worker_task() -> Iterator[None]:
    """Wraps one task of a worker: error codes, garbage collection, and no output after a lost connection.

    It gives failures of a full disk or memory a code, because only the text of an error reaches the driver. It excludes
    what the first tasks load from garbage collection, and it suppresses output if the JVM has closed the connection.
    """
    _keep_what_is_loaded()
    traceback.print_exc = _printed
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


def _keep_what_is_loaded() -> None:
    """Exclude what the first tasks load from collections.

    Spark's worker collects garbage after each of an epoch's four tasks (`pyspark/daemon.py`).
    """
    global _freezes_left
    if _freezes_left:
        _freezes_left -= 1
        pass_by_what_is_loaded()


_print = traceback.print_exc


def _printed(*values: Any, **how: Any) -> None:
    """Replaces `traceback.print_exc` in a worker, and prints nothing for a lost connection.

    If a task was cancelled or its JVM has ended, Spark's daemon would otherwise print that it could not send the
    remaining results, for which nobody waits.
    """
    if not isinstance(sys.exc_info()[1], ConnectionError):
        _print(*values, **how)
