"""Texts that keep state several times are one query for their user; the rows are those of Spark's batch."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kit.inputs.examples import seeds
from kit.inputs.step_texts import step_text
from kit.judges.interpreted import interpreted_table
from kit.judges.recorded import RecordedAnswers
from millpond import Pond
from millpond.control.diagnose.facts import find_facts
from millpond.control.wiring.pond_reader import read_truth
from millpond.errors import ChangeRefused, MillpondError
from millpond.model.endpoints import Sink, Source
from millpond.model.query import Query
from millpond.model.stream import Field, Stream
from millpond.plan.explain.plan_text import explain
from millpond.reconfigure.inner_reports import labels, relabelled

COLUMNS = "v INT, k STRING, t TIMESTAMP"
DELAY = "WATERMARK t DELAY OF INTERVAL 10 SECONDS"
READ = f"STREAM tx {DELAY}"
COUNTS = f"SELECT window(t, '5 seconds') AS w, k, count(*) AS n, max(v) AS v FROM {READ} GROUP BY ALL"
UNITED = f"SELECT n, k FROM ({COUNTS}) UNION ALL SELECT n, k FROM ({COUNTS})"
NEAR = f"""SELECT a.t, a.k, b.v FROM {READ} AS a JOIN {READ} AS b
  ON a.k = b.k AND b.t BETWEEN a.t - INTERVAL 2 SECONDS AND a.t + INTERVAL 3 SECONDS"""
DIMS = "(VALUES ('a', 'x', 1), ('a', 'y', 3), ('c', 'z', 2), (NULL, 'n', 0)) AS d(k, name, lo)"
TEXTS = {
    "again": f"SELECT window(w, '10 seconds') AS w, count(*) AS c, sum(n) AS s FROM ({COUNTS}) GROUP BY ALL",
    "again_also": f"SELECT window(w, '10 seconds') AS w, sum(n) AS s, count(*) AS c FROM ({COUNTS}) GROUP BY ALL",
    "as_flink": f"SELECT w, n, count(*) AS m, max(v) AS v FROM ({COUNTS}) GROUP BY w, n",
    "by_bounds": f"SELECT s, e, max(n) AS m FROM (SELECT w.start AS s, w.end AS e, n FROM ({COUNTS})) GROUP BY s, e",
    "by_end": f"SELECT e, max(n) AS m FROM (SELECT w.end AS e, n FROM ({COUNTS}) WHERE n > 1) GROUP BY e",
    "by_hop": f"""SELECT w, w.end AS e, max(n) AS n, max_by(k, struct(n, k)) AS k FROM (SELECT window(t, '6 seconds',
      '3 seconds') AS w, k, count(*) AS n FROM {READ} GROUP BY ALL) GROUP BY w""",
    "by_time_of_join": f"SELECT t, k, count(*) AS c, max(v) AS v FROM ({NEAR}) GROUP BY t, k",
    "distinct_rows": f"""SELECT window(t, '9 seconds') AS w, count(DISTINCT k, v % 2, nullif(v, 3)) AS n,
      count(DISTINCT k, v, t) FILTER (WHERE v > 2) AS m FROM {READ} GROUP BY ALL""",
    "at_window_time": f"""SELECT window(x, '10 seconds').end AS e, sum(n) AS s
      FROM (SELECT window_time(w) AS x, n FROM ({COUNTS})) GROUP BY window(x, '10 seconds')""",
    "hopping": f"""SELECT window.end AS e, sum(n) AS s FROM (SELECT window(t, '6 seconds', '3 seconds') AS w, k,
      count(*) AS n FROM {READ} GROUP BY ALL HAVING count(*) > 1) GROUP BY window(w, '12 seconds', '6 seconds')""",
    "three": f"""SELECT window(w, '20 seconds') AS w, max(s) AS m FROM (SELECT window(w, '10 seconds') AS w, k,
      sum(n) AS s FROM ({COUNTS}) GROUP BY ALL) GROUP BY ALL""",
    "by_text": f"""SELECT window(w, '10 seconds') AS w, max(at) AS at
      FROM (SELECT w, date_format(w.start, 'HH:mm:ss') AS at FROM ({COUNTS})) GROUP BY ALL""",
    "computed": f"""SELECT w, format_string('%d', n DIV 2) AS h, count(*) AS c, max(reverse(k)) AS r,
      count(*) FILTER (WHERE hash(k, n) % 2 = 0) AS e FROM ({COUNTS}) GROUP BY w, format_string('%d', n DIV 2)""",
    "computed_of_join": f"""SELECT window(t, '5 seconds') AS w, levenshtein(k, cast(v AS STRING)) AS l,
      sum(pmod(v, 3)) AS s FROM ({NEAR}) GROUP BY ALL""",
    "computed_of_three": f"""SELECT window(w, '20 seconds') AS w, max(reverse(cast(s AS STRING))) AS m
      FROM (SELECT window(w, '10 seconds') AS w, reverse(k) AS r, sum(n) AS s FROM ({COUNTS})
      GROUP BY window(w, '10 seconds'), reverse(k)) GROUP BY window(w, '20 seconds')""",
    "computed_beside_filter": f"""SELECT w, sum(levenshtein(k, 'b') / (n - 1)) FILTER (WHERE n > 1) AS s,
      max(reverse(k)) FILTER (WHERE pmod(v, 3) > 0) AS r, count(*) FILTER (WHERE b) AS b, count(element_at(array(1),
      CAST(n AS INT))) FILTER (WHERE b) AS e, count(*) FILTER (WHERE hash(k) % 2 = 0) AS c,
      median(pmod(v, 5)) FILTER (WHERE n < 3) AS m FROM (SELECT *, n < 2 AS b FROM ({COUNTS})) GROUP BY w""",
    "computed_of_sets": f"""SELECT window(w, '10 seconds') AS w, k, format_string('%d', n) AS h, max(reverse(k)) AS r,
      sum(pmod(v, 3)) FILTER (WHERE levenshtein(k, 'b') > 0) AS s, grouping(k) AS g
      FROM ({COUNTS}) GROUP BY window(w, '10 seconds'), CUBE(k, format_string('%d', n))""",
    "computed_hopping": f"""SELECT window(w, '12 seconds', '6 seconds').end AS e, bool_or(hash(k) % 2 = 0) AS b,
      listagg(reverse(k)) WITHIN GROUP (ORDER BY levenshtein(k, 'b'), v, n DESC) AS l FROM ({COUNTS})
      GROUP BY window(w, '12 seconds', '6 seconds')""",
    "computed_of_united": f"""SELECT window(w, '20 seconds') AS w, format_string('%d', n) AS h, max(reverse(k)) AS r
      FROM (SELECT w, n, k FROM ({COUNTS}) UNION ALL SELECT window(t, '4 seconds') AS w, max(v), reverse(k) AS r
      FROM {READ} GROUP BY ALL) GROUP BY window(w, '20 seconds'), format_string('%d', n)""",
    "guarded_of_united": f"SELECT 10 / (n - 1) AS q, reverse(k) AS r FROM ({UNITED}) WHERE n > 1",
    "guarded_elements": f"SELECT element_at(array(1, 2), INT(n)) AS e FROM ({UNITED}) WHERE n < 3 AND reverse(k) < 'c'",
    "guarded_sums": f"""SELECT w, sum(10 DIV (n - 1)) AS s, max(reverse(k)) AS r FROM (SELECT w, n + 0 AS m, n, k FROM
      (SELECT w, n, k FROM ({COUNTS}) UNION ALL SELECT w, n, k FROM ({COUNTS}))) WHERE m > 1 GROUP BY w""",
    "guarded_keys": f"""SELECT window(w, '10 seconds') AS w, 10 DIV (n - 1) AS q, max(reverse(k)) AS r FROM ({COUNTS})
      WHERE n > 1 GROUP BY window(w, '10 seconds'), 10 DIV (n - 1)""",
    "guarded_sets": f"""SELECT window(w, '10 seconds') AS w, 10 DIV (n - 1) AS q, max(reverse(k)) AS r FROM ({COUNTS})
      WHERE n > 1 GROUP BY window(w, '10 seconds'), CUBE(10 DIV (n - 1), k)""",
    "two_frames": f"""SELECT t, k, v, t - lag(t) OVER (PARTITION BY k, v ORDER BY t) AS d, sum(v) OVER (PARTITION BY
      k, v ORDER BY t RANGE BETWEEN INTERVAL 5 SECONDS PRECEDING AND CURRENT ROW) AS s, row_number() OVER
      (PARTITION BY k, v ORDER BY t) AS n FROM {READ} WHERE v > 1""",
    "of_intervals": f"""SELECT window(t, '9 seconds') AS w, t - date_trunc('MINUTE', t) AS d, count(*) AS n,
      sum(t - timestamp_seconds(v)) FILTER (WHERE v > 1) AS s, avg(timestamp_seconds(v) - t) + INTERVAL 1 SECOND AS a,
      k || max(t - date_trunc('MINUTE', t)) AS m FROM {READ}
      GROUP BY window(t, '9 seconds'), t - date_trunc('MINUTE', t), k""",
    "of_bytes": f"""SELECT window(w, '10 seconds') AS w, b, length(b) AS l, sum(n) AS s
      FROM (SELECT window(t, '5 seconds') AS w, cast(k AS BINARY) AS b, count(*) AS n FROM {READ} GROUP BY ALL)
      GROUP BY ALL""",
    "of_join": f"SELECT window(t, '5 seconds') AS w, k, count(*) AS n, sum(v) AS s FROM ({NEAR}) GROUP BY ALL",
    "of_window_join": f"""SELECT w, sum(v) AS s, sum(u) AS u FROM (SELECT window(t, '5 seconds') AS w, v FROM {READ})
      JOIN (SELECT window(t, '5 seconds') AS w, v AS u FROM {READ}) USING (w) GROUP BY w""",
    "join_of_counts": f"WITH c AS ({COUNTS}) SELECT c.w, c.k, c.n, d.n m FROM c JOIN c AS d ON c.w = d.w AND c.k < d.k",
    "of_join_of_counts": f"""WITH c AS ({COUNTS}), d AS (SELECT window(t, '5 seconds') AS w, k, min(v) AS v FROM {READ}
      GROUP BY ALL) SELECT w, sum(n) AS n, min(v) AS v
      FROM (SELECT c.w, c.n, d.v FROM c JOIN d ON c.w = d.w AND c.k = d.k) GROUP BY w""",
    "of_distinct": f"""SELECT window(t, '5 seconds') AS w, k, count(*) AS n, percentile(v, 0.5) AS p
      FROM (SELECT DISTINCT k, v, t FROM {READ} WHERE v > 1) GROUP BY ALL""",
    "of_first": f"""SELECT window(t, '9 seconds') AS w, count(*) AS n, sum(v) AS s FROM (SELECT *, row_number()
      OVER (PARTITION BY k, v ORDER BY t) AS r FROM {READ}) WHERE r = 1 AND v > 0 GROUP BY ALL""",
    "of_second": f"""SELECT window(t, '9 seconds') AS w, k, count(*) AS n, max(t) AS t, max(reverse(k)) AS r
      FROM (SELECT *, row_number() OVER (PARTITION BY k, v ORDER BY t) AS r FROM {READ}) WHERE r = 2 GROUP BY ALL""",
    "of_times": f"""SELECT window(t, '9 seconds') AS w, max(n) AS n FROM (SELECT t, k, count(*) AS n FROM {READ}
      GROUP BY t, k) GROUP BY ALL""",
    "by_time": f"SELECT t AS at, k, sum(v) AS s, max(t) AS t FROM {READ} GROUP BY t, k HAVING count(*) > 1",
    "of_union": f"SELECT window(t, '9 seconds') AS w, sum(v) AS s FROM (SELECT v, t FROM {READ} WHERE k = 'a' UNION "
    f"SELECT v, t FROM {READ} WHERE v > 0) GROUP BY ALL",
    "join_of_join": f"""SELECT x.k, x.v, c.v AS u FROM ({NEAR}) AS x JOIN {READ} AS c
      ON c.k = x.k AND c.t BETWEEN x.t - INTERVAL 1 SECOND AND x.t + INTERVAL 1 SECOND""",
    "united": f"""SELECT w.end AS e, k, n FROM ({COUNTS}) UNION ALL SELECT window(t, '10 seconds').start, k, count(v)
      FROM {READ} GROUP BY window(t, '10 seconds'), k HAVING count(*) > 1""",
    "united_computed": f"""SELECT reverse(k) AS r, levenshtein(k, 'b') + n AS l, n FROM (SELECT n, k FROM ({COUNTS})
      UNION ALL SELECT n, concat(k, 'b') FROM ({COUNTS})) WHERE reverse(k) <> 'a'""",
    "united_twice": UNITED,
    "with_events": f"SELECT k, v + 1L AS v FROM {READ} WHERE v > 2 UNION ALL SELECT k, n FROM ({COUNTS})",
    "of_united": f"""SELECT window(w, '20 seconds') AS w, sum(n) AS s, count(*) AS c FROM (SELECT w, n FROM ({COUNTS})
      UNION ALL SELECT window(t, '4 seconds') AS w, count(*) AS n FROM {READ} GROUP BY ALL) WHERE n < 9 GROUP BY ALL""",
    "of_equal_windows": f"""SELECT w, k, sum(n) AS s FROM (SELECT w, k, n FROM ({COUNTS}) UNION ALL
      SELECT window(t, '5 seconds') AS w, k, v FROM {READ} GROUP BY ALL) GROUP BY w, k""",
    "of_united_joins": f"""SELECT window(t, '9 seconds') AS w, count(*) AS c FROM (SELECT t FROM ({NEAR}) UNION ALL
      SELECT window_time(w) AS t FROM ({COUNTS})) GROUP BY ALL""",
    "of_events_too": f"""SELECT window(x, '9 seconds') AS w, sum(n) AS s, count(*) AS c FROM (SELECT t AS x, v AS n
      FROM {READ} WHERE v > 1 UNION ALL SELECT window_time(w), n FROM ({COUNTS})) GROUP BY ALL""",
    "of_two_delays": f"""SELECT window(t, '9 seconds') AS w, k, sum(v) AS s FROM (SELECT k, v, t FROM {READ} UNION ALL
      SELECT k, -2 * v AS v, t FROM {READ.replace("10", "20")} WHERE v <> 5) GROUP BY ALL""",
    "with_table": f"""SELECT c.w, c.k, n, name, n * lo AS p, format_string('%s-%d', name, n) AS f FROM ({COUNTS}) AS c
      JOIN {DIMS} ON c.k = d.k WHERE lo <= n""",
    "with_table_or_null": f"""SELECT c.*, coalesce(name, c.k) AS name FROM {DIMS} RIGHT JOIN ({COUNTS}) AS c
      ON c.k = d.k AND lo > n""",
    "with_bands": f"""SELECT w.start AS s, k, band FROM ({COUNTS}) JOIN (VALUES (0, 1, 'low'), (1, 9, 'high')) AS
      b(lo, hi, band) ON n BETWEEN lo AND hi""",
    "with_tables": f"""SELECT w, n, name, u, u + lo AS s FROM ({COUNTS}) AS c JOIN {DIMS} ON c.k = d.k LEFT JOIN (VALUES
      ('x', 7), ('x', 8), ('z', 9)) AS e(of, u) ON of = name AND u > n + 6 CROSS JOIN (VALUES (1), (2)) AS f(z)""",
    "with_subqueries": f"""SELECT w, k, (SELECT max(lo) FROM {DIMS} WHERE d.k = c.k) AS m FROM ({COUNTS}) AS c WHERE
      (n > 2 OR EXISTS (SELECT 1 FROM {DIMS} WHERE d.k = c.k)) AND k NOT IN (SELECT name FROM {DIMS})""",
    "with_elements": f"""SELECT w, k, p, e + n AS s FROM (SELECT window(t, '5 seconds') AS w, k, count(*) AS n,
      sort_array(collect_list(v)) AS l FROM {READ} GROUP BY ALL) LATERAL VIEW OUTER posexplode(filter(l, x -> x > 5))
      AS p, e""",
    "with_entries": f"""SELECT w, m, e FROM (SELECT window(t, '5 seconds') AS w, map(k, count(*), 'z', max(v)) AS l
      FROM {READ} GROUP BY window(t, '5 seconds'), k) LATERAL VIEW explode(l) AS m, e WHERE e > 1""",
    "ranks_with_table": f"""SELECT c.w, c.k, n, name FROM (SELECT *, row_number() OVER (PARTITION BY w ORDER BY n DESC,
      k) AS r FROM ({COUNTS})) AS c JOIN {DIMS} ON c.k = d.k WHERE r <= 2""",
    "frames_with_table": f"""SELECT t, c.k, name, s FROM (SELECT t, k, sum(v) OVER (PARTITION BY k, v ORDER BY t RANGE
      BETWEEN INTERVAL 5 SECONDS PRECEDING AND CURRENT ROW) AS s FROM {READ}) AS c LEFT JOIN {DIMS} ON c.k = d.k""",
    "of_table": f"""SELECT window(w, '10 seconds') AS w, name, sum(n) AS s, count(*) AS c FROM (SELECT w, n, name
      FROM ({COUNTS}) AS c JOIN {DIMS} ON c.k = d.k) GROUP BY window(w, '10 seconds'), name""",
    "join_of_table": f"""SELECT x.w, name, y.n FROM (SELECT w, c.k, name FROM ({COUNTS}) AS c JOIN {DIMS} ON c.k = d.k)
      AS x JOIN ({COUNTS}) AS y ON x.w = y.w AND x.k = y.k""",
    "table_of_join": f"""SELECT x.t, x.k, name FROM ({NEAR}) AS x LEFT JOIN {DIMS} ON x.k = d.k AND lo < x.v
      WHERE x.k NOT IN (SELECT name FROM {DIMS} WHERE name <> 'n')""",
    "distinct_with_table": f"""SELECT c.k, v, name FROM (SELECT DISTINCT k, v FROM {READ}) AS c JOIN {DIMS} ON c.k = d.k
      WHERE lo < v""",
    "of_distinct_with_table": f"""SELECT window(t, '9 seconds') AS w, name, sum(v) AS s FROM (SELECT t, v, name FROM
      (SELECT DISTINCT k, v, t FROM {READ}) AS c LEFT JOIN {DIMS} ON c.k = d.k) GROUP BY ALL""",
    "united_with_table": f"""SELECT n, name, lo + n AS s FROM (SELECT n + 1 AS n, k FROM ({UNITED}) WHERE n > 1) AS u
      LEFT JOIN {DIMS} ON u.k = d.k LEFT SEMI JOIN (VALUES ('a'), ('b')) AS e(k) ON u.k = e.k""",
    "of_united_with_table": f"""SELECT window(w, '20 seconds') AS w, name, sum(n) AS s FROM (SELECT w, n, k
      FROM ({COUNTS}) UNION ALL SELECT window(t, '4 seconds') AS w, max(v), reverse(k) FROM {READ} GROUP BY ALL) AS u
      JOIN {DIMS} ON u.k = d.k GROUP BY window(w, '20 seconds'), name""",
    "lateral_limited": f"""SELECT window(t, '9 seconds') AS w, k, sum(v) AS s, s * 2 AS d, format_string('%d', s) AS f
      FROM {READ} GROUP BY window(t, '9 seconds'), k HAVING d > 1 ORDER BY d DESC, k LIMIT 90""",
    "united_elements": f"""SELECT k, e FROM (SELECT k, array(n, v) AS l FROM ({COUNTS}) UNION ALL
      SELECT k, array(v, 9) FROM {READ}) LATERAL VIEW explode(l) AS e WHERE e > 2""",
    "join_of_united": f"""WITH c AS ({COUNTS}) SELECT c.k, u.n FROM c JOIN (SELECT w, k, n FROM c UNION ALL
      SELECT window(t, '5 seconds') AS w, k, max(v) FROM {READ} GROUP BY ALL) AS u ON c.w = u.w AND c.k = u.k""",
}  # fmt: skip


def write(folder: Path, name: str, events: Sequence[tuple[int, str, int]]) -> None:
    folder.mkdir(exist_ok=True)
    lines = (json.dumps({"v": v, "k": k, "t": f"2026-01-01T00:00:{t:02}Z"}) for v, k, t in events)
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    os.utime(path, (1_700_000_000 + int(path.stem),) * 2)  # Spark reads files in the order of their times


def stream(folder: Path) -> Stream:
    fields = (Field("v", "int"), Field("k", "string"), Field("t", "timestamp"))
    return Stream("tx", fields, Source("json", (("maxFilesPerTrigger", "1"), ("path", str(folder)))))


def random_events(seed: int) -> list[list[tuple[int, str, int]]]:
    """Four files of events, each up to 9 seconds out of order, so that none is late."""
    made = random.Random(seed)
    return [
        [(made.randrange(9), made.choice("abc"), time + made.randrange(9)) for time in range(at, at + 12)]
        for at in range(0, 48, 12)
    ]


def plain(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(list(row.values())) for row in rows)


def count(pond: Pond) -> int:
    """The number of queries that are computed, with inner ones."""
    return len(pond.plan.all_queries)


RECORDED = RecordedAnswers(__file__, Path(__file__).read_text())


def batch(spark: SparkSession, folder: Path, text: str) -> list[str]:
    spark.read.schema(COLUMNS).json(str(folder)).createOrReplaceTempView("tx")
    judged = re.sub(r"STREAM (\w+) WATERMARK t DELAY OF INTERVAL \d+ SECONDS", r"\1", text)
    table = interpreted_table(spark.sql(judged))
    spark.catalog.dropTempView("tx")
    return plain(table.to_pylist())


def recorded_batch(spark: SparkSession, folder: Path, name: str, text: str, ours: list[str]) -> list[str]:
    """The rows of Spark's batch, which is not asked if those that the pond emitted are recorded as its answer."""
    events = [path.read_text() for path in sorted(folder.glob("*.json"))]
    return RECORDED.answer(name, (text, events), ours, lambda: batch(spark, folder, text))


