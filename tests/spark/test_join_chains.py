"""Aggregate, join, aggregate in Spark: queries over queries on files with a restart, compared with Spark's batch."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from kit.judges.interpreted import interpreted_table
from kit.judges.recorded import RecordedAnswers, columns_and_rows
from millpond import Pond
from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.join import Join, Within
from millpond.model.windows import Sliding

pytestmark = pytest.mark.slow

RECORDED = RecordedAnswers(__file__, Path(__file__).read_text())

PAY = "STREAM pay WATERMARK at DELAY OF INTERVAL 5 MINUTES"
CHAIN = {
    "spend": "SELECT card, sum(amount) AS total, window(ts, '10 minutes') AS w "
    "FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 5 MINUTES GROUP BY ALL",
    "refunds": f"SELECT card, sum(amount) AS back, window(at, '10 minutes') AS w FROM {PAY} GROUP BY ALL",
    "hops": f"SELECT card, count(*) AS n, window(at, '20 minutes', '10 minutes') AS w FROM {PAY} GROUP BY ALL",
    "both": "SELECT s.card, s.w, s.total, r.back FROM STREAM spend s JOIN STREAM refunds r "
    "ON s.card = r.card AND s.w = r.w AND r.back <= s.total",
    "either": "SELECT card, w, total, back FROM STREAM spend FULL JOIN STREAM refunds USING (card, w)",
    "then": "SELECT s.card, s.w.start AS since, h.w AS later, h.n FROM STREAM spend s LEFT JOIN STREAM hops h "
    "ON s.card = h.card AND h.w.start BETWEEN s.w.start AND s.w.end",
    "events": f"SELECT s.card, s.w, p.no, p.at FROM STREAM spend s RIGHT JOIN {PAY} AS p "
    "ON s.card = p.card AND p.at >= s.w.start AND p.at < s.w.end + INTERVAL 2 MINUTES AND s.total > 60",
    "alike": "SELECT s.card, s.w AS w, p.no FROM STREAM spend s FULL JOIN "
    f"(SELECT card, no, window(at, '10 minutes') AS w FROM {PAY}) p ON s.card = p.card AND s.w = p.w",
    "top": "SELECT max_by(card, total * 100 + back, 3) AS cards, sum(back) AS back, window.start AS hour "
    "FROM STREAM both GROUP BY window(w, '30 minutes')",
    "open": "SELECT card, count(*) AS n, sum(total) AS total, sum(back) AS back, window(w, '30 minutes') AS w "
    "FROM STREAM either GROUP BY ALL",
    "paid": "SELECT count(card) AS n, count(*) AS of, window(at, '20 minutes') AS w FROM STREAM events GROUP BY ALL",
    "named": "SELECT s.card, s.w, d.name, reverse(s.card) AS r, s.total FROM STREAM spend s "
    "LEFT JOIN (VALUES ('c1', 'one'), ('c2', 'two'), ('c2', 'both')) AS d(card, name) ON s.card = d.card",
    "by_name": "SELECT window(h.w, '1 hour') AS w, d.name, sum(h.n) AS n FROM STREAM hops h "
    "JOIN (VALUES ('c6', 'six'), ('c7', 'seven')) AS d(card, name) ON h.card = d.card GROUP BY ALL",
    "texts": "SELECT format_string('%s-%d', card, total) AS t, w FROM STREAM spend WHERE levenshtein(card, 'c1') < 2",
    "every": "SELECT card, w, total FROM STREAM spend UNION ALL "
    "SELECT card, w, back FROM STREAM refunds WHERE back > 9",
    "of_every": "SELECT window(w, '30 minutes') AS w, count(*) AS n FROM (SELECT card, w FROM STREAM spend "
    "UNION ALL SELECT card, w FROM STREAM refunds) GROUP BY ALL",
    "more": "SELECT o.card, o.total, b.back FROM STREAM open o JOIN STREAM both b "
    "ON o.card = b.card AND b.w.end BETWEEN o.w.start AND o.w.end AND b.back > 10",
}  # fmt: skip


def write(spark: SparkSession, folder: Path, step: int) -> None:
    """An hour of both streams, a little out of order; some cards are on one side only."""
    for name, first, columns in (("tx", 0, "id"), ("pay", 5, "no")):
        time = "ts" if name == "tx" else "at"
        made = spark.range(step * 150, step * 150 + 150, 1, 1).selectExpr(
            f"id AS {columns}", f"concat('c', (id * 7 + {first}) % 11 % 9 + {first}) AS card", "id * 17 % 50 AS amount",
            f"timestamp_seconds(9000000 + {step} * 3600 + id * 37 % 3600 + id % 4 * 60) AS {time}",
        )  # fmt: skip
        made.write.mode("append").parquet(str(folder / name))


def text(folder: Path) -> str:
    tables = {"tx": "id BIGINT, card STRING, amount BIGINT, ts TIMESTAMP",
              "pay": "no BIGINT, card STRING, amount BIGINT, at TIMESTAMP"}  # fmt: skip
    return "\n".join([
        *(f"CREATE TABLE {name} ({columns}) USING parquet OPTIONS (path '{folder}/{name}', maxFilesPerTrigger 1);"
          for name, columns in tables.items()),
        *(f"CREATE STREAMING TABLE {name} USING parquet TBLPROPERTIES ('path' = '{folder}/out/{name}') AS {query};"
          for name, query in CHAIN.items()),
    ])  # fmt: skip


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pond that ran three times, on three files of each stream."""
    folder = tmp_path_factory.mktemp("chain")
    for step in range(3):
        write(spark, folder, step)
        with Pond(spark, folder / "pond", instances=2) as pond:
            pond.load(text(folder))
            pond.run(once=True, drain=step == 2)
            if step == 2:
                why = pond.why("more").causes[-1].text
                assert "the rows of open and both, and through them those of either, spend, refunds" in why
    return folder


