"""What the TBLPROPERTIES of a stream say of its event time: order, idle partitions, how far ahead."""

from __future__ import annotations

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from millpond.errors import QueryTypeError
from millpond.model.stream import Order, Stream, check_order
from millpond.spark.catalyst import Catalyst

STREAM_PROPERTIES = ("order.partition", "order.offset", "order.partitions", "idle_after", "max_ahead")
"""Their names; the first two are column names, `order.partitions` is a list with commas, the others are durations."""

_ORDER = ("order.partition", "order.offset")


def with_times(catalyst: Catalyst, stream: Stream, properties: dict[str, str]) -> Stream:
    """The stream with what its properties say.

    Raises:
        QueryTypeError: half an order, no such column, or a duration that is none.
    """
    given = [name for name in _ORDER if properties.get(name)]
    if len(given) == 1:
        missing = next(name for name in _ORDER if name not in given)
        raise QueryTypeError(
            f"The stream {stream.name} has '{given[0]}' without '{missing}'.", "Name both columns, or neither."
        )
    for name in ("order.partitions", "idle_after"):
        if name in properties and not given:
            raise QueryTypeError(
                f"'{name}' of the stream {stream.name} needs an order.", "Add 'order.partition' and 'order.offset'."
            )
    if given:
        order = Order(properties[_ORDER[0]], properties[_ORDER[1]])
        if "order.partitions" in properties:
            names = tuple(name.strip() for name in properties["order.partitions"].split(",") if name.strip())
            order = msgspec.structs.replace(order, partitions=names)
        if "idle_after" in properties:
            idle_after = _duration_us(catalyst, stream, "idle_after", properties)
            order = msgspec.structs.replace(order, idle_after_us=idle_after)
        stream = msgspec.structs.replace(stream, order=order)
    if properties.get("max_ahead", "").lower() == "none":
        stream = msgspec.structs.replace(stream, max_ahead_us=None)
    elif "max_ahead" in properties:
        stream = msgspec.structs.replace(stream, max_ahead_us=_duration_us(catalyst, stream, "max_ahead", properties))
    check_order(stream)
    return stream


def _duration_us(catalyst: Catalyst, stream: Stream, name: str, properties: dict[str, str]) -> int:
    text = properties[name]
    try:
        months, micros = catalyst.interval_us(text)
    except (Py4JJavaError, PySparkException) as error:
        raise QueryTypeError(f"'{name}' of the stream {stream.name} is {text!r}.", "Write '30 seconds'.") from error
    if months:
        raise QueryTypeError(
            f"'{name}' of the stream {stream.name} counts months, which differ in length.", "Use days."
        )
    return micros
