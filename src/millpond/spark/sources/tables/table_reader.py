"""Reads the rows that are appended to a table, for a stream of Spark.

`runtime.inputs.tables` decides what an epoch reads. The files between two offsets never change, so an epoch that runs
again reads the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from millpond.errors import QueryTypeError
from millpond.runtime.inputs.tables.data_files import DataFile, FileReader
from millpond.runtime.inputs.tables.table_log import MOST_FILES, FilePosition, Limit, TableLog
from millpond.spark.session.worker import worker_task

_TASK_BYTES = 64 << 20
"""Bytes of the files that one task reads; a larger file is a task of its own."""


def provide(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a data source in a session."""
    if not spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists(source.name()):
        spark.dataSource.register(source)


def skips_changes(options: Mapping[str, str]) -> bool:
    """Whether commits that delete or change rows are left out."""
    return options.get("skipchangecommits", "false").lower() == "true"


class _Files(InputPartition):
    """The files that one task reads."""

    def __init__(self, files: list[DataFile], reader: FileReader) -> None:
        super().__init__(None)
        self.files, self.reader = files, reader


class TableReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Translates positions into offsets of Spark, which also contain the id of the table."""

    def __init__(
        self, opens: Callable[[Mapping[str, str]], TableLog], options: Mapping[str, str], schema: StructType
    ) -> None:
        self._opens, self._schema = opens, to_arrow_schema(schema, timezone="UTC")
        self._options = {str(name).lower(): str(value) for name, value in options.items()}
        self._log: TableLog | None = None
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
            reader = self._table().reader()
            return [_Files(files, reader) for files in parts]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        with worker_task():
            for file in partition.files:
                yield from partition.reader.read(file, self._schema)

    def _table(self) -> TableLog:
        """The table, opened at the first use, because Spark sends the reader to tasks too."""
        if self._log is None:
            self._log = self._opens(self._options)
        return self._log

    def _number(self, name: str, default: Any) -> Any:
        given = self._options.get(name.lower())
        if given is None:
            return default
        if not given.isdecimal() or int(given) < 1:
            raise QueryTypeError(f"'{name}' is {given!r}.", "Write a number from 1.")
        return int(given)

    def _offset(self, position: FilePosition) -> dict[str, Any]:
        return {"table": self._table().id, **position._asdict()}

    def _position(self, offset: dict[str, Any]) -> FilePosition:
        self._table().check_id(offset["table"])
        return FilePosition(offset["version"], offset["file"], offset["snapshot"])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_log": None}
