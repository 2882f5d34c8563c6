"""Rules by which the columns of cells merge: one row per rule, and the parts of column names that follow it.

A column is named `<measure id>:<part>` (see `state.layout.cells`). Everything that merges cells calls `rule_of`, so a
new part needs a row here and nothing else. An unknown part has no rule and is refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.arrays import WIDE, Ints
from millpond.state.numbers.int128 import less, wide_integer

LARGEST = np.iinfo(np.int64).max
SMALLEST = np.iinfo(np.int64).min


class MergeRule(NamedTuple):
    """How two values of a column become one; every rule is associative and commutative.

    `identity` is the value of a missing cell. `inverse` takes a prefix away: `inverse(merged(a, b), a)` is b; rules
    with an inverse are answered from running results. `idempotent`: a cell may be merged twice, so windows may be
    covered by runs that overlap. `wide_identity` is the identity of 128-bit columns (None: the rule has no such
    columns). `bytewise`: the rule applies to each of the eight bytes.
    """

    name: str
    ufunc: np.ufunc
    identity: int
    inverse: np.ufunc | None = None
    idempotent: bool = False
    wide_identity: int | None = None
    bytewise: bool = False


ADD = MergeRule("add", np.add, 0, inverse=np.subtract)
MINIMUM = MergeRule("minimum", np.minimum, int(LARGEST), idempotent=True, wide_identity=(1 << 127) - 1)
MAXIMUM = MergeRule("maximum", np.maximum, int(SMALLEST), idempotent=True, wide_identity=-(1 << 127))
AND = MergeRule("and", np.bitwise_and, -1, idempotent=True)
OR = MergeRule("or", np.bitwise_or, 0, idempotent=True)
XOR = MergeRule("xor", np.bitwise_xor, 0, inverse=np.bitwise_xor)
REGISTERS = MergeRule("registers", np.maximum, 0, idempotent=True, bytewise=True)

RULES = {
    "n": ADD, "nan": ADD, "inf": ADD, "-inf": ADD, "min": MINIMUM, "max": MAXIMUM, "and": AND, "or": OR, "xor": XOR,
}  # fmt: skip
"""The rule of each part of a column name."""

NUMBERED = {"w": ADD, "r": REGISTERS}
"""The rule of parts that end in a number: `w-1`, `r12`."""

_LOW_WORDS = ("minlow", "maxlow")


def rule_of(column: str) -> MergeRule:
    """The rule of a column.

    Raises:
        ValueError: the part of the name is unknown, or it is a low word, which only merges with its high word.
    """
    part = column.rpartition(":")[2]
    rule = RULES.get(part) or (NUMBERED.get(part[:1]) if part[1:].lstrip("-").isdecimal() else None)
    if rule is None:
        raise ValueError(f"No rule says how the column {column!r} of state merges.")
    return rule


def is_low_word(column: str) -> bool:
    """Whether a column has the low words of 128-bit integers, which merge with the column of the high words."""
    return column.rpartition(":")[2] in _LOW_WORDS


def merged(rule: MergeRule, left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Two arrays merged element by element; `WIDE` arrays are 128-bit integers."""
    if rule.bytewise:
        return np.asarray(rule.ufunc(_bytes_of(left), _bytes_of(right))).view(np.int64)
    if left.dtype != WIDE:
        return np.asarray(rule.ufunc(left, right))
    return np.where(_precedes(rule, right, left), right, left)


def merged_overlapping(rule: MergeRule, left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The results of runs of cells, merged element by element, where two runs may have cells in common.

    Raises:
        ValueError: the rule may not be applied twice to a cell.
    """
    if not rule.idempotent:
        raise ValueError(f"Runs that overlap cannot be merged by the rule {rule.name!r}: it would count cells twice.")
    return merged(rule, left, right)


def merge_at(rule: MergeRule, targets: npt.NDArray[Any], places: Ints, values: npt.NDArray[Any]) -> None:
    """Merges each value into `targets` at its position, in place."""
    if rule.bytewise:
        held = np.flatnonzero(values)  # these are few if cells have few values
        at = (places[held, None] * 8 + np.arange(8)).reshape(-1)
        rule.ufunc.at(targets.view(np.uint8), at, _bytes_of(values[held]))
        return
    if targets.dtype != WIDE:
        rule.ufunc.at(targets, places, values)
        return
    rule.ufunc.at(targets["high"], places, values["high"])
    leading = values["high"] == targets["high"][places]
    rule.ufunc.at(targets["low"], places[leading], values["low"][leading])


def merged_runs(rule: MergeRule, column: npt.NDArray[Any], starts: Ints) -> npt.NDArray[Any]:
    """A column with the rows of each run merged into one row; runs begin at `starts`.

    >>> merged_runs(MAXIMUM, np.array([3, 1, 5]), np.array([0, 2])).tolist()
    [3, 5]
    """
    if column.dtype == WIDE:
        found, lengths = identities(rule, WIDE, len(starts)), np.diff(np.append(starts, len(column)))
        merge_at(rule, found, np.repeat(np.arange(len(starts)), lengths), column)
        return found
    if rule.bytewise:
        each = _bytes_of(column).reshape(-1, 8)
        return np.asarray(rule.ufunc.reduceat(each, starts, axis=0)).view(np.int64).reshape(-1)
    return np.asarray(rule.ufunc.reduceat(column, starts))


def identities(rule: MergeRule, dtype: np.dtype[Any], shape: int | tuple[int, ...]) -> npt.NDArray[Any]:
    """An array of identities of a rule."""
    if dtype == WIDE:
        return np.full(shape, wide_integer(_wide_identity(rule)), WIDE)
    return np.full(shape, rule.identity, dtype) if rule.identity else np.zeros(shape, dtype)


def _wide_identity(rule: MergeRule) -> int:
    if rule.wide_identity is None:
        raise ValueError(f"The rule {rule.name!r} has no columns of 128 bits.")
    return rule.wide_identity


def _precedes(rule: MergeRule, left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where a rule prefers the 128-bit integers of `left`."""
    return less(left, right) if _wide_identity(rule) > 0 else less(right, left)


def _bytes_of(words: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(words, np.int64).view(np.uint8)
