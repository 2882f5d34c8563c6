"""A topic partitioned by a key, on a real broker: with and without the shuffle, every row is the same."""

from __future__ import annotations

import json
import os
import random
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from kit.naive.placement import partition_of
from kit.programs.forked_program import run_forked
from kit.servers.kafka_server import KafkaServer
from kit.servers.servers import until
from millpond import Pond
from millpond.control.commands.run import INCOMPLETE
from millpond.errors import ChangeRefused, ForeignPondError, QueryRefused, QueryTypeError
from millpond.plan.explain.plan_text import explain
from millpond.runtime.task.counters import WHOLE_POND
from millpond.spark.driver.epochs import Epoch

TABLE = """
    CREATE TABLE tx (id BIGINT, ts TIMESTAMP, k STRING, v BIGINT) USING kafka
    OPTIONS (subscribe '{topic}', format 'csv', startingOffsets 'earliest', maxOffsetsPerTrigger 120) {by};
"""
QUERIES = {
    "sums": """SELECT k, window(ts, '20 seconds', '10 seconds') AS w, count(*) AS n, sum(v) AS total
               FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 3 SECONDS GROUP BY ALL""",
    "pairs": """SELECT k, v % 3 AS third, session_window(ts, '5 seconds') AS w, max(v) AS most
                FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 3 SECONDS GROUP BY ALL""",
    "all": """SELECT window(ts, '10 seconds') AS w, count(*) AS n
              FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 3 SECONDS GROUP BY ALL""",
    "steps": """SELECT window(w, '20 seconds') AS w, count(*) AS n, max(most) AS most
                FROM (SELECT k, window(ts, '10 seconds') AS w, max(v) AS most
                      FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 3 SECONDS GROUP BY ALL) GROUP BY ALL""",
    "large": "SELECT k, v FROM STREAM tx WHERE v > 900",
}
Events = list[tuple[str, bytes]]


