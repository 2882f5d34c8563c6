"""The command, as people run it: its own process, a terminal or none, Ctrl-C once and twice.

A process costs the start of Spark. So most processes join the Java machine of the tests, and what needs no process runs
in this one. A run that is interrupted once in a terminal, and those that are interrupted while Spark starts, start a
Java machine of their own.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from kit.judges.timelines import check_covered, check_nested, spans_of
from kit.programs.forked_program import ForkedProgram, run_forked
from kit.programs.shared_java import joining
from kit.servers.servers import until
from millpond.cli import main
from millpond.control.commands import run
from millpond.runtime.inspect.timeline import Trace

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COMMAND = [sys.executable, "-c", "from millpond.cli import main; main()"]
JOINED = Path(__file__).with_name("joined_session.py")
SECOND = 1_000_000
MANY = 10
"""Epochs that a run is in the middle of when Ctrl-C is pressed."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Done(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


def millpond(*words: object, spark: SparkSession | None = None) -> Done:
    """The command in a process of its own, which joins the Java machine of `spark` if that is given."""
    program, environment = (["-m", "millpond"], {}) if spark is None else ([JOINED], joining(spark))
    done = run_forked([*program, *words], text=True, timeout=180, env=_environment() | environment)
    return Done(done.returncode, done.stdout, done.stderr)


