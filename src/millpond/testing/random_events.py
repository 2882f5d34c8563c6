"""Generates random events of a stream, for property tests of a user's queries; needs hypothesis."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta, timezone
from typing import Any

from hypothesis import strategies as st

from millpond.model.stream import Stream
from millpond.model.types import digits_of, integer_range, is_decimal, is_integer, is_known

Event = dict[str, Any]

_START = datetime(2026, 1, 1, tzinfo=timezone.utc)
_HOUR = timedelta(hours=1)
_SMALL = st.integers(-3, 9)
_WIDEST = 1 << 40
_PARTS = (1, 1, 10, 1_000, 1_000_000)


def events(
    stream: Stream, *, columns: Mapping[str, st.SearchStrategy[Any]] | None = None, start: datetime = _START,
    span: timedelta = _HOUR, max_size: int = 40, in_time: bool = True,
) -> st.SearchStrategy[list[Event]]:  # fmt: skip
    """Events for `Trial.feed`: few keys, ties, extremes, NULLs, times within `span` of `start`.

    `columns`: your own strategies by column name. A column of a type that queries do not support is left out unless it
    has a strategy. `in_time`: the times of a stream without an order only increase, so that no event is late, however
    the events are cut into epochs. Offsets increase as the stream's order requires; source partitions are those that
    the order names, or a single one.
    """
    columns_of = dict(columns or {})
    for field in stream.columns:
        if field.name not in columns_of and is_known(field.type):
            columns_of[field.name] = _sometimes_null(_values(field.type, start, span))
    order, times = stream.order, [field.name for field in stream.columns if field.type == "timestamp"]
    growing = [name for name in times if in_time and order is None and name not in (columns or {})]
    if order is not None and order.partition not in (columns or {}):
        types = {field.name: field.type for field in stream.columns}
        # the watermark does not wait for unnamed partitions, whose events might be late in some cuts
        names = order.partitions or ("0",)
        whole = is_integer(types[order.partition])
        columns_of[order.partition] = st.sampled_from([int(name) if whole else name for name in names])

    def finished(rows: list[Event], gaps: list[int]) -> list[Event]:
        moment = start
        for number, (row, gap) in enumerate(zip(rows, gaps, strict=False)):
            moment += timedelta(microseconds=gap)
            row.update({name: moment for name in growing if row[name] is not None})
            if order is not None and order.offset is not None:
                row[order.offset] = number
        return rows

    longest = span // timedelta(microseconds=max(max_size, 1))
    gap = st.sampled_from([max(1, longest // part) for part in _PARTS])
    gaps = st.lists(gap, min_size=max_size, max_size=max_size)
    return st.builds(finished, st.lists(st.fixed_dictionaries(columns_of), max_size=max_size), gaps)


def _sometimes_null(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 12).flatmap(lambda n: st.none() if n == 12 else values)


def _values(kind: str, start: datetime, span: timedelta) -> st.SearchStrategy[Any]:
    """Values of a SQL type; BIGINT values are small enough that sums do not overflow."""
    if is_integer(kind):
        low, high = integer_range(kind)
        return st.one_of(_SMALL, st.integers(max(low, -_WIDEST), min(high, _WIDEST)))
    if is_decimal(kind):
        digits = digits_of(kind)
        most = 10 ** min(digits.precision - digits.scale, 6) - 1
        return st.decimals(-most, most, places=digits.scale)
    if kind == "float":
        return st.one_of(_SMALL.map(float), st.floats(width=32))
    if kind == "double":
        return st.one_of(_SMALL.map(float), st.floats())
    if kind == "boolean":
        return st.booleans()
    if kind == "date":
        return st.integers(-3, 3).map(lambda days: date(2026, 1, 1) + timedelta(days=days))
    if kind == "string":
        text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)
        return st.one_of(st.sampled_from(["a", "b", "c", ""]), text)
    microseconds = st.integers(0, span // timedelta(microseconds=1))
    moments = microseconds.map(lambda us: start + timedelta(microseconds=us))
    return moments if kind == "timestamp" else moments.map(lambda moment: moment.replace(tzinfo=None))
