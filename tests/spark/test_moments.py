"""Texts that are read as timestamps: as in Spark if they have a date, never completed from the clock."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kit.judges.interpreted import interpreted_rows
from millpond import Pond
from millpond.errors import UnsupportedQuery
from millpond.spark.frontend.frontend import FrontEnd

EVENTS = "CREATE TABLE ev (k STRING, n BIGINT, a ARRAY<STRING>, ts TIMESTAMP) USING json OPTIONS (path '{}');"

OF_THE_CLOCK = (
    "SELECT CAST(concat('n', 'ow') AS TIMESTAMP) AS x FROM STREAM ev",
    "SELECT CAST(concat('10:00', ':00') AS TIMESTAMP) AS x FROM STREAM ev",
    "SELECT CAST(lower('TODAY') AS DATE) AS x FROM STREAM ev",
    "SELECT to_timestamp(concat('now', '')) AS x FROM STREAM ev",
    "SELECT to_date(substring('tomorrow!', 1, 8)) AS x FROM STREAM ev",
    "SELECT timestamp('10:00') AS x FROM STREAM ev",
    "SELECT try_cast('now' AS TIMESTAMP) AS x FROM STREAM ev",
    "SELECT date_trunc('HOUR', '10:00') AS x FROM STREAM ev",
    "SELECT n FROM STREAM ev WHERE ts > '10:00'",
    "SELECT n FROM STREAM ev WHERE ts BETWEEN concat('to', 'day') AND '2024-01-01'",
    "SELECT hour('10:00') AS x FROM STREAM ev",
    "SELECT CAST(a AS ARRAY<TIMESTAMP>) AS x FROM STREAM ev",
    "SELECT transform(a, e -> CAST(concat('n', 'ow') AS TIMESTAMP)) AS x FROM STREAM ev",
    "SELECT from_json(k, 't TIMESTAMP').t AS x FROM STREAM ev",
    "SELECT from_json(k, 'a ARRAY<STRUCT<t: TIMESTAMP>>', map('mode', 'PERMISSIVE')).a[0].t AS x FROM STREAM ev",
)

DATED = (
    "2023-11-14 22:13:20", " 2024-01-01", "+2024-01-01T00:00:00Z", "2024", "\t2023-01-01 10:00",
    "2024-02-29T1:2:3.5+02:00",
)  # fmt: skip
OTHERS = ("10:00", "T10:00:00", "10:00:00.5Z", "now", "today", "epoch", "garbage", "")


@pytest.mark.parametrize("text", OF_THE_CLOCK)
def test_constants_that_the_clock_completes_are_refused(spark: SparkSession, tmp_path: Path, text: str) -> None:
    front = FrontEnd(spark.newSession())
    front.load_file(EVENTS.format(tmp_path))
    with pytest.raises(UnsupportedQuery, match=r"depends on the clock|texts within a"):
        front.query_from_sql("clock", text)


def test_a_text_of_an_event_is_a_moment_only_with_its_date(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    texts = [*DATED, *OTHERS, None]
    lines = [{"k": k, "n": n, "a": [k], "ts": "2023-11-14T22:13:20Z"} for n, k in enumerate(texts)]
    (source / "1.json").write_text("\n".join(map(json.dumps, lines)))
    casts = {
        "cast": "CAST(k AS TIMESTAMP)",
        "computed": "CAST(concat(k, '') AS TIMESTAMP)",
        "to_timestamp": "to_timestamp(k)",
        "day": "CAST(k AS DATE)",
        "tried": "try_cast(k AS TIMESTAMP)",
        "tried_day": "try_cast(k AS DATE)",
        "in_lambda": "transform(a, e -> try_cast(e AS TIMESTAMP))[0]",
    }
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        pond.load(EVENTS.format(source))
        for name, expression in casts.items():
            pond.add(name, f"SELECT n, {expression} AS x FROM STREAM ev")
        pond.add("compared", "SELECT n FROM STREAM ev WHERE k < TIMESTAMP '2024-01-01 00:00:00'")
        pond.run()
        found = {name: {row["n"]: row["x"] for row in pond.table(name).to_pylist()} for name in casts}
        compared = sorted(pond.table("compared")["n"].to_pylist())
        dead = {name: counts.whole.dead for name, counts in pond.counts().items()}
    kinds = {name: "DATE" if "day" in name else "TIMESTAMP" for name in casts}
    for name in casts:
        tried = "tried" in name or name == "in_lambda"
        for n, text in enumerate(texts):
            if text in OTHERS:
                assert (found[name].get(n, "none") is None) if tried else (n not in found[name]), (name, text)
                continue
            shown = "NULL" if text is None else f"'{text}'"
            query = f"SELECT CAST(CAST({shown} AS {kinds[name]}) AS STRING)"
            [(expected,)] = interpreted_rows(spark.sql(query))
            value = found[name][n]
            assert (value is None) == (expected is None), (name, text)
            assert value is None or str(value)[:19].startswith(expected[:19]), (name, text, value, expected)
        assert dead[name] == (0 if tried else len(OTHERS)), name
    assert compared == [0, 4] and dead["compared"] == len(OTHERS)


def test_spark_reads_a_time_without_a_date_in_a_file_as_of_today(spark: SparkSession, tmp_path: Path) -> None:
    source, before = tmp_path / "in", datetime.now(timezone.utc).date()
    source.mkdir()
    (source / "1.json").write_text(json.dumps({"k": "10:00:00", "n": 1, "ts": "10:00:00"}))
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        pond.load(EVENTS.format(source))
        pond.add("x", "SELECT ts FROM STREAM ev")
        pond.add("y", "SELECT try_cast(k AS TIMESTAMP) AS ts FROM STREAM ev")
        pond.run()
        [found] = pond.table("x")["ts"].to_pylist()
        assert pond.table("y")["ts"].to_pylist() == [None]
    days: set[date] = {before, datetime.now(timezone.utc).date()}
    assert found.date() in days and (found.hour, found.minute) == (10, 0)


def test_with_a_format_a_time_without_a_date_is_no_moment(spark: SparkSession, tmp_path: Path) -> None:
    source, form = tmp_path / "in", "yyyy-MM-dd HH:mm:ss"
    source.mkdir()
    texts = ["10:00:00", "2024-01-01 10:00:00", "now"]
    lines = [{"k": json.dumps({"t": text}), "n": n, "ts": text} for n, text in enumerate(texts)]
    (source / "1.json").write_text("\n".join(map(json.dumps, lines)))
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        pond.load(EVENTS.format(source).replace("path", f"timestampFormat '{form}', path"))
        pond.add("x", "SELECT n, ts FROM STREAM ev")
        pond.add("y", f"SELECT n, from_json(k, 't TIMESTAMP', map('timestampFormat', '{form}')).t AS ts FROM STREAM ev")
        pond.run()
        for name in ("x", "y"):
            found = {row["n"]: row["ts"] for row in pond.table(name).to_pylist()}
            assert [n for n, ts in found.items() if ts is not None] == [1] and len(found) == 3
