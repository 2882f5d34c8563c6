"""Kafka as a source, with a real broker: the order of offsets decides, not Spark's batches; gaps and growth."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kit.programs.forked_program import run_forked
from kit.programs.shared_java import joining
from kit.servers.kafka_server import KafkaServer
from kit.servers.servers import until
from millpond import Pond
from millpond.connections import VARIABLE
from millpond.control.commands.run import INCOMPLETE
from millpond.errors import GoneError, OffsetGapError, QueryTypeError, SourceError, UnsupportedQuery
from millpond.model.endpoints import Source
from millpond.model.stream import Field, Stream
from millpond.runtime.gather.dead_letters import records_between
from millpond.runtime.scheduling import epoch_size
from millpond.spark.driver.epochs import Epoch
from millpond.spark.reading import kafka_source

TABLE = """
    CREATE TABLE tx (id BIGINT, ts TIMESTAMP, k STRING, v BIGINT) USING kafka
    OPTIONS (subscribe '{topic}', format 'json', startingOffsets 'earliest'{more}) {properties};
"""
QUERY = """
    SELECT k, window(ts, '20 seconds', '10 seconds') AS w, count(*) AS n, sum(v) AS total
    FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 3 SECONDS GROUP BY ALL
"""
PARTITIONS = 3
START = 1_700_000_000


def events(seed: int, count: int) -> list[tuple[int, int, str, int]]:
    """(partition, seconds, key, value): three clocks, one far behind, each with its own disorder."""
    dice = random.Random(seed)
    clocks = [START, START - 2, START - 25]
    found = []
    for number in range(count):
        partition = number % PARTITIONS
        clocks[partition] += dice.choice((0, 0, 1, 2, 5))
        found.append((partition, clocks[partition] - dice.choice((0, 0, 0, 1, 4, 12, 40)), dice.choice("ab"), number))
    return found


def accepted(all_events: list[tuple[int, int, str, int]], delay: int = 3) -> list[tuple[int, int, str, int]]:
    """The naive rule: late is what is not above the newest before it in its own partition, minus the delay."""
    newest: dict[int, int] = {}
    found = []
    for event in all_events:
        partition, seconds, *_ = event
        if partition not in newest or seconds > newest[partition] - delay:
            found.append(event)
        newest[partition] = max(seconds, newest.get(partition, seconds))
    return found


def windows(taken: list[tuple[int, int, str, int]]) -> list[tuple[str, int, int, int]]:
    """What the query answers: (key, start, count, total)."""
    cells: dict[tuple[str, int], list[int]] = {}
    for _, seconds, key, value in taken:
        for start in (seconds // 10 * 10 - 10, seconds // 10 * 10):
            cells.setdefault((key, start), []).append(value)
    return sorted((key, start, len(values), sum(values)) for (key, start), values in cells.items())


def value_of(seconds: int, key: str, value: int) -> bytes:
    time = datetime.fromtimestamp(seconds, timezone.utc).isoformat()
    return json.dumps({"id": value, "ts": time, "k": key, "v": value, "more": [1]}).encode()


def records(some: list[tuple[int, int, str, int]]) -> Iterator[tuple[int, bytes, bytes]]:
    for partition, seconds, key, value in some:
        yield partition, key.encode(), value_of(seconds, key, value)


def rows_of(pond: Pond, query: str = "q") -> list[tuple[str, int, int, int]]:
    rows = pond.table(query).to_pylist()
    return sorted((row["k"], int(row["w"]["start"].timestamp()), row["n"], row["total"]) for row in rows)


@pytest.fixture
def topic(kafka_connected: KafkaServer) -> str:
    """A new topic of three partitions, on the only connection."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    kafka_connected.create(name, PARTITIONS)
    return name


def load(pond: Pond, topic: str, more: str = "", properties: str = "") -> None:
    pond.load(TABLE.format(topic=topic, more=more, properties=properties))
    pond.add("q", QUERY)


