"""The event log of a group in the plan: which columns of its events are stored, and for which queries."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millpond.model.aggregates import LISTAGGS, Aggregate
from millpond.model.expressions import Expression, Literal, call, conjunction
from millpond.model.functions import PREFIX

_KEEPS_NULLS = ("first", "last")
_OF_ORDER = (*_KEEPS_NULLS, "min_by", "max_by", "collect_list", "listagg")
"""Functions whose result depends on the order of events; so may those of users."""


class LogPlan(msgspec.Struct, frozen=True):
    """Distinct values and filters, each kept once, however many queries ask; `takes_all`: some query has no filter."""

    values: tuple[Expression, ...]
    filters: tuple[Expression, ...]
    takes_all: bool


def log_plan(asked: Iterable[tuple[tuple[Expression, ...], Expression | None]]) -> LogPlan | None:
    """What is kept for values with the filters of their rows; None: nothing.

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
    """The events that an aggregate takes: those of its query and its own filter, for which it does not skip NULL."""
    parts = [part for part in (presence, aggregate.filter) if part is not None]
    if aggregate.function in ("min_by", "max_by"):
        parts.append(call("isnotnull", (aggregate.arguments[1],), "boolean"))
    elif aggregate.function in LISTAGGS:  # what they are ordered by may be NULL
        parts.append(call("isnotnull", (aggregate.arguments[0],), "boolean"))
    elif aggregate.function not in _KEEPS_NULLS and not aggregate.function.startswith(PREFIX):
        parts += [call("isnotnull", (argument,), "boolean") for argument in aggregate.arguments]
    return conjunction(parts)


def ties_of(aggregates: Iterable[Aggregate]) -> tuple[Expression, ...]:
    """What tells events of one time apart, for every aggregate of a query alike, in the order of the query's text.

    All aggregates must use one order of events: two of them that choose an event by the same expression choose the
    same one. Events that are equal in all of these values are the same event to the query.

    >>> from millpond.model.expressions import Column
    >>> a, c, t = (Column(name, "int") for name in "act")
    >>> [one.name for one in ties_of([Aggregate("max_by", a, None, "int", t), Aggregate("max_by", c, None, "int", t)])]
    ['a', 't', 'c']
    """
    deciding = (one for one in aggregates if one.function in _OF_ORDER or one.function.startswith(PREFIX))
    values = dict.fromkeys(value for one in deciding for value in one.arguments)
    return tuple(value for value in values if not isinstance(value, Literal))