def events(seed: int, start: int, count: int, keys: int = 20) -> Events:
    """Key and value, a second apart, some of them late."""
    dice = random.Random(seed)
    found = []
    for number in range(start, start + count):
        seconds = max(number // 4 - dice.choice((0, 0, 0, 2, 9)), 0)
        key, time = f"c{dice.randrange(keys)}", f"2023-11-14 22:{seconds // 60:02}:{seconds % 60:02}"
        found.append((key, f"{number},{time},{key},{dice.randrange(1000)}".encode()))
    return found


def produce(server: KafkaServer, topic: str, some: Events) -> None:
    """As Kafka's producers in Java choose partitions."""
    producer = Producer(server.client(partitioner="murmur2_random"))
    for key, value in some:
        producer.produce(topic, value, key.encode())
    assert producer.flush(60) == 0


class Ponds:
    """Two ponds over one topic: one declares that it is partitioned by `k`, the other does not."""

    def __init__(
        self, spark: SparkSession, topic: str, folder: Path, queries: Mapping[str, str] = MappingProxyType(QUERIES)
    ) -> None:
        self.queries = queries
        self.counts: dict[str, list[dict[str, int]]] = {"PARTITIONED BY (k)": [], "": []}
        self.ponds = {by: self._pond(spark, topic, folder / f"pond{len(by)}", by) for by in self.counts}

    def _pond(self, spark: SparkSession, topic: str, folder: Path, by: str) -> Pond:
        counts = self.counts[by]
        pond = Pond(spark, folder, instances=2, on_epoch=lambda done: counts.append(done.record.counts[WHOLE_POND]))
        pond.load(TABLE.format(topic=topic, by=by))
        for name, text in self.queries.items():
            pond.add(name, text)
        return pond

    def run(self, drain: bool = False) -> tuple[int, int]:
        """Run both, compare every row; how many epochs of the first were direct, and how many read something."""
        for pond in self.ponds.values():
            pond.run(drain=drain)
        keyed, plain = ({name: rows_of(pond, name) for name in self.queries} for pond in self.ponds.values())
        assert keyed == plain and (not drain or all(keyed.values()))
        rows = self.counts["PARTITIONED BY (k)"]
        found = sum("direct" in one for one in rows), sum("events" in one for one in rows)
        assert not any("direct" in one for one in self.counts[""])
        rows.clear()
        return found

    @property
    def note(self) -> str:
        """What the first says of the shuffle."""
        found = [one.note for one in self.ponds["PARTITIONED BY (k)"].status() if one.name == "shuffle"]
        return found[0] or ""

    def close(self) -> None:
        for pond in self.ponds.values():
            pond.close()


def rows_of(pond: Pond, query: str) -> Sequence[str]:
    return sorted(map(repr, pond.table(query).to_pylist()))


@pytest.fixture
def topic(kafka_connected: KafkaServer) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    kafka_connected.create(name, 2)
    return name


def test_the_partitioner_is_that_of_kafka(kafka_server: KafkaServer, topic: str) -> None:
    produce(kafka_server, topic, events(1, 0, 300, 200))
    found = {(message.key or b"", message.partition) for message in kafka_server.read(topic)}
    assert len(found) > 100
    assert found == {(key, partition_of(key, 2)) for key, _ in found}


def test_without_the_shuffle_every_row_is_the_same(
    spark: SparkSession, kafka_server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    given = events(5, 0, 800)
    produce(kafka_server, topic, given[:400])
    ponds = Ponds(spark, topic, tmp_path)
    skipped, read = ponds.run()
    assert skipped == read >= 3
    # two records that a producer with another partitioner has written
    strays = [(1 - partition_of(key.encode(), 2), key.encode(), value) for key, value in given[400:402]]
    kafka_server.produce(topic, strays)
    skipped, read = ponds.run()
    assert skipped == read == 1
    assert "2 keys were in another partition of the topic than their hash says" in ponds.note
    # keys of one partition only: the other has no records, and Spark makes no task for it
    produce(kafka_server, topic, [(key, value) for key, value in given[402:600] if partition_of(key.encode(), 2)])
    skipped, read = ponds.run()
    assert skipped == read >= 1
    produce(kafka_server, topic, given[600:])
    assert ponds.run(drain=True)[0] >= 1
    ponds.close()


def test_derived_streams_of_a_keyed_topic_need_no_shuffle(
    spark: SparkSession, kafka_server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    spark.createDataFrame([(f"c{n}", n) for n in range(15)], "name string, rank int").createOrReplaceTempView("ranks")
    grouped = "SELECT k, window(t, '20 seconds') AS w, count(*) AS n, sum(v) AS s FROM (SELECT {}) WATERMARK t DELAY"
    queries = {
        name: f"{grouped.format(select)} OF INTERVAL 3 SECONDS GROUP BY k, window(t, '20 seconds')"
        for name, select in {
            "timed": "k, v, ts + INTERVAL 1 SECOND AS t FROM STREAM tx",
            "each": "k, e AS v, ts AS t FROM STREAM tx LATERAL VIEW explode(array(v, 1)) AS e",
            "ranked": "k, v + rank AS v, ts AS t FROM STREAM tx JOIN ranks ON k = name",
            "both": "k, v, ts AS t FROM STREAM tx UNION ALL SELECT k, v + 1, ts FROM STREAM tx WHERE v > 500",
        }.items()
    }
    given = events(7, 0, 360)
    produce(kafka_server, topic, given[:240])
    ponds = Ponds(spark, topic, tmp_path, queries)
    skipped, read = ponds.run()
    assert skipped == read >= 2
    assert "keys were in another partition" not in ponds.note
    assert [group.spread_by for group in ponds.ponds["PARTITIONED BY (k)"].plan.groups] == [0] * 4
    produce(kafka_server, topic, given[240:])
    assert ponds.run(drain=True)[0] >= 1
    ponds.close()


def test_partitions_that_are_added_move_buckets(
    spark: SparkSession, kafka_connected: KafkaServer, tmp_path: Path
) -> None:
    topic, given = f"t-{uuid.uuid4().hex[:8]}", events(8, 0, 360)
    kafka_connected.create(topic, 1)
    produce(kafka_connected, topic, given[:120])
    ponds = Ponds(spark, topic, tmp_path)
    skipped, read = ponds.run()
    assert skipped == read >= 1
    kafka_connected.widen(topic, 2)
    produce(kafka_connected, topic, given[120:240])
    assert ponds.run()[0] >= 1
    assert "each of 2 instances has the keys of one of 2 partitions" in str(
        [change.change for change in ponds.ponds["PARTITIONED BY (k)"].manifest().changes]
    )
    kafka_connected.widen(topic, 4)
    produce(kafka_connected, topic, given[240:])
    assert ponds.run(drain=True)[0] == 0
    assert ponds.note.endswith("not in the last, as 4 partitions, and only 2 instances")
    ponds.close()


def test_epochs_with_a_tick_need_no_shuffle(
    spark: SparkSession, kafka_server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    given = events(4, 0, 800)
    found = rows_as_events_come(spark, kafka_server, topic, tmp_path / "keyed", given)
    with Pond(spark, tmp_path / "plain", instances=2) as plain:
        plain.load(TABLE.format(topic=topic, by=""))
        plain.add("sums", QUERIES["sums"])
        plain.run(drain=True)
        assert found == rows_of(plain, "sums")


def rows_as_events_come(
    spark: SparkSession, server: KafkaServer, topic: str, folder: Path, given: Events
) -> Sequence[str]:
    """The rows of `sums` if events come while the pond runs, over some seconds."""
    epochs = list[dict[str, int]]()
    produce(server, topic, given[:200])

    def committed(done: Epoch) -> None:
        epochs.append(done.record.counts[WHOLE_POND])

    def read(count: int) -> None:
        until(lambda: sum(one.get("events", 0) for one in epochs) == count, f"{count} events are read", 120)

    with Pond(spark, folder, instances=2, on_epoch=committed) as pond:
        pond.load(TABLE.format(topic=topic, by="PARTITIONED BY (k)"))
        pond.add("sums", QUERIES["sums"])
        running = threading.Thread(target=lambda: pond.run(once=False))
        running.start()
        read(200)
        done = 200
        for start in range(200, 800, 200):  # over some seconds: some batches have a tick, some none
            for place in (0, 1):  # and some have records of one partition only
                some = [one for one in given[start : start + 200] if partition_of(one[0].encode(), 2) == place]
                produce(server, topic, some)
                done += len(some)
                read(done)
        pond.stop()
        running.join()
        direct = ["direct" in one for one in epochs if one.get("events")]
        assert all(direct[1:]), direct
        pond.drain()
        return rows_of(pond, "sums")


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["direct.gathered:2:kill", pytest.param("direct.sent:3:kill", marks=pytest.mark.exhaustive)]
)
def test_a_killed_worker_ends_the_others_and_costs_no_row(
    spark: SparkSession, kafka_server: KafkaServer, topic: str, tmp_path: Path, fault: str
) -> None:
    """Spark ends the stage without a retry, in spite of its settings: the epoch goes through the shuffle.

    A worker that is killed in a later epoch costs a retry of its task only.
    """
    given = events(6, 0, 500)
    produce(kafka_server, topic, given)
    select = f"CREATE STREAMING TABLE q USING json TBLPROPERTIES ('path' = '{tmp_path}/out') AS {QUERIES['sums']};"
    file, faults, retried = tmp_path / "pond.sql", tmp_path / "faults", "fold.before_delta:7:kill"
    file.write_text(TABLE.format(topic=topic, by="PARTITIONED BY (k)") + select)
    faults.mkdir()
    environ = os.environ | {"MILLPOND_FAULT": f"{fault},{retried}", "MILLPOND_FAULT_DIR": str(faults)}
    words = ["-m", "millpond", "run", file, "--once", "--drain", "--instances", "2", "--master", "local[2,4]"]
    done = run_forked(words, env=environ, text=True, timeout=240)
    assert done.returncode == INCOMPLETE, done.stderr  # a fifth of the events is late
    assert {path.name for path in faults.glob("*.kill")} == {one.replace(":", ".") for one in (fault, retried)}
    # one epoch was direct before, and after it the shuffle is kept to for a while
    assert (faults / "direct.gathered").stat().st_size == 2 * (1 + int(fault.startswith("direct.sent")))
    assert not list((tmp_path / "pond").glob("**/*-message-*"))
    lines = [json.loads(line) for path in (tmp_path / "out").glob("*.json") for line in path.read_text().splitlines()]
    with Pond(spark, tmp_path / "plain", instances=2) as plain:
        plain.load(TABLE.format(topic=topic, by=""))
        plain.add("q", QUERIES["sums"])
        plain.run(drain=True)
        expected = plain.table("q").to_pylist()
    assert sorted((row["k"], row["n"], row["total"]) for row in lines) == sorted(
        (row["k"], row["n"], row["total"]) for row in expected
    )


def test_events_of_an_unkeyed_topic_go_through_the_shuffle(
    spark: SparkSession, kafka_server: KafkaServer, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(kafka_server, topic, events(5, 0, 200))
    monkeypatch.setattr("millpond.spark.driver.direct_epochs.message_bytes", lambda _tasks: 100)
    ponds = Ponds(spark, topic, tmp_path)
    assert ponds.run(drain=True)[0] == 0
    assert "bytes for instances of others, which is more than 100" in ponds.note
    ponds.close()


def test_served_rows_are_found_and_declarations_are_checked(
    spark: SparkSession, kafka_server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    given = events(2, 0, 300)
    produce(kafka_server, topic, given)
    text = TABLE.format(topic=topic, by="PARTITIONED BY (k)")
    with Pond(spark, tmp_path / "pond", instances=2) as pond:
        pond.load(text)
        pond.add("last", QUERIES["sums"], serve=True)
        pond.run(drain=True)
        for key in {key for key, _ in given}:
            assert pond.lookup("last", key).document is not None
        text = explain(pond.plan, pond.streams)
        assert "partitioned by k" in text
    plain = Pond(spark, tmp_path / "pond", instances=2)
    plain.load(TABLE.format(topic=topic, by=""))
    plain.add("last", QUERIES["sums"], serve=True)
    with pytest.raises((ForeignPondError, ChangeRefused), match="another declaration of stream tx"):
        plain.open()
    wrong = {"PARTITIONED BY (ts)": QueryTypeError, "PARTITIONED BY (k, id)": QueryRefused}
    wrong |= {"PARTITIONED BY (bucket(4, k))": QueryRefused}
    for by, error in wrong.items():
        with pytest.raises(error, match=r"(?i)partitioned"):
            Pond(spark, tmp_path / "wrong").load(TABLE.format(topic=topic, by=by))
