"""Updates and corrections equal those of the naive twin, over a restart; wrong modes are refused."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import UNSET
from msgspec.structs import replace
from pyspark.sql import SparkSession
from pyspark.sql.functions import window

import millpond
from kit.naive.queries import windows
from kit.naive.queries.deduplicate import without_repeats
from kit.naive.queries.output_modes import emitted_by_epoch
from millpond import Pond
from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.testing.compare import assert_same_rows, rows_of

SECOND = 1_000_000
SELECT = """SELECT customer, window(ts, '1 minute', '30 seconds') AS w, count(*) AS n, sum(amount) AS total
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 SECONDS GROUP BY ALL HAVING count(*) % 2 = 1"""
TEXT = f"""
CREATE TABLE tx (customer STRING, amount DOUBLE, ts TIMESTAMP)
USING json OPTIONS (path '{{base}}/in', maxFilesPerTrigger '1') TBLPROPERTIES ('max_ahead' = 'none');
CREATE STREAMING TABLE updates USING parquet TBLPROPERTIES ('path' = '{{base}}/updates', 'emit' = 'update') AS {SELECT};
CREATE STREAMING TABLE corrected USING parquet TBLPROPERTIES (
  'path' = '{{base}}/corrected', 'emit' = 'final', 'correct.for' = '1 hour',
  'late.path' = '{{base}}/late', 'serve' = 'true') AS {SELECT};
CREATE STREAMING TABLE once USING parquet TBLPROPERTIES (
  'path' = '{{base}}/once', 'deduplicate' = 'customer, amount', 'deduplicate.within' = '20 seconds') AS {SELECT};
