"""Sources that packages add, and ORC, in a pond: they are read, and their files checked before the start."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.json as pj
import pytest
from pyarrow import orc
from pyspark.sql import SparkSession

from kit.inputs.plugin_packages import install_plugin
from millpond import Pond
from millpond.errors import LateSchemaError, QueryTypeError
from millpond.model.endpoints import GROUP

SOURCE = """
from millpond.errors import LateSchemaError
from millpond.model.endpoints import SourceKind

prepared = []

def look(reading, path, options):
    if path.stat().st_size == 0:
        raise LateSchemaError(f"{path} is empty.", "Remove it.")
    yield from ()

KIND = SourceKind(
    name="ndjson", format="json", options=("path", "mode"), files=True, again=True, look="millpond_lines:look",
    prepare="millpond_lines:prepared.append",
)
"""
COUNT = """
CREATE TABLE tx (c STRING, ts TIMESTAMP) USING {source} OPTIONS (path '{folder}/in');
CREATE STREAMING TABLE counted USING json TBLPROPERTIES ('path' = '{folder}/out') AS
  SELECT c, count(*) AS n FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY c, window(ts, '1 hour');
"""


def rows(folder: Path) -> list[tuple[str, int]]:
    found = [pj.read_json(file).to_pylist() for file in sorted(folder.glob("*.json"))]
    return sorted((row["c"], row["n"]) for some in found for row in some)


def run(spark: SparkSession, folder: Path, source: str) -> None:
    """Counts the events of three records."""
    with Pond(spark, folder / "pond") as pond:
        pond.load(COUNT.format(source=source, folder=folder))
        pond.run(once=True, drain=True)
    assert rows(folder / "out") == [("a", 2), ("b", 1)]


def test_a_stream_of_orc(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    times = pa.array([1_700_000_000_000_000 + n for n in range(3)], pa.timestamp("us", "UTC"))
    orc.write_table(pa.table({"c": ["a", "b", "a"], "ts": times}), tmp_path / "in" / "1.orc")
    run(spark, tmp_path, "orc")


def test_orc_files_without_the_event_time_are_refused_before_the_start(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    orc.write_table(pa.table({"c": ["a"], "at": [1]}), tmp_path / "in" / "1.orc")
    with (
        Pond(spark, tmp_path / "pond") as pond,
        pytest.raises(LateSchemaError, match=r"1\.orc has no column ts, the event time of the stream tx; it has c, at"),
    ):
        pond.load(COUNT.format(source="orc", folder=tmp_path))
        pond.run(once=True)


def test_a_source_of_a_package(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin(tmp_path / "site", monkeypatch, GROUP, {"ndjson": "millpond_lines:KIND"}, millpond_lines=SOURCE)
    (tmp_path / "in").mkdir()
    lines = [f'{{"c": "{c}", "ts": "2023-11-14T22:13:2{n}Z"}}\n' for n, c in enumerate("aba")]
    (tmp_path / "in" / "1.json").write_text("".join(lines))
    run(spark, tmp_path, "ndjson")
    from millpond_lines import prepared  # type: ignore[import-not-found]

    assert prepared, "the source is prepared before it is read"
    (tmp_path / "in" / "2.json").touch()
    with Pond(spark, tmp_path / "other") as pond, pytest.raises(LateSchemaError, match=r"2\.json is empty"):
        pond.load(COUNT.format(source="ndjson", folder=tmp_path))
        pond.run(once=True)
    with Pond(spark, tmp_path / "wrong") as pond, pytest.raises(QueryTypeError, match="option of ndjson"):
        pond.load(f"CREATE TABLE tx (c STRING) USING ndjson OPTIONS (path '{tmp_path}/in', header 'true')")
