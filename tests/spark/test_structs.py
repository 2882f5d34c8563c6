"""Structs, arrays and maps inside aggregates and as keys, judged by Spark's batch."""

from __future__ import annotations

import random
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kit.inputs.event_files import write_json
from kit.judges.interpreted import interpreted_table
from kit.judges.recorded import RecordedAnswers
from millpond import Pond
from millpond.plan.explain.plan_text import explain
from millpond.testing import Trial

pytestmark = pytest.mark.slow

RECORDED = RecordedAnswers(__file__, Path(__file__).read_text())
COLUMNS = """k STRING, v INT, d DOUBLE, s STRUCT<a: INT, b: STRUCT<c: STRING, d: DOUBLE>>, l ARRAY<INT>,
    m MAP<STRING, INT>, e ARRAY<STRUCT<x: INT, y: STRING>>, n BIGINT, ts TIMESTAMP"""
"""No two events have the same `n`, so that it decides what `max_by` takes."""

AGGREGATES = """max(struct(v, n)) AS a, min(struct(s, n)).s AS b, max(struct(ts, n, k)).n AS c, max(l) AS d,
    min(e) AS f, max_by(struct(v, s, l, m), n) AS g, min_by(l, n) AS h, max_by(m, n) AS i, max_by(e, struct(s, n)) AS j,
    max_by(s, n, 2) AS o, count(DISTINCT s) AS p, count(DISTINCT l) AS q, sort_array(collect_set(s)) AS r,
    sort_array(collect_list(struct(n, d, s))) AS t, sort_array(collect_list(l)) AS u, max(s) AS w, min(s.b) AS x,
    max(struct(s.b.c, v)) FILTER (WHERE v > 1) AS y, to_json(min(struct(n, ts))) AS z, mode(s, true) AS aa,
    sum(v) AS ab, max_by(CAST(k AS BINARY), n) AS ac, max(s) IS NOT NULL AS ad"""
TUMBLING = f"SELECT k, window(ts, '10 minutes') AS at, {AGGREGATES} FROM {{tx}} GROUP BY k, window(ts, '10 minutes')"
HOPPING = """SELECT k, window(ts, '10 minutes', '5 minutes') AS at, max(struct(v, n)) AS a,
    max_by(struct(l, s), n).s.b AS b, sort_array(collect_list(struct(n, l))) AS c FROM {tx}
    GROUP BY k, window(ts, '10 minutes', '5 minutes') HAVING max(struct(v, n)).v > 2"""
SESSIONS = """SELECT s, session_window(ts, '2 minutes') AS at, count(*) AS n, max(struct(v, n)) AS a, min_by(l, n) AS b
    FROM {tx} GROUP BY s, session_window(ts, '2 minutes')"""
KEYS = """SELECT struct(k, v % 2 AS odd) AS key, s, struct(k, v % 2 AS odd).odd AS odd, to_json(s) AS j, s.b.c AS c,
    count(*) AS n, window(ts, '30 minutes') AS at
    FROM {tx} GROUP BY struct(k, v % 2 AS odd), s, window(ts, '30 minutes')"""
OVER = "OVER (PARTITION BY k ORDER BY ts RANGE BETWEEN INTERVAL 3 MINUTES PRECEDING AND CURRENT ROW)"
FRAMES = f"""SELECT n, s, max(struct(v, n)) {OVER} AS a, sort_array(collect_list(struct(n, l)) {OVER}) AS b,
    struct(n, k) AS c FROM {{tx}}"""
CORRECTED = """SELECT k, window(ts, '10 minutes') AS at, max(struct(v, n)) AS a, max_by(struct(l, s), n) AS b
    FROM {tx} GROUP BY k, window(ts, '10 minutes')"""
RUNNING = """SELECT s, max(struct(v, n)) AS a, max_by(l, n) AS b, min(struct(n, k)).k AS c FROM {tx} GROUP BY s"""
HOURLY = """SELECT max(a) AS a, max_by(g, a.n).s AS b, sort_array(collect_list(g.v)) AS c, max(g.s) AS d FROM {tumbling}
    GROUP BY window(at, '1 hour')"""


