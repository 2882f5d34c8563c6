"""Limits the values that an expression computes: bytes of a value, elements of an array, steps of nested lambdas.

The bound of a node follows from the bounds of its children, for an event whose columns have `EVENT_BYTES` each. A large
value that is made from constants alone is refused. A value that depends on the event is checked while Spark evaluates
it, if its bound is large: a value larger than `VALUE_BYTES` raises, so the event is dead for the query.

Functions without a rule of their own are assumed to return at most four bytes for each byte of their arguments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from millpond.errors import QueryRefused
from millpond.spark.catalyst.checked_values import (
    bound_once,
    checked,
    counted,
    magnitude,
    multiplied,
    sized,
    steps,
    unless_larger,
)
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    id_of,
    items,
    kind_of,
    text_of,
    type_of,
)

EVENT_BYTES = 1 << 20
"""Assumed size of a column in bytes; values with bounds up to 32 times as large are not checked during evaluation."""
VALUE_BYTES = 32 << 20
"""The most bytes that a value computed from an event may have."""
CONSTANT_BYTES = 1 << 20
"""The most bytes that a value computed from constants alone may have."""
STEPS = 20_000_000
"""The most evaluation steps for one event; arrays of an event are assumed to have `ELEMENTS` elements."""
VISITS = 200_000
"""The most nodes that are visited to find how a value grows in the rounds of `aggregate`; this takes some seconds."""
ELEMENTS, PARTNERS, TABLE = 1000, 10, "table:"
"""The assumed numbers of elements of an array, and of rows of a table that match a result; their column's prefix."""
ROWS = 100_000
"""The most rows that functions such as `explode` may make from one event and constant arrays."""

_ELEMENT = 24
"""Overhead of one array element in Spark, in bytes."""
_ROUNDS = 64
_FACTOR, _ROOM = 4, 256
_FIXED = re.compile(
    r"(boolean|tinyint|smallint|int|bigint|float|double|date|timestamp|timestamp_ntz|time.*|decimal.*|interval.*|void)$"
)
_CHOICES = {"If": 1, "CaseWhen": 0, "Coalesce": 0, "Greatest": 0, "Least": 0, "IfNull": 0, "Nvl": 0, "NullIf": 0}
_PARTS = frozenset(
    {
        "Substring", "Left", "Right", "StringTrim", "StringTrimLeft", "StringTrimRight", "StringTrimBoth",
        "SubstringIndex", "GetStructField", "GetMapValue", "GetArrayItem", "ElementAt", "Reverse", "ArrayFilter",
        "MapFilter", "ArraySort", "SortArray", "ArrayDistinct", "MapKeys", "MapValues", "MapEntries", "Flatten",
        "Slice", "RegExpExtract", "RegExpSubStr", "Lower", "ArrayRemove", "ArrayCompact", "Cast", "Alias",
        "GetArrayStructFields", "AssertNotNull", "KnownNotNull", "TryEval", "GetJsonObject",
    }
)  # fmt: skip
"""Functions whose value is at most as large as their arguments."""
_SUMS = frozenset(
    {"Concat", "CreateArray", "CreateNamedStruct", "CreateMap", "ArrayUnion", "ArraysZip", "MapConcat", "ArrayAppend"}
)

_accepted = ContextVar("accepted", default=False)


@contextmanager
def accepted() -> Iterator[None]:
    """A context for queries that an older version accepted: nothing is refused, but values are still checked."""
    before = _accepted.set(True)
    try:
        yield
    finally:
        _accepted.reset(before)


def is_accepted() -> bool:
    """Whether the query under analysis was accepted by an older version."""
    return _accepted.get()


class Size(NamedTuple):
    """The most `bytes` and elements (`many`) of a value; `varies` says whether the value depends on the event."""

    bytes: float
    many: float
    varies: bool


class SizeBound(NamedTuple):
    """An expression, with checks where its values may be large, and the bound of its value."""

    node: JavaObject
    size: Size


