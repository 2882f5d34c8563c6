"""Conformance suite of sinks: what every sink must do, tried with a small log, second publishers and killed processes.

The log has 300 rows, whose column `n` counts from 0. `check_sink` compares these numbers with those in the target.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from millpond.errors import MillpondError
from millpond.faults import DELIVERY_STEPS
from millpond.followers.sinks.kinds import SinkKind, sink_kind
from millpond.followers.sinks.make_sink import sink_cursor
from millpond.log.cursor import NOTHING_APPLIED, cursor_at
from millpond.log.follower import Follower, close_follower
from millpond.log.manifest import Manifest
from millpond.log.records import Entry
from millpond.model.endpoints import Sink
from millpond.testing import sink_program
from millpond.testing.sink_program import COLUMNS, COUNT, EPOCHS, LAST

SECONDS = 120
"""The longest time that a process may take to apply the log."""

OUTPUT = "stdout"
"""The file in a target's folder with what the sink has printed."""


def _interpreter(words: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *words], **how)


class Target(NamedTuple):
    """An empty place that a sink writes to, and a function that reads the column `n` of all rows there.

    `columns`: those of the log's rows, without `w` if the sink has no place for a window. `arguments`: see
    `sink_program`; needed by sinks that only a pond's process can provide.
    """

    sink: Sink
    read: Callable[[], Sequence[int]]
    columns: Sequence[str] = COLUMNS
    arguments: str = ""


class _Bench:
    """One target, with the log that is written to it."""

    def __init__(self, folder: Path, target: Target, start: Callable[..., subprocess.Popen[bytes]]) -> None:
        self.target, self.kind = target, sink_kind(target.sink.format)
        self._folder, self._start = folder, start
        self.log: list[tuple[int, Entry, Manifest]] = [*sink_program.make_pond(folder, target.columns)]

    @contextmanager
    def opened(self) -> Iterator[Follower]:
        """A follower of the log that writes to the target."""
        with (self._folder / OUTPUT).open("a") as output, redirect_stdout(output):
            follower = sink_program.open_sink(self._folder, self.target.sink, self.target.arguments)
            try:
                yield follower
            finally:
                close_follower(follower)

    def bring(self, follower: Follower) -> None:
        """Apply the records that the follower does not have; tries again after an error, as a pond does."""
        end = time.monotonic() + SECONDS
        while True:
            try:
                return sink_program.bring(self._folder, follower)
            except MillpondError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def start(self, faults: str) -> subprocess.Popen[bytes]:
        """A process that applies the log to the target, and fails as `faults` say (see `millpond.faults`)."""
        (self._folder / "faults").mkdir(exist_ok=True)
        sink, arguments = self.target.sink, self.target.arguments
        words = [str(self._folder), sink.format, sink.path or "", json.dumps(dict(sink.options)), str(SECONDS)]
        environ = os.environ | {
            "MILLPOND_FAULT": faults, "MILLPOND_FAULT_DIR": str(self._folder / "faults"),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }  # fmt: skip
        with (self._folder / OUTPUT).open("a") as output:
            program = ["-m", sink_program.__name__, *words, arguments]
            return self._start(program, env=environ, stdout=output, stderr=subprocess.PIPE)

    def faults(self) -> list[str]:
        """The faults that have happened."""
        return sorted(path.name for path in (self._folder / "faults").glob("*.*.*"))

    def cursor(self) -> int | None:
        """The cursor, as `millpond why` reads it from outside the pond."""
        return sink_cursor(sink_program.query(self.target.sink), self._folder / "cursors")

    def check_rows(self, epochs: int = EPOCHS, *, again: bool = False) -> None:
        """Compare the rows of the target with those of the first epochs; `again`: they may be there several times."""
        expected = [] if self.target.sink.goes_nowhere else list(range(epochs * COUNT))
        found = sorted(self.target.read())
        lost, foreign = set(expected) - set(found), set(found) - set(expected)
        assert not lost, f"{len(lost)} rows are lost, such as n = {min(lost)}"
        assert not foreign, f"{len(foreign)} rows are not in the log, such as n = {min(foreign)}"
        if not (again and self.kind.repeats):
            repeated = [n for n, following in pairwise(found) if n == following]
            assert not repeated, f"{len(repeated)} rows exist more than once, such as n = {repeated[0]}"


def _every_record(bench: _Bench) -> None:
    outside = bench.kind.cursor in ("file", "folder")
    with bench.opened() as follower:
        assert follower.cursor().n == NOTHING_APPLIED, "a new sink has applied no record"
        for n, entry, manifest in bench.log:
            follower.apply(n, entry, manifest)
            assert follower.cursor() == cursor_at(entry), f"after record {n} the cursor is {follower.cursor()}"
            known = bench.cursor()
            assert known == (n if outside else None), f"after record {n} the cursor outside the pond is {known}"
    bench.check_rows()
    if bench.kind.cursor != "process":
        with bench.opened() as follower:
            assert follower.cursor() == cursor_at(bench.log[-1][1]), "a new process finds another cursor"


