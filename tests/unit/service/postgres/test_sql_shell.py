"""The SQL shell: statements that read go to the endpoint, those that change become requests with a price."""

from __future__ import annotations

import json
import os
import socket
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from millpond.cli import app
from millpond.errors import NotServingError, QueryRefused, RequestError, SetupError
from millpond.service.api.messages import Changed, Priced, QueryShown
from millpond.service.api.service_files import Leader, Places
from millpond.service.terminal.commands import print_lines
from millpond.service.terminal.sql_shell import EndpointClient, QueryChange, Shell, SqlAddress, _address, change_of
from millpond.service.terminal.text import table_lines


def interrupted() -> None:
    raise KeyboardInterrupt


def test_a_script_in_a_pipe_needs_no_last_semicolon_and_ends_at_an_error(served: Any) -> None:
    done = shell(served, "--json", typed="SELECT 1 AS x;\nSELECT ';' AS y -- the end;\n")
    assert (done.exit_code, done.output) == (0, '{"x":1}\n{"y":";"}\n')
    done = shell(served, typed="SELECT nope; SELECT 1 AS x")
    assert done.exit_code == 1 and done.output == "" and "nope" in str(done.exception)


def test_a_token_does_not_cross_a_network_in_plain_text() -> None:
    assert SqlAddress("127.0.0.1:1", "t", None).arguments()["sslmode"] == "disable"
    both = SqlAddress("127.0.0.1:1,pond.example:2", "t", None).arguments()
    assert (both["host"], both["port"], both["sslmode"]) == ("127.0.0.1,pond.example", "1,2", "verify-full")


def test_the_shell_asks_the_new_leader_after_a_takeover(served: Any) -> None:
    leaders = ["127.0.0.1:1", f"127.0.0.1:{served.port}", f"localhost:{served.port}"]
    endpoint = EndpointClient(lambda: SqlAddress(leaders[0], served.token, None))
    with pytest.raises(NotServingError, match=r"127\.0\.0\.1:1"):
        endpoint.rows("SELECT 1 AS x")
    del leaders[0]
    assert endpoint.rows("SELECT 1 AS x") == (["x"], [(1,)])
    cut(endpoint)
    with pytest.raises(NotServingError, match="was lost"):  # the same service: the statement may have ended it
        endpoint.rows("SELECT 1 AS x")
    assert endpoint.rows("SELECT 2 AS x") == (["x"], [(2,)])
    cut(endpoint)
    del leaders[0]
    assert endpoint.rows("SELECT 3 AS x") == (["x"], [(3,)])
    endpoint.close()


def test_the_shell_starts_an_endpoint_for_a_service_without_one(served: Any) -> None:
    places = Places(served.folder)
    places.make()
    (places.folder / "token").write_text(served.token)
    places.write_leader(Leader("http://127.0.0.1:1", os.getpid(), "writer"))
    where = ["--checkpoint", str(served.folder), "--json", "-c", "SELECT page, n FROM visits WHERE page = 'it''s'"]
    done = CliRunner().invoke(app, ["sql", *where])
    assert (done.exception, done.output) == (None, '{"page":"it\'s","n":1}\n')


