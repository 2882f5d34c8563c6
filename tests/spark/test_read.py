"""The read: one streaming frame over all streams, pruned, with what only Spark evaluates beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import utils
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from kit.costs.jvm_calls import jvm_calls
from millpond.errors import QueryTypeError, SourceError
from millpond.log.protocol import TICK
from millpond.model.endpoints import Source
from millpond.model.stream import Field, Stream
from millpond.runtime.task.column_layout import ReadLayout
from millpond.spark.frontend.frontend import FrontEnd
from millpond.spark.reading.read_frame import WantedStream, read
from millpond.spark.session.session import reading_session

ROWS = 20
POND = """
CREATE TABLE tx (id BIGINT, customer STRING, amount DOUBLE, unused STRING, ts TIMESTAMP, d DECIMAL(10,2))
USING parquet OPTIONS (path '{folder}/tx', maxFilesPerTrigger 1);
CREATE TABLE pings (at TIMESTAMP, host STRING, unused INT) USING json OPTIONS (path '{folder}/pings');
CREATE TABLE beat USING rate OPTIONS (rowsPerSecond 3);
CREATE STREAMING TABLE a AS SELECT customer, window(ts, '1 hour', '1 minute') AS w, sum(amount) AS s
  FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 1 SECOND WHERE cast(d AS double) > 2 GROUP BY ALL;
CREATE STREAMING TABLE b AS SELECT id % 3 AS r, window(ts, '1 hour') AS w, max(cast(d / (id - 5) AS double)) AS s,
  max(length(cast(d / (id - 5) AS string))) AS t
  FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 1 SECOND GROUP BY ALL;
CREATE STREAMING TABLE c AS SELECT host, window(at, '1 hour') AS w, count(*) AS n
  FROM STREAM pings WATERMARK at DELAY OF INTERVAL 1 SECOND GROUP BY ALL;
CREATE STREAMING TABLE e AS SELECT window(timestamp, '1 hour') AS w, count(*) AS n
  FROM STREAM beat WATERMARK timestamp DELAY OF INTERVAL 1 SECOND GROUP BY ALL;
"""


class Ran:
    """What one run of a read gave: its rows, its layout, its physical plan."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.front = FrontEnd(spark)
        queries = self.front.load_file(POND.format(folder=folder))
        self.frame, self.layout = read(reading_session(spark), self.front.wanted(queries))
        self.rows: list[Row] = []
        self.plans: list[str] = []
        self.sources = ""
        stream = self.frame.writeStream.foreachBatch(self._take)
        running = stream.option("checkpointLocation", str(folder / "checkpoint")).start()
        try:
            while not (self.of("tx") and self.of("pings") and self.of("beat")):
                assert running.exception() is None
                running.awaitTermination(0.2)
        finally:
            running.stop()
        self.sources = (folder / "checkpoint" / "offsets" / "0").read_text()

    def _take(self, batch: DataFrame, number: int) -> None:
        self.rows += batch.collect()
        [running] = self.frame.sparkSession.streams.active
        last = running._jsq.streamingQuery().lastExecution()
        self.plans.append(str(last.executedPlan().toString()))

    def of(self, name: str) -> list[dict[str, object]]:
        """The rows of a stream, by the names its expressions use."""
        names = [stream.name for stream in self.layout.streams]
        columns = self.layout.streams[names.index(name)].columns
        mine = [row for row in self.rows if row[0] == names.index(name)]
        return [{column.name: row[column.position] for column in columns} for row in mine]


@pytest.fixture
def reading(spark: SparkSession) -> SparkSession:
    return reading_session(spark)


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    folder = tmp_path_factory.mktemp("streams")
    events = spark.range(ROWS).selectExpr(
        "id", "concat('c', id % 3) AS customer", "id * 0.5D AS amount", "'x' AS unused",
        "timestamp_seconds(id) AS ts", "cast(id AS decimal(10,2)) AS d",
    )  # fmt: skip
    events.coalesce(1).write.parquet(str(folder / "tx"))
    pings = spark.range(3).selectExpr("timestamp_seconds(id) AS at", "concat('h', id) AS host", "1 AS unused")
    pings.coalesce(1).write.json(str(folder / "pings"))
    yield Ran(spark, folder)