def test_the_answer_is_that_of_the_offsets_for_any_cut(
    spark: SparkSession, kafka_server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    given = events(3, 600)
    kafka_server.produce(topic, records(given))
    late = len(given) - len(accepted(given))
    assert late > 20
    for most in (150, 1000):
        with Pond(spark, tmp_path / f"pond-{most}") as pond:
            load(pond, topic, f", maxOffsetsPerTrigger {most}")
            pond.add("above", "SELECT k, w, n, total FROM STREAM q WHERE n > 0")
            with pytest.raises(QueryTypeError, match=r"No stream 'tx2' is declared\. Did you mean tx"):
                pond.stream("tx2")
            windowed = pond.stream("tx").withWatermark("ts", "3 seconds").groupBy(
                "k", F.window("ts", "20 seconds", "10 seconds").alias("w")
            )  # fmt: skip
            pond.add("frame", windowed.agg(F.count("*").alias("n"), F.sum("v").alias("total")))
            pond.run(drain=True)
            assert rows_of(pond, "above") == rows_of(pond) == rows_of(pond, "frame") == windows(accepted(given))
            whole, partitions = pond.counts()["q"]
        assert (whole.read, whole.late, whole.dead) == (600, late, 0)
        assert {name: counts.read for name, counts in partitions.items()} == {
            f"{topic}-{number}": 200 for number in range(PARTITIONS)
        }
    # Spark has loaded the connector by now
    options = {"kafka.bootstrap.servers": kafka_server.servers, "subscribe": topic}
    plain = spark.readStream.format("kafka").options(**options).load()
    with Pond(spark, tmp_path / "pond") as pond, pytest.raises(UnsupportedQuery, match="names its broker") as error:
        pond.add("plain", plain.selectExpr("CAST(value AS STRING) AS v"))
    assert "USING kafka" in error.value.cure and "pond.stream" in error.value.cure


def test_rows_go_from_kafka_to_kafka(
    spark: SparkSession, kafka_server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    given = events(9, 200)
    kafka_server.produce(topic, records(given))
    kafka_server.create(f"{topic}-out", 2)
    columns = tuple(Field(*pair) for pair in (("ts", "timestamp"), ("k", "string"), ("v", "bigint")))
    options = (("format", "json"), ("startingOffsets", "earliest"), ("subscribe", topic))
    with Pond(spark, tmp_path / "pond") as pond:
        load(pond, topic, ", maxOffsetsPerTrigger 60")
        pond.load(f"CREATE STREAMING TABLE out USING kafka TBLPROPERTIES ('topic' = '{topic}-out') AS {QUERY};")
        same = pond.stream(Stream("same", columns, Source("kafka", options)))
        window = F.window("ts", "20 seconds", "10 seconds").alias("w")
        frame = same.withWatermark("ts", "3 seconds").groupBy("k", window)
        pond.add("frame", frame.agg(F.count("*").alias("n"), F.sum("v").alias("total")))
        pond.run(drain=True)
        assert rows_of(pond) == rows_of(pond, "frame") == windows(accepted(given))
    found = [json.loads(message.value or b"") for message in kafka_server.read(f"{topic}-out")]
    starts = [int(datetime.fromisoformat(row["w"]["start"].replace("Z", "+00:00")).timestamp()) for row in found]
    rows = [(row["k"], start, row["n"], row["total"]) for row, start in zip(found, starts, strict=True)]
    assert sorted(rows) == windows(accepted(given))


def test_a_cluster_with_tls_and_passwords_is_reached_by_its_name(
    spark: SparkSession, kafka_server: KafkaServer, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = kafka_server.secured | {"user": "nobody"}
    known = {"open": {"servers": kafka_server.servers}, "secured": kafka_server.secured, "wrong": wrong}
    (tmp_path / "connections.json").write_text(json.dumps(known))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "connections.json"))
    given = events(10, 60)
    kafka_server.produce(topic, records(given))
    kafka_server.create(f"{topic}-out", 1)
    with Pond(spark, tmp_path / "pond") as pond:
        load(pond, topic, ", connection 'secured'")
        pond.load(
            "CREATE STREAMING TABLE out USING kafka"
            f" TBLPROPERTIES ('topic' = '{topic}-out', 'connection' = 'secured') AS SELECT v FROM STREAM tx;"
        )
        pond.run(drain=True)
        assert rows_of(pond) == windows(accepted(given))
    with Pond(spark, tmp_path / "refused") as pond:
        load(pond, topic, ", connection 'wrong'")
        with pytest.raises(SourceError, match=r"Kafka refuses its reader: SaslAuthenticationException"):
            pond.run()
    found = [json.loads(message.value or b"")["v"] for message in kafka_server.read(f"{topic}-out")]
    assert sorted(found) == [value for *_, value in given]
    secured = kafka_server.secured
    assert secured["password"]["file"] and secured["servers"] not in "".join(
        path.read_text(errors="ignore") for path in (tmp_path / "pond" / "log").rglob("*") if path.is_file()
    )


def test_what_retention_deleted_is_a_gap_until_one_continues_without_it(
    spark: SparkSession, kafka_server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    given = events(5, 300)
    kafka_server.produce(topic, records(given[:90]))
    with Pond(spark, tmp_path / "pond") as pond:
        load(pond, topic)
        pond.run()
    kafka_server.produce(topic, records(given[90:]))
    kafka_server.delete_before(topic, 1, 50)
    with Pond(spark, tmp_path / "pond") as pond:
        load(pond, topic)
        with pytest.raises(OffsetGapError, match=r"retention.*failOnDataLoss 'false'"):
            pond.run()
    with Pond(spark, tmp_path / "pond") as pond:
        load(pond, topic, ", failOnDataLoss false, maxOffsetsPerTrigger 50")
        pond.run(drain=True)
        assert pond.counts()["q"].whole.read == 300 - 90 - 20
        left = [event for n, event in enumerate(given) if n < 90 or event[0] != 1 or n // PARTITIONS >= 50]
        expected = {(row[0], row[1]): row for row in windows(accepted(left))}
        assert all(expected[row[0], row[1]] == row for row in rows_of(pond))  # rows of the first run ended with it


def test_epochs_read_as_much_as_they_have_time_for(
    spark: SparkSession, kafka_server: KafkaServer, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_size, "FIRST", 120)
    given, read = events(8, 9000), []
    kafka_server.produce(topic, records(given))
    with Pond(spark, tmp_path / "pond", on_epoch=lambda epoch: read.append(epoch.record)) as pond:
        load(pond, topic, ", epochTarget '600'")
        pond.run(drain=True)
        assert rows_of(pond) == windows(accepted(given))
        assert pond.counts()["q"].whole.read == len(given)
    sizes = [size for record in read if (size := records_between(record.start, record.end, "tx"))]
    # no epoch was ever near its time, so limits grow to the least one, and then eightfold
    assert 100 <= sizes[0] <= 120 and 100 <= sizes[1] <= 120
    assert 900 <= sizes[2] <= epoch_size.LEAST and sizes[3] > 6000


def test_new_partitions_are_read_from_their_beginning(
    spark: SparkSession, kafka_server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    kafka_server.produce(topic, records(events(5, 30)))
    with Pond(spark, tmp_path / "pond") as pond:
        load(pond, topic, properties="TBLPROPERTIES ('max_ahead' = 'none')")
        pond.run()
        kafka_server.widen(topic, PARTITIONS + 1)
        kafka_server.produce(topic, records([(PARTITIONS, START + second, "c", 1) for second in range(5)]))
        pond.run(drain=True)
        assert pond.counts()["q"].partitions[f"{topic}-{PARTITIONS}"].applied == 5
        assert [row for row in rows_of(pond) if row[0] == "c"] == windows(
            [(PARTITIONS, START + second, "c", 1) for second in range(5)]
        )


@pytest.mark.slow
def test_a_driver_that_is_killed_loses_and_repeats_nothing(
    spark: SparkSession, kafka_server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    """Two drivers are killed, and a third one goes on; their Java machine is that of the tests."""
    given = events(11, 400)
    kafka_server.produce(topic, records(given))
    select = f"CREATE STREAMING TABLE q USING json TBLPROPERTIES ('path' = '{tmp_path}/out') AS {QUERY};"
    file = tmp_path / "pond.sql"
    file.write_text(TABLE.format(topic=topic, more=", maxOffsetsPerTrigger 60", properties="") + select)
    (tmp_path / "faults").mkdir()
    words = ["run", str(file), "--once", "--drain", "--instances", "2"]
    faults = "commit.before_append:2:kill,commit.after_append:3:kill"
    environment = os.environ | {"MILLPOND_FAULT": faults, "MILLPOND_FAULT_DIR": str(tmp_path / "faults")}
    program = Path(__file__).with_name("joined_session.py")
    *killed, done = (run_forked([program, *words], env=environment | joining(spark)) for _ in range(3))
    assert [one.returncode for one in killed] == [-signal.SIGKILL] * 2, [one.stderr for one in killed]
    assert done.returncode in (0, INCOMPLETE), done.stderr  # whether it reads late events depends on the cut
    assert len(list((tmp_path / "faults").glob("*.kill"))) == 2
    lines = [json.loads(line) for path in (tmp_path / "out").glob("*.json") for line in path.read_text().splitlines()]
    rows = [(row["k"], int(datetime.fromisoformat(row["w"]["start"].replace("Z", "+00:00")).timestamp()), row["n"],
             row["total"]) for row in lines]  # fmt: skip
    assert sorted(rows) == windows(accepted(given))


def test_a_query_that_comes_later_is_backfilled_from_the_offsets_that_were_read(
    spark: SparkSession, kafka_server: KafkaServer, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, read = events(3, 600), []
    kafka_server.produce(topic, records(given))
    kafka_server.produce(topic, [(0, b"b", b"no JSON")])
    monkeypatch.setattr(kafka_source, "PORTION_RECORDS", 150)

    def add(epoch: Epoch) -> None:
        read.append(epoch.record)
        if len(read) == 5:
            pond.add("later", QUERY, backfill=True)

    with Pond(spark, tmp_path / "pond", on_epoch=add) as pond:
        load(pond, topic, ", maxOffsetsPerTrigger 70", "TBLPROPERTIES ('malformed' = 'drop')")
        pond.run(drain=True)
        assert not pond.refused
        assert rows_of(pond, "later") == rows_of(pond) == windows(accepted(given))
    shutil.rmtree(tmp_path / "pond" / "spark")  # as on another host
    before = len(read)
    with Pond(spark, tmp_path / "pond", on_epoch=lambda epoch: read.append(epoch.record)) as pond:
        pond.run()
        assert len(read) == before, "everything was read before"
        assert pond.price_of("add", "again", QUERY, backfill=True).source.records == 601
        kafka_server.delete_before(topic, 1, 50)
        with pytest.raises(GoneError, match="no longer has all the input that was read"):
            pond.add("again", QUERY, backfill=True)
        assert {query.name for query in pond.queries} == {"q", "later"}


def test_a_query_that_reads_more_takes_over_where_the_offsets_are(
    spark: SparkSession, kafka_server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    """Another query of Spark's begins with each, beside an epoch; no record is lost, and none comes twice."""
    given = events(5, 600)
    kafka_server.produce(topic, records(given[:200]))
    with Pond(spark, tmp_path / "pond") as pond, ThreadPoolExecutor(1) as running:
        load(pond, topic)
        run = running.submit(pond.run, once=False)
        until(lambda: "q" in pond.counts() and pond.counts()["q"][0].read == 200, "the pond has come so far", 240)
        pond.add("newest", QUERY.replace("sum(v)", "max(id)"))
        kafka_server.produce(topic, records(given[200:]))
        until(lambda: [counts.read for counts, _ in pond.counts().values()] == [600, 400], "all is read", 240)
        pond.stop()
        assert run.result(60) is False
        assert [*(tmp_path / "pond" / "spark").glob("*-000001")]
        pond.drain()
        assert rows_of(pond) == windows(accepted(given))
        newest = {(key, start): (count, total) for key, start, count, total in rows_of(pond, "newest")}
        cells = {(key, start): count for key, start, count, _ in windows(accepted(given))}
        since = min(start for _, start in newest)
        assert {place: count for place, (count, _) in newest.items()} == {
            (key, start): count for (key, start), count in cells.items() if start >= since
        }
