"""Queries over queries in Spark: SQL names an earlier query, whose rows are events one epoch later, after any crash."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from millpond import Pond
from millpond.errors import QueryTypeError, UnsupportedQuery

FILE = """
CREATE TABLE tx (id BIGINT, card STRING, amount BIGINT, ts TIMESTAMP) USING json
  OPTIONS (path '{folder}', maxFilesPerTrigger '1');

CREATE STREAMING TABLE spend AS
  SELECT card, sum(amount) AS total, count(*) AS n, max(ts) AS last, window(ts, '10 seconds') AS w
  FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY ALL;

CREATE STREAMING TABLE top USING parquet TBLPROPERTIES ('path' = '{out}/top') AS
  SELECT window.start AS minute, max_by(card, total, 2) AS cards, sum(total) AS total
  FROM STREAM spend WATERMARK w DELAY OF INTERVAL 0 SECONDS GROUP BY window(w, '1 minute');

CREATE STREAMING TABLE alert USING parquet TBLPROPERTIES ('path' = '{out}/alert') AS
  SELECT card, total, w.end AS until FROM STREAM spend WHERE total > 100;
"""


def write(folder: Path, name: str, rows: list[tuple[int, str, int]]) -> None:
    folder.mkdir(exist_ok=True)
    lines = [
        json.dumps({"id": i, "card": card, "amount": amount, "ts": f"2026-01-01T00:{time // 60:02}:{time % 60:02}Z"})
        for i, (time, card, amount) in enumerate(rows)
    ]
    (folder / name).write_text("\n".join(lines) + "\n")


def rows(path: Path) -> list[dict[str, Any]]:
    return [row for part in sorted(path.glob("part-*.parquet")) for row in pq.read_table(part).to_pylist()]


def test_the_largest_of_all_keys_follow_the_sums_and_a_restart_continues(
    spark: SparkSession, tmp_path: Path, tmp_pond: Path
) -> None:
    text = FILE.format(folder=tmp_path / "in", out=tmp_path)
    write(tmp_path / "in", "1.json", [(1, "a", 5), (2, "b", 70), (12, "c", 101), (13, "a", 90), (59, "b", 40)])
    with Pond(spark, tmp_pond, instances=2) as pond:
        pond.load(text)
        pond.run()
        assert rows(tmp_path / "top") == []
    write(tmp_path / "in", "2.json", [(61, "a", 7), (125, "b", 1)])
    with Pond(spark, tmp_pond, instances=2) as pond:
        pond.load(text)
        pond.run()
        # `b` has 70 and 40, of which a list of the two largest rows shows one
        assert [(row["minute"].minute, row["cards"], row["total"]) for row in rows(tmp_path / "top")] == [
            (0, ["c", "a"], 306), (1, ["a"], 7)
        ]  # fmt: skip
        pond.run(drain=True)
        assert [row["minute"].minute for row in rows(tmp_path / "top")] == [0, 1, 2]
        tx = spark.read.schema("card STRING, amount BIGINT, ts TIMESTAMP").json(str(tmp_path / "in"))
        sums = tx.groupBy("card", F.window("ts", "10 seconds").alias("w")).agg(F.sum("amount").alias("total"))
        best = sums.groupBy(F.window("w", "1 minute")).agg(F.expr("max_by(card, total, 2)"), F.sum("total"))
        batch = sorted((row[0].start.minute, row[1], row[2]) for row in best.collect())
        assert [(row["minute"].minute, row["cards"], row["total"]) for row in rows(tmp_path / "top")] == batch
        alerts = [(row["card"], row["total"], row["until"].second) for row in rows(tmp_path / "alert")]
        assert alerts == [("c", 101, 20)]
        last = pond.why("top").causes[-1]
        assert last.code == "reads-rows"
        assert "It reads the rows of spend, one epoch after they are committed" in last.text


def test_rows_follow_on_a_silent_pond_as_time_continues(spark: SparkSession, tmp_path: Path, tmp_pond: Path) -> None:
    write(tmp_path / "in", "1.json", [(1, "a", 5), (12, "c", 101)])
    write(tmp_path / "in", "2.json", [(61, "a", 7)])
    with Pond(spark, tmp_pond, instances=2) as pond:
        pond.load(FILE.format(folder=tmp_path / "in", out=tmp_path))
        ended: list[bool] = []
        thread = threading.Thread(target=lambda: ended.append(pond.run(once=False)))
        thread.start()
        for _ in range(600):
            if list((tmp_path / "top").glob("part-*.parquet")):
                break
            thread.join(0.1)
        pond.stop()
        thread.join(60)
        assert ended == [False]
    assert [row["cards"] for row in rows(tmp_path / "top")] == [["c", "a"]]


def refused(pond: Pond, text: str) -> str:
    with pytest.raises((UnsupportedQuery, QueryTypeError)) as error:
        pond.add("later", text)
    return str(error.value)


def test_what_cannot_follow_a_query_is_refused(spark: SparkSession, tmp_path: Path, tmp_pond: Path) -> None:
    write(tmp_path / "in", "1.json", [(1, "a", 5)])
    with Pond(spark, tmp_pond) as pond:
        pond.load(FILE.format(folder=tmp_path / "in", out=tmp_path))
        grouped = "GROUP BY window(w, '1 minute')"
        assert "no stream spent" in refused(pond, f"SELECT count(*) FROM STREAM spent {grouped}")
        assert "later" in refused(pond, f"SELECT count(*) FROM STREAM later {grouped}")
        message = refused(pond, "SELECT count(*) FROM STREAM spend GROUP BY window(w.start, '1 minute')")
        assert message.endswith("Window over w itself: window(w, …).")
        assert "costs" in refused(pond, f"SELECT sum(costs) FROM STREAM spend {grouped}")
        assert "has no window" in refused(pond, "SELECT card FROM STREAM alert")
        assert "evaluated by Spark" in refused(pond, f"SELECT max(reverse(card)) FROM STREAM spend {grouped}")
        joined = "SELECT s.card FROM STREAM spend s JOIN STREAM tx ON tx.card = s.card"
        assert "so events would be stored indefinitely" in refused(pond, joined)
        shifted = "(SELECT card, w.end + INTERVAL 1 SECOND AS u FROM STREAM spend)"
        refused(pond, f"SELECT count(*) FROM {shifted} GROUP BY window(u, '1 minute')")
        unbounded = "SELECT count(*) FROM STREAM spend GROUP BY window(last, '1 minute')"
        assert "is not a bound of a window" in refused(pond, unbounded)
        per_card = "SELECT card, window(ts, '1 minute') AS w, count(*) AS n FROM STREAM tx"
        per_card += " WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY ALL"
        pond.add("changing", per_card, emit="update")
        assert "changing changes with each epoch" in refused(pond, f"SELECT sum(n) FROM STREAM changing {grouped}")
        named = "WITH x AS (SELECT card, w.end AS e FROM STREAM spend)"
        made = pond.add("more", f"{named} SELECT count(*) AS n FROM x GROUP BY window(e, '1 hour')")
        assert (made.stream, made.event_time, made.delay_us) == ("spend", "w.end", 0)