CREATE STREAMING TABLE open USING parquet TBLPROPERTIES ('path' = '{{base}}/open', 'late.by' = 'window') AS {SELECT};
"""


def make_files(folder: Path) -> list[list[dict[str, Any]]]:
    """A file per epoch, and its rows with times in microseconds."""
    dice, epochs = random.Random(7), []
    folder.mkdir()
    for i in range(4):
        seconds = [1_700_000_000 + 60 * i + dice.randint(0, 59) - dice.choice((0, 100, 900, 5000)) for _ in range(60)]
        rows = [{"customer": dice.choice("ab"), "amount": dice.randint(0, 9) / 2, "ts": s * SECOND} for s in seconds]
        shown = [{**row, "ts": datetime.fromtimestamp(row["ts"] // SECOND, timezone.utc).isoformat()} for row in rows]
        file = folder / f"{i}.json"
        file.write_text("\n".join(map(json.dumps, shown)))
        os.utime(file, (1_700_000_000 + i, 1_700_000_000 + i))
        epochs.append(rows)
    return epochs


def written(folder: Path) -> Sequence[dict[str, Any]]:
    return rows_of(pa.concat_tables([pq.read_table(part) for part in sorted(folder.glob("part-*"))]))


def test_rows_that_may_change_are_written_once_each_over_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    epochs = make_files(tmp_path / "in")
    kept = [(tmp_path / "in" / f"{i}.json").rename(tmp_path / f"{i}.json") for i in (2, 3)]
    for turn in range(2):
        with Pond(spark, tmp_path / "pond", instances=2) as pond:
            queries = {query.name: query for query in pond.load(TEXT.format(base=tmp_path))}
            pond.run()
            served = [pond.lookup("corrected", key).document for key in "ab"]
            for file in kept if not turn else ():
                file.rename(tmp_path / "in" / file.name)
    assert all(one is not None and "_op" not in one["row"] for one in served)
    by_window = queries.pop("open")
    assert_same_rows(windows.answer(by_window, epochs), written(tmp_path / "open"))
    assert windows.counts(by_window, epochs)["late"] < windows.counts(replace(by_window, late_by=UNSET), epochs)["late"]
    once, marked = without_repeats(queries.pop("once"), epochs)
    assert_same_rows(windows.answer(once, marked), written(tmp_path / "once"))
    assert windows.counts(once, marked)["filtered"] > 20
    for name, query in queries.items():
        expected = [row for rows in emitted_by_epoch(query, epochs) for row in rows]
        found = written(tmp_path / name)
        assert_same_rows(expected, found, about=name)
        assert {row["_op"] for row in found} == {"upsert", "delete"}
        assert ("_revision" in found[0]) == (name == "corrected")
    assert max(row["_revision"] for row in written(tmp_path / "corrected")) > 0
    assert len(written(tmp_path / "late")) > 5


def test_a_frame_has_a_mode_too(spark: SparkSession, tmp_path: Path) -> None:
    epochs = make_files(tmp_path / "in")
    source = spark.readStream.schema("customer STRING, amount DOUBLE, ts TIMESTAMP").option("maxFilesPerTrigger", 1)
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        events = source.json(str(tmp_path / "in")).withWatermark("ts", "10 seconds")
        from_frame = events.groupBy("customer", window("ts", "1 minute")).count()
        query = pond.add("updates", from_frame, emit="update")
        with pytest.raises(QueryTypeError, match="never corrected"):
            pond.add("both", from_frame, emit="update", correct_for="1 hour")
        with pytest.raises(QueryTypeError, match="604,800 windows of often"):
            pond.add("often", events.groupBy(millpond.window("ts", "7 days", "1 second")).count(), emit="update")
        with pytest.raises(QueryTypeError, match="Use one of event, window, join"):
            pond.add("rows", from_frame, late_by="row")
        with pytest.raises(UnsupportedQuery, match="no multiple of the slide"):
            pond.add("odd", events.groupBy(window("ts", "3 minutes", "2 minutes")).count(), late_by="window")
        with pytest.raises(QueryTypeError, match=r"'correct.for' of soon is 'soonish'"):
            pond.add("soon", from_frame, correct_for="soonish")
        pond.run()
        assert pond.table("updates").column_names[-1] == "_op"
        expected = [row for rows in emitted_by_epoch(query, epochs) for row in rows]
        assert_same_rows(expected, pond.table("updates"))


WATERMARK = " WATERMARK ts DELAY OF INTERVAL 10 SECONDS"
RUNNING = """SELECT customer, count(*) AS n, sum(amount) AS total, max(amount) AS most
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 SECONDS GROUP BY customer HAVING max(amount) > 1"""


def test_without_a_window_the_rows_of_all_events_so_far_are_updates(spark: SparkSession, tmp_path: Path) -> None:
    make_files(tmp_path / "in")
    schema = "customer STRING, amount DOUBLE, ts TIMESTAMP"
    events = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    table = f"CREATE TABLE tx ({schema}) USING json OPTIONS (path '{tmp_path}/in', maxFilesPerTrigger '1')"
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        pond.load(f"{table} TBLPROPERTIES ('max_ahead' = 'none');")
        with pytest.raises(UnsupportedQuery, match="does not group by a window, so its answer would never be final"):
            pond.add("by_customer", RUNNING)
        with pytest.raises(UnsupportedQuery, match=r"would never be final.*or by ts itself.*: 'emit' = 'update'"):
            pond.add("by_customer", RUNNING, emit="final", correct_for="1 hour")
        with pytest.raises(UnsupportedQuery, match=r"would never be final.*emit='update' in Pond\.add"):
            pond.add("everything", events.withWatermark("ts", "10 seconds").groupBy("customer").count())
        pond.add("by_customer", RUNNING, emit="update", serve=True)
        with pytest.raises(UnsupportedQuery, match=r"its stream has no watermark.*emit='update' in Pond\.add"):
            pond.add("everything", events.groupBy().count())
        pond.add("everything", events.withWatermark("ts", "1 second").groupBy().count(), emit="update")
        pond.run(once=True, drain=True)
        updates, everything = rows_of(pond.table("by_customer")), rows_of(pond.table("everything"))
        served = {key: pond.lookup("by_customer", key).document for key in "ab"}
    newest = {row["customer"]: {name: row[name] for name in ("n", "total", "most")} for row in updates}
    spark.read.schema(schema).json(str(tmp_path / "in")).createOrReplaceTempView("written")
    batch = RUNNING.replace("STREAM tx WATERMARK ts DELAY OF INTERVAL 10 SECONDS", "written")
    expected = {row["customer"]: row.asDict() for row in spark.sql(batch).collect()}
    assert newest == {key: {name: row[name] for name in newest[key]} for key, row in expected.items()}
    assert {row["_op"] for row in updates} == {"upsert"} and len(updates) > len(newest)
    assert [row["count"] for row in everything] == [60, 120, 180, 240]
    assert {key: one and one["row"]["n"] for key, one in served.items()} == {key: newest[key]["n"] for key in "ab"}


def test_a_repeated_value_does_not_emit_an_unchanged_row_again(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i, rows in enumerate(([("a", 1), ("b", None)], [("a", 1), ("b", None)], [("a", 2), ("a", 1)], [("b", 1)])):
        file = tmp_path / "in" / f"{i}.json"
        file.write_text("\n".join(json.dumps({"k": k, "v": v}) for k, v in rows))
        os.utime(file, (1_700_000_000 + i, 1_700_000_000 + i))
    text = "SELECT k, sum(DISTINCT v) AS s FROM STREAM d GROUP BY k"
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        options = f"OPTIONS (path '{tmp_path}/in', maxFilesPerTrigger '1')"
        pond.load(f"CREATE TABLE d (k STRING, v INT) USING json {options};")
        pond.add("sums", text, emit="update")
        pond.add("counted", text.replace("AS s", "AS s, count(*) AS n"), emit="update")
        pond.run()
        sums = [(row["k"], row["s"]) for row in rows_of(pond.table("sums"))]
        assert sorted(sums, key=repr) == [("a", 1), ("a", 3), ("b", 1), ("b", None)]
        assert pond.table("counted").num_rows == 6


def test_updates_without_a_watermark_are_those_of_all_events_and_continue_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    epochs = make_files(tmp_path / "in")
    schema = "customer STRING, amount DOUBLE, ts TIMESTAMP"
    last = (tmp_path / "in" / "3.json").rename(tmp_path / "3.json")
    text = RUNNING.replace(WATERMARK, "")
    table = f"CREATE TABLE tx ({schema}) USING json OPTIONS (path '{tmp_path}/in', maxFilesPerTrigger '1');"
    for turn in range(2):
        with Pond(spark, tmp_path / "pond", instances=2) as pond:
            pond.load(table)
            query = pond.add("untimed", text, emit="update", serve=True)
            if turn:
                last.rename(tmp_path / "in" / last.name)
            pond.run()
            emitted, served = pond.table("untimed"), pond.lookup("untimed", "a").document
    assert query.event_time == ""
    timed = replace(query, event_time="ts")
    assert_same_rows([row for rows in emitted_by_epoch(timed, epochs) for row in rows], emitted)
    assert served is not None and served["row"]["n"] == sum(row["customer"] == "a" for rows in epochs for row in rows)
