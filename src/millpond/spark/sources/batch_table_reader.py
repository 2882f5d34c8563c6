"""Reads a batch table with Spark; `MakeTable` is the type of all readers of batch tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from millpond.spark.catalyst.data_types import table_schema
from millpond.spark.session.failures import explained

MakeTable: TypeAlias = Callable[[SparkSession, str, str | None, Mapping[str, str]], DataFrame]
"""Creates a table's frame from a session, the table's name, its columns in SQL if they are listed, and its options."""


def read_table(
    format_: str, spark: SparkSession, _name: str, schema: str | None, options: Mapping[str, str]
) -> DataFrame:
    """The frame of a table that Spark can read by itself; see `MakeTable`.

    Raises:
        SourceError: its file system is missing.
    """
    reader = spark.read.format(format_).options(**options)
    try:
        return (reader if schema is None else reader.schema(table_schema(schema))).load()
    except Py4JError as error:
        raise explained(error) from error
