"""Keys of expressions that only Spark evaluates: equal in each session, and those of the log stay in force."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond import Pond
from millpond.errors import ChangeRefused, ForeignPondError
from millpond.model.endpoints import Source
from millpond.model.selection import foreign_keys
from millpond.model.stream import Field, Stream
from millpond.spark.catalyst import spark_expressions

READ = "STREAM tx WATERMARK t DELAY OF INTERVAL 1 SECOND"
CASE = "CASE WHEN v > 2 THEN k WHEN v > 1 THEN 'xy' ELSE 'abc' END"
TEXTS = {
    "case": f"SELECT window(t, '1 minute') AS w, reverse({CASE}) AS k, sum(v) AS s FROM {READ} GROUP BY ALL",
    "lambdas": f"SELECT v, aggregate(transform(split(k, ''), x -> x || v), '', (x, y) -> y || x) AS a FROM {READ}",
    "above": f"SELECT k, window(t, '1 minute') AS w, levenshtein(k, {CASE.replace('v', 'max(v)')}) AS n FROM {READ}"
    " GROUP BY ALL",
    "exploded": f"SELECT window(t, '1 minute') AS w, part, count(*) AS n FROM {READ}"
    f" LATERAL VIEW explode(split({CASE}, '')) AS part GROUP BY ALL",
}


def stream(folder: Path) -> Stream:
    fields = (Field("v", "int"), Field("k", "string"), Field("t", "timestamp"))
    return Stream("tx", fields, Source("json", (("path", str(folder)),)))


def write(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    rows = [{"v": v, "k": k, "t": f"2026-01-01T00:0{number}:{20 * v:02}Z"} for v in range(3) for k in ("ab", "b")]
    (folder / f"{number}.json").write_text("\n".join(map(json.dumps, rows)) + "\n")


def frame(spark: SparkSession, folder: Path, *, lambdas: bool = False) -> DataFrame:
    events = spark.readStream.schema("v INT, k STRING, t TIMESTAMP").json(str(folder)).withWatermark("t", "1 second")
    chosen = F.when(F.col("v") > 1, F.col("k")).otherwise("abc")
    key = F.array_join(F.transform(F.split(chosen, ""), lambda x: F.concat(x, x)), "") if lambdas else F.reverse(chosen)
    return events.groupBy(F.window("t", "1 minute"), key.alias("k")).agg(F.sum("v").alias("s"))


def rows(pond: Pond, name: str) -> list[str]:
    return sorted(map(repr, pond.table(name).to_pylist()))


def keys(spark: SparkSession, folder: Path, at: Path) -> dict[str, frozenset[str]]:
    with Pond(spark, at) as pond:
        pond.stream(stream(folder))
        for name, text in TEXTS.items():
            pond.add(name, text)
        for lambdas in (False, True):
            pond.add(f"frame_{lambdas}", frame(spark, folder, lambdas=lambdas))
        streams = {stream.name for stream in pond.streams if stream.derived is not None}
        return {query.name: foreign_keys(query) for query in pond.queries} | {"streams": frozenset(streams)}


def test_a_key_does_not_depend_on_what_the_session_did_before(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", 0)
    first, second = (keys(spark, tmp_path / "in", tmp_path / name) for name in ("one", "two"))
    assert first == second
    assert all(first.values())


def test_a_lambda_of_a_dataframe_differs_from_one_inside_it(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", 0)
    events = spark.readStream.schema("v INT, k STRING, t TIMESTAMP").json(str(tmp_path / "in"))
    parts = F.split("k", "")
    outer = events.select(F.transform(parts, lambda x: F.transform(parts, lambda y: F.concat(x, x))).alias("a"))
    inner = events.select(F.transform(parts, lambda x: F.transform(parts, lambda y: F.concat(y, y))).alias("a"))
    with Pond(spark, tmp_path / "pond") as pond:
        for name, one in (("outer", outer), ("inner", inner)):
            pond.add(name, one)
        assert len({foreign_keys(query) for query in pond.queries}) == 2


@pytest.mark.parametrize("declared", [False, True], ids=["opened", "declared"])
def test_queries_continue_with_the_keys_of_the_log(
    spark: SparkSession, tmp_path: Path, tmp_pond: Path, monkeypatch: pytest.MonkeyPatch, declared: bool
) -> None:
    """Keys differ after an upgrade of Spark, as its version is a part of them."""
    folder, texts = tmp_path / "in", {name: text for name, text in TEXTS.items() if name != "exploded"}
    write(folder, 0)

    def declare(pond: Pond) -> None:
        pond.stream(stream(folder))
        for name, text in texts.items():
            pond.add(name, text)

    with monkeypatch.context() as earlier:
        earlier.setattr(spark_expressions, "pyspark", SimpleNamespace(__version__="4.2.9"))
        with Pond(spark, tmp_pond, instances=2) as pond:
            declare(pond)
            pond.run()
            before = {query.name: foreign_keys(query) for query in pond.queries}
    write(folder, 1)
    with Pond(spark, tmp_pond) as pond:
        if declared:
            declare(pond)
        pond.open()
        assert {query.name: foreign_keys(query) for query in pond.queries} == before
        pond.run(drain=True)
        assert pond.problems() == []
        found = {name: rows(pond, name) for name in texts}
    with Pond(spark, tmp_path / "other", instances=2) as pond:
        declare(pond)
        assert all(foreign_keys(query).isdisjoint(before[query.name]) for query in pond.queries)
        pond.run(drain=True)
        assert found == {name: rows(pond, name) for name in texts}
    assert all(found.values())


def test_dataframes_continue_with_the_keys_of_the_log(
    spark: SparkSession, tmp_path: Path, tmp_pond: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    write(folder, 0)
    with monkeypatch.context() as earlier:
        earlier.setattr(spark_expressions, "pyspark", SimpleNamespace(__version__="4.2.9"))
        with Pond(spark, tmp_pond, instances=2) as pond:
            pond.add("q", frame(spark, folder))
            pond.run()
    with Pond(spark, tmp_pond) as pond:
        pond.add("q", frame(spark, folder))
        pond.run(drain=True)
        assert pond.problems() == []
        assert len(rows(pond, "q")) == 3
    with Pond(spark, tmp_pond) as pond, pytest.raises(ChangeRefused, match="a part of q exists only in a program"):
        pond.open()


def test_the_lambdas_of_a_dataframe_continue_if_their_names_are_those_of_the_log(
    spark: SparkSession, tmp_path: Path, tmp_pond: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "in", 0)
    events = spark.readStream.schema("v INT, k STRING, t TIMESTAMP").json(str(tmp_path / "in"))
    again = events.select(F.transform(F.split("k", ""), lambda x: F.concat(x, x)).alias("a"))
    other = events.select(F.transform(F.split("k", ""), lambda x: F.concat(x, x)).alias("a"))

    def former(self: spark_expressions._Tree, name: str, identity: int) -> str:
        return name

    with monkeypatch.context() as earlier:
        earlier.setattr(spark_expressions._Tree, "_variable", former)
        with Pond(spark, tmp_pond, instances=2) as pond:
            pond.add("q", again)
            pond.run()
    with Pond(spark, tmp_pond) as pond:
        pond.add("q", other)
        with pytest.raises(ForeignPondError, match="query q is changed"):
            pond.open()
    write(tmp_path / "in", 1)
    with Pond(spark, tmp_pond) as pond:
        pond.add("q", again)
        pond.run()
        assert pond.problems() == []
        assert pond.table("q").num_rows == 12


def test_a_query_whose_stream_is_not_found_again_is_quarantined(
    spark: SparkSession, tmp_path: Path, tmp_pond: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    write(folder, 0)
    with monkeypatch.context() as earlier:
        earlier.setattr("millpond.spark.analysis.input_streams.pyspark", SimpleNamespace(__version__="4.2.9"))
        with Pond(spark, tmp_pond, instances=2) as pond:
            pond.stream(stream(folder))
            for name in ("exploded", "case"):
                pond.add(name, TEXTS[name])
            pond.run()
    write(folder, 1)
    with Pond(spark, tmp_pond) as pond:
        pond.open()
        pond.run(drain=True)
        (problem,) = pond.problems()
        assert "exploded" in str(problem)
        assert "have other keys in its state" in str(problem)
        assert rows(pond, "case")
