"""Stateless queries in Spark: files in, files out, beside windows, restarted, explained and inspected."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from millpond import Pond
from millpond.control.diagnose.causes import explain_why
from millpond.control.diagnose.cost_report import measure, measured_text
from millpond.control.diagnose.facts import find_facts
from millpond.control.diagnose.why_report import draw
from millpond.control.wiring.pond_reader import look_up, read_truth
from millpond.errors import ForeignPondError, QueryTypeError, UnsupportedQuery
from millpond.log.records import EpochRecord, decode
from millpond.model.selection import Selection
from millpond.plan.explain.plan_text import explain, price_of_selection

pytestmark = pytest.mark.slow

COLUMNS = "id bigint, kind string, amount double, divisor int, tags array<string>, ts timestamp"
FILE = """
CREATE TABLE tx ({columns}) USING parquet OPTIONS (path '{folder}/tx', maxFilesPerTrigger 1);
CREATE STREAMING TABLE large USING parquet TBLPROPERTIES ('path' = '{folder}/large') AS
  SELECT id, amount * 2 AS twice, tags FROM STREAM tx WHERE amount >= 50;
CREATE STREAMING TABLE pos USING json TBLPROPERTIES ('path' = '{folder}/pos') AS
  SELECT id, upper(kind) AS kind, ts FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS WHERE kind = 'pos';
CREATE STREAMING TABLE shares USING parquet TBLPROPERTIES ('path' = '{folder}/shares') AS
  SELECT id, named_struct('s', 100 DIV divisor) AS share FROM STREAM tx;
CREATE STREAMING TABLE counted AS SELECT id FROM STREAM tx WHERE amount < {bound};
CREATE STREAMING TABLE hourly USING parquet TBLPROPERTIES ('path' = '{folder}/hourly', 'serve' = 'true') AS
  SELECT kind, window(ts, '1 hour') AS w, count(*) AS n
  FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS WHERE amount >= 50 GROUP BY ALL;
"""


def write(spark: SparkSession, folder: Path, start: int) -> None:
    """A hundred events, each file an hour earlier than the one before: everything but the first is late."""
    rows = spark.range(start, start + 100, 1, 1).selectExpr(
        "id", "if(id % 2 = 0, 'pos', 'web') AS kind", "id % 100 * 1.0D AS amount", "cast(id % 5 AS int) AS divisor",
        "array(cast(id AS string), NULL) AS tags", f"timestamp_seconds(9000000 - {start} * 36 + id) AS ts",
    )  # fmt: skip
    rows.write.mode("append").parquet(str(folder / "tx"))


def run(spark: SparkSession, folder: Path, bound: int = 10) -> Pond:
    with Pond(spark, folder / "pond") as pond:
        pond.load(FILE.format(columns=COLUMNS, folder=folder, bound=bound))
        pond.run(once=True)
    return pond


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pond that ran twice, on two files."""
    folder = tmp_path_factory.mktemp("stateless")
    for start in (0, 100):
        write(spark, folder, start)
        run(spark, folder)
    return folder


def test_rows_are_sparks_exactly_once_across_a_restart(spark: SparkSession, folder: Path) -> None:
    tx = spark.read.schema(COLUMNS).parquet(str(folder / "tx"))
    large = tx.where("amount >= 50").selectExpr("id", "amount * 2 AS twice", "tags")
    pos = tx.where("kind = 'pos'").selectExpr("id", "upper(kind) AS kind", "ts")
    assert spark.read.parquet(str(folder / "large")).orderBy("id").collect() == large.orderBy("id").collect()
    found = spark.read.schema(pos.schema).json(str(folder / "pos"))
    assert found.orderBy("id").collect() == pos.orderBy("id").collect()
    assert large.count() == 100


def test_what_raises_is_dead_also_where_spark_evaluates_it(spark: SparkSession, folder: Path) -> None:
    found = spark.read.parquet(str(folder / "shares")).orderBy("id").collect()
    assert [row.id for row in found] == [id for id in range(200) if id % 5]
    assert found[0].share == Row(s=100)


