"""Expressions above an aggregation that only Spark evaluates: in outputs, HAVING, every output mode, and chains."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from kit.inputs.event_files import write_json
from kit.judges.interpreted import interpreted_table
from kit.judges.recorded import RecordedAnswers
from millpond import Pond
from millpond.errors import UnsupportedQuery
from millpond.spark.session.arrow_rows import ArrowRows

pytestmark = pytest.mark.slow

RECORDED = RecordedAnswers(__file__, Path(__file__).read_text())
COLUMNS = "k STRING, v INT, d DOUBLE, ts TIMESTAMP"
OUTPUTS = """date_format(window.start, 'HH:mm') AS a, CAST(window.start AS STRING) AS b, CAST(window.end AS LONG) AS c,
    hour(window.start) AS e, window.end - INTERVAL 1 SECOND AS f, size(collect_set(v)) AS g,
    get(sort_array(collect_set(v)), 0) AS h, struct(count(*) AS n, sum(v) AS s) AS i,
    to_json(struct(k, max(v) AS m)) AS j, substring(k, 1, 1) AS l,
    md5(max(k)) AS m, array(sum(v), count(*)) AS o, map('n', count(*)) AS p, format_number(avg(d), 2) AS q,
    datediff(window.end, window.start) AS r, upper(substring(k, 1, 1)) || ':' || CAST(count(*) AS STRING) AS t,
    sum(v) + length(format_string('%s', k)) AS u, try_divide(sum(v), count(*) - 1) AS w"""
FINAL = f"SELECT k, {OUTPUTS}, window(ts, '10 minutes').start AS at FROM {{tx}} GROUP BY k, window(ts, '10 minutes')"
HOPPING = """SELECT substring(k, 1, 1) AS first, unix_millis(window.end) AS until, count(*) AS n FROM {tx}
    GROUP BY k, window(ts, '10 minutes', '5 minutes')
    HAVING date_format(window.start, 'mm') <> '05' AND size(collect_list(v)) > 1"""
SESSIONS = """SELECT k, date_format(session_window.start, 'HH:mm:ss') AS a, CAST(session_window.end AS STRING) AS b,
    count(*) AS n FROM {tx} GROUP BY k, session_window(ts, '2 minutes')"""
HOURLY = """SELECT to_json(sort_array(collect_list(t))) AS ts, date_format(window.start, 'HH') AS h FROM {final}
    GROUP BY window(at, '1 hour')"""
RAISING = "SELECT sort_array(collect_set(v))[0] AS x FROM {tx} GROUP BY k, window(ts, '1 minute')"
NAMED = """SELECT a.k, a.n, name, upper(name) || n AS u, lo FROM (SELECT k, count(*) AS n FROM {tx} GROUP BY k) AS a
    JOIN dims ON dims.k = a.k AND n BETWEEN lo AND hi"""
ALL_ROWS = """SELECT k, n FROM (SELECT k, count(*) AS n FROM {tx} GROUP BY k, window(ts, '1 minute'))
    WHERE EXISTS (SELECT 1 FROM many WHERE id < n)"""
BAD_KEY = """SELECT k, n FROM (SELECT k, count(*) AS n FROM {tx} GROUP BY k, window(ts, '1 minute'))
    JOIN (VALUES ('1'), ('abc')) AS q(a) ON CAST(q.a AS INT) = n + 1000"""
RUNNING = """SELECT k, to_json(struct(count(*) AS n, sum(v) AS s)) AS j FROM {tx}
    GROUP BY k HAVING bit_count(count(*)) = 1"""


def _events(seed: int, count: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "k": chance.choice(["aa", "b", "é", None]), "v": chance.choice([None, *range(-3, 9)]),
            "d": chance.choice([None, 0.5, 1234.5678, -2.0]),
            "ts": f"2024-03-31T0{chance.randrange(3)}:{chance.randrange(60):02}:{chance.randrange(60):02}Z",
        }
        for _ in range(count)
    ]  # fmt: skip


def _rows(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr({name: row[name] for name in sorted(row)}) for row in rows)


def _batch(spark: SparkSession, name: str, ours: list[str], text: str) -> list[str]:
    return RECORDED.answer(name, text, ours, lambda: _rows(interpreted_table(spark.sql(text)).to_pylist()))


def test_rows_are_those_of_sparks_batch_in_every_mode(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    stream = "STREAM tx WATERMARK ts DELAY OF INTERVAL 3 HOURS"

    def declare(pond: Pond) -> None:
        pond.load(f"CREATE TABLE tx ({COLUMNS}) USING json OPTIONS (path '{source}', maxFilesPerTrigger '1');")
        pond.add("final", FINAL.format(tx=stream))
        pond.add("hopping", HOPPING.format(tx=stream))
        pond.add("sessions", SESSIONS.format(tx=stream))
        pond.load(f"CREATE TEMPORARY VIEW dims USING parquet OPTIONS (path '{tmp_path / 'dims'}', refresh '1 second');")
        pond.load(f"CREATE TEMPORARY VIEW many USING parquet OPTIONS (path '{tmp_path / 'many'}');")
        pond.add("running", RUNNING.format(tx=stream), emit="update")
        pond.add("named", NAMED.format(tx=stream), emit="update")
        pond.add("several", NAMED.format(tx=stream).replace(" AND n BETWEEN lo AND hi", ""), emit="update")
        pond.add("raising", RAISING.format(tx=stream))
        pond.add("all_rows", ALL_ROWS.format(tx=stream))
        pond.add("bad_key", BAD_KEY.format(tx=stream))
        pond.add("hourly", HOURLY.format(final="STREAM final"))

    dims = "VALUES ('aa', 'x', 0, 11), ('aa', 'y', 12, 99), ('b', 'z', 20, 60) AS dims(k, name, lo, hi)"
    spark.sql(f"SELECT * FROM {dims}").coalesce(1).write.parquet(str(tmp_path / "dims"))
    spark.range(10_001).coalesce(1).write.parquet(str(tmp_path / "many"))
    for number in range(2):
        write_json(source, number, _events(number, 60))
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        declare(pond)
        pond.run()
    write_json(source, 2, _events(2, 60))
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        declare(pond)
        pond.run(drain=True)
        names = ("final", "hopping", "sessions", "running", "hourly", "named")
        ours = {name: pond.table(name).to_pylist() for name in names}
        assert {problem.about: problem.code for problem in pond.problems()} == {
            "query raising": "MP-OVERFLOW", "query several": "MP-PAIRS", "query all_rows": "MP-PAIRS",
            "query bad_key": "MP-OVERFLOW",
        }  # fmt: skip
    spark.read.schema(COLUMNS).json(str(source)).createOrReplaceTempView("above_tx")
    for name, text in (("final", FINAL), ("hopping", HOPPING), ("sessions", SESSIONS), ("hourly", HOURLY)):
        text, found = text.replace("{final}", f"({FINAL})"), _rows(ours[name])
        assert found == _batch(spark, name, found, text.format(tx="above_tx")), name
    for name, text in (("running", RUNNING), ("named", NAMED)):
        latest: dict[Any, dict[str, Any]] = {}
        for row in ours[name]:
            latest.pop(row["k"], None)
            if row.pop("_op") == "upsert":
                latest[row["k"]] = row
        found = _rows(list(latest.values()))
        text = text.format(tx="above_tx").replace("JOIN dims", f"JOIN ({dims}) dims")
        assert found == _batch(spark, name, found, text)


def test_ponds_without_such_expressions_run_the_same_job_as_before(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two Python tasks for an epoch, as before; an expression above an aggregation adds one."""
    write_json(tmp_path / "in", 0, _events(0, 9))
    functions, mapped = list[str](), ArrowRows.map

    def spied(rows: ArrowRows, function: Any, columns: StructType, *, barrier: bool = False) -> ArrowRows:
        functions.append(type(function).__name__)
        return mapped(rows, function, columns, barrier=barrier)

    monkeypatch.setattr(ArrowRows, "map", spied)
    table = f"CREATE TABLE tx ({COLUMNS}) USING json OPTIONS (path '{tmp_path / 'in'}', maxFilesPerTrigger '1');"
    text = "SELECT k, {} AS x FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY k, window(ts, '1 hour')"
    for output in ("window.start", "round(sum(v) / count(*), 2)", "hour(window.start)"):
        with Pond(spark, tmp_path / output[:5], instances=1) as pond:
            pond.load(table)
            pond.add("q", text.format(output))
            pond.run()
    direct = ["_GatherFiles", "_Fold"]
    assert functions == [*direct, *direct, "_GatherFiles", "_Request", "_FoldEvaluated"]


def test_what_cannot_stand_above_an_aggregation_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    spark.udf.register("above_udf", lambda x: f"{x}", "string")
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        pond.load(f"CREATE TABLE tx ({COLUMNS}) USING json OPTIONS (path '{tmp_path}');")
        pond.param("least", 3)
        text = "SELECT {} AS x FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY k, window(ts, '1 hour')"
        for output, reason in (
            ("above_udf(count(*))", "calls a Python function over results"),
            ("array(count(*), :least)", "uses a live parameter"),
            ("parse_json(max(k))", "the type variant"),
        ):
            with pytest.raises(UnsupportedQuery, match=reason):
                pond.add("q", text.format(output))


def test_a_key_has_the_name_of_group_by_as_in_ponds_that_are_stored(spark: SparkSession, tmp_path: Path) -> None:
    """A pond compares its stored queries with the given ones, so another name is another query."""
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        pond.load(f"CREATE TABLE tx ({COLUMNS}) USING json OPTIONS (path '{tmp_path}');")
        stream = "STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS"
        pond.add("q", f"SELECT K FROM {stream} GROUP BY k, window(ts, '1 hour')")
        assert [item.name for query in pond.queries for item in query.output] == ["k"]
