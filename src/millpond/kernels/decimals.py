"""Decimal arithmetic over columns of 128-bit integers: exact, or an error for the row whose result does not fit.

Operands may differ in scale; the type of the result states its scale. Operations that round or overflow in other ways
(division, remainder, results of more than 38 digits) are left to Spark.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Mask, Wide
from millpond.kernels.columns import Values, to_arrow, with_null_rule
from millpond.model.expressions import Call
from millpond.model.types import MOST_DIGITS, Digits, digits_of, is_decimal
from millpond.state.numbers.int128 import (
    added,
    beyond,
    equal,
    less,
    magnitudes,
    multiplied,
    negated,
    rounded,
    scaled,
    wide,
    widened,
)

_EXACT_SCALE = 22  # 10**22 is an exact double


def compare(op: str, left: Wide, right: Wide) -> Mask:
    """Compares two columns of one decimal type; the result is arbitrary where a side is NULL."""
    if op == "eq":
        return equal(left, right)
    if op in ("lt", "ge"):
        below = less(left, right)
        return below if op == "lt" else ~below
    above = less(right, left)
    return above if op == "gt" else ~above


def _sum(node: Call, args: list[Values]) -> Values:
    scale = digits_of(node.type).scale
    left, right = (
        scaled(value.data, scale - digits_of(arg.type).scale) for value, arg in zip(args, node.args, strict=True)
    )
    return with_null_rule(args, added(left, negated(right) if node.op == "subtract" else right))


def _multiply(_node: Call, args: list[Values]) -> Values:
    return with_null_rule(args, multiplied(args[0].data, args[1].data))


def _negate(_node: Call, args: list[Values]) -> Values:
    return with_null_rule(args, negated(args[0].data))


def _abs(_node: Call, args: list[Values]) -> Values:
    return with_null_rule(args, magnitudes(args[0].data))


def _cast(node: Call, args: list[Values]) -> Values:
    """Casts decimals and integers to decimals, rounding half up, and decimals to double."""
    source, values = node.args[0].type, args[0].data
    if not is_decimal(node.type):
        return with_null_rule(args, to_doubles(values, source))
    if not is_decimal(source):
        values = widened(np.asarray(values))
    return _fitted(args, values, digits_of(source).scale, digits_of(node.type))


def _round(node: Call, args: list[Values]) -> Values:
    """ROUND: half away from zero to a number of decimals, which may be negative: tens, hundreds, …"""
    given, wanted = digits_of(node.args[0].type), digits_of(node.type)
    tens = max(0, -int(args[1].data))
    if given.scale + tens > MOST_DIGITS:
        return with_null_rule(args[:1], wide(np.zeros_like(args[0].data["high"]), np.int64(0)))
    return _fitted(args[:1], rounded(args[0].data, given.scale + tens) if tens else args[0].data,
                   -tens if tens else given.scale, wanted)  # fmt: skip


def _fitted(args: list[Values], values: Wide, scale: int, wanted: Digits) -> Values:
    """Converts unscaled numbers of scale `scale` to the type `wanted`; an error where they have too many digits."""
    more = wanted.scale - scale
    if more < 0:
        values = rounded(values, -more)
        return with_null_rule(args, values, beyond(values, wanted.precision))
    return with_null_rule(args, scaled(values, more), beyond(values, max(0, wanted.precision - more)))


def to_doubles(values: Wide, kind: str) -> npt.NDArray[np.float64]:
    """The nearest doubles: by one division if both operands are exact doubles, otherwise by parsing the text."""
    flat = np.atleast_1d(values)
    scale = digits_of(kind).scale
    result = flat["low"].view(np.int64) / 10.0**scale
    hard = np.flatnonzero(beyond(flat, 15)) if scale <= _EXACT_SCALE else np.arange(len(flat))
    if len(hard):
        few = to_arrow(Values(flat[hard]), kind, len(hard))
        result[hard] = pc.cast(pc.cast(few, pa.string()), pa.float64()).to_numpy()
    return np.asarray(result.reshape(values.shape))


DECIMALS: dict[str, Callable[[Call, list[Values]], Values]] = {
    "add": _sum,
    "subtract": _sum,
    "multiply": _multiply,
    "negate": _negate,
    "abs": _abs,
    "cast": _cast,
    "round": _round,
}
"""The evaluation of each operator where an operand or the result is a decimal; operands are evaluated before."""
