"""Formats the log of a command: as text, or as one JSON object per line with `--log-format json`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from millpond.clock import utc
from millpond.runtime.task.counters import WHOLE_POND

if TYPE_CHECKING:
    from millpond.spark.driver.epochs import Epoch

LEVELS = {"millpond": logging.INFO, "uvicorn.error": logging.WARNING}
"""The loggers whose records are written, from which level on."""

_TEXT_LEVELS = {"millpond.service": logging.INFO, "millpond.pond": logging.INFO, "uvicorn.error": logging.WARNING}
_log = logging.getLogger("millpond.pond")


class JsonLines(logging.Formatter):
    """A record as one line: time (UTC), level, logger, message, the attribute `fields` if any, and the trace."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line = {
            "time": utc(round(record.created * 1e6), 3).replace(" ", "T"), "level": record.levelname,
            "logger": record.name, "message": record.getMessage(), **getattr(record, "fields", {}),
        }  # fmt: skip
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def write_json() -> None:
    """From now on, write records to standard error as JSON."""
    if not is_json():
        _write(JsonLines(), LEVELS)


class LogLine(Protocol):
    """Logs a line, of level INFO unless another one is given."""

    def __call__(self, line: str, level: int = logging.INFO, /) -> None:
        """Log it."""


def log_writer(name: str) -> LogLine:
    """A function that logs a line for the logger `name`; from now on, records are written to standard error.

    They are text with time and level, unless they are written as JSON.
    """
    if not is_json():
        _write(TextLines(), _TEXT_LEVELS)

    def write(line: str, level: int = logging.INFO, /) -> None:
        logging.getLogger(name).log(level, "%s", line)

    return write


def _write(formatter: logging.Formatter, levels: Mapping[str, int]) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
        logging.getLogger(name).addHandler(handler)


def is_json() -> bool:
    """Whether `write_json` was called."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger("millpond").handlers)


def line_writer(name: str, write: Callable[[str], None]) -> Callable[[str], None]:
    """A function that logs a line for the logger `name` as JSON, or else writes it with `write`."""
    return partial(logging.getLogger(name).info, "%s") if is_json() else write


class TextLines(logging.Formatter):
    """A record as a line of text, after its time (UTC) and its level."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, and its trace."""
        return f"{utc(round(record.created * 1e6), 0)} {record.levelname} {super().format(record)}"


def log_epoch(epoch: Epoch) -> None:
    """Log a committed epoch, if records are written as JSON."""
    if not is_json():
        return
    counts = epoch.record.counts
    rows = {name: found["rows"] for name, found in counts.items() if found.get("rows")}
    losses = {name: sum(found.get(name, 0) for found in counts.values()) for name in ("late", "dead")}
    fields = {
        "epoch": epoch.record.n, "events": counts.get(WHOLE_POND, {}).get("events", 0), "rows": rows,
        "seconds": round(epoch.seconds, 3), **losses,
    }  # fmt: skip
    _log.info("Epoch %d is committed.", epoch.record.n, extra={"fields": fields})