def _the_same_record_again(bench: _Bench) -> None:
    with bench.opened() as follower:
        for last in range(len(bench.log)):
            for n, entry, manifest in (bench.log[last], *bench.log[: last + 1]):
                follower.apply(n, entry, manifest)
            assert follower.cursor().n == last, f"a record that comes again moved the cursor to {follower.cursor()}"
    bench.check_rows()


def _no_record_is_left_out(bench: _Bench) -> None:
    with bench.opened() as follower:
        for n, entry, manifest in bench.log[:2]:
            follower.apply(n, entry, manifest)
        n, entry, manifest = bench.log[3]
        with suppress(MillpondError):
            follower.apply(n, entry, manifest)
            raise AssertionError("record 3 was applied after record 1; it must be an error")
        assert follower.cursor().n == 1
    bench.check_rows(1)


def _a_publisher_that_was_overtaken(bench: _Bench) -> None:
    if bench.kind.cursor == "process":
        return
    with bench.opened() as old, bench.opened() as new:
        for n, entry, manifest in bench.log[:3]:
            old.apply(n, entry, manifest)
        bench.bring(new)
        for n, entry, manifest in bench.log[3:]:
            with suppress(MillpondError):
                old.apply(n, entry, manifest)
        bench.bring(new)
    bench.check_rows(again=True)


def _a_zombie(bench: _Bench, step: str) -> None:
    """A process is stopped at a step, another one goes on, and the first one resumes."""
    if not bench.kind.lasting:
        return
    zombie = bench.start(f"{step}:3:stop")
    try:
        _, status = os.waitpid(zombie.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"the process ended before {step}: {_said(zombie)}"
        with bench.opened() as follower:
            bench.bring(follower)
        os.kill(zombie.pid, signal.SIGCONT)
        _, said = zombie.communicate(timeout=SECONDS)
        assert zombie.returncode == 0, said.decode()
    finally:
        zombie.kill()
    with bench.opened() as follower:
        bench.bring(follower)
        assert follower.cursor() == cursor_at(bench.log[-1][1])
    bench.check_rows(again=True)


def _killed_at_each_step(bench: _Bench, steps: Sequence[str]) -> None:
    if not bench.kind.lasting:
        return
    planned = [f"{step}:{occurrence}:kill" for occurrence, step in enumerate(steps, 2)]
    for _ in range(len(planned) + 1):
        process = bench.start(",".join(planned))
        _, said = process.communicate(timeout=SECONDS)
        assert process.returncode in (0, -signal.SIGKILL), said.decode()
    assert process.returncode == 0, "it does not come to an end"
    assert bench.faults() == sorted(one.replace(":", ".") for one in planned), "not every step was reached"
    with bench.opened() as follower:
        assert follower.cursor().n == LAST
    bench.check_rows(again=True)


def _said(process: subprocess.Popen[bytes]) -> str:
    return "" if process.stderr is None else process.stderr.read().decode()


CHECKS: tuple[Callable[[_Bench], None], ...] = (
    _every_record,
    _the_same_record_again,
    _no_record_is_left_out,
    _a_publisher_that_was_overtaken,
)


def check_sink(
    new_target: Callable[[Path], Target], folder: Path, steps: Sequence[str] = DELIVERY_STEPS,
    start: Callable[..., subprocess.Popen[bytes]] = _interpreter,
) -> SinkKind:  # fmt: skip
    """Run every check on new targets; an AssertionError names a violated guarantee. Returns the kind of the sink.

    `new_target` is called with a new folder for each check, and must return an empty target. `steps`: the fault steps
    that the sink reaches for each record with rows; those of `followers.sinks.delivery` by default. The sink must be
    registered, because the checks also open it in other processes. `start` starts Python with the given words, and
    with keyword arguments of `Popen`.
    """
    checks: dict[str, Callable[[_Bench], None]] = {check.__name__.strip("_"): check for check in CHECKS}
    checks["a_zombie"] = lambda bench: _a_zombie(bench, steps[0])
    checks["killed_at_each_step"] = lambda bench: _killed_at_each_step(bench, steps)
    for name, check in checks.items():
        place = folder / name
        place.mkdir(parents=True)
        bench = _Bench(place, new_target(place), start)
        try:
            check(bench)
        except AssertionError as error:
            raise AssertionError(f"{bench.kind.name}, {name}: {error}") from error
    return bench.kind