def test_rows_are_those_of_sparks_batch_although_it_restarts(
    spark: SparkSession, tmp_path: Path, tmp_pond: Path
) -> None:
    folder, files = tmp_path / "in", random_events(1)
    for number, events in enumerate(files[:2]):
        write(folder, f"{number}.json", events)
    sinks = {name: Sink("parquet", str(tmp_path / name)) for name in TEXTS}
    with Pond(spark, tmp_pond, instances=2) as pond:
        pond.stream(stream(folder))
        for name, text in TEXTS.items():
            pond.add(name, text, sink=sinks[name])
        assert [query.name for query in pond.queries] == [*TEXTS]
        pond.run()
        manifest = pond.manifest()
        assert {*pond.counts()} == {*TEXTS} == {*pond.costs()}
        assert pond.counts()["again"].whole.read == len(files[0] + files[1])
    for number, events in enumerate(files[2:], 2):
        write(folder, f"{number}.json", events)
    with Pond(spark, tmp_pond) as pond:  # the queries in force are planned again
        pond.open()
        assert pond.manifest().n == manifest.n + 1
        assert {query.name for query in pond.queries} == {*TEXTS}
        pond.run(drain=True)
        assert pond.problems() == []
    for name, text in TEXTS.items():
        rows = plain(pq.read_table(tmp_path / name).to_pylist())
        assert rows == recorded_batch(spark, folder, name, text, rows), name
    with Pond(spark, tmp_pond, instances=2) as pond:  # the same program gives the same inner queries
        pond.stream(stream(folder))
        for name, text in TEXTS.items():
            pond.add(name, text, sink=sinks[name])
        pond.run()


