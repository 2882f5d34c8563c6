"""Plans queries with one row for each distinct key: the first event with these values in some columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.expressions import Column, Expression, Literal, conjunction
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.stream import Stream
from millpond.model.types import is_known, is_storable
from millpond.model.windows import NEVER_LATE_US, Distinct, Keeps
from millpond.plan.groups.deduplication import compared


class Timing(NamedTuple):
    """The event time of a query's events, and how long it waits for late ones."""

    event_time: Column
    delay_us: int


def distinct_rows(
    rows: Selection, keys: Sequence[Expression], timing: Timing | None, *, within: bool = False,
    kept_us: int | None = None, above: Sequence[Expression] = (), keeps: Keeps | None = None,
    ttl_us: int | None = None,
) -> Query:  # fmt: skip
    """The query with those of the `rows` that are the first with their `keys` and meet the conditions `above`.

    Keys that include the event time are remembered until an equal event would be late. Other keys are remembered for
    ever; or with `within` until the watermark reaches their event's time plus the delay, or plus `kept_us`; or with
    `ttl_us` until it reaches their event's time plus this time.
    `keeps`: the row is of the earliest or latest event instead, see `Distinct`.

    Raises:
        QueryTypeError: keys are to be forgotten, but there is no event time.
        UnsupportedQuery: a key or an output has a type without operators.
    """
    if within and timing is None:
        raise _no_watermark_error(f"{rows.name} removes events that are repeated within a time")
    _check_types(keys, rows.output, is_storable if keeps is None else is_known)
    keys = tuple(dict.fromkeys(key for key in keys if not isinstance(key, Literal)))
    lasts_us: int | msgspec.UnsetType = msgspec.UNSET
    ttl: int | msgspec.UnsetType = msgspec.UNSET
    if timing is not None and within:
        lasts_us = timing.delay_us if kept_us is None else kept_us
    elif timing is not None and timing.event_time in keys and keeps is None:
        lasts_us = 0
    elif ttl_us is not None and keeps is None:
        lasts_us = ttl = _checked_ttl(rows.name, timing, ttl_us)
    values = dict.fromkeys((*(item.expression for item in rows.output), *above))
    names: dict[Expression, Expression] = {}
    if timing is not None and keeps is None:
        values.pop(timing.event_time, None)
        names[timing.event_time] = Column("window.time", "timestamp")
    event = tuple(value for value in values if not isinstance(value, Literal))
    names |= {value: Column(f"event:{place}", value.type) for place, value in enumerate(event)}

    def shown(value: Expression) -> Expression:
        return names.get(value, value)

    return Query(
        name=rows.name,
        stream=rows.stream,
        event_time="" if timing is None else timing.event_time.name,
        delay_us=NEVER_LATE_US if timing is None else timing.delay_us,
        window=Distinct(lasts_us, keeps or msgspec.UNSET),
        keys=keys,
        aggregates=(),
        output=tuple(Named(item.name, shown(item.expression)) for item in rows.output),
        where=rows.where,
        having=conjunction([shown(condition) for condition in above]),
        sink=rows.sink,
        text=rows.text,
        event=event,
        ttl_us=ttl,
    )


def _check_types(keys: Sequence[Expression], output: Sequence[Named], can_be_shown: Callable[[str], bool]) -> None:
    strange = [one for one in keys if not is_known(one.type)]
    strange += [item.expression for item in output if not can_be_shown(item.expression.type)]
    if strange:
        raise UnsupportedQuery(
            f"DISTINCT, dropDuplicates and LIMIT cannot compare a column of type {strange[0].type}.",
            "Select its fields, or cast it to string.",
        )


def _checked_ttl(name: str, timing: Timing | None, ttl_us: int) -> int:
    """The `state.ttl` of a query, if it has an event time."""
    if timing is None:
        raise _no_watermark_error(f"{name} has 'state.ttl', which is measured in event time")
    return ttl_us


def _no_watermark_error(what: str) -> QueryTypeError:
    return QueryTypeError(
        f"{what}, and its stream has no watermark.",
        "Add .withWatermark('ts', '10 seconds') before it, where ts is the event time (in SQL: WATERMARK ts DELAY OF "
        "INTERVAL 10 SECONDS).",
    )


def distinct_by_name(
    rows: Selection, stream: Stream, names: Sequence[str], timing: Timing | None, within_us: int
) -> Query:  # fmt: skip
    """As `distinct_rows`; the keys are columns of the stream or else of the rows, remembered for `within_us`.

    Raises:
        QueryTypeError: a column does not exist, or as `distinct_rows`.
        UnsupportedQuery: as `distinct_rows`.
    """
    known: dict[str, Expression] = {item.name.lower(): item.expression for item in rows.output}
    known |= {field.name.lower(): Column(field.name, field.type) for field in stream.columns}
    keys = [known[name.lower()] for name in compared(stream, names, known)]
    return distinct_rows(rows, keys, timing, within=True, kept_us=within_us)