def millpond_here(*words: object) -> Done:
    """The command in this process; if it needs Spark, in the session that is active."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["millpond", *map(str, words)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
    return Done(status, out.getvalue(), err.getvalue())


def _environment() -> dict[str, str]:
    return os.environ | {"TERM": "xterm"}


class Bench:
    """A pond file with one stream of files and three queries, one per format of files."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.file = spark, folder, folder / "tx.sql"
        (folder / "in").mkdir()
        window = "window(ts, '10 seconds')"
        queries = "\n".join(
            f"CREATE STREAMING TABLE {kind}_out USING {kind} "
            f"TBLPROPERTIES ('path' = '{folder}/{kind}', 'serve' = 'true') AS\n"
            f"SELECT c, {window}.start AS start, count(*) AS n, sum(v) AS total "
            f"FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 1 SECOND GROUP BY c, {window};"
            for kind in ("parquet", "json", "csv")
        )
        self.file.write_text(
            "CREATE TABLE tx (ts TIMESTAMP, c STRING, v BIGINT) USING parquet "
            f"OPTIONS (path '{folder}/in', maxFilesPerTrigger 1) TBLPROPERTIES ('max_ahead' = '2 hours');\n{queries}\n"
        )

    def add_file(self, number: int, rows: int = 100) -> None:
        """Events of ten seconds; file k holds the times from 10 k s."""
        times = [(number * 10 * SECOND) + i * 10 * SECOND // rows for i in range(rows)]
        table = pa.table(
            {
                "ts": pa.array(times, pa.timestamp("us", "UTC")),
                "c": [f"c{i % 4}" for i in range(rows)],
                "v": pa.array(range(rows), pa.int64()),
            }
        )
        draft = self.folder / "draft.parquet"
        pq.write_table(table, draft)
        os.utime(draft, (1_700_000_000 + number,) * 2)
        draft.rename(self.folder / "in" / f"{number:04d}.parquet")

    def counted(self) -> dict[int, int]:
        """Events per start of a window, from the Parquet files."""
        files = sorted((self.folder / "parquet").glob("*.parquet"))
        found: dict[int, int] = {}
        if files:
            table = ds.dataset(files).to_table()
            starts = table.column("start").cast(pa.int64()).to_pylist()
            for start, n in zip(starts, table.column("n").to_pylist(), strict=True):
                found[start // SECOND] = found.get(start // SECOND, 0) + n
        return found

    def run(self, *words: object) -> Done:
        return millpond("run", self.file, "--master", "local[2]", "--memory", "1g", *words, spark=self.spark)

    def run_here(self, *words: object) -> Done:
        return millpond_here("run", self.file, *words)


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path)


def test_once_drained_and_again(bench: Bench) -> None:
    bench.add_file(0)
    bench.add_file(1)
    first = bench.run("--once")
    assert first.status == 0, first.err
    assert f"The pond is in {bench.folder}/tx.pond" in first.err
    line = r"epoch \d+  200 events .* tx to 1970-01-01 00:00:18.9Z  rows: csv_out 4 .* sinks up to date"
    assert re.search(line, first.err)
    assert bench.counted() == {0: 100}

    bench.add_file(2)
    file = bench.folder / "trace.json"
    second = bench.run_here("--once", "--drain", "--checkpoint", bench.folder / "tx.pond", "--trace", file)
    assert second.status == 0, second.err
    trace = msgspec.json.decode(file.read_bytes(), type=Trace)
    check_nested(spans_of(trace))
    check_covered(trace)
    # Spark rounds the times of its steps to milliseconds, so that a short one has no span
    steps = {"plan batch", "job", "stage gather", "stage fold", "append"}
    assert steps < {one.name for one in spans_of(trace)}
    assert {"task", "wait for packets", "fold", "write delta"} <= {one.name for one in spans_of(trace, "fold 0")}
    assert {"task", "read", "gather"} <= {one.name for one in trace.trace_events}
    assert "  100 events " in second.err, "the second run went over old files"
    assert bench.counted() == {0: 100, 10: 100, 20: 100}
    lines = [json.loads(line) for part in (bench.folder / "json").glob("*.json") for line in part.open()]
    assert len(lines) == 12
    assert sum(line["total"] for line in lines) == 3 * sum(range(100))
    assert sum(len(part.read_text().splitlines()) for part in (bench.folder / "csv").glob("*.csv")) == 12

    found = millpond("lookup", "json_out", "c3", "--checkpoint", bench.folder / "tx.pond")
    assert found.status == 0, found.err
    assert re.search(r"total +1275\n", found.out)
    last = found.out.splitlines()[-1]
    assert re.fullmatch(
        r"window 1970-01-01 00:00:20Z to 1970-01-01 00:00:30Z, written by epoch (\d+), as of record \1", last
    )
    printed = millpond_here("lookup", "json_out", "c3", "--json", "--checkpoint", bench.folder / "tx.pond")
    assert json.loads(printed.out)["found"]["row"]["n"] == 25
    nobody = millpond_here("lookup", "json_out", "c9", "--checkpoint", bench.folder / "tx.pond")
    assert (nobody.status, "no row for c9 as of record" in nobody.out) == (1, True)

    bench.add_file(3)
    with mock.patch.object(run, "log_epoch", lambda _epoch: signal.getsignal(signal.SIGINT)(signal.SIGINT, None)):
        stopped = bench.run_here("--once", "--drain")
    assert stopped.status == 3, stopped.err
    assert "[MP-INCOMPLETE] The run was stopped before it had read all input and closed the" in stopped.err
    assert bench.counted() == {0: 100, 10: 100, 20: 100}, "the windows of the last file are open"


def test_explain(bench: Bench) -> None:
    done = millpond("explain", bench.file, spark=bench.spark)
    assert done.status == 0, done.err
    assert "3 queries in 1 group over 1 stream" in done.out
    assert "no order: which events are late depends on how the input is divided" in done.out
    assert "an event more than 2 hours ahead of the clock is dead" in done.out
    assert "if added last  no more measures, no more edges" in done.out
    assert not (bench.folder / "tx.pond").exists()


def test_what_a_pond_measured_the_price_of_one_more_and_why_it_is_silent(bench: Bench) -> None:
    bench.add_file(0)
    assert bench.run("--once").status == 0  # whose process has ended, as `why` then says
    pond = bench.folder / "tx.pond"
    more = (
        "SELECT c, window(ts, '5 seconds') AS w, max(v) AS best FROM STREAM tx WATERMARK ts "
        "DELAY OF INTERVAL 1 SECOND GROUP BY ALL"
    )
    done = millpond_here("explain", bench.file, "--checkpoint", pond, "--add", more, "--placement")
    assert done.status == 0, done.err
    assert "  read    100 events once, " in done.out
    assert "one more query: added\n  group     shares " in done.out
    assert "    + max(v) where isnotnull(v)\n" in done.out
    assert "  edges     360 → 720 per hour: the number of slices" in done.out
    words = " ".join(done.out.split())
    assert "aligned 100.0 %: 1,024 of 1,024 buckets are on the shard that has most" in words
    assert "about " in words and " bytes per key, from 1.0 cells" in words
    assert done.err == "", "the file has the queries of the pond"
    less = bench.folder / "less.sql"
    less.write_text(bench.file.read_text().partition("CREATE STREAMING TABLE csv_out")[0])
    done = millpond_here("explain", less, "--checkpoint", pond)
    assert (done.status, "3 queries in 1 group" in done.out) == (0, True), done.err
    assert done.err == "The report describes the queries of the pond, from which the file differs in csv_out.\n"
    file = bench.folder / "more.sql"
    file.write_text(f"CREATE STREAMING TABLE best AS {more};")
    done = millpond_here("explain", bench.file, "--add", file)
    assert "one more query: best\n" in done.out, done.err
    assert "at most " in done.out
    steps = f"SELECT window(w, '10 seconds') AS w, max(best) AS best FROM ({more}) GROUP BY window(w, '10 seconds')"
    done = millpond_here("explain", bench.file, "--add", steps)
    priced = [line for line in done.out.splitlines() if line.startswith("one more query: ")]
    assert priced == ["one more query: step 1 of added", "one more query: added"], done.err

    why = millpond("why", "csv_out", "--checkpoint", pond)
    assert why.status == 0, why.err
    assert "  read                100  ████" in why.out
    assert "needs an event of 1970-01-01 00:00:11Z or later in tx" in " ".join(why.out.split())
    assert "has ended" in why.out
    printed = json.loads(millpond_here("why", "csv_out", "--checkpoint", pond, "--json").out)
    assert [cause["code"] for cause in printed["causes"]] == ["window-open", "not-running"]


@pytest.mark.parametrize(
    ("text", "code", "run"),
    [
        ("CREATE STREAMING TABLE a AS SELEKT 1;", "MP-SYNTAX", millpond),
        ("DROP TABLE a;", "MP-REFUSED", millpond_here),
        (None, "MP-TYPE", millpond_here),
    ],
)
def test_a_bad_file_is_one_line(
    spark: SparkSession, tmp_path: Path, text: str | None, code: str, run: Callable[..., Done]
) -> None:
    file = tmp_path / "bad.sql"
    if text is not None:
        file.write_text(text)
    done = run("explain", file)
    assert done.status == 1
    lines = done.err.splitlines()
    assert len(lines) == 1, done.err
    assert lines[0].startswith(f"[{code}] ")


def test_verbose_shows_where(tmp_path: Path) -> None:
    done = millpond_here("explain", tmp_path / "missing.sql", "-v")
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("[MP-TYPE]")


def test_wrong_words() -> None:
    assert millpond("--version").out.startswith("millpond ")
    done = millpond_here("run", "x.sql", "--drain")
    assert (done.status, "--once" in done.err) == (2, True)
    for words in (["lookup", "q", "k", "--checkpoint", "/nonexistent/pond"],):
        done = millpond_here(*words)
        assert (done.status, done.err.startswith("[MP-FOREIGN] ")) == (1, True)


class Terminal:
    """A command on a terminal of its own: what it writes can be awaited, Ctrl-C can be pressed."""

    def __init__(self, *words: object, spark: SparkSession | None = None) -> None:
        command, java = (COMMAND, {}) if spark is None else ([sys.executable, str(JOINED)], joining(spark))
        self.pid, self._side = pty.fork()
        if not self.pid:
            os.execve(command[0], [*command, *map(str, words)], _environment() | java)
        self._raw = self.text = ""

    def press_ctrl_c(self) -> None:
        # the terminal sends SIGINT to its whole foreground process group
        os.write(self._side, b"\x03")

    def await_text(self, pattern: str, seconds: float = 240.0) -> None:
        until = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            assert time.monotonic() < until, f"{pattern} did not appear in:\n{self.text}"
            self._read(0.2)

    def end(self, seconds: float = 240.0) -> int:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._read(0.1)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._read(0.1)
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"it did not end:\n{self.text}")

    def _read(self, seconds: float) -> None:
        try:
            if select.select([self._side], [], [], seconds)[0]:
                self._raw += os.read(self._side, 65536).decode(errors="replace")
                self.text = _ESCAPES.sub("", self._raw)
        except OSError:  # the other side has ended
            time.sleep(seconds)

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._side)


