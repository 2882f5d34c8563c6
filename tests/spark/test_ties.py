"""Events that tie, through Spark: the chosen event does not depend on the cut, and both zeros are one value."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import pytest
from pyspark.sql import SparkSession

from kit.judges.interpreted import interpreted_table
from millpond import Pond
from millpond.spark.driver.epochs import Epoch

Change: TypeAlias = Callable[[Pond, int], None]

SCHEMA = "k STRING, a BIGINT, c STRING, d DOUBLE, o INT, ts TIMESTAMP"
EVENTS = f"CREATE TABLE ev ({SCHEMA}) USING json OPTIONS ({{}});"
WATERMARK = "FROM STREAM ev WATERMARK ts DELAY OF INTERVAL 5 SECONDS"

CHOOSE = f"""
SELECT k, window(ts, '10 seconds') AS w, min_by(a, o) AS a1, min_by(c, o) AS c1, min_by(d, o) AS d1,
    max_by(a, o) AS a2, max_by(c, o) AS c2, max_by(d, o) AS d2, first(a) AS a3, first(c) AS c3, first(d) AS d3,
    last(a) AS a4, last(c) AS c4, last(d) AS d4, max_by(a, ts) AS a5, max_by(c, ts) AS c5, max_by(d, ts) AS d5,
    collect_list(a) AS a6, collect_list(c) AS c6, collect_list(d) AS d6
{WATERMARK} GROUP BY ALL
"""

EQUAL = """
SELECT {key} AS key, window(ts, '10 seconds') AS w, collect_set(d) AS held, count(DISTINCT d) AS n,
    mode(d) AS often, percentile(d, 0.4) AS p, median(d) AS middle, min(d) AS least, max(d) AS most,
    sum(DISTINCT d) AS total
{source} GROUP BY ALL
"""


def write(folder: Path, seed: int, files: int) -> list[dict[str, Any]]:
    """Write JSON files and return their events, without the last one, which closes all windows before it."""
    dice, events = random.Random(seed), []
    folder.mkdir()
    for i in range(files):
        lines = [
            {
                "k": dice.choice("xyz"), "a": dice.randint(0, 3), "c": dice.choice("pqr"), "o": dice.randint(0, 1),
                "d": dice.choice((0.0, -0.0, 1.5)), "ts": f"2024-01-01T00:00:{10 + 5 * i + dice.randint(0, 4):02d}Z",
            }
            for _ in range(60)
        ]  # fmt: skip
        events += lines
        if i == files - 1:
            lines = [*lines, {**lines[0], "ts": "2024-01-01T01:00:00Z"}]
        (folder / f"{i}.json").write_text("\n".join(map(json.dumps, lines)))
        os.utime(folder / f"{i}.json", (1_700_000_000 + i, 1_700_000_000 + i))
    return events


def rows(
    spark: SparkSession, place: Path, options: str, query: str, instances: int = 1,
    after: Change = lambda _pond, _epoch: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The rows of the query `q`; `after` is called with the pond and how many epochs it has committed."""
    epochs: list[Epoch] = []

    def noted(epoch: Epoch) -> None:
        epochs.append(epoch)
        after(pond, len(epochs))

    with Pond(spark, place, instances=instances, on_epoch=noted) as pond:
        pond.load(EVENTS.format(options))
        pond.add("q", query)
        pond.run()
        return pond.table("q").to_pylist()


def texts(found: list[dict[str, Any]]) -> list[str]:
    """The rows as text, in which 0.0 and -0.0 differ."""
    return sorted(map(repr, found))


@pytest.mark.timeout(240)
def test_the_chosen_event_is_the_same_for_every_cut_and_is_an_event(spark: SparkSession, tmp_path: Path) -> None:
    events = write(tmp_path / "in", 5, 6)
    whole, each = f"path '{tmp_path}/in'", f"path '{tmp_path}/in', maxFilesPerTrigger '1'"
    alone, done = rows(spark, tmp_path / "whole", whole, CHOOSE), []

    def change(pond: Pond, epochs: int) -> None:
        if epochs == 2:
            pond.shadow("q", CHOOSE.replace("first(a) AS a3, ", "max(a) AS a3, "))
            pond.scale(3)
        if epochs == 4:
            pond.scale(2)
        done.append(epochs)

    assert texts(rows(spark, tmp_path / "each", each, CHOOSE, 2, change)) == texts(alone)
    assert max(done) >= 5 and len(alone) >= 9
    known = {(one["k"], repr((one["a"], one["c"], one["d"]))) for one in events}
    for row in alone:
        chosen = [repr((row[f"a{i}"], row[f"c{i}"], row[f"d{i}"])) for i in range(1, 6)]
        listed = [repr(one) for one in zip(row["a6"], row["c6"], row["d6"], strict=True)]
        assert {(row["k"], one) for one in (*chosen, *listed)} <= known
        assert chosen[2:] == [listed[0], listed[-1], listed[-1]]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("key", ["k", "d"])
def test_both_zeros_are_one_value_as_in_spark_and_duckdb(spark: SparkSession, tmp_path: Path, key: str) -> None:
    write(tmp_path / "in", 9, 4)
    query = EQUAL.format(key=key, source=WATERMARK)
    found = rows(spark, tmp_path / "pond", f"path '{tmp_path}/in', maxFilesPerTrigger '1'", query, 2)
    assert "-0.0" not in repr(found)
    until = "ts < '2024-01-01T00:30:00Z'"
    spark.read.schema(SCHEMA).json(f"{tmp_path}/in").createOrReplaceTempView("all_events")
    batch = interpreted_table(spark.sql(EQUAL.format(key=key, source=f"FROM all_events WHERE {until}"))).to_pylist()
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
