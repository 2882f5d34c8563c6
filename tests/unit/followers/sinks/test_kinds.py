"""The table of kinds of sinks: every entry opens, and parser, service, cursors and docs agree with it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from millpond.connections import VARIABLE
from millpond.errors import QueryRefused, RequestError, UnsupportedQuery
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.kinds import BUILT_IN, KINDS, SinkKind, sink_kind
from millpond.followers.sinks.make_sink import sink_cursor, sink_follower
from millpond.model.endpoints import Sink
from millpond.model.query import Query
from millpond.model.windows import Sliding
from millpond.service.api.messages import NewQuery, check_sink_names
from millpond.service.server.hosted_pond import _sink

PAGE = Path(__file__).parents[4] / "docs" / "guide" / "sinks.md"


def into(sink: Sink) -> Query:
    return Query("q", "s", "ts", 0, Sliding(1, 1), (), (), (), sink=sink)


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.name)
def test_every_kind_opens_with_a_function_of_its_module(kind: SinkKind) -> None:
    module, _, attribute = kind.opens.partition(":")
    assert callable(attrgetter(attribute)(import_module(module)))


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.name)
def test_every_kind_of_sink_says_where_its_cursor_is(kind: SinkKind, tmp_path: Path) -> None:
    found = sink_cursor(into(Sink(kind.name, str(tmp_path / "rows"))), tmp_path / "cursors")
    assert found == (None if kind.cursor in ("target", "process") else -1)


def test_the_files_of_cursors_keep_their_names() -> None:
    suffixes = {kind.name: kind.suffix for kind in BUILT_IN if kind.cursor == "file"}
    assert suffixes == {
        "console": "cursor", "noop": "cursor", "redis": "cursor", "foreach": "foreach", "delta": "delta",
        "kafka": "kafka", "webhook": "webhook", "subscribers": "cursor",
    }  # fmt: skip


def test_names_are_unique_and_options_are_in_lower_case() -> None:
    assert len(KINDS) == len(BUILT_IN)
    for kind in BUILT_IN:
        assert kind.options == tuple(option.lower() for option in kind.options)
        assert set(kind.env_options) <= set(kind.options)
        assert kind.connection is None or "connection" in kind.options


def test_the_table_imports_no_client_library_and_no_arrow() -> None:
    code = "import sys, millpond.followers.sinks.kinds; print([m for m in sys.modules if '.' not in m])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for library in ("pyarrow", "numpy", "psycopg", "deltalake", "confluent_kafka", "httpx", "pyspark"):
        assert f"'{library}'" not in found


def test_an_unknown_kind_of_sink_is_refused_by_name(pond: Any, tmp_path: Path) -> None:
    unknown = into(Sink("sqlite", str(tmp_path / "rows")))
    words = "There is no sink sqlite"
    with pytest.raises(UnsupportedQuery, match=words):
        sink_kind("sqlite")
    with pytest.raises(UnsupportedQuery, match=words):
        sink_cursor(unknown, tmp_path)
    with pytest.raises(UnsupportedQuery, match=words):
        sink_follower(unknown, "p", RowsReader(pond.read_section), tmp_path)


@pytest.mark.parametrize("name", [kind.name for kind in BUILT_IN if not kind.late])
def test_late_rows_go_to_sinks_that_take_them_only(name: str, pond: Any, tmp_path: Path) -> None:
    query = Query("q", "s", "ts", 0, Sliding(1, 1), (), (), (), late=Sink(name))
    with pytest.raises(UnsupportedQuery, match=f"The late rows of q cannot go to {name}"):
        sink_follower(query, "p", RowsReader(pond.read_section), tmp_path, late=True)


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.name)
def test_the_network_may_name_the_kinds_that_say_so(
    kind: SinkKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.json").write_text(
        '{"k": {"servers": "h:1", "topics": ["t"]}, "h": {"kind": "http", "url": "https://h", "remote": true},'
        '"p": {"kind": "postgres", "host": "h", "database": "d", "user": "u", "tables": ["shop.*"]}}'
    )
    monkeypatch.setenv(VARIABLE, str(tmp_path / "c.json"))
    if not kind.remote:
        for unknown in (True, False):
            with pytest.raises(RequestError, match=f"cannot have '{kind.name}' as its sink"):
                check_sink_names(kind.name, None, unknown=unknown)
        return
    check_sink_names(kind.name, None, unknown=True)
    request = NewQuery("q", "SELECT 1", sink=kind.name)
    if kind.connection == "kafka":
        request = NewQuery("q", "SELECT 1", sink=kind.name, connection="k", topic="t")
    elif kind.connection == "postgres":
        request = NewQuery("q", "SELECT 1", sink=kind.name, connection="p", table="shop.t")
        with pytest.raises(QueryRefused, match=r"The table public\.t of p is not for requests") as refused:
            _sink(NewQuery("q", "SELECT 1", sink=kind.name, connection="p", table="public.t"))
        assert refused.value.cure == "It offers shop.*."
    elif kind.connection == "http":
        request = NewQuery("q", "SELECT 1", sink=kind.name, connection="h")
    made = _sink(request)
    assert made.format == kind.name and {option for option, _ in made.options} <= set(kind.options)
    assert made.path is None, "the pond chooses the folder"


def test_a_service_refuses_names_that_a_client_cannot_judge() -> None:
    check_sink_names("of a package of the service", None, unknown=False)
    with pytest.raises(RequestError, match="cannot have 'xml' as its sink") as refused:
        check_sink_names("xml", None, unknown=True)
    assert refused.value.cure == "Use one of parquet, json, csv, subscribers, delta, kafka, postgres, webhook."
    with pytest.raises(RequestError, match="cannot have 'delta' as its late"):
        check_sink_names(None, "delta", unknown=False)


def test_the_guide_has_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    cursors = {"file": "the pond", "folder": "the folder", "target": "the target", "process": "memory"}
    lines = []
    for kind in BUILT_IN:
        place = ["`path`"] if kind.path else []
        words = ", ".join([*place, *(f"`{option}`" for option in kind.options)]) or "–"
        known = "Python only" if kind.in_process else words
        install = f"`pip install -e '.[{kind.extra}]'`" if kind.extra else "–"
        late, remote = ("yes" if flag else "no" for flag in (kind.late, kind.remote))
        lines.append(f"| `{kind.name}` | {known} | {cursors[kind.cursor]} | {late} | {remote} | {install} |")
    assert "\n".join(lines) in text, "Write these lines into the table:\n" + "\n".join(lines)
    promises = text[text.index("## What each promises") : text.index("## What each needs")]
    promised = [name for row in re.findall(r"^\| (`.*?) \|", promises, re.MULTILINE) for name in row.split(", ")]
    assert {f"`{name}`" for name in KINDS} <= set(promised)
