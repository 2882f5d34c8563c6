"""Starts the process of the PostgreSQL endpoint beside a service, and starts it again when it ends."""

from __future__ import annotations

import errno
import importlib.util
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep

import msgspec

from millpond.connections import is_loopback
from millpond.control.commands.command_log import is_json
from millpond.errors import SetupError
from millpond.log.locations.address import Given, address_of
from millpond.service.postgres.task import Task
from millpond.service.server.connection_limits import bound_socket
from millpond.service.server.serve_process import Web, check_web
from millpond.version import install

_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
_BINDS, _BIND_PAUSE_SECONDS = 20, 0.1
_log = logging.getLogger("millpond.service")


class Endpoint:
    """Listens for PostgreSQL clients of the pond in a folder; `store`: where its served rows are kept.

    Raises:
        SetupError: DuckDB is missing, other hosts reach the address and there is no certificate, or the port is in use.
    """

    def __init__(self, folder: Given, store: str, web: Web) -> None:
        check_web(web)
        if importlib.util.find_spec("duckdb") is None:
            raise SetupError("The PostgreSQL endpoint needs DuckDB.", f"Run `{install('sql')}`.")
        self._folder, self._store, self._web = str(address_of(folder)), store, web
        self._listener = _bound(web.host, web.port)
        self._ended = threading.Event()

    @property
    def port(self) -> int:
        """The port at which clients connect."""
        found: int = self._listener.getsockname()[1]
        return found

    @contextmanager
    def running(self, token: str) -> Iterator[None]:
        """Answer clients with the token, in another process, which is started again whenever it ends."""
        certificate, key = (None if file is None else str(file) for file in (self._web.certificate, self._web.key))
        task = Task(
            self._folder, self._store, token, self._listener.fileno(), is_loopback(self._web.host), certificate, key,
            is_json(),
        )  # fmt: skip
        watching = threading.Thread(target=self._watch, args=(task,), name="millpond-postgres", daemon=True)
        watching.start()
        try:
            yield
        finally:
            self._ended.set()
            watching.join()
            self._listener.close()

    def _watch(self, task: Task) -> None:
        pause = _PAUSE_SECONDS
        while not self._ended.is_set():
            begun = monotonic()
            status = self._run(task)
            if not self._ended.is_set():
                pause = _PAUSE_SECONDS if monotonic() - begun > _LONGEST_PAUSE_SECONDS else min(
                    2 * pause, _LONGEST_PAUSE_SECONDS
                )  # fmt: skip
                _log.warning("the PostgreSQL endpoint ended with status %s; it starts again in %.0f s", status, pause)
                self._ended.wait(pause)

    def _run(self, task: Task) -> int:
        """Run the process until it ends, or should end; returns its exit status."""
        words = [sys.executable, "-m", f"{__package__}.program"]
        # in a session of its own, because Ctrl-C in the terminal only concerns the service
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, pass_fds=[task.listener], start_new_session=True
        ) as process:  # fmt: skip
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.write(msgspec.json.encode(task) + b"\n")
                process.stdin.flush()
            while process.poll() is None and not self._ended.wait(0.2):
                pass
            with suppress(OSError):  # it then ends by itself
                process.stdin.close()
            try:
                return process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.wait()


def _bound(host: str, port: int) -> socket.socket:
    """A bound socket; a process that was replaced may leave the port a moment later."""
    for turn in range(_BINDS):
        try:
            return bound_socket(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or turn == _BINDS - 1:
                message = f"{host}:{port} cannot be served at: {error}."
                raise SetupError(message, "Choose another port with --pg.") from error
            sleep(_BIND_PAUSE_SECONDS)
    raise AssertionError
