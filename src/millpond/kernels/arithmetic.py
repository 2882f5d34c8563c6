"""Comparison, arithmetic and casts over columns, under Spark's ANSI rules.

NaN is the largest value and equal to itself; -0.0 equals 0.0. Overflow of an integer type and division by zero are
errors of that row alone (the `error` mask); values never wrap around.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.kernels import decimals
from millpond.kernels.columns import NO_ROWS, Array, Mask, Values, with_null_rule
from millpond.model.expressions import Call
from millpond.model.types import integer_range, is_decimal, is_float, is_integer

_PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_ARROW = {"eq": pc.equal, "lt": pc.less, "le": pc.less_equal, "gt": pc.greater, "ge": pc.greater_equal}
_INT64_MIN = np.iinfo(np.int64).min


def compare(op: str, kind: str, left: Any, right: Any) -> Mask:
    """Compares two columns of SQL type `kind`; the result is arbitrary where a side is NULL."""
    if kind == "string":
        if isinstance(left, pa.Scalar) and isinstance(right, pa.Scalar):
            left = pa.array([left.as_py()], pa.string())
            return np.asarray(_filled(_ARROW[op](left, right))[0])
        return _filled(_ARROW[op](left, right))
    if is_decimal(kind):
        return decimals.compare(op, left, right)
    result: Mask = _PLAIN[op](left, right)
    if not is_float(kind):
        return result
    left_nan, right_nan = np.isnan(left), np.isnan(right)
    if not (left_nan.any() or right_nan.any()):
        return result
    both = left_nan & right_nan
    if op == "eq":
        return np.asarray(result | both)
    larger = left_nan if op in ("gt", "ge") else right_nan
    smaller = right_nan if op in ("gt", "ge") else left_nan
    return np.asarray(result | (larger & ~smaller) | (both if op in ("le", "ge") else NO_ROWS))


def _filled(found: pa.Array) -> Mask:
    return np.asarray(pc.fill_null(found, False))


def _outside(data: Array, kind: str) -> Mask:
    low, high = integer_range(kind)
    return (data < low) | (data > high)


def _sum(node: Call, args: list[Values]) -> Values:
    """ADD and SUBTRACT."""
    left, right, minus = args[0].data, args[1].data, node.op == "subtract"
    with np.errstate(over="ignore", invalid="ignore"):
        data = left - right if minus else left + right
    if is_float(node.type):
        return with_null_rule(args, data)
    if node.type != "bigint":
        return with_null_rule(args, data, _outside(data, node.type))
    return with_null_rule(args, data, (left ^ data) & ((left if minus else data) ^ right) < 0)


def _multiply(node: Call, args: list[Values]) -> Values:
    left, right = args[0].data, args[1].data
    with np.errstate(over="ignore", invalid="ignore"):
        data = left * right
    if is_float(node.type):
        return with_null_rule(args, data)
    if node.type != "bigint":
        return with_null_rule(args, data, _outside(data, node.type))
    # the product as a double detects overflow except near the limit; only there the product is divided back
    rough = np.abs(np.multiply(left, right, dtype=np.float64))
    raised = rough > 9.3e18
    border = (rough > 9.1e18) & ~raised
    if border.any():
        divisor = np.where(left == 0, 1, left)
        with np.errstate(over="ignore"):
            wrong = (np.floor_divide(data, divisor) != right) | ((left == -1) & (right == _INT64_MIN))
        raised = raised | (border & wrong)
    return with_null_rule(args, data, raised)


# Division evaluates its divisor first, so an error divided by NULL is NULL.
def _divide(node: Call, args: list[Values]) -> Values:
    with np.errstate(all="ignore"):
        return with_null_rule(args[::-1], args[0].data / args[1].data, args[1].data == 0)


def _remainder(node: Call, args: list[Values]) -> Values:
    zero = args[1].data == 0
    with np.errstate(all="ignore"):
        return with_null_rule(args[::-1], np.fmod(args[0].data, np.where(zero, 1, args[1].data)), zero)


def _of_sign(function: Callable[[Any], Any]) -> Callable[[Call, list[Values]], Values]:
    """Negation and ABS: an error for the least integer."""

    def apply(node: Call, args: list[Values]) -> Values:
        data = args[0].data
        low = NO_ROWS if is_float(node.type) else data == integer_range(node.type)[0]
        with np.errstate(over="ignore"):
            return with_null_rule(args, function(data), low)

    return apply


def _to_bigint(rounding: Callable[[Array], Array]) -> Callable[[Call, list[Values]], Values]:
    """FLOOR and CEIL: integers stay, doubles become bigint; NaN becomes 0, values out of range are errors."""

    def apply(node: Call, args: list[Values]) -> Values:
        data = args[0].data
        if not is_float(node.args[0].type):
            return with_null_rule(args, data)
        return with_null_rule(args, *_fitted(np.where(np.isnan(data), 0.0, rounding(data)), "bigint"))

    return apply


def _fitted(whole: Array, kind: str) -> tuple[Array, Mask]:
    """Whole doubles as int64, and where they are out of the range of integer type `kind` (or NaN)."""
    low, high = integer_range(kind)
    outside = ~((whole >= float(low)) & (whole < float(high + 1)))
    return np.where(outside, 0.0, whole).astype(np.int64), outside


def _round(node: Call, args: list[Values]) -> Values:
    """ROUND: half away from zero in decimal, like Java's BigDecimal of the shortest text that parses to the double."""
    data, scale = args[0].data, int(args[1].data)
    if is_float(node.type):
        return with_null_rule(args[:1], round_half_up(data, scale))
    if scale >= 0:
        return with_null_rule(args[:1], data)
    step = 10 ** min(-scale, 20)  # for larger steps every integer is nearer to 0
    exact = [(abs(int(x)) * 2 + step) // (2 * step) * step * (1 if x >= 0 else -1) for x in np.atleast_1d(data)]
    low, high = integer_range(node.type)
    raised = np.array([not low <= value <= high for value in exact]).reshape(data.shape)
    rounded = np.array([value if low <= value <= high else 0 for value in exact], np.int64).reshape(data.shape)
    return with_null_rule(args[:1], rounded, raised)


def round_half_up(data: Array, scale: int) -> Array:
    """Rounds doubles (or floats) to `scale` decimals; values near a tie are rounded as exact decimals.

    >>> round_half_up(np.array([2.675, -2.5, 1.005]), 2).tolist()
    [2.68, -2.5, 1.01]
    """
    wide = np.atleast_1d(data).astype(np.float64)
    scale = max(-350, min(350, scale))  # all digits of doubles are within these scales
    with np.errstate(all="ignore"):
        power = 10.0 ** abs(scale)  # exact up to 10**22
        magnified = np.abs(wide) * power if scale >= 0 else np.abs(wide) / power
        whole = np.floor(magnified + 0.5)
        rounded = np.copysign(whole / power if scale >= 0 else whole * power, wide)
        near = np.abs(magnified - np.floor(magnified) - 0.5) < np.maximum(1e-6, magnified * 2.0**-50)
    unsure = np.flatnonzero(np.isfinite(wide) & (near | ~(magnified < 2.0**46) | (abs(scale) > 22)))
    quantum = Decimal(1).scaleb(-scale)
    context = Context(prec=800)
    for i in unsure:  # ties are rare; only the text has exactly the digits that a user sees
        rounded[i] = float(Decimal(repr(float(wide[i]))).quantize(quantum, ROUND_HALF_UP, context))
    result = np.where(np.isfinite(wide), rounded, wide).astype(data.dtype) + data.dtype.type(0)
    return np.asarray(result.reshape(data.shape))


def _real(function: Callable[..., Any]) -> Callable[[Call, list[Values]], Values]:
    def apply(node: Call, args: list[Values]) -> Values:
        with np.errstate(all="ignore"):
            return with_null_rule(args, function(*(value.data for value in args)))

    return apply


def _power(base: Array, exponent: Array) -> Array:
    """Java's `pow`: unlike in C, 1 to the power of NaN and ±1 to the power of ±infinity are NaN.

    Uses `float_power`, because NumPy's `power` with a constant 0.5 is a square root, which differs at -infinity and
    -0.0.
    """
    odd = (np.abs(base) == 1) & (np.isinf(exponent) | np.isnan(exponent))
    return np.where(odd, np.nan, np.float_power(base, exponent))


def _logarithm(function: Callable[..., Any]) -> Callable[[Call, list[Values]], Values]:
    """Spark's logarithms, which are NULL at and below zero."""

    def apply(node: Call, args: list[Values]) -> Values:
        below = args[0].data <= 0
        with np.errstate(all="ignore"):
            found = with_null_rule(args, function(args[0].data))
        return found._replace(null=found.null | below)

    return apply


def _isnan(node: Call, args: list[Values]) -> Values:
    return Values(np.isnan(args[0].data) & ~args[0].null, NO_ROWS, args[0].error)


def _extreme(node: Call, args: list[Values]) -> Values:
    """LEAST and GREATEST, which skip NULLs."""
    better = "lt" if node.op == "least" else "gt"
    data, null, error = args[0]
    for value in args[1:]:
        take = ~value.null & (null | compare(better, node.type, value.data, data))
        data = np.where(take, value.data, data)
        null, error = null & value.null, error | value.error
    return Values(data, null, error)


def cast(node: Call, args: list[Values]) -> Values:
    """Casts between numbers, from boolean to integers, and from integers to text; other casts are left to Spark."""
    source, target, data = node.args[0].type, node.type, args[0].data
    if source == target or (source == "boolean" and is_integer(target)):
        return with_null_rule(args, data if source == target else data.astype(np.int64))
    if target == "string":
        texts = pc.cast(pa.array(np.atleast_1d(data)), pa.string())
        return with_null_rule(args, texts if data.ndim else texts[0])
    if is_float(target):
        with np.errstate(over="ignore"):
            return with_null_rule(args, data.astype(np.float32 if target == "float" else np.float64))
    if is_float(source):
        whole, outside = _fitted(np.trunc(data), target)
        if target == "bigint":  # Spark compares with 2**63 - 1 as a double, so it accepts 2**63, which saturates
            edge = data == 2.0**63
            whole, outside = np.where(edge, np.iinfo(np.int64).max, whole), outside & ~edge
        return with_null_rule(args, whole, outside)
    return with_null_rule(args, data, _outside(data, target))


ARITHMETIC: dict[str, Callable[[Call, list[Values]], Values]] = {
    "add": _sum,
    "subtract": _sum,
    "multiply": _multiply,
    "divide": _divide,
    "remainder": _remainder,
    "negate": _of_sign(np.negative),
    "abs": _of_sign(np.abs),
    "floor": _to_bigint(np.floor),
    "ceil": _to_bigint(np.ceil),
    "round": _round,
    "sqrt": _real(np.sqrt),
    "exp": _real(np.exp),
    "pow": _real(_power),
    "ln": _logarithm(np.log),
    "log10": _logarithm(np.log10),
    "isnan": _isnan,
    "least": _extreme,
    "greatest": _extreme,
    "cast": cast,
}
"""The evaluation of each operator over columns; all operands are evaluated before."""
