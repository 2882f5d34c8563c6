"""A refusal names the user's own text, not Spark's classes, and its cure is a query that works."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond import Pond
from millpond.errors import MillpondError

pytestmark = [pytest.mark.spark]

STREAM = "CREATE TABLE s (ts TIMESTAMP, k STRING, v BIGINT) USING json OPTIONS (path 'in');"
FROM = "FROM STREAM s WATERMARK ts DELAY OF INTERVAL 1 SECOND"
W = "window(ts, '10 seconds')"
UPDATE = "TBLPROPERTIES ('emit' = 'update')"
UNBOUND = f"SELECT a.k, b.v {FROM} AS a JOIN STREAM s WATERMARK ts DELAY OF INTERVAL 1 SECOND AS b ON a.k = b.k"


def table(text: str, properties: str = "", name: str = "a") -> str:
    return f"CREATE STREAMING TABLE {name} {properties} AS {text};"


LOWER = table(f"SELECT k, {W} AS w, count(*) AS n {FROM} GROUP BY ALL", name="lower")

FILES = [
    (table("SELECT k, count(*) AS n FROM STREAM s GROUP BY k"), "has no watermark, which would name",
     "FROM STREAM s WATERMARK ts DELAY OF INTERVAL 10 SECONDS"),
    (table("SELECT k, count(*) AS n FROM s GROUP BY k"), "has no watermark, which would name",
     "STREAM is missing before s. Write FROM STREAM s WATERMARK"),
    (LOWER + table("SELECT n, count(*) AS m FROM STREAM lower GROUP BY n"), "the rows of lower belong to windows",
     "GROUP BY window(w, '1 hour')"),
    (table(f"SELECT k, count(*) AS n {FROM} GROUP BY k"), "does not group by a window", "Group by window(ts, "),
    (LOWER + table("SELECT max(reverse(k)) AS m FROM STREAM lower GROUP BY window(w, '1 hour')"), "reverse",
     "in lower, as a column that it emits"),
    (table(f"SELECT k, row_number() OVER (PARTITION BY k, x ORDER BY ts DESC) AS r FROM (SELECT a.k, a.v AS x, b.ts "
           f"{FROM} AS a JOIN {FROM[5:]} AS b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 1 MINUTE) "
           "QUALIFY r = 1"), "below DISTINCT, dropDuplicates or row_number()", "max_by(b.x, b.ts)"),
    (table(f"SELECT k, {W} AS w, count(*) AS n {FROM} GROUP BY ALL ORDER BY n"), "ends in ORDER BY",
     "row_number("),
    (table(f"SELECT k, row_number() OVER (PARTITION BY k ORDER BY ts DESC) AS n {FROM}"), "ORDER BY ts DESC) gives",
     "Order by ts without DESC"),
    (table(f"SELECT k, row_number() OVER (PARTITION BY k ORDER BY ts) AS n {FROM} QUALIFY n = 1 AND n % 2 = 1"),
     "condition other than n = 1", "Leave that condition out"),
    (table(f"SELECT k, row_number() OVER (PARTITION BY {W} ORDER BY ts) AS n {FROM}"), "a window in PARTITION BY",
     "date_trunc('HOUR', ts)"),
    (table(f"SELECT k, ntile(4) OVER (PARTITION BY k ORDER BY ts) AS n {FROM}"), "is over single events",
     "lag(x) OVER"),
    (table("SELECT k FROM STREAM s WHERE v IN (SELECT 5)"), "SELECT without FROM here", "VALUES (5)"),
    (table(f"SELECT k COLLATE NOSUCH AS c {FROM}"), "the collation NOSUCH", "UTF8_LCASE"),
    (table(f"SELECT k {FROM} INTERSECT ALL SELECT k {FROM}"), "INTERSECT ALL", "EXISTS"),
    (table(f"SELECT s.k, rate {FROM} AS s JOIN rates FOR SYSTEM_TIME AS OF s.ts AS r ON r.k = s.k"), "time of an event",
     "s.ts >= r.valid_from"),
    (table(f"SELECT s.k {FROM} AS s JOIN STREAM s FOR SYSTEM_TIME AS OF s.ts AS r ON r.k = s.k"), "SYSTEM_TIME AS OF",
     "s.ts >= r.valid_from"),
    (table(f"SELECT s.k {FROM} AS s JOIN rates TIMESTAMP AS OF '2026-01-01' AS r ON r.k = s.k"), "TIMESTAMP AS OF",
     "s.ts >= r.valid_from"),
    (table(f"SELECT k, counter_diff(v) AS n {FROM}"), "the function counter_diff", "v - lag(v)"),
    (table("SELECT frobnicate(k) AS x FROM STREAM s"), "frobnicate", "docs/sql-functions.md"),
    (table(f"SELECT k {FROM} WHERE k IN (SELECT k FROM STREAM s)"), "has no bound in event time", "BETWEEN a.ts"),
    (table("SELECT k, v FROM STREAM s", "TBLPROPERTIES ('deduplicate' = 'k', 'deduplicate.within' = '1 hour')"),
     "its stream has no watermark", "WATERMARK ts DELAY OF"),
    ("INSERT INTO o SELECT k FROM STREAM s;", "no statement before it declares this sink", "CREATE STREAMING TABLE o"),
    ("DESCRIBE s;", "may not have DESCRIBE.", "`millpond show NAME`"),
    ("SET spark.x = 1;", "may not have SET spark.x.", "settings belong to the Spark session"),
    ("DROP TABLE s;", "may not have DROP TABLE.", "millpond drop"),
]  # fmt: skip

RATES = ("CREATE TEMPORARY VIEW rates (k STRING, valid_from TIMESTAMP, valid_to TIMESTAMP, rate DOUBLE) USING json "
         "OPTIONS (path 'rates');")  # fmt: skip

CURES = [
    RATES + table(f"SELECT s.k, rate {FROM} AS s JOIN rates AS r ON r.k = s.k AND s.ts >= r.valid_from AND s.ts < "
                  "r.valid_to"),
    LOWER + table("SELECT n, w, count(*) AS m FROM STREAM lower GROUP BY n, w"),
    table(f"SELECT k, count(*) AS n {FROM} GROUP BY k", UPDATE),
    LOWER + table("SELECT n, window(w, '1 hour') AS x, count(*) AS m FROM STREAM lower GROUP BY ALL"),
    LOWER + table("SELECT *, row_number() OVER (PARTITION BY w ORDER BY n DESC) AS r FROM STREAM lower "
                  "QUALIFY r <= 10"),
    LOWER + table("SELECT * FROM STREAM lower ORDER BY n DESC LIMIT 10"),
    table(f"SELECT * FROM (SELECT k, {W} AS w, count(*) AS n {FROM} GROUP BY ALL) ORDER BY n DESC LIMIT 10"),
    table(f"SELECT k, v - lag(v) OVER (PARTITION BY k ORDER BY ts) AS n {FROM}"),
    table(f"SELECT k, row_number() OVER (PARTITION BY date_trunc('HOUR', ts) ORDER BY ts) AS n {FROM}"),
    table(f"SELECT k, row_number() OVER (PARTITION BY k ORDER BY ts DESC) AS n {FROM} QUALIFY n <= 10", UPDATE),
    table(f"SELECT {W} AS w, max_by(k, v, 10) AS first {FROM} GROUP BY ALL"),
    table(f"SELECT k, {W}.start AS s, {W}.end AS e, count(*) AS n {FROM} GROUP BY k, {W}"),
    table(f"SELECT k, v, {W} AS w {FROM} GROUP BY ALL"),
    table(f"SELECT k {FROM} GROUP BY k", UPDATE),
    table(f"SELECT {W} AS w, sum(v) FILTER (WHERE k = 'a') AS a {FROM} GROUP BY ALL"),
    table("SELECT k, count(*) OVER (PARTITION BY k ORDER BY ts RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT "
          f"ROW) AS n {FROM}"),
    table(UNBOUND, "TBLPROPERTIES ('state.ttl' = '1 hour')"),
]  # fmt: skip
"""What the messages say to write instead."""


@pytest.fixture(autouse=True)
def folder(here: Path) -> None:
    (here / "in").mkdir()
    (here / "rates").mkdir()


def test_files(spark: SparkSession, here: Path) -> None:
    for number, (text, what, cure) in enumerate(FILES):
        with Pond(spark, here / f"p{number}") as pond, pytest.raises(MillpondError) as error:
            pond.load(STREAM + text)
        assert what in error.value.what, error.value
        assert cure in error.value.cure, error.value
    for number, text in enumerate(CURES):
        with Pond(spark, here / f"c{number}") as pond:
            assert pond.load(STREAM + text)


def test_a_text_without_a_statement_gets_the_argument(spark: SparkSession, here: Path) -> None:
    with Pond(spark, here / "p") as pond:
        pond.load(STREAM)
        with pytest.raises(MillpondError, match="has no bound in event time") as error:
            pond.add("a", UNBOUND)
        assert "state_ttl='1 hour' in Pond.add, or --state-ttl '1 hour'" in error.value.cure, error.value
        assert pond.add("a", UNBOUND, state_ttl="1 hour").text == UNBOUND


def test_columns_that_files_do_not_have(spark: SparkSession, here: Path) -> None:
    local = "CREATE TABLE s (ts TIMESTAMP_NTZ, k STRING) USING json OPTIONS (path 'in');"
    counted = table(f"SELECT k, {W} AS w, count(*) AS n {FROM} GROUP BY ALL")
    with Pond(spark, here / "p") as pond, pytest.raises(MillpondError) as error:
        pond.load(local + counted)
    assert "Declare the column TIMESTAMP, or write CAST" in error.value.cure, error.value


def test_frames(spark: SparkSession, here: Path) -> None:
    plain = spark.readStream.schema("ts timestamp, k string, v bigint").json(str(here))
    marked, window = plain.withWatermark("ts", "1 second"), F.window("ts", "10 seconds")
    counted = marked.groupBy(window, "k").count()
    refused: list[tuple[DataFrame, str, str]] = [
        (plain.groupBy("k").count(), "has no watermark", "Add .withWatermark('ts', '10 seconds') before groupBy"),
        (plain.dropDuplicatesWithinWatermark(), "its stream has no watermark", "Add .withWatermark('ts'"),
        (counted.orderBy("count"), "ends in ORDER BY", "row_number("),
    ]
    with Pond(spark, here / "p") as pond:
        for frame, what, cure in refused:
            with pytest.raises(MillpondError) as error:
                pond.add("a", frame)
            assert what in error.value.what, error.value
            assert cure in error.value.cure, error.value
        pond.add("few", counted.limit(10))
        pond.add("once", counted.dropDuplicates(["k"]))
        pond.add("a", marked.groupBy(window).agg(F.sum(F.when(F.col("k") == "a", F.col("v"))).alias("a")))
