"""Serves the PostgreSQL protocol for a pond in a process of its own, which `endpoint.py` starts.

Statements of users run here and not beside the driver, so that one that needs too much memory, or ends the process, has
no effect on the pond. The process ends when its standard input does, which the process that started it keeps open.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from time import sleep

import msgspec

from millpond.control.commands.command_log import write_json
from millpond.errors import BusyError
from millpond.service.postgres.connection import Connection, Entrance
from millpond.service.postgres.pond_tables import PondTables
from millpond.service.postgres.session import Session
from millpond.service.postgres.task import Task
from millpond.service.server.connection_limits import CountingSocket, origin_of
from millpond.service.server.guard import DEFAULT, GUESS_COSTS, Rates

MEMORY_BYTES = 4 << 30
"""The most memory that the process may allocate."""

CONNECTIONS = 32
"""The most connections with the token."""

_STACK_BYTES = 1 << 20
"""The stack of a connection's thread: `MEMORY_BYTES` includes the stacks of all clients without the token too."""

_PAUSE_SECONDS = 0.1
"""The pause after a connection could not be accepted, for example because too many files are open."""

_NICE = 10
"""The lower priority of statements, so that epochs come first."""

_log = logging.getLogger("millpond.service")


class PostgresServer:
    """Accepts connections, each in a thread of its own."""

    def __init__(self, task: Task, tables: PondTables, listener: CountingSocket) -> None:
        tls = None
        if task.certificate is not None:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(task.certificate, task.key)
        self._tables, self._listener = tables, listener
        self._rates, self._lock = Rates(DEFAULT), threading.Lock()
        self._open: dict[bytes, Connection] = {}
        self._entrance = Entrance(task.token, tls, task.loopback, self._admit, self._fine, self._trust)

    def serve(self) -> None:
        """Serve until the listening socket is closed."""
        self._listener.listen()
        while True:
            try:
                client, peer = self._listener.accept()
            except OSError as error:
                if self._listener.fileno() < 0:
                    return
                _log.warning("a PostgreSQL connection was not accepted: %s", error)
                sleep(_PAUSE_SECONDS)
                continue
            try:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                connection = Connection(client, (peer[0], peer[1]), self._entrance, self._session, self._cancel)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except (OSError, RuntimeError, MemoryError):  # the client has gone, or there is no memory for a thread
                client.close()

    def _serve(self, connection: Connection) -> None:
        with self._lock:
            self._open[connection.key] = connection
        try:
            connection.serve()
        finally:
            with self._lock:
                del self._open[connection.key]

    def _session(self) -> Session:
        with self._lock:
            sessions = sum(one.session is not None for one in self._open.values())
        if sessions >= CONNECTIONS:
            raise BusyError(f"There are {CONNECTIONS} connections already.", "Close one of them.")
        return Session(self._tables)

    def _cancel(self, key: bytes) -> None:
        with self._lock:
            found = self._open.get(key)
        if found is not None:
            found.interrupt()

    def _admit(self, address: str) -> bool:
        with self._lock:
            return self._rates.take(origin_of(address))

    def _fine(self, address: str) -> None:
        with self._lock:
            self._rates.fine(origin_of(address), GUESS_COSTS)

    def _trust(self, client: tuple[str, int]) -> None:
        self._listener.unauthenticated.trust(client)


def main(line: bytes, wait: Callable[[], object]) -> None:
    """Serve until `wait` returns; `line`: the task."""
    task = msgspec.json.decode(line, type=Task)
    if task.json_log:
        write_json()
    with suppress(ValueError, OSError):  # the limit of the process is lower
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    os.nice(_NICE)
    threading.stack_size(_STACK_BYTES)
    with CountingSocket.of(socket.socket(fileno=task.listener)) as listener:
        server = PostgresServer(task, PondTables(task.folder, task.store), listener)
        threading.Thread(target=server.serve, daemon=True).start()
        wait()


if __name__ == "__main__":
    main(sys.stdin.buffer.readline(), sys.stdin.buffer.read)
    os._exit(0)  # connections in other threads end with the process
