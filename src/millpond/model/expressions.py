"""Expressions over columns: frozen, hashable trees that are equal when they mean the same.

Spark resolves names and types and inserts every cast; these trees are Spark's analysed trees in the terms of the model.
`Call.op` is a key of `OPERATORS`. Everything else is a `Foreign` expression: only Spark evaluates it, in the projection
of the read, and from then on it behaves like a column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import TypeAlias

import msgspec

from millpond.model.calendars.clock_names import parameter_text
from millpond.model.types import digits_of, element_of, is_decimal, struct_fields

OPERATORS = {
    # three-valued logic; `ran` is true where its argument does not raise
    "and": "2+", "or": "2+", "not": "1", "ran": "1", "isnull": "1", "isnotnull": "1",
    # comparison: NaN is the largest value and equal to itself, -0.0 = 0.0; `same` is <=>
    "eq": "2", "lt": "2", "le": "2", "gt": "2", "ge": "2", "same": "2", "in": "2+",
    # arithmetic under ANSI rules: an overflow of the type or a division by zero raises an error
    "add": "2", "subtract": "2", "multiply": "2", "divide": "2", "remainder": "2", "negate": "1", "abs": "1",
    "floor": "1", "ceil": "1", "sqrt": "1", "exp": "1", "ln": "1", "log10": "1", "pow": "2", "round": "2",
    "isnan": "1", "least": "2+", "greatest": "2+",
    # choice: `case` is condition, value, condition, value, …, [otherwise]
    "case": "2+", "coalesce": "1+", "cast": "1",
    # text
    "upper": "1", "lower": "1", "length": "1", "startswith": "2", "endswith": "2", "contains": "2", "concat": "1+",
    # the hash by which Spark counts distinct values; unlike in SQL, it is NULL for NULL
    "xxhash64": "1",
    # the finest bin that contains a number, see `millpond.kernels.bins`; NULL for NULL
    "bin": "1",
    # `struct` is a condition and the fields: a struct, or NULL where the condition is not TRUE; `field` is a struct and
    # the position of a field
    "struct": "1+", "field": "2",
}  # fmt: skip
"""Operator -> number of arguments."""

COMMUTATIVE = frozenset({"and", "or", "eq", "same", "add", "multiply"})
"""Operators whose arguments are kept in a canonical order (never re-associated: doubles would change)."""


class Column(msgspec.Struct, frozen=True, tag_field="node", tag="column"):
    """A named column of the stream, or, above the aggregation, `key:i`, `agg:i`, `window` and its parts."""

    name: str
    type: str


class Literal(msgspec.Struct, frozen=True, tag_field="node", tag="literal"):
    """A constant as text (`float.hex` for floating types, so JSON keeps every bit); `None` is NULL.

    Integers are in base ten, decimals have all digits of their scale, timestamps are microseconds, dates are days,
    booleans are `true` or `false`. Create one with `literal`. Only a live parameter can be a list of constants; its
    text is the JSON of their texts, see `listed`.
    """

    text: str | None
    type: str

    @property
    def value(self) -> bool | int | float | str | Decimal | None:
        """The constant as a Python value."""
        if self.text is None or self.type == "string":
            return self.text
        if is_decimal(self.type):
            return Decimal(self.text)
        if self.type == "boolean":
            return self.text == "true"
        return float.fromhex(self.text) if self.type in ("float", "double") else int(self.text)

    @property
    def members(self) -> tuple[Literal, ...] | None:
        """The constants of a list; None if the constant is not a list."""
        if not is_list(self.type):
            return None
        texts = msgspec.json.decode(self.text or "[]", type=tuple[str, ...])
        return tuple(Literal(text, element_of(self.type)) for text in texts)


def plain_of(constant: Literal) -> bool | int | float | str | list[int | float | str] | None:
    """A constant, or a list of constants, as a JSON value; a decimal becomes its text.

    >>> plain_of(listed([literal(2, "bigint")], "bigint"))
    [2]
    """
    members = constant.members
    if members is not None:
        return [one.text or "" if one.type == "string" else _number(one) for one in members]
    value = constant.value
    return str(value) if isinstance(value, Decimal) else value


def _number(constant: Literal) -> int | float:
    value = constant.value
    return value if isinstance(value, int | float) else 0


def is_list(kind: str) -> bool:
    """Whether a constant of this type is a list of constants."""
    return kind.startswith("array<")


def listed(members: Iterable[Literal], kind: str) -> Literal:
    """A list of distinct constants of type `kind`, sorted by their texts; none of them is NULL.

    >>> [one.value for one in listed([literal(2, "int"), literal(1, "int")], "int").members or ()]
    [1, 2]
    """
    texts = sorted({one.text for one in members if one.text is not None})
    return Literal(msgspec.json.encode(texts).decode(), f"array<{kind}>")


def literal(value: bool | int | float | str | Decimal | None, kind: str) -> Literal:
    """The `Literal` for a Python value of SQL type `kind`; -0.0 and NaN keep their identity.

    A decimal, or its text, must fit its type.

    >>> literal(2.5, "double").value, literal(True, "boolean").value
    (2.5, True)
    """
    if value is None:
        return Literal(None, kind)
    if kind in ("float", "double"):
        return Literal(float(value).hex(), kind)
    if is_decimal(kind):
        return Literal(f"{Decimal(value):.{digits_of(kind).scale}f}", kind)
    return Literal(str(value).lower() if isinstance(value, bool) else str(value), kind)


class Call(msgspec.Struct, frozen=True, cache_hash=True, tag_field="node", tag="call"):
    """An operator applied to arguments; `type` is the type of its result.

    >>> a = Column("a", "int")
    >>> call("eq", (a, literal(1, "int")), "boolean") == call("eq", (literal(1, "int"), a), "boolean")
    True
    """

    op: str
    args: tuple[Expression, ...]
    type: str


class Foreign(msgspec.Struct, frozen=True, tag_field="node", tag="foreign"):
    """An expression that only Spark evaluates: `key` identifies it, `sql` is its text, `columns` are those it reads."""

    key: str
    sql: str
    type: str
    columns: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the column that Spark projects for the expression."""
        return f"x_{self.key}"


