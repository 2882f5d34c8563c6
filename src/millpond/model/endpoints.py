"""Sources and sinks as values; `spark/` and `runtime/` implement them."""

from __future__ import annotations

import msgspec

KEYED = "redis"
"""The format of a sink that writes each row under its own key in Redis."""

FOREACH = "foreach"
"""The format of a sink that passes rows to a function of this process."""

SINK_OPTIONS: dict[str, tuple[str, ...]] = {
    KEYED: ("key", "type", "columns", "wrong.type", "address"),
    "kafka": ("topic", "connection", "transactions"),
    "postgres": ("table", "connection", "key"),
    "webhook": ("connection", "rows"),
}
"""The sink options that a pond file may set, by format."""

SINKS = ("parquet", "json", "csv", "console", "noop", "memory", FOREACH, "delta", *SINK_OPTIONS)
"""The supported sink formats."""

IN_PROCESS = ("memory", FOREACH)
"""Sink formats that only the process that runs a pond can provide."""


class Source(msgspec.Struct, frozen=True):
    """A Spark streaming source: `format` and reader options, sorted by name."""

    format: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def meaning(self) -> Source:
        """The source without options that do not change its events: how it is reached and how fast it is read."""
        if self.format != "kafka":
            return self
        kept = tuple(option for option in self.options if option[0] not in _MANNERS)
        return Source(self.format, kept)


_MANNERS = ("connection", "maxOffsetsPerTrigger", "epochTarget", "failOnDataLoss")


class Sink(msgspec.Struct, frozen=True):
    """Where a query's rows are written: `format`, and `path` if the format is a folder. No option may be a secret."""

    format: str = "noop"
    path: str | None = None
    options: tuple[tuple[str, str], ...] = ()
