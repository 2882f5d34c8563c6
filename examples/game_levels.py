"""Game levels: which level is too hard? Tries, wins and the time a win takes, by level. With Spark SQL.

    python examples/game_levels.py

The three queries have one key, so they share everything; `FILTER` counts a part of the events of a window.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from millpond import Pond, spark_session

LEVELS = (0.9, 0.85, 0.8, 0.3, 0.7, 0.65)
"""How likely a try of each level is a win; level 4 is the one to be found."""

EVENING = datetime(2026, 3, 6, 18, tzinfo=timezone.utc)

GAME = """
CREATE TABLE tries (player INT, level INT, won BOOLEAN, seconds INT, ts TIMESTAMP)
USING json OPTIONS (path '{folder}/tries', maxFilesPerTrigger '1')
"""
LEVEL_HOUR = """
SELECT level, window(ts, '1 hour') AS w, count(*) AS tries, count(*) FILTER (WHERE won) AS wins,
       avg(seconds) FILTER (WHERE won) AS pace
FROM STREAM tries WATERMARK ts DELAY OF INTERVAL 30 SECONDS
GROUP BY level, window(ts, '1 hour')
"""
QUICKEST = """
SELECT level, window(ts, '1 hour') AS w, min(seconds) FILTER (WHERE won) AS seconds
FROM STREAM tries WATERMARK ts DELAY OF INTERVAL 30 SECONDS
GROUP BY level, window(ts, '1 hour')
"""
TOO_HARD = """
SELECT level, window(ts, '30 minutes') AS w, count(*) AS tries, count(*) FILTER (WHERE won) AS wins
FROM STREAM tries WATERMARK ts DELAY OF INTERVAL 30 SECONDS
GROUP BY level, window(ts, '30 minutes')
HAVING count(*) FILTER (WHERE won) * 2 < count(*)
"""


def write_tries(folder: Path) -> None:
    """40 players who play for two hours, each level until it is won. The same each time."""
    chance = random.Random(64)
    tries = []
    for player in range(40):
        at, level = EVENING + timedelta(seconds=int(chance.random() * 1800)), 0
        while level < len(LEVELS) and at < EVENING + timedelta(hours=2):
            seconds = 40 + 10 * level + int(chance.random() * 60)
            at += timedelta(seconds=seconds)
            won = chance.random() < LEVELS[level]
            tries.append({"player": player, "level": level + 1, "won": won, "seconds": seconds, "ts": at.isoformat()})
            level += won
    tries.sort(key=lambda one: str(one["ts"]))
    folder.mkdir(parents=True)
    for number, first in enumerate(range(0, len(tries), 200)):
        file = folder / f"tries-{number}.json"
        file.write_text("\n".join(map(json.dumps, tries[first : first + 200])))
        os.utime(file, (number, number))  # Spark reads files in the order of these times


def run(spark: SparkSession, folder: Path) -> dict[str, pa.Table]:
    """Run to the end of the input."""
    write_tries(folder / "tries")
    with Pond(spark, folder / "pond") as pond:
        pond.load(GAME.format(folder=folder))
        pond.add("level_hour", LEVEL_HOUR)
        pond.add("quickest", QUICKEST)
        pond.add("too_hard", TOO_HARD)
        pond.run(once=True, drain=True)
        return {query.name: pond.table(query.name) for query in pond.queries}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        tables = run(spark_session(), Path(folder))
    for row in sorted(tables["level_hour"].to_pylist(), key=lambda row: (row["w"]["start"], row["level"])):
        tries, wins = row["tries"], row["wins"]
        pace = "" if row["pace"] is None else f"{row['pace']:.0f} s"
        print(f"{row['w']['start']:%H:%M} level {row['level']} {'█' * (wins // 2)}{'░' * ((tries - wins) // 2)} {pace}")
    for row in tables["too_hard"].to_pylist():
        print(f"too hard from {row['w']['start']:%H:%M}: level {row['level']}, {row['wins']} of {row['tries']} won")


if __name__ == "__main__":
    main()
