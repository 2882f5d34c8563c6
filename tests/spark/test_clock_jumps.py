"""A wall clock that is set back or forward, while a pond runs and between runs, loses no event and doubles none."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millpond import Pond
from millpond.clock import ForwardClock, now_us
from millpond.control.wiring.truth import open_truth
from millpond.log.records import decode
from millpond.spark.driver import log_head

SECOND = 1_000_000
HOUR, DAY = 3600 * SECOND, 86_400 * SECOND
TEXT = """
CREATE TABLE tx (id BIGINT, ts TIMESTAMP) USING json OPTIONS (path '{base}/in')
TBLPROPERTIES ('max_ahead' = '5 minutes');

CREATE STREAMING TABLE seen USING json TBLPROPERTIES ('path' = '{base}/seen') AS
SELECT id, ts FROM STREAM tx;

CREATE STREAMING TABLE counted USING json TBLPROPERTIES ('path' = '{base}/counted') AS
SELECT window(ts, '1 second') AS w, count(*) AS n FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS GROUP BY ALL;
"""


class Bench:
    """A pond, a wall clock that is off by `off_us`, and events with the true time."""

    def __init__(self, spark: SparkSession, base: Path) -> None:
        self.spark, self.base, self.off_us, self.events = spark, base, 0, 0
        (base / "in").mkdir()

    def wall(self) -> int:
        return now_us() + self.off_us

    def pond(self) -> Pond:
        made = Pond(self.spark, self.base / "pond", instances=2)
        made.load(TEXT.format(base=self.base))
        return made

    def epoch(self, pond: Pond, off_us: int) -> None:
        self.off_us = off_us
        rows = []
        for _ in range(3):
            time = datetime.fromtimestamp(now_us() / SECOND, timezone.utc).isoformat()
            rows.append(json.dumps({"id": self.events, "ts": time}))
            self.events += 1
        draft = self.base / "draft.json"
        draft.write_text("\n".join(rows))
        os.utime(draft, (self.wall() / SECOND,) * 2)
        draft.rename(self.base / "in" / f"{self.events}.json")
        pond.run(once=True)

    def written(self, name: str) -> list[dict[str, int]]:
        return [json.loads(line) for part in sorted((self.base / name).glob("part-*")) for line in part.open()]


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench(spark, tmp_path)
    monkeypatch.setattr(log_head, "ForwardClock", lambda: ForwardClock(bench.wall))
    yield bench


@pytest.mark.parametrize("jumps", [
    pytest.param([[0, -HOUR, -HOUR]], id="back while it runs"),
    pytest.param([[0], [-HOUR], [-HOUR], [-HOUR, 0]], id="back before a restart and still late at the second one"),
    pytest.param([[0, DAY, 0], [0], [-HOUR]], id="forward a day and back"),
])  # fmt: skip
def test_no_event_is_lost_or_doubled(bench: Bench, jumps: list[list[int]]) -> None:
    for run in jumps:
        with bench.pond() as pond:
            for off_us in run:
                bench.epoch(pond, off_us)
            if run is jumps[-1]:
                pond.run(once=True, drain=True)
    assert [row["id"] for row in bench.written("seen")] == list(range(bench.events))
    assert sum(row["n"] for row in bench.written("counted")) == bench.events
    log = open_truth(bench.base / "pond").log
    times = [decode(log.read(n) or b"").record.at for n in range((log.last() or 0) + 1)]
    assert times == sorted(times)
