"""Separates malformed records of files that a stream drops (`mode` `DROPMALFORMED`), so that every query counts them.

Spark drops such records without counting them. Its mode `PERMISSIVE` finds the same records and marks them in a column.
All declared columns are parsed, whichever of them the queries read, so that no query affects which records are
malformed. Records of Kafka are separated in `kafka`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from millpond.formats.malformed_reasons import NO_FIT, NO_PARSE
from millpond.model.endpoints import source_kind
from millpond.model.stream import Stream
from millpond.spark.catalyst.data_types import quoted, schema_of
from millpond.spark.sources.kafka import DEAD

MODE, NAME, DROPS = "mode", "columnNameOfCorruptRecord", "DROPMALFORMED"
_DEFAULT = "spark.sql.columnNameOfCorruptRecord"
_OURS = "__malformed"


def drops_malformed(stream: Stream) -> bool:
    """Whether a stream of files leaves out records that do not parse."""
    source = stream.source
    if source is None or not source_kind(source.format).marks_malformed:
        return False
    return (source.option(MODE) or "").upper() == DROPS


class MarkedFiles:
    """How the files of a stream that drops malformed records are read, so that these records are marked."""

    def __init__(self, spark: SparkSession, stream: Stream) -> None:
        assert stream.source is not None
        self._stream = stream
        names = [field.name for field in stream.columns]
        self._mark = mark_in(spark, stream.source.option(NAME) or "", names)
        declared = schema_of(stream.columns)
        added = [] if self._mark in names else [StructField(self._mark, StringType())]
        self.schema = StructType([*declared.fields, *added])

    @property
    def options(self) -> dict[str, str]:
        """The options of the reader that differ from those of the stream."""
        return {MODE: "PERMISSIVE", NAME: self._mark}

    def separated(self, frame: DataFrame) -> DataFrame:
        """The columns of the stream, and `DEAD`."""
        names = [field.name for field in self._stream.columns]
        # This expression reads every column, so that Spark parses all of them.
        nothing = reduce(Column.__and__, (F.col(name).isNull() for name in map(quoted, names) if name != self._mark))
        reason = F.when(nothing, F.lit(NO_PARSE)).otherwise(F.lit(NO_FIT))
        unknown = {"topic": "string", "partition": "int", "offset": "bigint", "timestamp": "timestamp"}
        unknown |= {"key": "binary", "value": "binary"}
        place = (F.lit(None).cast(kind).alias(name) for name, kind in unknown.items())
        known = F.struct(F.lit(self._stream.name).alias("stream"), *place, reason.alias("reason"))
        dead = F.when(F.col(quoted(self._mark)).isNotNull(), known)
        return frame.select(*(F.col(quoted(name)) for name in names), dead.alias(DEAD))


def mark_in(spark: SparkSession, given: str, names: Collection[str]) -> str:
    """The column that marks malformed records; `given`: the name in the options, if any; `names`: the columns.

    A declared column of the given name is not parsed, and is NULL for records that are not malformed.
    """
    name = given or str(spark.conf.get(_DEFAULT))
    return name if name in names else _OURS
