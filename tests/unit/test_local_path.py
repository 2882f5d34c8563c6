"""Local paths: other schemes are refused with their name, wherever a path is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from millpond import Pond
from millpond.cli import app
from millpond.connections import connection
from millpond.control.pond.function_file import declared_functions
from millpond.control.wiring.latest_rows import LatestRows
from millpond.control.wiring.pond_reader import read_truth
from millpond.control.wiring.stores_and_followers import checked_store
from millpond.control.wiring.truth import open_truth
from millpond.errors import PlaceError
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.make_sink import dead_letter_follower
from millpond.local_path import local_path, replaced, scheme_of
from millpond.log.locations.address import SCHEMES
from millpond.model.endpoints import Sink, Source
from millpond.model.stream import Stream
from millpond.service.api.client import Client
from millpond.service.api.service_files import places_of
from millpond.service.terminal.parse_arguments import selected
from millpond.spark.sources.declared_paths import as_written, at, located, notes
from millpond.spark.sources.value_schemas import schema_text
from millpond.testing import Trial

REMOTE = ["s3://b/p", "s3a://b/p", "hdfs://h:1/p", "gs://b/p", "abfss://c@a/p", "dbfs:/p", "HDFS:///p", "http://h/p"]


def address_is_known(path: str) -> bool:
    """Whether a pond can be there, in an object store or in HDFS."""
    return path.partition(":")[0] in SCHEMES


@pytest.mark.parametrize("path", REMOTE)
def test_a_scheme_is_refused_by_its_name(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    entries = {
        "pond": lambda: Pond(None, path),
        "path": lambda: Pond(None, Path(path)),
        "truth": lambda: open_truth(Path(path)),
        "reader": lambda: read_truth(Path(path)),
        "service": lambda: places_of(Path(path)),
        "client": lambda: Client.of(path),
        "store": lambda: checked_store(f"lmdb:{path}"),
        "rows": lambda: LatestRows({}).served({"path": path, "query": "q"}),
        "functions": lambda: declared_functions({"MILLPOND_FUNCTIONS": path}),
        "connections": lambda: connection("c", {"MILLPOND_CONNECTIONS": path}),
        "schema": lambda: schema_text(Stream("s", ()), path),
        "query": lambda: selected(f"{path}/q.sql"),
        "trial": lambda: Trial(path),
        "letters": lambda: dead_letter_follower("s", Sink("parquet", path), "p", RowsReader(None)),  # type: ignore[arg-type]
    }
    if address_is_known(path):
        for name in ("pond", "path", "truth", "reader", "rows", "service", "client", "letters"):
            del entries[name]
    for name, entry in entries.items():
        with pytest.raises(PlaceError, match=path.partition(":")[0].lower() + "://") as refused:
            entry()
        assert refused.value.cure, name
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["run", "FILE", "--checkpoint", "ofs://h/p"], ["run", "hdfs://h/p.sql"], ["why", "q", "--checkpoint", "ofs://h/p"],
        ["lookup", "q", "k", "--checkpoint", "ofs://h/p"], ["doctor", "--checkpoint", "ofs://h/p"],
        ["repair", "FILE", "--checkpoint", "dbfs:/p"], ["demo", "--checkpoint", "s3://b/p"],
        ["serve", "FILE", "--checkpoint", "ofs://b/p"], ["explain", "--checkpoint", "ftp://h/p"],
        ["compile", "FILE", "-o", "s3://b/p.json"], ["dlq", "list", "s3://b/p"], ["status", "--checkpoint", "ftp://b/p"],
        ["run", "FILE", "--store", "lmdb:s3://b/p"], ["repair", "FILE", "--store", "lmdb:s3://b/p"],
    ],
)  # fmt: skip
def test_the_command_line_refuses_it_and_makes_no_folder(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("run", "doctor"):  # an address is refused before Spark starts
        monkeypatch.setattr(f"millpond.control.commands.{module}.spark_session", pytest.fail, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.sql").write_text("CREATE TABLE s (ts TIMESTAMP) USING json OPTIONS (path 'in')")
    found = CliRunner().invoke(app, [word.replace("FILE", "a.sql") for word in words])
    assert isinstance(found.exception, PlaceError), found.exception
    assert [path.name for path in tmp_path.iterdir()] == ["a.sql"]


def test_local_ones_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_path("a/../b", "It") == tmp_path / "b" == local_path(f"file://{tmp_path}/b", "It")
    assert local_path("file://localhost/b", "It") == Path("/b") == local_path("file:/b", "It")
    assert local_path("a:b", "It") == tmp_path / "a:b" and scheme_of("c/s3://x") is None
    assert checked_store("lmdb:x") == f"lmdb:{tmp_path}/x" and checked_store("lmdb") == "lmdb"
    with pytest.raises(PlaceError, match="another host"):
        local_path("file://elsewhere/b", "It")


def test_a_relative_path_begins_where_it_was_declared() -> None:
    options = (("cleanSource", "archive"), ("path", "in/*"), ("sourceArchiveDir", "old"))
    written = Stream("s", (), Source("json", options))
    absolute = located(written, "/home")
    assert absolute.source == Source(
        "json", (("cleanSource", "archive"), ("path", "file:/home/in/*"), ("sourceArchiveDir", "file:/home/old"))
    )
    assert located(absolute, "/elsewhere") == absolute
    assert as_written({"path": "/home/in/*"} | notes(written, "/home")) == {"path": "in/*"}
    assert notes(absolute, "/home") == {"millpond.stream": absolute.name} and at("s3a://b/in", "/home") == "s3a://b/in"
    kafka = Stream("k", (), Source("kafka", (("schema", "a.proto"), ("subscribe", "t"))))
    assert located(kafka, "/home").source == Source("kafka", (("schema", "/home/a.proto"), ("subscribe", "t")))


def test_a_file_is_replaced_at_the_end_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replaced(path) as draft:
        draft.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    with replaced(path) as draft:
        draft.write_text("new")
        assert path.read_text() == "old"
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("file", "new")]
