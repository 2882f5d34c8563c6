"""The examples in README and docs are run as they stand, each in an empty folder.

A fenced block of Python, SQL or a console runs if the line before its fence is `<!-- run: SETUP -->`, SETUP being
one of `SETUPS`: it writes what the block reads. Blocks of a page that are marked `<!-- run: SETUP, NAME -->` with
one NAME share their folder and run in order: SQL is saved as `SETUP.sql` for the commands that follow, and a command
must succeed. The lines below a command must be in its output (`…` stands for any text). A block that is marked
`<!-- run: SETUP, NAME, FILE -->` is saved as FILE.

A console knows `millpond …`, `python FILE …`, `export NAME=VALUE`, `rm -r PATH`, `millpond serve … &`, which runs in
a process of its own until the page ends, and `kill [-9] %1` or `%+`, which ends it. A command that only reads a served
pond is repeated until its output is as printed. With the setup `kafka`, the address 127.0.0.1:9092 means the tests'
broker.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from kit.programs.forked_program import ForkedProgram, run_forked
from kit.programs.shared_java import joining
from kit.servers.kafka_server import KafkaServer
from millpond import Pond
from millpond.cli import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])

_MARKED = re.compile(
    r"^<!-- run: (\w+)(?:, (\w+))?(?:, ([\w./-]+))? -->\n```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """A marked block: its language, its text, the line where the text begins, and the file to save it as."""

    language: str
    text: str
    line: int
    file: str | None = None


class Run(NamedTuple):
    """Blocks of a page that run one after the other in one folder."""

    page: str
    setup: str
    blocks: list[Block]


def write_clicks(folder: Path) -> None:
    """Four clicks in as many files, the first at five past noon."""
    (folder / "clicks").mkdir()
    minutes = [(5, "/home", 10.0), (15, "/home", 40.0), (25, "/home", 50.0), (30, "/cart", 90.0)]
    for minute, page, seconds in minutes:
        event = {"page": page, "visitor": "v", "seconds": seconds, "ts": f"2026-01-01T12:{minute:02}:00Z"}
        path = folder / "clicks" / f"{minute}.json"
        path.write_text(json.dumps(event))
        os.utime(path, (minute * 60, minute * 60))  # Spark takes files in the order of their times


def write_first_query(folder: Path) -> None:
    """The files of the README's first query."""
    page = ROOT / "README.md"
    for run in runs_of("README.md", page.read_text(encoding="utf-8")):
        for block in run.blocks:
            if block.file is not None:
                _save(folder / block.file, block.text)


JOINED = Path(__file__).with_name("joined_session.py")
SETUPS: dict[str, Callable[[Path], None]] = {
    "clicks": write_clicks,
    "pond": lambda _folder: None,
    "nothing": lambda _folder: None,
    "readme": write_first_query,
    "kafka": lambda _folder: None,
}

BROKER = "127.0.0.1:9092"
TOPICS = {"orders": 3, "alerts": 1}
SECONDS = 180.0
READS = {"lookup", "status", "list", "show", "why", "history", "diff"}


def runs_of(page: str, text: str) -> list[Run]:
    """The runs of a page.

    >>> [run] = runs_of("p.md", "<!-- run: clicks, a -->\\n```sql\\nSELECT 1\\n```\\n")
    >>> run.setup, run.blocks
    ('clicks', [Block(language='sql', text='SELECT 1\\n', line=3, file=None)])
    """
    found: dict[object, Run] = {}
    for match in _MARKED.finditer(text):
        setup, name, file, language, code = match.groups()
        run = found.setdefault((setup, name or match.start()), Run(page, setup, []))
        run.blocks.append(Block(language, code, text.count("\n", 0, match.start(5)) + 1, file))
    return list(found.values())


