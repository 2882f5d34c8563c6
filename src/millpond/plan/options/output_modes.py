"""Output modes: when rows are emitted, whether they change later, and by which rule events are late.

The modes are `final`, `update`, and final with corrections.
"""

from __future__ import annotations

import msgspec

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.join import Join
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, Selection
from millpond.model.windows import NEVER_LATE_US, RUNNING, Counted, Distinct, Framed, Processed, Sliced, Sliding

OP = "_op"
"""Column of updating results: `upsert`, or `delete` for a row that no longer meets HAVING or whose session has changed
its bounds."""

REVISION = "_revision"
"""Column of corrected rows: how often the row of this window and key was emitted before."""

FINAL, UPDATE = "final", "update"
EMITS = (FINAL, UPDATE)

BY_EVENT, BY_WINDOW, BY_JOIN = "event", "window", "join"
LATE_BY = (BY_EVENT, BY_WINDOW, BY_JOIN)


def with_mode(query: AnyQuery, emit: str, correct_us: int | None) -> AnyQuery:
    """The query with its output mode; for final rows without corrections, the query is returned unchanged.

    Raises:
        QueryTypeError: the mode does not exist, updates would be corrected, or the time of corrections is not positive.
        UnsupportedQuery: this kind of query emits each row only once, or the query uses a reserved column name.
    """
    if emit not in EMITS:
        raise QueryTypeError(f"{query.name} emits {emit!r}.", f"Use one of {', '.join(EMITS)}.")
    if correct_us is not None and correct_us <= 0:
        raise QueryTypeError(f"{query.name} corrects rows for {correct_us} µs.", "Leave it out, or use a longer time.")
    if emit == UPDATE and correct_us is not None:
        raise QueryTypeError(
            f"{query.name} emits updates, which are never corrected: every change is one already.",
            "Leave 'correct.for' out; a longer watermark delay takes later events.",
        )
    if emit == FINAL and isinstance(query, Query) and query.window == RUNNING:
        raise _never_final(query)
    if isinstance(query, Query) and isinstance(query.window, Distinct) and query.window.keeps is not msgspec.UNSET:
        return _of_one_event(query, query.window.keeps, emit, correct_us)
    if emit == FINAL and correct_us is None:
        return query
    what = "emits updates" if emit == UPDATE else "corrects its rows"
    if isinstance(query, Selection):
        raise UnsupportedQuery(
            f"{query.name} {what}, but has no window: each event is a row, once.",
            "Leave 'emit' and 'correct.for' out, or aggregate.",
        )
    if isinstance(query, Query) and isinstance(query.window, Distinct | Processed):
        raise UnsupportedQuery(
            f"{query.name} {what}, but each of its rows is emitted once, and never changes.",
            "Leave 'emit' and 'correct.for' out.",
        )
    if isinstance(query, Join):
        raise UnsupportedQuery(
            f"{query.name} {what}, but is a join: its rows are emitted once, when both watermarks have passed them.",
            "Leave the mode out.",
        )
    _check(query, what)
    if emit == UPDATE:
        return msgspec.structs.replace(query, emit=emit)
    return msgspec.structs.replace(query, correct_us=correct_us or msgspec.UNSET)


def _of_one_event(query: Query, keeps: str, emit: str, correct_us: int | None) -> Query:
    """The mode of a query with the earliest, the latest or the first ranked events of each key.

    Raises:
        UnsupportedQuery: the rows would never be final, or are to be corrected.
    """
    if emit == UPDATE:
        _check(query, "emits updates")
        return msgspec.structs.replace(query, emit=UPDATE, delay_us=NEVER_LATE_US)
    updates = updates_cure(by_text=bool(query.text))
    if keeps == "ranked":
        raise UnsupportedQuery(
            f"{query.name} ranks all events until now, and a later event may change the ranks.",
            f"Emit updates ({updates}), or rank the rows of a window.",
        )
    if keeps == "latest":
        raise UnsupportedQuery(
            f"{query.name} keeps the latest event of each key, which a later one may always replace.",
            f"Emit updates ({updates}), or keep the earliest event: ORDER BY the event time, ascending.",
        )
    if correct_us is not None:
        raise UnsupportedQuery(f"{query.name} corrects its rows, but has no window.", "Leave 'correct.for' out.")
    return msgspec.structs.replace(query, window=Counted(1, 1, once=True))


