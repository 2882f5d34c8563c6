"""Keys that are NULL, times of joined rows and bounds of windows, in a text of several steps or one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.test_steps import READ, batch, plain, random_events, stream, write

from millpond import Pond
from millpond.errors import UnsupportedQuery

HOPS = f"SELECT window(t, '6 seconds', '3 seconds') AS w, k, v, count(*) AS n FROM {READ} GROUP BY ALL"
JOINED = f"""SELECT a.t, b.t AS u, a.k FROM {READ} AS a LEFT JOIN {READ} AS b ON a.k = b.k AND a.v = b.v + 1
  AND b.t BETWEEN a.t - INTERVAL 2 SECONDS AND a.t + INTERVAL 2 SECONDS"""
TEXTS = {
    "bytes": f"""SELECT window(t, '9 seconds') AS w, nullif(cast(k AS BINARY), X'61') AS b, count(*) AS n FROM {READ}
      GROUP BY ALL""",
    "intervals": f"""SELECT window(t, '9 seconds') AS w, nullif(t - date_trunc('MINUTE', t), INTERVAL '3' SECOND) AS d,
      count(*) AS n FROM {READ} GROUP BY ALL""",
    "times_of_outer_join": f"SELECT u, t, count(*) AS c FROM ({JOINED}) GROUP BY u, t",
    "renamed_sides": f"""WITH e AS (SELECT t, k, v AS x FROM {READ} WHERE v > 0) SELECT a.t, a.x, b.x AS y FROM e AS a
      JOIN e AS b ON a.k = b.k AND b.t BETWEEN a.t AND a.t + INTERVAL 2 SECONDS AND a.x < b.x""",
    "moved_bounds": f"""SELECT a.t, a.k, b.v FROM {READ} AS a JOIN {READ} AS b ON a.k = b.k
      AND b.t - INTERVAL 1 SECOND BETWEEN a.t - INTERVAL 2 SECONDS AND a.t + INTERVAL 3 SECONDS""",
    "distinct_of_outer_join": f"SELECT DISTINCT u, k FROM ({JOINED})",
    "partners_of_outer_join": f"SELECT u, count(*) AS c FROM ({JOINED}) WHERE u IS NOT NULL GROUP BY u",
    "ordered_partners": f"""SELECT t, k, u, count(*) OVER (PARTITION BY k ORDER BY u RANGE BETWEEN INTERVAL 2 SECONDS
      PRECEDING AND CURRENT ROW) AS c FROM ({JOINED}) WHERE u > TIMESTAMP '1970-01-01'""",
    "hinted": f"""SELECT /*+ BROADCAST(n) */ t, k, n.c FROM {READ} JOIN (VALUES ('a', 1), ('b', 2)) AS n(k, c) USING (k)
      WHERE v > 1""",
    "end_of_hop": f"SELECT e, count(*) AS c, max(n) AS n FROM (SELECT w.end AS e, n FROM ({HOPS})) GROUP BY e",
    "end_of_hop_twice": f"""SELECT e, c, count(*) AS n FROM (SELECT w.end AS e, k, count(*) AS c FROM ({HOPS})
      GROUP BY w.end, k) GROUP BY e, c""",
}
REFUSED = {
    r"grouped by u, which is NULL in rows without a partner": f"SELECT u, count(*) AS c FROM ({JOINED}) GROUP BY u",
    r"ordered by u, which is NULL in rows without a partner": f"""SELECT t, count(*) OVER (PARTITION BY k ORDER BY u
      RANGE BETWEEN INTERVAL 2 SECONDS PRECEDING AND CURRENT ROW) AS c FROM ({JOINED})""",
    r"Group by its end in each step: SELECT w.end AS e": f"""SELECT w, c, count(*) AS n FROM (SELECT w, k, count(*) AS c
      FROM ({HOPS}) GROUP BY w, k) GROUP BY w, c""",
}
UNSERVED = {
    r"its key `cast\(k AS BINARY\)` is of type binary": "cast(k AS BINARY) AS x, count(*) AS n",
    r"its key .* is of type interval": "t - date_trunc('MINUTE', t) AS x, count(*) AS n",
    r"cannot represent its column x of type binary": "k, max(cast(k AS BINARY)) AS x",
}


def test_rows_are_those_of_sparks_batch_although_it_restarts(spark: SparkSession, tmp_path: Path) -> None:
    folder, files = tmp_path / "in", random_events(3)
    write(folder, "0.json", files[0])
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        pond.stream(stream(folder))
        for name, text in TEXTS.items():
            pond.add(name, text)
        for reason, text in REFUSED.items():
            with pytest.raises(UnsupportedQuery, match=reason):
                pond.add("q", text)
        for reason, columns in UNSERVED.items():
            with pytest.raises(UnsupportedQuery, match=reason):
                pond.add("q", f"SELECT window(t, '9 seconds') AS w, {columns} FROM {READ} GROUP BY ALL", serve=True)
        pond.run()
    with Pond(spark, tmp_path / "pond") as pond:
        pond.open()
        for number, events in enumerate(files[1:], 1):
            write(folder, f"{number}.json", events)
        pond.run(drain=True)
        assert pond.table("bytes").num_rows > 0
        rows = {name: plain(pond.table(name).to_pylist()) for name in TEXTS}
    for name, text in TEXTS.items():
        assert rows[name] == batch(spark, folder, text), name
