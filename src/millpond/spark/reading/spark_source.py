"""Reads a source that Spark opens by the name of its format, such as `rate`, `delta` or a data source of a package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from millpond.errors import SourceError, UnsupportedQuery
from millpond.model.endpoints import Source, SourceKind, source_kind
from millpond.model.stream import Stream
from millpond.plugins import imported
from millpond.runtime.inputs.backfill import PastEpoch
from millpond.spark.catalyst.data_types import schema_of
from millpond.spark.reading.source_progress import Portion
from millpond.spark.session.failures import explained


class SparkSource:
    """Implements `EventSource` for any source; it cannot be read again."""

    def __init__(self, stream: Stream) -> None:
        assert stream.source is not None
        self.stream, self.source = stream, stream.source
        self.kind = source_kind(stream.source.format)

    def completed(self) -> Stream:
        return self.stream

    def stand_in(self) -> SparkSource:
        """Declared columns suffice for an analysis, so that files and tables need no jar and no data source."""
        path = self.source.option("path")
        if self.kind.prepare is None or path is None or self.kind.columns:
            return self
        return SparkSource(as_json(self.stream, path))

    def frame(
        self, spark: SparkSession, name: str | None, limit: int | None, marks: Mapping[str, str]
    ) -> DataFrame:  # fmt: skip
        return self.opened(spark, name, marks)

    def opened(
        self, spark: SparkSession, name: str | None, options: Mapping[str, str], schema: StructType | None = None
    ) -> DataFrame:
        """The source as a streaming DataFrame, with additional options; `schema`: instead of the declared columns.

        Raises:
            SourceError, SetupError: as `EventSource.frame`.
        """
        prepare(spark, self.kind)
        reader = spark.readStream.format(self.kind.spark_format).options(**dict(self.source.options)).options(**options)
        reader = reader if name is None else reader.name(name)
        if not self.kind.columns:
            reader = reader.schema(schema or schema_of(self.stream.columns))
        try:
            return reader.load()
        except PySparkException as error:
            reason = str(error).strip().splitlines()[0].split(" SQLSTATE:")[0]
            raise SourceError(
                f"The stream {self.stream.name} cannot be read: {reason}", "Check its path and options."
            ) from error
        except Py4JError as error:  # Java's own errors, such as a file system whose jar is missing
            raise explained(error) from error

    def malformed_policy(self) -> tuple[str, float | None] | None:
        return None

    def target_seconds(self) -> float | None:
        return None

    def check_repeatable(self) -> None:
        self._refuse()

    def price(self, spark: SparkSession, folder: Path, epochs: Sequence[PastEpoch]) -> tuple[int, int]:
        self._refuse()

    def portions(self, spark: SparkSession, folder: Path, epochs: Sequence[PastEpoch]) -> Iterator[Portion]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UnsupportedQuery(
            f"{self.stream.name} has the format {self.source.format}, and cannot be read again.",
            "Leave the backfill out.",
        )


def as_json(stream: Stream, path: str) -> Stream:
    """The stream with files of JSON at `path` as its source, which Spark opens without a jar or a server."""
    return msgspec.structs.replace(stream, source=Source("json", (("path", path),)))


def prepare(spark: SparkSession, kind: SourceKind) -> None:
    """Add the jars of a source, or what else it needs.

    Raises:
        SetupError: something is missing.
    """
    if kind.prepare is not None:
        imported(f"the source {kind.name}", kind.prepare, kind.extra)(spark)