@contextmanager
def running(bench: Bench, spark: SparkSession | None = None) -> Iterator[Terminal]:
    """A run in the midst of its epochs."""
    for number in range(MANY):
        bench.add_file(number, 20_000)
    terminal = Terminal("run", bench.file, "--master", "local[2]", "--memory", "1g", spark=spark)
    try:
        terminal.await_text(r"epoch +([2-9]|\d\d)")
        yield terminal
    finally:
        terminal.close()


def _complete(bench: Bench) -> None:
    """What was interrupted goes on: every event once."""
    done = bench.run_here("--once", "--drain")
    assert done.status == 0, done.err
    assert bench.counted() == {10 * number: 20_000 for number in range(MANY)}


def test_ctrl_c_stops_at_the_end_of_the_epoch(bench: Bench) -> None:
    with running(bench, bench.spark) as terminal:
        terminal.press_ctrl_c()
        assert terminal.end() == 0, terminal.text
    assert "Stopping after the current step." in terminal.text
    assert "Traceback" not in terminal.text
    assert re.search(r"All rows are out as of epoch \d+", terminal.text)
    counted = bench.counted()
    assert counted and set(counted.values()) == {20_000}
    _complete(bench)


def test_ctrl_c_twice_stops_at_once(bench: Bench) -> None:
    with running(bench) as terminal:
        [machine] = [pid for pid, parent in _machines().items() if parent == terminal.pid]
        terminal.press_ctrl_c()
        terminal.await_text("Stopping")
        terminal.press_ctrl_c()
        assert terminal.end(10.0) == 130, terminal.text
    assert "Traceback" not in terminal.text
    assert "ERROR" not in terminal.text
    until(lambda: machine not in _machines(), "the Java machine has ended", 60)
    _complete(bench)


