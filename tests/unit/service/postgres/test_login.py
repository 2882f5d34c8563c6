"""Clients without the token take little from those with it, and errors of a connection end only that connection."""

from __future__ import annotations

import errno
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millpond.service.postgres import connection, program
from millpond.service.postgres.messages import PROTOCOL, TLS
from millpond.service.postgres.pond_tables import PondTables
from millpond.service.postgres.program import PostgresServer
from millpond.service.postgres.task import Task
from millpond.service.server.connection_limits import CountingSocket

TOKEN = "a-token-of-some-length"


class CrowdedSocket(CountingSocket):
    """A listening socket whose process has too many open files for a while."""

    refusals = 0

    def accept(self) -> tuple[socket.socket, Any]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


class Served:
    """The server of the endpoint in a thread of this process; it has no pond."""

    def __init__(self, folder: Path) -> None:
        self.listener = CrowdedSocket.of(socket.create_server(("127.0.0.1", 0)))
        assert isinstance(self.listener, CrowdedSocket)
        self.port = self.listener.getsockname()[1]
        task = Task(str(folder), "lmdb", TOKEN, self.listener.fileno(), True)
        self.server = PostgresServer(task, PondTables(folder, "lmdb"), self.listener)
        self.thread = threading.Thread(target=self.server.serve, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def login(self, password: str = TOKEN) -> psycopg.Connection[Any]:
        words = {"host": "127.0.0.1", "port": self.port, "user": "ann", "password": password, "dbname": "pond"}
        return psycopg.connect(**words, sslmode="disable", gssencmode="disable")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    with made.listener:
        made.listener.shutdown(socket.SHUT_RDWR)
    made.thread.join(60)
    assert not made.thread.is_alive()


def startup() -> bytes:
    body = struct.pack(">i", PROTOCOL) + b"user\0ann\0\0"
    return struct.pack(">i", len(body) + 4) + body


def test_too_many_open_files_do_not_end_the_accepting(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_PAUSE_SECONDS", 0.01)
    served.listener.refusals = 2
    served.start()
    with served.raw() as client:
        client.sendall(startup())
        assert client.recv(1) == b"R"


def test_a_thread_that_cannot_start_costs_one_connection(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.start()
    start, failures = threading.Thread.start, [RuntimeError("can't start new thread")]

    def starting(thread: threading.Thread) -> None:
        if failures:
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    with served.raw() as first, served.raw() as second:
        assert first.recv(1) == b""
        second.sendall(startup())
        assert second.recv(1) == b"R"


def test_wrong_passwords_do_not_keep_the_right_one_out(served: Served) -> None:
    served.start()
    refusals = set()
    for _ in range(30):
        with pytest.raises(psycopg.OperationalError) as found:
            served.login("wrong")
        refusals.add("MP-ACCESS" if "MP-ACCESS" in str(found.value) else "MP-BUSY")
    assert refusals == {"MP-ACCESS", "MP-BUSY"}
    with served.login() as client:
        assert client.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        (one,) = served.server._open.values()
        assert one._client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), "a client that vanished is noticed"


def test_encryption_is_negotiated_a_few_times_only(served: Served) -> None:
    served.start()
    with served.raw() as client:
        answers = b""
        for _ in range(3):
            client.sendall(struct.pack(">ii", 8, TLS))
            answers += client.recv(1)
        assert answers == b"NNN"
        assert b"no start-up message" in client.recv(1000)


def test_a_login_has_one_deadline(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LOGIN_SECONDS", 0.2)
    served.start()
    with served.raw() as client, pytest.raises(OSError):
        client.sendall(struct.pack(">i", 5000))
        for _ in range(4000):
            client.sendall(b"\0")
            time.sleep(0.02)
