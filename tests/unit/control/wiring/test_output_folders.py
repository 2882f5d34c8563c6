"""The folders of sinks that name none."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from kit.simulator.changing_pond import ChangingPond
from millpond.control.wiring.output_folders import OutputFolders
from millpond.errors import QueryTypeError
from millpond.log.locations.address import address_of
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.stream import Field, Stream
from millpond.model.windows import Sliding

COUNT = Aggregate("count", None, None, "bigint")
QUERY = Query("q", "tx", "ts", 0, Sliding(10, 10), (), (COUNT,), (Named("n", Column("agg:0", "bigint")),))


def test_rows_and_late_rows_go_below_the_output_folder(tmp_path: Path) -> None:
    query = replace(QUERY, sink=Sink("parquet"), late=Sink("csv"))
    for out, folder in ((None, tmp_path / "pond" / "out"), (address_of(tmp_path / "x"), tmp_path / "x")):
        placed = OutputFolders(address_of(tmp_path / "pond"), out).with_folders(query)
        assert (placed.sink.path, placed.late_sink and placed.late_sink.path) == (f"{folder}/q", f"{folder}/q.late")
        kept = replace(query, sink=Sink("parquet", "mine"), late=Sink("console"))
        assert OutputFolders(address_of(tmp_path / "pond"), out).with_folders(kept) == kept


def test_a_registered_query_keeps_its_folder(tmp_path: Path) -> None:
    (tmp_path / "pond.id").write_text("local")
    registered = replace(QUERY, sink=Sink("parquet", "/elsewhere/q"))
    ChangingPond(tmp_path, [Stream("tx", (Field("ts", "timestamp"),))], [registered], 1, 4)
    folders = OutputFolders(address_of(tmp_path), None)
    assert folders.with_folders(replace(QUERY, sink=Sink("parquet"))).sink.path == "/elsewhere/q"
    assert folders.with_folders(replace(QUERY, sink=Sink("json"))).sink.path == f"{tmp_path}/out/q"
    folders.forget("q")  # it was dropped
    assert folders.with_folders(replace(QUERY, sink=Sink("parquet"))).sink.path == f"{tmp_path}/out/q"


@pytest.mark.parametrize("name", ["../x", "a/b", "..", "a.late"])
def test_a_name_of_no_folder_of_its_own_is_refused(tmp_path: Path, name: str) -> None:
    folders = OutputFolders(address_of(tmp_path / "pond"), None)
    with pytest.raises(QueryTypeError, match="cannot be the name of a folder"):
        folders.with_folders(replace(QUERY, name=name, sink=Sink("parquet")))
    assert folders.with_folders(replace(QUERY, name=name, sink=Sink("parquet", "mine"))).sink.path == "mine"
