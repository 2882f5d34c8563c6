"""Kafka records that do not parse are counted for every query, stored with their bytes, or end the run."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from kit.servers.kafka_server import KafkaServer
from millpond import Pond
from millpond.control.diagnose.dead_letters import lines
from millpond.control.pond.event_totals import EventCounts
from millpond.errors import QueryTypeError, SourceError
from millpond.log.records import EpochRecord
from millpond.model.endpoints import Sink
from millpond.runtime.task.counters import WHOLE_POND, stream_counts

TABLE = """
    CREATE TABLE {name} (ts TIMESTAMP, k STRING, v BIGINT) USING kafka
    OPTIONS (subscribe '{topic}', format '{format}', startingOffsets 'earliest', maxOffsetsPerTrigger 7)
    TBLPROPERTIES ({properties});
"""
SUM = """
    SELECT k, window(ts, '1 hour') AS w, sum(v) AS total
    FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 1 HOUR GROUP BY ALL
"""
GOOD = [b'{"ts": "2024-01-01T00:00:%02dZ", "k": "a", "v": %d}' % (n, n) for n in range(10)]
BAD = [b"{not json", b'{"ts": "2024-01-01T00:00:00Z", "k": "a", "v": "many"}', None, b"\xff\xfe\x00", b"", b"7"]


@pytest.fixture
def topic(kafka_connected: KafkaServer) -> str:
    """Two partitions of good records and bad ones in turn."""
    name = f"d-{uuid.uuid4().hex[:8]}"
    kafka_connected.create(name, 2)
    mixed = [value for pair in zip(GOOD, [*BAD, *[None] * 4], strict=True) for value in pair][: 2 * len(BAD)]
    kafka_connected.produce(name, [(0, b"key", value) for value in mixed])
    kafka_connected.produce(name, [(1, None, value) for value in GOOD[len(BAD) :]])
    return name


def test_dead_letters_are_kept_with_their_bytes_and_counted_for_each_query(
    spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(TABLE.format(name="tx", topic=topic, format="json", properties=f"'dead.path' = '{tmp_path}/dead'"))
        pond.add("total", SUM)
        pond.add("every", "SELECT k, v FROM STREAM tx")
        pond.add("each", "SELECT k, e FROM STREAM tx LATERAL VIEW explode(array(v, v)) AS e")
        pond.add("both", "SELECT v FROM STREAM tx UNION ALL SELECT v + 1 AS v FROM STREAM tx")
        pond.run(drain=True)
        assert [(row["k"], row["total"]) for row in pond.table("total").to_pylist()] == [("a", sum(range(10)))]
        assert sorted(pond.table("every")["v"].to_pylist()) == list(range(10))
        assert sorted(pond.table("each")["e"].to_pylist()) == sorted([*range(10), *range(10)])
        assert len(pond.table("both")) == 20
        counts = pond.counts()
        for query, applied in (("total", 10), ("every", 10), ("each", 20), ("both", 20)):
            whole = counts[query].whole
            assert whole == EventCounts(applied + len(BAD), applied, 0, len(BAD), 0), query
        assert counts["total"].partitions == {
            f"{topic}-0": EventCounts(12, 6, 0, 6), f"{topic}-1": EventCounts(4, 4),
        }  # fmt: skip
    letters = pq.read_table(tmp_path / "dead").sort_by("offset").to_pylist()
    assert [(row["topic"], row["partition"], row["offset"], row["key"], row["value"]) for row in letters] == [
        (topic, 0, 2 * n + 1, b"key", value) for n, value in enumerate(BAD)
    ]
    no_object = "the value is not a JSON object"
    assert [row["reason"] for row in letters] == [
        no_object, "v is not a BIGINT", "the record has no value", no_object, no_object, no_object,
    ]  # fmt: skip
    assert '"many"' in "".join(lines(tmp_path / "dead", 9))
    assert all(row["_epoch"] > 0 and row["timestamp"] is not None for row in letters)


def test_a_source_that_only_derived_streams_read_is_shown_and_each_of_its_records_counts_once(
    spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    records: list[EpochRecord] = []
    with Pond(spark, tmp_path / "pond", on_epoch=lambda epoch: records.append(epoch.record)) as pond:
        pond.load(TABLE.format(name="tx", topic=topic, format="json", properties=f"'dead.path' = '{tmp_path}/dead'"))
        pond.add("both", "SELECT v FROM STREAM tx UNION ALL SELECT v + 1 AS v FROM STREAM tx")
        pond.add("each", "SELECT k, e FROM STREAM tx LATERAL VIEW explode(array(v, v)) AS e")
        pond.add(
            "timed", "SELECT window(t, '2 seconds') AS w, count(*) AS n FROM (SELECT ts + INTERVAL 1 SECOND AS t FROM "
            "STREAM tx) WATERMARK t DELAY OF INTERVAL 0 SECONDS GROUP BY ALL",
        )  # fmt: skip
        pond.open()
        assert [one.stream for one in pond.behind()] == ["tx"]
        pond.run()
        assert [(one.stream, one.unit, one.waiting) for one in pond.behind()] == [("tx", "records", 0)]
        # its watermark waits for the partitions of the topic, and for no others
        assert sorted(pond.table("timed")["n"].to_pylist()) == [1, 2, 2]
        assert pond.counts()["timed"].partitions.keys() == {f"{topic}-0", f"{topic}-1"}
        found = sorted(problem.text for problem in pond.problems())
        assert len(found) == 2 and found[0].startswith(f"2 queries (both, each) did not count {len(BAD)} of the 26 ")
        assert found[1].startswith(f"Query timed did not count {len(BAD)} of the ")
        (cause,) = (one.text for one in pond.why("timed").causes if one.code == "some-lost")
        assert cause.split("\n")[1:] == [
            "  4  the value is not a JSON object", "  1  the record has no value", "  1  v is not a BIGINT",
        ]  # fmt: skip
        assert not any("tx_" in line for line in (str(pond.why(name)) for name in ("both", "each", "timed")))
    found = Counter[str]()
    for record in records:
        found += Counter(record.counts[WHOLE_POND]) + Counter(record.counts.get(stream_counts("tx"), {}))
    assert (found["events"], found["malformed"], found["dead_letters"]) == (10 + len(BAD), len(BAD), len(BAD))


def test_a_stream_that_comes_later_keeps_its_dead_letters_too(spark: SparkSession, topic: str, tmp_path: Path) -> None:
    table = TABLE.format(name="tx", topic=topic, format="json", properties="'malformed' = 'drop'")
    ours = tmp_path / "dead"
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(table)
        pond.add("first", "SELECT k FROM STREAM tx")
        pond.run()
        pond.load(TABLE.format(name="later", topic=topic, format="json", properties=f"'dead.path' = '{ours}'"))
        pond.add("plain", "SELECT k FROM STREAM later")
        pond.add("derived", "SELECT k, e FROM STREAM later LATERAL VIEW explode(array(v, v)) AS e")
        pond.run()
        assert pond.counts()["plain"].whole.dead == len(BAD)
    assert sorted(pq.read_table(ours)["offset"].to_pylist()) == [2 * n + 1 for n in range(len(BAD))]


def test_an_event_whose_computed_time_is_null_is_one_dead_letter(
    spark: SparkSession, kafka_connected: KafkaServer, tmp_path: Path
) -> None:
    values = [
        b'{"txt": "01/02/2024 00:00:00", "sec": 1706745600}', b'{"sec": 1706745601}', b'{"txt": "1 February"}', b"{not",
        b'{"txt": "never", "sec": 1706745602}', b'{"txt": "01/02/2024 00:00:05"}',
    ]  # fmt: skip
    name = f"d-{uuid.uuid4().hex[:8]}"
    kafka_connected.create(name, 1)
    kafka_connected.produce(name, [(0, b"key", value) for value in values])
    text = "to_timestamp(txt, 'dd/MM/yyyy HH:mm:ss')"
    count = "SELECT window(t, '1 hour') AS w, count(*) AS n FROM (SELECT {} AS t{}) WATERMARK t DELAY OF INTERVAL 1 DAY"
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(
            f"CREATE TABLE ev (txt STRING, sec BIGINT) USING kafka OPTIONS (subscribe '{name}', format 'json',"
            f" startingOffsets 'earliest', maxOffsetsPerTrigger 4) TBLPROPERTIES ('dead.path' = '{tmp_path}/dead');"
        )
        for query, time, stream in (
            ("texts", text, " FROM STREAM ev"),
            ("twice", text, ", e FROM STREAM ev LATERAL VIEW explode(array(1, 2)) AS e"),
            ("seconds", "timestamp_seconds(sec)", " FROM STREAM ev"),
        ):  # fmt: skip
            pond.add(query, f"{count.format(time, stream)} GROUP BY ALL")
        pond.add("every", "SELECT sec FROM STREAM ev")
        pond.run(drain=True)
        found = {query: pond.table(query)["n"].to_pylist() for query in ("texts", "twice", "seconds")}
        assert found == {"texts": [2], "twice": [4], "seconds": [3]}
        assert len(pond.table("every")) == 5
        counts = {query: counted.whole for query, counted in pond.counts().items()}
        assert counts["every"] == EventCounts(6, 5, 0, 1)
        assert counts["texts"] == EventCounts(6, 2, 0, 4)
        assert counts["seconds"] == EventCounts(6, 3, 0, 3)
    letters = pq.read_table(tmp_path / "dead").sort_by("offset").to_pylist()
    assert [(row["offset"], row["key"], row["value"]) for row in letters] == [
        (offset, b"key", values[offset]) for offset in range(1, 6)
    ]
    reasons = [row["reason"] for row in letters]
    assert reasons[2] == "the value is not a JSON object"
    for offset, reason in zip((1, 2, 4, 5), (reasons[0], reasons[1], *reasons[3:]), strict=True):
        assert ("timestamp_seconds(" if offset == 5 else "gettimestamp(") in reason, reason
        assert reason.startswith("the event time t, ") and reason.endswith(", does not compute"), reason


def test_a_malformed_record_ends_a_run_by_default(spark: SparkSession, topic: str, tmp_path: Path) -> None:
    with Pond(spark, tmp_path / "strict") as pond:
        pond.load(TABLE.format(name="tx", topic=topic, format="json", properties="'max_ahead' = 'none'"))
        pond.add("total", SUM)
        with pytest.raises(SourceError, match=f"topic {topic}, partition 0, offset 1: the value is not a JSON object"):
            pond.run()
    with Pond(spark, tmp_path / "lenient") as pond:
        pond.load(TABLE.format(name="tx", topic=topic, format="json", properties="'malformed' = 'drop'"))
        pond.add("total", SUM)
        pond.run(drain=True)
        assert pond.counts()["total"].whole == EventCounts(16, 10, 0, 6)


def test_the_policy_for_malformed_records_may_change_at_each_restart(
    spark: SparkSession, kafka_connected: KafkaServer, topic: str, tmp_path: Path
) -> None:
    """A pond that a bad record has stopped continues; letters are in the folder of their time, each of them once."""

    def open_pond(properties: str, most: int = 7) -> Pond:
        pond = Pond(spark, tmp_path / "pond")
        table = TABLE.format(name="tx", topic=topic, format="json", properties=properties)
        pond.load(table.replace("maxOffsetsPerTrigger 7", f"maxOffsetsPerTrigger {most}"))
        return pond

    def names(pond: Pond) -> list[str]:
        return sorted(stream.name for stream in pond.streams)

    with open_pond("'max_ahead' = '1 hour'") as pond:
        pond.add("every", "SELECT k, v FROM STREAM tx", sink=Sink("parquet", str(tmp_path / "every")))
        pond.add("each", "SELECT k, e FROM STREAM tx LATERAL VIEW explode(array(v, v)) AS e")
        with pytest.raises(SourceError, match="offset 1: the value is not a JSON object"):
            pond.run()
        derived = names(pond)
    first, second = tmp_path / "first", tmp_path / "second"
    bad = b"{bad again"
    with open_pond(f"'dead.path' = '{first}', 'dead.ratio' = '0.5'", 100) as pond:
        pond.run()
        assert names(pond) == derived
        assert pond.counts()["each"].whole.dead == len(BAD)
    kafka_connected.produce(topic, [(0, b"key", bad)])
    with open_pond(f"'dead.path' = '{second}'") as pond:
        pond.run()
        assert names(pond) == derived
    kafka_connected.produce(topic, [(0, b"key", bad)])
    with open_pond("'malformed' = 'drop'") as pond:
        pond.run()
        assert pond.counts()["every"].whole.dead == 1, "the counts are those of this run"
    assert sorted(pq.read_table(first)["offset"].to_pylist()) == [2 * n + 1 for n in range(len(BAD))]
    assert pq.read_table(second)["value"].to_pylist() == [bad]
    assert sorted(pq.read_table(tmp_path / "every")["v"].to_pylist()) == list(range(10))
    pond = open_pond("'max_ahead' = '2 hours'")
    with pytest.raises(QueryTypeError, match="'max_ahead' was 3600 seconds and is now 7200 seconds"):
        pond.open()


def test_values_that_only_spark_parses_go_through_spark(
    spark: SparkSession, kafka_connected: KafkaServer, tmp_path: Path
) -> None:
    """The odd values are in the second of two epochs; two streams read them, and each meets the obstacle."""
    name = f"d-{uuid.uuid4().hex[:8]}"
    odd = [b"{'ts': '2024-01-01T00:00:10Z', 'k': 'b', 'v': 10}", b"{'v': 'many'}"]
    kafka_connected.create(name, 1)
    kafka_connected.produce(name, [(0, b"key", value) for value in [*GOOD, *odd, b"{oops"]])
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(TABLE.format(name="tx", topic=name, format="json", properties=f"'dead.path' = '{tmp_path}/dead'"))
        pond.load(TABLE.format(name="other", topic=name, format="json", properties="'malformed' = 'drop'"))
        pond.add("total", SUM)
        pond.add("large", "SELECT v, _offset AS o FROM STREAM other WHERE v > 8")
        pond.run(drain=True)
        assert sorted((row["v"], row["o"]) for row in pond.table("large").to_pylist()) == [(9, 9), (10, 10)]
        assert {row["k"]: row["total"] for row in pond.table("total").to_pylist()} == {"a": 45, "b": 10}
        assert pond.counts()["total"].whole == EventCounts(13, 11, 0, 2)
        notes = {one.name: one.note for one in pond.status()}
        note = "parsed with Arrow in 1 of 2 epochs; by Spark in the last: a value is not plain JSON"
        assert notes["read:other"] == notes["read:tx"] == note
    letters = pq.read_table(tmp_path / "dead").sort_by("offset").to_pylist()
    assert [(row["offset"], row["key"], row["value"], row["reason"]) for row in letters] == [
        (11, b"key", odd[1], "v is not a BIGINT"), (12, b"key", b"{oops", "the value is not a JSON object"),
    ]  # fmt: skip


def test_raw_values_and_csv(spark: SparkSession, kafka_server: KafkaServer, topic: str, tmp_path: Path) -> None:
    names = f"c-{uuid.uuid4().hex[:8]}"
    kafka_server.create(names)
    values = [b"2024-01-01T00:00:00Z,a,1", b"2024-01-01T00:00:00Z,a,x", b"a,1", b"2024-01-01T00:00:00Z,a,+2"]
    kafka_server.produce(names, [(0, None, value) for value in values])  # only Spark parses the last one
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(TABLE.format(name="csvs", topic=names, format="csv", properties=f"'dead.path' = '{tmp_path}/dead'"))
        pond.load(
            f"CREATE TABLE raws (line STRING) USING kafka OPTIONS (subscribe '{topic},{names}', format 'raw',"
            " startingOffsets 'earliest') TBLPROPERTIES ('malformed' = 'drop');"
        )
        pond.add("c", "SELECT k, v FROM STREAM csvs")
        pond.add("r", "SELECT _topic, get_json_object(line, '$.v') AS v FROM STREAM raws WHERE line LIKE '{%}'")
        pond.run()
        assert pond.table("c").to_pylist() == [{"k": "a", "v": 1}, {"k": "a", "v": 2}]
        assert sorted(pond.table("r")["v"].to_pylist()) == sorted([*map(str, range(10)), "many"])
        assert pond.counts()["c"].whole == EventCounts(4, 2, 0, 2)
    letters = pq.read_table(tmp_path / "dead").sort_by("offset").to_pylist()
    assert [row["reason"] for row in letters] == ["v is not a BIGINT", "the line does not have 3 fields"]


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ("'malformed' = 'dead-letter'", "Add 'dead.path'"),
        ("'malformed' = 'drop', 'dead.path' = 'x'", "Leave out 'dead.path'"),
        ("'malformed' = 'ignore'", "'fail', 'drop' or 'dead-letter'"),
        ("'dead.ratio' = '2'", "from 0 to below 1"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    spark: SparkSession, tmp_path: Path, properties: str, words: str
) -> None:
    with Pond(spark, tmp_path) as pond, pytest.raises(QueryTypeError, match=words):
        pond.load(TABLE.format(name="tx", topic="t", format="json", properties=properties))