def _events(seed: int, count: int) -> list[dict[str, Any]]:
    """Few distinct values, so that much is equal; NULLs at every level."""
    chance = random.Random(seed)

    def some(*values: Any) -> Any:
        return chance.choice([None, *values])

    return [
        {
            "k": some("aa", "b"), "v": some(*range(5)), "d": some(0.0, -0.0, 1.5),
            "s": some({"a": some(1, 2), "b": some({"c": some("x", "y"), "d": some(0.0, 0.5)})}, {}),
            "l": some([], [some(1, 2), some(1, 2)], [1], [1, 2, 1]), "m": some({}, {"x": 1}, {"y": some(1)}),
            "e": some([], [some({"x": some(1, 2), "y": some("p")})]), "n": 1000 * seed + number,
            "ts": f"2024-03-31T00:{chance.randrange(60):02}:{chance.randrange(60):02}Z",
        }
        for number in range(count)
    ]  # fmt: skip


def _plain(value: Any) -> Any:
    """With one zero: where values are equal but for the sign of a zero, Spark's batch shows any of them."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value + 0.0 if isinstance(value, float) else value


def _rows(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(_plain({name: row[name] for name in sorted(row)})) for row in rows)


QUERIES = {
    "tumbling": TUMBLING, "hopping": HOPPING, "sessions": SESSIONS, "keys": KEYS, "frames": FRAMES, "hourly": HOURLY,
    "running": RUNNING, "corrected": CORRECTED,
}  # fmt: skip


MODES: dict[str, dict[str, Any]] = {"running": {"emit": "update"}, "corrected": {"correct_for": "3 hours"}}


def _latest(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> list[dict[str, Any]]:
    """The last row of each key, without rows that were deleted."""
    latest: dict[str, dict[str, Any]] = {}
    for row in rows:
        identity = repr([_plain(row[key]) for key in keys])
        latest.pop(identity, None)
        if row["_op"] == "upsert":
            latest[identity] = {name: value for name, value in row.items() if not name.startswith("_")}
    return list(latest.values())


def test_rows_are_those_of_sparks_batch_in_every_mode(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    stream = "STREAM tx WATERMARK ts DELAY OF INTERVAL 3 HOURS"

    def declare(pond: Pond) -> None:
        pond.load(f"CREATE TABLE tx ({COLUMNS}) USING json OPTIONS (path '{source}', maxFilesPerTrigger '1');")
        for name, text in QUERIES.items():
            tx = stream.replace("3 HOURS", "0 SECONDS") if name == "corrected" else stream
            pond.add(name, text.format(tx=tx, tumbling="STREAM tumbling"), **MODES.get(name, {}))

    for number in range(2):
        write_json(source, number, _events(number, 50))
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        declare(pond)
        pond.run()
    write_json(source, 2, _events(2, 50))
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        declare(pond)
        pond.scale(3)
        pond.run(drain=True)
        ours = {name: pond.table(name).to_pylist() for name in QUERIES}
        assert not pond.problems()
        explained = explain(pond.plan, pond.streams)
        trial = Trial.of(pond.streams, [query for query in pond.queries if query.name == "sessions"])
    assert "tx by k, (v % 2), isnotnull(s), s.a, isnotnull(s.b), s.b.c, s.b.d" in explained
    spark.read.schema(COLUMNS).json(str(source)).createOrReplaceTempView("struct_tx")
    for name, text in QUERIES.items():
        text, found = text.format(tx="struct_tx", tumbling=f"({TUMBLING.format(tx='struct_tx')})"), ours[name]
        found = _latest(found, ("s",) if name == "running" else ("k", "at")) if name in MODES else found
        rows, batch = _rows(found), partial(spark.sql, text)
        expected = RECORDED.answer(
            name, text, rows, lambda batch=batch: _rows(interpreted_table(batch()).to_pylist())
        )  # fmt: skip
        assert rows == expected, name
    events = [event for number in range(3) for event in _events(number, 50)]
    trial.feed("tx", [event | {"ts": datetime.fromisoformat(event["ts"].replace("Z", "+00:00"))} for event in events])
    trial.drain()
    assert _rows(trial.table("sessions").to_pylist()) == _rows(ours["sessions"])