def test_every_stream_comes_with_its_own_columns(ran: Ran) -> None:
    assert [stream.name for stream in ran.layout.streams] == ["tx", "pings", "beat"]
    assert sorted(str(row["host"]) for row in ran.of("pings")) == ["h0", "h1", "h2"]
    assert len(ran.of("tx")) == ROWS
    assert {row["timestamp"] is None for row in ran.of("beat")} == {False}


def test_pyspark_notes_no_place_in_python_for_columns_of_the_read(
    reading: SparkSession, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utils, "_enable_debugging_cache", True)
    for name in ("tx", "pings"):
        (tmp_path / name).mkdir()
    front = FrontEnd(spark)
    wanted = front.wanted(front.load_file(POND.format(folder=tmp_path)))
    with jvm_calls() as sent:
        read(reading, wanted)
        during = len(sent)
        F.lit(1).isNull()
    assert not [command for command in sent[:during] if "PySparkCurrentOrigin" in command]
    assert [command for command in sent[during:] if "PySparkCurrentOrigin" in command], "programs get their places"


def test_columns_of_other_streams_are_null(ran: Ran) -> None:
    for row in ran.rows:
        for index, stream in enumerate(ran.layout.streams):
            if index != row[0]:
                assert all(row[column.position] is None for column in stream.columns)


def test_a_tick_has_no_row_and_no_place_in_the_plan(ran: Ran) -> None:
    assert {int(row[0]) for row in ran.rows} == {0, 1, 2}
    rates = [plan.count("RateStream") for plan in ran.plans]
    assert max(rates) == 1  # that of the stream `beat`


def test_what_raises_is_null_and_nothing_else(ran: Ran) -> None:
    """Two expressions share what raises: computed once for both, it would stand outside of either's TryEval."""
    by_sql = {projected.value.sql: projected.value.name for projected in ran.front.foreigns.values()}
    names = [name for sql, name in by_sql.items() if "(d / " in sql]
    assert len(names) == 2
    for row in ran.of("tx"):
        for name in names:
            assert (row[name] is None) == (row["id"] == 5)
            assert row[name] is None or isinstance(row[name], Row)


def test_a_layout_has_names_positions_and_types(ran: Ran) -> None:
    tx = ran.layout.streams[0].columns
    assert [(column.name, column.type) for column in tx if not column.foreign] == [
        ("id", "bigint"),
        ("customer", "string"),
        ("amount", "double"),
        ("ts", "timestamp"),
        ("d", "decimal(10,2)"),
    ]
    assert all(re.fullmatch("x_[0-9a-f]{16}", column.name) for column in tx if column.foreign)
    assert sorted(column.type for column in tx if column.foreign) == ["decimal(31,23)", "string"]
    positions = [column.position for stream in ran.layout.streams for column in stream.columns]
    assert positions == list(range(1, len(ran.frame.columns)))


def test_the_scan_reads_only_needed_columns(ran: Ran) -> None:
    """In the plan that ran: pruning must happen before `writeStream`."""
    scans = [line for line in ran.plans[0].splitlines() if "FileScan" in line]
    columns = [re.sub(r"#\d+L?", "", line.split("[")[1].split("]")[0]).split(",") for line in scans]
    assert columns == [["id", "customer", "amount", "ts", "d"], ["at", "host"]]


def test_sources_are_known_by_name(ran: Ran) -> None:
    for name in ("tx", "pings", "beat", TICK):
        assert f"\n{name}:" in ran.sources


def test_a_read_without_streams_or_tick(reading: SparkSession) -> None:
    frame, layout = read(reading, ())
    assert frame.columns == ["stream"]
    assert layout == ReadLayout(())
    with pytest.raises(QueryTypeError, match="nothing to read"):
        read(reading, (), tick=False)


def test_unreadable_sources_are_reported(reading: SparkSession, tmp_path: Path) -> None:
    columns = (Field("a", "int"),)
    nowhere = Stream("nowhere", columns, Source("parquet", (("path", str(tmp_path / "no")),)))
    with pytest.raises(SourceError, match="nowhere"):
        read(reading, [WantedStream(nowhere, ("a",))])
    with pytest.raises(QueryTypeError, match="no source"):
        read(reading, [WantedStream(Stream("bare", columns), ("a",))])
    empty = Stream("empty", columns, Source("parquet", (("path", str(tmp_path)),)))
    with pytest.raises(QueryTypeError, match="no column b"):
        read(reading, [WantedStream(empty, ("b",))])
