"""Sources and sinks as values; `spark/` and `runtime/` implement them."""

from __future__ import annotations

import msgspec

KEYED = "redis"
"""The format of a sink that writes rows under keys of their own in Redis."""

FOREACH = "foreach"
"""The format of a sink that hands rows to a function of this process."""

SINK_OPTIONS: dict[str, tuple[str, ...]] = {
    KEYED: ("key", "type", "columns", "wrong.type", "address"),
    "kafka": ("topic", "connection", "transactions"),
    "postgres": ("table", "connection", "key"),
    "webhook": ("connection", "rows"),
}
"""The options of sinks that a pond file may give, by format."""

SINKS = ("parquet", "json", "csv", "console", "noop", "memory", FOREACH, "delta", *SINK_OPTIONS)
"""Formats a query's rows can be written in by this version."""

IN_PROCESS = ("memory", FOREACH)
"""Formats of sinks that only the process that runs a pond can give."""


class Source(msgspec.Struct, frozen=True):
    """A Spark streaming source: `format` and reader options, sorted by name."""

    format: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def meaning(self) -> Source:
        """The source without what does not change which events there are: how it is reached and how fast it is read."""
        if self.format != "kafka":
            return self
        kept = tuple(option for option in self.options if option[0] not in _MANNERS)
        return Source(self.format, kept)


_MANNERS = ("connection", "maxOffsetsPerTrigger", "epochTarget", "failOnDataLoss")


class Sink(msgspec.Struct, frozen=True):
    """Where a query's rows go: `format`, and `path` for formats that are folders. No option may be a secret."""

    format: str = "noop"
    path: str | None = None
    options: tuple[tuple[str, str], ...] = ()
