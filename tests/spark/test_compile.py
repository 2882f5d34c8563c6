"""Compiled pond files come from Spark, and a trial of one has the results of the pond."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from millpond import Pond
from millpond.control.pond.compile import compile_text
from millpond.model.compiled_pond import from_json, to_json
from millpond.model.endpoints import Source
from millpond.testing import Trial, assert_same_rows
from millpond.version import VERSION

SHOP = Path(__file__).parents[1] / "unit" / "testing" / "shop.sql"


def test_the_compiled_file_of_the_unit_tests_is_what_spark_makes_of_it(spark: SparkSession) -> None:
    made = compile_text(spark, SHOP.read_text())
    stored = from_json(SHOP.with_suffix(".json").read_bytes())
    assert made == msgspec.structs.replace(stored, millpond=VERSION)


EVENTS = [
    {"customer": f"c{i % 7}", "amount": i / 8, "pieces": i % 3, "ok": i % 4 > 0, "price": i,
     "ts": datetime.fromtimestamp(1_767_225_600 + 97 * i, timezone.utc)}
    for i in range(200)
]  # fmt: skip


@pytest.mark.slow
def test_a_trial_answers_what_the_pond_answers(spark: SparkSession, here: Path) -> None:
    (here / "tx").mkdir()
    lines = [json.dumps(row | {"ts": row["ts"].isoformat()}) for row in EVENTS]
    (here / "tx" / "0.json").write_text("\n".join(lines))
    compiled = from_json(SHOP.with_suffix(".json").read_bytes()).spec
    source = Source("json", (("path", str(here / "tx")),))
    names = ["spend", "sales", "shares"]
    with Pond(spark, here / "pond", store="memory") as pond:
        pond.stream(msgspec.structs.replace(compiled.streams[0], source=source))
        for query in compiled.queries:
            if query.name in names:
                pond.add(query.name, query.text)
        pond.run(once=True, drain=True)
        with Trial(SHOP.with_suffix(".json"), only=names) as trial:
            trial.feed("tx", [row | {"day": None} for row in EVENTS])
            trial.drain()
            for name in names:
                assert trial.table(name).num_rows > 1
                assert trial.table(name).schema == pond.table(name).schema
                assert_same_rows(pond.table(name), trial.table(name))


@pytest.mark.slow
def test_dataframes_are_compiled_too(spark: SparkSession, here: Path) -> None:
    (here / "clicks").mkdir()
    read = spark.readStream.schema("page string, ts timestamp").json(str(here / "clicks"))
    clicks = read.withWatermark("ts", "1 minute")
    with Pond(spark, here / "clicks.pond") as pond:
        pond.add("visits", clicks.groupBy(F.window("ts", "1 hour"), "page").count())
        pond.compile(here / "clicks.json")
    with Trial(here / "clicks.json") as trial:
        [stream] = trial.streams
        trial.feed(stream, [{"page": "/", "ts": "2026-01-01 12:05:00"}] * 3)
        trial.advance(stream, to="2026-01-01 13:01:00")
        hour = {"start": "2026-01-01 12:00:00", "end": "2026-01-01 13:00:00"}
        trial.expect("visits", [{"window": hour, "page": "/", "count": 3}])


def test_texts_of_several_steps_are_compiled(spark: SparkSession, tmp_path: Path) -> None:
    """The folder is missing, so the derived stream gets a name that is equal on all machines, and so its steps do."""
    counts = "SELECT window(ts, '5 seconds') AS w, k, count(*) AS n FROM STREAM each GROUP BY ALL"
    text = f"""CREATE TABLE tx (ks ARRAY<STRING>, ts TIMESTAMP) USING json OPTIONS (path '{tmp_path}/nothing');
      CREATE TEMPORARY VIEW each AS SELECT ts, explode(ks) AS k FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 1 SECOND;
      CREATE STREAMING TABLE q AS SELECT window(t, '10 seconds').start AS at, sum(n) AS n FROM (
        SELECT window_time(w) AS t, n FROM ({counts}) UNION ALL SELECT ts, 100L FROM STREAM each WHERE k = 'b')
      GROUP BY window(t, '10 seconds');"""
    path = tmp_path / "q.json"
    path.write_text(to_json(compile_text(spark, text)))
    with Trial(path) as trial:
        [stream], [query] = trial.streams, trial.queries
        assert query == "q" and stream.startswith("tx_")
        row = {field.name: True for field in trial.streams[stream].columns if field.type == "boolean"}
        [element] = [field.name for field in trial.streams[stream].columns if field.type == "string"]
        trial.feed(stream, [row | {"ts": f"2026-01-01 12:00:0{i}", element: "ab"[i % 2]} for i in range(8)])
        trial.drain()
        trial.expect("q", [{"at": "2026-01-01 12:00:00", "n": 408}])


@pytest.mark.spark
@pytest.mark.slow
def test_a_changed_file_is_compiled_by_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "pond.sql"
    file.write_text(
        "CREATE TABLE tx (n BIGINT, ts TIMESTAMP) USING json OPTIONS (path 'nowhere');\n"
        "CREATE STREAMING TABLE sums USING noop AS SELECT window(ts, '1 hour') AS w, sum(n) AS total\n"
        "FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 1 SECOND GROUP BY window(ts, '1 hour');\n"
    )
    with Trial(file) as trial:
        trial.feed("tx", [{"n": 2, "ts": "2026-01-01 12:05:00"}] * 3)
        trial.drain()
        assert [row["total"] for row in trial.rows("sums")] == [6]
    assert len([*(tmp_path / "cache").rglob("*.json")]) == 1