class _Rounds:
    """Counts the nodes that are visited in rounds of `aggregate`; within each other, their numbers multiply."""

    def __init__(self, refuses: bool) -> None:
        self._refuses, self._left = refuses, VISITS

    def more(self, whole: JavaObject) -> bool:
        """Whether one more node may be visited; `whole` is the expression.

        Raises:
            QueryRefused: it may not, and the query was not accepted before.
        """
        self._left -= 1
        if self._left < 0 and self._refuses:
            raise QueryRefused(
                f"{_shown(whole)} makes its value grow in too many nested lambdas: no bound is found.",
                "Use fewer `aggregate` within each other.",
            )
        return self._left >= 0


Sizes = Mapping[int, Size]
"""The bounds of lambda variables and columns, by expression id."""


class Limiter:
    """Computes bounds of expressions, one after the other.

    `checks` says whether checks are added to values that may be large, and `refuses` whether large constants are
    refused.
    """

    def __init__(self, catalyst: Catalyst, *, checks: bool = True, refuses: bool = True) -> None:
        self._catalyst = catalyst
        self._checks = checks
        self._refuses = refuses and not is_accepted()
        self._steps = 0.0
        self._whole: JavaObject = None
        self._literals: dict[int, SizeBound] = {}
        self._in_rounds, self._rounds = False, _Rounds(self._refuses)
        self._computed: dict[tuple[int, tuple[Size | None, ...]], SizeBound] = {}
        self._variables: dict[int, tuple[int, ...]] = {}
        self._rules: dict[str, Callable[[JavaObject, list[Size]], Size]] = {
            "StringReplace": self._replaced, "RegExpReplace": self._replaced_by_pattern, "StringSplit": _split,
            "ConcatWs": _joined, "ArrayJoin": _joined, "StringRepeat": self._repeated, "ArrayRepeat": self._repeated,
            "StringSpace": self._padded, "StringLPad": self._padded, "StringRPad": self._padded,
            "Sequence": self._sequence, "StructsToJson": _written, "StructsToXml": _written,
            "ArrayInsert": self._inserted, "FormatNumber": self._digits, "Levenshtein": _compared,
            "JaroWinkler": _compared,
        }  # fmt: skip

    def limited(self, expression: JavaObject) -> JavaObject:
        """The expression, with checks where its values may be large.

        Raises:
            QueryRefused: its constants make too large values, or it takes too many steps.
        """
        self._steps, self._whole, self._literals, self._rounds = 0.0, expression, {}, _Rounds(self._refuses)
        self._computed, self._variables = {}, {}
        return self._visit(expression, {}, 1.0).node

    def elements(self, array: JavaObject) -> float:
        """The most elements that an array of constants may have; 1 if the array depends on the event."""
        size = self._visit(array, {}, 1.0).size
        if size.varies:
            return 1.0
        if array.foldable() and size.bytes <= CONSTANT_BYTES:
            found = self._amount(self._catalyst.make("Size", array, False))
            return found if math.isfinite(found) else 1.0  # a NULL array has no elements
        return max(1.0, size.many)

    def _visit(self, node: JavaObject, known: Sizes, times: float) -> SizeBound:
        kind = kind_of(node)
        self._steps += times
        if self._steps > STEPS and self._refuses:
            raise QueryRefused(
                f"{_shown(self._whole)} takes more than {STEPS:,} steps for one event.",
                "Use fewer lambdas within each other, or shorter arrays.",
            )
        if kind == "Literal":
            if id(node) not in self._literals:  # the bound holds the node, so that no other one gets its id
                self._literals[id(node)] = SizeBound(node, _of_literal(node))
            return self._literals[id(node)]
        if self._in_rounds and not self._rounds.more(self._whole):
            return SizeBound(node, Size(math.inf, math.inf, True))
        if kind in ("AttributeReference", "NamedLambdaVariable"):
            of_table = kind == "AttributeReference" and str(node.name()).startswith(TABLE)
            default = Size(EVENT_BYTES, PARTNERS if of_table else EVENT_BYTES / 8, True)
            return SizeBound(node, _narrowed(node, known.get(id_of(node), default)))
        parts = children(node)
        if any(kind_of(part) == "LambdaFunction" for part in parts):
            bound = self._computed_once(node, kind, parts, known, times)
        else:
            bounds = [self._visit(part, known, times) for part in parts]
            size = self._size(node, kind, [bound.size for bound in bounds])
            bound = SizeBound(self._rebuilt(node, bounds), _narrowed(node, size))
            if kind in _PREDICTED and size.bytes > VALUE_BYTES and self._checks:
                bound = SizeBound(self._foreseen(bound.node, kind), bound.size)
        return self._checked(bound)

    def _rebuilt(self, node: JavaObject, bounds: Sequence[SizeBound]) -> JavaObject:
        return self._catalyst.rebuilt(node, [bound.node for bound in bounds])

    def _size(self, node: JavaObject, kind: str, sizes: list[Size]) -> Size:
        varies = any(size.varies for size in sizes)
        total, count = sum(size.bytes for size in sizes), sum(size.many for size in sizes)
        if kind in self._rules:
            made = self._rules[kind](node, sizes)
            return made._replace(varies=varies)
        if kind in _CHOICES:
            values = sizes[_CHOICES[kind] :]
            return Size(max(one.bytes for one in values), max(one.many for one in values), varies)
        if kind in _SUMS:
            is_array = kind == "CreateArray"
            return Size(total + _ELEMENT * len(sizes), len(sizes) if is_array else max(count, len(sizes)), varies)
        if kind in _PARTS:
            nested = kind == "Cast" and type_of(node) == "string"
            return Size(total + (_ELEMENT * count if nested else 0) + _ROOM, max(count, 1), varies)
        return Size(_FACTOR * total + _ROOM, _FACTOR * total + 1, varies)

    def _computed_once(
        self, node: JavaObject, kind: str, parts: list[JavaObject], known: Sizes, times: float
    ) -> SizeBound:
        """The bound of a higher-order function; in rounds of `aggregate` it is computed once for equal variables.

        Without this, the visits of an `aggregate` multiply with the rounds of each one around it.
        """
        if not self._in_rounds:
            return self._higher(node, kind, parts, known, times)
        key = id(node), tuple(known.get(variable) for variable in self._variables_of(node))
        if key not in self._computed:  # the bound holds the node, so that no other one gets its id
            self._computed[key] = self._higher(node, kind, parts, known, times)
        return self._computed[key]

    def _variables_of(self, node: JavaObject) -> tuple[int, ...]:
        """The expression ids of the columns and lambda variables in an expression."""
        if id(node) not in self._variables:
            if kind_of(node) in ("AttributeReference", "NamedLambdaVariable"):
                found = {id_of(node)}
            else:
                found = {variable for part in children(node) for variable in self._variables_of(part)}
            self._variables[id(node)] = tuple(sorted(found))
        return self._variables[id(node)]

    def _higher(self, node: JavaObject, kind: str, parts: list[JavaObject], known: Sizes, times: float) -> SizeBound:
        """The bound of a higher-order function, whose lambdas are evaluated for each element."""
        given = [None if kind_of(part) == "LambdaFunction" else self._visit(part, known, times) for part in parts]
        arrays = [bound.size for bound in given if bound is not None]
        first = arrays[0]
        rounds = first.many if not first.varies else min(first.many, ELEMENTS)
        average = first.bytes / max(1.0, first.many)
        element = Size(average + 8, max(1.0, average), first.varies)
        if kind == "ArrayAggregate":
            return self._aggregated(node, parts, [bound for bound in given if bound], element, known, times * rounds)
        made, bounds = [], []
        for part, bound in zip(parts, given, strict=True):
            if bound is not None:
                bounds.append(bound)
                continue
            function, *variables = children(part)
            names = {id_of(name): element for name in variables}
            body = self._visit(function, {**known, **names}, times * max(1.0, rounds))
            made.append(body.size)
            bounds.append(self._lambda(part, body))
        varies = any(size.varies for size in [*arrays, *made])
        total = first.bytes + max((size.bytes + _ELEMENT) * max(1.0, first.many) for size in made)
        size = Size(first.bytes, first.many, varies) if kind in _PARTS else Size(total, first.many, varies)
        found = self._rebuilt(node, bounds)
        if size.bytes > VALUE_BYTES and self._checks and kind not in _PARTS and _is_wide(type_of(node)):
            found = self._each_checked(found, made)
            size = Size(VALUE_BYTES, min(first.many, VALUE_BYTES), varies)
        return SizeBound(found, _narrowed(node, size))

    def _aggregated(
        self, node: JavaObject, parts: list[JavaObject], args: list[SizeBound], element: Size, known: Sizes,
        times: float,
    ) -> SizeBound:  # fmt: skip
        """The bound of `aggregate`, whose accumulated value may grow in each round; it is checked in each round."""
        array, start = args[0].size, args[1].size
        merge, finish = parts[2], parts[3]
        merging, *variables = children(merge)  # read once, however often the body is visited
        names, varies = [id_of(name) for name in variables], start.varies or array.varies
        held = before = start._replace(varies=varies)
        quiet = self._quiet()
        for done in range(_ROUNDS):
            if done >= array.many or held.bytes > 1e15:
                break
            size = quiet._visit(merging, {**known, names[0]: held, names[1]: element}, 1.0).size
            varies = varies or size.varies
            before, held = held, Size(max(size.bytes, start.bytes), max(size.many, start.many), varies)
            if held.bytes <= before.bytes:
                break
        else:
            held = _extrapolated(before, held, array.many - _ROUNDS)
        size = Size(held.bytes, held.many, varies)
        self._refuse_constant(node, size)
        most = min(size.bytes, VALUE_BYTES)
        size = Size(most, min(size.many, most), varies)
        body = self._visit(merging, {**known, names[0]: size, names[1]: element}, times)
        if held.bytes > VALUE_BYTES and self._checks:
            body = SizeBound(self._limited_value(body.node), size)
        finishing, *ends = children(finish)
        last = self._visit(finishing, {**known, id_of(ends[0]): size}, times)
        bounds = [args[0], args[1], self._lambda(merge, body), self._lambda(finish, last)]
        return SizeBound(self._rebuilt(node, bounds), _narrowed(node, last.size._replace(varies=varies)))

    def _quiet(self) -> Limiter:
        """A limiter for the rounds of `aggregate`, which computes bounds only."""
        quiet = Limiter(self._catalyst, checks=False, refuses=False)
        quiet._whole, quiet._literals = self._whole, self._literals
        quiet._in_rounds, quiet._rounds = True, self._rounds
        quiet._computed, quiet._variables = self._computed, self._variables
        return quiet

    def _lambda(self, function: JavaObject, body: SizeBound) -> SizeBound:
        _, *arguments = children(function)
        return SizeBound(self._catalyst.rebuilt(function, [body.node, *arguments]), body.size)

    def _checked(self, bound: SizeBound) -> SizeBound:
        """Refuse a value that is constant and large; add a check to one that depends on the event and may be large."""
        self._refuse_constant(bound.node, bound.size)
        if bound.size.bytes <= VALUE_BYTES:
            return bound
        size = Size(VALUE_BYTES, min(bound.size.many, VALUE_BYTES), bound.size.varies)
        if not self._checks or kind_of(bound.node) in _PARTS:
            return bound if not self._checks else SizeBound(bound.node, size)
        return SizeBound(self._limited_value(bound.node), size)

    def _refuse_constant(self, node: JavaObject, size: Size) -> None:
        if size.varies or size.bytes <= CONSTANT_BYTES or not self._refuses:
            return
        shown = f"{size.bytes:,.0f}" if size.bytes < 1e15 else "more than 10^15"
        raise QueryRefused(
            f"{_shown(node)} makes up to {shown} bytes of constants; {CONSTANT_BYTES:,} are allowed.",
            "Write a shorter constant, or make the value of columns of the event.",
        )

    def _limited_value(self, node: JavaObject) -> JavaObject:
        """The value, wrapped so that it raises if it is too large."""
        kind = type_of(node)
        if kind in ("string", "binary"):
            return checked(self._catalyst, node, lambda value: sized(self._catalyst, value), VALUE_BYTES)
        if kind.startswith(("array<", "map<")):
            most = VALUE_BYTES // _ELEMENT
            return checked(self._catalyst, node, lambda value: counted(self._catalyst, value), most)
        return node

    def _each_checked(self, node: JavaObject, bodies: Sequence[Size]) -> JavaObject:
        """A higher-order function with a check on each element, so that all elements together are not too large."""
        is_text = _element_type(type_of(node)) in ("string", "binary")
        if len(bodies) != 1 or bodies[0].bytes <= EVENT_BYTES or not is_text:
            return self._limited_value(node)
        array, function = children(node)[0], children(node)[-1]

        def whole(value: JavaObject) -> JavaObject:
            body = function.function()
            share = lambda one: multiplied(self._catalyst, sized(self._catalyst, one), counted(self._catalyst, value))  # noqa: E731
            made = checked(self._catalyst, body, share, VALUE_BYTES)
            lambda_ = self._catalyst.rebuilt(function, [made, *items(function.arguments())])
            return self._catalyst.rebuilt(node, [value, *children(node)[1:-1], lambda_])

        return bound_once(self._catalyst, [array], lambda values: whole(values[0]))

    def _foreseen(self, node: JavaObject, kind: str) -> JavaObject:
        """A function whose value is as large as a product of its arguments, evaluated only if that is not too large."""
        catalyst, parts = self._catalyst, children(node)
        first, second = _PREDICTED[kind]
        most = VALUE_BYTES if kind not in _OF_ARRAYS else VALUE_BYTES // _ELEMENT
        size = counted if type_of(parts[first]).startswith(("array<", "map<")) else sized

        def guarded(values: Sequence[JavaObject]) -> JavaObject:
            if kind == "Sequence":
                return unless_larger(catalyst, steps(catalyst, values), most, catalyst.rebuilt(node, list(values)))
            left = None if first == second else size(catalyst, values[first])
            right = magnitude(catalyst, values[second]) if kind in _BY_NUMBER else sized(catalyst, values[second])
            amount = right if left is None else multiplied(catalyst, left, right)
            return unless_larger(catalyst, amount, most, catalyst.rebuilt(node, list(values)))

        return bound_once(catalyst, parts, guarded)

    def _replaced(self, node: JavaObject, sizes: list[Size]) -> Size:
        source, sought, new = sizes
        each = new.bytes / max(1.0, 1.0 if sought.varies else sought.bytes)
        total = source.bytes * max(1.0, each)
        return Size(total, total, True)

    def _replaced_by_pattern(self, node: JavaObject, sizes: list[Size]) -> Size:
        source, new = sizes[0], sizes[2]
        literal = children(node)[2]
        groups = new.bytes if kind_of(literal) != "Literal" else str(literal.sql()).count("$")
        total = source.bytes * (1 + groups) + (source.bytes + 1) * new.bytes
        return Size(total, total, True)

    def _repeated(self, node: JavaObject, sizes: list[Size]) -> Size:
        times = self._amount(children(node)[1])
        return Size((sizes[0].bytes + _ELEMENT) * max(0.0, times), times, True)

    def _padded(self, node: JavaObject, sizes: list[Size]) -> Size:
        parts = children(node)
        width = self._amount(parts[1] if len(parts) > 1 else parts[0])
        return Size(_FACTOR * max(0.0, width), _FACTOR * max(0.0, width), True)

    def _sequence(self, node: JavaObject, sizes: list[Size]) -> Size:
        first, last = (self._amount(part) for part in children(node)[:2])
        count = abs(last - first) + 1 if math.isfinite(first) and math.isfinite(last) else math.inf
        return Size(_ELEMENT * count, count, True)

    def _inserted(self, node: JavaObject, sizes: list[Size]) -> Size:
        place = abs(self._amount(children(node)[1]))
        return Size(sizes[0].bytes + sizes[2].bytes + _ELEMENT * place, sizes[0].many + place, True)

    def _digits(self, node: JavaObject, sizes: list[Size]) -> Size:
        many = self._amount(children(node)[1]) if _FIXED.match(type_of(children(node)[1])) else sizes[1].bytes
        return Size(_ROOM + many, _ROOM + many, True)

    def _amount(self, node: JavaObject) -> float:
        """The value of a numeric argument if it is constant; otherwise infinity."""
        if not node.foldable():
            return math.inf
        value = self._catalyst.constant(node)
        return float(value) if isinstance(value, int | float) else math.inf


