"""Translates analysed Catalyst expressions to `millpond.model.expressions`.

Foldable subtrees are evaluated here. Operators of the model become calls. The smallest subtree that the model cannot
express is passed to `foreign`: Spark projects it, below the aggregation in the read, above it in the fold. An
operation is translated only if the runtime reproduces Spark's result exactly: ANSI modes, integer and floating types,
and decimals that keep all digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from millpond.errors import QueryRefused
from millpond.model.expressions import (
    Column,
    Expression,
    Foreign,
    Literal,
    call,
    field_of,
    literal,
    may_raise,
    struct_of,
    walk,
)
from millpond.model.types import (
    FLOATS,
    INTEGERS,
    digits_of,
    exact_digits,
    is_decimal,
    is_float,
    is_integer,
    is_known,
    is_number,
    is_storable,
)
from millpond.spark.analysis.live_parameters import WRITTEN_SUMS, clock_of, has_clock, has_stand_in
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    eval_mode,
    kind_of,
    text_of,
    type_of,
)
from millpond.spark.catalyst.spark_expressions import check_node, check_stable
from millpond.spark.catalyst.value_bounds import is_accepted

Resolve: TypeAlias = Callable[[JavaObject], Expression]
"""Translates an attribute to an expression of the model."""

_SIMPLE = {
    "And": "and",
    "Or": "or",
    "Not": "not",
    "IsNull": "isnull",
    "IsNotNull": "isnotnull",
    "EqualTo": "eq",
    "EqualNullSafe": "same",
    "Coalesce": "coalesce",
    "If": "case",
    "CaseWhen": "case",
}
_ORDER = {"LessThan": "lt", "LessThanOrEqual": "le", "GreaterThan": "gt", "GreaterThanOrEqual": "ge"}
_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_NUMERIC = {"Greatest": "greatest", "Least": "least"}
_DOUBLE = {"Sqrt": "sqrt", "Exp": "exp", "Log": "ln", "Log10": "log10", "Pow": "pow", "IsNaN": "isnan"}
_ARITHMETIC = {
    "Add": "add",
    "Subtract": "subtract",
    "Multiply": "multiply",
    "Divide": "divide",
    "Remainder": "remainder",
}
_STRICT = {"UnaryMinus": "negate", "Abs": "abs"}
_WHOLE = {"Floor": "floor", "Ceil": "ceil"}
_TEXT = {
    "Upper": "upper",
    "Lower": "lower",
    "Length": "length",
    "StartsWith": "startswith",
    "EndsWith": "endswith",
    "Contains": "contains",
    "Concat": "concat",
}
_NEGATED_DIGITS = 34
"""Most digits of a decimal that Spark's `-` and `abs` keep; they round decimals with more digits."""
_PATTERNS = frozenset({"startswith", "endswith", "contains"})
"""Operators whose right side must be a constant."""

MAX_COPIES = 256
"""The most texts of an event that a `concat` may put together."""

_WRAPPERS = frozenset({"NormalizeNaNAndZero", "KnownFloatingPointNormalized", "KnownNullable", "KnownNotNull", "Alias"})


