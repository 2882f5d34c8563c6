"""Late events go to a sink of their own: exactly once, over restarts, as the naive twin names them."""

from __future__ import annotations

import json
import os
import random
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace
from pyspark.sql import SparkSession

from kit.naive.queries.windows import counts, late_rows
from millpond import Pond
from millpond.control.pond.event_totals import EventCounts
from millpond.testing.compare import difference

FILES = 4
TEXT = """
CREATE TABLE tx (id BIGINT, customer STRING, amount DOUBLE, ts TIMESTAMP, note STRING)
USING json OPTIONS (path '{base}/in', maxFilesPerTrigger '1') TBLPROPERTIES ('max_ahead' = 'none');

CREATE STREAMING TABLE large USING parquet
TBLPROPERTIES ('path' = '{base}/large', 'late.path' = '{base}/large-late', 'late.format' = 'json') AS
SELECT customer, window(ts, '1 minute') AS w, sum(amount) AS total, max(id) AS last
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 SECONDS WHERE amount > 30 GROUP BY ALL;

CREATE STREAMING TABLE sounds USING parquet
TBLPROPERTIES ('path' = '{base}/sounds', 'late.path' = '{base}/sounds-late') AS
SELECT soundex(customer) AS sound, window(ts, '1 minute') AS w, count(id) AS n
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 20 SECONDS GROUP BY ALL;

CREATE STREAMING TABLE counted AS
SELECT customer, window(ts, '1 minute') AS w, count(*) AS n
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 SECONDS GROUP BY ALL;
"""


def make_files(folder: Path) -> list[list[dict[str, Any]]]:
    """A file per epoch, and its rows with times in microseconds."""
    dice, epochs = random.Random(3), []
    folder.mkdir()
    for i in range(FILES):
        rows = []
        for j in range(100):
            second = 1_700_000_000 + 60 * i + dice.randint(0, 59) - dice.choice((0, 0, 0, 100))
            rows.append({"id": 100 * i + j, "customer": dice.choice(("smith", "smythe", None)),
                         "amount": dice.randint(0, 100) / 1, "ts": second * 1_000_000, "note": "x"})  # fmt: skip
        shown = [{**row, "ts": datetime.fromtimestamp(row["ts"] // 10**6, timezone.utc).isoformat()} for row in rows]
        file = folder / f"{i}.json"
        file.write_text("\n".join(map(json.dumps, shown)))
        os.utime(file, (1_700_000_000 + i, 1_700_000_000 + i))
        epochs.append(rows)
    return epochs


def micros(text: str) -> int:
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1e6)


def test_late_events_are_written_once_over_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    epochs = make_files(tmp_path / "in")
    kept = [(tmp_path / "in" / f"{i}.json").rename(tmp_path / f"{i}.json") for i in (2, 3)]
    for turn in range(2):
        with Pond(spark, tmp_path / "pond", instances=2) as pond:
            queries = {query.name: query for query in pond.load(TEXT.format(base=tmp_path))}
            pond.run()
            for name in ("large", "sounds"):
                assert f"late:{name}" in {status.name for status in pond.status()}
            found = pond.counts()["large"]
            for file in kept if not turn else ():
                file.rename(tmp_path / "in" / file.name)
    total, before = counts(queries["large"], epochs), counts(queries["large"], epochs[:2])
    assert found.whole == EventCounts(**{name: total[name] - before[name] for name in total})
    assert found.partitions == {}

    large = [json.loads(line) for part in sorted((tmp_path / "large-late").glob("part-*")) for line in part.open()]
    expected = late_rows(queries["large"], epochs)
    assert len(large) == len(expected) > 30
    # files 0 and 1 are records 1 and 2; the second driver's claim is record 3
    names, records = ("ts", "id", "customer", "amount", "_watermark"), (1, 2, 4, 5)
    shown = [{name: row[name] for name in names} | {"_epoch": records[row["_epoch"]]} for row in expected]
    read = [{**dict.fromkeys(names), **row} for row in large]  # JSON leaves NULLs out
    timed = [{**row, "ts": micros(row["ts"]), "_watermark": micros(row["_watermark"])} for row in read]
    assert difference(shown, timed) is None

    table = pa.concat_tables([pq.read_table(part) for part in sorted((tmp_path / "sounds-late").glob("part-*"))])
    assert table.column_names == ["ts", "id", "customer", "_watermark", "_epoch"]
    late = late_rows(replace(queries["sounds"], keys=()), epochs)  # the twin does not know how names sound
    assert sorted(table["id"].to_pylist()) == sorted(row["id"] for row in late)
    assert not (tmp_path / "counted-late").exists()
