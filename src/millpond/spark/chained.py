"""The rows of an earlier query as a stream that texts can name: Spark only analyses it, and never reads it."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from millpond.errors import UnsupportedQuery
from millpond.model.join import Join
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.model.stream import Stream
from millpond.model.types import WINDOW
from millpond.plan.chain import chained_stream, check_event_time
from millpond.spark.catalyst import WINDOW_MARK
from millpond.spark.extract import Extraction
from millpond.spark.read import quoted

_NOWHERE = "/millpond/rows/*"
"""A pattern that matches nothing: Spark wants a folder to be there, but not what a pattern finds."""


def show_rows(spark: SparkSession, upstream: AnyQuery) -> Stream:
    """Make the rows of a query readable by its name.

    Raises:
        UnsupportedQuery: it has no windows, or its rows may change.
    """
    stream = chained_stream(upstream)
    columns = ", ".join(f"{quoted(item.name)} {item.expression.type}" for item in upstream.output)
    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    for field, item in zip(schema.fields, upstream.output, strict=True):
        if item.expression.type == WINDOW:
            field.metadata = {WINDOW_MARK: True}  # so that window(w, …) means a window over its time, as in Spark
    frame = spark.readStream.format("json").schema(schema).load(_NOWHERE)
    frame.createOrReplaceTempView(upstream.name)
    return stream


def check_chained(found: Extraction, upstream: AnyQuery) -> None:
    """Refuse what only Spark could do with the rows of a query, and an event time that they do not tell.

    Raises:
        UnsupportedQuery: see above.
    """
    name = upstream.name
    if found.derived is not None or isinstance(found.query, Join):
        raise UnsupportedQuery(
            f"Rows of {name} cannot be joined, united or exploded: Spark does that, and does not see them.",
            f"Do it below the aggregation of {name}.",
        )
    for projected in found.foreigns.values():
        raise UnsupportedQuery(
            f"`{projected.value.sql}` is evaluated by Spark, which does not see the rows of {name}.",
            f"Let {name} show it as a column.",
        )
    if isinstance(found.query, Query) and isinstance(upstream, Query):
        check_event_time(upstream, found.query)