def _machines() -> dict[int, int]:
    """The processes of Java machines that run, each with its parent."""
    found = subprocess.run(["ps", "-eo", "pid=,ppid=,stat=,comm="], capture_output=True, text=True, check=True).stdout
    lines = (line.split() for line in found.splitlines())
    return {int(pid): int(parent) for pid, parent, state, name, *_ in lines if name == "java" and state[0] != "Z"}


@contextmanager
def _killing(process: subprocess.Popen[str]) -> Iterator[None]:
    """Leave no process behind when a test fails."""
    watch = threading.Timer(120, process.kill)
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
        process.kill()


def test_sigint_without_a_terminal(bench: Bench) -> None:
    bench.add_file(0)
    bench.add_file(1)
    process = ForkedProgram(
        [JOINED, "run", bench.file, "--master", "local[2]", "--memory", "1g"],
        stderr=subprocess.PIPE, text=True, env=_environment() | joining(bench.spark), start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    with process, _killing(process), process.stderr as lines:
        seen = []
        for line in lines:
            seen.append(line)
            if "200 events" in line:
                os.killpg(process.pid, signal.SIGINT)
                break
        seen += lines.readlines()
        assert process.wait(240) == 0, "".join(seen)
    assert "Traceback" not in "".join(seen)
    bench.add_file(2)
    assert bench.run_here("--once", "--drain").status == 0
    assert bench.counted() == {0: 100, 10: 100, 20: 100}


@pytest.mark.parametrize("wait", [1.0, 4.0])
def test_ctrl_c_while_spark_starts_ends_at_once_without_a_traceback(bench: Bench, wait: float) -> None:
    terminal = Terminal("run", bench.file, "--master", "local[2]", "--memory", "1g")
    terminal.await_text("The pond is in")
    time.sleep(wait)
    terminal.press_ctrl_c()
    status = terminal.end()
    assert status == 130 or "end of this epoch" in terminal.text, terminal.text
    assert "Traceback" not in terminal.text
    assert "ERROR" not in terminal.text
