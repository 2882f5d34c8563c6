"""Functions whose calls do not return, in derived streams and in shadows: only the queries that call them end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType

from millpond import Pond
from millpond.spark.catalyst import user_scalars

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILES = ((0, 40), (40, 50), (50, 60))
DID = "The function <lambda> did not answer within 1 s, 3 times"


@pytest.fixture(autouse=True)
def a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_scalars, "CALL_SECONDS", 1.0)


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> DataFrame:
    source = tmp_path / "in"
    source.mkdir()
    for file, (first, end) in enumerate(FILES):
        path = source / f"{file}.json"
        path.write_text("\n".join(json.dumps({"k": "abc", "n": n}) for n in range(first, end)))
        os.utime(path, (1_700_000_000 + file,) * 2)
    return spark.readStream.schema("k STRING, n BIGINT").option("maxFilesPerTrigger", 1).json(str(source))


def wait(n: int) -> int:
    """Returns for even numbers only."""
    while n % 2:
        time.sleep(0.1)
    return n


hangs = F.udf(lambda n: wait(n), LongType())
many = F.udf(lambda n: [wait(n), n + 1], ArrayType(LongType()))


def column(rows: DataFrame) -> DataFrame:
    made = rows.select("n", hangs("n").alias("x"))
    return made.unionAll(rows.select("n", F.lit(0).cast("bigint").alias("x")))


def filtered(rows: DataFrame) -> DataFrame:
    return rows.where(hangs("n") >= 0).select("n").unionAll(rows.where("n < 0").select("n"))


def elements(rows: DataFrame) -> DataFrame:
    return rows.select("n", F.explode(many("n")).alias("x"))


def condition(rows: DataFrame) -> DataFrame:
    table = rows.sparkSession.createDataFrame([(0,)], "m BIGINT")
    return rows.join(table, hangs(rows.n) * 0 == table.m).select("n", "m")


@pytest.mark.parametrize("form", [column, filtered, elements, condition], ids=lambda form: form.__name__)
def test_a_derived_stream_that_hangs_ends_the_queries_that_read_it(
    form: Callable[[DataFrame], DataFrame], rows: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        pond.add("hanging", form(rows))
        pond.add("too", form(rows).select((F.col("n") + 1).alias("more"), *form(rows).columns[1:]))
        pond.add("plain", rows.select("n", F.reverse("k").alias("x")))
        pond.run()
        plain = pond.table("plain").sort_by("n")  # a join may mix the events of an epoch
        assert plain.to_pylist() == [{"n": n, "x": "cba"} for n in range(60)]
        ended = {problem.about: str(problem) for problem in pond.problems() if "quarantined" in problem.text}
        assert {*ended} == {"query hanging", "query too"}
        assert all(f"[MP-FUNCTION] {about.capitalize()} is quarantined" in text for about, text in ended.items())
        assert all(DID in text for text in ended.values())
        for name in ("hanging", "too"):
            assert max(pond.table(name).column(0).to_pylist(), default=0) <= 41, "it was called after its quarantine"


def test_a_query_that_reads_other_columns_of_the_derived_stream_continues(
    rows: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    made = column(rows)
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        pond.add("hanging", made)
        pond.add("other", made.select((F.col("n") * 2).alias("twice")))
        pond.run()
        halted = [problem.about for problem in pond.problems() if "quarantined" in problem.text]
        found = sorted(pond.table("other").column("twice").to_pylist())
    assert halted == ["query hanging"]
    assert found == sorted(2 * n for n in range(60) for _ in range(2))


@pytest.mark.parametrize("form", ["plain", "derived"])
def test_a_shadow_that_hangs_is_discarded_and_its_query_continues(
    form: str, rows: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    first = rows if form == "plain" else rows.unionAll(rows.where("n < 0"))
    tried = first.where(hangs("n") >= 0).select("n")
    shadowed = []

    def committed(epoch: object) -> None:
        if not shadowed:
            shadowed.append(pond.shadow("q", tried))

    with Pond(spark, tmp_path / "pond", instances=1, on_epoch=committed) as pond:
        pond.add("q", first.select("n"))
        pond.run()
        kinds = [type(one.change).__name__ for one in pond.history()]
        found = pond.table("q").column("n").to_pylist()
        problems = pond.problems()
        assert found == [*range(60)]
        assert "Discard" in kinds and "Halt" not in kinds, kinds
        assert not [problem for problem in problems if problem.failure], problems
