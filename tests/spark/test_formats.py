"""Avro and Protobuf from Kafka, with schemas of files and of a registry: decoded values and dead letters."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from kit.naive.protobuf import tagged, varint
from kit.servers.kafka_server import KafkaServer
from kit.servers.registry_server import RegistryServer
from millpond import Pond
from millpond.connections import VARIABLE
from millpond.errors import SourceError
from millpond.formats.protobuf_schema import BYTES, VARINT
from millpond.spark.session.add_jars import provide
from millpond.spark.session.jars import avro

TABLE = """
    CREATE TABLE tx (ts TIMESTAMP, k STRING, v BIGINT) USING kafka
    OPTIONS (subscribe '{topic}', format '{format}', startingOffsets 'earliest'{more})
    TBLPROPERTIES ('max_ahead' = 'none'{properties});
"""
ROWS = "SELECT unix_seconds(ts) AS s, k, v, _offset AS o FROM STREAM tx"
START = 1_700_000_000
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}


def record(*fields: tuple[str, object]) -> str:
    return json.dumps({"type": "record", "name": "tx", "fields": [{"name": n, "type": t} for n, t in fields]})


FIRST = record(("k", "string"), ("ts", MICROS), ("v", "int"))
SECOND = record(("ts", MILLIS), ("extra", "string"), ("v", ["null", "string"]))


def number(value: int) -> bytes:
    """A whole number as Avro has it."""
    zigzag, made = (value << 1) ^ (value >> 63), b""
    while zigzag > 127:
        made += bytes([zigzag & 127 | 128])
        zigzag >>= 7
    return made + bytes([zigzag])


def text(value: str) -> bytes:
    return number(len(value.encode())) + value.encode()


def first(second: int, key: str, value: int) -> bytes:
    return text(key) + number((START + second) * 1_000_000) + number(value)


def second(second: int, value: str | None) -> bytes:
    return number((START + second) * 1000) + text("more") + (number(0) if value is None else number(1) + text(value))


def named(schema: int, value: bytes) -> bytes:
    """A value behind its schema's number."""
    return b"\0" + struct.pack(">i", schema) + value


@pytest.fixture
def registry(kafka_server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistryServer]:
    """A registry, that of the only connection."""
    with RegistryServer() as server:
        path = tmp_path / "connections.json"
        path.write_text(json.dumps({"test": {"servers": kafka_server.servers, "registry": {"url": server.url}}}))
        monkeypatch.setenv(VARIABLE, str(path))
        yield server


@pytest.fixture
def topic(kafka_server: KafkaServer) -> str:
    name = f"f-{uuid.uuid4().hex[:8]}"
    kafka_server.create(name)
    return name


def rows_of(pond: Pond) -> list[tuple[object, ...]]:
    return sorted((row["o"], row["s"] - START, row["k"], row["v"]) for row in pond.table("q").to_pylist())


def test_schemas_by_number_change_while_a_pond_runs(
    spark: SparkSession, kafka_server: KafkaServer, registry: RegistryServer, topic: str, tmp_path: Path
) -> None:
    one = registry.register(f"{topic}-value", FIRST)
    elsewhere = registry.register("elsewhere", SECOND)  # found by its number alone, when a record names it
    odd = registry.register("odd", "{", "JSON")
    values = [
        named(one, first(0, "a", 5)), named(elsewhere, second(1, "6")), named(elsewhere, second(2, "many")),
        named(elsewhere, second(3, None)), named(77, b"x"), named(one, b"\xff"), b"\1\0\0\0\1", b"\0\0", None,
        named(odd, b"{}"), named(one, first(9, "b", -7)),
    ]  # fmt: skip
    kafka_server.produce(topic, [(0, None, value) for value in values])
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(TABLE.format(topic=topic, format="avro", more="", properties=f", 'dead.path' = '{tmp_path}/dead'"))
        pond.add("q", ROWS)
        pond.run()
        assert rows_of(pond) == [(0, 0, "a", 5), (1, 1, None, 6), (3, 3, None, None), (10, 9, "b", -7)]
        counts = pond.counts()["q"].whole
        assert (counts.read, counts.applied, counts.dead) == (11, 4, 7)
        later = registry.register(f"{topic}-value", record(("v", "long"), ("ts", MICROS)))
        kafka_server.produce(topic, [(0, None, named(later, number(8) + number((START + 12) * 1_000_000)))])
        pond.run()
        assert rows_of(pond)[-1] == (11, 12, None, 8)
    letters = pq.read_table(tmp_path / "dead").sort_by("offset").to_pylist()
    assert [(row["offset"], row["value"], row["reason"]) for row in letters] == [
        (2, values[2], "v is not a BIGINT"),
        (4, values[4], "the schema 77 is not in the registry"),
        (5, values[5], "the value does not parse"),
        (6, values[6], "the value does not begin with the number of a schema"),
        (7, values[7], "the value does not begin with the number of a schema"),
        (8, None, "the record has no value"),
        (9, values[9], f"the schema {odd} is one of JSON, not of Avro"),
    ]
    paths = [path for path in registry.requested if "/ids/" in path]
    assert sorted(paths) == sorted(f"/schemas/ids/{n}" for n in (elsewhere, odd, 77))


def test_a_registry_that_is_away_ends_a_run_and_loses_nothing(
    spark: SparkSession, kafka_server: KafkaServer, registry: RegistryServer, topic: str, tmp_path: Path
) -> None:
    kafka_server.produce(topic, [(0, None, named(1, first(0, "a", 5)))])
    registry.status = 503
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(TABLE.format(topic=topic, format="avro", more="", properties=""))
        pond.add("q", ROWS)
        with pytest.raises(SourceError, match="status 503"):
            pond.run()
    registry.status = None
    registry.register("any", FIRST)
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(TABLE.format(topic=topic, format="avro", more="", properties=""))
        pond.add("q", ROWS)
        pond.run()
        assert rows_of(pond) == [(0, 0, "a", 5)]


