"""Provides the rows that a pond serves as a batch table of Spark, by a Python data source."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from millpond.errors import QueryTypeError
from millpond.model.endpoints import source_kind
from millpond.spark.session.worker import worker_task
from millpond.spark.sources.batch_table_reader import read_table

FORMAT = "millpond"
"""The data source's name in `spark.read.format(…)` and in USING."""


class ServedQuery(Protocol):
    """The latest rows of one query."""

    @property
    def columns(self) -> str:
        """The names and types of the columns, as in CREATE TABLE."""

    @property
    def buckets(self) -> int:
        """The number of buckets that the rows are in."""

    def read(self, low: int, high: int) -> Iterator[pa.RecordBatch]:
        """The current rows in buckets `low` … `high` - 1."""


class ServedTable(DataSource):
    """The data source of `ServedQuery`. Spark keeps the list of partitions and reads them anew with every read."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @abstractmethod
    def served(self, options: Mapping[str, str]) -> ServedQuery:
        """The rows that the options name; the names of options are in lower case."""

    def schema(self) -> str:
        """The columns as a schema of Spark."""
        with worker_task():
            options = self._known()
            _partitions(options)
            return self.served(options).columns

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of the table."""
        with worker_task():
            options = self._known()
            return _Reader(self.served, options, _partitions(options))

    def _known(self) -> dict[str, str]:
        given = {str(name).lower(): str(value) for name, value in self.options.items()}
        known = source_kind(FORMAT).table_options
        for name in given:
            if name not in map(str.lower, known):
                raise QueryTypeError(f"`{name}` is not an option of {FORMAT}.", f"Use {', '.join(known)}.")
        return given


class _Range(InputPartition):
    """Buckets `low` … `high` - 1."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__((low, high))
        self.low, self.high = low, high


class _Reader(DataSourceReader):
    def __init__(
        self, served: Callable[[Mapping[str, str]], ServedQuery], options: Mapping[str, str], partitions: int
    ) -> None:
        self._served, self._options, self._count = served, options, partitions

    def partitions(self) -> list[InputPartition]:
        """Ranges of buckets."""
        with worker_task():
            buckets = self._served(self._options).buckets
        count = min(self._count, buckets)
        return [_Range(i * buckets // count, (i + 1) * buckets // count) for i in range(count)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one range of buckets."""
        with worker_task():
            yield from self._served(self._options).read(partition.low, partition.high)


class ServedFrames:
    """Makes the frames of rows that ponds serve, in one session (see `MakeTable`); `latest` reads them."""

    def __init__(self, latest: type[ServedTable]) -> None:
        self._latest: type[ServedTable] | None = latest

    def __call__(self, spark: SparkSession, name: str, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """The frame of one served table."""
        if self._latest is not None:
            spark.dataSource.register(self._latest)
            self._latest = None  # Spark warns if a source is registered twice
        return read_table(FORMAT, spark, name, schema, options)


def _partitions(options: Mapping[str, str]) -> int:
    given = options.get("numpartitions", "1")
    if not given.isdecimal() or int(given) < 1:
        raise QueryTypeError(f"'numPartitions' is {given!r}.", "Write a number from 1.")
    return int(given)
