"""The child process: it holds one user function and answers one request at a time.

It has no state that must be kept, and exits when its input ends. The parent enforces the time limit; a kernel timer
ends the child some seconds later if the parent has died. The module imports little, because it is loaded at every
start.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from millpond.clock import lap_us
from millpond.runtime.functions.kinds import STEPS, Wrong, grouped, holistic, mergeable, processed
from millpond.runtime.functions.wire import HEAD, decode_header, decode_tables, encode

GRACE_S = 5.0
"""Seconds after the deadline at which a child ends itself."""

_STEPS = {"holistic": (), "grouped": (), "mergeable": ("create", "update", "merge", "finish"), "stateful": STEPS[:1]}


class _LoadedFunction(NamedTuple):
    """The loaded function, and the parameters of the frame that loaded it."""

    function: Any
    kind: str
    result_type: pa.DataType
    convert: Callable[[pa.Array], Any]
    file: str


def main(progress: int) -> None:
    """Loads the function of the first frame, then answers calls.

    `progress`: the descriptor of a file to which the child writes the current row and the time at which it began.
    """
    requests, replies = _private_pipes()
    shared = memoryview(mmap.mmap(progress, 16)).cast("q")
    seconds, armed_us = 0.0, 0

    def report_progress(row: int) -> None:
        nonlocal armed_us
        shared[0], shared[1] = row, lap_us()
        if shared[1] - armed_us > 1_000_000:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            armed_us = shared[1]

    loaded: _LoadedFunction | None = None
    while (head := requests.read(HEAD.size)) and len(head) == HEAD.size:
        text, size = HEAD.unpack(head)
        header = decode_header(requests.read(text))
        seconds, armed_us = header["deadline_ms"] / 1000 + GRACE_S, lap_us()
        signal.setitimer(signal.ITIMER_REAL, seconds)
        answers: list[pa.Table] = []
        try:
            tables = decode_tables(header, requests.read(size))
            if loaded is None:
                loaded, reply = _load(header, tables[0].schema)
            else:
                reply, answers = {}, _answer(loaded, header, tables, report_progress)
        except BaseException as error:  # `SystemExit` too, as the function raised it
            reply = _failure(error, shared[0], "" if loaded is None else loaded.file)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for part in encode(reply, answers):
            replies.write(part)
        replies.flush()


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Moves the pipes to the parent to new descriptors, which `print` and `input` in a function do not use."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, replies


def _load(header: dict[str, Any], schema: pa.Schema) -> tuple[_LoadedFunction, dict[str, Any]]:
    sys.path[:] = header["path"]
    convert = _FORMS[header["form"]]()
    pa.nulls(0, pa.int64()).to_numpy(zero_copy_only=False)  # Arrow imports pandas here, outside of a function's limits
    _limit(header["memory_bytes"])
    module_name, _, attribute = header["module"].partition(":")
    module = import_module(module_name)
    function: Any = reduce(getattr, attribute.split("."), module)
    if isinstance(function, type) and _STEPS[header["kind"]]:
        function = function()
    steps = STEPS if header.get("timers") else _STEPS[header["kind"]]
    missing = [step for step in steps if not callable(getattr(function, step, None))]
    if missing or not (_STEPS[header["kind"]] or callable(function)):
        raise Wrong(f"is no {header['kind']} function: it lacks {', '.join(missing) or 'a call'}")
    origin = getattr(module.__spec__, "origin", None)
    if origin is None or not os.path.isfile(origin):
        raise Wrong(f"stands in {module_name}, which has no file")
    digest = hashlib.sha256(Path(origin).read_bytes()).hexdigest()
    return _LoadedFunction(function, header["kind"], schema.field(0).type, convert, origin), {"digest": digest}


_FORMS: dict[str, Callable[[], Callable[[pa.Array], Any]]] = {
    "arrow": lambda: lambda column: column,
    "numpy": lambda: lambda column: column.to_numpy(zero_copy_only=False),
    "polars": lambda: import_module("polars").from_arrow,
}
"""Makes what converts a column to the form that a function takes."""


def _limit(memory: int) -> None:
    """Limits the address space to its current size plus `memory` bytes; macOS does not enforce it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = 0
    with contextlib.suppress(OSError):  # without /proc the current size counts as 0
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))


def _answer(
    loaded: _LoadedFunction, header: dict[str, Any], tables: list[pa.Table], report_progress: Callable[[int], None]
) -> list[pa.Table]:  # fmt: skip
    rows = header["rows"]
    if loaded.kind == "stateful":
        return processed(loaded.function, header["step"], tables[0], tables[1], loaded.result_type)
    if loaded.kind == "holistic":
        column = holistic(loaded.function, tables[0], rows, loaded.result_type, loaded.convert, report_progress)
    elif loaded.kind == "grouped":
        column = grouped(loaded.function, tables[0], rows, loaded.result_type)
    else:
        cells = tables[1].column(0) if len(tables) > 1 else None
        column = mergeable(loaded.function, tables[0], rows, loaded.result_type, cells)
    return [pa.table({"value": column})]


def _failure(error: BaseException, row: int, file: str) -> dict[str, Any]:
    """The reply for a failed call: the exception as one line, with its last line number in the function's file."""
    if isinstance(error, Wrong):
        return {"failed": str(error), "row": row if error.row is None else error.row}
    if isinstance(error, MemoryError | pa.ArrowMemoryError):
        return {"failed": "memory", "row": row}
    text = " ".join(str(error).split())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f" at {os.path.basename(file)}:{lines[-1]}" if lines else ""
    return {"failed": f"raised {type(error).__name__}: {text[:300]}".rstrip(": ") + where, "row": row}


if __name__ == "__main__":
    main(int(sys.argv[1]))
