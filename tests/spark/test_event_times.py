"""Event times that are expressions of the row: the rows of Spark's batch engine from one read of the input."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kit.judges.interpreted import interpreted_table
from kit.judges.recorded import RecordedAnswers
from millpond import Pond
from millpond.errors import ChangeRefused
from millpond.plan.explain.plan_text import explain

COLUMNS = """k STRING, sec BIGINT, ms BIGINT, txt STRING, doc STRING, e STRUCT<t: TIMESTAMP, v: INT>, v INT,
ntz TIMESTAMP_NTZ"""
GENERATED = "at TIMESTAMP GENERATED ALWAYS AS (timestamp_millis(ms)), twice BIGINT GENERATED ALWAYS AS (v * 2)"
BEGIN = 1_700_000_000
FORMAT = "dd/MM/yyyy HH:mm:ss"
RECORDED = RecordedAnswers(__file__, Path(__file__).read_text())


def grouped(relation: str) -> str:
    """A query over a relation with the event time `t` and the columns `k` and `v`."""
    return (
        f"SELECT k, window(t, '5 minutes') AS w, count(*) AS n, sum(v) AS s, min(t) AS first FROM ({relation}) "
        "WATERMARK t DELAY OF INTERVAL 10 DAYS WHERE v < 90 GROUP BY k, window(t, '5 minutes')"
    )


def timed(expression: str) -> str:
    """A query whose event time is an expression over the columns of `ev`."""
    return grouped(f"SELECT {expression} AS t, k, v FROM STREAM ev")


SECONDS = "(SELECT timestamp_seconds(sec) AS t, k, v FROM STREAM ev) WATERMARK t DELAY OF INTERVAL 10 DAYS"
TEXTS = {
    "seconds": timed("timestamp_seconds(sec)"),
    "millis": timed("timestamp_millis(ms)"),
    "format": timed(f"to_timestamp(txt, '{FORMAT}')"),
    "nested": timed("e.t"),
    "cast_ntz": timed("CAST(ntz AS TIMESTAMP)"),
    "cast_text": timed("CAST(CAST(timestamp_seconds(sec) AS STRING) AS TIMESTAMP)"),
    "arithmetic": timed("timestamp_seconds(sec) + make_interval(0, 0, 0, 1, v)"),
    "own_name": grouped("SELECT timestamp_seconds(sec) AS t, k, v FROM STREAM ev WHERE sec % 3 > 0"),
    "raises": timed("timestamp_seconds(sec + 0 * (1 DIV (v % 7)))"),
    "parsed": grouped(
        "SELECT k, v, j.at AS t FROM (SELECT k, v, from_json(doc, 'at TIMESTAMP, z INT', "
        "map('timestampFormat', 'yyyy-MM-dd HH:mm:ss')) AS j FROM STREAM ev)"
    ),
    "generated": grouped("SELECT at AS t, k, twice AS v FROM STREAM ev"),
    "view": grouped("SELECT t, k, v FROM STREAM timed"),
    "union": grouped(
        "SELECT timestamp_seconds(sec) AS t, k, v FROM STREAM ev UNION ALL "
        "SELECT timestamp_millis(ms), concat(k, '!'), v FROM STREAM ev WHERE v > 20"
    ),
    "joined": grouped("SELECT timestamp_seconds(sec + shift) AS t, k, v FROM STREAM ev JOIN shifts ON k = name"),
    "joined_left": grouped(
        "SELECT timestamp_seconds(sec + coalesce(shift, 7)) AS t, k, v FROM STREAM ev LEFT JOIN shifts ON k = name"
    ),
    "exploded": grouped(
        "SELECT timestamp_seconds(one) AS t, k, v FROM STREAM ev LATERAL VIEW explode(array(sec, sec + 400)) AS one"
    ),
    "sessions": f"SELECT k, session_window(t, '40 seconds') AS w, sum(v) AS s FROM {SECONDS} GROUP BY ALL",
    "rows": f"""SELECT k, v, sum(v) OVER (PARTITION BY k ORDER BY t RANGE BETWEEN INTERVAL 5 MINUTES PRECEDING
                AND CURRENT ROW) AS s FROM {SECONDS}""",
    "pairs": f"""SELECT a.k, a.v, b.v AS u FROM {SECONDS} AS a JOIN
                 (SELECT at AS m, k, v FROM STREAM ev) WATERMARK m DELAY OF INTERVAL 10 DAYS AS b
                 ON a.k = b.k AND b.m BETWEEN a.t - INTERVAL 1 MINUTE AND a.t""",
}  # fmt: skip

TWICE = grouped(
    "SELECT timestamp_seconds(sec) AS t, k, v + one AS v FROM STREAM ev LATERAL VIEW explode(array(1, 2)) AS one"
)

FRAMES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "frame_parsed": lambda ev: _windowed(
        ev.select("k", F.from_json("doc", "at STRING, z INT").alias("j"))
        .select("k", "j.*").withColumn("t", F.to_timestamp("at", "yyyy-MM-dd HH:mm:ss")), "z",
    ),
    "frame_nested": lambda ev: _windowed(ev.select("k", "e.*"), "v"),
    "frame_replaced": lambda ev: _windowed(ev.withColumn("t", F.timestamp_millis("ms")), "v"),
}  # fmt: skip


def _windowed(frame: DataFrame, value: str) -> DataFrame:
    frame = frame.withWatermark("t", "10 days") if frame.isStreaming else frame
    return frame.groupBy("k", F.window("t", "5 minutes").alias("w")).agg(
        F.count("*").alias("n"), F.sum(value).alias("s")
    )


def _write(folder: Path, number: int, begin: int = BEGIN) -> None:
    """A file of random events; some have no time that can be computed."""
    draw = random.Random(number)
    folder.mkdir(exist_ok=True)
    lines = []
    for _ in range(60):
        sec = begin + draw.randrange(3000)
        at = datetime.fromtimestamp(sec, timezone.utc)
        lines.append(json.dumps({
            "k": draw.choice("abc"), "sec": sec, "ms": sec * 1000 + draw.randrange(1000), "v": draw.randrange(100),
            "txt": f"{at:%d/%m/%Y %H:%M:%S}", "doc": json.dumps({"at": f"{at:%F %T}", "z": draw.randrange(9)}),
            "e": None if draw.random() < 0.1 else {"t": f"{at:%FT%T}Z", "v": 3}, "ntz": f"{at:%FT%T}",
        }))  # fmt: skip
    (folder / f"{number}.json").write_text("\n".join(lines))


def _declared(folder: Path) -> str:
    return (
        f"CREATE TABLE ev ({GENERATED}, {COLUMNS}) USING json OPTIONS (path '{folder}/in', maxFilesPerTrigger '1');"
        "CREATE TEMPORARY VIEW timed AS SELECT timestamp_seconds(sec) AS t, k, v FROM STREAM ev;"
    )


def _batch(spark: SparkSession, folder: Path) -> DataFrame:
    """The events of all files, also as the view `ev_batch`, and the view `timed_batch`."""
    batch = spark.read.schema(COLUMNS).json(str(folder / "in"))
    batch.selectExpr("timestamp_millis(ms) AS at", "v * 2L AS twice", "*").createOrReplaceTempView("ev_batch")
    spark.sql("SELECT timestamp_seconds(sec) AS t, k, v FROM ev_batch").createOrReplaceTempView("timed_batch")
    return batch


def _expected(spark: SparkSession, text: str) -> DataFrame:
    text = re.sub(r"WATERMARK \w DELAY OF INTERVAL 10 DAYS|STREAM ", "", text)
    text = text.replace("FROM ev", "FROM ev_batch").replace("FROM timed", "FROM timed_batch")
    return spark.sql(text.replace("DIV (v % 7)", "DIV nullif(v % 7, 0)"))


def _counted(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, table.to_pylist()))


def _spark_says(name: str, ours: Counter[str], frame: Callable[[], DataFrame]) -> Counter[str]:
    """The counted rows of Spark's batch, if they are not recorded as those that the pond emitted."""

    def ask() -> list[tuple[str, int]]:
        return sorted(_counted(interpreted_table(frame())).items())

    return Counter(dict(RECORDED.answer(name, None, sorted(ours.items()), ask)))


