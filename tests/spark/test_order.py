"""A source with an order, through Spark: results do not depend on batches."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from millpond import Pond
from millpond.control.pond.event_totals import EventCounts, QueryCounts
from millpond.model.endpoints import Sink, Source
from millpond.model.stream import Field, Order, Stream
from millpond.runtime.task.counters import WHOLE_POND
from millpond.spark.driver.epochs import Epoch

PARTITIONS = ("0", "1", "2")
QUERY = """
    SELECT k, window(ts, '20 seconds', '10 seconds') AS w, count(*) AS n, sum(v) AS total
    FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 3 SECONDS GROUP BY ALL
"""


COLUMNS = (
    Field("p", "string"), Field("o", "bigint"), Field("ts", "timestamp"), Field("k", "string"), Field("v", "double"),
)  # fmt: skip


def ordered_source() -> type[DataSource]:
    """Defined in a function, so that Spark ships the class itself to its workers, which cannot import a test."""

    class Part(InputPartition):
        def __init__(self, name: str, start: int, end: int) -> None:
            super().__init__(name)
            self.name, self.start, self.end = name, start, end

    class Reader(DataSourceStreamReader):
        def __init__(self, options: dict[str, str]) -> None:
            self.folder, self.most = options["folder"], int(options["most"])
            self.reached: dict[str, int] = {}

        def initialOffset(self) -> dict[str, int]:
            return dict.fromkeys(PARTITIONS, 0)

        def latestOffset(self) -> dict[str, int]:
            for name in PARTITIONS:
                lines = len(Path(self.folder, name).read_text().splitlines())
                self.reached[name] = min(lines, self.reached.get(name, 0) + self.most)
            return dict(self.reached)

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            self.reached = dict(end)
            return [Part(name, start[name], end[name]) for name in PARTITIONS if end[name] > start[name]]

        def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
            lines = Path(self.folder, partition.name).read_text().splitlines()
            for offset in range(partition.start, partition.end):
                event = json.loads(lines[offset])
                time = datetime.fromtimestamp(event["t"], timezone.utc)
                yield partition.name, offset, time, event["k"], event["v"]

    class Ordered(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ordered"

        def schema(self) -> str:
            return "p string, o bigint, ts timestamp, k string, v double"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return Reader(dict(self.options))

    return Ordered


def write_events(folder: Path, seed: int, count: int) -> list[tuple[str, int]]:
    """Three partitions of disordered events, one far behind; returns which are late by the naive rule."""
    dice = random.Random(seed)
    late = []
    for name, behind in zip(PARTITIONS, (0, 2, 25), strict=True):
        clock, newest, lines = 1_000, None, []
        for offset in range(count):
            clock += dice.choice((0, 0, 1, 2, 5))
            time = clock - behind - dice.choice((0, 0, 0, 1, 4, 12, 40))
            late += [(name, offset)] if newest is not None and time <= newest - 3 else []
            newest = time if newest is None else max(newest, time)
            lines.append(json.dumps({"t": time, "k": dice.choice("ab"), "v": dice.random()}))
        (folder / name).write_text("\n".join(lines))
    return late


class Answer(NamedTuple):
    """Rows, as text in order; which events were late; what became of those of each source partition."""

    rows: list[str]
    late: list[tuple[str, int]]
    counts: QueryCounts


def answer(spark: SparkSession, folder: Path, pond: Path, most: int, events: int) -> Answer:
    """The answer of a run whose batches take `most` events of each partition."""
    stream = Stream(
        "tx",
        COLUMNS,
        Source("ordered", (("folder", str(folder)), ("most", str(most)))),
        Order("p", "o", PARTITIONS),
    )
    seen = {"events": 0}

    def count(epoch: Epoch) -> None:
        seen["events"] += epoch.record.counts[WHOLE_POND].get("events", 0)
        if seen["events"] >= events:
            running.stop()

    with Pond(spark, pond, on_epoch=count) as running:
        running.stream(stream)
        running.add("q", QUERY, late=Sink("memory"))
        running.run(once=False)
        running.drain()
        rows = sorted(str(tuple(row.values())) for row in running.table("q").to_pylist())
        late = running.late_rows("q").to_pylist()
        counts = running.counts()["q"]
    assert seen["events"] == events
    for row in late:
        assert list(row) == ["ts", "p", "o", "k", "v", "_watermark", "_epoch"]
        assert row["ts"] <= row["_watermark"]
    return Answer(rows, sorted((row["p"], row["o"]) for row in late), counts)


@pytest.mark.timeout(180)
def test_the_answer_is_the_same_for_any_cut(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(ordered_source())
    folder = tmp_path / "events"
    folder.mkdir()
    late = write_events(folder, 7, 90)
    found = [answer(spark, folder, tmp_path / f"pond-{most}", most, 270) for most in (20, 90)]
    assert found[0] == found[1]
    rows, written, (whole, partitions) = found[0]
    assert written == late != []
    assert len(rows) > 20
    assert whole == EventCounts(270, 270 - len(late), len(late))
    assert partitions == {
        name: EventCounts(90, 90 - lost, lost) for name in PARTITIONS for lost in [sum(at[0] == name for at in late)]
    }
