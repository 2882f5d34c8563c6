"""Evaluates expressions over the results of aggregations, between the two Python tasks of a fold that needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millpond.model.expressions import Foreign
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, analysed, id_of, items, references
from millpond.spark.catalyst.spark_expressions import Projected


def evaluated(trees: Mapping[str, Projected], inputs: DataFrame, expressions: Sequence[Foreign]) -> DataFrame:
    """The frame with the values of expressions in place of their inputs; `trees`: what Spark evaluates, by key."""
    catalyst = Catalyst(inputs.sparkSession)
    columns = {str(column.name()): column for column in items(analysed(inputs).output())}
    values = {
        one.name: _evaluated(catalyst, columns[one.name], one, trees[one.key].expression).alias(one.name)
        for one in expressions
    }
    return inputs.select(*(values.get(name, catalyst.column(column)) for name, column in columns.items()))


def _evaluated(catalyst: Catalyst, inputs: JavaObject, value: Foreign, expression: JavaObject) -> Column:
    """`struct<v>` of an expression over the fields of `inputs`; NULL if it raises, and for rows without it."""
    fields = []
    for column in {id_of(one): one for one in references(expression)}.values():
        name = str(column.name())
        field = catalyst.make("GetStructField", inputs, value.columns.index(name), catalyst.none)
        fields.append(catalyst.alias(field, name, column))
    attempt = catalyst.column(catalyst.attempt(catalyst.substitute(expression, fields)))
    return F.when(catalyst.column(inputs).isNotNull(), attempt)
