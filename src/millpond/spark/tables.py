"""How batch tables become frames: Spark reads most formats; what makes those of others is handed to the front end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession

from millpond.spark.types import table_schema

MakeTable: TypeAlias = Callable[[SparkSession, str, str | None, Mapping[str, str]], DataFrame]
"""Of a session, a table's name, its columns in SQL if they are listed, and its options the frame that stands for it."""


def read_table(
    format_: str, spark: SparkSession, _name: str, schema: str | None, options: Mapping[str, str]
) -> DataFrame:
    """The frame of a table that Spark can read by itself; see `MakeTable`."""
    reader = spark.read.format(format_).options(**options)
    return (reader if schema is None else reader.schema(table_schema(schema))).load()
