"""Event sources: each kind has one implementation with all methods of the protocol; an analysis needs no server."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, cast

import pytest

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.endpoints import BUILT_IN, Source
from millpond.model.stream import DROP, FAIL, Field, Order, Stream
from millpond.spark.reading.event_source import EventSource, event_source, malformed_policy
from millpond.spark.reading.file_source import FileSource
from millpond.spark.reading.kafka_source import KafkaSource
from millpond.spark.reading.spark_source import SparkSource

NO_SPARK = cast(Any, None)


def stream(form: str, order: Order | None = None, **options: str) -> Stream:
    return Stream("tx", (Field("id", "bigint"),), Source(form, tuple(sorted(options.items()))), order)


@pytest.mark.parametrize("implementation", [SparkSource, FileSource, KafkaSource])
def test_an_implementation_has_the_methods_of_the_protocol(implementation: type) -> None:
    methods = [name for name, _ in inspect.getmembers(EventSource, inspect.isfunction) if not name.startswith("_")]
    assert len(methods) == 8
    for name in methods:
        wanted = inspect.signature(getattr(EventSource, name)).parameters
        assert list(inspect.signature(getattr(implementation, name)).parameters) == list(wanted), name


@pytest.mark.parametrize("kind", [kind for kind in BUILT_IN if kind.stream], ids=lambda kind: kind.name)
def test_each_kind_of_stream_has_its_implementation(kind: Any) -> None:
    wanted = KafkaSource if kind.topics else FileSource if kind.files else SparkSource
    assert type(event_source(stream(kind.name))) is wanted


def test_a_format_that_is_not_listed_is_read_by_spark() -> None:
    assert type(event_source(stream("somebodys"))) is SparkSource


def test_a_stream_without_a_source_is_refused() -> None:
    with pytest.raises(QueryTypeError, match="tx has no source"):
        event_source(Stream("tx", ()))
    assert malformed_policy(Stream("tx", ())) is None


@pytest.mark.parametrize(("given", "policy"), [
    (stream("json", mode="DROPMALFORMED"), (DROP, None)),
    (stream("json", mode="PERMISSIVE"), None),
    (stream("parquet", mode="DROPMALFORMED"), None),
    (stream("kafka"), (FAIL, None)),
    (stream("rate"), None),
])  # fmt: skip
def test_what_happens_to_malformed_records(given: Stream, policy: object) -> None:
    assert malformed_policy(given) == policy


@pytest.mark.parametrize(("given", "what"), [
    (stream("rate"), "has the format rate"),
    (stream("json", Order("host", "line")), "declares an order of its files"),
])  # fmt: skip
def test_what_cannot_be_read_again_is_refused(given: Stream, what: str) -> None:
    with pytest.raises(UnsupportedQuery, match=what):
        event_source(given).check_repeatable()
    if type(event_source(given)) is SparkSource:
        with pytest.raises(UnsupportedQuery, match=what):
            event_source(given).price(NO_SPARK, Path(), ())


def test_no_epochs_cost_nothing_to_read_again() -> None:
    for given in (stream("json", path="/in"), stream("kafka", subscribe="tx")):
        source = event_source(given)
        source.check_repeatable()
        assert source.price(NO_SPARK, Path(), ()) == (0, 0)


@pytest.mark.parametrize(("given", "form"), [
    (stream("kafka", subscribe="tx"), "json"), (stream("avro", path="/in"), "json"),
    (stream("parquet", path="/in"), "parquet"), (stream("rate"), "rate"),
])  # fmt: skip
def test_the_analysis_needs_no_server_and_no_jar(given: Stream, form: str) -> None:
    found = event_source(given).stand_in()
    assert isinstance(found, SparkSource) and found.source.format == form
    assert found.malformed_policy() is None and found.stream.columns == given.columns
