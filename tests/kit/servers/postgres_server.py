"""PostgreSQL servers for tests, on free loopback ports; they end with the process that made them."""

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

from kit.servers.servers import Watched, free_ports, until

_NOBODY = "nobody"
"""Who runs the server where tests run as root, which it refuses."""


@cache
def postgres_binaries() -> Path | None:
    """The folder of a server's programs: of the PATH, else the newest of Debian's packages; None: there is none."""
    found = shutil.which("postgres")
    if found is not None:
        return Path(found).resolve().parent
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    return packaged[-1].parent if packaged else None


class PostgresServer(Watched):
    """One server, which trusts everybody of this host; a context manager that ends it.

    What it stores is in a temporary folder, and outlives `kill`, but not the context.
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
        """Start it, on what it stored before if anything, and wait until it answers."""
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
            except AssertionError:  # processes of a killed one may still have its memory
                self.kill()
                if seconds == self.patience:
                    raise
        return self

    def kill(self) -> None:
        """End it at once, and those of its processes that serve clients, which would go on for a moment."""
        serving = _children(self.pid) if self.pid else []
        super().kill()
        for pid in serving:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def client(self) -> psycopg.Connection[Any]:
        """A client of its own, which commits each statement."""
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


def _children(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]
