"""Creates the sinks that write outside the pond; their optional client libraries are imported on first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from millpond.errors import SetupError, UnsupportedQuery
from millpond.followers.cursors import cursor_path
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.foreach import Foreach, ForeachSink
from millpond.local_path import local_path
from millpond.log.follower import Follower
from millpond.model.endpoints import FOREACH
from millpond.model.selection import AnyQuery
from millpond.version import install

OUTSIDE = ("kafka", "postgres", "webhook", "delta", FOREACH)
"""The formats of these sinks. Each has its own thread, because an unavailable server would block all others."""


def outside_sink(
    query: AnyQuery, pond_id: str, rows: RowsReader, cursors: Path, since: int, functions: Mapping[str, Foreach]
) -> Follower:
    """The follower that writes a query's rows to a sink of one of these formats; see `make_sink.sink_follower`.

    SetupError: its library is missing. QueryTypeError, UnsupportedQuery: the sink does not fit.
    """
    sink, kind = query.sink, query.sink.format
    cursor = cursor_path(cursors, query.name, kind)
    if kind == FOREACH:
        return ForeachSink(query.name, rows, cursor, functions.get(query.name), since)
    with _needed("serve" if kind == "webhook" else kind):
        if kind == "kafka":
            from millpond.followers.sinks.kafka import KafkaSink

            return KafkaSink(query, pond_id, rows, cursors, since)
        if kind == "postgres":
            from millpond.followers.sinks.postgres import PostgresSink

            return PostgresSink(query, pond_id, rows, since)
        if kind == "webhook":
            from millpond.followers.sinks.webhook import WebhookSink

            return WebhookSink(query.name, pond_id, sink, rows, cursor, since)
        if kind != "delta":
            raise ValueError(f"No sink writes the format {kind!r}.")
        from millpond.followers.sinks.delta_lake import DeltaSink

    if not sink.path:
        raise UnsupportedQuery(f"The delta sink of {query.name} has no path.", "Give it a folder.")
    return DeltaSink(query, pond_id, local_path(sink.path, "The sink's path"), rows, cursor, since)


@contextmanager
def _needed(extra: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise SetupError(
            f"The library for {extra} is missing: {error}.", f"Run `{install(extra)}`."
        ) from error
