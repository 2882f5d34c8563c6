"""Controls one child process from its parent: starts it, exchanges frames until a deadline, ends it.

All pipes are served at once, so a child that does not read, floods its standard error or dies within a frame delays
nobody beyond the deadline.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from millpond.clock import lap_us
from millpond.runtime.functions.wire import HEAD, MOST_JSON, decode_header, decode_tables, encode

MOST_TOLD = 300
"""The most characters of a child's standard error in an error message."""

_KEPT = 4096
_CHUNK = 1 << 20
_READS = 8
ONE_THREAD = {
    # so that the memory limit counts the function's memory, not reserves of allocators and thread pools
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "POLARS_MAX_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}
"""Environment variables of a child."""


class ChildFailed(Exception):
    """The child did not answer; the text states why, and `row` is the row that it was processing, if known.

    `died`: the process ended.
    """

    def __init__(self, what: str, row: int | None = None, *, died: bool = False) -> None:
        super().__init__(what)
        self.row, self.died = row, died


class Child:
    """A child process for one function; `path`: its module search path, on which it also finds this package."""

    def __init__(self, path: Sequence[str]) -> None:
        with tempfile.TemporaryFile() as shared:
            shared.truncate(16)
            self._progress = memoryview(mmap.mmap(shared.fileno(), 16)).cast("q")
            self._process = subprocess.Popen(
                [sys.executable, "-m", "millpond.runtime.functions.child", str(shared.fileno())],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                env=os.environ | ONE_THREAD | {"PYTHONPATH": os.pathsep.join(path)},
                pass_fds=(shared.fileno(),), start_new_session=True,
            )  # fmt: skip
        self._stderr: deque[bytes] = deque()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)

    def lives(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def exchange(
        self, header: Mapping[str, Any], tables: Sequence[pa.Table], deadline_ms: int
    ) -> tuple[dict[str, Any], list[pa.Table]]:
        """Sends a frame and receives the reply.

        Raises:
            Gone: no valid reply arrived within `deadline_ms` after the frame was sent, or after the child began its
                current row. The child cannot be used any more.
        """
        self._progress[0], self._progress[1] = -1, 0
        text, body = self._exchange_bytes(encode({**header, "deadline_ms": deadline_ms}, tables), deadline_ms)
        try:
            reply = decode_header(text)
            return reply, decode_tables(reply, body)
        except (ValueError, KeyError, TypeError) as error:
            raise ChildFailed("answered with bytes that do not read") from error

    def end(self) -> None:
        """Kills the process and the processes that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _exchange_bytes(self, parts: Sequence[Any], deadline_ms: int) -> tuple[bytes, memoryview]:
        """Writes the parts of a frame and reads a complete frame."""
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None and stdout is not None and stderr is not None
        began_us = lap_us()
        unsent = deque(memoryview(part).cast("B") for part in parts if len(part))
        received = bytearray()
        size = HEAD.size
        with selectors.DefaultSelector() as selector:
            selector.register(stdin, selectors.EVENT_WRITE)
            selector.register(stdout, selectors.EVENT_READ)
            selector.register(stderr, selectors.EVENT_READ)
            while len(received) < size:
                remaining = self._remaining_seconds(began_us, deadline_ms)
                events = selector.select(remaining) if remaining > 0 else []
                if remaining <= 0:
                    raise ChildFailed(f"did not answer within {deadline_ms / 1000:g} s", self._at())
                for key, _ in events:
                    if key.fileobj is stdin:
                        if not _write_some(stdin.fileno(), unsent):
                            selector.unregister(stdin)
                    elif key.fileobj is stderr:
                        if not self._read_stderr(stderr.fileno()):
                            selector.unregister(stderr)
                    elif not _read_some(stdout.fileno(), received):
                        raise ChildFailed(self._describe_exit(stderr.fileno()), self._at(), died=True)
                size = _size_of(received)
        text, _ = HEAD.unpack_from(received)
        start = HEAD.size + int(text)
        return bytes(received[HEAD.size : start]), memoryview(received)[start:size]

    def _remaining_seconds(self, began_us: int, deadline_ms: int) -> float:
        """The time until the deadline, which begins anew with each row of the child."""
        return (max(began_us, self._progress[1]) - lap_us()) / 1e6 + deadline_ms / 1000

    def _at(self) -> int | None:
        row = self._progress[0]
        return row if row >= 0 else None

    def _read_stderr(self, stderr: int) -> bool:
        """Reads the child's standard error and keeps its end; False at the end of the stream."""
        try:
            data = os.read(stderr, _CHUNK)
        except BlockingIOError:
            return True
        self._stderr.append(data[-_KEPT:])
        while sum(map(len, self._stderr)) - len(self._stderr[0]) > _KEPT:
            self._stderr.popleft()
        return bool(data)

    def _describe_exit(self, stderr: int) -> str:
        """Describes how the process ended."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        if code == -signal.SIGKILL:
            how = "was killed, as a system does that has no memory left"
        elif code < 0:
            how = f"crashed ({signal.Signals(-code).name})"
        else:
            how = f"ended its process with status {code}"
        with contextlib.suppress(OSError):
            for _ in range(_READS):  # bounded, as processes that it started may keep writing
                if not self._read_stderr(stderr):
                    break
        return " ".join([how, *self._last_line()])

    def _last_line(self) -> list[str]:
        lines = b"".join(self._stderr).decode(errors="replace").split("\n")
        said = next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")
        return [f"saying: {said[:MOST_TOLD]}"] if said else []


def _write_some(stdin: int, unsent: deque[memoryview]) -> bool:
    """Writes as much as the pipe accepts; False when nothing is left to write."""
    try:
        while unsent:
            count = os.write(stdin, unsent[0][:_CHUNK])
            unsent[0] = unsent[0][count:]
            if not len(unsent[0]):
                unsent.popleft()
    except BlockingIOError:
        return True
    except BrokenPipeError:
        return False  # the end of its output will explain it
    return False


def _read_some(stdout: int, received: bytearray) -> bool:
    """Reads the available bytes; False at the end of the stream."""
    try:
        data = os.read(stdout, _CHUNK)
    except BlockingIOError:
        return True
    received += data
    return bool(data)


def _size_of(received: bytearray) -> int:
    """The number of bytes that must be read next: of the head, or of the complete frame once the head was read."""
    if len(received) < HEAD.size:
        return HEAD.size
    text, body = HEAD.unpack_from(received)
    if text > MOST_JSON:
        raise ChildFailed("answered with bytes that do not read")
    return HEAD.size + int(text) + int(body)
