"""The terminal commands: how they find a pond, what they print into a pipe, and what they import."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

from kit.simulator.changing_pond import ChangingPond
from millpond.cli import app
from millpond.control.diagnose.why_message import Cause, QueryFates, WhyShown
from millpond.errors import ForeignPondError, MillpondError, NotServingError, RequestError, SetupError
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.stream import Field, Stream
from millpond.model.windows import Sliding
from millpond.service.api.client import Client
from millpond.service.api.messages import (
    ColumnDiffers,
    ColumnShown,
    Differs,
    First,
    FollowerShown,
    NewQuery,
    QueryShown,
    Status,
    check_sink_names,
)
from millpond.service.api.service_files import URL_VARIABLE, Leader, Places, only_pond
from millpond.service.server.leadership import LeadershipHints
from millpond.service.terminal import commands
from millpond.service.terminal.command_groups import GROUPS, GroupedCommands
from millpond.service.terminal.overview import picture, text_of
from millpond.service.terminal.text import diff_lines, query_lines
from millpond.state.ports.files import IDENTITY

TX = Stream("tx", (Field("ts", "timestamp"), Field("c", "string")))
COUNT = Query(
    "spend", "tx", "ts", 0, Sliding(10_000_000, 10_000_000), (Column("c", "string"),),
    (Aggregate("count", None, None, "bigint"),), (Named("n", Column("agg:0", "bigint")),),
)  # fmt: skip


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only pond that was served from the current folder; it has run for three epochs."""
    pond = tmp_path / "tx.pond"
    (pond / "service").mkdir(parents=True)
    local = ChangingPond(pond, [TX], [COUNT], 1)
    (pond / IDENTITY).write_text("local")
    for epoch in range(3):
        rows = {"ts": pa.array([epoch * 1_000_000], pa.int64()), "c": ["a"]}
        local.epoch({"tx": [pa.table(rows)]})
    monkeypatch.chdir(tmp_path)
    return pond


def test_why_and_explain_find_the_only_pond(only: Path) -> None:
    why = CliRunner().invoke(app, ["why", "spend", "--json"])
    assert why.exit_code == 0, why.exception
    assert json.loads(why.output)["query"] == "spend"
    explained = CliRunner().invoke(app, ["explain"])
    assert explained.exit_code == 0, explained.exception
    assert "1 query in 1 group over 1 stream" in explained.output
    assert "measured as of record 3, over the last 3 epochs" in explained.output
    assert max(map(len, explained.output.splitlines())) > 80, "lines are wrapped in a terminal only"


