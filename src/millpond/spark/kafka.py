"""Kafka as a source: a stream's declaration checked and completed, and the frame that reads it.

Spark's own connector reads: one task per topic partition, in the order of offsets, committed records only. A value is
parsed into the declared columns by Spark; a record that does not parse is told apart, with its bytes.
"""

from __future__ import annotations

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from millpond.errors import QueryRefused, QueryTypeError, SetupError, UnsupportedQuery
from millpond.model.stream import DEAD_LETTER, Field, Order, Stream
from millpond.runtime.connections import connection
from millpond.spark.jars import connector

KAFKA = "kafka"

META = (
    Field("_source", "string"),
    Field("_topic", "string"),
    Field("_partition", "int"),
    Field("_offset", "bigint"),
    Field("_timestamp", "timestamp"),
    Field("_key", "binary"),
)
"""What Kafka tells of a record: columns of every stream that is read from it, after the declared ones.

`_source` is the source partition, `topic-3`, by which events are ordered.
"""

READER = (
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "maxOffsetsPerTrigger", "failOnDataLoss"
)  # fmt: skip
"""Options that Spark's connector takes as they are."""

_TOPICS = ("subscribe", "subscribePattern")
_JSON = (
    "dateFormat timestampFormat locale timeZone allowComments allowUnquotedFieldNames allowSingleQuotes "
    "allowNumericLeadingZeros allowBackslashEscapingAnyCharacter allowUnquotedControlChars allowNonNumericNumbers "
    "primitivesAsString"
)
_CSV = (
    "dateFormat timestampFormat locale timeZone sep delimiter quote escape comment ignoreLeadingWhiteSpace "
    "ignoreTrailingWhiteSpace nullValue nanValue positiveInf negativeInf maxColumns maxCharsPerColumn emptyValue "
    "charToEscapeQuoteEscaping unescapedQuoteHandling"
)
FORMATS = {"json": _JSON, "csv": _CSV, "raw": ""}
"""How values are parsed, and the options of that; `raw`: the value is the one declared column, STRING or BINARY."""

OPTIONS = " ".join(dict.fromkeys(["connection format", *_TOPICS, *READER, *_JSON.split(), *_CSV.split()]))
"""Options that a stream may have."""

DEAD = "__dead"
"""The column that is not NULL where a record did not parse: what is known of it."""

_CORRUPT = "__corrupt"
_PARSED = "__parsed"
_REFUSED = {
    "minpartitions": "Spark would split a topic partition among tasks, and its events would lose their order",
    "maxrecordsperpartition": "Spark would split a topic partition among tasks, and its events would lose their order",
    "assign": "a stream reads whole topics, so that none of its partitions is forgotten",
    "groupidprefix": "groups are Spark's own",
}


def refuse_kafka(stream: str, option: str) -> None:
    """Refuse, with the reason, an option that Spark's connector has and a pond must not take.

    Raises:
        QueryRefused: it is one.
    """
    if option.lower().startswith("kafka."):
        raise QueryRefused(
            f"The stream {stream} has the option {option} of a Kafka client.",
            "Name a connection, OPTIONS (connection '…'); who runs the pond says how it is reached.",
        )
    if option.lower() in _REFUSED:
        raise QueryRefused(f"The stream {stream} has the option {option}: {_REFUSED[option.lower()]}.", "Leave it out.")


def declared(stream: Stream) -> Stream:
    """A stream read from Kafka with the columns that Kafka gives and the order they make; any other as it is.

    Raises:
        QueryTypeError: a column or an option does not fit.
        QueryRefused: it has an option of a Kafka client.
        UnsupportedQuery: a format that this version does not have.
    """
    source = stream.source
    if source is None or source.format != KAFKA:
        return stream
    options = dict(source.options)
    for option in options:
        refuse_kafka(stream.name, option)
        if option not in OPTIONS.split():
            raise QueryTypeError(f"`{option}` is not an option of kafka.", f"Use some of: {OPTIONS}.")
    if len([name for name in _TOPICS if options.get(name)]) != 1:
        raise QueryTypeError(f"The stream {stream.name} has no topic.", "Add OPTIONS (subscribe 'topic').")
    given = stream.columns[: -len(META)] if stream.columns[-len(META) :] == META else stream.columns
    for field in given:
        if field.name.lower() in (*(meta.name for meta in META), _CORRUPT, DEAD):
            raise QueryTypeError(f"The column {field.name} of {stream.name} is one that Kafka gives.", "Leave it out.")
    _check_format(stream.name, options, given)
    order = stream.order
    if order is None:
        order = Order("_source", "_offset")
    elif order.columns != ("_source", "_offset"):
        raise QueryTypeError(
            f"The stream {stream.name} has an order of its own; Kafka's is that of its offsets.",
            "Leave out 'order.partition' and 'order.offset'.",
        )
    return msgspec.structs.replace(stream, columns=(*given, *META), order=order)


