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
from millpond.spark.catalyst.private_names import JavaObject, children, items, kind_of, pairs
from millpond.spark.sources.malformed_files import DROPS, MODE, NAME, mark_in

_FORMATS = {"JsonFileFormat": "json", "CSVFileFormat": "csv"}
_PATHS = ("path", "paths")


class MalformedRows(NamedTuple):
    """How many rows a table has, and how many of these do not parse, in some column."""

    table: str
    rows: int
    malformed: int


class MalformedTables:
    """The tables among batch plans that leave out rows; `report` is called with each table that has such rows."""

    def __init__(
        self, spark: SparkSession, plans: Iterable[JavaObject], report: Callable[[MalformedRows], None]
    ) -> None:
        self._spark, self._report = spark, report
        self._relations = {table: relation for plan in plans for table, relation in _dropping(plan)}
        self._seen: dict[str, tuple[int, int]] = {}

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
                found = self._counted(table, relation)
                if found.malformed:
                    self._report(found)

    def _counted(self, table: str, relation: JavaObject) -> MalformedRows:
        options = {key.lower(): value for key, value in pairs(relation.options())}
        schema = StructType.fromJson(json.loads(relation.dataSchema().json()))
        mark = mark_in(self._spark, options.get(NAME.lower(), ""), schema.names)
        if mark not in schema.names:
            schema = StructType([*schema.fields, StructField(mark, StringType())])
        given = {name: value for name, value in options.items() if name not in _PATHS}
        reader = self._spark.read.format(_FORMATS[kind_of(relation.fileFormat())]).options(**given)
        reader = reader.options(**{MODE: "PERMISSIVE", NAME: mark, "__globPaths__": "false"})
        # The minimum reads every column, so that Spark parses all of them.
        empty = reduce(Column.__and__, (F.col(quoted(name)).isNull() for name in schema.names))
        frame = reader.schema(schema).load(_paths(relation))
        (row,) = frame.agg(F.count("*"), F.count(F.col(quoted(mark))), F.min(F.when(empty, 0).otherwise(1))).collect()
        return MalformedRows(table, int(row[0]), int(row[1]))


def _dropping(plan: JavaObject) -> Iterable[tuple[str, JavaObject]]:
    """The relations of a batch plan that leave out malformed rows, each with its name in messages."""
    stack = [plan]
    while stack:
        node = stack.pop()
        stack.extend(children(node))
        if kind_of(node) != "LogicalRelation" or kind_of(node.relation()) != "HadoopFsRelation":
            continue
        relation = node.relation()
        options = {key.lower(): value for key, value in pairs(relation.options())}
        form = _FORMATS.get(kind_of(relation.fileFormat()))
        if form is not None and options.get(MODE, "").upper() == DROPS:
            yield f"{form} {', '.join(_paths(relation)).replace('file:', '')}", relation


def _paths(relation: JavaObject) -> list[str]:
    return [str(path.toString()) for path in items(relation.location().rootPaths())]
