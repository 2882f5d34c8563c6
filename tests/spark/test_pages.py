"""The examples in README and docs are run as they stand, each in an empty folder.

A fenced block of Python, SQL or a console runs if the line before its fence is `<!-- run: SETUP -->`, SETUP being
one of `SETUPS`: it writes what the block reads. Blocks of a page that are marked `<!-- run: SETUP, NAME -->` with
one NAME share their folder and run in order: SQL is saved as `SETUP.sql` for the commands that follow, and a command
`$ millpond …` must succeed; the lines below it must be in its output (`…` stands for any text). A block that is marked
`<!-- run: SETUP, NAME, FILE -->` is saved as FILE.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from millpond import Pond
from millpond.cli import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])

_MARKED = re.compile(
    r"^<!-- run: (\w+)(?:, (\w+))?(?:, ([\w./]+))? -->\n```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL
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


SETUPS: dict[str, Callable[[Path], None]] = {
    "clicks": write_clicks, "pond": lambda _folder: None, "nothing": lambda _folder: None,
}  # fmt: skip


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


RUNS = [
    run
    for page in PAGES
    for run in runs_of(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8"))
]


def test_every_mark_is_read() -> None:
    """A mark with a slip in it would silently run nothing."""
    marks = sum(page.read_text(encoding="utf-8").count("<!-- run:") for page in PAGES)
    assert marks == sum(len(run.blocks) for run in RUNS)
    assert {"python", "sql", "console"} <= {block.language for run in RUNS for block in run.blocks}


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.page}:{run.blocks[0].line}")
def test_the_examples_of_a_page_run(
    spark: SparkSession, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run: Run
) -> None:
    SETUPS[run.setup](here)
    tables: dict[str, pa.Table] = {}
    close = Pond.close

    def closing(pond: Pond) -> None:
        if pond.status():
            memory = [query.name for query in pond.queries if query.sink.format == "memory"]
            tables.update({name: pond.table(name) for name in memory})
        close(pond)

    monkeypatch.setattr(Pond, "close", closing)
    for block in run.blocks:
        if block.file is not None:
            (here / block.file).parent.mkdir(parents=True, exist_ok=True)
            (here / block.file).write_text(block.text)
            continue
        match block.language:
            case "python":
                names: dict[str, Any] = {"spark": spark}
                exec(compile(block.text, f"{run.page}:{block.line}", "exec"), names)
            case "sql":
                (here / f"{run.setup}.sql").write_text(block.text)
            case _:
                _commands(block)
    if run.page == "docs/guide/python.md" and tables:
        _check_the_first_example(tables, capsys.readouterr().out)


def _check_the_first_example(tables: dict[str, pa.Table], out: str) -> None:
    visits, engaged = tables["visits"].to_pylist(), tables["engaged"].to_pylist()
    # four events, each in six windows of an hour every ten minutes
    assert sum(row["count"] for row in visits) == 4 * 6
    assert {(row["page"], row["mean"]) for row in engaged} == {("/home", 45.0), ("/cart", 90.0)}
    assert "document={'epoch'" in out


def _commands(block: Block) -> None:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, below = part.partition("\n")
        words = shlex.split(command, comments=True)
        assert words[0] == "millpond", f"`{command}` is not run here"
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, f"{command}: {done.output} {done.exception!r}"
        for line in filter(None, map(str.rstrip, below.splitlines())):
            pattern = ".*".join(map(re.escape, line.split("…")))
            said = re.search(f"^{pattern}$", done.output, re.MULTILINE)
            assert said, f"{command} does not say {line!r}:\n{done.output}"
