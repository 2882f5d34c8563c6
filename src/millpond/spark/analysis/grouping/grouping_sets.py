"""Reads ROLLUP, CUBE and GROUPING SETS from an analysed plan.

Spark's analyser copies each event for each set: an `Expand` in which the columns that a set leaves out are NULL, with
the id of the set as the last column. The query has the sets instead, so the gather can roll up coarser sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from millpond.errors import UnsupportedQuery
from millpond.model.expressions import Expression, call, literal
from millpond.model.query import GroupingSet
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, id_of, items, kind_of, outputs

GROUPING_ID = "spark_grouping_id"
"""The name of Spark's column with the id of a grouping set."""

MOST_SETS = 64
"""The most grouping sets of a query."""


class Sets(NamedTuple):
    """The grouping sets of an aggregation, if there are any.

    `below` is the plan below the sets, and `inputs` are its attributes by the expression ids of the grouping columns.
    `kept` are the grouping columns of each set, and `ids` the id of each set as a literal. `attribute` has this id.
    """

    below: JavaObject
    inputs: Mapping[int, JavaObject] = MappingProxyType({})
    kept: Sequence[frozenset[int]] = ()
    ids: Sequence[JavaObject] = ()
    attribute: JavaObject = None

    @property
    def id(self) -> int | None:
        """The expression id of the grouping id."""
        return None if self.attribute is None else id_of(self.attribute)

    def input(self, group: JavaObject) -> JavaObject:
        """What a grouping column is below the sets."""
        return self.inputs.get(id_of(group), group)


def sets_of(plan: JavaObject) -> Sets:
    """The grouping sets of an `Aggregate`.

    Raises:
        UnsupportedQuery: a set occurs twice, or there are too many.
    """
    below = plan.child()
    if kind_of(below) != "Expand":
        return Sets(below)
    columns, rows = outputs(below), [items(row) for row in items(below.projections())]
    id_at = next((i for i, column in enumerate(columns) if str(column.name()) == GROUPING_ID), None)
    if id_at is None or kind_of(rows[0][id_at]) != "Literal":
        return Sets(below)
    if id_at + 1 < len(columns):  # another column distinguishes equal sets
        raise UnsupportedQuery("The query groups by the same grouping set twice.", "Leave one of them out.")
    if len(rows) > MOST_SETS:
        raise UnsupportedQuery(
            f"The query has {len(rows):,} grouping sets; {MOST_SETS} are allowed.", "List fewer sets, or columns."
        )
    through = {id_of(column) for column in outputs(below.child())}
    own = [i for i, column in enumerate(columns[:id_at]) if id_of(column) not in through]
    inputs = {id_of(columns[i]): next(row[i] for row in rows if kind_of(row[i]) != "Literal") for i in own}
    kept = [frozenset(id_of(columns[i]) for i in own if kind_of(row[i]) != "Literal") for row in rows]
    return Sets(below.child(), inputs, kept, [row[id_at] for row in rows], columns[id_at])


def is_of_sets(plan: JavaObject) -> bool:
    """Whether an `Aggregate` has grouping sets."""
    below = plan.child()
    return kind_of(below) == "Expand" and any(str(column.name()) == GROUPING_ID for column in outputs(below))


def check_column_of_sets(group: JavaObject, before: int, after: int) -> int:
    """The position of the key of a grouping column, after which there are `after` keys instead of `before`.

    Raises:
        UnsupportedQuery: it is a constant or a struct, or equals another grouping column.
    """
    if after != before + 1 or str(group.dataType().catalogString()).startswith("struct<"):
        raise UnsupportedQuery(
            f"The column {group.name()} of the grouping sets is a constant, a struct, or equals another one.",
            "Group by distinct columns, or by the fields of the struct.",
        )
    return before


def grouping_sets(
    catalyst: Catalyst, sets: Sets, places: Mapping[int, int], window: int | None
) -> tuple[GroupingSet, ...]:
    """The sets of a query; `places` are the positions of its keys by the ids of the grouping columns.

    `window` is the id of the grouping column with the window.

    Raises:
        UnsupportedQuery: a set lacks the window.
    """
    if window in sets.inputs and any(window not in kept for kept in sets.kept):
        raise UnsupportedQuery(
            "A grouping set lacks the window, so its rows would count events of all time and never be final.",
            "Keep the window in each set: GROUP BY window(ts, '1 hour'), ROLLUP(a, b) in SQL, or groupingSets.",
        )
    made = []
    for kept, id_ in zip(sets.kept, sets.ids, strict=True):
        keys = tuple(sorted(places[one] for one in kept if one in places))
        made.append(GroupingSet(keys, _number(catalyst, id_)))
    return tuple(made)


def by_set(catalyst: Catalyst, sets: Sets, node: JavaObject, key: Expression) -> Expression:
    """An expression of the grouping id alone, such as `grouping(a)`, as its value for each set; `key` is the id."""
    kind = str(node.dataType().catalogString())
    parts: list[Expression] = []
    for id_ in sets.ids:
        value = catalyst.substitute(node, [catalyst.alias(id_, GROUPING_ID, sets.attribute)])
        parts.append(call("eq", (key, literal(_number(catalyst, id_), "bigint")), "boolean"))
        parts.append(literal(catalyst.constant(value), kind))
    return call("case", tuple(parts), kind)


def _number(catalyst: Catalyst, id_: JavaObject) -> int:
    return int(str(catalyst.constant(id_)))
