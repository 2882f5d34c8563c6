"""Frames and count windows: from SQL and DataFrames, compared with Spark's batch engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import UNSET
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

from kit.inputs.one_stream import front_end
from kit.judges.interpreted import interpreted_table
from kit.judges.recorded import RecordedAnswers, columns_and_rows
from millpond import Pond, count_window
from millpond.errors import MillpondError, QueryRefused, QueryTypeError, UnsupportedQuery
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, call, literal
from millpond.model.query import Named, Query
from millpond.model.windows import Counted, Range
from millpond.plan.explain.plan_text import explain
from millpond.spark.frontend.frontend import FrontEnd

SCHEMA = "id bigint, card string, kind string, amount double, price decimal(10,2), qty int, ts timestamp"
MINUTE = 60_000_000
OVER = "OVER (PARTITION BY card ORDER BY ts RANGE BETWEEN INTERVAL {} PRECEDING AND CURRENT ROW)"
TEN = OVER.format("10 MINUTES")
AMOUNT = Column("amount", "double")
RECORDED = RecordedAnswers(__file__, Path(__file__).read_text())


@pytest.fixture(scope="module")
def front(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FrontEnd:
    return front_end(spark, SCHEMA, tmp_path_factory.mktemp("tx"))


def test_a_row_per_event(front: FrontEnd) -> None:
    text = (
        f"SELECT * FROM (SELECT id, card, ts AS at, upper(kind) AS k, sum(amount) {TEN} + 1 AS s, "
        f"count(*) {OVER.format('1 HOUR')} AS n, min(amount) {OVER.format('0 SECONDS')} AS m "
        "FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 30 SECONDS WHERE qty > 0) WHERE n > 3"
    )
    query = front.query_from_sql("q", text)
    assert isinstance(query, Query)
    assert (query.window, query.delay_us, query.keys) == (Range(60 * MINUTE), 30_000_000, (Column("card", "string"),))
    assert query.aggregates == (
        Aggregate("sum", AMOUNT, None, "double", preceding_us=10 * MINUTE),
        Aggregate("count", None, None, "bigint"),
        Aggregate("min", AMOUNT, None, "double", preceding_us=0),
    )
    assert query.event == (Column("id", "bigint"), call("upper", (Column("kind", "string"),), "string"))
    assert query.output[:4] == (
        Named("id", Column("event:0", "bigint")), Named("card", Column("key:0", "string")),
        Named("at", Column("window.time", "timestamp")), Named("k", Column("event:1", "string")),
    )  # fmt: skip
    assert query.where == call("gt", (Column("qty", "int"), literal(0, "int")), "boolean")
    assert query.having == call("gt", (Column("agg:1", "bigint"), literal(3, "bigint")), "boolean")


REFUSED = [
    ("SELECT id, first_value(kind) OVER (PARTITION BY card ORDER BY ts) AS s FROM tx", "stored indefinitely"),
    ("SELECT id, nth_value(kind, 2) OVER (PARTITION BY card ORDER BY ts) AS s FROM tx", "stored indefinitely"),
    ("SELECT id, sum(amount) OVER (PARTITION BY card ORDER BY ts ROWS BETWEEN 1 PRECEDING AND UNBOUNDED FOLLOWING) "
     "AS s FROM tx", "never ends"),
    ("SELECT id, sum(amount) OVER (PARTITION BY card ORDER BY ts ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING) "
     "AS s FROM tx", "all earlier events of a key, but does not end with its event"),
    ("SELECT id, lead(amount, 1000000) OVER (PARTITION BY card ORDER BY ts) AS s FROM tx", "too far away"),
    (f"SELECT id, sum(amount) {TEN.replace('ORDER BY ts', 'ORDER BY ts DESC')} AS s FROM tx", "ORDER BY"),
    (f"SELECT id, sum(amount) {TEN.replace('ORDER BY ts', 'ORDER BY qty')} AS s FROM tx", "qty"),
    (f"SELECT id, sum(amount) {TEN.replace('CURRENT ROW', 'INTERVAL 1 MINUTE FOLLOWING')} AS s FROM tx",
     "does not end with its event"),
    ("SELECT id, sum(amount) OVER (PARTITION BY card) AS s FROM tx", "is over single events"),
    (f"SELECT id, sum(amount) {OVER.format('-1 MONTH')} AS s FROM tx", "begins after its event"),
    (f"SELECT id, row_number() {TEN} AS s FROM tx", "must match the required frame"),
    (f"SELECT window(ts, '1 hour') AS w, sum(amount) {TEN} AS s FROM tx", "OVER"),
    ("SELECT id, max(kind) OVER w AS s FROM tx WINDOW w AS (PARTITION BY card ORDER BY ts)", "stored indefinitely"),
    ("SELECT id, x FROM tx LEFT JOIN LATERAL explode(array(1, 2)) AS t(x)", "LATERAL without ON"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "what"), REFUSED)
def test_other_frames_are_refused_by_name(front: FrontEnd, text: str, what: str) -> None:
    with pytest.raises((UnsupportedQuery, QueryRefused, QueryTypeError), match=what):
        front.query_from_sql("q", text)


def test_a_frame_of_a_day_has_24_hours(spark: SparkSession, front: FrontEnd) -> None:
    """Spark counts days of a frame by the calendar, so one night a year it has 23 hours."""
    count = f"SELECT count(*) {OVER.format('1 DAY')} AS n FROM "
    query = front.query_from_sql("q", f"{count} tx")
    assert isinstance(query, Query) and query.window == Range(24 * 60 * MINUTE)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        times = "VALUES ('c', timestamp'2024-03-30 11:30:00Z'), ('c', timestamp'2024-03-31 11:00:00Z') AS t(card, ts)"
        assert [row.n for row in spark.sql(f"{count} {times}").collect()] == [1, 1]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


COUNTED = [
    ("count_window(ts, 10, 5)", Counted(10, 5)),
    ("Count_Window( ts , 7 )", Counted(7, 7)),
    ("count_window(ts,1,1)", Counted(1, 1)),
]


@pytest.mark.parametrize(("text", "window"), COUNTED)
def test_count_windows_from_text(front: FrontEnd, text: str, window: Counted) -> None:
    query = front.query_from_sql("q", f"SELECT card, {text} AS w, sum(amount) AS s FROM tx GROUP BY card, {text}")
    assert isinstance(query, Query)
    assert (query.window, query.event) == (window, UNSET)


@pytest.mark.parametrize(
    "window",
    ["count_window(ts)", "count_window(ts, '10')", "count_window(ts, 0, 1)", "count_window(ts, 10, qty)",
     "count_window(ts, 2000000, 1)", "count_window(ts, 3, -1)"],
)  # fmt: skip
def test_what_is_no_number_of_events(front: FrontEnd, window: str) -> None:
    with pytest.raises(MillpondError):
        front.query_from_sql("q", f"SELECT card, sum(amount) AS s FROM tx GROUP BY card, {window}")


def test_a_count_window_has_no_window_time(front: FrontEnd) -> None:
    with pytest.raises(UnsupportedQuery, match="window_time"):
        front.query_from_sql(
            "q", "SELECT card, window_time(w) AS t FROM (SELECT card, count_window(ts, 3, 1) AS w, count(*) AS n "
            "FROM tx GROUP BY ALL)"
        )  # fmt: skip


FRAMES = {
    "sums": f"SELECT id, card, ts, sum(amount) {TEN} AS s, count(*) {OVER.format('1 HOUR')} AS n FROM tx",
    "extremes": f"SELECT id, min(amount) {TEN} AS a, max(price) {TEN} AS b, min(kind) {TEN} AS c FROM tx WHERE qty > 1",
    "spread": f"SELECT id, stddev(qty) {TEN} AS a, avg(price) {TEN} AS b, sum(price) {TEN} AS c, "
    f"round(avg(qty) {TEN}, 3) AS d FROM tx",
    "lists": f"SELECT id, collect_set(kind) {TEN} AS a, percentile(amount, 0.5) {TEN} AS b FROM tx",
    "filtered": f"SELECT id, count(*) FILTER (WHERE kind = 'pos') {TEN} AS a, count(kind) {TEN} AS b FROM tx",
    "peers": "SELECT id, count(*) OVER (PARTITION BY kind, qty % 2 ORDER BY ts RANGE CURRENT ROW) AS n FROM tx",
    "alone": "SELECT id, sum(qty) OVER (ORDER BY ts RANGE BETWEEN INTERVAL '00:02' HOUR TO MINUTE PRECEDING AND "
    "CURRENT ROW) AS s FROM tx",
    "rows": "SELECT id, card, ts, sum(amount) OVER (PARTITION BY card ORDER BY ts ROWS 3 PRECEDING) AS s, "
    "first_value(kind) OVER (PARTITION BY card ORDER BY ts ROWS 1 PRECEDING) AS a, "
    "last_value(qty) OVER (PARTITION BY card ORDER BY ts ROWS 1 PRECEDING) AS b, "
    "count(*) OVER (PARTITION BY card ORDER BY ts ROWS 2 PRECEDING) AS n FROM tx WHERE id % 2 = 0",
    "lags": "SELECT id, ts, lag(qty) OVER (PARTITION BY card ORDER BY ts) AS a, amount - lag(amount, 2, 0D) OVER "
    "(PARTITION BY card ORDER BY ts) AS b, max(qty) OVER (PARTITION BY card ORDER BY ts ROWS 3 PRECEDING) AS c, "
    "lag(kind, 1, 'none') OVER (PARTITION BY card ORDER BY ts) AS d FROM tx WHERE id % 2 = 0",
    "totals": "SELECT id, ts, sum(amount) OVER k AS a, count(*) OVER (PARTITION BY card ORDER BY ts ROWS UNBOUNDED "
    "PRECEDING) AS n, max(price) OVER k AS b, avg(price) OVER k AS c, min(ts) OVER k AS d, stddev(qty) OVER k AS e, "
    "count(*) FILTER (WHERE kind = 'pos') OVER k AS f, sum(price) OVER k AS g, amount - lag(amount) OVER k AS h "
    "FROM tx WHERE id % 2 = 0 WINDOW k AS (PARTITION BY card ORDER BY ts)",
    "leads": "SELECT id, ts, lead(amount) OVER k AS a, lead(kind, 2, 'none') OVER k AS b, lag(qty) OVER k AS c, "
    "sum(qty) OVER k AS d, lag(amount, -1) OVER k AS e, lead(amount, -2) OVER k AS f FROM tx WHERE id % 2 = 0 "
    "WINDOW k AS (PARTITION BY card ORDER BY ts)",
    "around": "SELECT id, avg(amount) OVER (PARTITION BY card ORDER BY ts ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING) "
    "AS a, max(price) OVER (PARTITION BY card ORDER BY ts ROWS BETWEEN 1 FOLLOWING AND 3 FOLLOWING) AS b, sum(qty) "
    "OVER (PARTITION BY card ORDER BY ts ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING) AS c, nth_value(kind, 2) OVER "
    "(PARTITION BY card ORDER BY ts ROWS 3 PRECEDING) AS d, nth_value(kind, 1) IGNORE NULLS OVER (PARTITION BY card "
    "ORDER BY ts ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING) AS e FROM tx WHERE id % 2 = 0",
    "numbers": "SELECT id, ts, row_number() OVER k AS r, lag(qty) OVER k AS a, count(kind) OVER k AS n FROM tx "
    "WHERE id % 2 = 0 WINDOW k AS (PARTITION BY card ORDER BY ts)",
    "first_ones": "SELECT id, r + 1 AS s FROM (SELECT *, row_number() OVER (PARTITION BY card ORDER BY ts) AS r "
    "FROM tx WHERE id % 2 = 0) WHERE r BETWEEN 3 AND 30",
    "in_hours": "SELECT id, r, format_string('%03d', r) AS s FROM (SELECT *, row_number() OVER (PARTITION BY "
    "date_trunc('HOUR', ts), kind ORDER BY ts) AS r FROM tx WHERE id % 2 = 0)",
    "above": f"SELECT id, s * 2 AS t FROM (SELECT id, sum(amount) {TEN} AS s FROM tx) WHERE s > 20",
    "seconds": "SELECT id, sum(amount) OVER s AS a, count(*) OVER (PARTITION BY card ORDER BY CAST(at AS BIGINT) RANGE "
    "BETWEEN 600 PRECEDING AND CURRENT ROW) AS b, collect_set(kind) OVER s AS c FROM (SELECT *, ts AS at FROM tx) "
    "WINDOW s AS (PARTITION BY card ORDER BY CAST(at AS BIGINT) RANGE BETWEEN 900 PRECEDING AND CURRENT ROW)",
    "seconds_twice": "SELECT id, a, sum(amount) OVER (PARTITION BY card ORDER BY CAST(ts AS BIGINT) RANGE BETWEEN 300 "
    "PRECEDING AND CURRENT ROW) AS b FROM (SELECT *, count(*) OVER (PARTITION BY card ORDER BY CAST(ts AS BIGINT) "
    "RANGE BETWEEN 900 PRECEDING AND CURRENT ROW) AS a FROM tx)",
    "milliseconds": "SELECT id, max(qty) OVER (PARTITION BY card ORDER BY unix_millis(ts) RANGE BETWEEN 94000 "
    "PRECEDING AND CURRENT ROW) AS a FROM tx",
    "rows_by_seconds": "SELECT id, lag(qty) OVER (PARTITION BY card ORDER BY unix_timestamp(ts)) AS a FROM tx "
    "WHERE id % 2 = 0",
    "window": f"SELECT id, s, window(ts, '1 hour') AS w FROM (SELECT id, ts, sum(amount) {TEN} AS s FROM tx)",
    "approximate": f"SELECT id, approx_count_distinct(kind) {TEN} AS a FROM tx",
}
COUNTS = {
    "lasts": (
        "SELECT card, count_window(ts, 3, 2) AS w, sum(amount) AS s, count(*) AS n FROM tx GROUP BY ALL",
        "SELECT card, named_struct('start', a, 'end', ts) AS w, s, n FROM (SELECT *, row_number() OVER (PARTITION BY "
        "card ORDER BY ts, amount) AS i, sum(amount) OVER f AS s, count(*) OVER f AS n, min(ts) OVER f AS a FROM tx "
        "WINDOW f AS (PARTITION BY card ORDER BY ts, amount ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)) WHERE i % 2 = 0",
    ),
}


@pytest.fixture(scope="module")
def pond(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pond]:
    """A pond that has answered all of them; Spark's batch has the same events in the view `tx`."""
    folder = tmp_path_factory.mktemp("made")
    rows = spark.range(0, 300, 1, 3).selectExpr(
        "id", "concat('c', id * id % 5) AS card", "if(id % 11 = 0, NULL, if(id % 3 = 0, 'pos', 'web')) AS kind",
        "id * 37 % 100 / 8D + id / 1024D AS amount", "cast(id * 0.37 AS decimal(10,2)) AS price",
        "if(id % 13 = 0, NULL, cast(id % 7 AS int)) AS qty", "timestamp_seconds(1700000000 + id div 2 * 47) AS ts",
    )  # fmt: skip
    rows.write.parquet(str(folder / "tx"))
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "tx"))
    tx = stream.withWatermark("ts", "3 hours")
    spark.read.schema(SCHEMA).parquet(str(folder / "tx")).createOrReplaceTempView("tx")
    with Pond(spark, folder / "pond") as pond:
        pond.load(
            f"CREATE TABLE tx_s ({SCHEMA}) USING parquet OPTIONS (path '{folder / 'tx'}', maxFilesPerTrigger 1);"
            "CREATE TEMPORARY VIEW tx AS SELECT * FROM STREAM tx_s WATERMARK ts DELAY OF INTERVAL 3 HOURS;"
        )
        for name, text in (FRAMES | {name: text for name, (text, _) in COUNTS.items()}).items():
            pond.add(name, text)
        total = F.expr(f"sum(amount) {TEN}").alias("s")
        pond.add("frame", tx.where("qty > 1").select("id", "card", total), serve=True)
        by_second = Window.partitionBy("card").orderBy(F.col("ts").cast("timestamp").cast("long"))
        made = tx.withColumn("n", F.count("*").over(by_second.rangeBetween(-900, 0)))
        made = made.withColumn("s", F.sum("amount").over(by_second.rangeBetween(-300, 0)))
        pond.add("by_second", made.select("id", F.col("n").alias("a"), F.col("s").alias("b")))
        pond.add("counts", tx.groupBy("card", count_window("ts", 3, 2)).agg(F.count("*").alias("n")), serve=True)
        pond.run(once=True, drain=True)
        yield pond


