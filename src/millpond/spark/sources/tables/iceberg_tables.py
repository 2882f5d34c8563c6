"""Provides the rows that are appended to Iceberg tables as a stream of Spark."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from millpond.runtime.inputs.tables.iceberg_log import IcebergLog
from millpond.runtime.inputs.tables.table_log import TableLog
from millpond.spark.sources.tables.table_reader import TableReader, provide, skips_changes


def provide_iceberg(spark: SparkSession) -> None:
    """Register the data source in a session."""
    provide(spark, IcebergStream)


class IcebergStream(DataSource):
    """The data source of one table. Its name differs from that of Iceberg's own source."""

    @classmethod
    def name(cls) -> str:
        return "millpond_iceberg"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of the table."""
        return TableReader(_open, self.options, schema)


def _open(options: Mapping[str, str]) -> TableLog:
    path, catalog, table = (options.get(name) for name in ("path", "catalog", "table"))
    return IcebergLog(path, catalog, table, skips_changes=skips_changes(options))
