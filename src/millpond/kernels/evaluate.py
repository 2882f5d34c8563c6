"""Evaluates expressions over whole columns, with SQL's three-valued logic and ANSI errors per row.

It is used on both sides of the shuffle: for filters and arguments in the gather, for HAVING and outputs in the fold.
The order of evaluation decides which errors count, exactly as in Spark's interpreter: `false AND x` does not evaluate
`x`, an operand to the right of a NULL operand is not evaluated, `case` and `coalesce` are lazy. Equal sub-expressions
are evaluated once per `Evaluator`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.kernels.arithmetic import ARITHMETIC, compare
from millpond.kernels.bins import finest_bins
from millpond.kernels.columns import NO_ROWS, Array, Mask, Values, arrow_type
from millpond.kernels.decimals import DECIMALS
from millpond.kernels.hashing import xxhash64
from millpond.kernels.key_codes import KeyCodes, encode, key_column
from millpond.kernels.scalar_functions import apply, is_function
from millpond.kernels.structs import field_of, made_struct
from millpond.model.expressions import Call, Column, Expression, Foreign, Literal, Parameter, is_list
from millpond.model.types import is_decimal, is_float, is_known, is_storable
from millpond.state.numbers.int128 import wide_integer


class Evaluator:
    """Evaluates expressions over one set of columns, each distinct sub-expression once.

    >>> from millpond.model.expressions import call, literal
    >>> rows = Evaluator({"a": Values(np.array([1, 5]))}, 2)
    >>> rows(call("gt", (Column("a", "int"), literal(3, "int")), "boolean")).is_true().tolist()
    [False, True]
    """

    def __init__(
        self, columns: Mapping[str, Values], rows: int, parameters: Mapping[str, Literal] | None = None,
        encoded: Callable[[str], pa.DictionaryArray | None] | None = None,
    ) -> None:  # fmt: skip
        """`encoded` returns a column that has a dictionary; None if it has none."""
        self._columns, self._encoded = columns, encoded
        self._parameters = parameters or {}
        self._known: dict[Expression, Values] = {}
        self._key_codes: dict[Expression, KeyCodes] = {}
        self.rows = rows

    def __call__(self, expression: Expression) -> Values:
        """The values of `expression`; constants stay zero-dimensional.

        Raises:
            KeyError: it reads a column that does not exist.
        """
        known = self._known.get(expression)
        if known is None:
            known = self._evaluate(expression)
            self._known[expression] = known
        return known

    def key_codes(self, expression: Expression) -> KeyCodes:
        """The values of a key column, encoded once for all groups of queries that have it."""
        known = self._key_codes.get(expression)
        if known is None:
            column = self._encoded(expression.name) if self._encoded and isinstance(expression, Column) else None
            if column is None:
                column = key_column(self(expression), expression.type, self.rows)
            known = self._key_codes[expression] = encode(column)
        return known

    def list_of(self, expression: Expression) -> tuple[Literal, ...]:
        """The constants of a list, or of a parameter whose value is a list."""
        found = self._parameters[expression.name] if isinstance(expression, Parameter) else expression
        return (found.members or ()) if isinstance(found, Literal) else ()

    def true(self, expression: Expression | None) -> Mask | None:
        """The rows where a condition is TRUE; None without a condition, for which all rows pass."""
        if expression is None:
            return None
        return np.broadcast_to(self(expression).is_true(), (self.rows,))

    def _evaluate(self, expression: Expression) -> Values:
        if isinstance(expression, Column | Foreign):
            return self._columns[expression.name]
        if isinstance(expression, Literal | Parameter):
            return constant(expression if isinstance(expression, Literal) else self._parameters[expression.name])
        lazy = _LAZY.get(expression.op)
        if lazy is not None:
            return lazy(self, expression)
        args = [self(arg) for arg in expression.args]
        if expression.op in _COMPARISONS:
            return _compared(expression, args)
        if expression.op == "xxhash64":
            return xxhash64(expression, args)
        if expression.op == "bin":
            return finest_bins(expression, args)
        if expression.op in _TEXT:
            return _text(expression, args)
        if expression.op == "struct":
            return made_struct(expression, args, self.rows)
        if expression.op == "field":
            return field_of(expression, args[0])
        if is_function(expression.op):
            return apply(expression, args)
        if any(is_decimal(part.type) for part in (expression, *expression.args)):
            return DECIMALS.get(expression.op, ARITHMETIC[expression.op])(expression, args)
        return ARITHMETIC[expression.op](expression, args)


def constant(literal: Literal) -> Values:
    """The value of a literal, zero-dimensional."""
    if literal.type == "string" or (literal.text is None and is_storable(literal.type) and not is_known(literal.type)):
        return Values(pa.scalar(literal.text, arrow_type(literal.type)), np.bool_(literal.text is None) | NO_ROWS)
    if is_decimal(literal.type):
        return Values(wide_integer(int((literal.text or "0").replace(".", ""))), np.array(literal.text is None))
    width = np.float32 if literal.type == "float" else np.float64 if literal.type == "double" else np.int64
    dtype = bool if literal.type == "boolean" else width
    value = literal.value
    return Values(np.array(0 if value is None else value, dtype), np.array(value is None))


def _and(rows: Evaluator, node: Call) -> Values:
    return _junction(rows, node, deciding=False)


def _or(rows: Evaluator, node: Call) -> Values:
    return _junction(rows, node, deciding=True)


def _junction(rows: Evaluator, node: Call, deciding: bool) -> Values:
    """AND is decided by the first FALSE, OR by the first TRUE; later operands cannot cause errors then."""
    decided: Mask = NO_ROWS
    null: Mask = NO_ROWS
    error: Mask = NO_ROWS
    for arg in node.args:
        value = rows(arg)
        error = error | (value.error & ~decided)
        null = null | value.null
        known = ~value.null & ~value.error
        decided = decided | ((value.data if deciding else ~value.data) & known & ~error)
    return Values(decided if deciding else ~decided, null & ~decided, error)


def _not(rows: Evaluator, node: Call) -> Values:
    value = rows(node.args[0])
    return Values(~value.data, value.null, value.error)


def _ran(rows: Evaluator, node: Call) -> Values:
    return Values(~rows(node.args[0]).error)


def _isnull(rows: Evaluator, node: Call) -> Values:
    value = rows(node.args[0])
    return Values(value.null, NO_ROWS, value.error)


def _isnotnull(rows: Evaluator, node: Call) -> Values:
    value = rows(node.args[0])
    return Values(~value.null, NO_ROWS, value.error)


def _case(rows: Evaluator, node: Call) -> Values:
    pairs = len(node.args) // 2
    conditions = [rows(arg) for arg in node.args[0 : 2 * pairs : 2]]
    values = [rows(arg) for arg in node.args[1 : 2 * pairs : 2]]
    if len(node.args) % 2:
        conditions.append(Values(np.ones((), bool)))
        values.append(rows(node.args[-1]))
    open_rows: Mask = np.ones((), bool)
    error: Mask = NO_ROWS
    chosen: list[Mask] = []
    for condition, value in zip(conditions, values, strict=True):
        error = error | (condition.error & open_rows)
        taken = condition.is_true() & open_rows & ~error
        open_rows = open_rows & ~taken & ~error
        error = error | (value.error & taken)
        chosen.append(taken)
    return _choose(node.type, rows.rows, chosen, values, error)


def _coalesce(rows: Evaluator, node: Call) -> Values:
    values = [rows(arg) for arg in node.args]
    open_rows: Mask = np.ones((), bool)
    error: Mask = NO_ROWS
    chosen: list[Mask] = []
    for value in values:
        error = error | (value.error & open_rows)
        taken = open_rows & ~value.null & ~value.error
        open_rows = open_rows & value.null & ~value.error
        chosen.append(taken)
    return _choose(node.type, rows.rows, chosen, values, error)


def _choose(kind: str, rows: int, chosen: list[Mask], values: list[Values], error: Mask) -> Values:
    """For each row the value whose mask is set (masks are disjoint), NULL where none is set."""
    decided: Mask = NO_ROWS
    null: Mask = NO_ROWS
    if kind == "string" or not is_known(kind):
        column = pa.nulls(rows, arrow_type(kind))
        for mask, value in zip(chosen, values, strict=True):
            column = pc.if_else(pa.array(np.broadcast_to(mask, (rows,))), value.data.cast(column.type), column)
            decided, null = decided | mask, null | (mask & value.null)
        return Values(column, null | ~decided, error)
    data: Array = np.zeros((), values[0].data.dtype)
    for mask, value in zip(chosen, values, strict=True):
        data = np.where(mask, value.data, data)
        decided, null = decided | mask, null | (mask & value.null)
    return Values(data, null | ~decided, error)


def _in(rows: Evaluator, node: Call) -> Values:
    """IN: a NULL value gives NULL; with a NULL option, no match gives NULL instead of FALSE."""
    value = rows(node.args[0])
    matched: Mask = NO_ROWS
    null: Mask = NO_ROWS
    error = value.error
    kind = node.args[0].type
    for arg in node.args[1:]:
        if is_list(arg.type):
            matched = matched | _among(kind, value.data, rows.list_of(arg))
            continue
        option = rows(arg)
        error = error | (option.error & ~matched & ~value.null)
        match = compare("eq", kind, value.data, option.data)
        matched = matched | (match & ~option.null & ~option.error)
        null = null | option.null
    return Values(matched, value.null | (null & ~matched), error)


def _among(kind: str, data: Array, members: Sequence[Literal]) -> Mask:
    """Which values are among the constants of a list, which may be long."""
    if kind == "string":
        known = pa.array([one.text for one in members], pa.string())
        texts = pa.array([data.as_py()], pa.string()) if isinstance(data, pa.Scalar) else data
        found = np.asarray(pc.fill_null(pc.is_in(texts, value_set=known), False))
        return found[0] if isinstance(data, pa.Scalar) else found
    constants = np.array([one.value for one in members], np.asarray(data).dtype)
    mask: Mask = np.isin(data, constants)
    if is_float(kind) and np.isnan(constants).any():
        mask = mask | np.isnan(data)
    return mask


_LAZY: dict[str, Callable[[Evaluator, Call], Values]] = {
    "and": _and,
    "or": _or,
    "not": _not,
    "ran": _ran,
    "isnull": _isnull,
    "isnotnull": _isnotnull,
    "case": _case,
    "coalesce": _coalesce,
    "in": _in,
}
_COMPARISONS = frozenset({"eq", "lt", "le", "gt", "ge", "same"})
_TEXT = frozenset({"upper", "lower", "length", "startswith", "endswith", "contains", "concat"})


def _compared(node: Call, args: list[Values]) -> Values:
    left, right = args
    kind = node.args[0].type
    if node.op == "same":
        equal = compare("eq", kind, left.data, right.data) & ~left.null & ~right.null
        return Values(equal | (left.null & right.null), NO_ROWS, left.error | right.error)
    data = compare(node.op, kind, left.data, right.data)
    return Values(data, left.null | right.null, left.error | (right.error & ~left.null))


def _text(node: Call, args: list[Values]) -> Values:
    null, error = NO_ROWS, NO_ROWS
    for value in args:
        error = error | (value.error & ~null)
        null = null | value.null
    first = args[0].data
    if node.op == "concat":
        texts = [value.data for value in args]
        data = pc.binary_join_element_wise(*texts, pa.scalar("", pa.string()), null_handling="replace")
    elif node.op == "length":
        data = np.asarray(pc.fill_null(pc.utf8_length(first), 0)).astype(np.int64)
    elif node.op in ("upper", "lower"):
        data = _cased(first, node.op)
    else:
        data = _matched(node.op, first, args[1].data)
    return Values(data, null, error)


def _cased(text: pa.Array, op: str) -> pa.Array:
    """Upper or lower case; text outside ASCII is converted by Python, which agrees with Java (ß), unlike Arrow."""
    if isinstance(text, pa.Scalar):
        return _cased(pa.array([text.as_py()], pa.string()), op)[0]
    if pc.all(pc.string_is_ascii(text), min_count=0).as_py() is not False:
        return pc.ascii_upper(text) if op == "upper" else pc.ascii_lower(text)
    encoded = text.dictionary_encode()
    change = str.upper if op == "upper" else str.lower
    distinct = pa.array([change(value) for value in encoded.dictionary.to_pylist()], pa.string())
    return distinct.take(encoded.indices)


def _matched(op: str, text: pa.Array, part: pa.Scalar) -> Array:
    kernel = {"startswith": pc.starts_with, "endswith": pc.ends_with, "contains": pc.match_substring}[op]
    return np.asarray(pc.fill_null(kernel(text, part.as_py() or ""), False))
