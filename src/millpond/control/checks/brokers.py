"""Checks before the first epoch that a broker of each Kafka stream can be reached; Spark alone waits in silence."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator

from millpond.connections import connection
from millpond.control.checks.input_files import options_of
from millpond.errors import SourceError
from millpond.model.endpoints import source_kind
from millpond.model.stream import Stream

_SECONDS = 3.0


def closed_brokers(streams: Iterable[Stream]) -> Iterator[SourceError]:
    """A note for each connection of which no server accepts TCP connections, with the streams that it is for.

    Raises:
        SetupError: a connection does not exist.
    """
    names: dict[str, list[str]] = {}
    for stream in streams:
        if stream.source is not None and source_kind(stream.source.format).topics:
            servers = connection(options_of(stream).get("connection")).servers
            names.setdefault(servers, []).append(stream.name)
    for servers, readers in names.items():
        failures = list[str]()
        for server in servers.split(","):
            failure = _failure(server)
            if failure is None:
                break
            failures.append(failure)
        else:
            yield SourceError(
                f"No broker of {', '.join(sorted(readers))} can be reached: {', '.join(failures)}.",
                "Start the broker, or mend `servers` in the file of connections. Spark tries again meanwhile.",
            )


def _failure(server: str) -> str | None:
    """Why the server cannot be reached, with its address; None: it can."""
    host, _, port = server.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS).close()
    except (OSError, OverflowError, ValueError) as error:
        return f"{server} ({getattr(error, 'strerror', None) or error})"
    return None