@pytest.mark.parametrize("seed", seeds(62, 1))
def test_random_texts_have_the_rows_of_sparks_batch(
    spark: SparkSession, tmp_path: Path, tmp_pond: Path, seed: int
) -> None:
    folder, dice = tmp_path / "in", random.Random(seed)
    for number, events in enumerate(random_events(seed)):
        write(folder, f"{number}.json", events)
    texts = {f"q{i}": step_text(dice, READ, dice.choice([2, 3])) for i in range(8)}
    with Pond(spark, tmp_pond, instances=2) as pond:
        pond.stream(stream(folder))
        for name, text in texts.items():
            pond.add(name, text)
        pond.run(drain=True)
        assert pond.problems() == []
        rows = {name: plain(pond.table(name).to_pylist()) for name in texts}
    for name, text in texts.items():
        assert rows[name] == batch(spark, folder, text), text
    assert sum(map(len, rows.values())) > 40


def test_equal_steps_are_computed_once_and_go_with_their_last_reader(
    spark: SparkSession, tmp_path: Path, tmp_pond: Path
) -> None:
    folder = tmp_path / "in"
    write(folder, "1.json", [(1, "a", 1), (2, "b", 2), (3, "a", 14)])
    with Pond(spark, tmp_pond, instances=2) as pond:
        pond.stream(stream(folder))
        one = pond.add("again", TEXTS["again"])
        pond.run()
        other = pond.add("again_also", TEXTS["again_also"])
        assert len({*one.streams, *other.streams}) == 1 and count(pond) == 3
        shown = pond.costs()
        assert {*shown} == {"again", "again_also"}
        with pytest.raises(MillpondError, match="MP-CHANGE"):
            pond.drop(one.streams[0])
        pond.drop("again")
        assert count(pond) == 2
        pond.pause("again_also")
        pond.resume("again_also")
        pond.scale(1)
        pond.alter("again_also", TEXTS["again_also"].replace("sum(n)", "2 * sum(n)"))
        write(folder, "2.json", [(1, "a", 21), (1, "b", 26), (1, "b", 33), (1, "a", 38), (1, "c", 59)])
        pond.run(drain=True)
        rows = [(row["w"]["start"].second, row["s"], row["c"]) for row in pond.table("again_also").to_pylist()]
        assert rows == [(0, 4, 2), (10, 2, 1), (20, 4, 2), (30, 4, 2), (50, 2, 1)]
        pond.drop("again_also")
        assert count(pond) == 0 and [one.name for one in pond.streams if one.steps]
        assert {section.kind for section in pond.manifest().sections.values()} <= {"rows"}
        # added again, it begins with complete windows of its inner query
        pond.add("again", TEXTS["again"])
        assert pond.plan.of_query("again")[1].from_us is not None


