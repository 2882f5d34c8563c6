"""Keeps PySpark from also printing the errors that it raises."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.logger import PySparkLogger

_gate = threading.Lock()
_within = 0
_before: list[tuple[PySparkLogger, bool]] = []
"""The state of the loggers when the first of the current `unlogged` contexts was entered."""


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


def _loggers() -> list[PySparkLogger]:
    return [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
