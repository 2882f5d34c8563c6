"""Adds the GENERATED columns of a stream to its frame, where texts and frames are analysed.

A query that names such a column contains its expression. So nothing is added to what is read, and an expression that
raises fails only for the events of the queries that use it.
"""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.errors import QueryError, QueryTypeError, UnsupportedQuery
from millpond.model.stream import Generated, Stream
from millpond.spark.catalyst.data_types import sql_type
from millpond.spark.catalyst.private_names import Catalyst, analysed, items, kind_of
from millpond.spark.catalyst.spark_expressions import check_stable
from millpond.spark.reading.time_zones import in_zone


def with_generated(spark: SparkSession, frame: DataFrame, stream: Stream) -> DataFrame:
    """The frame of a stream with its generated columns, in the order of the declaration.

    Raises:
        QueryError: an expression does not exist over the columns that are read, or is not deterministic.
    """
    if not stream.generated:
        return frame
    catalyst = Catalyst(spark)
    columns = [frame[f"`{name.replace('`', '``')}`"] for name in frame.columns]
    for generated in stream.generated:
        column = F.expr(f"({generated.sql}\n)")
        subject = f"The column {generated.name} of {stream.name}, GENERATED ALWAYS AS ({generated.sql}),"
        try:
            zoned = in_zone(frame, generated.zone or None)
            alone = zoned.select(column.alias(generated.name))
            _check(catalyst, zoned, alone, generated)
            if sql_type(alone.schema[0].dataType) != generated.type:
                column = column.cast(generated.type)
            column = catalyst.column(items(analysed(zoned.select(column)).projectList())[0])
        except PySparkException as error:
            reason = str(error).splitlines()[0].split(" SQLSTATE:")[0]
            raise QueryTypeError(
                f"{subject} cannot be computed: {reason}", "Write an expression over columns that are not GENERATED."
            ) from error
        except QueryError as error:
            raise type(error)(f"{subject} cannot be computed: {error.what}", error.cure) from error
        columns.insert(generated.position, column.alias(generated.name))
    return frame.select(*columns)


def _check(catalyst: Catalyst, frame: DataFrame, alone: DataFrame, made: Generated) -> None:
    plan = analysed(alone)
    if kind_of(plan) != "Project" or kind_of(plan.child()) != kind_of(analysed(frame)):
        raise UnsupportedQuery(f"`{made.sql}` is no expression of one row.", "Use the event's own columns.")
    expression = items(plan.projectList())[0].child()
    check_stable(catalyst, expression)
    if not expression.deterministic():
        raise UnsupportedQuery(f"`{made.sql}` is not deterministic.", "Use the event's own columns.")
