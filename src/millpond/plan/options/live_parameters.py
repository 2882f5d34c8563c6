"""Live parameters: constants of queries that can change between epochs without a loss of state.

A parameter in a filter or an argument is part of its measure's identity by name, not by value. So another value keeps
the existing state: each event is evaluated with the value of the epoch that reads it. In HAVING, in outputs and in
stateless queries, the value of the epoch that emits the row is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import msgspec

from millpond.errors import ChangeRefused
from millpond.model.expressions import Call, Expression, Literal, Parameter, bound, is_list, listed, literal, walk
from millpond.model.join import Join
from millpond.model.query import Named, Query
from millpond.model.selection import AnyQuery, Selection, expressions_of
from millpond.model.types import element_of
from millpond.plan.groups.plan import GroupPlan, Plan, QueryPlan

Plain: TypeAlias = bool | int | float | str

Constant: TypeAlias = Plain | Sequence[Plain]
"""The values that a parameter can have; a list is for IN."""

MOST_MEMBERS = 10_000
"""The maximum number of constants in a list."""

_TYPES: dict[type, str] = {bool: "boolean", int: "bigint", float: "double", str: "string"}
_FRACTIONS = ("float", "double")
_FARTHEST = 1 << 63
_NAMED = 5
"""The maximum number of queries that an error message names as users of a parameter."""


def constant_of(name: str, value: Constant, kind: str | None = None) -> Literal:
    """The value of a parameter as a constant of type `kind`, or else of the type of the Python value.

    >>> constant_of("top", ["b", "a"]).text
    '["a","b"]'

    Raises:
        ChangeRefused: the value is of another type, or is a list that is too long, or empty without a known type.
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


def another_value(
    name: str, value: Constant, current: Literal | None, readers: Sequence[str], as_double: bool = False
) -> Literal:
    """A new value of a parameter whose present value is `current`, as a constant.

    The constant has the type of the present value if possible; otherwise its own type, if no `readers` rely on the
    present type. `as_double`: all of them convert the parameter to a double, so a fraction is allowed, too.

    >>> another_value("limit", 500, Literal("abc", "string"), ()).type
    'bigint'
    >>> another_value("limit", 250.5, Literal("200", "bigint"), ["fraud"], as_double=True).type
    'double'

    Raises:
        ChangeRefused: the value is not a constant, or has another type than the users of the parameter rely on.
    """
    if current is None:
        return constant_of(name, value)
    try:
        return constant_of(name, value, current.type)
    except ChangeRefused:
        made = constant_of(name, value)  # an error that is independent of the type is reported first
        if not readers or (as_double and (current.type, made.type) == ("bigint", "double")):
            return made
    more = f" and {len(readers) - _NAMED} more" if len(readers) > _NAMED else ""
    raise ChangeRefused(
        f"The parameter {name} would be of type {made.type}, not of type {current.type}; it is used by "
        f"{', '.join(readers[:_NAMED])}{more}.",
        f"Give a value of type {current.type}, or drop what uses it first. A parameter of another name can have "
        f"type {made.type}: `DECLARE VARIABLE name {made.type.upper()} DEFAULT …`.",
    )


def as_double(name: str, queries: Iterable[AnyQuery]) -> bool:
    """Whether each use of a parameter casts it to a floating-point number, as comparisons with such numbers do."""
    for query in queries:
        for node in (node for part in _parts_of(query) for node in walk(part)):
            if isinstance(node, Call) and not (node.op == "cast" and node.type in _FRACTIONS):
                named = (arg for arg in node.args if isinstance(arg, Parameter) and arg.name == name)
                if any(arg.type not in _FRACTIONS for arg in named):
                    return False
        for part in _parts_of(query):
            if isinstance(part, Parameter) and part.name == name and part.type not in _FRACTIONS:
                return False
    return True


@lru_cache(1 << 14)
def parameters_in(query: AnyQuery) -> frozenset[str]:
    """The names of the parameters in a query."""
    return frozenset(parameter.name for parameter in named_in(query))


def named_in(query: AnyQuery) -> frozenset[Parameter]:
    """The parameters in a query, each as Spark analysed it."""
    nodes = (node for part in _parts_of(query) for node in walk(part))
    return frozenset(node for node in nodes if isinstance(node, Parameter))


def _parts_of(query: AnyQuery) -> list[Expression]:
    parts: list[Expression | None] = [*expressions_of(query), *(item.expression for item in query.output)]
    if not isinstance(query, Selection):
        parts.append(query.having)
    if isinstance(query, Join):
        parts.append(query.condition)
    return [part for part in parts if part is not None]


def with_parameters(plan: Plan, parameters: Mapping[str, Literal]) -> Plan:
    """The plan with parameters replaced by their values where no state depends on them.

    These places are HAVING, outputs and stateless queries.
    """
    if not parameters or not any(map(parameters_in, plan.all_queries)):
        return plan
    groups = tuple(_group(group, parameters) for group in plan.groups)
    selections = tuple(_selection(selection, parameters) for selection in plan.selections)
    return msgspec.structs.replace(plan, groups=groups, stateless=selections or msgspec.UNSET)


def _group(group: GroupPlan, parameters: Mapping[str, Literal]) -> GroupPlan:
    queries = tuple(_with_values(plan, parameters) for plan in group.queries)
    same = all(new is old for new, old in zip(queries, group.queries, strict=True))
    return group if same else msgspec.structs.replace(group, queries=queries)


def _with_values(plan: QueryPlan, parameters: Mapping[str, Literal]) -> QueryPlan:
    query = plan.query
    if not parameters_in(query):
        return plan
    having = None if query.having is None else bound(query.having, parameters)
    made: Query = msgspec.structs.replace(query, having=having, output=_outputs(query.output, parameters))
    return plan if made == query else msgspec.structs.replace(plan, query=made, outputs_vary=True)


def _selection(selection: Selection, parameters: Mapping[str, Literal]) -> Selection:
    if not parameters_in(selection):
        return selection
    where = None if selection.where is None else bound(selection.where, parameters)
    return msgspec.structs.replace(selection, where=where, output=_outputs(selection.output, parameters))


def _outputs(output: tuple[Named, ...], parameters: Mapping[str, Literal]) -> tuple[Named, ...]:
    return tuple(Named(item.name, bound(item.expression, parameters)) for item in output)
