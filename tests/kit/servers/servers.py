"""Servers that tests start on loopback ports: programs that stop with the process that started them."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from os import kill as send_signal
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from millpond.spark.session.class_archive import archive_path
from millpond.spark.session.java import find_java, spark_home, with_archive, with_named_jars

SECONDS = 180.0
"""The default time to wait for a condition."""

JAVA_FLAGS = (
    "-XX:TieredStopAtLevel=1", "-XX:CompileThresholdScaling=2", "-XX:MetaspaceSize=256m", "-XX:+UseSerialGC",
)  # fmt: skip
"""The flags of every Java machine of tests, which lives for seconds.

The optimising compiler would take most of them. The other compiler takes a tenth less if it compiles methods later. By
default the whole heap is collected several times while the first 60 MB of classes are loaded.
"""

_PORTS = range(20_000, 32_000)
"""Below those that Linux gives to connections, and to servers that name no port."""

_held = set[int]()
"""The ports that this process has reserved; the locks of their files end with it."""

_WATCHED = '"$@" >{out} & child=$!; echo $child; cat >/dev/null; kill -9 $child; wait $child 2>/dev/null'
"""The shell kills the server when its own input ends, which is when the test process ends for any reason."""

T = TypeVar("T", bound="Watched")


def archived_flags() -> str:
    """The flags of every Java machine of tests, and that of the archive, if there is one."""
    return " ".join(with_archive(["", *JAVA_FLAGS], archive_path(find_java()))).strip()


def archived_class_path() -> str:
    """The class path of a session without MLlib, with which Java machines must begin theirs to map the archive."""
    home = spark_home()
    launcher = (home / "conf", next((home / "jars").glob("slf4j-api-*.jar")), home / "jars" / "*")
    return with_named_jars([os.pathsep.join(map(str, launcher))], mllib=False)[0]


def maps_archive(process: int) -> bool:
    """Whether a Java machine maps the archive; also if there is none, unless what tests need is required."""
    archive = archive_path(find_java())
    if not archive.is_file():
        return not os.environ.get("MILLPOND_REQUIRE")
    return str(archive) in Path(f"/proc/{process}/maps").read_text()


class Host(NamedTuple):
    """Where a server runs: its address, and the words before a command that is to run there."""

    address: str
    inside: tuple[str, ...] = ()


LOOPBACK = Host("127.0.0.1")
"""The machine itself, without a network."""


def free_ports(count: int) -> list[int]:
    """Unused loopback ports that no other process of tests, and no connection, gets before a server takes them."""
    ports = list[int]()
    for port in _PORTS:
        if len(ports) == count:
            return ports
        if port not in _held and _hold(port):
            ports.append(port)
    raise AssertionError(f"fewer than {count} ports of {_PORTS} are free")


def _hold(port: int) -> bool:
    """Whether a port is free, and from now on reserved for this process, until it ends."""
    folder = Path(tempfile.gettempdir()) / f"millpond-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    lock = os.open(folder / str(port), os.O_WRONLY | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        os.close(lock)
        return False
    _held.add(port)
    return True


def _states(pid: int) -> set[str]:
    """The states of a process's threads, such as R (running) and T (suspended); none where the system has no /proc."""
    try:
        stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):  # a thread ended meanwhile
        return {"R"}
    return {stat.rpartition(") ")[2][:1] for stat in stats}


def until(condition: Any, what: str, seconds: float = SECONDS) -> None:
    """Wait until a condition holds; AssertionError if it does not hold in time."""
    deadline = time.monotonic() + seconds
    began = time.monotonic()
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"{what}: not within {seconds} seconds"
        # A slow condition is checked for at most a tenth of the time, to leave the core to the server.
        time.sleep(max(0.02, 9 * (now - began)))
        began = time.monotonic()


def why_missing(found: object) -> str | None:
    """The reason why downloads failed, which a search for jars returns instead of their paths."""
    return found if isinstance(found, str) else None


def download_status(what: str, found: object) -> int:
    """The exit status of a program that only downloads; see `why_missing`, which it prints."""
    if (why := why_missing(found)) is not None:
        print(f"No {what} can be started: {why}", file=sys.stderr)
    return int(why is not None)


class Watched:
    """A program that can be started, paused and killed; a context manager that starts it, if necessary, and kills it.

    `out`: the target of its output, in shell syntax. `patience`: how long its end may take, in seconds.
    """

    out = "/dev/null"
    patience = SECONDS

    def __init__(self) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def start(self: T) -> T:
        """Start the program and wait until it answers."""
        raise NotImplementedError

    def launch(self, command: list[str], folder: Path | None = None) -> None:
        """Start the process, in `folder`."""
        words = ["sh", "-c", _WATCHED.format(out=self.out), "sh", *command]
        self._shell = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder)
        assert self._shell.stdout is not None
        self.pid = int(self._shell.stdout.readline())

    def kill(self) -> None:
        """Kill the program; only its stored data remain."""
        shell, self._shell = self._shell, None
        if shell is not None:
            assert shell.stdin is not None and shell.stdout is not None
            shell.stdin.close()
            shell.wait(self.patience)
            shell.stdout.close()

    def pause(self) -> None:
        """Suspend the program until `resume`; returns when none of its threads runs any more."""
        send_signal(self.pid, signal.SIGSTOP)
        until(lambda: _states(self.pid) <= {"T"}, f"process {self.pid} is suspended", 30)

    def resume(self) -> None:
        """Resume the program."""
        send_signal(self.pid, signal.SIGCONT)

    def __enter__(self: T) -> T:
        return self if self._shell is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
