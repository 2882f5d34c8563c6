"""Counts malformed rows of joined tables of JSON and CSV files that `mode` `DROPMALFORMED` leaves out.

Spark drops such rows without counting them. So a table is read once more, in mode `PERMISSIVE`, before the first epoch
and whenever the list of its files has changed. Records of streams are counted as they are read (`malformed_files`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from millpond.spark.catalyst.data_types import quoted
from millpond.spark.catalyst.private_names import JavaObject, items, kind_of, pairs
from millpond.spark.sources.batch_tables import file_relations
from millpond.spark.sources.malformed_files import DROPS, MODE, NAME, mark_in

_FORMATS = {"JsonFileFormat": "json", "CSVFileFormat": "csv"}
_PATHS = ("path", "paths")


class MalformedRows(NamedTuple):
    """How many rows a table has, and how many of these do not parse, in some column."""

    table: str
    rows: int
    malformed: int


class _Table(NamedTuple):
    """A table that leaves out malformed rows. Equal tables are counted once. Tables over one folder with other columns
    or options are counted separately."""

    form: str
    paths: tuple[str, ...]
    columns: str
    """The columns as JSON."""
    options: tuple[tuple[str, str], ...]

    @property
    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(self.columns))

    def name(self, others: Iterable[_Table]) -> str:
        """The name in messages, which has the columns if one of the `others` has the same files."""
        files = f"{self.form} {', '.join(self.paths).replace('file:', '')}"
        alone = all(other is self or other[:2] != self[:2] for other in others)
        return files if alone else f"{files} ({', '.join(self.schema.names)})"


class MalformedTables:
    """The tables among batch plans that leave out rows; `report` is called with each table that has such rows."""

    def __init__(
        self, spark: SparkSession, plans: Iterable[JavaObject], report: Callable[[MalformedRows], None]
    ) -> None:
        self._spark, self._report = spark, report
        relations = (relation for plan in plans for relation in file_relations(plan))
        self._relations = {table: one for one in relations if (table := _dropping(one)) is not None}
        self._seen: dict[_Table, tuple[int, int]] = {}

    def look(self) -> None:
        """Count the rows of each table whose list of files is new.

        Raises:
            PySparkException, Py4JError: a table cannot be read.
        """
        for table, relation in self._relations.items():
            index = relation.location()
            files = len(index.inputFiles()), int(index.sizeInBytes())
            if self._seen.get(table) != files:
                self._seen[table] = files
                found = self._counted(table)
                if found.malformed:
                    self._report(found)

    def _counted(self, table: _Table) -> MalformedRows:
        options = dict(table.options)
        schema = table.schema
        mark = mark_in(self._spark, options.get(NAME.lower(), ""), schema.names)
        if mark not in schema.names:
            schema = StructType([*schema.fields, StructField(mark, StringType())])
        given = {name: value for name, value in options.items() if name not in _PATHS}
        reader = self._spark.read.format(table.form).options(**given)
        reader = reader.options(**{MODE: "PERMISSIVE", NAME: mark, "__globPaths__": "false"})
        # The minimum reads every column, so that Spark parses all of them.
        empty = reduce(Column.__and__, (F.col(quoted(name)).isNull() for name in schema.names))
        frame = reader.schema(schema).load([*table.paths])
        (row,) = frame.agg(F.count("*"), F.count(F.col(quoted(mark))), F.min(F.when(empty, 0).otherwise(1))).collect()
        return MalformedRows(table.name(self._relations), int(row[0]), int(row[1]))


def _dropping(relation: JavaObject) -> _Table | None:
    """The table of a relation if it leaves out malformed rows; otherwise None."""
    options = {key.lower(): value for key, value in pairs(relation.options())}
    form = _FORMATS.get(kind_of(relation.fileFormat()))
    if form is None or options.get(MODE, "").upper() != DROPS:
        return None
    paths = tuple(str(path.toString()) for path in items(relation.location().rootPaths()))
    return _Table(form, paths, str(relation.dataSchema().json()), tuple(sorted(options.items())))