_PREDICTED = {
    "StringReplace": (0, 2), "RegExpReplace": (0, 2), "StringRepeat": (0, 1), "StringLPad": (1, 1),
    "StringRPad": (1, 1), "StringSpace": (0, 0), "ArrayJoin": (0, 1), "ArrayRepeat": (1, 1),
    "ArrayInsert": (1, 1), "FormatNumber": (1, 1), "Sequence": (0, 1), "Levenshtein": (0, 1), "JaroWinkler": (0, 1),
}  # fmt: skip
"""Functions whose value, or whose number of steps, is the product of two arguments, or the argument listed twice."""
_OF_ARRAYS = ("ArrayRepeat", "ArrayInsert", "Sequence")
_BY_NUMBER = (*_OF_ARRAYS, "StringRepeat", "StringLPad", "StringRPad", "StringSpace", "FormatNumber")


def _shown(node: JavaObject) -> str:
    text = text_of(node)
    return f"`{text if len(text) <= 200 else text[:197] + '...'}`"


def _narrowed(node: JavaObject, size: Size) -> Size:
    """The bound of a value, reduced to a constant if its type has a fixed width."""
    return Size(16, 1, size.varies) if _FIXED.match(type_of(node)) else size


def _of_literal(node: JavaObject) -> Size:
    shown = len(str(node.value().toString()).encode()) if type_of(node) == "string" and node.value() is not None else (
        len(str(node.sql()))
    )  # fmt: skip
    return Size(max(shown, 1), max(shown, 1), False)


