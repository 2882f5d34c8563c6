"""Sinks that reach out of the pond: those by libraries that need not be there are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from millpond.errors import SetupError, UnsupportedQuery
from millpond.log.follower import Follower
from millpond.model.endpoints import FOREACH
from millpond.model.selection import AnyQuery
from millpond.runtime.followers.cursors import cursor_path
from millpond.runtime.followers.folder import local_folder
from millpond.runtime.followers.foreach import Foreach, ForeachSink
from millpond.runtime.followers.rows import RowsReader

OUTSIDE = ("kafka", "postgres", "webhook", "delta", FOREACH)
"""Formats of these sinks. Each has a thread of its own, for a server that is away would keep all others waiting."""


def outside_sink(
    query: AnyQuery, pond_id: str, rows: RowsReader, cursors: Path, since: int, functions: Mapping[str, Foreach]
) -> Follower:
    """The follower that carries a query's rows to a sink of one of these formats; see `sinks.sink_follower`.

    SetupError: its library is missing. QueryTypeError, UnsupportedQuery: the sink does not fit.
    """
    sink, kind = query.sink, query.sink.format
    cursor = cursor_path(cursors, query.name, kind)
    if kind == FOREACH:
        return ForeachSink(query.name, rows, cursor, functions.get(query.name), since)
    with _needed("serve" if kind == "webhook" else kind):
        if kind == "kafka":
            from millpond.runtime.followers.kafka import KafkaSink

            return KafkaSink(query, pond_id, rows, cursors, since)
        if kind == "postgres":
            from millpond.runtime.followers.postgres import PostgresSink

            return PostgresSink(query, pond_id, rows, since)
        if kind == "webhook":
            from millpond.runtime.followers.webhook import WebhookSink

            return WebhookSink(query.name, pond_id, sink, rows, cursor, since)
        if kind != "delta":
            raise AssertionError(f"No follower carries rows to a sink of the format {kind}.")
        from millpond.runtime.followers.delta import DeltaSink

    if not sink.path:
        raise UnsupportedQuery(f"The delta sink of {query.name} has no path.", "Give it a folder.")
    return DeltaSink(query, pond_id, local_folder(sink.path), rows, cursor, since)


@contextmanager
def _needed(extra: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise SetupError(
            f"The library for {extra} is missing: {error}.", f"Run `pip install 'millpond[{extra}]'`."
        ) from error
