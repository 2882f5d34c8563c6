"""Builds Catalyst expressions that check a value before it is used, and evaluate it only once.

The value is bound to the variable of a lambda over an array with this single value. So Spark evaluates it once, however
often the variable is used. An error raised here is raised within the `TryEval` around each expression, so the event is
dead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from millpond.errors import UnsupportedQuery
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, kind_of, text_of, type_of

_PLAIN = ("AttributeReference", "NamedLambdaVariable", "Literal")


def bound_once(
    catalyst: Catalyst, values: Sequence[JavaObject], body: Callable[[Sequence[JavaObject]], JavaObject]
) -> JavaObject:
    """`body` applied to the values, where each value that is computed per event is bound to a variable."""
    held = list(values)
    computed = [place for place, value in enumerate(held) if kind_of(value) not in _PLAIN and not value.foldable()]
    for place in computed:
        held[place] = _variable(catalyst, held[place])
    made = body(held)
    for place in computed:
        function = catalyst.make("LambdaFunction", made, [held[place]], False)
        array = catalyst.make("CreateArray", [values[place]], False)
        made = catalyst.make("GetArrayItem", catalyst.make("ArrayTransform", array, function), _first(catalyst), False)
    return made


def checked(catalyst: Catalyst, node: JavaObject, size: Callable[[JavaObject], JavaObject], most: int) -> JavaObject:
    """The node, wrapped so that it raises if the size of its value is above `most`."""
    return bound_once(catalyst, [node], lambda values: unless_larger(catalyst, size(values[0]), most, values[0]))


TOO_LARGE = "a value of an event is too large"


def unless_larger(
    catalyst: Catalyst, amount: JavaObject, most: int, value: JavaObject, reason: str = TOO_LARGE
) -> JavaObject:
    """The value; if the amount is above `most`, this raises without evaluating the value. NULL counts as small."""
    is_larger = catalyst.make("GreaterThan", amount, catalyst.make("Literal", float(most), catalyst.types.DoubleType))
    return catalyst.make("If", is_larger, raising(catalyst, value, reason), value)


def raising(catalyst: Catalyst, like: JavaObject, message: str) -> JavaObject:
    """An expression that raises, with the type of the expression `like`."""
    reason = catalyst.make("CreateMap", [catalyst.literal("errorMessage"), catalyst.literal(message)], False)
    return catalyst.make("RaiseError", catalyst.literal("USER_RAISED_EXCEPTION"), reason, like.dataType())


def sized(catalyst: Catalyst, text: JavaObject) -> JavaObject:
    """The size of a text or binary in bytes, as a double."""
    return number(catalyst, catalyst.make("OctetLength", text))


def counted(catalyst: Catalyst, array: JavaObject) -> JavaObject:
    """The number of elements of an array or a map, as a double."""
    return number(catalyst, catalyst.make("Size", array, False))


def number(catalyst: Catalyst, value: JavaObject) -> JavaObject:
    """A number cast to a double."""
    return catalyst.make("Cast", value, catalyst.types.DoubleType, catalyst.none)


def magnitude(catalyst: Catalyst, value: JavaObject) -> JavaObject:
    """The absolute value of a number, as a double."""
    return catalyst.make("Abs", number(catalyst, value), False)


def steps(catalyst: Catalyst, values: Sequence[JavaObject]) -> JavaObject:
    """The number of steps of `sequence(start, stop[, step])`, as a double; at least the true one for times.

    Raises:
        UnsupportedQuery: the step between two times is computed for each event.
    """
    start, stop, *step = values
    kind = type_of(start)
    if kind in ("date", "timestamp", "timestamp_ntz"):
        start, stop = (catalyst.make("Cast", one, catalyst.types.TimestampType, catalyst.none) for one in (start, stop))
        ends = [number(catalyst, catalyst.make("UnixMicros", one)) for one in (start, stop)]
        width = _shortest_us(catalyst, step[0]) if step else 82_800_000_000
        by = catalyst.make("Literal", width, catalyst.types.DoubleType)
    else:
        ends = [number(catalyst, one) for one in (start, stop)]
        by = magnitude(catalyst, step[0]) if step else catalyst.make("Literal", 1.0, catalyst.types.DoubleType)
    way = catalyst.make("Subtract", ends[1], ends[0])
    return catalyst.make("Divide", catalyst.make("Abs", way, False), by)


def _shortest_us(catalyst: Catalyst, step: JavaObject) -> float:
    """The least duration in µs of a constant interval; a day is at least 23 hours, and a month 28 of them."""
    if not step.foldable():
        raise UnsupportedQuery(f"`{text_of(step)}` is a step that each event computes.", "Write a constant interval.")
    kind = type_of(step)
    if kind == "interval":
        months, days, rest = catalyst.fixed_interval(step)
    else:
        found = int(catalyst.constant(step) or 0)
        months, days, rest = (found, 0, 0) if re.search("month|year", kind) else (0, 0, found)
    parts = abs(months) * 28 * 82_800_000_000, abs(days) * 82_800_000_000, abs(rest)
    largest = max(parts)
    return float(max(1, 2 * largest - sum(parts)))


def multiplied(catalyst: Catalyst, left: JavaObject, right: JavaObject) -> JavaObject:
    """The product of two doubles."""
    return catalyst.make("Multiply", left, right)


def _variable(catalyst: Catalyst, value: JavaObject) -> JavaObject:
    holder = catalyst.java_class("java.util.concurrent.atomic.AtomicReference")()
    identity = catalyst.alias(value, "held").exprId()
    return catalyst.make("NamedLambdaVariable", "held", value.dataType(), True, identity, holder)


def _first(catalyst: Catalyst) -> JavaObject:
    return catalyst.make("Literal", 0, catalyst.types.IntegerType)
