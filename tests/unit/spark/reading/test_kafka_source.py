"""The options of a Kafka stream."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from millpond.connections import VARIABLE
from millpond.errors import QueryError, QueryRefused, QueryTypeError, UnsupportedQuery
from millpond.model.endpoints import Source
from millpond.model.stream import Field, Order, Stream
from millpond.spark.reading.event_source import completed, paced
from millpond.spark.sources.kafka import META, _client

COLUMNS = (Field("ts", "timestamp"), Field("v", "bigint"))


def stream(columns: tuple[Field, ...] = COLUMNS, order: Order | None = None, **options: str) -> Stream:
    given = {"subscribe": "tx", "format": "json"} | {name.replace("_", "."): value for name, value in options.items()}
    return Stream("tx", columns, Source("kafka", tuple(sorted(given.items()))), order)


def test_the_columns_of_kafka_and_their_order_are_added_once() -> None:
    made = completed(stream())
    assert made.columns == (*COLUMNS, *META)
    assert made.order == Order("_source", "_offset")
    assert completed(made) == made
    patient = completed(stream(order=Order("_source", "_offset", ("tx-0",), 5)))
    assert patient.order == Order("_source", "_offset", ("tx-0",), 5)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (stream(kafka_sasl_jaas_config="x"), QueryRefused, "the option kafka.sasl.jaas.config of a Kafka client"),
        (stream(minPartitions="9"), QueryRefused, "lose their order"),
        (stream(maxRecordsPerPartition="9"), QueryRefused, "lose their order"),
        (stream(assign="{}"), QueryRefused, "whole topics"),
        (stream(subscribePattern="t.*"), QueryTypeError, "has no topic"),
        (stream(anything="1"), QueryTypeError, "not an option of kafka"),
        (stream(format="xml"), UnsupportedQuery, "the format xml"),
        (stream(sep=","), QueryTypeError, "not an option of json values"),
        (stream(maxOffsetsPerTrigger="0"), QueryTypeError, "above zero"),
        (stream(failOnDataLoss="maybe"), QueryTypeError, "failOnDataLoss"),
        (stream(epochTarget="soon"), QueryTypeError, "Write seconds"),
        (stream(epochTarget="1", maxOffsetsPerTrigger="5"), QueryTypeError, "and no maxOffsetsPerTrigger"),
        (stream(mode="lenient"), QueryTypeError, "Write 'strict' or 'permissive'"),
        (stream(schema="x.avsc"), QueryTypeError, "not an option of json values"),
        (stream(format="avro", message="A"), QueryTypeError, "not an option of avro values"),
        (stream(format="avro", registry="false"), QueryTypeError, "has no schema"),
        (stream(format="protobuf", schema="x.proto"), QueryTypeError, "The message of"),
        (stream(format="protobuf", schema="x", message="A", registry="true"), QueryTypeError, "has two schemas"),
        (stream(format="raw"), QueryTypeError, "one column"),
        (stream((Field("_offset", "bigint"),)), QueryTypeError, "is provided by Kafka"),
        (stream(()), QueryTypeError, "declares no columns"),
        (stream(order=Order("v", "v")), QueryTypeError, "declares an order"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: Stream, error: type[QueryError], words: str) -> None:
    with pytest.raises(error, match=words):
        completed(wrong)


def test_streams_that_say_no_limit_have_a_pace() -> None:
    given = (stream(), stream(epochTarget="2.5"), stream(maxOffsetsPerTrigger="5"), Stream("f", COLUMNS))
    named = [msgspec.structs.replace(one, name=str(n)) for n, one in enumerate(given)]
    assert paced(named) == {"0": 1.0, "1": 2.5}


def test_the_manner_of_reading_is_not_what_is_read() -> None:
    one, other = completed(stream(maxOffsetsPerTrigger="5")).source, completed(stream(connection="c")).source
    assert one is not None and other is not None and one != other
    assert one.meaning == other.meaning
    assert one.meaning != completed(stream(startingOffsets="earliest")).source.meaning  # type: ignore[union-attr]


def test_fetches_are_large_and_do_not_wait_in_slow_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "connections.json").write_text(json.dumps({"local": {"servers": "127.0.0.1:9"}}))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "connections.json"))
    client = _client({})
    assert int(client["kafka.fetch.max.wait.ms"]) <= 1
    assert int(client["kafka.max.poll.records"]) > 100_000
    assert client["kafka.isolation.level"] == "read_committed"
