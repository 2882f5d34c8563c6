"""Keeps PySpark from also printing the errors that it raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.logger import PySparkLogger


def unlog() -> None:
    """Keep PySpark from printing each error of a query as a page of JSON beside raising it, from here on."""
    for logger in _loggers():
        logger.disabled = True


@contextmanager
def unlogged() -> Iterator[None]:
    """The same for a while, in a session that is not ours."""
    before = [(logger, logger.disabled) for logger in _loggers()]
    unlog()
    try:
        yield
    finally:
        for logger, disabled in before:
            logger.disabled = disabled


def _loggers() -> list[PySparkLogger]:
    return [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
