"""Frames of declared streams: their name, and relative paths from the folder that was current at the declaration."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from millpond import Pond
from millpond.errors import PlaceError, QueryTypeError
from millpond.model.endpoints import Sink, Source
from millpond.model.stream import Field, Stream
from millpond.reconfigure.inner_reports import stream_labels

SQL = """CREATE TABLE s (ts TIMESTAMP, k STRING, v INT) USING json OPTIONS (path 'in');
CREATE TEMPORARY VIEW t (k STRING, n INT) USING json OPTIONS (path 'table');
CREATE STREAMING TABLE o USING json TBLPROPERTIES ('path' = 'o') AS SELECT v FROM STREAM s;
CREATE STREAMING TABLE j USING json TBLPROPERTIES ('path' = 'j') AS SELECT v, n FROM STREAM s JOIN t ON s.k = t.k;
CREATE STREAMING TABLE e USING json TBLPROPERTIES ('path' = 'e') AS SELECT v, x FROM STREAM s
LATERAL VIEW explode(array(v, 10)) AS x"""

P = Stream("p", (Field("ts", "timestamp"), Field("v", "int")), Source("json", (("path", "in"),)))


def _rows(folder: Path) -> list[dict[str, object]]:
    return sorted((json.loads(line) for part in folder.glob("part-*") for line in part.open()), key=str)


@pytest.fixture
def remote_default(spark: SparkSession) -> Iterator[None]:
    """The default file system of Hadoop is one that does not answer, as HDFS is on YARN; nothing may use it."""
    assert spark.catalog.databaseExists("default")  # its folder would be in that file system if it were made later
    settings = spark._jsc.hadoopConfiguration()  # type: ignore[union-attr]
    before = settings.get("fs.defaultFS")
    settings.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    yield
    settings.set("fs.defaultFS", before)


def test_a_pond_reads_and_writes_where_it_was_declared(
    spark: SparkSession, remote_default: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, v in (("one", 1), ("two", 2)):
        home = tmp_path / name
        (home / "in").mkdir(parents=True)
        (home / "in" / "a.json").write_text(json.dumps({"ts": "2024-01-01T00:00:01Z", "k": "a", "v": v}))
        (home / "table").mkdir()
        (home / "table" / "a.json").write_text(json.dumps({"k": "a", "n": v * 10}))
    for name, v in (("one", 1), ("two", 2)):
        monkeypatch.chdir(tmp_path / name)
        with Pond(spark, "pond", store="lmdb:store/rows") as pond:
            pond.load(SQL)
            table = pond.stream(P)
            pond.add("d", table.select("v"), sink=Sink("json", "d"), late=None)
            monkeypatch.chdir(tmp_path)
            assert "s joined with t" in stream_labels(pond.streams, pond.relations).values()
            assert pond.notes() == []
            pond.run(once=True)
            assert dict(pond.streams[0].source.options if pond.streams[0].source else ()) == {"path": "in"}
        home = tmp_path / name
        assert (_rows(home / "o"), _rows(home / "d")) == ([{"v": v}], [{"v": v}])
        assert (_rows(home / "j"), len(_rows(home / "e"))) == ([{"v": v, "n": v * 10}], 2)
    assert sorted(os.listdir(tmp_path)) == ["one", "two"]
    monkeypatch.chdir(tmp_path / "one")  # and it goes on with the same texts
    (tmp_path / "one" / "in" / "b.json").write_text(json.dumps({"ts": "2024-01-01T00:00:02Z", "k": "a", "v": 5}))
    with Pond(spark, "pond", store="lmdb:store/rows") as pond:
        pond.load(SQL)
        pond.add("d", pond.stream(P).select("v"), sink=Sink("json", "d"))
        monkeypatch.chdir(tmp_path)
        pond.run(once=True)
    assert _rows(tmp_path / "one" / "o") == [{"v": 1}, {"v": 5}]


def test_a_frame_of_sparks_with_a_relative_path_that_means_another_folder(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_in = str(spark._jvm.java.lang.System.getProperty("user.dir"))  # type: ignore[union-attr]
    folder = os.path.relpath(tmp_path, started_in)
    frame = spark.readStream.schema("ts TIMESTAMP, v INT").json(folder).select("v")
    with Pond(spark, tmp_path / "pond") as pond:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(QueryTypeError, match="Write the absolute path") as refused:
            pond.add("q", frame)
        assert folder in refused.value.what and str(tmp_path) in refused.value.what
        monkeypatch.chdir(started_in)
        pond.add("q", frame)
        with pytest.raises(PlaceError, match="The sink of r cannot be at dbfs://"):
            pond.add("r", frame, sink=Sink("json", "dbfs:/b/o"))
        with pytest.raises(PlaceError, match="The folder of late rows of r cannot be at ofs://"):
            late = spark.readStream.schema("ts TIMESTAMP, v INT").json(folder).withWatermark("ts", "1 second")
            pond.add("r", late.groupBy(F.window("ts", "1 hour")).count(), late=Sink("json", "ofs://h/o"))
        letters = """CREATE TABLE k (v INT) USING kafka OPTIONS (subscribe 't', format 'json')
            TBLPROPERTIES ('dead.path' = 'ofs://b/dead')"""
        with pytest.raises(PlaceError, match="The folder of dead letters of k cannot be at ofs://"):
            pond.load(letters)


def test_a_frame_reads_the_stream_that_it_names(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    far = (datetime.now(timezone.utc) + timedelta(days=3)).isoformat()
    lines = [{"k": "a", "ts": "2026-01-01T00:00:00Z"}, {"k": "far", "ts": far}]
    (tmp_path / "in" / "a.json").write_text("\n".join(map(json.dumps, lines)))
    table = (
        "CREATE TABLE {} (k STRING, ts TIMESTAMP) USING json OPTIONS (path '{}') TBLPROPERTIES ('max_ahead' = '{}');"
    )
    twins = {"strict": "1 hour", "loose": "none"}
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        tables = (table.format(name, tmp_path / "in", ahead) for name, ahead in twins.items())
        pond.load("\n".join([*tables, "CREATE TEMPORARY VIEW seen AS SELECT k, ts FROM STREAM loose;"]))
        own = spark.readStream.format("json").schema("k STRING, ts TIMESTAMP").load(str(tmp_path / "in"))
        frames = {"strict": pond.stream("strict"), "loose": pond.stream("loose"), "own": own}
        made = {}
        for name, frame in frames.items():
            counts = frame.withWatermark("ts", "1 second").groupBy(F.window("ts", "1 hour"), "k").count()
            made[f"by_{name}"] = pond.add(f"by_{name}", counts)
        made["by_view"] = pond.add(
            "by_view", "SELECT window(ts, '1 hour') AS w, k, count(*) AS n FROM STREAM seen "
            "WATERMARK ts DELAY OF INTERVAL 1 SECOND GROUP BY ALL",
        )  # fmt: skip
        named = {name: query.streams for name, query in made.items()}
        assert named == {"by_strict": ("strict",), "by_loose": ("loose",), "by_own": ("strict",), "by_view": ("loose",)}
        assert {stream.name: stream.source for stream in pond.streams}["loose"] == Source(
            "json", (("path", str(tmp_path / "in")),)
        ), "the name is no part of the source"
        pond.run(drain=True)
        keys = {name: sorted(row["k"] for row in pond.table(name).to_pylist()) for name in made}
    assert keys == {"by_strict": ["a"], "by_loose": ["a", "far"], "by_own": ["a"], "by_view": ["a", "far"]}
