"""Evaluates one expression on one row, operator by operator, as Spark's interpreter does under ANSI rules.

One half of the naive twin: slow and easy to verify. A row is a dict of Python values; timestamps
are int microseconds, dates int days, a `float` is a Python float that fits 32 bits, a decimal is a `Decimal` with
its type's scale, NULL is None. Every rule was checked against Spark 4.3, with and without generated code.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache
from typing import Any, TypeAlias

from kit.naive.hyperloglog import hash64
from millpond.errors import UnsupportedQuery
from millpond.model.expressions import Call, Column, Expression, Foreign, Literal
from millpond.model.types import digits_of, integer_range, is_decimal, is_float, is_integer

Value: TypeAlias = Any
"""bool, int, float, str, Decimal, None, or a dict for a struct; the SQL type is known by the expression."""

Row: TypeAlias = Mapping[str, Value]
"""Column name -> value; a `Raised` in place of a value is raised when it is read (a failed projection)."""

_NESTED = (dict, list, tuple)  # a union of types costs more to build than to check


class Raised(Exception):
    """The expression fails for this row."""


def evaluate(expression: Expression, row: Row) -> Value:
    """The value of `expression` on `row`; reads only what Spark's interpreter would read.

    >>> evaluate(Call("add", (Column("a", "int"), Literal("1", "int")), "int"), {"a": 41})
    42

    Raises:
        Raised: Spark would raise for this row.
        UnsupportedQuery: the twin does not know this cast.
    """
    return _EVALUATED[type(expression)](expression, row)  # parameters were replaced by constants


@lru_cache(4096)
def _constant(constant: Literal) -> Value:
    return constant.value


def _read(expression: Column | Foreign, row: Row) -> Value:
    value = row[expression.name]
    if type(value) is Raised:
        raise value
    return value


def _call(expression: Call, row: Row) -> Value:
    lazy = _LAZY.get(expression.op)
    if lazy is not None:
        return lazy(expression.args, row)
    values = _operands(expression, row)
    return None if values is None else _STRICT[expression.op](expression, *values)


_EVALUATED: dict[type, Callable[..., Value]] = {
    Literal: lambda constant, _row: _constant(constant), Column: _read, Foreign: _read, Call: _call,
}  # fmt: skip


def order(value: Value) -> tuple[int, Value]:
    """A sort key for values of one type: NaN is the largest, and -0.0 equals 0.0.

    >>> order(math.nan) > order(math.inf), order(-0.0) == order(0.0), order(math.nan) == order(math.nan)
    (True, True, True)
    """
    kind = type(value)
    if kind is int or kind is str:  # the most frequent ones
        return (0, value)
    if isinstance(value, float):
        return (1, 0) if math.isnan(value) else (0, value)
    return (0, nested_order(value)) if isinstance(value, _NESTED) else (0, value)


def nested_order(value: Value, *, signed: bool = False) -> Any:
    """A sort key for values of nested types: NULL first, structs by field, arrays by element, a prefix first.

    `signed`: -0.0 is less than 0.0.

    >>> nested_order([1]) < nested_order([1, None]) < nested_order([2])
    True
    """
    if value is None:
        return (0,)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return (1, tuple(nested_order(part, signed=signed) for part in value))
    return (1, order(value), math.copysign(1, value) if signed and isinstance(value, float) and not value else 0)


def _operands(node: Call, row: Row) -> list[Value] | None:
    """The arguments of a strict operator; None as soon as one is NULL, without reading the following ones."""
    # Spark reads the divisor first: NULL / 0 is NULL, and a failing dividend over NULL does not fail.
    right_first = node.op in ("divide", "remainder")
    values = []
    for arg in node.args[::-1] if right_first else node.args:
        value = _EVALUATED[type(arg)](arg, row)
        if value is None:
            return None
        values.append(value)
    return values[::-1] if right_first else values


# --- operators that choose which arguments to evaluate, or that handle NULL ---------------------------------

_Args: TypeAlias = tuple[Expression, ...]


def _and(args: _Args, row: Row) -> bool | None:
    result: bool | None = True
    for arg in args:
        value = evaluate(arg, row)
        if value is False:
            return False
        if value is None:
            result = None
    return result


def _or(args: _Args, row: Row) -> bool | None:
    result: bool | None = False
    for arg in args:
        value = evaluate(arg, row)
        if value is True:
            return True
        if value is None:
            result = None
    return result


def _ran(args: _Args, row: Row) -> bool:
    try:
        evaluate(args[0], row)
    except Raised:
        return False
    return True


def _same(args: _Args, row: Row) -> bool:
    left, right = (evaluate(arg, row) for arg in args)
    return left is right if left is None or right is None else order(left) == order(right)


def _in(args: _Args, row: Row) -> bool | None:
    value = evaluate(args[0], row)
    if value is None:
        return None
    result: bool | None = False
    for arg in args[1:]:
        if isinstance(arg, Literal) and arg.members is not None:
            if order(value) in [order(one.value) for one in arg.members]:
                return True
            continue
        option = evaluate(arg, row)
        if option is None:
            result = None
        elif order(option) == order(value):
            return True
    return result


def _case(args: _Args, row: Row) -> Value:
    for condition, value in zip(args[0::2], args[1::2], strict=False):
        if evaluate(condition, row) is True:
            return evaluate(value, row)
    return evaluate(args[-1], row) if len(args) % 2 else None


def _coalesce(args: _Args, row: Row) -> Value:
    for arg in args:
        value = evaluate(arg, row)
        if value is not None:
            return value
    return None


def _isnan(args: _Args, row: Row) -> bool:
    value = evaluate(args[0], row)
    return value is not None and math.isnan(value)


def _least(args: _Args, row: Row) -> Value:
    values = [value for value in [evaluate(arg, row) for arg in args] if value is not None]
    return min(values, key=order, default=None)


def _greatest(args: _Args, row: Row) -> Value:
    values = [value for value in [evaluate(arg, row) for arg in args] if value is not None]
    return max(values, key=order, default=None)


def _concat(args: _Args, row: Row) -> str | None:
    # Generated code, which Spark usually runs, stops at the first NULL; the interpreter does not.
    parts = []
    for arg in args:
        if (part := evaluate(arg, row)) is None:
            return None
        parts.append(part)
    return "".join(parts)


def _struct(args: _Args, row: Row) -> Value:
    """Fields by position; which names they have is known by the type."""
    present, *fields = [evaluate(arg, row) for arg in args]
    return tuple(fields) if present is True else None


def _field(args: _Args, row: Row) -> Value:
    whole, place = (evaluate(arg, row) for arg in args)
    return None if whole is None else (whole if isinstance(whole, tuple) else tuple(whole.values()))[place]


_LAZY: dict[str, Callable[[_Args, Row], Value]] = {
    "and": _and, "or": _or, "ran": _ran, "same": _same, "in": _in, "case": _case, "coalesce": _coalesce,
    "isnull": lambda args, row: evaluate(args[0], row) is None,
    "isnotnull": lambda args, row: evaluate(args[0], row) is not None,
    "isnan": _isnan, "least": _least, "greatest": _greatest, "concat": _concat, "struct": _struct, "field": _field,
}  # fmt: skip


# --- arithmetic: no argument is NULL ------------------------------------------------------------------------


EXACT = Context(prec=4000, rounding=ROUND_HALF_UP)
"""Decimal arithmetic that rounds only in `quantize`."""


def fit_decimal(value: Decimal, kind: str) -> Decimal:
    """The value in a decimal type, rounded half up.

    Raises:
        Raised: it has too many digits for it.
    """
    digits = digits_of(kind)
    unscaled = int(value.quantize(Decimal(1).scaleb(-digits.scale), context=EXACT).scaleb(digits.scale, EXACT))
    if abs(unscaled) >= 10**digits.precision:
        raise Raised(f"{value} is no {kind}")
    return Decimal(unscaled).scaleb(-digits.scale, EXACT)  # a zero without a sign


def _plain(decimal: Callable[[Any, Any], Decimal], other: Callable[[Any, Any], Any]) -> Callable[..., Value]:
    """Addition, subtraction or multiplication of decimals, without intermediate rounding, and of other numbers."""
    return lambda node, left, right: _typed((decimal if is_decimal(node.type) else other)(left, right), node.type)


def _fit(value: int, kind: str) -> int:
    low, high = integer_range(kind)
    if not low <= value <= high:
        raise Raised(f"{value} is no {kind}")
    return value


def _to_float32(value: float) -> float:
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def _typed(value: Value, kind: str) -> Value:
    """The result of arithmetic, in the range and precision of its type."""
    if is_decimal(kind):
        return fit_decimal(value, kind)
    if is_integer(kind):
        return _fit(int(value), kind)
    return _to_float32(value) if kind == "float" else value


def _divide(node: Call, left: float, right: float) -> Value:
    if right == 0:
        raise Raised("division by zero")
    return _typed(float(left) / float(right), node.type)


def _remainder(node: Call, left: float, right: float) -> Value:
    if right == 0:
        raise Raised("remainder by zero")
    if is_integer(node.type):
        return int(math.copysign(1, left)) * (abs(int(left)) % abs(int(right)))
    return math.nan if math.isinf(left) else _typed(math.fmod(left, right), node.type)


def _to_bigint(value: float, rounded: Callable[[float], int]) -> int:
    if math.isnan(value):
        return 0  # Spark: floor(NaN) is 0, although cast(NaN as bigint) raises.
    if math.isinf(value):
        raise Raised(f"{value} is no bigint")
    return _fit(rounded(value), "bigint")


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _pow(base: float, exponent: float) -> float:
    # Java differs from C: 1 to the power of NaN, and 1 or -1 to the power of an infinity, are NaN.
    if math.isnan(exponent) or (abs(base) == 1 and math.isinf(exponent)):
        return math.nan
    odd = math.isfinite(exponent) and abs(math.fmod(exponent, 2)) == 1
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return -math.inf if base < 0 and odd else math.inf
    except ValueError:  # a zero to a negative power, or a root of a negative number
        if base != 0:
            return math.nan
        return math.copysign(math.inf, base) if odd else math.inf


def _round(node: Call, value: Any, scale: int) -> Value:
    if isinstance(value, Decimal):
        wanted = min(scale, digits_of(node.args[0].type).scale)
        return fit_decimal(value.quantize(Decimal(1).scaleb(-wanted), context=EXACT), node.type)
    if isinstance(value, float) and not math.isfinite(value):
        return value
    if isinstance(value, int) and scale >= 0:
        return value
    number = Decimal(value) if isinstance(value, int) else Decimal(repr(value))
    rounded = number.quantize(Decimal(1).scaleb(-scale, EXACT), ROUND_HALF_UP, EXACT)
    # Adding 0.0 drops the sign of zero, which Java's BigDecimal does not have.
    return _typed(int(rounded) if isinstance(value, int) else float(rounded) + 0.0, node.type)


_STRICT: dict[str, Callable[..., Value]] = {
    "not": lambda _node, value: not value,
    "eq": lambda _node, left, right: order(left) == order(right),
    "lt": lambda _node, left, right: order(left) < order(right),
    "le": lambda _node, left, right: order(left) <= order(right),
    "gt": lambda _node, left, right: order(left) > order(right),
    "ge": lambda _node, left, right: order(left) >= order(right),
    "add": _plain(EXACT.add, operator.add),
    "subtract": _plain(EXACT.subtract, operator.sub),
    "multiply": _plain(EXACT.multiply, operator.mul),
    "divide": _divide,
    "remainder": _remainder,
    "negate": lambda node, value: _typed(value.copy_negate() if isinstance(value, Decimal) else -value, node.type),
    "abs": lambda node, value: _typed(value.copy_abs() if isinstance(value, Decimal) else abs(value), node.type),
    "floor": lambda _node, value: _to_bigint(value, math.floor),
    "ceil": lambda _node, value: _to_bigint(value, math.ceil),
    "sqrt": lambda _node, value: math.nan if value < 0 else math.sqrt(value),
    "exp": lambda _node, value: _exp(value),
    "ln": lambda _node, value: None if value <= 0 else math.log(value),
    "log10": lambda _node, value: None if value <= 0 else math.log10(value),
    "pow": lambda _node, base, exponent: _pow(base, exponent),
    "round": _round,
    "cast": lambda node, value: cast(value, node.args[0].type, node.type),
    "upper": lambda _node, value: value.upper(),
    "lower": lambda _node, value: value.lower(),
    "length": lambda _node, value: len(value),
    "startswith": lambda _node, value, part: value.startswith(part),
    "endswith": lambda _node, value, part: value.endswith(part),
    "contains": lambda _node, value, part: part in value,
    "xxhash64": lambda node, value: hash64(value, node.args[0].type),
    "bin": lambda _node, value: _bin(float(value)),
}


def _bin(number: float) -> int:
    """The bin of a number: each power of two from the least normal number on has 512 bins; negative ones count down."""
    if math.isnan(number):
        return (2047 << 9) + 256
    size = abs(number)
    if math.isinf(number):
        code = 2047 << 9
    elif size < 2.0**-1022:
        code = int(size * 2.0**1022 * 512)
    else:
        fraction, power = math.frexp(size)
        code = ((power + 1022) << 9) + int((2 * fraction - 1) * 512)
    return -1 - code if number < 0 else code


# --- casts -------------------------------------------------------------------------------------------------


def cast(value: Value, source: str, target: str) -> Value:
    """`cast(value as target)` under ANSI rules, for a value that is not NULL.

    >>> cast(-2.9, "double", "int"), cast(True, "boolean", "double"), cast(-1_500_000, "timestamp", "bigint")
    (-2, 1.0, -2)

    Raises:
        Raised: the value has no counterpart in the target type.
        UnsupportedQuery: the twin does not know this cast.
    """
    number = is_integer(source) or is_float(source)
    if source == target:
        return value
    if is_decimal(target) and (is_decimal(source) or is_integer(source)):
        return fit_decimal(Decimal(value), target)
    if target == "double" and is_decimal(source):
        return float(value)  # correctly rounded
    if target == "boolean" and number:
        return value != 0
    if target == "string" and source == "boolean":
        return "true" if value else "false"
    if target == "string" and is_integer(source):
        return str(value)
    if is_integer(target) and (number or source in ("boolean", "timestamp")):
        return _cast_to_integer(value, source, target)
    if is_float(target) and (number or source in ("boolean", "timestamp")):
        return _cast_to_floating(value, source, target)
    if target == "timestamp" and is_integer(source):
        low, high = integer_range("bigint")
        return max(low, min(high, value * 1_000_000))  # Java's TimeUnit saturates
    raise UnsupportedQuery(f"The naive twin does not cast {source} to {target}.", "Test without it.")


def _cast_to_integer(value: Value, source: str, target: str) -> int:
    if source == "timestamp":
        return _fit(value // 1_000_000, target)
    if not is_float(source):
        return _fit(int(value), target)
    low, high = integer_range(target)
    # Bounds are compared as doubles, as in Spark: 2^63 passes, and then saturates.
    if not (math.isfinite(value) and math.floor(value) <= float(high) and math.ceil(value) >= float(low)):
        raise Raised(f"{value} is no {target}")
    return min(high, max(low, math.trunc(float(value))))


def _cast_to_floating(value: Value, source: str, target: str) -> float:
    if source == "timestamp":
        value = float(value) / 1_000_000.0  # rounded twice, as in Spark
    if target == "double":
        return float(value)
    if isinstance(value, int) and value.bit_length() > 53:
        # Directly to 24 bits, because via a double it would be rounded twice. The lowest bit marks the bits cut off.
        cut = value.bit_length() - 40
        kept = (abs(value) >> cut) | (abs(value) & ((1 << cut) - 1) != 0)
        return math.copysign(_to_float32(float(kept << cut)), value)
    return _to_float32(float(value))
