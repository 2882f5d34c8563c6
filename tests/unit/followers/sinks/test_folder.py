"""Folder sinks: one file per record, after any crash and any repeated publication."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from io import BytesIO
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from obstore.store import MemoryStore

from millpond.control.checks.sink_folders import check_sink_folders
from millpond.control.diagnose.dead_letters import kinds
from millpond.errors import CorruptError, DiskFullError, ForeignPondError, PlaceError, TruthError, UnsupportedQuery
from millpond.followers import part_folders
from millpond.followers.sinks.file_formats import format_of
from millpond.followers.sinks.folder import CURSOR_NAME, FolderSink, Marker, folder_cursor
from millpond.followers.sinks.make_sink import sink_follower
from millpond.log.cursor import Cursor
from millpond.log.locations import address
from millpond.log.locations.address import address_of
from millpond.log.locations.object_store import StoreObjects
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.runtime.packets.row_batches import dead_letters_of

NOW = datetime(2013, 1, 1, tzinfo=timezone.utc)
END_US = 1356998400_000000


def query(sink: Sink, name: str = "q", window: bool = True) -> Query:
    output = [Named("customer", Column("key:0", "string"))]
    output += [Named("w", Column("window", WINDOW))] if window else []
    return Query(
        name=name,
        stream="s",
        event_time="ts",
        delay_us=0,
        window=Sliding(60_000_000, 60_000_000),
        keys=(),
        aggregates=(),
        output=tuple(output),
        sink=sink,
    )


def make(
    pond: Any, path: Path, form: str = "parquet", pond_id: str = "p", name: str = "q", **options: str
) -> FolderSink:
    sink = Sink(form, str(path), tuple(sorted(options.items())))
    follower = sink_follower(query(sink, name, form != "csv"), pond_id, pond.rows, pond.path / "cursors")
    assert isinstance(follower, FolderSink)
    return follower


@pytest.fixture
def filled(pond: Any, make_row: Any) -> Any:
    """Records: 0 claim, 1 two rows, 2 none, 3 three rows of two instances, 4 claim, 5 one row."""
    pond.claim()
    pond.epoch({"q": [make_row("a", 1.5, END_US), make_row("b", None, END_US)]})
    pond.epoch()
    pond.epoch({"q": [make_row(c, 2.0, END_US) for c in "cde"], "other": [make_row("x", 1.0)]}, instances=2)
    pond.claim()
    pond.epoch({"q": [make_row("f", float("nan"), END_US)]}, inline=True)
    return pond


def visible(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(path.iterdir()) if not p.name.startswith((".", "_"))}


def part(n: int, suffix: str = "parquet") -> str:
    return f"part-{n:020d}.{suffix}"


def test_one_file_per_record_with_rows(filled: Any, tmp_path: Path) -> None:
    sink = make(filled, tmp_path / "out")
    assert (sink.name, sink.cursor().n) == ("sink:q", -1)
    filled.feed(sink)
    assert list(visible(tmp_path / "out")) == [part(1), part(3), part(5)]
    assert sink.cursor().n == 5
    assert pq.read_table(tmp_path / "out" / part(3))["customer"].to_pylist() == ["c", "d", "e"]
    assert sorted(os.listdir(tmp_path / "out")) == ["_millpond", CURSOR_NAME, part(1), part(3), part(5)]


def test_parquet_is_read_by_everybody(filled: Any, tmp_path: Path) -> None:
    filled.feed(make(filled, tmp_path / "out"))
    (tmp_path / "out" / f".part-{9:020d}-abc").write_bytes(b"half")
    table = ds.dataset(tmp_path / "out").to_table()
    assert table.column_names == ["customer", "w", "total"]
    assert table["w"].type == pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
    assert table["w"][0].as_py()["end"] == NOW
    rows = duckdb.sql(f"select customer, total from '{tmp_path}/out/*.parquet' order by 1").fetchall()
    assert [customer for customer, _ in rows] == list("abcdef")
    assert rows[0] == ("a", 1.5) and rows[1] == ("b", None)


def test_json_is_read_by_everybody(filled: Any, tmp_path: Path) -> None:
    filled.feed(make(filled, tmp_path / "out", "json"))
    lines = (tmp_path / "out" / part(1, "json")).read_text().splitlines()
    window = {"start": "2012-12-31T23:59:00.000Z", "end": "2013-01-01T00:00:00.000Z"}
    assert [json.loads(line) for line in lines] == [
        {"customer": "a", "w": window, "total": 1.5},
        {"customer": "b", "w": window},
    ]
    assert json.loads((tmp_path / "out" / part(5, "json")).read_text())["total"] == "NaN"
    found = duckdb.sql(f"select count(*), epoch_us(max(w.end)) from '{tmp_path}/out/*.json'").fetchall()
    assert found == [(6, END_US)]


def test_json_may_name_nulls(filled: Any, tmp_path: Path) -> None:
    filled.feed(make(filled, tmp_path / "out", "json", ignoreNullFields="false"))
    assert json.loads((tmp_path / "out" / part(1, "json")).read_text().splitlines()[1])["total"] is None


def test_csv_with_and_without_header(pond: Any, make_row: Any, tmp_path: Path) -> None:
    # A window has no place in CSV, so these rows are made of the other columns.
    table = pa.table({"customer": ["a,b", "c"], "total": [1.0, None], "__key": ["", ""]})
    pond.rows.batches = lambda entry, query: table
    pond.epoch({"q": [make_row("a", 1.0)]})
    for header, first in (("true", b"customer|total\n"), ("false", b"")):
        out = tmp_path / header
        pond.feed(make(pond, out, "csv", header=header, sep="|"))
        assert visible(out) == {part(0, "csv"): first + b"a,b|1.0\nc|\n"}
    found = duckdb.sql(f"select customer, total from read_csv('{tmp_path}/true/*.csv')").fetchall()
    assert found == [("a,b", 1.0), ("c", None)]


def test_same_record_again_changes_nothing(filled: Any, tmp_path: Path) -> None:
    sink = make(filled, tmp_path / "out")
    filled.feed(sink)
    before = visible(tmp_path / "out")
    filled.feed(sink, 0)
    filled.feed(make(filled, tmp_path / "out"), 0)
    assert visible(tmp_path / "out") == before


def test_missing_record_is_refused(filled: Any, tmp_path: Path) -> None:
    sink = make(filled, tmp_path / "out")
    with pytest.raises(TruthError, match="is at record -1 and was given 3"):
        sink.apply(3, filled.entries[3], filled.at[3])
    assert visible(tmp_path / "out") == {}


class Crash(BaseException):
    """Stands for a process that ends: nothing catches it."""


STEPS: list[tuple[Any, str]] = [(FolderSink, "_create_part"), (part_folders, "_link"), (FolderSink, "_save_cursor")]


@pytest.mark.parametrize("form", ["parquet", "json"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step[1])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_crash_at_any_step_and_again(
    filled: Any, tmp_path: Path, form: str, moment: str, step: tuple[Any, str], n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.feed(make(filled, tmp_path / "whole", form))
    crashing = make(filled, tmp_path / "out", form)
    filled.feed(crashing, last=n - 1)
    original = getattr(*step)

    def crash(*arguments: Any) -> Any:
        if moment == "after":
            original(*arguments)
        raise Crash

    monkeypatch.setattr(*step, crash)
    if n != 2 or step == STEPS[2]:  # record 2 has no rows, so only the cursor moves
        with pytest.raises(Crash):
            filled.feed(crashing, n, n)
    monkeypatch.undo()
    seen = visible(tmp_path / "out")
    whole = visible(tmp_path / "whole")
    assert seen.items() <= whole.items(), "a reader saw half a record"
    after = make(filled, tmp_path / "out", form)
    assert after.cursor().n in (n - 1, n, *([1] if n == 2 else []))
    filled.feed(after)
    assert visible(tmp_path / "out") == whole
    assert not [name for name in os.listdir(tmp_path / "out") if name.startswith(".part")]


def test_leftovers_of_a_killed_publisher_are_removed(filled: Any, tmp_path: Path) -> None:
    filled.feed(make(filled, tmp_path / "out"))
    (tmp_path / "out" / f".part-{3:020d}-abc").write_bytes(b"half")
    (tmp_path / "out" / f".part-{6:020d}-abc").write_bytes(b"of one who may still be at work")
    make(filled, tmp_path / "out")
    hidden = [name for name in os.listdir(tmp_path / "out") if name.startswith(".")]
    assert hidden == [f".part-{6:020d}-abc"]


def test_cursor_file_may_be_lost_or_damaged(filled: Any, tmp_path: Path) -> None:
    filled.feed(make(filled, tmp_path / "out"))
    before = visible(tmp_path / "out")
    for damage in (None, b"", b"{", b'{"n": 1}'):
        (tmp_path / "out" / CURSOR_NAME).unlink()
        if damage is not None:
            (tmp_path / "out" / CURSOR_NAME).write_bytes(damage)
        sink = make(filled, tmp_path / "out")
        assert sink.cursor().n == 5
        filled.feed(sink)
        assert visible(tmp_path / "out") == before
        (tmp_path / "out" / CURSOR_NAME).touch()


@pytest.mark.parametrize("stopped_before", STEPS, ids=lambda step: step[1])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_zombie_wakes_late(
    filled: Any, tmp_path: Path, make_row: Any, stopped_before: tuple[Any, str], n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie = make(filled, tmp_path / "out")
    filled.feed(zombie, last=n - 1)
    original = getattr(*stopped_before)
    seen: list[dict[str, bytes]] = []

    def sleep_through_the_takeover(*arguments: Any) -> Any:
        monkeypatch.undo()
        filled.feed(make(filled, tmp_path / "out"))
        seen.append(visible(tmp_path / "out"))
        return original(*arguments)

    monkeypatch.setattr(*stopped_before, sleep_through_the_takeover)
    filled.feed(zombie, n, n)
    filled.feed(zombie, n + 1)
    if seen:
        assert visible(tmp_path / "out") == seen[0]
    successor = make(filled, tmp_path / "out")
    assert successor.cursor().n == 5
    filled.feed(successor)
    assert list(visible(tmp_path / "out")) == [part(1), part(3), part(5)]


def test_file_system_without_hard_links(filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(part_folders.os, "link", no_link)
    sink = make(filled, tmp_path / "out")
    filled.feed(sink)
    assert list(visible(tmp_path / "out")) == [part(1), part(3), part(5)]


def test_folders_of_another_pond_are_refused_before_spark_starts(filled: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = f"CREATE STREAMING TABLE q USING parquet TBLPROPERTIES ('path' = '{out}') AS SELECT 1"
    check_sink_folders(text, tmp_path)
    sink = make(filled, out, pond_id="old")
    with pytest.raises(ForeignPondError, match="of pond old, and has no rows yet"):
        check_sink_folders(text, tmp_path)
    filled.feed(sink)
    two_statements = "CREATE TABLE out USING parquet; INSERT INTO out SELECT 1"
    for named in (text, "CREATE STREAMING TABLE out USING parquet AS SELECT 1", two_statements):
        with pytest.raises(ForeignPondError, match="holds parquet of query q of pond old"):
            check_sink_folders(named, tmp_path)
    check_sink_folders("CREATE STREAMING TABLE out USING kafka TBLPROPERTIES ('topic' = 'x') AS SELECT 1", tmp_path)


def test_foreign_folders_are_refused(filled: Any, tmp_path: Path) -> None:
    make(filled, tmp_path / "out")
    for other in ({"pond_id": "another"}, {"name": "another"}, {"form": "json"}):
        with pytest.raises(ForeignPondError, match="parquet of query q of pond p"):
            make(filled, tmp_path / "out", **other)
    with pytest.raises(ForeignPondError, match=r"pond p, and has no rows yet\. Delete the folder if that pond is no"):
        make(filled, tmp_path / "out", pond_id="another")
    late = replace(query(Sink("json")), late=Sink("parquet", str(tmp_path / "out")))
    with pytest.raises(ForeignPondError, match=r"parquet of query q .*another folder for the late rows \(parquet\)"):
        sink_follower(late, "p", filled.rows, filled.path / "cursors", late=True)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "data.parquet").touch()
    with pytest.raises(ForeignPondError, match=r"data\.parquet"):
        make(filled, tmp_path / "theirs")
    assert os.listdir(tmp_path / "theirs") == ["data.parquet"]
    (tmp_path / "out" / "_millpond").write_text("?")
    with pytest.raises(ForeignPondError, match="does not say"):
        make(filled, tmp_path / "out")


def test_places_that_cannot_be_written(filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PlaceError):
        make(filled, tmp_path / "file" / "out")
    with pytest.raises(PlaceError, match="The sink's path cannot be at ofs://"):
        make(filled, "ofs://host/out")  # type: ignore[arg-type]
    sink = make(filled, tmp_path / "out")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(part_folders.os, "fsync", full)
    with pytest.raises(DiskFullError, match=f"written to {tmp_path / 'out'}: .*No space left"):
        filled.feed(sink)
    assert visible(tmp_path / "out") == {}
    monkeypatch.undo()
    filled.feed(sink)
    assert len(visible(tmp_path / "out")) == 3


def test_pruned_rows_stop_a_folder_and_the_cure_works(filled: Any, tmp_path: Path) -> None:
    for file in filled.path.glob("delta/*/*.arrow"):
        file.unlink()
    sink = make(filled, tmp_path / "out")
    with pytest.raises(CorruptError, match="does not have them") as caught:
        filled.feed(sink)
    assert CURSOR_NAME in caught.value.cure
    (tmp_path / "out" / CURSOR_NAME).write_text('{"n": 4}')
    filled.feed(sink)
    assert list(visible(tmp_path / "out")) == [part(5)]


def test_new_folder_starts_where_its_query_was_added(filled: Any, tmp_path: Path) -> None:
    wanted = query(Sink("parquet", str(tmp_path / "out")))
    sink = sink_follower(wanted, "p", filled.rows, tmp_path, since=2)
    assert sink.cursor().n == 2
    filled.feed(sink)
    assert list(visible(tmp_path / "out")) == [part(3), part(5)]


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        (Sink("parquet"), "no path"),
        (Sink("orc", "/x"), "no sink orc"),
        (Sink("parquet", "/x", (("colour", "red"),)), "option colour"),
        (Sink("parquet", "/x", (("compression", "rar"),)), "rar"),
        (Sink("json", "/x", (("header", "true"),)), "option header"),
        (Sink("csv", "/x"), "no place for the column w"),
        (Sink("console", None, (("numRows", "few"),)), "few"),
    ],
)
def test_sinks_that_do_not_fit(pond: Any, tmp_path: Path, sink: Sink, message: str) -> None:
    with pytest.raises(UnsupportedQuery, match=message):
        sink_follower(query(sink), "p", pond.rows, tmp_path)


@pytest.mark.parametrize(("option", "value"), [("sep", "ab"), ("sep", '"'), ("header", "maybe")])
def test_csv_options_that_do_not_fit(pond: Any, tmp_path: Path, option: str, value: str) -> None:
    with pytest.raises(UnsupportedQuery):
        make(pond, tmp_path, "csv", **{option: value})


@pytest.mark.parametrize(
    ("form", "kind", "fits"),
    [
        ("json", "array<struct<x:double,y:double>>", True), ("csv", "array<int>", False),
        ("json", "array<map<string,int>>", False), ("json", "array<binary>", False),
        ("json", "struct<a:map<string,int>>", False), ("json", "binary", False),
        ("json", "struct<binary:int,b:binary>", False), ("json", "struct<binary:int>", True), ("csv", "binary", False),
        ("csv", "map<string,int>", False), ("csv", "string", True), ("parquet", "map<string,array<binary>>", True),
    ],
)  # fmt: skip
def test_values_that_a_format_has_no_text_for_are_refused_before_anything_runs(
    form: str, kind: str, fits: bool
) -> None:
    output = (Named("x", Column("x", kind)),)
    if fits:
        assert format_of(Sink(form, "/x"), output).name == form
        return
    with pytest.raises(UnsupportedQuery, match="no place for the column x"):
        format_of(Sink(form, "/x"), output)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> StoreObjects:
    """The objects of the bucket that an address with `s3://bucket/` names, in memory."""
    store = MemoryStore()
    monkeypatch.setattr(
        address, "objects_at", lambda url, _: StoreObjects(store, url.partition("://bucket/")[2], url)
    )  # fmt: skip
    return StoreObjects(store, "", "s3://bucket")


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_a_bucket_gets_the_files_of_a_folder(
    filled: Any, tmp_path: Path, bucket: StoreObjects, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_names = part_folders.ObjectParts.names
    filled.feed(make(filled, tmp_path / "out", form))
    for last in (3, 5, 5):  # another publisher continues, and a third one has nothing to do
        filled.feed(make(filled, "s3://bucket/out", form), last=last)  # type: ignore[arg-type]
    objects = bucket.below("out")
    for file in (tmp_path / "out").iterdir():
        assert objects.get(file.name) == file.read_bytes(), file.name
    assert len([*objects.list()]) == 5, "three parts, the marker and the cursor"
    with monkeypatch.context() as patched:
        listed = list[str]()
        patched.setattr(
            part_folders.ObjectParts, "names",
            lambda of, after="": listed.extend(names := all_names(of, after)) or names,
        )  # fmt: skip
        make(filled, "s3://bucket/out", form)  # type: ignore[arg-type]
        assert [name.partition(".")[0] for name in listed] == [f"part-{5:020}"], "not the earlier ones"
    objects.remove([CURSOR_NAME])
    sink = make(filled, "s3://bucket/out", form)  # type: ignore[arg-type]
    assert sink.cursor().n == 5 == folder_cursor(address_of("s3://bucket/out"))
    with pytest.raises(ForeignPondError, match=f"The folder s3://bucket/out holds {form} of query q of pond p"):
        make(filled, "s3://bucket/out", form, name="another")  # type: ignore[arg-type]
    assert "deleting 2 files of later records from s3://bucket/out" in sink.rewind(Cursor(1))
    filled.feed(sink)
    assert len([*objects.list()]) == 5


def test_a_bucket_with_other_objects_is_refused(filled: Any, bucket: StoreObjects) -> None:
    bucket.put("out/data.parquet", b"x")
    with pytest.raises(ForeignPondError, match=r"not Millpond's, such as data\.parquet"):
        make(filled, "s3://bucket/out")  # type: ignore[arg-type]
    assert folder_cursor(address_of("s3://bucket/empty")) == -1


def test_dead_letters_in_a_bucket_are_listed(filled: Any, bucket: StoreObjects) -> None:
    marker = Marker("p", dead_letters_of("s"), "parquet")
    file = BytesIO()
    pq.write_table(pa.table({"topic": ["t"], "reason": ["r"], "offset": [1], "timestamp": [NOW]}), file)
    bucket.put("dead/_millpond", msgspec.json.encode(marker))
    bucket.put(f"dead/{part(7)}", file.getvalue())
    (found,) = kinds(Path("s3://bucket/dead"))
    assert (found.topic, found.reason, found.letters) == ("t", "r", 1)