def test_an_altered_inner_step_begins_with_the_first_complete_window(
    spark: SparkSession, tmp_path: Path, tmp_pond: Path
) -> None:
    folder = tmp_path / "in"
    write(folder, "1.json", [(1, "a", 1), (2, "b", 2), (3, "a", 14)])
    text = f"SELECT window(t, '10 seconds') AS w, count(*) AS c, count(v) AS s FROM {READ} GROUP BY ALL"
    with Pond(spark, tmp_pond, instances=2) as pond:
        pond.stream(stream(folder))
        pond.add("q", TEXTS["again"])
        pond.run()
        pond.alter("q", TEXTS["again"].replace("count(*) AS n", "100 * count(*) AS n"))
        pond.alter("q", TEXTS["again"].replace("count(*) AS n", "2 * count(*) AS n"))
    with Pond(spark, tmp_pond) as pond:
        pond.open()
        write(folder, "2.json", [(1, "a", 15), (1, "a", 21), (1, "b", 26), (1, "b", 33), (1, "a", 38), (1, "c", 48)])
        pond.run()
        write(folder, "3.json", [(1, "a", 49)])
        pond.run()
        assert count(pond) == 2  # the old versions have ended, with their inner queries
        pond.alter("q", text)
        write(folder, "4.json", [(1, "b", 59), (2, "b", 58)])
        pond.run(drain=True)
        rows = [(row["w"]["start"].second, row["s"], row["c"]) for row in pond.table("q").to_pylist()]
        assert sorted(rows) == [(0, 2, 2), (10, 2, 2), (20, 4, 2), (30, 4, 2), (40, 4, 2), (50, 2, 2)]


