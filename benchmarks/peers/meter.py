"""Starts an engine as a process of its own and measures it and all its descendants: CPU seconds and memory, by /proc.

A program under measurement writes lines that begin with `@` and are JSON: `{"mark": "begin"}` where its measured pass
begins, `{"mark": "end", …}` where it has ended, with figures of its own; what else it prints is kept for an error. Its
warm-up comes before the first mark. Where it knows better than its first mark when the pass began, and how long it
took, the figures tell it: `began` (seconds since 1970) and `seconds`; CPU until then is interpolated. Memory is the
most that was seen between the marks of the sum of proportional set sizes (pages shared by k processes count 1/k in
each).
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

EVERY = 0.5
LAST_SECONDS = 15.0
"""How long a program may take to end after its last mark: Java machines have been seen to hang there."""

_TICKS = os.sysconf("SC_CLK_TCK")


class Measured(NamedTuple):
    """One run of a program: `seconds`, `cpu` and `peak_mb` between its marks, `whole` and `whole_cpu` from its start to
    its end; `ends`: the marks of its end, one dictionary for each of its processes that wrote one.
    """

    seconds: float
    cpu: float
    peak_mb: float
    whole: float
    whole_cpu: float
    ends: Sequence[Mapping[str, Any]]


class Failed(Exception):
    """A program ended without its last mark; the text is what it printed last."""


def measured(
    command: Sequence[str], variables: Mapping[str, str], *, patience: float = 900.0,
    begun: Callable[[], None] = lambda: None,
) -> Measured:  # fmt: skip
    """Run a program to its end, which it may take `patience` seconds for; `begun` is called at its first mark.

    Raises:
        Failed: it ended, or was ended, before its pass had.
    """
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, env=dict(os.environ) | dict(variables), stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        watch = _Watch(process.pid)
        sampling = threading.Thread(target=watch.run, daemon=True)
        sampling.start()
        alarm = threading.Timer(patience, watch.kill)
        alarm.start()
        try:
            printed = _marks(process.stdout, watch, begun)
            process.wait()
        finally:
            alarm.cancel()
            watch.last.cancel()
            watch.ended.set()
            sampling.join()
            watch.kill()
        if watch.begin is None or watch.end is None:
            errors.seek(0)
            raise Failed("\n".join([*printed, *errors.read().splitlines()[-40:]]))
    (begin, cpu), (end, later), mark = watch.begin, watch.end, watch.ends[-1]
    if "began" in mark:
        cpu = float(np.interp(mark["began"], *zip(*watch.so_far, strict=True)))
    seconds = mark.get("seconds", end - begin)
    return Measured(seconds, later - cpu, watch.peak / 1e6, time.perf_counter() - began, watch.cpu(), watch.ends)


def _marks(lines: IO[str], watch: _Watch, begun: Callable[[], None]) -> list[str]:
    """Take the marks as they come; returns the last other lines."""
    printed: list[str] = []
    for line in lines:
        if not line.startswith("@"):
            printed = [*printed[-20:], line.rstrip()]
            continue
        mark = json.loads(line[1:])
        watch.sample()
        if mark["mark"] == "begin":
            if watch.begin is None:
                begun()
                watch.begin, watch.peak = (time.perf_counter(), watch.cpu()), 0
                watch.sample()
        else:
            watch.end = (time.perf_counter(), watch.cpu())
            watch.ends.append(mark)
            if not watch.last.is_alive():
                watch.last.start()
    return printed


class _Watch:
    """Samples a process and its descendants."""

    def __init__(self, pid: int) -> None:
        self._pid, self._seen, self._lock = pid, dict[tuple[int, int], int](), threading.Lock()
        self.so_far = [(time.time(), 0.0)]
        """CPU of all processes by the clock, each time it was sampled."""
        self.begin: tuple[float, float] | None = None
        self.end: tuple[float, float] | None = None
        self.peak, self.ends, self.ended = 0, list[Mapping[str, Any]](), threading.Event()
        self.last = threading.Timer(LAST_SECONDS, self.kill)

    def run(self) -> None:
        while not self.ended.wait(EVERY):
            self.sample()

    def sample(self) -> None:
        """CPU of each process as it stands now; of those that have gone the last that was seen is kept."""
        with self._lock:
            found = tree(self._pid)
            self._seen.update({(one.pid, one.started): one.ticks for one in found})
            self.so_far.append((time.time(), self.cpu()))
            if self.end is None:
                self.peak = max(self.peak, sum(_memory(one.pid) for one in found))

    def cpu(self) -> float:
        """CPU seconds of all processes until now."""
        return sum(self._seen.values()) / _TICKS

    def kill(self) -> None:
        """End what is left of it: its own descendants only, also those whose parent has gone before them."""
        self.sample()
        with self._lock:
            seen = sorted(self._seen, reverse=True)
        for pid, started in seen:
            if (one := _process(Path(f"/proc/{pid}"))) is not None and one[1].started == started:
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)


class Process(NamedTuple):
    """A process: its number, when it started (ticks since boot), ticks of CPU until now."""

    pid: int
    started: int
    ticks: int


def tree(root: int) -> list[Process]:
    """A process and its descendants, ancestors first; none if it has gone."""
    children: dict[int, list[Process]] = {}
    top: list[Process] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (found := _process(folder)) is not None:
            parent, one = found
            children.setdefault(parent, []).append(one)
            if one.pid == root:
                top.append(one)
    for one in top:  # grows while it is read
        top.extend(children.get(one.pid, ()))
    return top


def _process(folder: Path) -> tuple[int, Process] | None:
    """The parent of a process, and the process; None: it has gone."""
    with suppress(OSError):
        # the name in parentheses may have blanks
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        return int(fields[1]), Process(int(folder.name), int(fields[19]), int(fields[11]) + int(fields[12]))
    return None


def _memory(pid: int) -> int:
    """Bytes of the proportional set size."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
