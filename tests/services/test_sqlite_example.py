"""The sink of examples/sqlite_sink, installed as a package, is found and passes the conformance suite."""

from __future__ import annotations

import re
import sqlite3
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kit.inputs.plugin_packages import install_plugin
from kit.programs.forked_program import ForkedProgram
from millpond.model.endpoints import Sink
from millpond.testing import Target, check_sink

ROOT = Path(__file__).parents[2]
EXAMPLE, CONTRIBUTING = ROOT / "examples" / "sqlite_sink", ROOT / "CONTRIBUTING.md"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example in a folder of its own, with the entry point of its pyproject.toml."""
    assert 'entry-points."millpond.sinks"]\nsqlite = "sqlite_sink:KIND"' in (EXAMPLE / "pyproject.toml").read_text()
    module = (EXAMPLE / "sqlite_sink.py").read_text()
    points = {"sqlite": "sqlite_sink:KIND"}
    install_plugin(tmp_path / "site", monkeypatch, "millpond.sinks", points, sqlite_sink=module)


def numbers_in(file: Path) -> list[int]:
    with closing(sqlite3.connect(file)) as database:
        return [n for (n,) in database.execute("SELECT n FROM t")]


@pytest.mark.slow
def test_the_example_of_a_sink_passes_the_test_in_contributing(installed: None, tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", CONTRIBUTING.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"numbers_in": numbers_in}
    exec(textwrap.dedent(block), names)
    names["test_sink"](tmp_path)


@pytest.mark.slow
def test_a_key_with_a_window_is_several_columns(installed: None, tmp_path: Path) -> None:
    def new_target(folder: Path) -> Target:
        options = (("key", "w,k,n"), ("table", "t"))
        return Target(Sink("sqlite", str(folder / "out.db"), options), lambda: numbers_in(folder / "out.db"))

    assert check_sink(new_target, tmp_path / "check", start=ForkedProgram).name == "sqlite"