def test_why_is_sent_by_the_service_if_one_responds(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def served(folder: Path | None, url: str | None, *_: object) -> Any:
        def why(name: str, width: int) -> WhyShown:
            requests.append((folder, url, name, width))
            if refusal is not None:
                raise refusal
            causes = (Cause("window-open", "It waits."),)
            return WhyShown(name, 9, "It waits.\n", causes, "tx", "noop", QueryFates(), QueryFates(), 0, True)

        return nullcontext(SimpleNamespace(why=why))

    requests: list[tuple[Any, ...]] = []
    refusal: MillpondError | None = None
    monkeypatch.setattr(commands, "client", served)
    assert CliRunner().invoke(app, ["why", "spend"]).stdout == "It waits.\n"
    assert CliRunner().invoke(app, ["why", "spend", "--url", "http://a:1"]).stdout == "It waits.\n"
    monkeypatch.setenv(URL_VARIABLE, "http://b:1")
    assert json.loads(CliRunner().invoke(app, ["why", "spend", "--json"]).stdout)["text"] == "It waits.\n"
    asked = [(None, "http://a:1", "spend", 80), (None, "http://b:1", "spend", 80)]
    assert requests == [(Path("tx.pond"), None, "spend", 80), *asked]
    refusal = NotServingError("Nobody answers.", "Start it.")
    assert CliRunner().invoke(app, ["why", "spend"]).exception is refusal
    read = CliRunner().invoke(app, ["why", "spend", "--checkpoint", "tx.pond"])
    assert read.stdout.startswith("spend: tx by c, "), "the folder says so, too"


def test_autoscale_finds_the_only_pond(only: Path) -> None:
    for words in (["autoscale"], ["autoscale", "--dry-run"]):
        found = CliRunner().invoke(app, words).exception  # its epochs took no time at all
        assert isinstance(found, ForeignPondError) and found.what == "The pond in tx.pond has not run long enough."
    (only.parent / "other.pond" / "service").mkdir(parents=True)
    for words in (["autoscale"], ["why", "spend"], ["explain"]):
        refused = CliRunner().invoke(app, words).exception
        assert isinstance(refused, SetupError) and "--checkpoint" in refused.cure
        assert refused.what == "2 ponds were served from folders here, and none is served now: other.pond, tx.pond."
    hints = [LeadershipHints(Places(Path(name)), Leader("", 0, "")) for name in ("tx.pond", "other.pond")]
    assert hints[0].try_take_over() and only_pond() == Path("tx.pond"), "the other pond was stopped"
    assert hints[1].try_take_over()
    with pytest.raises(SetupError, match="2 ponds are served from folders here: other"):
        only_pond()
    hints[0].leave()
    assert only_pond() == Path("other.pond")
    hints[1].leave()


def shown(name: str) -> QueryShown:
    return QueryShown(name, "windowed", "running", 1, "SELECT 1", ("tx",), (ColumnShown("n", "bigint"),), "noop", True)


def test_a_pipe_gets_whole_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"a_query_with_a_rather_long_name_{i}" for i in range(3)]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    text = text_of(picture(Status("leader", "p", 9, 8, 3), [shown(name) for name in names]), commands.console())
    assert all(name in text for name in names)
    assert "shared kB" in text and "…" not in text and "\x1b" not in text and " \n" not in text


def test_the_shell_completes_commands_and_options() -> None:
    for words, at, found in (("millpond sta", "1", "status"), ("millpond add --si", "2", "--sink")):
        variables = {"_MILLPOND_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": at}
        assert CliRunner().invoke(app, [], prog_name="millpond", env=variables).stdout.split() == [found]