def test_a_shadow_may_differ_in_an_inner_step(spark: SparkSession, tmp_path: Path, tmp_pond: Path) -> None:
    folder = tmp_path / "in"
    write(folder, "1.json", [(1, "a", 1), (2, "b", 2), (3, "a", 14)])
    with Pond(spark, tmp_pond, instances=2) as pond:
        pond.stream(stream(folder))
        pond.add("q", TEXTS["again"])
        pond.run()
        pond.shadow("q", TEXTS["again"].replace("count(*) AS n", "2 * count(*) AS n"))
        write(folder, "2.json", [(1, "a", 15), (1, "a", 21), (1, "b", 26), (1, "b", 33), (1, "a", 38), (1, "c", 48)])
        pond.run()
        write(folder, "3.json", [(1, "a", 49)])
        pond.run()
        pond.settle()
        found = pond.diff("q")
        only = [[json.loads(row)["s"] for row in rows] for rows in (found.only_query, found.only_shadow)]
        assert found.pairs == len(only[0]) > 0 and only[1] == [2 * s for s in only[0]], found
        pond.promote("q")
        write(folder, "4.json", [(1, "b", 59), (2, "b", 58)])
        pond.run(drain=True)
        rows = [(row["w"]["start"].second, row["s"], row["c"]) for row in pond.table("q").to_pylist()]
        # the promoted version emits the windows that start at 30 or later
        assert sorted(rows) == [(0, 2, 2), (10, 2, 2), (20, 2, 2), (30, 4, 2), (40, 4, 2), (50, 4, 1)]
        pond.discard("q")
        write(folder, "5.json", [(1, "b", 99)])
        pond.run()
        assert count(pond) == 2, "the previous version has ended, with its inner query"