class Parameter(msgspec.Struct, frozen=True, tag_field="node", tag="parameter"):
    """A live parameter: the constant that is in force in the epoch that evaluates it; it never raises.

    A list of constants can only be an argument of `in`.
    """

    name: str
    type: str


Expression: TypeAlias = Column | Literal | Call | Foreign | Parameter


def call(op: str, args: tuple[Expression, ...], kind: str) -> Call:
    """A `Call` in canonical form: commutative arguments in a fixed order, `and`/`or` flattened.

    Raises:
        KeyError: `op` is not an operator.
    """
    OPERATORS[op]
    if op in ("and", "or"):
        flat: list[Expression] = []
        for arg in args:
            flat.extend(arg.args if isinstance(arg, Call) and arg.op == op else (arg,))
        args = tuple(flat)
    if op in COMMUTATIVE and not any(may_raise(arg) for arg in args):
        args = tuple(sorted(args, key=msgspec.json.encode))
    return Call(op, args, kind)


def struct_of(fields: Iterable[Expression], kind: str, present: Expression | None = None) -> Call:
    """A struct of type `kind` with these fields, which is NULL where the condition `present` is not TRUE."""
    return call("struct", (literal(True, "boolean") if present is None else present, *fields), kind)


def field_of(struct: Expression, position: int) -> Expression:
    """A field of a struct, which is NULL where the struct is NULL."""
    if isinstance(struct, Call) and struct.op == "struct" and struct.args[0] == literal(True, "boolean"):
        return struct.args[1 + position]
    kind = struct_fields(struct.type)[position].type
    return call("field", (struct, literal(position, "int")), kind)


def conjuncts_of(condition: Expression | None) -> tuple[Expression, ...]:
    """The conditions that a condition joins by AND, in order; none for None."""
    if isinstance(condition, Call) and condition.op == "and":
        return condition.args
    return () if condition is None else (condition,)


def conjunction(parts: list[Expression]) -> Expression | None:
    """The conjunction of the distinct `parts`, in order; None if there are none."""
    flat: dict[Expression, None] = {}
    for part in parts:
        flat.update(dict.fromkeys(conjuncts_of(part)))
    distinct = tuple(flat)
    if len(distinct) < 2:
        return distinct[0] if distinct else None
    return call("and", distinct, "boolean")


def walk(expression: Expression) -> Iterator[Expression]:
    """Every node of the tree, parents first."""
    yield expression
    if isinstance(expression, Call):
        for arg in expression.args:
            yield from walk(arg)