class Translator:
    """Translates expressions over one set of attributes.

    - `resolve` translates an attribute; it may raise.
    - `foreign` translates a subtree that the model cannot express; it may raise.
    - `field` translates a field of a window, or its `window_time`.
    - `rounding` allows `round`, which only the side above the aggregation evaluates.
    - `structs` lets the arrays of the runtime read fields of structs, where Spark does not see the structs.
    """

    def __init__(
        self,
        catalyst: Catalyst,
        resolve: Resolve,
        foreign: Resolve,
        field: Callable[[JavaObject], Expression | None] | None = None,
        *,
        rounding: bool = False,
        structs: bool = False,
    ) -> None:
        self._catalyst = catalyst
        self._field = field
        self._resolve = resolve
        self._foreign = foreign
        self._rounding = rounding
        self._structs = structs

    def __call__(self, node: JavaObject) -> Expression:
        """Translate an expression; the result's type is one of the model's types.

        Raises:
            UnsupportedQuery: it is not deterministic; or as raised by `resolve` and `foreign`.
        """
        kind = kind_of(node)
        while kind in _WRAPPERS:
            node = node.child()
            kind = kind_of(node)
        foldable = kind != "AttributeReference" and bool(node.foldable())
        text = str(node.sql()) if (foldable and kind != "Literal") or kind in ("Cast", *WRITTEN_SUMS) else ""
        clock = clock_of(self._catalyst, node) if has_clock(text) else None
        if clock is not None:
            return clock.parameter
        check_node(self._catalyst, node, kind)
        if kind == "AttributeReference":
            return self._resolve(node)
        if kind in ("GetStructField", "PreciseTimestampConversion"):
            known = (self._field(node) if self._field else None) or (self._read(node) if self._structs else None)
            return known or self._foreign(node)
        if kind == "CreateNamedStruct" and is_storable(type_of(node)):
            return struct_of([self(value) for value in children(node)[1::2]], type_of(node))
        if foldable and not has_stand_in(text) and not has_clock(text):
            constant = self._constant(node, kind)
            if constant is not None:
                return constant
        result = self._operator(node, kind)
        return self._foreign(node) if result is None else result

    def _read(self, node: JavaObject) -> Expression | None:
        """The field of a struct in the model's terms; None if only Spark evaluates the struct."""
        whole = node.child() if kind_of(node) == "GetStructField" else None
        if whole is None or not (is_storable(type_of(whole)) and _is_plain(whole)):
            return None
        value = self(whole)
        return None if any(isinstance(part, Foreign) for part in walk(value)) else field_of(value, int(node.ordinal()))

    def _constant(self, node: JavaObject, kind: str) -> Literal | None:
        type_ = type_of(node)
        if not is_known(type_):
            return None
        if kind != "Literal":
            check_stable(self._catalyst, node)
            if not node.deterministic():
                return None
        try:
            return literal(self._catalyst.constant(node), type_)
        except (Py4JJavaError, PySparkException):
            return None  # evaluating it raises, so it must raise once per row, as in Spark

    def _operator(self, node: JavaObject, kind: str) -> Expression | None:
        """The call for a node that the model can express, else None."""
        if not is_known(type_of(node)):
            return None
        parts = children(node)
        types = [type_of(part) for part in parts]
        if not parts or not all(map(is_known, types)):
            return None
        op = _word(node, kind, types)
        if op is None:
            return self._special(node, kind, parts, types)
        args = tuple(self(part) for part in parts)
        if op in _PATTERNS and not isinstance(args[1], Literal):
            return None
        if op == "concat":
            _check_copies(node, args)
        return compared(op, *args) if kind in _ORDER else call(op, args, type_of(node))

    def _special(self, node: JavaObject, kind: str, parts: list[JavaObject], types: list[str]) -> Expression | None:
        if kind == "In":
            return self._member(parts) if len(set(types)) == 1 else None
        if kind == "Cast":
            return self._cast(node, parts[0], types[0])
        if kind == "Logarithm" and kind_of(parts[0]) == "EulerNumber":
            return call("ln", (self(parts[1]),), "double")
        if kind == "Like":
            return self._like(node, parts)
        if kind == "Round" and self._rounding and (is_number(types[0]) or _is_ansi_decimal(node, types[0])):
            scale = self(parts[1])
            return call("round", (self(parts[0]), scale), type_of(node)) if isinstance(scale, Literal) else None
        return None

    def _member(self, parts: list[JavaObject]) -> Expression | None:
        value, *options = (self(part) for part in parts)
        if all(isinstance(option, Literal) for option in options):
            options = sorted(set(options), key=msgspec.json.encode)
        if len(options) == 1:
            return call("eq", (value, options[0]), "boolean")
        return call("in", (value, *options), "boolean")

    def _cast(self, node: JavaObject, part: JavaObject, source: str) -> Expression | None:
        target = type_of(node)
        if source == target:
            return self(part)
        numeric = is_number(target) and (is_number(source) or source == "boolean")
        numeric = numeric or (is_decimal(target) and (is_decimal(source) or is_integer(source)))
        numeric = numeric or (is_decimal(source) and target == "double")
        if not (numeric or (target == "string" and is_integer(source))):
            return None
        # The modes differ only for casts that can lose information.
        if eval_mode(node) != "ANSI" and not _widening(source, target):
            return None
        return call("cast", (self(part),), target)

    def _like(self, node: JavaObject, parts: list[JavaObject]) -> Expression | None:
        pattern = self(parts[1])
        if not isinstance(pattern, Literal) or pattern.text is None or has_stand_in(pattern.text):
            return None  # a live parameter's value may contain wildcards
        text, escape = pattern.text, str(node.escapeChar())
        word = text.strip("%")
        if not word or escape in text or any(character in word for character in "%_"):
            return None
        left, right = len(text) - len(text.lstrip("%")), len(text) - len(text.rstrip("%"))
        op = "contains" if left and right else "endswith" if left else "startswith" if right else "eq"
        return call(op, (self(parts[0]), literal(word, "string")), "boolean")


