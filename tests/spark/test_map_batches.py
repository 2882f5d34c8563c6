"""Functions of whole Arrow batches between a source and its queries: windowed, stateless, exploded, restarted."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from millpond import Pond
from millpond.errors import ForeignPondError, MillpondError, QueryTypeError, UnsupportedQuery
from millpond.model.endpoints import Sink, Source
from millpond.model.stream import Field, Order, Stream
from millpond.plan.explain.plan_text import explain

pytestmark = pytest.mark.slow

COLUMNS = (Field("id", "bigint"), Field("kind", "string"), Field("amount", "double"), Field("ts", "timestamp"))
SOURCE = '''
import pyarrow as pa
import pyarrow.compute as pc


def scored(batch):
    """Two rows for each of kind `pos`, none for others; raises for amounts below zero."""
    if pc.any(pc.less(batch["amount"], 0)).as_py():
        raise ValueError("negative")
    taken = batch.filter(pc.equal(batch["kind"], "pos"))
    twice = pa.concat_batches([taken, taken])
    scores = pc.multiply(twice["amount"], {factor})
    tags = pa.array([["a", str(id)] for id in twice["id"].to_pylist()], pa.list_(pa.string()))
    return pa.RecordBatch.from_arrays([scores, twice["id"], twice["ts"], tags], names=["score", "id", "ts", "tags"])


def numbers(batch):
    return batch.select(["id"])


def wrong(batch):
    return batch
'''
SCHEMA = "id BIGINT, score DOUBLE, tags ARRAY<STRING>, ts TIMESTAMP"


@pytest.fixture(scope="module")
def module(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    path = tmp_path_factory.mktemp("code") / "pond_scores.py"
    path.write_text(SOURCE.replace("{factor}", "2.0"))
    spark.sparkContext.addPyFile(str(path))
    yield importlib.import_module("pond_scores")
    sys.modules.pop("pond_scores", None)


def write(spark: SparkSession, folder: Path, start: int) -> None:
    rows = spark.range(start, start + 100, 1, 1).selectExpr(
        "id", "if(id % 2 = 0, 'pos', 'web') AS kind", "if(id % 50 = 7, -1.0D, id * 1.0D) AS amount",
        "timestamp_seconds(id * 60) AS ts",
    )  # fmt: skip
    rows.write.mode("append").parquet(str(folder / "tx"))


def run(
    spark: SparkSession, folder: Path, module: ModuleType, version: str | None = None
) -> tuple[str, dict[str, int]]:
    with Pond(spark, folder / "pond") as pond:
        pond.stream(Stream("tx", COLUMNS, Source("parquet", (("path", str(folder / "tx")),))))
        frame = pond.map_batches("scores", "tx", module.scored, SCHEMA, version=version)
        sinks = {name: Sink("parquet", str(folder / name)) for name in ("large", "hourly", "tags", "plain", "numbers")}
        pond.add("large", "SELECT id, score + 1 AS more, tags FROM scores WHERE score > 100", sink=sinks["large"])
        pond.add("hourly", frame.withWatermark("ts", "0 seconds").groupBy(F.window("ts", "1 hour")).agg(
            F.sum("score").alias("s")), sink=sinks["hourly"])  # fmt: skip
        pond.add("tags", frame.select("id", F.explode("tags").alias("tag")).where("tag <> 'a'"), sink=sinks["tags"])
        pond.add("plain", "SELECT id, amount FROM tx WHERE kind = 'web'", sink=sinks["plain"])
        pond.map_batches("ids", "tx", module.numbers, "id BIGINT", version=version)
        pond.add("numbers", "SELECT -id AS id FROM ids", sink=sinks["numbers"])
        pond.run(once=True, drain=True)
        return explain(pond.plan, pond.streams), {name: found.whole.dead for name, found in pond.counts().items()}


def test_a_function_feeds_windowed_stateless_and_exploded_queries(
    spark: SparkSession, tmp_path: Path, module: ModuleType
) -> None:
    write(spark, tmp_path, 0)
    text, dead = run(spark, tmp_path, module)
    write(spark, tmp_path, 100)
    run(spark, tmp_path, module)
    assert "tx through pond_scores:scored" in text
    assert dead == {"large": 2, "hourly": 2, "tags": 2, "plain": 0, "numbers": 0}

    def read(name: str) -> list[tuple[object, ...]]:
        return sorted(tuple(row) for row in spark.read.parquet(str(tmp_path / name)).collect())

    pos = [id for id in range(0, 200, 2) for _ in range(2)]
    assert read("large") == [(id, id * 2.0 + 1, ["a", str(id)]) for id in pos if id * 2 > 100]
    assert read("tags") == [(id, str(id)) for id in pos]
    assert [(id, amount) for id, amount in read("plain")] == [
        (id, -1.0 if id % 50 == 7 else float(id)) for id in range(1, 200, 2)
    ]
    assert read("numbers") == [(-id,) for id in range(199, -1, -1)]
    hours = [sum(id * 2.0 for id in pos if id // 60 == hour) for hour in range(4)]
    assert [row[1] for row in read("hourly")][:1] == hours[:1]
    with pytest.raises(ForeignPondError):
        run(spark, tmp_path, module, version="2")


def test_a_function_that_breaks_its_schema_ends_the_run_with_one_line(
    spark: SparkSession, tmp_path: Path, module: ModuleType
) -> None:
    write(spark, tmp_path, 0)
    with Pond(spark, tmp_path / "pond") as pond:
        pond.stream(Stream("tx", COLUMNS, Source("parquet", (("path", str(tmp_path / "tx")),))))
        pond.map_batches("scores", "tx", module.wrong, SCHEMA)
        pond.add("all", "SELECT * FROM scores")
        with pytest.raises(MillpondError, match="pond_scores:wrong gave"):
            pond.run()


def test_what_cannot_be_continued_is_refused(spark: SparkSession, tmp_path: Path, module: ModuleType) -> None:
    source = Source("parquet", (("path", str(tmp_path)),))
    with Pond(spark, tmp_path / "pond") as pond:
        pond.stream(Stream("tx", COLUMNS, source))
        pond.stream(Stream("kept", COLUMNS, source, Order("kind", "id")))
        with pytest.raises(UnsupportedQuery, match="cannot be imported"):
            pond.map_batches("m", "tx", lambda batch: batch, SCHEMA)
        with pytest.raises(QueryTypeError, match="no stream nosuch"):
            pond.map_batches("m", "nosuch", module.scored, SCHEMA)
        with pytest.raises(QueryTypeError, match="schema of scored"):
            pond.map_batches("m", "tx", module.scored, "id NOSUCH")
        with pytest.raises(QueryTypeError, match="one twice"):
            pond.map_batches("m", "tx", module.scored, "id INT, ID INT")
        pond.map_batches("m", "kept", module.scored, SCHEMA)
        with pytest.raises(UnsupportedQuery, match="lack kind"):
            pond.add("q", "SELECT id FROM m")
        own = spark.readStream.schema("id bigint").parquet(str(tmp_path)).mapInArrow(lambda rows: rows, "id bigint")
        with pytest.raises(UnsupportedQuery, match="map_batches"):
            pond.add("q", own)


def test_records_that_a_file_source_drops_reach_no_function(
    spark: SparkSession, tmp_path: Path, module: ModuleType
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"id": 1}\n{"id": "none"}\n{"id": 2}\n')
    options = (("path", str(tmp_path / "in")), ("mode", "DROPMALFORMED"))
    with Pond(spark, tmp_path / "pond") as pond:
        pond.stream(Stream("tx", COLUMNS, Source("json", options)))
        pond.map_batches("ids", "tx", module.numbers, "id BIGINT")
        pond.add("numbers", "SELECT -id AS id FROM ids")
        pond.run()
        assert sorted(pond.table("numbers")["id"].to_pylist()) == [-2, -1]
