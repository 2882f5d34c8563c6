"""Existing files are checked before a start: unreadable files are errors, missing columns notes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond.control.checks.input_files import FILES, check_files
from millpond.errors import LateSchemaError
from millpond.model.endpoints import Source
from millpond.model.stream import Field, Stream
from millpond.spark.reading.columns_of_sources import ReadColumns

COLUMNS = {"ts": "timestamp", "c": "string", "v": "bigint"}


def reading(
    folder: Path, source: str = "parquet", columns: dict[str, str] | None = None, **options: str
) -> ReadColumns:
    columns = columns or COLUMNS
    given = Source(source, tuple(sorted({"path": str(folder), **options}.items())))
    stream = Stream("tx", tuple(Field(*column) for column in columns.items()), given)
    return ReadColumns(stream, frozenset(columns), frozenset({"ts"}))


def table(**other: Any) -> pa.Table:
    columns = {"ts": pa.array([0], pa.timestamp("us", "UTC")), "c": ["a"], "v": [1]} | other
    return pa.table({name: column for name, column in columns.items() if column is not None})


def written(path: Path, what: pa.Table | str | bytes, age: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(what, pa.Table):
        pq.write_table(what, path)
    else:
        path.write_bytes(what.encode() if isinstance(what, str) else what)
    os.utime(path, (1_700_000_000 - age,) * 2)
    return path


def test_files_that_fit_are_no_news(tmp_path: Path) -> None:
    written(tmp_path / "0.parquet", table())
    written(tmp_path / "1.parquet", table(more=[1]).rename_columns(["TS", "C", "V", "more"]))
    written(tmp_path / "2.parquet", b"PAR1 but no file")
    written(tmp_path / "_hidden.parquet", table(v=["x"]))
    assert check_files([reading(tmp_path), reading(Path("hdfs://there/in")), reading(tmp_path, "rate")]) == []


@pytest.mark.parametrize(("other", "what", "cure"), [
    ({"v": ["x"]}, "holds v as BYTE_ARRAY String, .* bigint", "Declare v STRING"),
    ({"v": [1.5]}, "holds v as DOUBLE, .* bigint", "Declare v DOUBLE"),
    ({"ts": pa.array([0], pa.timestamp("ns"))}, "ts as a time in nanoseconds", "coerce_timestamps='us'"),
    ({"ts": [0]}, "ts as INT64, .* timestamp", "Declare ts BIGINT"),
    ({"c": [[1]], "v": [[1]], "ts": None}, "has no column ts, the event time of the stream tx; it has c, v", "Mend"),
])  # fmt: skip
def test_a_type_that_spark_cannot_read_is_reported(tmp_path: Path, other: dict[str, Any], what: str, cure: str) -> None:
    written(tmp_path / "0.parquet", table(), 1)
    bad = written(tmp_path / "day=1" / "1.parquet", table(**other))
    with pytest.raises(LateSchemaError, match=what) as caught:
        check_files([reading(tmp_path)])
    assert str(bad) in caught.value.what and cure in caught.value.cure and "\n" not in str(caught.value)


def test_a_column_without_readers_may_be_anything(tmp_path: Path) -> None:
    written(tmp_path / "0.parquet", table(v=["x"]))
    assert check_files([reading(tmp_path)._replace(columns=frozenset({"ts", "c"}))]) == []


def test_a_missing_column_is_a_note_unless_its_folder_names_it(tmp_path: Path) -> None:
    bad = written(tmp_path / "0.parquet", table(v=None))
    written(tmp_path / "v=7" / "1.parquet", table(v=None))
    [note] = check_files([reading(tmp_path)])
    assert note.what == f"{bad} has no column v, which is NULL there for the stream tx."


def test_only_the_newest_files_are_opened(tmp_path: Path) -> None:
    written(tmp_path / "old.parquet", table(v=["x"]), 9)
    for number in range(FILES):
        written(tmp_path / f"{number}.parquet", table())
    assert check_files([reading(tmp_path)]) == []
    with pytest.raises(LateSchemaError):
        check_files([reading(tmp_path, pathGlobFilter="o*")])


def test_headers_of_csv(tmp_path: Path) -> None:
    path = written(tmp_path / "0.csv", "c,ts,v\na,2024-01-01,1\n")
    assert check_files([reading(tmp_path, "csv")]) == []
    with pytest.raises(LateSchemaError, match="has c as column 1, but the stream tx declares it as column 2"):
        check_files([reading(tmp_path, "csv", header="true")])
    written(path, "ts;other\n2024-01-01;a\n")
    [note] = check_files([reading(tmp_path, "csv", header="true", sep=";")])
    assert "has no column v" in note.what
    written(path, b"\xff\xfe\x00")
    assert check_files([reading(tmp_path, "csv", header="true")]) == []


def test_first_records_of_json(tmp_path: Path) -> None:
    path = written(tmp_path / "0.json", '{"time": "2024-01-01", "c": "a"}\n')
    [note] = check_files([reading(tmp_path, "json")])
    assert note.what.startswith(f"The first record of {path} has no ts, the event time, but time, c; ")
    for fine in ('{"ts": 1}', "[1]", "", "{", '{\n"a": 1}'):
        written(path, fine)
        assert check_files([reading(tmp_path, "json")]) == []