def _is_plain(node: JavaObject) -> bool:
    """Whether a struct is a column, a struct of other values, or a field of such a struct."""
    while kind_of(node) in ("GetStructField", *_WRAPPERS):
        node = node.child()
    return kind_of(node) in ("AttributeReference", "CreateNamedStruct")


def _word(node: JavaObject, kind: str, types: list[str]) -> str | None:
    """The model's operator for a node over these types, if it is exactly equal to Spark's; otherwise None."""
    if any(map(is_decimal, types)):
        return _decimal_word(node, kind, types)
    if kind in _SIMPLE or kind in _ORDER:
        return _SIMPLE.get(kind) or _ORDER[kind]
    if kind in _NUMERIC:
        return _NUMERIC[kind] if all(is_number(type_) for type_ in types) else None
    if kind in _DOUBLE:
        return _DOUBLE[kind] if all(is_float(type_) for type_ in types) else None
    if kind in _TEXT:
        return _TEXT[kind] if all(type_ == "string" for type_ in types) else None
    if kind in _WHOLE:
        return _WHOLE[kind] if types[0] in ("double", "bigint") else None
    if kind in _STRICT and is_number(types[0]):
        return _STRICT[kind] if is_float(types[0]) or node.failOnError() else None
    if kind in _ARITHMETIC and types[0] == types[1] and is_number(types[0]):
        harmless = is_float(types[0]) and kind not in ("Divide", "Remainder")
        return _ARITHMETIC[kind] if harmless or eval_mode(node) == "ANSI" else None
    return None


def _decimal_word(node: JavaObject, kind: str, types: list[str]) -> str | None:
    """The same for decimals: choices and comparisons within one type, and arithmetic that keeps all digits."""
    if kind in _ARITHMETIC and all(map(is_decimal, types)) and kind not in ("Divide", "Remainder"):
        op = _ARITHMETIC[kind]
        return op if exact_digits(op, *map(digits_of, types)).type == type_of(node) else None
    decimals = {type_ for type_ in (*types, type_of(node)) if is_decimal(type_)}
    if len(decimals) > 1:
        return None
    if kind in _STRICT:
        return _STRICT[kind] if digits_of(types[0]).precision <= _NEGATED_DIGITS else None
    return _SIMPLE.get(kind) or _ORDER.get(kind) or _NUMERIC.get(kind)


def _check_copies(node: JavaObject, args: tuple[Expression, ...]) -> None:
    """Refuse a `concat` of more than `MAX_COPIES` texts of an event."""
    copies = sum(isinstance(part, Column | Foreign) for arg in args for part in walk(arg))
    if copies > MAX_COPIES and not is_accepted():
        text = text_of(node)
        raise QueryRefused(
            f"`{text if len(text) <= 200 else text[:197] + '...'}` puts together {copies:,} texts of an event, with"
            f" what its columns stand for; {MAX_COPIES} are allowed.",
            "Name each column less often.",
        )


def _is_ansi_decimal(node: JavaObject, kind: str) -> bool:
    return is_decimal(kind) and bool(node.ansiEnabled())


def compared(op: str, left: Expression, right: Expression) -> Expression:
    """A comparison with its constant on the right, so that `10 < a` and `a > 10` become the same expression."""
    swap = isinstance(left, Literal) or (not isinstance(right, Literal) and _encoded(right) < _encoded(left))
    # A NULL left side hides an error of the right side, so sides that may raise are not swapped.
    if swap and not (may_raise(left) or may_raise(right)):
        return call(_FLIPPED[op], (right, left), "boolean")
    return call(op, (left, right), "boolean")


_encoded = msgspec.json.encode
_WIDTHS = (*INTEGERS, *FLOATS)


def _widening(source: str, target: str) -> bool:
    if target == "string" or source == "boolean":
        return True
    if is_decimal(source) or is_decimal(target):
        return not is_decimal(target) or digits_of(target).holds(digits_of(source))
    return _WIDTHS.index(source) <= _WIDTHS.index(target)


def all_true(parts: list[Expression]) -> Expression | None:
    """`a AND b AND …` without repeated and constant TRUE parts, or None if no part is left.

    Unlike `model.expressions.conjunction`, it leaves parts that are conjunctions themselves as they are: stored queries
    have this form.
    """
    kept = list(dict.fromkeys(part for part in parts if part != literal(True, "boolean")))
    if not kept:
        return None
    return kept[0] if len(kept) == 1 else call("and", tuple(kept), "boolean")


def raises_as(value: Expression) -> Expression:
    """TRUE, except for events for which `value` raises; those are dead."""
    return call("or", tuple(call(op, (value,), "boolean") for op in ("isnull", "isnotnull")), "boolean")
