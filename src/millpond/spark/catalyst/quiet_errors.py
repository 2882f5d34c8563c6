"""Keeps PySpark from printing the errors that it raises, and from noting where each column is made.

For errors of frames, PySpark notes in the JVM which line of a program calls a method of a column. Each of these methods
makes five more calls to the JVM for this. The frames that Millpond makes itself have no line that a user wrote.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import utils
from pyspark.logger import PySparkLogger

_gate = threading.Lock()
_within = 0
_before: list[tuple[PySparkLogger, bool]] = []
"""The state of the loggers when the first of the current `unlogged` contexts was entered."""
_calls: Any = utils
_unnoted = 0
_noted: bool | None = None
"""Whether places were noted when the first of the current `without_call_sites` contexts was entered."""


def unlog() -> None:
    """Permanently keep PySpark from printing each error of a query as a page of JSON in addition to raising it."""
    for logger in _loggers():
        logger.disabled = True


@contextmanager
def unlogged() -> Iterator[None]:
    """The same within a context, for a session that Millpond does not own."""
    global _within, _before
    with _gate:
        _within += 1
        if _within == 1:
            _before = [(logger, logger.disabled) for logger in _loggers()]
        unlog()
    try:
        yield
    finally:
        with _gate:
            _within -= 1
            if not _within:
                for logger, disabled in _before:
                    logger.disabled = disabled


@contextmanager
def without_call_sites() -> Iterator[None]:
    """Within, the places where columns are made are not noted."""
    global _unnoted, _noted
    with _gate:
        _unnoted += 1
        if _unnoted == 1:
            _noted, _calls._enable_debugging_cache = _calls._enable_debugging_cache, False
    try:
        yield
    finally:
        with _gate:
            _unnoted -= 1
            if not _unnoted:
                _calls._enable_debugging_cache = _noted


def _loggers() -> list[PySparkLogger]:
    return [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