def test_a_failure_of_an_inner_query_is_one_of_the_query(spark: SparkSession, tmp_path: Path, tmp_pond: Path) -> None:
    folder = tmp_path / "in"
    write(folder, "1.json", [(2_000_000_000, "a", 1), (2_000_000_000, "a", 2), (3, "a", 30)])
    text = TEXTS["again"].replace("count(*) AS n", "CAST(sum(v) AS INT) AS n")
    with Pond(spark, tmp_pond) as pond:
        pond.stream(stream(folder))
        pond.add("q", text)
        pond.run(drain=True)
        [problem] = pond.problems()
        assert "Query q is quarantined" in problem.text and "inner@" not in problem.text
        cause = pond.why("q").causes[0]
        assert cause.code == "quarantined" and "inner@" not in cause.text
        assert any(status.name == "query:q" for status in pond.status())
        pond.drop("q")
        pond.add("q", text)
        assert pond.problems() == []


def test_it_is_explained_as_one_query(spark: SparkSession, tmp_path: Path, tmp_pond: Path) -> None:
    folder = tmp_path / "in"
    write(folder, "1.json", [(1, "a", 1), (1, "a", 2)])
    with Pond(spark, tmp_pond) as pond:
        pond.stream(stream(folder))
        pond.add("q", TEXTS["three"])
        pond.run()
        truth, spec = read_truth(tmp_pond)
        facts = find_facts(truth, spec, "q")
        assert facts.recent.counts.read == 2 and facts.upstream == ()
        assert [query.name for query in spec.all_queries] == ["q"]
        assert all("inner@" not in cause.text for cause in pond.why("q").causes)


