"""Parses TBLPROPERTIES: event-time options of a stream (order, idleness) and output options of a query."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from millpond.errors import QueryTypeError
from millpond.model.endpoints import Sink
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, Selection
from millpond.model.stream import (
    DEAD_LETTER,
    DROP,
    FAIL,
    Malformed,
    Order,
    Retention,
    Stream,
    check_order,
    check_retention,
)
from millpond.model.windows import Cumulating, Sliding
from millpond.plan.groups.deduplication import deduplicated
from millpond.plan.groups.distinct import Timing, distinct_by_name
from millpond.plan.options.output_modes import BY_EVENT, FINAL, with_late_by, with_mode
from millpond.spark.catalyst.private_names import Catalyst
from millpond.spark.catalyst.value_bounds import is_accepted

RETENTION = ("retain.slices", "retain.events", "retain.columns", "grain")
"""Properties for the retention for later queries: durations, and a comma-separated list of columns."""

MOST_UPDATED = 10_000
"""The most windows that an event may belong to if the query emits updates, which are a row for each of them."""

STREAM_PROPERTIES = (
    "order.partition", "order.offset", "order.partitions", "idle_after", "max_ahead",
    "malformed", "dead.path", "dead.ratio", *RETENTION,
)  # fmt: skip
"""Names of a stream's properties. The first two are column names, `order.partitions` is a comma-separated list, and the
next two are durations. Those from `malformed` on configure the handling of records that do not parse, and then the
retention.
"""


class Mode(NamedTuple):
    """The output mode of a query (`emit`), how long its rows are corrected afterwards, as an interval of Spark, and the
    rule by which its events are late.
    """

    emit: str = FINAL
    correct_for: str | None = None
    late_by: str = BY_EVENT

    def of(self, catalyst: Catalyst, query: AnyQuery) -> AnyQuery:
        """The query with this mode.

        Raises:
            QueryTypeError, UnsupportedQuery: see `plan.options.output_modes.with_mode`; or `correct_for` is not a
            duration, or an event would change more than `MOST_UPDATED` windows.
        """
        window = query.window if isinstance(query, Query) and self.emit != FINAL and not is_accepted() else None
        step_us = window.slide_us if isinstance(window, Sliding) else 0
        step_us = window.step_us if isinstance(window, Cumulating) else step_us
        if isinstance(window, Sliding | Cumulating) and window.size_us > MOST_UPDATED * step_us:
            raise QueryTypeError(
                f"Each event would change {window.size_us // step_us:,} windows of {query.name}, and each would"
                f" be emitted; {MOST_UPDATED:,} are allowed.",
                "Use a longer slide or a shorter size, or leave 'emit' = 'update' out.",
            )
        given = self.correct_for
        correct_us = None if given is None else option_duration_us(catalyst, query.name, "correct.for", given)
        return with_late_by(with_mode(query, self.emit, correct_us), self.late_by)


class Repeats(NamedTuple):
    """The columns by which repeated events are recognised, and within how much event time, as an interval of Spark."""

    columns: tuple[str, ...] = ()
    within: str | None = None

    def of(self, catalyst: Catalyst, query: AnyQuery, stream: Stream, timing: Timing | None = None) -> AnyQuery:
        """The query over the stream without repeated events; `timing`: the event time of a stateless query.

        Raises:
            QueryTypeError, UnsupportedQuery: see `plan.groups.deduplication.deduplicated` and
            `plan.groups.distinct.distinct_by_name`; `within` is missing or not a duration.
        """
        if not self.columns and self.within is None:
            return query
        if not self.columns or self.within is None:
            raise QueryTypeError(
                f"{query.name} has one of 'deduplicate' and 'deduplicate.within'.", "Write both, or neither."
            )
        within_us = option_duration_us(catalyst, query.name, "deduplicate.within", self.within)
        if within_us <= 0:
            raise QueryTypeError(f"{query.name} compares events within {within_us} µs.", "Use a positive time.")
        if isinstance(query, Selection):
            return distinct_by_name(query, stream, self.columns, timing, within_us)
        return deduplicated(query, stream, self.columns, within_us)


_ORDER = ("order.partition", "order.offset")


def with_times(catalyst: Catalyst, stream: Stream, properties: dict[str, str]) -> Stream:
    """The stream with the event-time options in its properties.

    Raises:
        QueryTypeError: an order is incomplete, a column does not exist, or a duration is invalid.
    """
    given = [name for name in _ORDER if properties.get(name)]
    if len(given) == 1:
        missing = next(name for name in _ORDER if name not in given)
        raise QueryTypeError(
            f"The stream {stream.name} has '{given[0]}' without '{missing}'.", "Name both columns, or neither."
        )
    for name in ("order.partitions", "idle_after"):
        if name in properties and not given and stream.order is None:
            raise QueryTypeError(
                f"'{name}' of the stream {stream.name} needs an order.", "Add 'order.partition' and 'order.offset'."
            )
    order = Order(properties[_ORDER[0]], properties[_ORDER[1]]) if given else stream.order
    if order is not None:
        if "order.partitions" in properties:
            names = tuple(name.strip() for name in properties["order.partitions"].split(",") if name.strip())
            order = msgspec.structs.replace(order, partitions=names)
        if "idle_after" in properties:
            idle_after = _stream_duration_us(catalyst, stream, "idle_after", properties)
            order = msgspec.structs.replace(order, idle_after_us=idle_after)
        stream = msgspec.structs.replace(stream, order=order)
    if properties.get("max_ahead", "").lower() == "none":
        stream = msgspec.structs.replace(stream, max_ahead_us=None)
    elif "max_ahead" in properties:
        max_ahead_us = _stream_duration_us(catalyst, stream, "max_ahead", properties)
        stream = msgspec.structs.replace(stream, max_ahead_us=max_ahead_us)
    check_order(stream)
    return with_malformed(_with_retention(catalyst, stream, properties), properties)


def _with_retention(catalyst: Catalyst, stream: Stream, properties: dict[str, str]) -> Stream:
    """The stream with the retention for later queries that its properties configure."""
    if not any(name in properties for name in RETENTION):
        return stream
    slices_us, events_us, grain_us = (
        _stream_duration_us(catalyst, stream, name, properties) if name in properties else 0
        for name in ("retain.slices", "retain.events", "grain")
    )
    names = tuple(name.strip() for name in properties.get("retain.columns", "").split(",") if name.strip())
    stream = msgspec.structs.replace(stream, retain=Retention(slices_us, events_us, grain_us, names))
    check_retention(stream)
    return stream


def with_malformed(stream: Stream, properties: dict[str, str]) -> Stream:
    """The stream with the handling of malformed records that its properties configure.

    Raises:
        QueryTypeError: they contradict each other, or the stream's source does not report malformed records.
    """
    policy, path, ratio = (properties.get(name) for name in ("malformed", "dead.path", "dead.ratio"))
    if policy is None and path is None and ratio is None:
        return stream
    if stream.source is None or not stream.source.has_topics:
        raise QueryTypeError(
            f"Malformed records are separated only for Kafka streams, and {stream.name} is not one.",
            "Use the option mode of its source.",
        )
    policy = (DEAD_LETTER if path else FAIL) if policy is None else policy.lower()
    if policy not in (FAIL, DROP, DEAD_LETTER):
        raise QueryTypeError(f"'malformed' of {stream.name} is {policy!r}.", "Write 'fail', 'drop' or 'dead-letter'.")
    if (policy == DEAD_LETTER) != bool(path):
        cure = "Add 'dead.path'." if policy == DEAD_LETTER else "Leave out 'dead.path', or write 'dead-letter'."
        raise QueryTypeError(f"'malformed' of {stream.name} does not fit 'dead.path'.", cure)
    try:
        most = None if ratio is None else float(ratio)
    except ValueError:
        most = -1.0
    if most is not None and not 0 <= most < 1:
        raise QueryTypeError(f"'dead.ratio' of {stream.name} is {ratio!r}.", "Write a number from 0 to below 1.")
    sink = Sink("parquet", path) if path else None
    return msgspec.structs.replace(stream, malformed=Malformed(policy, sink, most))


def _stream_duration_us(catalyst: Catalyst, stream: Stream, name: str, properties: dict[str, str]) -> int:
    return option_duration_us(catalyst, f"the stream {stream.name}", name, properties[name])


def ttl_us(catalyst: Catalyst, name: str, given: str | int | None) -> int | None:
    """The `state.ttl` of a query in microseconds, from an interval of Spark or already converted; None: it has none.

    Raises:
        QueryTypeError: it is not a positive duration.
    """
    if given is None or isinstance(given, int):
        return given
    found = option_duration_us(catalyst, name, "state.ttl", given)
    if found <= 0:
        raise QueryTypeError(f"'state.ttl' of {name} is {given!r}.", "Use a positive time, such as '1 hour'.")
    return found


def option_duration_us(catalyst: Catalyst, whose: str, name: str, text: str) -> int:
    """The microseconds of a duration in Spark's interval syntax.

    Raises:
        QueryTypeError: it is not a duration, or it counts months.
    """
    try:
        months, micros = catalyst.interval_us(text)
    except (Py4JJavaError, PySparkException) as error:
        raise QueryTypeError(f"'{name}' of {whose} is {text!r}.", "Write '30 seconds'.") from error
    if months:
        raise QueryTypeError(f"'{name}' of {whose} counts months, which differ in length.", "Use days.")
    return micros