def test_the_shell_does_not_read_the_certificate_of_a_leader_on_another_host(tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.make()
    own = {"certificate": str(tmp_path / "elsewhere.pem"), "pg": "pond.example:5"}
    places.write_leader(Leader("https://pond.example", os.getpid(), "writer", **own))
    found = _address(tmp_path, None, None, "token", None, pytest.fail)
    assert found == SqlAddress("pond.example:5", "token", None)
    assert found.arguments()["sslrootcert"] == "system"


def cut(endpoint: EndpointClient) -> None:
    """Cut the connection, as a leader that dies does."""
    assert endpoint._connection is not None
    socket.socket(fileno=os.dup(endpoint._connection.fileno())).shutdown(socket.SHUT_RDWR)


def test_reads_and_changes_reach_the_same_service(served: Any) -> None:
    refused = shell(served, "-c", "DROP TABLE visits").exception
    assert isinstance(refused, SetupError) and "--url" in refused.cure
    done = CliRunner().invoke(app, ["sql", "--url", "http://127.0.0.1:1", "--token", "t", "-c", "SELECT 1"])
    assert isinstance(done.exception, SetupError) and "--pg" in done.exception.cure


def shell(served: Any, *words: str, typed: str | None = None) -> Result:
    at = ["--pg", f"127.0.0.1:{served.port}", "--token", served.token]
    return CliRunner().invoke(app, ["sql", *at, *words], input=typed)


def test_a_script_gets_rows_as_a_table_and_as_json(served: Any) -> None:
    sql = "SELECT page, n, w_start FROM visits WHERE page = '/home'"
    [row] = map(json.loads, shell(served, "--json", "-c", sql).output.splitlines())
    assert row == {"page": "/home", "n": 2, "w_start": "1970-01-01T00:00:00Z"}
    lines = shell(served, "-c", f"{sql}; SHOW QUERIES").output.splitlines()
    assert lines[0].split() == ["page", "n", "w_start"] and lines[2].split()[:2] == ["/home", "2"]
    assert any(line.startswith("again") for line in lines) and any(line.startswith("visits") for line in lines)
    assert shell(served, "--json", "-c", "SELECT 1 AS n, 2 AS n, 3 AS n_1").output == '{"n":1,"n_2":2,"n_1":3}\n'


def test_a_prompt_continues_after_an_error_and_reads_statements_of_several_lines(
    served: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = EndpointClient(lambda: SqlAddress(f"127.0.0.1:{served.port}", served.token, None))
    session = Shell(lambda: None, lambda: endpoint, 80, False, None, False)  # type: ignore[arg-type,return-value]
    answered = session._read
    monkeypatch.setattr(session, "_read", lambda sql: interrupted() if sql == "long" else answered(sql))
    typed = iter(["SELEC 1;", "long;", "SELECT count(*)", "AS pages FROM visits;", "exit;"])
    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    session.loop()
    endpoint.close()
    found = capsys.readouterr()
    assert found.err.startswith("[MP-SYNTAX] syntax error") and "pages" in found.out
    assert isinstance(shell(served, "-c", "DELETE FROM visits").exception, QueryRefused)
    nobody = CliRunner().invoke(app, ["sql", "--pg", "127.0.0.1:1", "--token", "t", "-c", "SELECT 1"]).exception
    assert isinstance(nobody, NotServingError) and "127.0.0.1:1" in str(nobody)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("-- x\ndrop  streaming table\nb ", QueryChange("drop", "b")),
        ("ALTER STREAMING TABLE a AS WITH x AS (SELECT 1) SELECT 2",
         QueryChange("alter", "a", "WITH x AS (SELECT 1) SELECT 2")),
        ("ALTER STREAMING TABLE IF EXISTS a AS SELECT 2", QueryChange("alter", "a", "SELECT 2", conditional=True)),
        ("DROP TABLE if exists b", QueryChange("drop", "b", conditional=True)),
        ("CREATE STREAMING TABLE IF NOT EXISTS a AS SELECT 2", QueryChange("add", "a", "SELECT 2", conditional=True)),
        ("CREATE OR REPLACE STREAMING TABLE a USING json AS SELECT 2",
         QueryChange("replace", "a", "SELECT 2", {"sink": "json"})),
        (
            "CREATE STREAMING TABLE a USING KAFKA TBLPROPERTIES ('topic' = 'it''s (1)', 'late.by'='window',\n"
            "'deduplicate' = 'x, y') AS\nSELECT ')' AS y",
            QueryChange("add", "a", "SELECT ')' AS y",
                   {"sink": "kafka", "topic": "it's (1)", "late_by": "window", "deduplicate": ("x", "y")}),
        ),
        ("SELECT 'DROP TABLE a'", None),
        ("CREATE TABLE a (x INT)", None),
    ],
)  # fmt: skip
def test_statements_that_change_queries(text: str, change: QueryChange | None) -> None:
    assert change_of(text) == change


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ("'path' = 'x'", "--out"), ("'serve' = 'yes'", "'true' or 'false'"), ("'sreve' = 'true'", "serve"),
        ("serve = 1", "'NAME' = 'VALUE'"),
    ],
)
def test_a_wrong_property_is_refused(properties: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        change_of(f"CREATE STREAMING TABLE a TBLPROPERTIES ({properties}) AS SELECT 1")


def test_rows_and_names_cannot_command_the_terminal() -> None:
    for width in (80, 5):
        shown = "\n".join(table_lines(["a\x1b]0;x\x07", "b"], [("\x1b[2J\r\x9b31m", "\u202ex\ty")], width))
        assert all(character.isprintable() or character == "\n" for character in shown), repr(shown)
    with redirect_stdout(StringIO()) as out:
        print_lines(None, False, ["a by ann: '\x1b[2J'\nb\tc"])
    assert out.getvalue() == "a by ann: '\\x1b[2J'\nb   c\n"
    assert r"\x1b[2J\r" in next(iter([*table_lines(["a"], [("\x1b[2J\r",)], None)][2:]))


class Ponds:
    """A client that knows one query, `a`, and records the requests."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def queries(self) -> list[QueryShown]:
        return [QueryShown("a", "windowed", "running", 1, "", (), (), "parquet", True)]

    def add(self, name: str, text: str, **more: Any) -> Changed:
        self.made.append(("add", name, more))
        return Changed("add", name, 1)

    def alter(self, name: str, text: str, **more: Any) -> Changed:
        self.made.append(("alter", name, more))
        return Changed("alter", name, 1)

    def move(self, kind: str, name: str, **more: Any) -> Changed:
        self.made.append((kind, name, more))
        return Changed(kind, name, 1)


def requested(text: str) -> list[Any]:
    change, pond = change_of(text), Ponds()
    assert change is not None
    done = change.request(pond, dry_run=False)  # type: ignore[arg-type]
    assert (done is None) == (pond.made == [])
    return pond.made


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("CREATE STREAMING TABLE IF NOT EXISTS a AS SELECT 1", []),
        ("CREATE STREAMING TABLE IF NOT EXISTS b AS SELECT 1", [("add", "b", {"dry_run": False})]),
        ("DROP STREAMING TABLE IF EXISTS b", []),
        ("DROP STREAMING TABLE IF EXISTS a", [("drop", "a", {"dry_run": False})]),
        ("ALTER STREAMING TABLE IF EXISTS b AS SELECT 1", []),
        ("CREATE OR REPLACE STREAMING TABLE b USING json AS SELECT 1",
         [("add", "b", {"dry_run": False, "sink": "json"})]),
        ("CREATE OR REPLACE STREAMING TABLE a USING parquet TBLPROPERTIES ('serve' = 'true', 'deduplicate' = 'x')\n"
         "AS SELECT 1", [("alter", "a", {"dry_run": False, "deduplicate": ("x",)})]),
    ],
)  # fmt: skip
def test_conditions_depend_on_the_queries_that_exist(text: str, made: list[Any]) -> None:
    assert requested(text) == made


@pytest.mark.parametrize(
    ("clauses", "words"),
    [
        ("USING json", "'parquet'.*drop the query"), ("TBLPROPERTIES ('serve' = 'false')", "serve"),
        ("TBLPROPERTIES ('budget' = 'keys 9')", "'budget'"),
    ],
)
def test_a_replaced_query_keeps_its_properties(clauses: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        requested(f"CREATE OR REPLACE STREAMING TABLE a {clauses} AS SELECT 1")


def test_the_price_of_a_change_fits_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    price = Priced("complete later", adds="one more query: a\n" + "  group  " + "shares, " * 40)
    widest = list[int]()
    for width in (80, None):
        session = Shell(lambda: None, lambda: None, width, False, None, True)  # type: ignore[arg-type,return-value]
        session._show(QueryChange("add", "a"), price)
        widest.append(max(map(len, capsys.readouterr().out.splitlines())))
    assert widest[0] <= 80 < widest[1]


def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut() -> None:
    names = [f"column_{number}" for number in range(9)]
    rows = [tuple(10**9 + number for number in range(9)), ("x" * 200, None, *[1.5] * 7)]
    lines = [*table_lines(names, rows, 80)]
    assert max(map(len, lines)) <= 80 and str(10**9 + 8) in "\n".join(lines)
    assert "".join(line[10:].strip() for line in lines if "xx" in line).count("x") == 200
