"""Both zeros are one value wherever values are compared, through Spark."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from millpond import Pond

SCHEMA = "k STRING, a BIGINT, c STRING, d DOUBLE, o INT, ts TIMESTAMP"
EVENTS = f"CREATE TABLE ev ({SCHEMA}) USING json OPTIONS ({{}});"
WATERMARK = "FROM STREAM ev WATERMARK ts DELAY OF INTERVAL 5 SECONDS"

EQUAL = """
SELECT {key} AS key, window(ts, '10 seconds') AS w, collect_set(d) AS held, count(DISTINCT d) AS n,
    mode(d) AS often, percentile(d, 0.4) AS p, median(d) AS middle, min(d) AS least, max(d) AS most,
    sum(DISTINCT d) AS total
{source} GROUP BY ALL
"""


def write(folder: Path, seed: int, files: int) -> None:
    """Few different values, so that almost everything ties; the last event closes all windows before it."""
    dice = random.Random(seed)
    folder.mkdir()
    for i in range(files):
        lines = [
            {
                "k": dice.choice("xyz"), "a": dice.randint(0, 3), "c": dice.choice("pqr"), "o": dice.randint(0, 1),
                "d": dice.choice((0.0, -0.0, 1.5)), "ts": f"2024-01-01T00:00:{10 + 5 * i + dice.randint(0, 4):02d}Z",
            }
            for _ in range(60)
        ]  # fmt: skip
        if i == files - 1:
            lines = [*lines, {**lines[0], "ts": "2024-01-01T01:00:00Z"}]
        (folder / f"{i}.json").write_text("\n".join(map(json.dumps, lines)))
        os.utime(folder / f"{i}.json", (1_700_000_000 + i, 1_700_000_000 + i))


def rows(spark: SparkSession, place: Path, options: str, query: str, instances: int) -> list[dict[str, Any]]:
    """The rows of the query `q`."""
    with Pond(spark, place, instances=instances) as pond:
        pond.load(EVENTS.format(options))
        pond.add("q", query)
        pond.run()
        return pond.table("q").to_pylist()


def texts(found: list[dict[str, Any]]) -> list[str]:
    """The rows as text, which tells the two zeros apart."""
    return sorted(map(repr, found))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("key", ["k", "d"])
def test_both_zeros_are_one_value_as_in_spark_and_duckdb(spark: SparkSession, tmp_path: Path, key: str) -> None:
    write(tmp_path / "in", 9, 4)
    query = EQUAL.format(key=key, source=WATERMARK)
    found = rows(spark, tmp_path / "pond", f"path '{tmp_path}/in', maxFilesPerTrigger '1'", query, 2)
    assert "-0.0" not in repr(found)
    until = "ts < '2024-01-01T00:30:00Z'"
    spark.read.schema(SCHEMA).json(f"{tmp_path}/in").createOrReplaceTempView("all_events")
    batch = spark.sql(EQUAL.format(key=key, source=f"FROM all_events WHERE {until}")).toArrow().to_pylist()
    assert texts(found) == texts([one_zero(row) for row in batch])
    with duckdb.connect() as judge:
        key = "d + 0.0" if key == "d" else key
        columns = "{k: 'VARCHAR', a: 'BIGINT', c: 'VARCHAR', d: 'DOUBLE', o: 'INTEGER', ts: 'TIMESTAMPTZ'}"
        judged = judge.execute(
            f"SELECT {key}, count(DISTINCT d + 0.0), quantile_cont(d + 0.0, 0.4), list_sort(list(DISTINCT d + 0.0)) "
            f"FROM read_json('{tmp_path}/in/*.json', columns={columns}) WHERE {until} "
            f"GROUP BY {key}, epoch(ts)::BIGINT // 10"
        ).fetchall()
    assert sorted(map(repr, judged)) == sorted(repr((row["key"], row["n"], row["p"], row["held"])) for row in found)


def one_zero(row: dict[str, Any]) -> dict[str, Any]:
    """Percentiles and extremes of Spark's batch show either zero; its sets are in any order."""
    shown = {name: value + 0.0 if isinstance(value, float) else value for name, value in row.items()}
    return shown | {"held": sorted(row["held"])}
