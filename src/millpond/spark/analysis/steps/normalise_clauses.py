"""Rewrites clauses of an analysed plan to fewer equivalent forms.

UNPIVOT, `stack` and table functions such as `LATERAL explode(…)` become `LATERAL VIEW inline(…)` or `explode(…)`.
`json_tuple`, which makes one row of an event, becomes columns. Partitionings are left out.
INTERSECT and EXCEPT become joins, by the rules of Spark's optimiser. DISTINCT of rows with a window, below or above an
aggregation, becomes GROUP BY. Functions over frames of time and over frames of rows become two steps.
"""

from __future__ import annotations

import re
from itertools import chain

from millpond.errors import UnsupportedQuery
from millpond.model.types import EVENT_TIME_TYPES
from millpond.spark.analysis.frames import counts_rows
from millpond.spark.analysis.joins.plan_nodes import join, logical
from millpond.spark.analysis.steps.step_boundaries import cut_below
from millpond.spark.catalyst.allow_list import PARTITIONINGS
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    conjuncts,
    id_of,
    items,
    kind_of,
    optional,
    outputs,
    references,
    text_of,
    type_of,
    window_mark,
)

_SETS = {"Intersect": "ReplaceIntersectWithSemiJoin", "Except": "ReplaceExceptWithAntiJoin"}
_ROWS = ("Project", "Filter", "SubqueryAlias")
ON_TRUE = "Write ON true after it."
MOST_ROWS = 100
"""The most rows that `stack` or UNPIVOT may make of an event."""
_FIELD = re.compile(r"[^'?]+")
"""The names of fields that a path of JSON can have in quotes."""
MOST_COMPARED = 250
"""The most columns that INTERSECT or EXCEPT may compare; Spark nests the comparisons in each other."""


def normalise_clauses(catalyst: Catalyst, node: JavaObject, *, grouped: bool = False) -> JavaObject:
    """The plan after these rewrites; `grouped`: only nodes that keep no state are between it and an aggregation."""
    if not node.isStreaming():
        return node
    kind = kind_of(node)
    if kind in PARTITIONINGS:
        return normalise_clauses(catalyst, node.child(), grouped=grouped)
    below = kind == "Aggregate" or (grouped and kind in _ROWS)
    parts = [normalise_clauses(catalyst, child, grouped=below) for child in children(node)]
    node = catalyst.rebuilt(node, parts)
    if kind == "Expand":
        return _unpivoted(catalyst, node)
    if kind == "Generate" and kind_of(node.generator()) == "Stack":
        return _stacked(catalyst, node)
    if kind == "Generate" and kind_of(node.generator()) == "JsonTuple":
        return _json_fields(catalyst, node)
    if kind == "Window":
        return _with_one_kind_of_frame(catalyst, _with_one_order(catalyst, node))
    if kind == "LateralJoin":
        return _lateral(catalyst, node)
    distinct = kind in _SETS and _has_distinct_rows(node)
    if kind in _SETS and (distinct or not node.isAll()):
        if len(outputs(node)) > MOST_COMPARED:
            raise UnsupportedQuery(
                f"{kind.upper()} compares {len(outputs(node)):,} columns; {MOST_COMPARED} are allowed.",
                "Compare by a key: WHERE EXISTS (SELECT 1 FROM t WHERE t.k = s.k), or NOT EXISTS.",
            )
        node = _joined(catalyst, node, distinct=distinct)
    by_window = kind_of(node) == "Distinct" and any(map(window_mark, outputs(node)))
    if by_window and (grouped or cut_below(node) is not None):
        return logical(catalyst, "Aggregate", outputs(node), outputs(node), node.child(), catalyst.none)
    return node


