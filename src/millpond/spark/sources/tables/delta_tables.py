"""Provides the rows that are appended to Delta Lake tables as a stream of Spark."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from millpond.errors import QueryTypeError
from millpond.runtime.inputs.tables.delta_log import DeltaLog
from millpond.runtime.inputs.tables.table_log import TableLog
from millpond.spark.sources.tables.table_reader import TableReader, provide, skips_changes


def provide_delta(spark: SparkSession) -> None:
    """Register the data source in a session."""
    provide(spark, DeltaStream)


class DeltaStream(DataSource):
    """The data source of one table. Its name differs from that of Delta's own source."""

    @classmethod
    def name(cls) -> str:
        return "millpond_delta"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of the table."""
        return TableReader(_open, self.options, schema)


def _open(options: Mapping[str, str]) -> TableLog:
    if not options.get("path"):
        raise QueryTypeError("A stream USING delta has no path.", "Add OPTIONS (path '…').")
    return DeltaLog(options["path"], skips_changes=skips_changes(options))
