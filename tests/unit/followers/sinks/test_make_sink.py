"""Console, noop and memory sinks."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from millpond.errors import QueryError
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.in_process import MemorySink, MemoryTables
from millpond.followers.sinks.local_sinks import ConsoleSink, NoopSink
from millpond.followers.sinks.make_sink import sink_follower
from millpond.log.manifest import Manifest
from millpond.log.records import decode
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.types import INTERVAL
from millpond.model.windows import Sliding


@pytest.fixture
def filled(pond: Any, make_row: Any) -> Any:
    pond.claim()
    pond.epoch({"q": [make_row("a", 1.5), make_row("long name", None)]})
    pond.epoch()
    pond.epoch({"q": [make_row("c", 2.0)]})
    return pond


def test_noop_keeps_only_a_cursor(filled: Any, tmp_path: Path) -> None:
    sink = NoopSink("a/b", tmp_path / "cursors")
    filled.feed(sink)
    assert NoopSink("a/b", tmp_path / "cursors").cursor().n == 3
    assert NoopSink("a", tmp_path / "cursors", since=1).cursor().n == 1
    assert filled.reads == 0


def test_late_rows_have_a_reader_a_name_and_a_cursor_of_their_own(pond: Any, make_row: Any, tmp_path: Path) -> None:
    pond.claim()
    pond.epoch({"q": [make_row("a", 1.5)]}, late={"q": [make_row("b", 2.5), make_row("c", 3.5)]})
    pond.epoch(late={"q": [make_row("d", 4.5)]}, quarantined={"q": "it raised"})
    kept = {}
    for late in (False, True):
        query = Query("q", "s", "ts", 0, Sliding(1, 1), (), (), (), sink=Sink("memory"), late=Sink("memory"))
        tables = MemoryTables()
        follower = sink_follower(
            query, "p", RowsReader(pond.read_section, "late" if late else "rows"), tmp_path, memory=tables, late=late
        )
        pond.feed(follower)
        kept[follower.name] = tables.table("q")["customer"].to_pylist()
    assert kept == {"sink:q": ["a"], "late:q": ["b", "c", "d"]}
    names = []
    for late in (False, True):
        shown = replace(query, sink=Sink("console"), late=Sink("console"))
        follower = sink_follower(shown, "p", RowsReader(pond.read_section), tmp_path, late=late)
        names.append((follower.name, follower.cursor().n))
        follower.apply(0, decode(pond.log.read(0)), Manifest())
    assert names == [("sink:q", -1), ("late:q", -1)]


def test_console_prints_small_tables(filled: Any, tmp_path: Path) -> None:
    printed: list[str] = []
    sink = ConsoleSink("q", tmp_path, filled.rows, shown=1, write=printed.append)
    filled.feed(sink)
    assert printed[0].splitlines() == [
        "q @ 1 (2 rows)",
        "customer  w                                                       total",
        "a         {1970-01-01 00:00:00+00:00, 1970-01-01 00:01:00+00:00}  1.5",
        "… and 1 more",
        "",
    ]
    assert printed[1].startswith("q @ 3 (1 row)\n")
    filled.feed(ConsoleSink("q", tmp_path, filled.rows, write=printed.append), 0)
    assert len(printed) == 2


def test_console_says_null_and_uses_standard_output(
    filled: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled.feed(ConsoleSink("q", tmp_path, filled.rows))
    assert "NULL" in capsys.readouterr().out


def test_console_goes_on_once_standard_output_was_closed(
    filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read, write = os.pipe()
    os.close(read)
    sink = ConsoleSink("q", tmp_path, filled.rows)
    with open(write, "w", encoding="utf-8") as output:
        monkeypatch.setattr(sys, "stdout", output)
        filled.feed(sink)
    assert sink.cursor().n == 3
    assert caplog.messages == ["Standard output was closed, so console sinks show no more rows."]


def test_memory_keeps_tables(filled: Any) -> None:
    tables = MemoryTables()
    sink = MemorySink("q", filled.rows)
    tables.add("q", sink)
    assert tables.table("q").num_rows == 0
    filled.feed(sink)
    filled.feed(sink, 0)
    assert tables.table("q")["customer"].to_pylist() == ["a", "long name", "c"]
    assert [(n, table.num_rows) for n, table in sink.epochs()] == [(1, 2), (3, 1)]
    with pytest.raises(QueryError):
        tables.table("other")


def test_memory_and_console_pass_over_pruned_rows(filled: Any, tmp_path: Path) -> None:
    next(filled.path.glob(f"delta/{1:020d}/*")).unlink()
    memory, printed = MemorySink("q", filled.rows), []
    filled.feed(memory)
    filled.feed(ConsoleSink("q", tmp_path, filled.rows, write=printed.append))
    assert [n for n, _ in memory.epochs()] == [3]
    assert len(printed) == 1


def test_a_sink_without_intervals_refuses_them_by_the_name_of_the_column(tmp_path: Path) -> None:
    length = Named("length", Column("length", f"array<{INTERVAL}>"))
    query = Query("q", "s", "ts", 0, Sliding(1, 1), (), (), (length,), sink=Sink("delta", "out"))
    with pytest.raises(QueryError, match=r"no type for the column length.*interval") as refused:
        sink_follower(query, "p", RowsReader(lambda *_: b""), tmp_path)
    assert refused.value.cure == "Cast it to string."
