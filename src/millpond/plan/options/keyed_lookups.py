"""Decides who looks up the row of a keyed table: the tasks that read events, or the instance that owns the row's key.

An owner looks up each key once per epoch, in one request to its shard, beside which it runs (see
`spark.session.task_hosts`). It needs the events themselves. So only queries that send them have their rows looked up
there: stateless ones, whose WHERE does not need the row before it can leave events out.
"""

from __future__ import annotations

from collections.abc import Iterable

from millpond.model.expressions import Column, Expression, Foreign, conjunction, conjuncts_of, may_raise, walk
from millpond.model.selection import AnyQuery, Selection, foreign_below
from millpond.model.stream import TAKEN, Retention, Stream


def why_by_readers(stream: Stream, queries: Iterable[AnyQuery], watched: str | None = None) -> str | None:
    """Why the tasks that read the events of a stream also look up their rows; None: the owners of the keys do.

    `queries` are all that are computed; those over other streams are ignored. `watched`: the column of an event time
    that is observed without a query.
    """
    keyed = {*stream.keyed_columns}
    if not keyed:
        return "other columns or joins of the events may depend on the row"
    if stream.partitioned_by is not None:
        return f"the topic is partitioned by {stream.partitioned_by}, so that events may need no exchange"
    if stream.retention != Retention():
        return "the stream retains its events together with their rows"
    for query in queries:
        if stream.name not in query.streams:
            continue
        if not isinstance(query, Selection):
            return f"{query.name} needs the row before events are exchanged"
        if any(keyed.intersection(part.columns) and part.columns != (TAKEN,) for part in foreign_below(query)):
            return f"only Spark evaluates an expression of {query.name} over the row"
        if query.timing is not None and query.timing[0] in keyed:
            return f"the event time of {query.name} is in the row"
        if _filters_after_raising(query.where, keyed):
            return f"WHERE of {query.name} leaves out events before they are exchanged"
    return "the event time is in the row" if watched in keyed else None


def is_by_owners(stream: Stream, queries: Iterable[AnyQuery]) -> bool:
    """Whether the owners of keys look up rows of a keyed table for a stream; see `why_by_readers`."""
    return bool(stream.keyed_columns) and why_by_readers(stream, queries) is None


def own_conditions(where: Expression | None, keyed: Iterable[str]) -> Expression | None:
    """The conditions of a WHERE that do not read the row; an event for which they are FALSE is filtered in any case."""
    names = {*keyed}
    return conjunction([part for part in conjuncts_of(where) if names.isdisjoint(read_by(part))])


def read_by(expression: Expression) -> set[str]:
    """The columns that an expression reads, including projected ones and those that these are computed from."""
    nodes = [node for node in walk(expression) if isinstance(node, Column | Foreign)]
    return {node.name for node in nodes}.union(*(node.columns for node in nodes if isinstance(node, Foreign)))


def _filters_after_raising(where: Expression | None, keyed: set[str]) -> bool:
    """Whether a condition without the row follows one with the row that may raise, which decides before it."""
    raising = False
    for part in conjuncts_of(where):
        if not keyed.isdisjoint(read_by(part)):
            raising = raising or may_raise(part)
        elif raising:
            return True
    return False
