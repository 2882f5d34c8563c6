"""Windows by the calendar of a time zone have the rows of Spark's batch in that zone, at every change of clocks."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kit.judges.interpreted import interpreted_table
from kit.judges.recorded import RecordedAnswers
from millpond import Pond, cumulate_window
from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.followers.record_rows import key_columns
from millpond.model.endpoints import Source
from millpond.model.query import Query
from millpond.model.stream import Field, Stream
from millpond.model.windows import RUNNING, Calendar, Cumulating, Sliding
from millpond.plan.explain.plan_text import explain

READ = "STREAM tx WATERMARK t DELAY OF INTERVAL 1 HOUR"
COUNTED = "count(*) AS n, sum(v) AS s"
FRAME = "OVER (PARTITION BY k ORDER BY t RANGE BETWEEN {} PRECEDING AND CURRENT ROW)"
DAYS = f"SELECT date_trunc('DAY', t) AS d, k, {COUNTED} FROM {READ} GROUP BY ALL"
TEXTS = {
    "berlin": ("Europe/Berlin", DAYS),
    "havana": ("America/Havana", DAYS),
    "sao_paulo": ("America/Sao_Paulo", DAYS),
    "apia": ("Pacific/Apia", DAYS),
    "offset": ("+05:45", DAYS),
    "dates": ("America/Havana", f"SELECT CAST(t AS DATE) AS d, {COUNTED} FROM {READ} GROUP BY 1 HAVING count(*) > 1"),
    "named": ("Europe/Berlin", f"SELECT k, to_date(u) AS d, max(v) AS m FROM (SELECT k, v, t AS u FROM {READ}) "
              "WHERE v > 0 GROUP BY k, to_date(u)"),
    "hours": ("America/New_York", f"SELECT date_trunc('HOUR', t) AS h, {COUNTED} FROM {READ} GROUP BY 1"),
    "buckets": ("America/New_York", f"SELECT time_bucket(INTERVAL 7 HOURS, t) AS b, {COUNTED} FROM {READ} GROUP BY 1"),
    "buckets_from": ("Europe/Berlin", f"SELECT k, time_bucket(INTERVAL 20 MINUTES, t, TIMESTAMP'2020-01-01 00:07:00') "
                     f"AS b, {COUNTED} FROM {READ} GROUP BY ALL"),
    "buckets_of_days": ("America/Sao_Paulo", f"SELECT time_bucket(INTERVAL 1 DAY, t) AS b, {COUNTED} FROM {READ} "
                        "GROUP BY 1"),
    "buckets_of_weeks": ("UTC", f"SELECT time_bucket(INTERVAL 7 DAYS, t) AS b, k, {COUNTED} FROM {READ} GROUP BY 1, 2"),
    "buckets_of_months": ("Europe/Berlin", f"SELECT time_bucket(INTERVAL 3 MONTHS, t) AS b, {COUNTED} FROM {READ} "
                          "GROUP BY 1"),
    "buckets_of_years": ("UTC", f"SELECT time_bucket(INTERVAL 1 YEAR, t) AS b, k, {COUNTED} FROM {READ} GROUP BY 1, 2"),
    "weeks": ("Europe/Berlin", f"SELECT date_trunc('week', t) AS w, date_trunc('week', t) + INTERVAL 7 DAYS AS e, "
              f"{COUNTED} FROM {READ} GROUP BY date_trunc('week', t)"),
    "months": ("Asia/Tokyo", f"SELECT trunc(t, 'MM') AS m, {COUNTED} FROM {READ} GROUP BY trunc(t, 'MM')"),
    "years": ("Europe/Berlin", f"SELECT year(d) AS y, k, n FROM (SELECT date_trunc('YEAR', t) AS d, k, count(*) AS n "
              f"FROM {READ} GROUP BY ALL)"),
    "both": ("Europe/Berlin", f"SELECT date_trunc('MONTH', t) AS m, date_trunc('DAY', t) AS d, {COUNTED} FROM {READ} "
             "GROUP BY ALL"),
    "again": ("Europe/Berlin", f"SELECT d, max(n) AS m FROM ({DAYS}) GROUP BY d"),
    "sets": ("Europe/Berlin", f"SELECT date_trunc('DAY', t) AS d, k, {COUNTED} FROM {READ} "
             "GROUP BY date_trunc('DAY', t), ROLLUP (k)"),
    "frame_of_months": ("Europe/Berlin", f"SELECT t, k, sum(v) {FRAME.format('INTERVAL 1 MONTH')} AS s, count(*) "
                        f"{FRAME.format('INTERVAL 3 YEARS')} AS n, count(*) {FRAME.format('INTERVAL 2 HOURS')} AS m "
                        f"FROM {READ} WHERE v > 2 AND day(t) < 29"),
}  # fmt: skip
GROWING = f"""SELECT w.start AS s, w.end AS e, k, n FROM (SELECT cumulate_window(t, '1 day', '6 hours') AS w, k,
  count(*) AS n FROM {READ} GROUP BY ALL)"""
GROWING_JUDGE = """SELECT s, s + j * INTERVAL '6' HOUR AS e, k, count(*) AS n
  FROM (SELECT *, date_trunc('DAY', t) AS s, explode(array(1, 2, 3, 4)) AS j FROM tx)
  WHERE t < s + j * INTERVAL '6' HOUR GROUP BY s, j, k"""
HOUR = 3_600_000_000
RECORDED = RecordedAnswers(__file__, Path(__file__).read_text())
BERLIN = ZoneInfo("Europe/Berlin")
CHANGES = ("2011-12-30", "2018-02-18", "2018-11-04", "2025-11-02", "2026-02-27", "2026-03-08", "2026-03-29",
           "2026-04-29", "2026-10-25")  # fmt: skip


def events() -> list[dict[str, Any]]:
    """An event every 50 minutes on the days around changes of clocks, and a month before or after some of them."""
    found, made = [datetime.fromisoformat(f"{day}T00:00:00+00:00") for day in CHANGES], []
    for place, day in enumerate(found):
        for number in range(90):
            time = day + timedelta(minutes=50 * number - 25 * 60)
            made.append({"t": time.isoformat(), "k": "ab"[number % 2], "v": (place + number) % 7 - 1})
    return made


def write(folder: Path, number: int, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / f"{number}.json"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    os.utime(path, (1_700_000_000 + number,) * 2)


def stream(folder: Path) -> Stream:
    fields = Field("t", "timestamp"), Field("k", "string"), Field("v", "int")
    return Stream("tx", fields, Source("json", (("maxFilesPerTrigger", "1"), ("path", str(folder)))))


def plain(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return sorted(tuple(map(_shown, row.values())) for row in rows)


def _shown(value: object) -> str:
    return str(value.timestamp()) if isinstance(value, datetime) else str(value)


def batch(spark: SparkSession, folder: Path, zone: str, text: str) -> list[tuple[str, ...]]:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    session.read.schema("t TIMESTAMP, k STRING, v INT").json(str(folder)).createOrReplaceTempView("tx")
    return plain(interpreted_table(session.sql(text.replace(READ, "tx"))).to_pylist())


def test_days_weeks_and_months_of_a_zone_are_those_of_sparks_batch(
    spark: SparkSession, tmp_path: Path, tmp_pond: Path
) -> None:
    folder, rows = tmp_path / "in", events()
    write(folder, 0, rows[:200])
    with Pond(spark, tmp_pond, instances=2) as pond:
        pond.stream(stream(folder))
        for name, (zone, text) in TEXTS.items():
            pond.add(name, text, time_zone=zone)
        pond.add("growing", GROWING)
        pond.add("running", TEXTS["dates"][1], time_zone=TEXTS["dates"][0], emit="update")
        with pytest.raises(UnsupportedQuery, match="by part of a HOUR"):
            pond.add("lord_howe", TEXTS["hours"][1], time_zone="Australia/Lord_Howe")
        windows = {query.name: query.window for query in pond.queries}
        group = pond.plan.of_query("berlin")[0]
        assert {one.query.name for one in group.queries} >= {"berlin", "havana", "offset", "named"}, "they share slices"
        assert windows["offset"] == Sliding(86_400_000_000, 86_400_000_000, (24 * 60 - 345) * 60_000_000)
        assert windows["hours"] == Sliding(3_600_000_000, 3_600_000_000)
        assert windows["both"] == windows["berlin"] == Calendar("day", "Europe/Berlin")
        assert windows["running"] == RUNNING
        keys = {query.name: key_columns(query) for query in pond.queries if query.name in ("dates", "named", "berlin")}
        assert (keys["dates"], keys["named"], keys["berlin"]) == (("d",), ("d", "k"), ("d", "k"))
        assert "days of Europe/Berlin" in explain(pond.plan)
        pond.run()
        emitted = {name: pond.table(name).to_pylist() for name in (*TEXTS, "growing")}
    write(folder, 1, rows[200:400])
    write(folder, 2, rows[400:])
    with Pond(spark, tmp_pond) as pond:
        pond.run(drain=True)
        assert pond.table("running").num_rows
        # the table of a pond that is opened again has the rows that the log still holds
        found = {name: sorted({*plain(emitted[name]), *plain(pond.table(name).to_pylist())}) for name in emitted}
        for name, judged in (TEXTS | {"growing": ("UTC", GROWING_JUDGE)}).items():
            ask = partial(batch, spark, folder, *judged)
            assert found[name] == RECORDED.answer(name, judged, found[name], ask), name


def test_queries_of_days_change_while_a_pond_runs(spark: SparkSession, tmp_path: Path, tmp_pond: Path) -> None:
    folder, rows = tmp_path / "in", [event for event in events() if event["t"] > "2026-10-01"]
    weekly = f"SELECT date_trunc('WEEK', t) AS d, count(*) AS n FROM {READ} GROUP BY ALL"
    write(folder, 0, rows[:20])  # until 15:00 UTC on the 24th
    with Pond(spark, tmp_pond, instances=1) as pond:
        pond.stream(stream(folder))
        pond.add("days", DAYS.replace("k, ", ""), time_zone="Europe/Berlin")
        pond.run()
        pond.add("later", DAYS.replace("k, ", ""), time_zone="Europe/Berlin")
        pond.add("weeks", weekly, time_zone="Europe/Berlin")
        pond.scale(2)
        write(folder, 1, rows[20:60])  # until 00:20 UTC on the 26th
        pond.run()
        pond.alter("days", DAYS.replace("k, ", "").replace("sum(v)", "100L + sum(v)"))
        later = pond.table("later").to_pylist()
        pond.drop("later")
        write(folder, 2, rows[60:])
        pond.run(drain=True)
        weeks = pond.table("weeks").to_pylist()
        days = pond.table("days").to_pylist()
    times = [datetime.fromisoformat(event["t"]).astimezone(BERLIN) for event in rows]
    counts = {day: sum(time.day == day for time in times) for day in (24, 25, 26, 27)}
    shown = [(row["d"].astimezone(BERLIN).day, row["n"]) for row in days]
    assert sorted(shown) == sorted(counts.items()), "each day once, whichever version emits it"
    altered = [row["s"] >= 100 for row in sorted(days, key=lambda row: row["d"])]
    assert (altered[:2], altered[-1]) == ([False, False], True)
    shown = [(row["d"].astimezone(BERLIN).day, row["n"]) for row in later]
    assert sorted(shown) == [(24, counts[24]), (25, counts[25])]
    shown = [(row["d"].astimezone(BERLIN).day, row["n"]) for row in weeks]
    assert shown == [(26, counts[26] + counts[27])], "the first week that it saw from its begin"


REFUSED = [
    ("cumulate_window(t, '1 day')", QueryTypeError, "no time with two durations"),
    ("cumulate_window(t, '1 day', '5 hours')", QueryTypeError, "do not become"),
    ("cumulate_window(t, '1 month', '1 day')", QueryTypeError, "counts months"),
    ("cumulate_window(t, '1 day', '1 hour').start", UnsupportedQuery, "equal starts"),
]


def test_windows_that_grow_from_texts_and_dataframes(spark: SparkSession, tmp_path: Path, tmp_pond: Path) -> None:
    write(tmp_path, 0, events()[:1])
    with Pond(spark, tmp_pond) as pond:
        tx = pond.stream(stream(tmp_path)).withWatermark("t", "1 hour")
        frame = tx.groupBy("k", cumulate_window("t", "1 day", "6 hours")).agg(F.count("*").alias("n"))
        found = pond.add("frame", frame), pond.add("text", GROWING)
        assert {query.window for query in found if isinstance(query, Query)} == {Cumulating(24 * HOUR, 6 * HOUR)}
        assert "1 day in steps of 6 hours" in explain(pond.plan)
        for window, error, text in REFUSED:
            with pytest.raises(error, match=text):
                pond.add("q", f"SELECT count(*) AS n FROM {READ} GROUP BY {window}")
        with pytest.raises(UnsupportedQuery, match="no aggregation"):
            pond.add("q", f"SELECT cumulate_window(t, '1 day', '1 hour') AS w FROM {READ}")
