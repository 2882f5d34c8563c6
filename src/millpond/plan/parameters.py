"""Live parameters: constants of queries that change between epochs, while the state they were counted into stays.

A parameter in a filter or an argument is a part of its measure's identity by name, so another value makes no other
state: events are judged by the value of the epoch that reads them. In HAVING and outputs, and for stateless queries, it
is the value of the epoch that tells the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import msgspec

from millpond.errors import ChangeRefused
from millpond.model.expressions import Expression, Literal, bound, is_list, listed, literal, parameters_of
from millpond.model.join import Join
from millpond.model.query import Named, Query
from millpond.model.selection import AnyQuery, Selection, expressions_of
from millpond.model.types import element_of
from millpond.plan.plan import GroupPlan, Plan, QueryPlan

Plain: TypeAlias = bool | int | float | str

Constant: TypeAlias = Plain | Sequence[Plain]
"""What a parameter may be: for IN also a list."""

MOST_MEMBERS = 10_000
"""So many constants may be in a list."""

_TYPES: dict[type, str] = {bool: "boolean", int: "bigint", float: "double", str: "string"}
_FARTHEST = 1 << 63


def constant_of(name: str, value: Constant, kind: str | None = None) -> Literal:
    """The value of a parameter as a constant: of type `kind`, or of that which it has in Python.

    >>> constant_of("top", ["b", "a"]).text
    '["a","b"]'

    Raises:
        ChangeRefused: it is of another type, or a list that is too long, or empty so that its type is not known.
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _list_of(name, value, kind)
    own = _TYPES.get(type(value))
    if kind == "double" and own == "bigint":
        value, own = float(value), "double"
    if own is None or kind not in (None, own) or (own == "bigint" and not -_FARTHEST <= int(value) < _FARTHEST):
        wanted = "a number, a text or a boolean" if kind is None else f"of type {kind}"
        raise ChangeRefused(f"The parameter {name} is {value!r}, not {wanted}.", "Give another value.")
    return literal(value, own)


def _list_of(name: str, values: Sequence[Plain], kind: str | None) -> Literal:
    element = None if kind is None else element_of(kind) if is_list(kind) else ""
    members = [constant_of(name, value, element) for value in values]
    types = {one.type for one in members} or ({element} if element else set())
    if len(types) != 1 or len(members) > MOST_MEMBERS or types == {"boolean"}:
        raise ChangeRefused(
            f"The parameter {name} is a list of {len(members)} values of types {', '.join(sorted(map(str, types)))}.",
            f"Give up to {MOST_MEMBERS:,} numbers, or texts, and a first one from the beginning.",
        )
    return listed(members, types.pop() or "")


@lru_cache(1 << 14)
def parameters_in(query: AnyQuery) -> frozenset[str]:
    """The parameters that a query names."""
    parts: list[Expression | None] = [*expressions_of(query), *(item.expression for item in query.output)]
    if not isinstance(query, Selection):
        parts.append(query.having)
    if isinstance(query, Join):
        parts.append(query.condition)
    return frozenset(name for part in parts if part is not None for name in parameters_of(part))


def with_parameters(plan: Plan, parameters: Mapping[str, Literal]) -> Plan:
    """The plan with constants wherever state does not depend on them: HAVING, outputs, stateless queries."""
    if not parameters or not any(map(parameters_in, plan.asked)):
        return plan
    groups = tuple(_group(group, parameters) for group in plan.groups)
    selections = tuple(_selection(selection, parameters) for selection in plan.selections)
    return msgspec.structs.replace(plan, groups=groups, stateless=selections or msgspec.UNSET)


def _group(group: GroupPlan, parameters: Mapping[str, Literal]) -> GroupPlan:
    return msgspec.structs.replace(group, queries=tuple(_told(plan, parameters) for plan in group.queries))


def _told(plan: QueryPlan, parameters: Mapping[str, Literal]) -> QueryPlan:
    query = plan.query
    if not parameters_in(query):
        return plan
    having = None if query.having is None else bound(query.having, parameters)
    told: Query = msgspec.structs.replace(query, having=having, output=_outputs(query.output, parameters))
    return msgspec.structs.replace(plan, query=told)


def _selection(selection: Selection, parameters: Mapping[str, Literal]) -> Selection:
    if not parameters_in(selection):
        return selection
    where = None if selection.where is None else bound(selection.where, parameters)
    return msgspec.structs.replace(selection, where=where, output=_outputs(selection.output, parameters))


def _outputs(output: tuple[Named, ...], parameters: Mapping[str, Literal]) -> tuple[Named, ...]:
    return tuple(Named(item.name, bound(item.expression, parameters)) for item in output)