@pytest.mark.parametrize("name", [*FRAMES, *COUNTS])
def test_rows_are_those_of_sparks_batch(spark: SparkSession, pond: Pond, name: str) -> None:
    text = FRAMES[name] if name in FRAMES else COUNTS[name][1]
    ours = columns_and_rows(pond.table(name), shown)
    theirs = RECORDED.answer(
        name, text, ours, lambda: columns_and_rows(interpreted_table(spark.sql(text)), shown)
    )  # fmt: skip
    assert ours == theirs
    assert len(ours[1]) > 50


def shown(value: object) -> object:
    """A value to compare: Spark adds doubles in the order in which they come, a pond exactly."""
    if isinstance(value, list):
        return sorted(value, key=repr)
    return format(value, ".10g") if isinstance(value, float) else value


def test_the_latest_row_of_a_key_is_served(spark: SparkSession, pond: Pond) -> None:
    """The last event of a key, of one time the one with the largest columns."""
    last = spark.sql("SELECT max_by(id, struct(ts, id)) AS id FROM tx WHERE qty > 1 AND card = 'c1'").first()
    found = pond.lookup("frame", "c1").document
    assert last is not None and found is not None and found["row"]["id"] == last["id"]
    counted = pond.lookup("counts", "c1").document
    assert counted is not None and counted["row"]["n"] == 3


def test_dataframes_have_frames_of_seconds(pond: Pond) -> None:
    found, text = (columns_and_rows(pond.table(name), shown) for name in ("by_second", "seconds_twice"))
    assert found == text


def test_words_for_people(pond: Pond) -> None:
    said = explain(pond.plan, pond.streams)
    assert "each event with 3 events before it and 3 events after it" in said
    assert "1 hour before each event" in said and "the last 3 events every 2 events" in said
    assert "rows-are-out" in {cause.code for cause in pond.why("sums").causes}
