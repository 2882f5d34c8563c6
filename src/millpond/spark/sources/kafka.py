"""Reads Kafka: checks and completes a stream's declaration, and builds the frame that reads it.

Spark's connector reads with one task per topic partition, in offset order, committed records only. Spark parses a
value into the declared columns. A record that does not parse is separated, with its bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.connections import connection
from millpond.errors import QueryRefused, QueryTypeError
from millpond.model.endpoints import source_kind
from millpond.model.stream import DEAD_LETTER, Field, Order, Stream
from millpond.spark.session.add_jars import provide
from millpond.spark.session.jars import connector
from millpond.spark.sources.value_formats import check_format, parsed

KAFKA = "kafka"

META = (
    Field("_source", "string"),
    Field("_topic", "string"),
    Field("_partition", "int"),
    Field("_offset", "bigint"),
    Field("_timestamp", "timestamp"),
    Field("_key", "binary"),
)
"""Metadata of Kafka records: columns that every Kafka stream has after the declared ones.

`_source` is the source partition, `topic-3`, by which events are ordered.
"""

READER = (
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "maxOffsetsPerTrigger", "failOnDataLoss"
)  # fmt: skip
"""Options that are passed unchanged to Spark's connector."""

_FETCHED = {
    "max.poll.records": str(1 << 20), "max.partition.fetch.bytes": str(8 << 20), "fetch.max.wait.ms": "1"
}  # fmt: skip
"""Options for larger polls, and for short waits at the broker.

After each poll, Spark's reader requests the first and last offset of the partition, and then fetches again all records
that were fetched beyond the poll. With Kafka's default of 500 records per poll and fetches of 1 MB, this takes half of
a task's time.

Before a poll returns, the consumer sends its next fetch, which waits at the broker until a record arrives. The broker
answers the requests of a connection in order, so the request for the offsets waits as long: with Kafka's default, up to
half a second in a slow topic. Between epochs no consumer fetches, so short waits cost no further requests.
"""

_TOPICS = ("subscribe", "subscribePattern")
_MOST, _TARGET = "maxOffsetsPerTrigger", "epochTarget"
OPTIONS = " ".join(source_kind(KAFKA).options)
"""Options that a stream may have."""

DEAD = "__dead"
"""The column that describes a record that did not parse; it is NULL for all other records."""

RECORD = "__record"
"""The column that describes each record like `DEAD`, without a reason, if the stream keeps dead letters."""

_REASON = "__reason"
_REFUSED = {
    "minpartitions": "Spark would split a topic partition among tasks, and its events would lose their order",
    "maxrecordsperpartition": "Spark would split a topic partition among tasks, and its events would lose their order",
    "assign": "a stream reads whole topics, so that none of its partitions is forgotten",
    "groupidprefix": "groups are Spark's own",
}


def refuse_kafka(stream: str, option: str) -> None:
    """Refuse, with the reason, an option of Spark's connector that a pond must not accept.

    Raises:
        QueryRefused: the option is one of these.
    """
    if option.lower().startswith("kafka."):
        raise QueryRefused(
            f"The stream {stream} has the option {option} of a Kafka client.",
            "Name a connection, OPTIONS (connection '…'); the operator of the pond configures it.",
        )
    if option.lower() in _REFUSED:
        raise QueryRefused(f"The stream {stream} has the option {option}: {_REFUSED[option.lower()]}.", "Leave it out.")


def declared(stream: Stream) -> Stream:
    """The stream, completed with Kafka's metadata columns and the order they define.

    Raises:
        QueryTypeError: a column or an option does not fit.
        QueryRefused: it has an option of a Kafka client.
        UnsupportedQuery: this version does not support the format.
    """
    assert stream.source is not None
    options = dict(stream.source.options)
    for option in options:
        refuse_kafka(stream.name, option)
        if option not in OPTIONS.split():
            raise QueryTypeError(f"`{option}` is not an option of kafka.", f"Use some of: {OPTIONS}.")
    if len([name for name in _TOPICS if options.get(name)]) != 1:
        raise QueryTypeError(f"The stream {stream.name} has no topic.", "Add OPTIONS (subscribe 'topic').")
    declared_columns = stream.columns[: -len(META)] if stream.columns[-len(META) :] == META else stream.columns
    for field in declared_columns:
        if field.name.lower() in (*(meta.name for meta in META), DEAD, RECORD):
            raise QueryTypeError(f"The column {field.name} of {stream.name} is provided by Kafka.", "Leave it out.")
    _check_format(stream.name, options, declared_columns)
    order = stream.order
    if order is None:
        order = Order("_source", "_offset")
    elif order.columns != ("_source", "_offset"):
        raise QueryTypeError(
            f"The stream {stream.name} declares an order, but the order of a Kafka stream is that of its offsets.",
            "Leave out 'order.partition' and 'order.offset'.",
        )
    return msgspec.structs.replace(stream, columns=(*declared_columns, *META), order=order)


