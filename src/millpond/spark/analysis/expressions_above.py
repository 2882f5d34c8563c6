"""Expressions over the results of an aggregation that the model cannot express: Spark evaluates them in the fold."""

from __future__ import annotations

from collections.abc import Mapping

from millpond.errors import UnsupportedQuery
from millpond.model.expressions import Column, Expression
from millpond.model.types import is_known
from millpond.spark.analysis.live_parameters import has_stand_in
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    id_of,
    kind_of,
    references,
    text_of,
    type_of,
)
from millpond.spark.catalyst.spark_expressions import Projected, project


def inlined(catalyst: Catalyst, expression: JavaObject, defined: Mapping[int, JavaObject]) -> JavaObject:
    """The expression in which columns that projections define, by their ids, are replaced by their definitions."""
    while found := {id_of(one): one for one in references(expression) if id_of(one) in defined}:
        aliases = [catalyst.alias(defined[identity], "e", one) for identity, one in found.items()]
        expression = catalyst.substitute(expression, aliases)
    return expression


def projected_above(
    catalyst: Catalyst, node: JavaObject, expression: JavaObject, meanings: Mapping[int, Expression]
) -> Projected:
    """What Spark evaluates for `node`; in `expression`, its columns are those of the aggregation.

    `meanings`: these columns, by their ids.

    Raises:
        UnsupportedQuery: it is not deterministic, calls a Python function, or makes values that no row can have.
    """
    if not (is_known(type_of(node)) or emitted(node.dataType())):
        raise UnsupportedQuery(
            f"`{text_of(node)}` is a {type_of(node)}, which is planned, not answered yet.", "Cast it to string."
        )
    if has_stand_in(str(expression.sql())):
        raise UnsupportedQuery(
            f"`{text_of(node)}` uses a live parameter in an expression that only Spark evaluates.",
            "Compare the parameter with a column of its own.",
        )
    named = []
    for column in {id_of(one): one for one in references(expression)}.values():
        meaning = meanings[id_of(column)]
        if not isinstance(meaning, Column):
            raise UnsupportedQuery(
                f"`{text_of(node)}` reads {column.name()}, which is a constant key.", "Write the constant itself."
            )
        named.append(catalyst.alias(catalyst.named(column, meaning.name), meaning.name, column))
    if _calls_python(expression):
        raise UnsupportedQuery(
            f"`{text_of(node)}` calls a Python function above an aggregation, which is planned, not answered yet.",
            "Call it below the aggregation, or where the rows are read.",
        )
    return project(catalyst, catalyst.substitute(expression, named))


def _calls_python(expression: JavaObject) -> bool:
    return kind_of(expression) == "PythonUDF" or any(map(_calls_python, children(expression)))


def emitted(kind: JavaObject) -> bool:
    """Whether values of a type can be emitted; this includes nested types and bytes, which Arrow passes unchanged."""
    if kind_of(kind) == "ArrayType":
        return emitted(kind.elementType())
    if kind_of(kind) == "MapType":
        return emitted(kind.keyType()) and emitted(kind.valueType())
    if kind_of(kind) == "StructType":
        return all(emitted(part.dataType()) for part in kind.fields())
    name = str(kind.catalogString())
    return name == "binary" or is_known(name)