def test_rows_are_those_of_sparks_batch(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(2):
        _write(tmp_path / "in", number)
    batch = _batch(spark, tmp_path)
    spark.createDataFrame([("a", 100), ("b", -50)], "name string, shift int").createOrReplaceTempView("shifts")
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(_declared(tmp_path))
        stream = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
        for name, text in TEXTS.items():
            pond.add(name, text)
        for name, frame in FRAMES.items():
            pond.add(name, frame(stream))
        pond.run(once=True, drain=True)
        answers = {name: partial(_expected, spark, text) for name, text in TEXTS.items()}
        answers |= {name: partial(frame, batch) for name, frame in FRAMES.items()}
        for name, answer in answers.items():
            ours = _counted(pond.table(name))
            assert ours, name
            assert ours == _spark_says(name, ours, answer), name
        timeless = batch.where("v % 7 = 0").count()
        assert pond.counts()["raises"].whole.dead == timeless > 0
        read = {query.name: query.streams for query in pond.queries}
        assert read["seconds"] == read["view"] == read["own_name"] != read["millis"]
        assert read["millis"] == read["frame_replaced"] == read["generated"]
        assert "\n    ev WITH timestamp_seconds(sec) AS t\n" in explain(pond.plan, pond.streams)


def test_time_expressions_come_and_go_in_a_pond_that_continues(spark: SparkSession, tmp_path: Path) -> None:
    changed = TEXTS["seconds"].replace("v < 90", "v < 80")
    _write(tmp_path / "in", 0)
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(_declared(tmp_path))
        pond.add("seconds", TEXTS["seconds"])
        pond.add("gone", TEXTS["millis"])
        pond.run(once=True)
        _write(tmp_path / "in", 1, BEGIN + 1_000_000)
        pond.drop("gone")
        pond.add("later", TEXTS["own_name"])
        pond.add("twice", TWICE)  # another derived stream, with the times of the first
        with pytest.raises(ChangeRefused, match="Declare the stream a second time"):
            pond.add("other", TEXTS["format"])  # its times are unknown for the events that were read
        pond.alter("seconds", changed)
        pond.run(once=True)
    _write(tmp_path / "in", 2, BEGIN + 1_003_000)
    _batch(spark, tmp_path)
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(_declared(tmp_path))
        pond.add("seconds", changed)
        pond.add("later", TEXTS["own_name"])
        pond.add("twice", TWICE)
        pond.run(once=True, drain=True)
        begun = f"w.start >= timestamp_seconds({BEGIN + 1_000_000})"
        for name, text in {"seconds": changed, "later": TEXTS["own_name"], "twice": TWICE}.items():
            expected = _counted(interpreted_table(_expected(spark, text).where(begun)))
            assert expected
            emitted = _counted(pond.table(name))
            assert Counter({row: n for row, n in emitted.items() if row in expected}) == expected


def test_the_record_of_a_pond_has_what_its_texts_name(spark: SparkSession, tmp_path: Path) -> None:
    texts = {name: TEXTS[name] for name in ("seconds", "view", "union", "joined", "pairs", "raises")}
    texts["later"] = "SELECT k, one FROM STREAM named LATERAL VIEW explode(array(v, v + 1)) AS one"
    texts["rows"] = "SELECT date_format(window.start, 'HH') AS x FROM STREAM seconds GROUP BY window(w, '1 hour')"
    (tmp_path / "shifts.json").write_text('{"name": "a", "shift": 100}\n{"name": "b", "shift": -50}')
    table = "CREATE TEMPORARY VIEW shifts (name STRING, shift INT) USING json OPTIONS (path"
    _write(tmp_path / "in", 0)
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(f"{_declared(tmp_path)} {table} '{tmp_path}/shifts.json');")
        for name in [*texts][:-2]:
            pond.add(name, texts[name])
        pond.run(once=True)
        pond.add("rows", texts["rows"])
        pond.load("CREATE TEMPORARY VIEW named AS SELECT k, v FROM STREAM ev WHERE v > 5", queries=False)
        pond.add("later", texts["later"])
    _write(tmp_path / "in", 1, BEGIN + 1_000_000)
    _batch(spark, tmp_path)
    spark.createDataFrame([("a", 100), ("b", -50)], "name string, shift int").createOrReplaceTempView("shifts")
    for _ in range(2):  # what a driver claims without the texts is enough for the next one
        with Pond(spark, tmp_path / "pond") as pond:
            pond.run(once=True, drain=True)
            assert {query.name for query in pond.queries} == {*texts}
            for name in ("seconds", "view", "union", "joined", "raises"):
                ours = _counted(pond.table(name))
                assert ours == _spark_says(f"{name} in two files", ours, partial(_expected, spark, texts[name])), name