def test_rows_leave_in_the_epoch_that_read_them_and_none_is_late(folder: Path) -> None:
    truth, _ = read_truth(folder / "pond")
    records = [decode(truth.log.read(n) or b"").record for n in range(truth.manifest.n + 1)]
    epochs = [record for record in records if isinstance(record, EpochRecord)]
    assert [record.counts["large"]["rows"] for record in epochs] == [50, 50]
    assert [record.counts["hourly"]["late"] for record in epochs] == [0, 100]
    for name, dead, filtered in (("large", 0, 50), ("shares", 20, 0), ("counted", 0, 90)):
        applied = 100 - dead - filtered
        fates = {"read": 100, "applied": applied, "late": 0, "dead": dead, "filtered": filtered, "rows": applied}
        assert [record.counts[name] for record in epochs] == [fates, fates]
    assert all(not record.fates for record in epochs)


def test_a_pond_with_other_stateless_queries_is_refused(spark: SparkSession, folder: Path) -> None:
    with pytest.raises(ForeignPondError, match="counted"):
        run(spark, folder, bound=11)


def test_plans_and_prices_are_printed(spark: SparkSession, folder: Path) -> None:
    with Pond(spark, folder / "other") as pond:
        pond.load(FILE.format(columns=COLUMNS, folder=folder, bound=10))
        text = explain(pond.plan, pond.streams)
        more = pond.add("more", "SELECT id, divisor FROM tx WHERE amount >= 50")
        assert isinstance(more, Selection)
        plan = pond.plan
        del pond._declarations.queries["more"]
        price = price_of_selection(pond.plan, more)
        measured = measured_text(measure(folder / "pond"))
    assert "5 queries in 1 group and 4 stateless over 1 stream" in text
    assert "stateless: tx, rows are emitted in the epoch that reads their events" in text
    assert "counted: id; where (amount < 10.0)" in text
    assert "1 more: divisor; 2 shared" in price
    assert "filters   1 shared" in price
    assert "reads 1,000 events" in measured
    assert plan.id != pond.plan.id


def test_why_and_lookup_say_what_is_true(folder: Path) -> None:
    truth, spec = read_truth(folder / "pond")
    why = explain_why(find_facts(truth, spec, "counted"))
    assert why.causes[0].code == "no-sink"
    assert why.causes[-1].code == "rows-are-out"
    picture = draw(why)
    assert "counted: tx, stateless, to noop" in picture
    assert "rows are emitted in the epoch that reads their events" in picture
    assert "20 rows were emitted" in picture
    with pytest.raises(QueryTypeError, match=r"not served.*never emitted"):
        look_up(folder / "pond", "large", [])


