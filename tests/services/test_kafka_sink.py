"""Rows in a topic: once for readers of committed records, after any crash, stop or take-over."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from kit.programs.forked_program import run_forked
from kit.servers.kafka_server import KafkaServer, Message
from kit.servers.servers import until
from millpond.errors import AheadError, QueryTypeError, StoreError, UnsupportedQuery
from millpond.followers.record_rows import key_columns
from millpond.followers.sinks import kafka_publisher
from millpond.followers.sinks.kafka import KafkaSink, Topic, messages
from millpond.log.cursor import Cursor, cursor_at
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named
from millpond.model.windows import RUNNING
from millpond.testing import sink_program as program

COUNT, EPOCHS, entries, make_pond = program.COUNT, program.EPOCHS, program.entries, program.make_pond
query = program.query


def sink_of(folder: Path, topic: str) -> KafkaSink:
    return program.sink_of(folder, "kafka", topic=topic)


@pytest.fixture
def topic(kafka_connected: KafkaServer, tmp_path: Path) -> str:
    """A new topic of two partitions, and a pond in `tmp_path` whose log has rows for it."""
    name = f"s-{uuid.uuid4().hex[:8]}"
    kafka_connected.create(name, 2)
    make_pond(tmp_path)
    return name


def content_of(messages: list[Message]) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """What a reader gets, as (epoch, row, key, value)."""
    return sorted((int(m.headers["epoch"]), int(m.headers["row"]), m.key, m.value) for m in messages)


def expected(folder: Path) -> list[tuple[int, int, bytes | None, bytes | None]]:
    found = []
    for n, table in entries(folder):
        for _, value, key, _, headers in messages("q", "t", n, table, ("w", "k")):
            found.append((n, int(str(dict(headers)["row"])), key, value))
    return found


def publish(folder: Path, topic: str, faults: str = "", **more: str) -> subprocess.CompletedProcess[bytes]:
    """Let a process of its own bring the topic to the head of the log."""
    (folder / "faults").mkdir(exist_ok=True)
    environ = os.environ | {"MILLPOND_FAULT": faults, "MILLPOND_FAULT_DIR": str(folder / "faults")}
    words = ["-m", program.__name__, folder, "kafka", "", json.dumps({"topic": topic, **more})]
    return run_forked(words, env=environ, timeout=120)


def test_a_row_has_a_key_headers_and_a_value(kafka_server: KafkaServer, topic: str, tmp_path: Path) -> None:
    done = publish(tmp_path, topic)
    assert done.returncode == 0, done.stderr
    found = kafka_server.read(topic)
    assert content_of(found) == expected(tmp_path)
    assert len(found) == EPOCHS * COUNT
    first = min(found, key=lambda message: (int(message.headers["epoch"]), int(message.headers["row"])))
    assert first.key == b'["q",{"start":"1970-01-01T00:00:00.000Z","end":"1970-01-01T00:01:00.000Z"},"k0"]'
    assert json.loads(first.value or b"")["n"] == 0
    assert {name: first.headers[name] for name in ("query", "revision")} == {"query": b"q", "revision": b"0"}
    places = {message.key: set() for message in found}
    for message in found:
        places[message.key].add(message.partition)
    assert all(len(partitions) == 1 for partitions in places.values())


@pytest.mark.slow
@pytest.mark.parametrize("forget", [False, True])
def test_a_publisher_that_is_killed_repeats_nothing(
    kafka_server: KafkaServer, topic: str, tmp_path: Path, forget: bool
) -> None:
    faults = "topic.before_begin:2:kill,topic.after_begin:3:kill,topic.after_commit:4:kill,topic.after_cursor:5:kill"
    ends = []
    while not ends or ends[-1]:
        ends.append(publish(tmp_path, topic, faults).returncode)
        assert len(ends) < 7, "it does not come to an end"
        if forget:  # the topic itself knows
            for file in (tmp_path / "cursors").iterdir():
                file.unlink()
    assert len(list((tmp_path / "faults").glob("*.kill"))) == 4
    assert content_of(kafka_server.read(topic)) == expected(tmp_path)


def test_the_mark_of_a_record_is_committed_with_it(kafka_server: KafkaServer, topic: str, tmp_path: Path) -> None:
    log = list(make_pond(tmp_path))
    sink = sink_of(tmp_path, topic)
    sink.cursor()
    for n, entry, manifest in log[:4]:
        sink.apply(n, entry, manifest)
    for file in (tmp_path / "cursors").iterdir():
        file.unlink()
    assert sink_of(tmp_path, topic).cursor() == cursor_at(log[3][1])
    lost = Cursor(3, "lost w")
    sink.cursor()
    sink._publisher.begin([])
    sink._publisher.commit(lost)
    other = sink_of(tmp_path, topic)
    (tmp_path / "cursors" / "q.kafka").unlink(missing_ok=True)
    assert other.cursor() == lost
    with pytest.raises(AheadError, match="record 3 of the log is another one now"):
        other.apply(3, log[3][1], log[3][2])


def test_a_topic_that_does_not_exist_is_the_reason_of_the_failure(
    kafka_connected: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_publisher, "SECONDS", 4.0)
    monkeypatch.setattr(kafka_publisher, "_UNKNOWN_TOPIC_MS", 1_000)
    sink = sink_of(tmp_path, "absent")
    sink.cursor()
    with pytest.raises(StoreError, match=r"for the topic absent: .*Unknown topic"):
        for n, entry, manifest in make_pond(tmp_path):
            sink.apply(n, entry, manifest)


def test_a_publisher_that_was_overtaken_writes_nothing_more(
    kafka_server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    old, new = sink_of(tmp_path, topic), sink_of(tmp_path, topic)
    log = list(make_pond(tmp_path))
    assert old.cursor().n == -1
    for n, entry, manifest in log[:3]:
        old.apply(n, entry, manifest)
    old._publisher.begin(messages("q", topic, 3, entries(tmp_path)[1][1], ("w", "k")))  # it stops here
    assert new.cursor().n == 2
    for n, entry, manifest in log[3:]:
        new.apply(n, entry, manifest)
    with pytest.raises(StoreError, match=r"(?i)fenced|newer|stale|epoch"):
        old._publisher.commit(cursor_at(log[3][1]))
    assert old.cursor().n == log[-1][0]
    assert content_of(kafka_server.read(topic)) == expected(tmp_path)
    assert len(kafka_server.read(topic, "read_uncommitted")) >= len(expected(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("step", ["topic.before_begin", "topic.after_begin"])
def test_a_publisher_that_is_stopped_and_wakes_is_fenced(
    kafka_server: KafkaServer, topic: str, tmp_path: Path, bring: Callable[..., subprocess.Popen[bytes]], step: str
) -> None:
    zombie = bring("kafka", faults=f"{step}:2:stop", topic=topic)
    until(lambda: is_stopped(zombie.pid), "it is stopped", 120)
    assert publish(tmp_path, topic).returncode == 0
    assert content_of(kafka_server.read(topic)) == expected(tmp_path)
    os.kill(zombie.pid, signal.SIGCONT)
    _, said = zombie.communicate(timeout=120)
    assert zombie.returncode == 1, "it ends by what the broker says"
    assert re.search(rb"StoreError.*(?i:fenced|newer|stale|epoch)", said), said
    found = kafka_server.read(topic)
    assert content_of(found) == expected(tmp_path)
    assert len({(m.headers["epoch"], m.headers["row"], m.key, m.headers["revision"]) for m in found}) == len(found)


def is_stopped(pid: int) -> bool:
    return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.slow
def test_without_transactions_rows_come_at_least_once_with_the_same_key(
    kafka_server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    faults = "topic.after_begin:2:kill,topic.after_commit:3:kill"
    ends = []
    while not ends or ends[-1]:
        ends.append(publish(tmp_path, topic, faults, transactions="false").returncode)
        assert len(ends) < 5, "it does not come to an end"
    found = content_of(kafka_server.read(topic))
    assert len(found) > len(expected(tmp_path))
    assert sorted(set(found)) == expected(tmp_path)


def test_an_unreachable_broker_is_reported_and_retried(
    kafka_server: KafkaServer, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.followers.sinks.kafka_publisher.SECONDS", 3.0)
    follower = sink_of(tmp_path, topic)
    log = list(make_pond(tmp_path))
    for n, entry, manifest in log[: follower.cursor().n + 3]:
        follower.apply(n, entry, manifest)
    follower._publisher.begin(messages("q", topic, 3, entries(tmp_path)[1][1], ("w", "k")))
    kafka_server.kill()  # in a transaction, whose end may hang in the library
    try:
        with pytest.raises(StoreError, match=f"Kafka did not take what is for the topic {topic}"):
            follower._publisher.commit(cursor_at(log[3][1]))
        with pytest.raises(StoreError, match=f"Kafka did not take what is for the topic {topic}"):
            for n, entry, manifest in log[2:]:
                follower.apply(n, entry, manifest)
    finally:
        kafka_server.start()
    monkeypatch.setattr("millpond.followers.sinks.kafka_publisher.SECONDS", 30.0)

    def is_complete() -> bool:
        with contextlib.suppress(StoreError):  # it may fence the transaction that it lost
            for n, entry, manifest in log[follower.cursor().n + 1 :]:
                follower.apply(n, entry, manifest)
            return True
        return False

    until(is_complete, "the broker takes the other records")
    assert content_of(kafka_server.read(topic)) == expected(tmp_path)
    follower.close()


def test_a_deleted_row_is_a_record_without_a_value() -> None:
    rows = pa.table({"k:1": ["a", None], "w": [1, 2], "_op": ["upsert", "delete"], "_revision": [0, 3]})
    one, other = messages("q", "t", 7, rows, ("w", "k:1"))
    value = b'{"k:1":"a","w":1,"_op":"upsert","_revision":0}'
    assert one[:4] == ("t", value, b'["q",1,"a"]', kafka_publisher.ANY_PARTITION)
    assert other[:4] == ("t", None, b'["q",2,null]', kafka_publisher.ANY_PARTITION)
    assert other[4] == [("query", "q"), ("epoch", "7"), ("row", "1"), ("revision", "3"), ("op", "delete")]


def test_what_does_not_fit_is_refused() -> None:
    windowed = query(Sink("kafka", None, (("topic", "t"),)))
    assert key_columns(windowed) == ("w", "k")
    without = msgspec.structs.replace(windowed, output=(Named("k", Column("key:0", "string")),))
    with pytest.raises(UnsupportedQuery, match="its output lacks its window"):
        key_columns(without)
    assert key_columns(msgspec.structs.replace(without, window=RUNNING, emit="update")) == ("k",)
    for options, words in (
        ((), "has no topic"),
        ((("topic", "t"), ("transactions", "perhaps")), "'transactions' of q"),
        ((("topic", "t"), ("bootstrap.servers", "x")), "the option bootstrap.servers"),
    ):
        with pytest.raises(QueryTypeError, match=words):
            Topic.of("q", Sink("kafka", None, options))
