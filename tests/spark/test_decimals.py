"""Decimals through Spark and back: a pond's columns, types and values are those of a Spark batch, digit for digit."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from kit.judges.interpreted import interpreted_table
from kit.judges.recorded import RecordedAnswers, columns_and_rows
from millpond import Pond

TYPES = {"p": (10, 2), "q": (11, 0), "r": (12, 4), "m": (25, 10), "w": (38, 6), "z": (38, 0), "e": (38, 38)}
COLUMNS = ", ".join(f"{name} DECIMAL({precision},{scale})" for name, (precision, scale) in TYPES.items())
RECORDED = RecordedAnswers(__file__, Path(__file__).read_text())
WINDOW = "window(ts, '160 seconds')"
EXACT = ("count", "sum", "avg", "min", "max")
ROUGH = ("stddev", "stddev_pop", "variance", "var_pop")
AGGREGATES = [f"{function}({name}) AS {function}_{name}" for name in TYPES for function in EXACT]
DEVIATIONS = [f"{function}({name}) AS {function}_{name}" for name in "pw" for function in ROUGH]
BELOW = [
    "sum(p * q) AS a0", "avg(p + r) AS a1", "max(p / nullif(q, 0)) AS a2", "min(m % 7) AS a3",
    "sum(CASE WHEN p > 0 THEN r END) AS a4",
    "count_if(w > p) AS a5", "sum(round(m, 2)) AS a6", "max(-w) AS a7", "sum(try_cast(w AS DECIMAL(10, 2))) AS a8",
    "avg(coalesce(p, q, 0)) AS a9", "sum(w) FILTER (WHERE p BETWEEN 0 AND 500.5) AS a10", "sum(p * 1.1D) AS a11",
    "max(greatest(p, q, r)) AS a12", "sum(g + p) AS a13", "min(abs(z)) AS a14", "sum(cast(g AS decimal(20, 3))) AS a15",
]  # fmt: skip
ABOVE = [
    "sum(p) + max(r) AS b0", "max(p) - min(p) AS b1", "round(avg(p), 2) AS b2", "round(sum(m), -2) AS b3",
    "cast(avg(m) AS decimal(20, 3)) AS b4", "avg(p) * 2 AS b5", "cast(sum(p) AS double) / count(*) AS b6",
    "CASE WHEN sum(p) > 100.5 THEN avg(p) ELSE 0 END AS b7", "coalesce(max(e), 0) AS b8", "-sum(p) AS b9",
    "round(sum(p)) AS b10", "sum(p) = sum(p) AS b11", "cast(count(*) AS decimal(20, 1)) AS b12",
]  # fmt: skip
QUERIES = {
    "each": f"SELECT g, {', '.join(AGGREGATES)} FROM tx {{mark}} GROUP BY g, {WINDOW}",
    "deviations": f"SELECT g, {', '.join(DEVIATIONS)} FROM tx {{mark}} GROUP BY g, {WINDOW}",
    "below": f"SELECT g, {', '.join(BELOW)} FROM tx {{mark}} WHERE p <> 3.5 GROUP BY g, {WINDOW}",
    "above": f"SELECT g, {', '.join(ABOVE)} FROM tx {{mark}} GROUP BY g, {WINDOW} HAVING sum(p) > -100000.25",
    "keyed": f"SELECT window.start, w, q % 3 AS k, count(*) AS n, sum(q) AS s FROM tx {{mark}} GROUP BY w, k, {WINDOW}",
}


def events(seed: int) -> pa.Table:
    """Groups of 160 events in a window: averages of ties, where rounding shows; NULLs, both signs, all digits."""
    dice = random.Random(seed)
    rows = 160 * 40
    columns: dict[str, pa.Array] = {
        "ts": pa.array([datetime.fromtimestamp(i % 320, timezone.utc) for i in range(rows)], pa.timestamp("us", "UTC")),
        "g": pa.array([i // 320 for i in range(rows)], pa.int32()),
    }
    for name, (precision, scale) in TYPES.items():
        room = 10 ** {"z": 33, "w": 30, "e": 35}.get(name, precision)
        values = [
            None if dice.random() < 0.01 and name != "p" else Decimal(f"{dice.choice((1, -1)) * number}E-{scale}")
            for number in (dice.choice((dice.randrange(room), dice.randrange(10**4), room - 1)) for _ in range(rows))
        ]
        columns[name] = pa.array(values, pa.decimal128(precision, scale))
    return pa.table(columns)


@pytest.fixture(scope="module")
def answered(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[pa.Table, Callable[[], pa.Table]]]:
    """By query: the pond's answer and how to get Spark's."""
    folder = tmp_path_factory.mktemp("decimals")
    (folder / "in").mkdir()
    table = events(11)
    for i in range(4):
        pq.write_table(table.slice(i * len(table) // 4, len(table) // 4), folder / "in" / f"{i}.parquet")
    given = f"(ts TIMESTAMP, g INT, {COLUMNS})"
    with Pond(spark, folder / "pond") as pond:
        pond.load(f"CREATE TABLE tx {given} USING parquet OPTIONS (path '{folder / 'in'}')")
        for name, text in QUERIES.items():
            marked = text.replace("FROM tx {mark}", "FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS")
            pond.add(name, marked)
        pond.run(drain=True)
        found = {name: pond.table(name) for name in QUERIES}
    batch = spark.newSession()
    batch.read.schema(given[1:-1]).parquet(str(folder / "in")).createOrReplaceTempView("tx")


    def ask(name: str) -> pa.Table:
        return interpreted_table(batch.sql(QUERIES[name].replace("{mark}", "")))

    return {name: (found[name], partial(ask, name)) for name in QUERIES}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", QUERIES)
def test_a_pond_answers_as_a_batch_does(
    answered: dict[str, tuple[pa.Table, Callable[[], pa.Table]]], name: str
) -> None:
    table, ask = answered[name]
    ours = _rounded(table)
    assert ours == RECORDED.answer(name, QUERIES[name], ours, lambda: _rounded(ask()))
    assert len(table) > 20


def _rounded(table: pa.Table) -> tuple[list[tuple[str, str]], list[str]]:
    """Columns and rows, in which doubles are rounded that Spark adds, or their squares, in the order of arrival."""
    for place, column in enumerate(table.column_names):
        if column.startswith(ROUGH) or column == "a11":
            shown = [None if value is None else format(value, ".10g") for value in table.column(place).to_pylist()]
            table = table.set_column(place, column, pa.array(shown, pa.string()))
    return columns_and_rows(table)