RUNS = [run for page in PAGES for run in runs_of(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8"))]


def _name(run: Run) -> str:
    return f"{run.page}:{run.blocks[0].line}"


def test_every_mark_is_read() -> None:
    """A mark with a slip in it would silently run nothing."""
    marks = sum(page.read_text(encoding="utf-8").count("<!-- run:") for page in PAGES)
    assert marks == sum(len(run.blocks) for run in RUNS)
    assert {"python", "sql", "console"} <= {block.language for run in RUNS for block in run.blocks}


class Console:
    """Runs the commands of a page in the current folder."""

    def __init__(self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self._spark, self._monkeypatch = spark, monkeypatch
        self._service: subprocess.Popen[bytes] | None = None

    def run(self, block: Block) -> None:
        """Run every command of a block, and compare what it prints."""
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, below = _command(part)
            lines = [line.rstrip() for line in below.splitlines() if line.strip()]
            self._run(command, lines)

    def close(self, number: int = signal.SIGTERM) -> None:
        """End the service, if one runs."""
        service, self._service = self._service, None
        if service is not None:
            service.send_signal(number)
            service.wait(SECONDS)

    def _run(self, command: str, lines: list[str]) -> None:
        match shlex.split(command, comments=True):
            case ["millpond", "serve", *words, "&"]:
                self._serve(words, lines)
            case ["kill", *words, "%1" | "%+"]:
                self.close(signal.SIGKILL if words == ["-9"] else signal.SIGTERM)
            case ["export", setting]:
                name, _, value = setting.partition("=")
                self._monkeypatch.setenv(name, value.replace("$PWD", os.getcwd()))
            case ["rm", "-r", path]:
                shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()
            case ["python", *words]:
                done = run_forked(words, text=True, timeout=SECONDS)
                assert done.returncode == 0, f"{command}: {done.stderr}"
                assert not (line := _missing(lines, done.stdout)), f"{command} does not print {line!r}:\n{done.stdout}"
            case ["millpond", *words]:
                self._millpond(command, words, lines)
            case _:
                raise AssertionError(f"`{command}` is not run here")

    def _serve(self, words: list[str], lines: list[str]) -> None:
        out = Path("service.out")
        with out.open("wb") as stream:
            environment = os.environ | joining(self._spark)
            self._service = ForkedProgram([JOINED, "serve", *words], stdout=stream, stderr=stream, env=environment)
        end = time.monotonic() + SECONDS
        while line := _missing(lines, out.read_text()):
            assert self._service.poll() is None and time.monotonic() < end, f"no {line!r}: {out.read_text()}"
            time.sleep(0.2)

    def _millpond(self, command: str, words: list[str], lines: list[str]) -> None:
        end = time.monotonic() + (SECONDS if self._service is not None and words[0] in READS else 0)
        while True:
            done = CliRunner().invoke(app, words)
            line = _missing(lines, done.output)
            if done.exit_code == 0 and not line:
                return
            assert time.monotonic() < end, f"{command} does not print {line!r}:\n{done.output} {done.exception!r}"
            time.sleep(0.5)


@pytest.fixture
def console(spark: SparkSession, here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    """A console in an empty folder, whose service ends with the test."""
    made = Console(spark, monkeypatch)
    yield made
    made.close()


@pytest.mark.parametrize("run", [run for run in RUNS if run.setup != "kafka"], ids=_name)
def test_the_examples_of_a_page_run(
    spark: SparkSession, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    console: Console, run: Run,
) -> None:  # fmt: skip
    SETUPS[run.setup](here)
    tables: dict[str, pa.Table] = {}
    close = Pond.close

    def record_and_close(pond: Pond) -> None:
        if pond.status():
            memory = [query.name for query in pond.queries if query.sink.format == "memory"]
            tables.update({name: pond.table(name) for name in memory})
        close(pond)

    monkeypatch.setattr(Pond, "close", record_and_close)
    play(run, spark, here, console)
    if run.page == "docs/guide/python.md" and tables:
        _check_the_first_example(tables, capsys.readouterr().out)


@pytest.mark.parametrize("run", [run for run in RUNS if run.setup == "kafka"], ids=_name)
def test_the_examples_with_kafka_run(
    spark: SparkSession, here: Path, console: Console, kafka_server: KafkaServer, run: Run
) -> None:
    for topic, partitions in TOPICS.items():
        kafka_server.create(topic, partitions)
    blocks = [block._replace(text=block.text.replace(BROKER, kafka_server.servers)) for block in run.blocks]
    with kafka_server.removing(*TOPICS), closing(console):
        play(run._replace(blocks=blocks), spark, here, console)


def play(run: Run, spark: SparkSession, here: Path, console: Console) -> None:
    """Save and run the blocks of a run, one after the other."""
    for block in run.blocks:
        if block.file is not None:
            _save(here / block.file, block.text)
            continue
        match block.language:
            case "python":
                names: dict[str, Any] = {"spark": spark}
                exec(compile(block.text, f"{run.page}:{block.line}", "exec"), names)
            case "sql":
                (here / f"{run.setup}.sql").write_text(block.text)
            case _:
                console.run(block)


def _save(path: Path, text: str) -> None:
    """A running stream of files sees the complete file, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    hidden.write_text(text)
    hidden.rename(path)


def _check_the_first_example(tables: dict[str, pa.Table], out: str) -> None:
    visits, engaged = tables["visits"].to_pylist(), tables["engaged"].to_pylist()
    # four events, each in six windows of an hour every ten minutes
    assert sum(row["count"] for row in visits) == 4 * 6
    assert {(row["page"], row["mean"]) for row in engaged} == {("/home", 45.0), ("/cart", 90.0)}
    assert "document={'epoch'" in out


def _command(part: str) -> tuple[str, str]:
    """A command, which ends with the line where its quotes are closed, and the text below it.

    >>> _command("millpond add a 'SELECT\\n  1' --serve\\nadd a at record 1\\n")
    ("millpond add a 'SELECT\\n  1' --serve", 'add a at record 1\\n')
    """
    lines = part.splitlines(keepends=True)
    for count in range(1, len(lines) + 1):
        command = "".join(lines[:count])
        try:
            shlex.split(command, comments=True)
        except ValueError:  # a quote is still open
            continue
        return command.rstrip("\n"), "".join(lines[count:])
    raise AssertionError(f"a quote is not closed in `{part}`")


def _missing(lines: list[str], output: str) -> str | None:
    """The first of the lines that is not in the output."""
    for line in lines:
        pattern = ".*".join(map(re.escape, line.split("…")))
        if re.search(f"^{pattern}\\s*$", output, re.MULTILINE) is None:
            return line
    return None
