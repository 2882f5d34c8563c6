"""Builds Catalyst expressions that check a value before it is used, and evaluate it only once.

The value is bound to the variable of a lambda over an array with this single value. So Spark evaluates it once, however
often the variable is used. An error raised here is raised within the `TryEval` around each expression, so the event is
dead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millpond.spark.catalyst.private_names import Catalyst, JavaObject, kind_of

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
    return number(catalyst, catalyst.size(array))


def number(catalyst: Catalyst, value: JavaObject) -> JavaObject:
    """A number cast to a double."""
    return catalyst.make("Cast", value, catalyst.types.DoubleType, catalyst.none)


def multiplied(catalyst: Catalyst, left: JavaObject, right: JavaObject) -> JavaObject:
    """The product of two doubles."""
    return catalyst.make("Multiply", left, right)


def _variable(catalyst: Catalyst, value: JavaObject) -> JavaObject:
    holder = catalyst.java_class("java.util.concurrent.atomic.AtomicReference")()
    identity = catalyst.alias(value, "held").exprId()
    return catalyst.make("NamedLambdaVariable", "held", value.dataType(), True, identity, holder)


def _first(catalyst: Catalyst) -> JavaObject:
    return catalyst.make("Literal", 0, catalyst.types.IntegerType)
