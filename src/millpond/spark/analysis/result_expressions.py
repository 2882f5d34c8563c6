"""Expressions over the results of an aggregation: what the model cannot express is evaluated by Spark in the fold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from millpond.errors import UnsupportedQuery
from millpond.model.expressions import Call, Column, Expression, Literal, columns_of, struct_of
from millpond.model.types import WINDOW, is_storable, struct_fields
from millpond.model.windows import Counted, Pattern, Window
from millpond.plan.upstream.upstream_joins import WINDOW_OF
from millpond.spark.analysis.joins.plan_nodes import constant
from millpond.spark.analysis.live_parameters import has_stand_in
from millpond.spark.catalyst.cures import cast_cure
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    id_of,
    kind_of,
    outputs,
    references,
    text_of,
    type_of,
)
from millpond.spark.catalyst.spark_expressions import Projected, TableRows, project, tree_of
from millpond.spark.catalyst.value_bounds import TABLE
from millpond.spark.sources.batch_tables import relation_tree

_WHOLE = Column("window", WINDOW)
_BOUNDS = struct_of((Column("window.start", "timestamp"), Column("window.end", "timestamp")), WINDOW)


def inlined(catalyst: Catalyst, expression: JavaObject, defined: Mapping[int, JavaObject]) -> JavaObject:
    """The expression in which columns that projections define, by their ids, are replaced by their definitions."""
    while found := {id_of(one): one for one in references(expression) if id_of(one) in defined}:
        aliases = [catalyst.alias(defined[identity], "e", one) for identity, one in found.items()]
        expression = catalyst.substitute(expression, aliases)
    return expression


class TableAbove(NamedTuple):
    """The rows of a table that are joined to results; see `TableRows`. The probes are over the results' columns."""

    plan: JavaObject
    columns: tuple[JavaObject, ...]
    keys: tuple[JavaObject, ...]
    probes: tuple[JavaObject, ...]
    null_safe: tuple[bool, ...]


_NO_TABLES: Mapping[int, TableAbove] = MappingProxyType({})


def projected_above(
    catalyst: Catalyst, node: JavaObject, expression: JavaObject, meanings: Callable[[JavaObject], Expression],
    tables: Mapping[int, TableAbove] = _NO_TABLES, sql: str | None = None,
) -> Projected:  # fmt: skip
    """What Spark evaluates for `node`; in `expression`, its columns are those of the aggregation.

    `meanings` translates these columns. `tables`: by their ids, the columns that are rows of tables. `sql`: the text
    that describes the expression for people, instead of its own.

    Raises:
        UnsupportedQuery: it is not deterministic, calls a Python function, or makes values that no row can have.
    """
    if not is_storable(type_of(node)):
        raise UnsupportedQuery(
            f"`{text_of(node)}` has the type {type_of(node)}, which is not supported.", cast_cure(type_of(node))
        )
    used = {id_of(one): tables[id_of(one)] for one in references(expression) if id_of(one) in tables}
    probes = [probe for table in used.values() for probe in table.probes]
    if any(has_stand_in(str(part.sql())) for part in (expression, *probes)):
        raise UnsupportedQuery(
            f"`{text_of(node)}` uses a live parameter in an expression that only Spark evaluates.",
            "Compare the parameter with a column of its own.",
        )
    named = []
    every = {id_of(one): one for part in (expression, *probes) for one in references(part)}
    for column in (one for identity, one in every.items() if identity not in used):
        meaning = meanings(column)
        if isinstance(meaning, Literal):
            raise UnsupportedQuery(
                f"`{text_of(node)}` reads {column.name()}, which is a constant key.", "Write the constant itself."
            )
        if isinstance(meaning, Column):
            named.append(catalyst.alias(catalyst.named(column, meaning.name), meaning.name, column))
        else:
            named.append(catalyst.alias(_catalyst_of(catalyst, column, meaning), "key", column))
    if any(map(_calls_python, (expression, *probes))):
        raise UnsupportedQuery(
            f"`{text_of(node)}` calls a Python function over results, which is not supported.",
            "Call it over the events, below the aggregation or join, or where the rows are read.",
        )
    rows = {identity: _table_rows(catalyst, table, named) for identity, table in used.items()}
    for column in (one for identity, one in every.items() if identity in used):
        name = rows[id_of(column)].name
        named.append(catalyst.alias(catalyst.named(column, name), name, column))
    made = project(catalyst, catalyst.substitute(expression, named))
    own = {*made.value.columns} - {one.name for one in rows.values()}
    own |= {name for one in rows.values() for probe in one.probes for name in probe.value.columns}
    value = msgspec.structs.replace(made.value, columns=tuple(sorted(own)), sql=sql or made.value.sql)
    return made._replace(value=value, tables=tuple(rows.values()))


