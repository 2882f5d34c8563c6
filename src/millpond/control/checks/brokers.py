"""Checks that a broker of each Kafka stream answers, before the first epoch and while Spark waits for offsets.

Spark alone waits in silence. A broker also counts as closed if it accepts a connection and does not answer, because
proxies and load balancers accept connections to servers that are down.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from millpond.clock import Clock, lap_us
from millpond.connections import connection
from millpond.control.checks.input_files import options_of
from millpond.errors import SetupError, SourceError
from millpond.model.endpoints import source_kind
from millpond.model.stream import Stream

WAITS_US = 8_000_000
"""How long Spark may wait for the offsets of its sources before their brokers are checked."""

_SECONDS = 3.0
_ALL_SECONDS = 6.0
_API_VERSIONS = bytes.fromhex("0000000a 0012 0000 4d696c6c ffff")
"""Request 18 of Kafka's protocol, version 0: a broker answers it before a client signs in."""

_NUMBER = _API_VERSIONS[8:12]
"""The number of the request, which the answer repeats after its length."""


def unreachable_brokers(streams: Iterable[Stream]) -> Iterator[SourceError]:
    """A note for each connection of which no server answers, with the streams that it is for.

    Raises:
        SetupError: a connection does not exist.
    """
    readers: dict[tuple[str | None, str, str], list[str]] = {}
    for stream in streams:
        if stream.source is not None and source_kind(stream.source.format).topics:
            name = options_of(stream).get("connection")
            found = connection(name)
            readers.setdefault((name, found.servers, found.security), []).append(stream.name)
    for (name, servers, security), names in readers.items():
        failures = list[str]()
        several = servers.split(",")
        seconds = min(_SECONDS, _ALL_SECONDS / len(several))
        for server in several:
            failure = _failure(server, security.endswith("ssl"), seconds)
            if failure is None:
                break
            failures.append(failure)
        else:
            of = "" if name is None else f" (connection {name})"
            yield SourceError(
                f"No broker of {', '.join(sorted(names))}{of} can be reached: {', '.join(failures)}.",
                "Start the broker, or mend `servers` in the file of connections. Spark keeps trying meanwhile; "
                "Ctrl-C or SIGTERM ends the process.",
            )


def _failure(server: str, tls: bool, seconds: float) -> str | None:
    """Why the server cannot be reached, with its address; None: it can."""
    host, _, port = server.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), seconds) as plain:
            if tls:
                _shake_hands(plain)
            else:
                plain.sendall(_API_VERSIONS)
                answer = plain.recv(8, socket.MSG_WAITALL)
                if answer[4:] != _NUMBER:
                    return f"{server} ({'its answer is not that of a broker' if answer else 'it closes connections'})"
    except TimeoutError:
        return f"{server} (no answer in {seconds:g} s)"
    except (OSError, OverflowError, ValueError) as error:
        return f"{server} ({getattr(error, 'strerror', None) or error})"
    return None


def _shake_hands(plain: socket.socket) -> None:
    """Begin TLS without a check of certificates, as nothing is sent; a refusal is an answer too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        context.wrap_socket(plain).close()
    except ssl.SSLEOFError as error:
        raise OSError("it closes connections") from error
    except ssl.SSLError as error:
        if error.reason == "WRONG_VERSION_NUMBER":
            raise OSError("it does not speak TLS") from error


class BrokerWatch:
    """Checks the brokers of `streams` while Spark waits long for the offsets of its sources; called each second.

    `found` has the notes of the newest check, until Spark has the offsets.
    """

    def __init__(self, streams: Callable[[], Iterable[Stream]], clock: Clock = lap_us) -> None:
        self._streams, self._clock = streams, clock
        self._since: int | None = None
        self.found: Sequence[SourceError] = ()

    def observe(self, is_waiting: bool) -> Sequence[SourceError]:
        """Note whether Spark waits for offsets now; returns the notes of this call, once per wait."""
        if not is_waiting:
            self._since, self.found = None, ()
        elif self._since is None:
            self._since = self._clock()
        elif not self.found and self._clock() - self._since > WAITS_US:
            with suppress(SetupError):
                self.found = (*unreachable_brokers(self._streams()),)
            self._since = self._clock()
            return self.found
        return ()
