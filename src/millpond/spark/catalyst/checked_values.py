"""Catalyst expressions that look at a value before it is used: each value is evaluated once.

A value is held by the variable of a lambda over an array of this one value: Spark evaluates it once, however often the
variable is named. What raises here raises within the `TryEval` around each expression, so the event is dead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millpond.spark.catalyst.private_names import Catalyst, JavaObject, kind_of

_PLAIN = ("AttributeReference", "NamedLambdaVariable", "Literal")


def bound_once(
    catalyst: Catalyst, values: Sequence[JavaObject], body: Callable[[Sequence[JavaObject]], JavaObject]
) -> JavaObject:
    """`body` of the values, in which each that is computed for an event is held by a variable."""
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
    """The value of a node, which raises if its size is above `most`."""
    return bound_once(catalyst, [node], lambda values: unless_larger(catalyst, size(values[0]), most, values[0]))


TOO_LARGE = "a value of an event is too large"


def unless_larger(
    catalyst: Catalyst, amount: JavaObject, most: int, value: JavaObject, reason: str = TOO_LARGE
) -> JavaObject:
    """The value; where the amount is above `most` it is not evaluated, and this raises. NULL is no large amount."""
    is_larger = catalyst.make("GreaterThan", amount, catalyst.make("Literal", float(most), catalyst.types.DoubleType))
    return catalyst.make("If", is_larger, raising(catalyst, value, reason), value)


def raising(catalyst: Catalyst, like: JavaObject, message: str) -> JavaObject:
    """What raises, of the type of another expression."""
    reason = catalyst.make("CreateMap", [catalyst.literal("errorMessage"), catalyst.literal(message)], False)
    return catalyst.make("RaiseError", catalyst.literal("USER_RAISED_EXCEPTION"), reason, like.dataType())


def sized(catalyst: Catalyst, text: JavaObject) -> JavaObject:
    """Bytes of a text or binary, as a double."""
    return number(catalyst, catalyst.make("OctetLength", text))


def counted(catalyst: Catalyst, array: JavaObject) -> JavaObject:
    """Elements of an array or a map, as a double."""
    return number(catalyst, catalyst.size(array))


def number(catalyst: Catalyst, value: JavaObject) -> JavaObject:
    """A number as a double."""
    return catalyst.make("Cast", value, catalyst.types.DoubleType, _no_zone(catalyst))


def multiplied(catalyst: Catalyst, left: JavaObject, right: JavaObject) -> JavaObject:
    """The product of two doubles."""
    return catalyst.make("Multiply", left, right)


def _variable(catalyst: Catalyst, value: JavaObject) -> JavaObject:
    holder = catalyst.spark._jvm.java.util.concurrent.atomic.AtomicReference()  # type: ignore[union-attr]
    identity = catalyst.alias(value, "held").exprId()
    return catalyst.make("NamedLambdaVariable", "held", value.dataType(), True, identity, holder)


def _first(catalyst: Catalyst) -> JavaObject:
    return catalyst.make("Literal", 0, catalyst.types.IntegerType)


def _no_zone(catalyst: Catalyst) -> JavaObject:
    return catalyst.spark._jvm.scala.Option.empty()  # type: ignore[union-attr]
