"""Plans the event log of a group: which values of which events are stored for queries that need single events.

It also says what orders events of equal time.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Expression, Literal, call, conjunction
from millpond.plan.groups.aggregate_functions import event_function


class LogPlan(msgspec.Struct, frozen=True):
    """The distinct values and filters of an event log, each stored once; `takes_all`: some query has no filter."""

    values: tuple[Expression, ...]
    filters: tuple[Expression, ...]
    takes_all: bool


def log_plan(asked: Iterable[tuple[tuple[Expression, ...], Expression | None]]) -> LogPlan | None:
    """The log that stores these values, each list with its row filter; None if nothing is stored.

    >>> from millpond.model.expressions import Column
    >>> log_plan([((Column("a", "int"),), None)]).values
    (Column(name='a', type='int'),)
    """
    values: dict[Expression, None] = {}
    filters: dict[Expression | None, None] = {}
    for some, rows in asked:
        values.update(dict.fromkeys(some))
        filters[rows] = None
    if not filters:
        return None
    return LogPlan(tuple(values), tuple(one for one in filters if one is not None), None in filters)


def logged_rows(aggregate: Aggregate, presence: Expression | None) -> Expression | None:
    """The events that an aggregate reads: those that pass both filters and are not skipped as NULL."""
    parts = [part for part in (presence, aggregate.filter) if part is not None]
    needs, arguments = event_function(aggregate.function).needs, aggregate.arguments
    needed = arguments if needs is None else (arguments[place] for place in needs)
    return conjunction([*parts, *(call("isnotnull", (argument,), "boolean") for argument in needed)])


def ties_of(aggregates: Iterable[Aggregate]) -> tuple[Expression, ...]:
    """The values that order events of equal time, the same for all aggregates of a query, in the order of its text.

    Two aggregates that choose an event by the same expression then choose the same event. Events with equal values
    in this list are interchangeable for the query.

    >>> from millpond.model.expressions import Column
    >>> a, c, t = (Column(name, "int") for name in "act")
    >>> [one.name for one in ties_of([Aggregate("max_by", a, None, "int", t), Aggregate("max_by", c, None, "int", t)])]
    ['a', 't', 'c']
    """
    deciding = (one for one in aggregates if event_function(one.function).ordered)
    values = dict.fromkeys(value for one in deciding for value in one.arguments)
    return tuple(value for value in values if not isinstance(value, Literal))