def test_rows_are_those_of_sparks_batch(spark: SparkSession, folder: Path) -> None:
    @cache
    def batch() -> dict[str, pa.Table]:
        for name in ("tx", "pay"):
            spark.read.parquet(str(folder / name)).createOrReplaceTempView(f"batch_{name}")
        tables = {}
        for name, query in CHAIN.items():
            for watermark in ("ts", "at"):
                query = query.replace(f" WATERMARK {watermark} DELAY OF INTERVAL 5 MINUTES", "")
            query = re.sub(r"STREAM (\w+)", r"batch_\1", query)
            # a batch knows no window of the `w` that FULL JOIN USING makes
            frame = spark.sql(query.replace("window(w, ", "window(w.end - INTERVAL 1 MICROSECOND, "))
            frame.createOrReplaceTempView(f"batch_{name}")
            tables[name] = interpreted_table(frame)
        return tables

    for name, query in CHAIN.items():
        ours = columns_and_rows(pq.read_table(folder / "out" / name))
        assert ours == RECORDED.answer(name, query, ours, lambda name=name: columns_and_rows(batch()[name])), name
        assert len(ours[1]) > 5, name


def test_what_joins_of_rows_mean_and_what_is_refused(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(text(folder))
        joins = {query.name: query for query in pond.queries if isinstance(query, Join)}
        both, then, events, alike = (joins[name] for name in ("both", "then", "events", "alike"))
        assert (both.when, both.left.event_time, both.left.delay_us) == (Within(0, 0), "w.time", 0)
        ten = 600_000_000
        assert then.when == Within(ten, 2 * ten), "a window of twenty minutes ends so much later"
        assert events.when == Within(1 - ten, ten // 5)
        assert alike.when == Sliding(ten, ten)

        def refused(query: str) -> str:
            with pytest.raises((UnsupportedQuery, QueryTypeError)) as error:
                pond.add("later", query)
            return str(error.value)

        assert "Event times of rows of a query: w.start, w.end, w.time" in refused(
            f"SELECT s.card FROM STREAM spend s JOIN {PAY} AS p ON s.card = p.card"
        )
        assert "windows of both sides differ" in refused(
            "SELECT s.card FROM STREAM spend s JOIN STREAM hops h ON s.card = h.card AND s.w = h.w"
        )
        assert "time >= w.start AND time < w.end" in refused(
            "SELECT h.n FROM STREAM hops h JOIN "
            f"(SELECT card, window(at, '20 minutes', '10 minutes') AS w FROM {PAY}) p ON h.card = p.card AND h.w = p.w"
        )
        assert "does not see the rows of spend" in refused(
            "SELECT s.card FROM STREAM spend s JOIN STREAM refunds r ON reverse(s.card) = reverse(r.card) AND s.w = r.w"
        )
        assert "it is not an event time of its sides. Use" in refused(
            "SELECT count(*) FROM (SELECT w.start AS since FROM STREAM both) GROUP BY window(since, '1 hour')"
        )
