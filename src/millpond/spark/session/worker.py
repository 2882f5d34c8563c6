"""What a Spark worker runs around each task: errors with codes, garbage collection, a quiet end."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from millpond.errors import MillpondError, of_machine
from millpond.gc_freeze import pass_by_what_is_loaded

_loading = 3
"""Tasks of this process after which it has loaded all that it needs: one gathers, another folds."""


@contextmanager
def with_code() -> Iterator[None]:
    """Around each task of a worker: say with a code that this machine has no room or no memory, for only the text of an
    error reaches the driver; keep what the first tasks load, and end silently where the JVM has hung up.
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
    """Spark's worker collects garbage after each task (`pyspark/daemon.py`), of which an epoch has four."""
    global _loading
    if _loading:
        _loading -= 1
        pass_by_what_is_loaded()


_print = traceback.print_exc


def _printed(*asked: Any, **how: Any) -> None:
    """What `traceback.print_exc` does in a worker: of a task that was cancelled, or whose JVM has ended, Spark's daemon
    would print that it could not send the rest, for which nobody waits.
    """
    if not isinstance(sys.exc_info()[1], ConnectionError):
        _print(*asked, **how)
