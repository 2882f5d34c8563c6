"""Sources of packages, ORC files, tables of Delta Lake and Iceberg in a pond: what is read, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pj
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import orc
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, StringType, TimestamptzType
from pyspark.sql import SparkSession

from kit.inputs.plugin_packages import install_plugin
from millpond import Pond
from millpond.errors import InputError, LateSchemaError, QueryTypeError
from millpond.model.endpoints import GROUP, Source
from millpond.plan.explain.plan_text import explain
from millpond.spark.catalyst.private_names import items
from millpond.spark.reading.file_source import list_in_driver
from millpond.spark.session.session import reading_session

LIMIT = "spark.sql.sources.parallelPartitionDiscovery.threshold"
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


def jobs_that_list(spark: SparkSession) -> int:
    """The number of Spark's jobs that have looked at files."""
    context: Any = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    store = context.statusStore()
    return sum("Listing leaf files" in str(job.description()) for job in items(store.jobsList(None)))


def test_many_folders_of_partitions_are_listed_without_a_job(spark: SparkSession, tmp_path: Path) -> None:
    for day in range(40):
        (tmp_path / "in" / f"day={day}").mkdir(parents=True)
        (tmp_path / "in" / f"day={day}" / "1.json").write_text(f'{{"n": {day}}}')
    pond_file = f"CREATE TABLE tx (n INT, day INT) USING json OPTIONS (path '{tmp_path}/in')"
    before = jobs_that_list(spark)
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(pond_file)
        pond.add("q", "SELECT n, day FROM STREAM tx")
        pond.run()
        assert sorted((row["n"], row["day"]) for row in pond.table("q").to_pylist()) == [(n, n) for n in range(40)]
    assert jobs_that_list(spark) == before


def test_other_files_than_local_ones_are_listed_by_jobs(spark: SparkSession) -> None:
    def limit_of(*paths: str, chosen: str = "") -> str:
        reading = reading_session(spark)
        if chosen:
            reading.conf.set(LIMIT, chosen)
        list_in_driver(reading, [None, Source("rate", ()), *(Source("json", (("path", path),)) for path in paths)])
        return str(reading.conf.get(LIMIT))

    assert int(limit_of("file:/a", "/b", "FILE:///c")) > 1_000_000
    assert limit_of("file:/a", "s3a://bucket/b") == limit_of("hdfs://host/a") == "32"
    assert limit_of("file:/a", chosen="100") == "100"


TAKEN = """
CREATE TABLE tx (c STRING, ts TIMESTAMP, n INT) USING {source} OPTIONS (path '{folder}/in', maxFilesPerTrigger '1');
CREATE STREAMING TABLE taken USING json TBLPROPERTIES ('path' = '{folder}/out') AS
  SELECT c, n FROM STREAM tx WHERE n > 0;
"""


def appended(*numbers: int) -> pa.Table:
    times = pa.array([1_700_000_000_000_000 + n for n in numbers], pa.timestamp("us", "UTC"))
    return pa.table({"c": [f"c{n % 2}" for n in numbers], "ts": times, "n": pa.array(numbers, pa.int32())})


def taking(spark: SparkSession, folder: Path, source: str) -> Pond:
    """A pond that takes the rows of the table in `in`."""
    pond = Pond(spark, folder / "pond")
    pond.load(TAKEN.format(source=source, folder=folder))
    return pond


def test_rows_that_are_appended_to_a_table_of_delta_are_read_once(spark: SparkSession, tmp_path: Path) -> None:
    def append(*numbers: int) -> None:
        write_deltalake(str(tmp_path / "in"), appended(*numbers), mode="append", partition_by=["c"])

    append(0, 1, 2)
    append(3)
    with taking(spark, tmp_path, "delta") as pond:
        pond.run(once=True)
        assert "added to its table are read with Arrow" in explain(pond.plan, pond.streams)
    assert rows(tmp_path / "out") == [("c0", 2), ("c1", 1), ("c1", 3)]
    append(4, 5)
    DeltaTable(str(tmp_path / "in")).optimize.compact()
    append(6)
    with taking(spark, tmp_path, "delta") as pond:
        pond.run(once=True)
        assert rows(tmp_path / "out") == [("c0", 2), ("c0", 4), ("c0", 6), ("c1", 1), ("c1", 3), ("c1", 5)]
        DeltaTable(str(tmp_path / "in")).delete("n = 5")
        with pytest.raises(InputError, match="deletes or changes rows"):
            pond.run(once=True)


def test_rows_that_are_appended_to_a_table_of_iceberg_are_read_once(spark: SparkSession, tmp_path: Path) -> None:
    uris = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    catalog = load_catalog("lake", **uris)
    catalog.create_namespace("s")
    kinds = {"n": IntegerType(), "ts": TimestamptzType(), "c": StringType()}
    columns = (NestedField(place, name, kind) for place, (name, kind) in enumerate(kinds.items(), 1))
    table = catalog.create_table("s.t", Schema(*columns))
    metadata = tmp_path / "in/metadata"
    metadata.mkdir(parents=True)

    def publish() -> None:
        """Number the metadata as a Hadoop catalog does; workers do not know the catalog."""
        shutil.copy(
            table.metadata_location.removeprefix("file://"), metadata / f"v{len([*metadata.iterdir()])}.metadata.json"
        )

    def append(*numbers: int) -> None:
        table.append(appended(*numbers))
        publish()

    append(0, 1, 2)
    append(3)
    with taking(spark, tmp_path, "iceberg") as pond:
        pond.run(once=True)
        assert "added to its table are read with Arrow" in explain(pond.plan, pond.streams)
    assert rows(tmp_path / "out") == [("c0", 2), ("c1", 1), ("c1", 3)]
    append(4)
    append(6)
    with taking(spark, tmp_path, "iceberg") as pond:
        pond.run(once=True)
        assert rows(tmp_path / "out") == [("c0", 2), ("c0", 4), ("c0", 6), ("c1", 1), ("c1", 3)]
        table.delete("n = 6")
        publish()
        with pytest.raises(InputError, match="deletes or changes rows"):
            pond.run(once=True)