def _with_one_order(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """Merges two nodes in one order: Spark makes one for each function if the order is an expression."""
    below, orders = node.child(), [items(one.orderSpec()) for one in (node, node.child()) if kind_of(one) == "Window"]
    if len(orders) < 2 or any(len(order) != 1 or type_of(order[0].child()) != "bigint" for order in orders):
        return node
    (own, lower), source = (order[0].child() for order in orders), below.child()
    while kind_of(source) == "Window":
        source = source.child()
    if kind_of(source) != "Project":
        return node
    defined = {id_of(one): one.child() for one in items(source.projectList()) if kind_of(one) == "Alias"}
    if not all(id_of(one) in defined for one in (own, lower)) or not defined[id_of(own)].semanticEquals(
        defined[id_of(lower)]
    ):
        return node
    same = [catalyst.alias(lower, str(own.name()), own)]
    calls = [catalyst.substitute(call, same) for call in items(node.windowExpressions())]
    emitted = {id_of(call) for call in items(below.windowExpressions())}
    alike = str(catalyst.seq(items(node.partitionSpec())).toString()) == str(below.partitionSpec().toString())
    if not alike or any(id_of(column) in emitted for call in calls for column in references(call)):
        return node
    calls = [*items(below.windowExpressions()), *calls]
    return logical(
        catalyst, "Window", calls, items(below.partitionSpec()), items(below.orderSpec()), below.child(), node.hint()
    )


def _with_one_kind_of_frame(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """Splits a node with both kinds of frames: frames of time read the rows that the frames of rows emit.

    Only if ORDER BY is one time, and no time is in PARTITION BY.
    """
    calls, keys, order = (items(part) for part in (node.windowExpressions(), node.partitionSpec(), node.orderSpec()))
    of_rows = [call for call in calls if counts_rows(call.child())]
    of_time = [call for call in calls if not counts_rows(call.child())]
    in_time = [type_of(one.child()) for one in order] == ["timestamp"]
    if not (of_rows and of_time and in_time) or any(type_of(key) in EVENT_TIME_TYPES for key in keys):
        return node
    below = logical(catalyst, "Window", of_rows, keys, order, node.child(), node.hint())
    return logical(catalyst, "Window", of_time, keys, order, below, node.hint())


def _has_distinct_rows(node: JavaObject) -> bool:
    """Whether the left rows of INTERSECT or EXCEPT are distinct: such as those of an aggregation, with all its keys.

    Then ALL makes no difference.
    """
    return not node.left().distinctKeys().isEmpty()


def _joined(catalyst: Catalyst, node: JavaObject, *, distinct: bool) -> JavaObject:
    """INTERSECT or EXCEPT as a join of its two sides, with DISTINCT if the left rows are not `distinct`."""
    kind = kind_of(node)
    plain = logical(catalyst, kind, node.left(), node.right(), False)
    made = catalyst.module(f"optimizer.{_SETS[kind]}").apply(plain).child()
    if node.left().isStreaming() and node.right().isStreaming():  # then equal keys find the partners
        equal = [part for one in conjuncts(made.condition().get()) for part in _equal(catalyst, one)]
        made = join(catalyst, made.left(), made.right(), made.joinType(), catalyst.every(equal))
    return made if distinct else logical(catalyst, "Distinct", made)


def _equal(catalyst: Catalyst, same: JavaObject) -> list[JavaObject]:
    """`a <=> b` as equalities; those of two values are `coalesce(a, 0) = coalesce(b, 0) AND (a IS NULL) = (b IS NULL)`.
    """
    if kind_of(same) != "EqualNullSafe":
        return [same]
    sides = [same.left(), same.right()]
    if not any(side.nullable() for side in sides) or any(map(window_mark, sides)):  # no window is NULL
        return [catalyst.make("EqualTo", *sides)]
    default = catalyst.module("expressions.Literal").default(sides[0].dataType())
    values = [catalyst.make("Coalesce", [side, default]) for side in sides]
    return [
        catalyst.make("EqualTo", *values),
        catalyst.make("EqualTo", *(catalyst.make("IsNull", side) for side in sides)),
    ]


def _unpivoted(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """UNPIVOT, which is an `Expand` with a text constant in each projection; other such nodes stay as they are."""
    below = {id_of(column) for column in outputs(node.child())}
    made = [place for place, column in enumerate(outputs(node)) if id_of(column) not in below]
    projections = [items(projection) for projection in items(node.projections())]
    name = outputs(node)[made[0]] if made else None
    named = name is not None and type_of(name) == "string" and not name.nullable()
    if not named or any(kind_of(row[made[0]]) != "Literal" for row in projections):
        return node
    rows = [[row[place] for place in made] for row in projections]
    generated = _inline(catalyst, rows, [outputs(node)[place] for place in made], node.child(), outer=False)
    return logical(catalyst, "Project", outputs(node), generated)


def _stacked(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    number, *values = children(node.generator())
    attributes = items(node.generatorOutput())
    count, width = int(str(catalyst.constant(number))), len(attributes)
    if count > MOST_ROWS:
        return node
    rows = [values[place * width : (place + 1) * width] for place in range(count)]
    rows = [[*row, *[None] * (width - len(row))] for row in rows]
    typed = [
        [
            catalyst.make("Literal", None, column.dataType()) if value is None or type_of(value) == "void" else value
            for column, value in zip(attributes, row, strict=True)
        ]
        for row in rows
    ]
    return _inline(catalyst, typed, attributes, node.child(), outer=bool(node.outer()))


def _json_fields(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """The fields that `json_tuple` reads, each by a path; all of them are NULL if any part of the text is malformed."""
    text, *names = children(node.generator())
    is_object = catalyst.not_null(catalyst.make("JsonObjectKeys", text).replacement())
    nothing = catalyst.literal("")
    columns = []
    for name, column in zip(names, items(node.generatorOutput()), strict=True):
        field = catalyst.constant(name) if name.foldable() else None
        if not isinstance(field, str) or field == "*" or not _FIELD.fullmatch(field):
            raise UnsupportedQuery(
                f"`{text_of(node.generator())}` reads a field whose name is not a plain constant.",
                "Write from_json(j, 'a STRING, b STRING') AS s in a sub-query, and use s.a and s.b above it.",
            )
        value = catalyst.make("GetJsonObject", text, catalyst.literal(f"$['{field}']"))
        unknown = catalyst.make("Literal", None, nothing.dataType())
        columns.append(catalyst.alias(catalyst.make("If", is_object, value, unknown), str(column.name()), column))
    return logical(catalyst, "Project", [*outputs(node.child()), *columns], node.child())


def _lateral(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """A join with the rows of a table function of the event, or with expressions; others stay as they are."""
    layers: list[list[JavaObject]] = []
    below = node.right().plan()
    while kind_of(below) in ("SubqueryAlias", "Project"):
        layers += [items(below.projectList())] if kind_of(below) == "Project" else []
        below = below.child()
    kind, condition = kind_of(node.joinType()), optional(node.condition())
    outer = kind == "LeftOuter"
    always = condition is None or (kind_of(condition) == "Literal" and catalyst.constant(condition) is True)
    rows = kind_of(below) == "Generate"
    if kind_of(below.child() if rows else below) != "OneRowRelation":
        return node
    if kind not in ("Inner", "Cross", "LeftOuter") or (outer and not always):
        return node
    if not rows:  # Spark's own rule answers those without ON
        plan = node.left()
        for layer in reversed(layers):
            plan = logical(catalyst, "Project", [*outputs(plan), *(_of_event(catalyst, one) for one in layer)], plan)
        return plan if always else logical(catalyst, "Filter", condition, plan)
    if outer and condition is None:
        raise UnsupportedQuery("LEFT JOIN LATERAL without ON, in which Spark loses rows, is not supported.", ON_TRUE)
    if outer and not all(map(_is_column, chain.from_iterable(layers))):
        return node  # a value that is computed from the function's columns is NULL where there is no row
    generator = _of_event(catalyst, below.generator())
    plan = logical(
        catalyst, "Generate", generator, [], outer or bool(below.outer()), catalyst.none, below.generatorOutput(),
        node.left(),
    )  # fmt: skip
    for layer in reversed(layers):
        plan = logical(catalyst, "Project", [*outputs(node.left()), *layer], plan)
    if kind_of(generator) in ("Stack", "JsonTuple"):
        plan = normalise_clauses(catalyst, plan)
    return plan if always else logical(catalyst, "Filter", condition, plan)


def _is_column(expression: JavaObject) -> bool:
    inner = expression.child() if kind_of(expression) == "Alias" else expression
    return kind_of(inner) == "AttributeReference"


def _of_event(catalyst: Catalyst, expression: JavaObject) -> JavaObject:
    """The expression of a sub-query with the event's own columns in place of references to them."""
    if kind_of(expression) == "OuterReference":
        return expression.e()
    return catalyst.rebuilt(expression, [_of_event(catalyst, part) for part in children(expression)])


def _inline(
    catalyst: Catalyst, rows: list[list[JavaObject]], attributes: list[JavaObject], child: JavaObject, *, outer: bool
) -> JavaObject:
    """`child LATERAL VIEW inline(array(struct(…), …))` with these attributes."""
    structs = [
        catalyst.make("CreateNamedStruct", [
            part for column, value in zip(attributes, row, strict=True)
            for part in (catalyst.literal(str(column.name())), value)
        ])
        for row in rows
    ]  # fmt: skip
    generator = catalyst.make("Inline", catalyst.make("CreateArray", structs))
    return logical(catalyst, "Generate", generator, [], outer, catalyst.none, attributes, child)
