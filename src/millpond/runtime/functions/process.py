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
_ONE_THREAD = {
    # so that the memory limit counts the function's memory, not reserves of allocators and thread pools
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "POLARS_MAX_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


class Gone(Exception):
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
                env=os.environ | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(path)},
                pass_fds=(shared.fileno(),), start_new_session=True,
            )  # fmt: skip
        self._told: deque[bytes] = deque()
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
        text, body = self._moved(encode({**header, "deadline_ms": deadline_ms}, tables), deadline_ms)
        try:
            found = decode_header(text)
            return found, decode_tables(found, body)
        except (ValueError, KeyError, TypeError) as error:
            raise Gone("answered with bytes that do not read") from error

    def end(self) -> None:
        """Kills the process and the processes that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _moved(self, parts: Sequence[Any], deadline_ms: int) -> tuple[bytes, memoryview]:
        """Writes the parts of a frame and reads a complete frame."""
        entry, leave, told = self._process.stdin, self._process.stdout, self._process.stderr
        assert entry is not None and leave is not None and told is not None
        began_us = lap_us()
        unsent = deque(memoryview(part).cast("B") for part in parts if len(part))
        got = bytearray()
        wanted = HEAD.size
        with selectors.DefaultSelector() as ready:
            ready.register(entry, selectors.EVENT_WRITE)
            ready.register(leave, selectors.EVENT_READ)
            ready.register(told, selectors.EVENT_READ)
            while len(got) < wanted:
                left = (max(began_us, self._progress[1]) - lap_us()) / 1e6 + deadline_ms / 1000
                events = ready.select(left) if left > 0 else []
                if left <= 0:
                    raise Gone(f"did not answer within {deadline_ms / 1000:g} s", self._at())
                for key, _ in events:
                    if key.fileobj is entry:
                        if not _sent(entry.fileno(), unsent):
                            ready.unregister(entry)
                    elif key.fileobj is told:
                        if not self._hear(told.fileno()):
                            ready.unregister(told)
                    elif not _received(leave.fileno(), got):
                        raise Gone(self._end_of_it(told.fileno()), self._at(), died=True)
                wanted = _size_of(got)
        text, _ = HEAD.unpack_from(got)
        start = HEAD.size + int(text)
        return bytes(got[HEAD.size : start]), memoryview(got)[start:wanted]

    def _at(self) -> int | None:
        row = self._progress[0]
        return row if row >= 0 else None

    def _hear(self, told: int) -> bool:
        """Reads the child's standard error and keeps its end; False at the end of the stream."""
        try:
            said = os.read(told, _CHUNK)
        except BlockingIOError:
            return True
        self._told.append(said[-_KEPT:])
        while sum(map(len, self._told)) - len(self._told[0]) > _KEPT:
            self._told.popleft()
        return bool(said)

    def _end_of_it(self, told: int) -> str:
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
                if not self._hear(told):
                    break
        return " ".join([how, *self._last_words()])

    def _last_words(self) -> list[str]:
        lines = b"".join(self._told).decode(errors="replace").split("\n")
        said = next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")
        return [f"saying: {said[:MOST_TOLD]}"] if said else []


def _sent(entry: int, unsent: deque[memoryview]) -> bool:
    """Writes as much as the pipe accepts; False when nothing is left to write."""
    try:
        while unsent:
            count = os.write(entry, unsent[0][:_CHUNK])
            unsent[0] = unsent[0][count:]
            if not len(unsent[0]):
                unsent.popleft()
    except BlockingIOError:
        return True
    except BrokenPipeError:
        return False  # the end of its output will explain it
    return False


def _received(leave: int, got: bytearray) -> bool:
    """Reads the available bytes; False at the end of the stream."""
    try:
        some = os.read(leave, _CHUNK)
    except BlockingIOError:
        return True
    got += some
    return bool(some)


def _size_of(got: bytearray) -> int:
    """The number of bytes that must be read next: of the head, or of the complete frame once the head was read."""
    if len(got) < HEAD.size:
        return HEAD.size
    text, body = HEAD.unpack_from(got)
    if text > MOST_JSON:
        raise Gone("answered with bytes that do not read")
    return HEAD.size + int(text) + int(body)