def _split(_node: JavaObject, sizes: list[Size]) -> Size:
    return Size(sizes[0].bytes + _ELEMENT * (sizes[0].bytes + 1), sizes[0].bytes + 1, True)


def _compared(_node: JavaObject, sizes: list[Size]) -> Size:
    return Size(sizes[0].bytes * sizes[1].bytes, 1, True)


def _joined(node: JavaObject, sizes: list[Size]) -> Size:
    places = {"ConcatWs": 0, "ArrayJoin": 1}
    between = sizes[places[kind_of(node)]].bytes
    arrays = any(type_of(part).startswith("array<") for part in children(node))
    count = sum(size.many for size in sizes) if arrays else 0
    total = sum(size.bytes for size in sizes) + between * (count + len(sizes))
    return Size(total, total, True)


def _written(node: JavaObject, sizes: list[Size]) -> Size:
    """The bound of a JSON or XML text, which repeats the names of fields for each element (XML twice, with spaces)."""
    names = len(type_of(children(node)[0])) * (4 if kind_of(node) == "StructsToXml" else 1)
    total = 6 * sizes[0].bytes + names * (sizes[0].many + 1) + _ROOM
    return Size(total, total, True)


def _extrapolated(before: Size, held: Size, rounds: float) -> Size:
    """The bound after `rounds` further rounds of a value that grew from `before` to `held` in one round."""
    added, ratio = held.bytes - before.bytes, held.bytes / max(1.0, before.bytes)
    if ratio > 1.2:
        total = math.inf if rounds * math.log(ratio) > 500 else held.bytes * ratio**rounds
    else:
        total = held.bytes + added * rounds
    return Size(total, max(held.many, total), held.varies)


def _is_wide(kind: str) -> bool:
    return not _FIXED.match(kind)


def _element_type(kind: str) -> str:
    return kind[6:-1] if kind.startswith("array<") else ""