def _check_format(name: str, options: dict[str, str], given: tuple[Field, ...]) -> None:
    check_format(name, options, given)
    if _TARGET in options and (_MOST in options or not 0.01 <= _number(options[_TARGET]) <= 3600):
        raise QueryTypeError(
            f"{_TARGET} of {name} is {options[_TARGET]!r}.", f"Write seconds, 0.01 to 3600, and no {_MOST}."
        )
    most = options.get(_MOST, "1")
    if not most.isdecimal() or not int(most):
        raise QueryTypeError(f"maxOffsetsPerTrigger of {name} is {most!r}.", "Write a whole number above zero.")
    if options.get("failOnDataLoss", "true").lower() not in ("true", "false"):
        raise QueryTypeError(f"failOnDataLoss of {name} is {options['failOnDataLoss']!r}.", "Write 'true' or 'false'.")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def stand_in_path(stream: Stream) -> str | None:
    """The path that stands for a Kafka stream while texts are analysed; None for other streams.

    It is a pattern that matches nothing, so that neither a broker nor the connector is needed.
    """
    if stream.source is None or not stream.source.has_topics:
        return None
    return f"/millpond/kafka/{stream.name}/*"


def target_seconds(stream: Stream) -> float | None:
    """The duration of epochs to which the number of records is fitted; None if the stream has a limit of its own."""
    assert stream.source is not None
    options = dict(stream.source.options)
    return None if _MOST in options else float(options.get(_TARGET, "1"))


def kafka_frame(
    spark: SparkSession, stream: Stream, name: str | None, limit: int | None, *, texts: bool = False
) -> DataFrame:  # fmt: skip
    """The stream's columns, `DEAD`, which describes a record that does not parse and is NULL for all others, and
    perhaps `RECORD`.

    `limit` is the most records that an epoch reads, unless the stream itself has a limit. With `texts` the values are
    not parsed: the frame lacks the declared columns, and `DEAD` describes every record.

    Raises:
        SetupError: the connector or the connection is not available.
    """
    assert stream.source is not None
    provide(spark, connector())
    options = dict(stream.source.options)
    reader = spark.readStream.format(KAFKA) if name is None else spark.readStream.name(name).format(KAFKA)
    reader = reader.options(**_client(options))
    for option in (*_TOPICS, *READER):
        if option in options:
            reader = reader.option(option, options[option])
    if limit is not None:
        reader = reader.option(_MOST, limit)
    return _with_texts(reader.load(), stream) if texts else _parsed(reader.load(), stream, options)


def kafka_batch(
    spark: SparkSession, stream: Stream, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]
) -> DataFrame:
    """The same columns for the records from `start` up to but not including `end`: topic -> partition -> offset.

    A partition without a start begins at offset 0. If records no longer exist, the read fails.

    Raises:
        SetupError: as `kafka_frame`.
    """
    assert stream.source is not None
    provide(spark, connector())
    options = dict(stream.source.options)
    begins = {topic: {one: start.get(topic, {}).get(one, 0) for one in of} for topic, of in end.items()}
    reader = spark.read.format(KAFKA).options(**_client(options)).option("failOnDataLoss", "true")
    reader = reader.option("assign", json.dumps({topic: [int(one) for one in of] for topic, of in end.items()}))
    reader = reader.option("startingOffsets", json.dumps(begins)).option("endingOffsets", json.dumps(end))
    return _parsed(reader.load(), stream, options)


def _client(options: Mapping[str, str]) -> dict[str, str]:
    client = _FETCHED | connection(options.get("connection")).of_java()
    made = {f"kafka.{option}": value for option, value in client.items()}
    # records of uncommitted transactions are not read
    return made | {"kafka.isolation.level": "read_committed"}


def _parsed(records: DataFrame, stream: Stream, options: dict[str, str]) -> DataFrame:
    made = parsed(records, stream, stream.columns[: -len(META)], options)
    keeps_bytes = stream.on_malformed.policy == DEAD_LETTER
    known = _known(stream, F.col(_REASON), key=keeps_bytes, value=keeps_bytes)
    with_reason = made.records.select("*", made.reason.alias(_REASON))
    raw_record = [known.withField("reason", F.lit(None).cast("string")).alias(RECORD)] if keeps_bytes else []
    dead = F.when(F.col(_REASON).isNotNull(), known).alias(DEAD)
    return with_reason.select(*made.columns, *_meta(), dead, *raw_record)


def _with_texts(records: DataFrame, stream: Stream) -> DataFrame:
    keeps_bytes = stream.on_malformed.policy == DEAD_LETTER
    known = _known(stream, F.lit(None).cast("string"), key=keeps_bytes, value=True)
    return records.select(*_meta(), known.alias(DEAD))


def _meta() -> list[Column]:
    """The columns that Kafka provides."""
    source = F.concat_ws("-", "topic", "partition").alias("_source")
    return [source, *(F.col(field.name.lstrip("_")).alias(field.name) for field in META[1:])]


def _known(stream: Stream, reason: Column, *, key: bool, value: bool) -> Column:
    """What is known of a record; `key`, `value`: whether it includes them."""
    place = ["topic", "partition", "offset", "timestamp"]
    raw = [
        F.col(name) if keeps else F.lit(None).cast("binary").alias(name)
        for name, keeps in (("key", key), ("value", value))
    ]
    return F.struct(F.lit(stream.name).alias("stream"), *place, *raw, reason.alias("reason"))
