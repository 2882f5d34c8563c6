"""Plans the event log of a group: which values of which events are stored for queries that need single events.

It also says what orders events of equal time.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Call, Expression, Literal, call, conjunction, literal
from millpond.model.types import is_struct
from millpond.plan.groups.aggregate_functions import event_function


class LogPlan(msgspec.Struct, frozen=True):
    """The distinct values and filters of an event log, each stored once; `takes_all`: some query has no filter."""

    values: tuple[Expression, ...]
    filters: tuple[Expression, ...]
    takes_all: bool


def log_plan(stored: Iterable[tuple[tuple[Expression, ...], Expression | None]]) -> LogPlan | None:
    """The log that stores these values, each list with its row filter; None if nothing is stored.

    >>> from millpond.model.expressions import Column
    >>> log_plan([((Column("a", "int"),), None)]).values
    (Column(name='a', type='int'),)
    """
    values: dict[Expression, None] = {}
    filters: dict[Expression | None, None] = {}
    for some, rows in stored:
        values.update(dict.fromkeys(some))
        filters[rows] = None
    if not filters:
        return None
    return LogPlan(tuple(values), tuple(one for one in filters if one is not None), None in filters)


def stored_values(value: Expression) -> tuple[Expression, ...]:
    """The values that are stored for a value: of a struct that is made of other values, these, so that each is stored
    once.

    >>> from millpond.model.expressions import Column, struct_of
    >>> [one.name for one in stored_values(struct_of([Column("a", "int"), Column("b", "int")], "struct<a:int,b:int>"))]
    ['a', 'b']
    """
    if not (isinstance(value, Call) and value.op == "struct"):
        return (value,)
    parts = value.args[1:] if is_always_present(value) else value.args
    return tuple(stored for part in parts for stored in stored_values(part))


def is_always_present(value: Expression) -> bool:
    """Whether a value is a struct that is never NULL."""
    return isinstance(value, Call) and value.op == "struct" and value.args[0] == literal(True, "boolean")


def logged_rows(aggregate: Aggregate, presence: Expression | None) -> Expression | None:
    """The events that an aggregate reads: those that pass both filters and are not skipped as NULL."""
    parts = [part for part in (presence, aggregate.filter) if part is not None]
    needs, arguments = event_function(aggregate.function).needs, aggregate.arguments
    needed = arguments if needs is None else [arguments[place] for place in needs]
    nullable = (argument for argument in needed if not is_always_present(argument))
    return conjunction([*parts, *(call("isnotnull", (argument,), "boolean") for argument in nullable)])


def ties_of(aggregates: Iterable[Aggregate]) -> tuple[Expression, ...]:
    """The values that order events of equal time, the same for all aggregates of a query, in the order of its text.

    Two aggregates that choose an event by the same expression then choose the same event. Events with equal values
    in this list are interchangeable for the query.

    >>> from millpond.model.expressions import Column
    >>> a, c, t = (Column(name, "int") for name in "act")
    >>> [one.name for one in ties_of([Aggregate("max_by", a, None, "int", t), Aggregate("max_by", c, None, "int", t)])]
    ['a', 't', 'c']
    """
    every = list(aggregates)
    deciding = [one for one in every if event_function(one.function).ordered]
    if deciding:  # first structs of which an extreme is taken: `max(struct(ts, a))` and `last(c)` are then of one event
        extremes = (one for one in every if one.function in ("min", "max") and one.logged)
        deciding = [*(one for one in extremes if is_struct(one.arguments[0].type)), *deciding]
    values = dict.fromkeys(value for one in deciding for value in one.arguments)
    return tuple(value for value in values if not isinstance(value, Literal))
