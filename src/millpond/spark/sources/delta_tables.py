"""Provides the rows that are appended to a Delta Lake table as a stream of Spark, by a Python data source.

`runtime.inputs.delta_log` decides what an epoch reads. The files between two offsets never change, so an epoch that
runs again reads the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from millpond.errors import QueryTypeError
from millpond.runtime.inputs.delta_files import read_file
from millpond.runtime.inputs.delta_log import MOST_FILES, DataFile, DeltaLog, Limit, Position
from millpond.spark.session.worker import worker_task

FORMAT = "millpond_delta"
"""The data source's name in Spark; another one than that of Delta's own source."""

_TASK_BYTES = 64 << 20
"""Bytes of the files that one task reads; a larger file is a task of its own."""


def provide(spark: SparkSession) -> None:
    """Register the data source in a session."""
    if not spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists(FORMAT):
        spark.dataSource.register(DeltaStream)


class DeltaStream(DataSource):
    """The data source of one table."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of the table."""
        return _Reader({str(name).lower(): str(value) for name, value in self.options.items()}, schema)


class _Files(InputPartition):
    """The files that one task reads."""

    def __init__(self, files: list[DataFile]) -> None:
        super().__init__(None)
        self.files = files


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Translates positions into offsets of Spark, which also contain the id of the table."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options, self._schema = options, to_arrow_schema(schema, timezone="UTC")
        self._log: DeltaLog | None = None
        self._newest: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        with worker_task():
            return self._offset(self._table().first(self._options))

    def getDefaultReadLimit(self) -> ReadLimit:
        with worker_task():
            return ReadMaxFiles(self._number("maxFilesPerTrigger", MOST_FILES))

    def prepareForTriggerAvailableNow(self) -> None:
        with worker_task():
            self._newest = self._table().newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with worker_task():
            log = self._table()
            most = Limit()
            if not isinstance(limit, ReadAllAvailable):
                files = self._number("maxFilesPerTrigger", MOST_FILES)
                most = Limit(files, self._number("maxBytesPerTrigger", float("inf")))
            newest = log.newest() if self._newest is None else self._newest
            return self._offset(log.after(self._position(start), newest, most))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with worker_task():
            parts, size = list[list[DataFile]](), 0
            for file in self._table().files(self._position(start), self._position(end)):
                if not parts or size + file.size > _TASK_BYTES:
                    parts, size = [*parts, []], 0
                parts[-1].append(file)
                size += file.size
            return [_Files(files) for files in parts]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        with worker_task():
            for file in partition.files:
                yield from read_file(file, self._schema)

    def _table(self) -> DeltaLog:
        """The table, opened at the first use, because Spark sends the reader to tasks too."""
        if self._log is None:
            if not self._options.get("path"):
                raise QueryTypeError("A stream USING delta has no path.", "Add OPTIONS (path '…').")
            skips = self._options.get("skipchangecommits", "false").lower() == "true"
            self._log = DeltaLog(self._options["path"], skips_changes=skips)
        return self._log

    def _number(self, name: str, default: Any) -> Any:
        given = self._options.get(name.lower())
        if given is None:
            return default
        if not given.isdecimal() or int(given) < 1:
            raise QueryTypeError(f"'{name}' is {given!r}.", "Write a number from 1.")
        return int(given)

    def _offset(self, position: Position) -> dict[str, Any]:
        return {"table": self._table().id, **position._asdict()}

    def _position(self, offset: dict[str, Any]) -> Position:
        self._table().check_id(offset["table"])
        return Position(offset["version"], offset["file"], offset["snapshot"])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_log": None}