def test_an_array_that_raises_is_dead_for_its_queries_alone(spark: SparkSession, tmp_path: Path) -> None:
    write(spark, tmp_path, 0)
    source = spark.readStream.schema(COLUMNS).parquet(str(tmp_path / "tx"))
    halves = F.udf(lambda n: [n, n // 2] if n % 2 == 0 else 1 // 0, "array<int>")
    with Pond(spark, tmp_path / "pond") as pond:
        pond.add("inverse", source.select("id", F.expr("explode(array(60 DIV divisor, 0))").alias("x")))
        pond.add("made", source.where("id < 10").select("id", F.explode(halves("id")).alias("x")))
        pond.add("tags", source.select("id", F.explode_outer("tags").alias("x")))
        pond.run()
        found = {name: sorted(pond.table(name).to_pylist(), key=str) for name in ("inverse", "made", "tags")}
        counts = {name: tuple(found.whole) for name, found in pond.counts().items()}
    assert len(found["inverse"]) == 160
    assert {row["x"] for row in found["inverse"]} == {60, 30, 20, 15, 0}
    assert found["made"] == [{"id": id, "x": x} for id in range(0, 10, 2) for x in (id // 2, id)]
    assert len(found["tags"]) == 200
    # a row for each element, and one where there is none
    assert counts["inverse"] == (180, 160, 0, 20, 0)
    assert counts["made"] == (150, 10, 0, 5, 135)


def test_an_empty_table_and_a_missing_one(spark: SparkSession, tmp_path: Path) -> None:
    """No row comes out where WHERE takes nothing, and `why` says so; a lookup of it names its cure."""
    write(spark, tmp_path, 0)
    source = spark.readStream.schema(COLUMNS).parquet(str(tmp_path / "tx"))
    with Pond(spark, tmp_path / "pond", store="memory") as pond:
        pond.add("none", source.where(F.col("amount") > 1e9).select("id"))
        pond.run()
        assert pond.table("none").num_rows == 0
        [first, *_] = pond.why("none").causes
        assert first.code == "all-filtered"
        assert pond.counts()["none"].whole.filtered == 100
        with pytest.raises(QueryTypeError, match=r"not served.*never emitted"):
            pond.lookup("none", 1)


def visits(folder: Path, at: int, *rows: tuple[int, str, int]) -> None:
    """Write a file of events: id, kind and second."""
    (folder / "in").mkdir(exist_ok=True)
    lines = [f'{{"id": {id}, "kind": "{kind}", "ts": "1970-01-01 00:00:{ts:02}Z"}}\n' for id, kind, ts in rows]
    (folder / "in" / f"{at}.json").write_text("".join(lines))


def test_first_events_are_remembered_over_changes_and_restarts(spark: SparkSession, tmp_path: Path) -> None:
    """`dropDuplicates` remembers its keys; `dropDuplicatesWithinWatermark` those that the watermark has not passed."""
    columns = "id bigint, kind string, ts timestamp"

    def seen(pond: Pond, name: str) -> list[tuple[object, ...]]:
        return sorted(tuple(row.values()) for row in pond.table(name).to_pylist())

    def declare(pond: Pond) -> None:
        source = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
        events = source.withWatermark("ts", "5 seconds")
        pond.add("ever", source.dropDuplicates(["id"]).select("id", "kind"))
        pond.add("soon", events.dropDuplicatesWithinWatermark(["id"]).select("id", "kind"))
        pond.add("moments", events.dropDuplicates(["id", "ts"]).where("kind <> 'no'").select("id", "kind"))
        pond.add("few", source.select("id", "kind").limit(6))
        pond.add("ttl", events.dropDuplicates(["id"]).select("id", "kind"), state_ttl="5 seconds")

    visits(tmp_path, 0, (1, "a", 10), (2, "a", 11), (1, "b", 12), (3, "no", 12), (1, "a", 10))
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        declare(pond)
        pond.run()
        assert seen(pond, "ever") == [(1, "a"), (2, "a"), (3, "no")]
        assert seen(pond, "soon") == seen(pond, "ttl") == [(1, "a"), (2, "a"), (3, "no")]
        assert seen(pond, "moments") == [(1, "a"), (1, "b"), (2, "a")]
        assert len(seen(pond, "few")) == pond.counts()["ever"].whole.applied == 5
        text = explain(pond.plan, pond.streams)
        assert "the first event of each key, which is remembered indefinitely" in text
        assert "keep the first event by id" in text
        [cause, *_] = pond.why("ever").causes
        assert cause.code == "in-memory"
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        declare(pond)
        pond.scale(3)
        visits(tmp_path, 1, (1, "c", 14), (4, "c", 22), (2, "c", 11))
        pond.run()
        assert seen(pond, "ever")[-1] == (4, "c")
        assert len(seen(pond, "ever")) == 4
        assert seen(pond, "soon")[-1] == (4, "c")
        assert len(seen(pond, "few")) == 6 and (1, "c") in seen(pond, "few")
        source = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
        pond.alter("ever", source.dropDuplicates(["id"]).select("id", F.upper("kind").alias("kind")))
        altered = source.withWatermark("ts", "5 seconds").dropDuplicates(["id"])
        pond.alter("ttl", altered.select("id", F.upper("kind").alias("kind")))
        pond.add("later", source.dropDuplicates(["id"]).select("id", F.array("kind").alias("kinds")))
        pond.drop("moments")
        visits(tmp_path, 2, (1, "d", 20), (5, "d", 22), (5, "e", 22))
        pond.run()
        assert seen(pond, "ever")[-1] == (5, "D")  # it still knows 1
        assert len(seen(pond, "ever")) == 5
        assert seen(pond, "soon")[1] == (1, "d")  # the watermark is 17, and 1 was forgotten at 15
        assert seen(pond, "ttl")[0] == (1, "D")  # the new version has the time of the old one
        assert seen(pond, "later") == [(1, ["d"]), (5, ["d"])]
        assert len(seen(pond, "few")) == 6
        assert pond.counts()["later"].whole.applied == 3


def test_the_latest_event_of_each_key_is_an_update(spark: SparkSession, tmp_path: Path) -> None:
    """`row_number() = 1` in the order of the event time, descending: a row is replaced, or deleted by a condition."""
    ranked = (
        "SELECT id, kind, ts FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY ts DESC) AS n FROM STREAM s "
        "WATERMARK ts DELAY OF INTERVAL 5 SECONDS) WHERE n = 1"
    )
    visits(tmp_path, 0, (1, "a", 10), (1, "b", 12), (2, "a", 11), (3, "no", 12))
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        pond.load(f"CREATE TABLE s (id BIGINT, kind STRING, ts TIMESTAMP) USING json OPTIONS (path '{tmp_path}/in');")
        pond.add("latest", ranked, emit="update")
        pond.add("shown", f"{ranked} AND kind <> 'no'", emit="update")
        pond.run()
        visits(tmp_path, 1, (1, "c", 11), (2, "no", 14), (3, "b", 20), (4, "a", 1))
        pond.run()
        found = {name: pond.table(name).to_pylist() for name in ("latest", "shown")}
        text = explain(pond.plan, pond.streams)
    for name, rows in found.items():
        changes = [(row["id"], row["kind"], row["_op"]) for row in rows]
        assert {(1, "b", "upsert"), (2, "a", "upsert"), (3, "b", "upsert"), (4, "a", "upsert")} <= {*changes}, name
        assert (1, "c", "upsert") not in changes
    assert [row["id"] for row in found["shown"] if row["_op"] == "delete"] == [2]
    assert len(found["latest"]) == 6
    assert "keep the latest event by id" in text
    standing: dict[object, tuple[object, ...]] = {}
    for row in found["latest"]:
        standing[row["id"]] = (row["id"], row["kind"])
    batch = spark.read.schema("id bigint, kind string, ts timestamp").json(str(tmp_path / "in"))
    batch.createOrReplaceTempView("visits")
    theirs = ranked.replace("STREAM s WATERMARK ts DELAY OF INTERVAL 5 SECONDS", "visits")
    assert {*standing.values()} == {(row.id, row.kind) for row in spark.sql(theirs).collect()}


def test_other_ranks_over_events_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = (
        spark.readStream.schema("id bigint, ts timestamp").json(str(tmp_path / "in")).withWatermark("ts", "1 second")
    )
    ranked = source.withColumn("n", F.expr("row_number() OVER (PARTITION BY id ORDER BY ts DESC)"))
    with Pond(spark, tmp_path / "pond") as pond:
        for frame, says in ((ranked, r"\(emit='update' in Pond\.add\)"), (ranked.where("n < 3"), "ORDER BY ts DESC")):
            with pytest.raises(UnsupportedQuery, match=says):
                pond.add("q", frame)
        with pytest.raises(UnsupportedQuery, match=r"emit='update' in Pond\.add"):
            pond.add("q", ranked.where("n = 1"))


def test_first_events_are_read_by_other_queries_and_chosen_by_qualify(spark: SparkSession, tmp_path: Path) -> None:
    late = "STREAM s WATERMARK ts DELAY OF INTERVAL 0 SECONDS"
    visits(tmp_path, 0, (1, "a", 10), (1, "b", 12), (2, "c", 12), (1, "a", 10))
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        pond.load(f"CREATE TABLE s (id BIGINT, kind STRING, ts TIMESTAMP) USING json OPTIONS (path '{tmp_path}/in');")
        pond.add("once", f"SELECT DISTINCT id, kind, ts FROM {late}")
        pond.add("counted", "SELECT window(ts, '10 seconds').start AS w, count(*) AS n FROM STREAM once GROUP BY ALL")
        pond.add("kinds", "SELECT DISTINCT kind FROM STREAM once")
        pond.add("first", f"SELECT * FROM {late} QUALIFY row_number() OVER (PARTITION BY id ORDER BY ts) = 1")
        pond.run()
        pond.add("more", "SELECT DISTINCT kind FROM STREAM once")
        visits(tmp_path, 1, (3, "b", 13))
        pond.run(drain=True)
        found = {name: pond.table(name).to_pylist() for name in ("counted", "kinds", "first", "more")}
    assert [row["n"] for row in found["counted"]] == [4]
    assert sorted(row["kind"] for row in found["kinds"]) == ["a", "b", "c"]
    assert sorted((row["id"], row["kind"]) for row in found["first"]) == [(1, "a"), (2, "c"), (3, "b")]
    assert [row["kind"] for row in found["more"]] == ["b"]