def test_a_schema_by_file_and_permissive_values(
    spark: SparkSession, kafka_server: KafkaServer, kafka_connected: KafkaServer, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "tx.avsc"
    file.write_text(SECOND)
    kafka_server.produce(topic, [(0, None, value) for value in (second(0, "1"), second(1, "many"), b"\xff")])
    permissive = f", schema '{file}', mode 'permissive'"
    with Pond(spark, tmp_path / "pond") as pond:
        dropped = ", 'malformed' = 'drop'"
        pond.load(TABLE.format(topic=topic, format="avro", more=permissive, properties=dropped))
        pond.add("q", ROWS)
        pond.run()
        assert rows_of(pond) == [(0, 0, None, 1), (1, 1, None, None)]
        assert pond.counts()["q"].whole.dead == 1


def test_permissive_json_is_malformed_only_if_nothing_of_it_fits(
    spark: SparkSession, kafka_server: KafkaServer, kafka_connected: KafkaServer, topic: str, tmp_path: Path
) -> None:
    values = [b'{"ts": 1, "k": "a", "v": "many"}', b"{broken", b'{"k": "b", "v": 2}']
    kafka_server.produce(topic, [(0, None, named(9, value)) for value in values] + [(0, None, values[2])])
    with Pond(spark, tmp_path / "pond") as pond:
        more, dropped = ", mode 'permissive', registry 'true'", ", 'malformed' = 'drop'"
        pond.load(TABLE.format(topic=topic, format="json", more=more, properties=dropped))
        pond.add("q", "SELECT k, v, _offset AS o FROM STREAM tx")
        pond.run()
        assert sorted((row["o"], row["k"], row["v"]) for row in pond.table("q").to_pylist()) == [
            (0, "a", None), (2, "b", 2),
        ]  # fmt: skip


def test_files_in_avro(spark: SparkSession, kafka_installed: None, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = f"CREATE TABLE tx (id BIGINT, k STRING, more INT) USING avro OPTIONS (path '{tmp_path}/in');"
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(table)
        pond.add("q", "SELECT id, k, more FROM STREAM tx WHERE id > 1")
        provide(spark, avro())
        rows = spark.range(4).selectExpr("id", "concat('k', id) AS k")
        rows.write.format("avro").mode("append").save(f"{tmp_path}/in")
        pond.run()
        found = sorted((row["id"], row["k"], row["more"]) for row in pond.table("q").to_pylist())
    assert found == [(2, "k2", None), (3, "k3", None)]


PROTO = 'syntax = "proto3"; import "time.proto"; package a; message No {{}} message Tx {{ {} k = 1; a.Time ts = 2; }}'
TIME = 'syntax = "proto3"; package a; message Time { int64 s = 1; }'


def test_protobuf_by_number_and_by_file(
    spark: SparkSession, kafka_server: KafkaServer, registry: RegistryServer, topic: str, tmp_path: Path
) -> None:
    registry.register("time.proto", TIME)
    one = registry.register(f"{topic}-value", PROTO.format("int32"), "PROTOBUF", ("time.proto",))
    two = registry.register("elsewhere", PROTO.format("int64"), "PROTOBUF", ("time.proto",))
    message = tagged(1, VARINT, varint(5)) + tagged(2, BYTES, tagged(1, VARINT, varint(START)))
    large = tagged(1, VARINT, varint(1 << 40))
    values = [named(one, b"\2\2" + message), named(two, b"\2\2" + large), named(one, b"\2\2\xff"), b"\0", None]
    kafka_server.produce(topic, [(0, None, value) for value in values])
    (tmp_path / "tx.proto").write_text(PROTO.format("int32"))
    (tmp_path / "time.proto").write_text(TIME)
    kafka_server.create(f"{topic}-bare")
    kafka_server.produce(f"{topic}-bare", [(0, None, message), (0, None, b"\xff")])
    table = """
        CREATE TABLE {name} (k BIGINT, ts STRUCT<s: BIGINT>) USING kafka
        OPTIONS (subscribe '{topic}', format 'protobuf', startingOffsets 'earliest'{more})
        TBLPROPERTIES ('dead.path' = '{dead}');
    """
    with Pond(spark, tmp_path / "pond") as pond:
        pond.load(table.format(name="named", topic=topic, more=", message 'a.Tx'", dead=tmp_path / "dead"))
        more = f", schema '{tmp_path}/tx.proto', message 'a.Tx'"
        pond.load(table.format(name="bare", topic=f"{topic}-bare", more=more, dead=tmp_path / "dead-too"))
        pond.add("n", "SELECT k, ts.s AS s, _offset AS o FROM STREAM named WHERE k > 0")
        pond.add("b", "SELECT k, ts.s AS s FROM STREAM bare")
        pond.run()
        assert sorted((row["o"], row["k"], row["s"]) for row in pond.table("n").to_pylist()) == [
            (0, 5, START), (1, 1 << 40, None),
        ]  # fmt: skip
        assert pond.table("b").to_pylist() == [{"k": 5, "s": START}]
    letters = pq.read_table(tmp_path / "dead").sort_by("offset").to_pylist()
    assert [(row["offset"], row["value"], row["reason"]) for row in letters] == [
        (2, values[2], "the value does not parse"),
        (3, b"\0", "the value does not begin with the number of a schema"),
        (4, None, "the record has no value"),
    ]
