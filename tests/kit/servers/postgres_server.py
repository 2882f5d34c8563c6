"""PostgreSQL servers for tests, on free loopback ports; they stop with the process that started them."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psycopg

from kit.servers.process_tree import children
from kit.servers.servers import Watched, free_ports, until

_NOBODY = "nobody"
"""The user that runs the server if tests run as root, because PostgreSQL refuses to run as root."""


@cache
def postgres_binaries() -> Path | None:
    """The folder of the server's programs: from the PATH, otherwise from the newest Debian package; None: not found."""
    found = shutil.which("postgres")
    if found is not None:
        return Path(found).resolve().parent
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    return packaged[-1].parent if packaged else None


class PostgresServer(Watched):
    """One server, which trusts all users of this host; a context manager that stops it.

    Its data are in a temporary folder, which survives `kill`, but not the end of the context.
    """

    patience = 60.0

    def __init__(self) -> None:
        binaries = postgres_binaries()
        if binaries is None:
            raise FileNotFoundError("no PostgreSQL is installed")
        super().__init__()
        (self.port,) = free_ports(1)
        self._user = getpass.getuser() if os.geteuid() else _NOBODY
        self._binaries = binaries
        self._folder = Path(tempfile.mkdtemp(prefix="millpond-postgres-"))
        self._data = self._folder / "data"
        if not os.geteuid():
            os.chown(self._folder, pwd.getpwnam(_NOBODY).pw_uid, -1)

    @property
    def connection(self) -> dict[str, Any]:
        """The server as a named connection."""
        return {"kind": "postgres", "host": "127.0.0.1", "port": self.port, "database": "postgres", "user": self._user}

    def start(self) -> PostgresServer:
        """Start the server, on its stored data if there are any, and wait until it answers."""
        if not self._data.exists():
            words = [str(self._binaries / "initdb"), "-D", str(self._data), "-A", "trust", "--no-sync"]
            subprocess.run([*self._prefix(), *words], check=True, capture_output=True, cwd="/")
        words = [str(self._binaries / "postgres"), "-D", str(self._data), "-p", str(self.port)]
        settings = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "max_connections=20")
        command = [*self._prefix(), *words, *(word for one in settings for word in ("-c", one))]
        for seconds in (5.0, 10.0, self.patience):
            self.launch(command, Path("/"))
            try:
                until(self._answers, f"the PostgreSQL at {self.port} answers", seconds)
                break
            except AssertionError:  # processes of a killed server may still hold its shared memory
                self.kill()
                if seconds == self.patience:
                    raise
        return self

    def kill(self) -> None:
        """Kill the server, and its processes that serve clients, which would otherwise run on for a moment."""
        serving = list(children(self.pid)) if self.pid else []
        super().kill()
        for pid in serving:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def client(self) -> psycopg.Connection[Any]:
        """A new client, which commits each statement."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, dbname="postgres", user=self._user, autocommit=True, connect_timeout=10
        )

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _prefix(self) -> list[str]:
        return [] if os.geteuid() else ["setpriv", f"--reuid={_NOBODY}", "--regid=nogroup", "--clear-groups"]

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError), self.client():
            return True
        return False