def _table_rows(catalyst: Catalyst, table: TableAbove, named: Sequence[JavaObject]) -> TableRows:
    """The rows of a table; `named`: aliases that give the results' columns their names."""
    places = {id_of(column): place for place, column in enumerate(outputs(table.plan))}
    probes = tuple(project(catalyst, catalyst.substitute(probe, named)) for probe in table.probes)
    tree = [
        relation_tree(catalyst, table.plan), [places[id_of(column)] for column in table.columns],
        [tree_of(catalyst, key, lambda column: places[id_of(column)]) for key in table.keys],
        [probe.value.key for probe in probes], table.null_safe,
    ]  # fmt: skip
    name = f"{TABLE}{hashlib.sha256(json.dumps(tree).encode()).hexdigest()[:16]}"
    return TableRows(name, table.plan, table.columns, table.keys, probes, table.null_safe)


def _calls_python(expression: JavaObject) -> bool:
    return kind_of(expression) == "PythonUDF" or any(map(_calls_python, children(expression)))


def null_for_null(expression: JavaObject) -> bool:
    """Whether an expression is NULL where a column that it reads is NULL, as `reverse(a)` is, and `array(a)` is not."""
    if kind_of(expression) in ("AttributeReference", "Literal"):
        return True
    return bool(expression.nullIntolerant()) and all(map(null_for_null, children(expression)))


def with_bounds(expression: Expression) -> Expression:
    """The expression with windows inside of it made of their bounds; a column that is a window stays."""
    if not isinstance(expression, Call):
        return expression
    return Call(expression.op, tuple(map(_part_with_bounds, expression.args)), expression.type)


def _part_with_bounds(part: Expression) -> Expression:
    made = with_bounds(part)
    if isinstance(made, Call) and made.op == WINDOW_OF:
        return struct_of(made.args, WINDOW)
    return _BOUNDS if made == _WHOLE else made


def _catalyst_of(catalyst: Catalyst, column: JavaObject, meaning: Expression) -> JavaObject:
    """The Catalyst expression for a key, over the columns of the results; `column` is a column of its type.

    Raises:
        UnsupportedQuery: a part of it is a constant or a window.
    """
    if isinstance(meaning, Column):
        return catalyst.named(catalyst.alias(column, "key").toAttribute(), meaning.name)
    if isinstance(meaning, Call) and meaning.op == "case":
        return _lag_expression(catalyst, column, meaning)
    if isinstance(meaning, Call) and meaning.op == "cast":
        return _row_number(catalyst, column, meaning)
    if not (isinstance(meaning, Call) and meaning.op == "struct"):
        what = f"An expression that only Spark evaluates reads `{column.name()}`, which is a constant or a window."
        raise UnsupportedQuery(what, "Write the constant itself, or use the bounds of the window.")
    fields: list[JavaObject] = []
    for place, (field, value) in enumerate(zip(struct_fields(meaning.type), meaning.args[1:], strict=True)):
        part = catalyst.make("GetStructField", column, place, catalyst.none)
        fields += [catalyst.literal(field.name), _catalyst_of(catalyst, part, value)]
    made = catalyst.make("CreateNamedStruct", fields)
    if isinstance(meaning.args[0], Literal):
        return made
    condition = meaning.args[0]
    if isinstance(condition, Call) and condition.op == "isnotnull" and condition.args[0] == meaning.args[1]:
        present = catalyst.not_null(fields[1])
    else:
        present = _catalyst_of(catalyst, catalyst.not_null(column), condition)
    return catalyst.make("If", present, made, catalyst.make("Literal", None, column.dataType()))


def _row_number(catalyst: Catalyst, column: JavaObject, number: Call) -> JavaObject:
    """The Catalyst expression for `row_number()` over events, see `frames.Frames.value`: a count, cast to an INT."""
    (count,) = number.args
    assert isinstance(count, Column) and count.type == "bigint"
    attribute = catalyst.alias(constant(catalyst, "0L"), "count").toAttribute()
    return catalyst.make("Cast", catalyst.named(attribute, count.name), column.dataType(), catalyst.none)


def _lag_expression(catalyst: Catalyst, column: JavaObject, lag: Call) -> JavaObject:
    """The Catalyst expression for `lag` over events, see `frames.Frames.value`: the first value of a complete frame.

    Raises:
        UnsupportedQuery: it has a default.
    """
    complete, first, default = lag.args
    assert isinstance(complete, Call)
    number, wanted = complete.args
    assert isinstance(number, Column) and isinstance(wanted, Literal)
    if not isinstance(default, Literal) or default.text is not None:
        raise UnsupportedQuery(
            f"An expression that only Spark evaluates reads `{column.name()}`, which has a default.",
            "Leave the default of lag out, and write coalesce(lag(x) OVER (…), y) around it.",
        )
    rows = constant(catalyst, f"{wanted.text}L")
    count = catalyst.named(catalyst.alias(rows, "count").toAttribute(), number.name)
    value = _catalyst_of(catalyst, column, first)
    return catalyst.make(
        "If", catalyst.make("EqualTo", count, rows), value, catalyst.make("Literal", None, column.dataType())
    )


def check_window_time(window: Window, parts: Sequence[Expression]) -> None:
    """Refuse HAVING or outputs (`parts`) that use the last moment of a window that is no interval of fixed bounds.

    Raises:
        UnsupportedQuery: they do.
    """
    if isinstance(window, Counted | Pattern) and any("window.time" in columns_of(part) for part in parts):
        raise UnsupportedQuery("window_time of a count window or of a match is not supported.", "Use window.end.")