def _check_format(name: str, options: dict[str, str], given: tuple[Field, ...]) -> None:
    form = options.get("format", "").lower()
    if form not in FORMATS:
        what = f"the format {form}" if form else "no format"
        raise UnsupportedQuery(f"The stream {name} has {what}.", f"Use one of {', '.join(FORMATS)}.")
    allowed = {"connection", "format", *_TOPICS, *READER, *FORMATS[form].split()}
    for option in options:
        if option not in allowed:
            raise QueryTypeError(f"`{option}` is not an option of {form} values.", "Leave it out.")
    if not given:
        raise QueryTypeError(f"The stream {name} declares no columns.", "List them: CREATE TABLE name (a INT, …).")
    if form == "raw" and (len(given) != 1 or given[0].type not in ("string", "binary")):
        raise QueryTypeError(
            f"The stream {name} takes raw values, which are one column.", "Declare one, STRING or BINARY."
        )
    most = options.get("maxOffsetsPerTrigger", "1")
    if not most.isdecimal() or not int(most):
        raise QueryTypeError(f"maxOffsetsPerTrigger of {name} is {most!r}.", "Write a whole number above zero.")
    if options.get("failOnDataLoss", "true").lower() not in ("true", "false"):
        raise QueryTypeError(f"failOnDataLoss of {name} is {options['failOnDataLoss']!r}.", "Write 'true' or 'false'.")


def stand_in_path(stream: Stream) -> str | None:
    """Where Spark thinks a stream of Kafka is while texts are analysed: a pattern that matches nothing, so that
    neither a broker nor the connector is needed; None for other streams.
    """
    if stream.source is None or stream.source.format != KAFKA:
        return None
    return f"/millpond/kafka/{stream.name}/*"


def tells_malformed(stream: Stream) -> bool:
    """Whether records of a stream that do not parse are told apart, to be counted at least."""
    return stream.source is not None and stream.source.format == KAFKA


def kafka_frame(spark: SparkSession, stream: Stream, name: str | None) -> DataFrame:
    """The stream's columns, and `DEAD`: what is known of a record that does not parse, NULL for all others.

    Raises:
        SetupError: the connector or the connection cannot be had.
    """
    assert stream.source is not None
    provide_connector(spark)
    options = dict(stream.source.options)
    reader = spark.readStream.format(KAFKA) if name is None else spark.readStream.name(name).format(KAFKA)
    for option, value in connection(options.get("connection")).of_java().items():
        reader = reader.option(f"kafka.{option}", value)
    # what a transaction has not committed never happened
    reader = reader.option("kafka.isolation.level", "read_committed")
    for option in (*_TOPICS, *READER):
        if option in options:
            reader = reader.option(option, options[option])
    return _parsed(reader.load(), stream, options)


def _parsed(records: DataFrame, stream: Stream, options: dict[str, str]) -> DataFrame:
    fields = stream.columns[: -len(META)]
    value, form = F.col("value"), options["format"].lower()
    source = F.concat_ws("-", "topic", "partition").alias("_source")
    meta = [source, *(F.col(field.name.lstrip("_")).alias(field.name) for field in META[1:])]
    if form == "raw":
        made = value.cast(fields[0].type).alias(fields[0].name)
        return records.select(made, *meta, _dead(stream, value.isNull()))
    schema = StructType.fromDDL(", ".join(f"`{field.name.replace('`', '``')}` {field.type}" for field in fields))
    assert isinstance(schema, StructType)
    schema = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    ours = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    given = {option: options[option] for option in FORMATS[form].split() if option in options} | ours
    text = value.cast("string")
    parsed = F.from_json(text, schema, given) if form == "json" else F.from_csv(text, schema.toDDL(), given)
    rows = records.select("*", parsed.alias(_PARSED))
    inside = F.col(_PARSED)
    failed = value.isNull() | inside.isNull() | inside[_CORRUPT].isNotNull()
    columns = [inside[field.name].alias(field.name) for field in fields]
    return rows.select(*columns, *meta, _dead(stream, failed))


def _dead(stream: Stream, failed: Column) -> Column:
    reason = F.when(F.col("value").isNull(), "the record has no value").otherwise("the value does not parse")
    whole = stream.on_malformed.policy == DEAD_LETTER
    raw = [F.col(name) if whole else F.lit(None).cast("binary").alias(name) for name in ("key", "value")]
    place = ["topic", "partition", "offset", "timestamp"]
    known = F.struct(F.lit(stream.name).alias("stream"), *place, *raw, reason.alias("reason"))
    return F.when(failed, known).alias(DEAD)


def provide_connector(spark: SparkSession) -> None:
    """Make Spark's connector known to a session, from the folder of jars that is named or from Maven.

    Raises:
        SetupError: it cannot be had.
    """
    context, jvm = spark.sparkContext._jsc.sc(), spark._jvm
    assert jvm is not None
    if "spark-sql-kafka-0-10" in str(context.listJars()):
        return
    loader = jvm.Thread.currentThread().getContextClassLoader()
    whole = str(loader.getClass().getName()).endswith(".MutableURLClassLoader")
    for path in connector():
        try:
            if whole:
                # not only in sessions: what an executor says of its failure is read by a thread of none
                loader.addURL(jvm.java.net.URI(path.absolute().as_uri()).toURL())
                context.addJar(str(path.absolute()))
            else:
                spark._jsparkSession.sessionState().resourceLoader().addJar(str(path))
        except (PySparkException, Py4JError) as error:
            raise SetupError(f"{path} cannot be given to Spark: {error}.", "Is it a jar?") from error