@lru_cache(1 << 15)
def foreigns_in(expression: Expression) -> tuple[Foreign, ...]:
    """The nodes of the tree that only Spark evaluates, in the order of `walk`."""
    return tuple(node for node in walk(expression) if isinstance(node, Foreign))


def replaced(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """The tree with each leaf replaced by `change(leaf)`; the arguments of operators keep their order."""
    if not isinstance(expression, Call):
        return change(expression)
    args = tuple(replaced(arg, change) for arg in expression.args)
    return expression if args == expression.args else Call(expression.op, args, expression.type)


def bound(expression: Expression, parameters: Mapping[str, Literal]) -> Expression:
    """The expression with its parameters replaced by constants; parameters without a constant stay."""
    return replaced(expression, lambda leaf: parameters.get(leaf.name, leaf) if isinstance(leaf, Parameter) else leaf)


def parameters_of(expression: Expression) -> frozenset[str]:
    """The names of the parameters in the expression."""
    return frozenset(node.name for node in walk(expression) if isinstance(node, Parameter))


@lru_cache(1 << 15)
def columns_of(expression: Expression) -> frozenset[str]:
    """The names of the stream columns that `expression` reads, including projected ones."""
    return frozenset(node.name for node in walk(expression) if isinstance(node, Column | Foreign))


_RAISING = frozenset(
    {
        "add", "subtract", "multiply", "divide", "remainder", "negate", "abs", "floor", "ceil", "cast", "round",
        "div", "pmod", "item",
    }
)  # fmt: skip
"""Operators that can raise; the last three are functions of `kernels.scalar_functions`, no operators of the model.

For decimals only a cast and `round` can: Spark evaluates their other raising operators.
"""
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double")


@lru_cache(1 << 16)
def may_raise(expression: Expression) -> bool:
    """Whether some row could make `expression` raise under ANSI rules; `ran` itself never raises.

    >>> may_raise(Call("add", (Column("a", "double"), Column("b", "double")), "double"))
    False
    >>> may_raise(Call("add", (Column("a", "int"), Column("b", "int")), "int"))
    True
    """
    if isinstance(expression, Foreign):
        return True
    if not isinstance(expression, Call) or expression.op == "ran":
        return False
    return _raises_itself(expression) or any(may_raise(arg) for arg in expression.args)


def _raises_itself(node: Call) -> bool:
    if node.op not in _RAISING:
        return False
    source = node.args[0].type
    if is_decimal(source) or is_decimal(node.type):
        narrows = is_decimal(node.type) and not digits_of(node.type).holds(digits_of(source))
        return node.op == "round" or (node.op == "cast" and narrows)
    if node.op == "cast":
        widening = source in _NUMBERS and node.type in _NUMBERS and _NUMBERS.index(source) <= _NUMBERS.index(node.type)
        return not (widening or source == node.type or node.type == "string" or source == "boolean")
    if node.op in ("divide", "remainder"):
        divisor = node.args[1]
        return not (isinstance(divisor, Literal) and divisor.value not in (0, None))
    return node.type not in ("float", "double")


def render(expression: Expression) -> str:
    """The expression as text for people; it is never parsed.

    >>> render(call("gt", (Column("a", "int"), literal(1, "int")), "boolean"))
    '(a > 1)'
    """
    if isinstance(expression, Column):
        return expression.name
    if isinstance(expression, Literal):
        return repr(expression.value) if isinstance(expression.value, str) else str(expression.value).lower()
    if isinstance(expression, Foreign):
        return expression.sql
    if isinstance(expression, Parameter):
        return parameter_text(expression.name)
    parts = [render(arg) for arg in expression.args]
    sign = _SIGNS.get(expression.op)
    if sign:
        return "(" + f" {sign} ".join(parts) + ")"
    if expression.op == "struct":
        return f"struct({', '.join(parts[1:])})"
    if expression.op == "field":
        return f"{parts[0]}.{struct_fields(expression.args[0].type)[int(parts[1])].name}"
    if expression.op == "cast":
        return f"cast({parts[0]} as {expression.type})"
    return f"{expression.op}({', '.join(parts)})"


_SIGNS = {
    "and": "and", "or": "or", "eq": "=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "same": "<=>",
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "remainder": "%",
}  # fmt: skip