def test_a_union_is_added_explained_and_dropped_live(spark: SparkSession, tmp_path: Path, tmp_pond: Path) -> None:
    folder = tmp_path / "in"
    write(folder, "1.json", [(5, "a", 1), (5, "a", 12)])
    with Pond(spark, tmp_pond, instances=2) as pond:
        pond.stream(stream(folder))
        pond.add("again", TEXTS["again"])
        pond.run()
        pond.add("u", TEXTS["of_events_too"])
        pond.add("v", TEXTS["with_events"])
        assert count(pond) == 8
        pond.scale(1)
        shown = explain(pond.plan, pond.streams)
        assert "its watermark follows the query that is furthest behind" in shown
        labelled = relabelled(shown, labels(pond.queries, pond.streams, pond.relations))
        assert "union of u: the rows of step 1 of u and step 2 of u" in labelled and "inner@" not in labelled
        write(folder, "2.json", [(2, "b", 18), (3, "b", 20), (4, "a", 30), (4, "a", 39)])
        pond.run(drain=True)
        # both branches begin after the events that were read before
        assert [(row["w"]["start"].second, row["s"], row["c"]) for row in pond.table("u").to_pylist()] == [
            (18, 7, 4), (27, 5, 2), (36, 5, 2)
        ]  # fmt: skip
        rows = [(row["k"], row["v"]) for row in pond.table("v").to_pylist()]
        assert sorted(rows) == [("a", 1), ("a", 1), ("a", 5), ("a", 5), ("b", 1), ("b", 1), ("b", 4)]
        assert pond.counts()["u"].whole.late == 0
        pond.drop("u")
        pond.drop("v")
        assert count(pond) == 2 and {query.name for query in pond.queries} == {"again"}


def test_dataframes_have_steps_too(spark: SparkSession, tmp_path: Path, tmp_pond: Path) -> None:
    folder = tmp_path / "in"
    write(folder, "1.json", [event for events in random_events(2) for event in events])

    def last_step(read: DataFrame) -> DataFrame:
        counts = read.groupBy(F.window("t", "5 seconds").alias("window"), "k").count()
        return counts.groupBy(F.window("window", "10 seconds")).agg(F.sum("count").alias("count"))

    with Pond(spark, tmp_pond) as pond:
        made = pond.add("q", last_step(pond.stream(stream(folder)).withWatermark("t", "10 seconds")))
        assert isinstance(made, Query) and made.delay_us == 0
        pond.run(drain=True)
        rows = plain(pond.table("q").to_pylist())
    assert rows == plain(last_step(spark.read.schema(COLUMNS).json(str(folder))).toArrow().to_pylist())


def test_live_parameters_are_those_of_all_steps(spark: SparkSession, tmp_path: Path, tmp_pond: Path) -> None:
    folder = tmp_path / "in"
    text = f"""SELECT window(w, '10 seconds') AS w, sum(n * :times) AS s, count(*) AS c, max(:times) AS f FROM (
      SELECT window(t, '5 seconds') AS w, k, count(*) AS n FROM {READ} WHERE v >= :least GROUP BY ALL
      HAVING count(*) < :most) GROUP BY ALL"""
    write(folder, "1.json", [(1, "a", 1), (2, "b", 2), (9, "b", 3), (9, "a", 24)])
    with Pond(spark, tmp_pond, instances=2) as pond:
        pond.stream(stream(folder))
        for name, value in {"least": 2, "most": 9, "times": 10}.items():
            pond.param(name, value)
        pond.add("q", text)
        with pytest.raises(ChangeRefused, match=r"least would be of type string, .* it is used by q"):
            pond.param("least", "many")
        pond.run()
        pond.param("least", 4)
    with Pond(spark, tmp_pond) as pond:
        pond.open()
        with pytest.raises(ChangeRefused, match=r"most would be of type string, .* it is used by q"):
            pond.param("most", "many")
        # the same steps by another text, in which the parameters are in another order
        pond.add("other", text.replace("sum(n * :times) AS s, count(*) AS c", "count(*) AS c, sum(n * :times) AS s"))
        assert count(pond) == 3
        write(folder, "2.json", [(3, "a", 25), (4, "b", 26), (5, "c", 28), (5, "c", 29), (9, "a", 44)])
        pond.run()
        pond.param("times", 100)
        pond.param("most", 2)
        write(folder, "3.json", [(8, "a", 45), (8, "c", 46), (8, "c", 47)])
        pond.run(drain=True)
        rows = [(row["w"]["start"].second, row["s"], row["c"], row["f"]) for row in pond.table("q").to_pylist()]
        # the last windows have `a` once and `c` twice, which HAVING no longer takes; each step has its own epoch
        assert rows == [(0, 20, 1, 10), (20, 40, 3, 10), (40, 200, 2, 100)]


REPEATED: dict[str, Any] = {"deduplicate": ["id"], "deduplicate_within": "1 hour"}