def with_late_by(query: AnyQuery, late_by: str) -> AnyQuery:
    """The query with the rule by which its events are late; for `event`, the query is returned unchanged.

    By `window`, an event is late if the watermark has reached the end of the first of its windows that closes. So an
    event of a window that is open is taken however old it is, as in Spark and Flink. Only if windows overlap, an event
    whose first window has closed is late for its other windows too. By `join`, an event is late if the watermarks of
    both sides have passed it. Both sides of a join of a stream with itself then have the longer delay.

    Raises:
        QueryTypeError: the rule does not exist.
        UnsupportedQuery: the query is no join, or has no windows of fixed size whose ends cut all slices, or it drops
            repeated events.
    """
    if late_by not in LATE_BY:
        raise QueryTypeError(f"{query.name} judges late events by {late_by!r}.", f"Use one of {', '.join(LATE_BY)}.")
    if late_by == BY_EVENT:
        return query
    if late_by == BY_JOIN:
        if not isinstance(query, Join):
            raise UnsupportedQuery(
                f"{query.name} judges late events by 'join', but is no join.", "Leave 'late.by' out."
            )
        return _late_by_join(query)
    what = f"{query.name} judges late events by their window"
    if isinstance(query, Join):
        raise UnsupportedQuery(f"{what}, but is a join.", "Use 'late.by' = 'join', or leave it out.")
    if not isinstance(query, Query) or not isinstance(query.window, Sliced) or query.window == RUNNING:
        raise UnsupportedQuery(f"{what}, but has no windows of fixed size.", "Leave 'late.by' out.")
    if isinstance(query.window, Sliding) and query.window.size_us % query.window.slide_us:
        raise UnsupportedQuery(
            f"{what}, and the size of its window is no multiple of the slide.",
            "Use such a window, or leave 'late.by' out.",
        )
    if query.deduplicated is not None:
        raise UnsupportedQuery(
            f"{what}, and leaves repeated events out: these are known only when the watermark has passed them.",
            "Leave one of them out.",
        )
    return msgspec.structs.replace(query, late_by=late_by)


def _late_by_join(join: Join) -> Join:
    left, right = join.left, join.right
    if left.stream == right.stream:
        delay_us = max(left.delay_us, right.delay_us)
        left, right = (msgspec.structs.replace(side, delay_us=delay_us) for side in (left, right))
    return msgspec.structs.replace(join, left=left, right=right, late_by=BY_JOIN)


def only_distinct(query: Query) -> bool:
    """Whether a repeated value changes no row of a query: it has time windows, and all its aggregates are DISTINCT.

    Sessions are excepted, because each event may change their bounds.
    """
    distinct = [one.function.endswith("_distinct") for one in query.aggregates]
    return isinstance(query.window, Sliced) and bool(distinct) and all(distinct)


def updates_cure(*, by_text: bool) -> str:
    """How to request updates, in the language of the query: SQL, or the DataFrame API."""
    return "'emit' = 'update'" if by_text else "emit='update' in Pond.add"


def _never_final(query: Query) -> UnsupportedQuery:
    """The error for a query that has no window and does not request updates."""
    time, updates = query.event_time, updates_cure(by_text=bool(query.text))
    return UnsupportedQuery(
        "The query does not group by a window, so its answer would never be final.",
        f"Group by window({time}, '1 minute'), by session_window({time}, '1 minute') or by {time} itself as well, or "
        f"emit updates: {updates}.",
    )


def _check(query: Query, what: str) -> None:
    if isinstance(query.window, Framed) and not isinstance(query.window, Distinct):
        raise UnsupportedQuery(
            f"{query.name} {what}, and has windows that are runs of events: an event changes later windows.",
            "Use a tumbling, sliding or session window, or leave the mode out.",
        )
    if query.deduplicated is not None:
        raise UnsupportedQuery(
            f"{query.name} {what}, and leaves repeated events out: these are known only when the watermark has passed.",
            "Leave one of them out.",
        )
    for item in query.output:
        if item.name.lower() in (OP, REVISION):
            raise UnsupportedQuery(f"{query.name} {what}, so {item.name} is a column of ours.", "Rename yours with AS.")