def test_the_help_has_each_command_under_one_heading(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80 columns, with whole descriptions."""
    monkeypatch.setenv("COLUMNS", "80")
    listed = [name for names in GROUPS.values() for name in names]
    made = typer.main.get_command(app)
    assert isinstance(made, GroupedCommands) and sorted(listed) == sorted(made.commands)
    text = CliRunner().invoke(app, ["--help"]).stdout
    assert [line[:-1] for line in text.splitlines() if line[:-1] in GROUPS] == [*GROUPS]
    assert re.findall(r"^  ([a-z]+)  +[A-Z].*\.$", text, re.MULTILINE) == listed


def test_top_writes_one_state_after_another_into_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = iter([1, 2])

    def status() -> Status:
        for epoch in epochs:
            return Status("leader", "p", epoch, epoch, 3)
        raise KeyboardInterrupt

    pond = SimpleNamespace(status=status, queries=lambda: [shown("spend")])
    monkeypatch.setattr(commands, "client", lambda *_: nullcontext(pond))
    text = CliRunner().invoke(app, ["top", "--every", "0.2"]).stdout
    states = text.split("\n\n")
    assert [re.findall(r"epoch +(\d) \(record", state) for state in states] == [["1"], ["2"], []]
    assert all("spend" in state for state in states[:2]) and "\x1b" not in text


class Silent:
    """A service that returns nothing for every request."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., list[Any]]:
        return lambda *_, **__: []


@pytest.mark.parametrize("words", [["list"], ["history"], ["param", "list"], ["functions"]])
def test_an_empty_answer_is_stated(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setattr(commands, "client", lambda *_: Silent())
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout) == (0, "")
    assert len(done.stderr.splitlines()) == 1 and done.stderr.strip()
    assert CliRunner().invoke(app, [*words, "--json"]).stdout == "[]\n"


def test_a_waiting_move_prints_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = threading.Event()

    def status() -> Any:
        return SimpleNamespace(followers=(FollowerShown("move", 0, note="3 of 4 buckets are copied"),))

    monkeypatch.setattr(commands, "_LOOK_SECONDS", 0.01)
    note = ("3 of 4 buckets are copied …", True)
    monkeypatch.setattr(commands.typer, "echo", lambda text, err: (text, err) == note and printed.set())
    with commands._progress_of(SimpleNamespace(status=status), "move"):  # type: ignore[arg-type]
        assert printed.wait(60)


def test_long_lines_are_wrapped_between_words_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = " ".join(["window(ts,"] * 20)
    commands.print_lines(None, False, [line])
    assert capsys.readouterr().out == f"{line}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(commands, "terminal_width", lambda: 80)
    commands.print_lines(None, False, [line])
    found = capsys.readouterr().out.splitlines()
    assert max(map(len, found)) <= 80 and " ".join(found).split() == line.split()


def test_rows_are_printed_as_lines_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(name: str, after: str | None) -> list[dict[str, Any]]:
        return [{"query": name, "after": after}, {"n": 1.5}]

    monkeypatch.setattr(commands, "client", lambda *_: nullcontext(SimpleNamespace(rows=rows)))
    done = CliRunner().invoke(app, ["rows", "visits", "--after", "7.2"])
    assert done.stdout == '{"query":"visits","after":"7.2"}\n{"n":1.5}\n'


def test_a_shadow_is_shown_with_its_text() -> None:
    one = QueryShown("a", "stateless", "shadowed", 1, "SELECT 1", ("tx",), (), "noop", False, shadow="SELECT 2")
    assert [*query_lines(one)][-2:] == ["SELECT 1", "its shadow, whose rows are only compared:\nSELECT 2"]


def test_a_comparison_says_that_it_stops() -> None:
    first, columns = First(0, 10_000_000, 11_000_000), (ColumnDiffers("n", 1, 2.0, 1), ColumnDiffers("name", 1))
    found = Differs(7, 1, 25, 1, tuple("ab"), ("c",), 3, first, 30_000_000, 1, columns)
    assert [*diff_lines(found)][1:] == [
        "compared windows: the first from 1970-01-01 00:00:00Z to 1970-01-01 00:00:10Z, the last ends by "
        "1970-01-01 00:00:30Z",
        "1 pair of these rows has the same window and key; columns that differ:",
        "  n  in 1 pair, by at most 2; the shadow has it greater in 1", "  name  in 1 pair",
        "- a", "+ c", "- b", "- … and 23 rows more, of which none is shown",
    ]  # fmt: skip


def test_a_sink_that_the_network_may_not_name_is_refused_with_those_that_it_may() -> None:
    with pytest.raises(RequestError, match="cannot have 'redis' as its sink") as refused:
        Client("http://127.0.0.1:9", "token").add("a", "SELECT 1", sink="redis")
    assert refused.value.cure == "Use one of parquet, json, csv, subscribers, delta, kafka, postgres, webhook."
    assert NewQuery("a", "SELECT 1", late="csv").late == "csv"
    with pytest.raises(RequestError, match="cannot have 'parket' as its sink") as refused:
        check_sink_names("parket", None, unknown=True)
    assert refused.value.cure.startswith("Did you mean parquet? Use one of parquet, json,")


def test_what_asks_a_service_loads_neither_spark_nor_arrow() -> None:
    code = "import sys, millpond.cli, millpond.service.api.client; print([m for m in sys.modules if '.' not in m])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'httpx'" in found
    for heavy in ("pyspark", "pyarrow", "numpy", "pandas", "fastapi", "uvicorn", "lmdb"):
        assert f"'{heavy}'" not in found