def test_repeated_events_are_left_out_by_the_first_steps(spark: SparkSession, tmp_path: Path, tmp_pond: Path) -> None:
    folder, events = tmp_path / "in", random_events(3)
    again = [[*some, some[3], events[max(at - 1, 0)][-1]] for at, some in enumerate(events)]
    for number, some in enumerate(again):
        write(folder, f"{number}.json", some)
    texts = {name: TEXTS[name] for name in ("again", "of_events_too")}
    options: dict[str, Any] = {"deduplicate": ["v", "k", "t"], "deduplicate_within": "1 hour"}
    with Pond(spark, tmp_pond, instances=2) as pond:
        pond.stream(stream(folder))
        made = {name: pond.add(name, text, **options) for name, text in texts.items()}
        pond.add("all", TEXTS["again"])
        pond.run()
        pond.scale(1)
        assert pond.add("later", TEXTS["again"], **options).streams == made["again"].streams
        pond.run(drain=True)
        rows = {name: plain(pond.table(name).to_pylist()) for name in (*texts, "all")}
    assert rows["all"] == recorded_batch(spark, folder, "all", TEXTS["again"], rows["all"]) != rows["again"]
    once = tmp_path / "once"
    write(once, "1.json", [*dict.fromkeys(event for some in again for event in some)])
    for name, text in texts.items():
        assert rows[name] == recorded_batch(spark, once, f"{name} once", text, rows[name]), name


def test_events_of_open_windows_are_taken_by_first_steps(spark: SparkSession, tmp_path: Path, tmp_pond: Path) -> None:
    folder = tmp_path / "in"
    write(folder, "1.json", [(1, "a", 29)])
    text = f"""SELECT window(w, '20 seconds') AS w, sum(n) AS s FROM (SELECT window(t, '10 seconds') AS w, k,
      count(*) AS n FROM {READ} GROUP BY ALL) GROUP BY ALL"""
    with Pond(spark, tmp_pond) as pond:
        pond.stream(stream(folder))
        pond.add("q", text, late=Sink("memory"))
        pond.add("taken", text, late_by="window")
        pond.run()
        write(folder, "2.json", [(2, "b", 11), (2, "b", 9)])  # the watermark is 19: only the first window has closed
        pond.run()
        altered = text.replace("sum(n) AS s", "10 * sum(n) AS s")
        assert pond.alter("taken", altered).streams == pond.queries[1].streams
        pond.run(drain=True)
        for name, rows in {"q": [(20, 1)], "taken": [(0, 10), (20, 10)]}.items():
            assert [(row["w"]["start"].second, row["s"]) for row in pond.table(name).to_pylist()] == rows
        late = [(row["t"].second, row["k"], row["_watermark"].second) for row in pond.late_rows("q").to_pylist()]
        assert sorted(late) == [(9, "b", 19), (11, "b", 19)]


REFUSED = {
    "does not see the rows of an inner": f"SELECT c.n FROM ({COUNTS}) AS c JOIN ({COUNTS}) AS d "
    "ON c.w = d.w AND reverse(c.k) = reverse(d.k)",
    "has no window, so its rows change": f"SELECT max(n) AS n FROM (SELECT k, count(*) AS n FROM {READ} GROUP BY k)",
    "which Spark would merge with sessions": f"""SELECT s, count(*) AS c FROM (SELECT k, session_window(t, '2 seconds')
      AS s FROM {READ} GROUP BY ALL) GROUP BY s""",
    "A join of two streams has no live parameters": f"""SELECT window(t, '5 seconds') AS w, count(*) AS n
      FROM ({NEAR} AND b.v > :least) GROUP BY ALL""",
    "has no column id to compare": f"SELECT max(n) AS n FROM ({COUNTS}) GROUP BY window(w, '1 hour')",
    "overlaps more than 200": f"""SELECT max(n) AS n FROM (SELECT window(t, '1 day', '1 second') AS w, count(*) AS n
      FROM {READ} GROUP BY ALL) GROUP BY window(w, '2 days')""",
}  # fmt: skip


def test_what_is_refused_names_the_reason(spark: SparkSession, tmp_path: Path, tmp_pond: Path) -> None:
    write(tmp_path / "in", "1.json", [(1, "a", 1)])
    with Pond(spark, tmp_pond) as pond:
        pond.stream(stream(tmp_path / "in"))
        pond.param("least", 1)
        for reason, text in REFUSED.items():
            with pytest.raises(MillpondError, match=reason):
                pond.add("q", text, **(REPEATED if "compare" in reason else {}))
        with pytest.raises(MillpondError, match="could not be retracted"):
            pond.add("q", TEXTS["again"], correct_for="1 hour")
        with pytest.raises(MillpondError, match="late events differ in columns and delays"):
            pond.add("q", TEXTS["of_join"], late=Sink("memory"))
        pond.add("q", TEXTS["again"])
        pond.run()
        assert (pond.table("q").column_names, pond.table("q").num_rows) == (["w", "c", "s"], 0)
        with pytest.raises(MillpondError, match="A step joins streams"):
            pond.add("more", TEXTS["of_join"], backfill=True)


def test_totals_of_first_events_are_updates(spark: SparkSession, tmp_path: Path, tmp_pond: Path) -> None:
    """Spark's StreamingDeduplicationSuite: the sum of distinct pairs changes only with the first event of a pair."""
    events = tmp_path / "events"
    with Pond(spark, tmp_pond) as pond:
        for at, v in enumerate((1, 1, 2)):
            write(events, f"{at}.json", [(v, "a", 1)])
        source = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(events))
        once = source.withWatermark("t", "10 seconds").dropDuplicates(["k", "v"])
        pond.add("q", once.groupBy("k").agg(F.sum("v").alias("s")), emit="update")
        pond.run()
        assert [tuple(row.values()) for row in pond.table("q").to_pylist()] == [("a", 1, "upsert"), ("a", 3, "upsert")]
