"""The variables of row patterns, and what conditions and filters say about them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millpond.model.expressions import Call, Column, Expression, columns_of, conjunction, conjuncts_of

MATCHED = "matched:"
"""In a filter of an aggregate, the column `matched:A` says whether an event was matched as the variable A."""

PREVIOUS = "previous:"
"""In a condition, the column `previous:i` is the value of `Pattern.previous[i]` for the previous event of the key."""

FIRST = "first:"
"""In a condition, the column `first:i` is the value of `Pattern.first[i]` for the first event of the match."""


class Variable(msgspec.Struct, frozen=True):
    """A variable of a pattern, and the condition that an event must meet to be matched as it."""

    name: str
    condition: Expression


def reads_first(condition: Expression) -> bool:
    """Whether a condition reads values of the first event of the match."""
    return any(name.startswith(FIRST) for name in columns_of(condition))


def reads_others(condition: Expression) -> bool:
    """Whether a condition reads values of another event: the previous one, or the first one of the match."""
    return any(name.startswith((PREVIOUS, FIRST)) for name in columns_of(condition))


def leaves_of(condition: Expression) -> Iterator[Expression]:
    """The columns of the event that a condition reads, and the expressions that Spark evaluates."""
    if isinstance(condition, Call):
        for one in condition.args:
            yield from leaves_of(one)
    elif columns_of(condition) and not reads_others(condition):
        yield condition


def matched(name: str) -> Column:
    """The column that says whether an event was matched as a variable."""
    return Column(f"{MATCHED}{name}", "boolean")


def split(condition: Expression | None) -> tuple[tuple[str, ...], Expression | None]:
    """The variables as which an event must have been matched, and the rest of a filter of an aggregate.

    >>> split(matched("A"))
    (('A',), None)
    """
    parts = conjuncts_of(condition)
    names = tuple(one.name.removeprefix(MATCHED) for one in parts if isinstance(one, Column) and _is_matched(one))
    rest = [one for one in parts if not _is_matched(one)]
    return names, conjunction(rest)


def _is_matched(condition: Expression | None) -> bool:
    return isinstance(condition, Column) and condition.name.startswith(MATCHED)
