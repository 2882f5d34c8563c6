"""Expressions over columns equal their evaluation row by row: every operator, on special values."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.inputs import cases
from kit.inputs.cases import BIGINTS, DOUBLES, EVERYTHING, INTS, STREAM, TEXTS, random_case
from kit.inputs.examples import examples, seeds
from kit.inputs.strategies import events
from kit.judges.answers import table_of
from kit.naive.expressions import Raised, Row, evaluate
from millpond.kernels.arithmetic import round_half_up
from millpond.kernels.columns import Values, arrow_type, from_arrow, to_arrow
from millpond.kernels.evaluate import Evaluator
from millpond.model.expressions import (
    OPERATORS,
    Call,
    Column,
    Expression,
    columns_of,
    literal,
    may_raise,
    struct_of,
    walk,
)
from millpond.model.types import Digits, digits_of, exact_digits, is_decimal
from millpond.testing.compare import Tolerance

PROPERTY = settings(suppress_health_check=list(HealthCheck))
NEARLY = Tolerance(relative=1e-14)
"""The last bits of powers and logarithms differ from library to library, Java's included."""

BOOLEAN, DOUBLE, FLOAT, BIGINT, INT, STRING, TIMESTAMP = (
    "boolean", "double", "float", "bigint", "int", "string", "timestamp",
)  # fmt: skip
POOLS: dict[str, Sequence[Any]] = {
    DOUBLE: (*DOUBLES, -9.3e18, 2147483647.5, 2147483648.0, -2147483648.9, 127.9, 128.0, -128.9, 3.0, -0.5, 1.5, None),
    FLOAT: (*(float(x) for x in np.array([v for v in DOUBLES if abs(v) < 3e38 or v != v], np.float32)),
            float(np.float32(2.675)), float(np.float32(0.35)), 16777218.0, float("inf"), -float("inf"), None),
    BIGINT: (*BIGINTS, 127, 128, -128, -129, 2**31 - 1, -(2**31), -(2**31) - 1, 3037000500, 10, 55, -55, None),
    INT: (*INTS, 10, 15, -15, 46341, None),
    "smallint": (0, 1, -1, 182, 2**15 - 1, -(2**15), None),
    "tinyint": (0, 1, -1, 12, 127, -128, None),
    TIMESTAMP: (0, 1, -1, 10**15, -(10**15), None),
    STRING: (*sorted(set(TEXTS)), "AB", "ab", "ǆ", "İ", "ﬁ", None),
    BOOLEAN: (True, False, None),
    **{kind: (*cases.decimals(kind), *cases.decimals(kind, cases.EXTREMES), None)
       for kind in ("decimal(10,2)", "decimal(18,6)", "decimal(34,10)", "decimal(38,6)", "decimal(38,38)",
                    "decimal(38,0)")},
}  # fmt: skip
DECIMALS = [kind for kind in POOLS if is_decimal(kind)]


def columns_from(rows: Sequence[Row], types: Mapping[str, str]) -> dict[str, Values]:
    columns = {}
    for name, kind in types.items():
        values = [row[name] for row in rows]
        array = pa.array(values, pa.int64() if kind == TIMESTAMP else arrow_type(kind))
        # a column cut from a larger one, as batches are
        array = pa.concat_arrays([array[:1], array]).slice(1) if len(array) else array
        columns[name] = from_arrow(array.view(arrow_type(kind)) if kind == TIMESTAMP else array, kind)
    return columns


def check(expression: Expression, rows: Sequence[Row], columns: Mapping[str, Values], tolerance: Tolerance) -> None:
    """Value, NULL and error of each row agree with the naive twin."""
    found = Evaluator(columns, len(rows))(expression)
    error = np.broadcast_to(found.error, (len(rows),))
    null = np.broadcast_to(found.null, (len(rows),))
    shown = to_arrow(found._replace(null=null | error), expression.type, len(rows))
    if expression.type == TIMESTAMP:
        shown = shown.view(pa.int64())
    if error.any():
        assert may_raise(expression), expression
    for row, raised, value in zip(rows, error.tolist(), shown.to_pylist(), strict=True):
        try:
            expected = evaluate(expression, row)
        except Raised:
            assert raised, (expression, row, value)
            continue
        assert not raised, (expression, row, expected)
        assert tolerance.allows(expected, value), (expression, row, expected, value)
        if isinstance(expected, float) and expected == 0 and tolerance == Tolerance():
            assert np.signbit(expected) == np.signbit(value) or expression.op in ("least", "greatest", "round")


NUMBERS = ("tinyint", "smallint", INT, BIGINT, FLOAT, DOUBLE)
ORDERED = (*NUMBERS, STRING, BOOLEAN, TIMESTAMP, *DECIMALS)
TWO: list[tuple[str, str, str]] = [
    *((op, kind, BOOLEAN) for op in ("eq", "lt", "le", "gt", "ge", "same", "in") for kind in ORDERED),
    *((op, kind, kind) for op in ("add", "subtract", "multiply", "remainder") for kind in NUMBERS),
    *((op, kind, kind) for op in ("least", "greatest") for kind in NUMBERS),
    *(("coalesce", kind, kind) for kind in ORDERED),
    *((op, kind, kind) for op in ("least", "greatest") for kind in DECIMALS),
    *((op, kind, exact_digits(op, digits_of(kind), digits_of(kind)).type) for op in ("add", "subtract", "multiply")
      for kind in DECIMALS if exact_digits(op, digits_of(kind), digits_of(kind)).precision <= 38),
    ("divide", DOUBLE, DOUBLE), ("pow", DOUBLE, DOUBLE),
    ("and", BOOLEAN, BOOLEAN), ("or", BOOLEAN, BOOLEAN),
    ("concat", STRING, STRING), ("case", BOOLEAN, BOOLEAN),
]  # fmt: skip
ONE: list[tuple[str, str, str]] = [
    *((op, kind, kind) for op in ("negate", "abs") for kind in NUMBERS),
    *((op, DOUBLE, DOUBLE) for op in ("sqrt", "exp", "ln", "log10")),
    *((op, kind, BIGINT) for op in ("floor", "ceil") for kind in (BIGINT, DOUBLE)),
    *((op, kind, BOOLEAN) for op in ("isnull", "isnotnull", "ran") for kind in ORDERED),
    *(("isnan", kind, BOOLEAN) for kind in (FLOAT, DOUBLE)),
    *(("cast", source, target) for source in NUMBERS for target in NUMBERS),
    *(("cast", BOOLEAN, target) for target in (*NUMBERS, STRING, BOOLEAN)),
    *(("cast", source, STRING) for source in ("tinyint", "smallint", INT, BIGINT, STRING)),
    *((op, kind, kind) for op in ("negate", "abs") for kind in DECIMALS),
    *(("cast", source, target) for source in (*DECIMALS, *NUMBERS[:4]) for target in DECIMALS),
    *(("cast", source, DOUBLE) for source in DECIMALS),
    *(("xxhash64", kind, BIGINT) for kind in ORDERED),
    *(("bin", kind, INT) for kind in (*NUMBERS, *DECIMALS)),
    ("not", BOOLEAN, BOOLEAN), ("length", STRING, INT), ("upper", STRING, STRING), ("lower", STRING, STRING),
]  # fmt: skip
OTHERS = ("round", "startswith", "endswith", "contains", "struct", "field")


def test_every_operator_is_tried() -> None:
    assert {op for op, _, _ in (*TWO, *ONE)} | set(OTHERS) == set(OPERATORS)


def tolerance_of(op: str) -> Tolerance:
    return NEARLY if op in ("exp", "ln", "log10", "pow") else Tolerance()


def raising(kind: str) -> Expression:
    """Fails where column `a` is not NULL, and is NULL elsewhere; of the requested type."""
    zero = Call("divide", (literal(1.0, DOUBLE), literal(0.0, DOUBLE)), DOUBLE)
    broken: Expression = Call("gt", (zero, literal(0.0, DOUBLE)), BOOLEAN)
    return Call("case", (Call("isnull", (Column("a", kind),), BOOLEAN), literal(None, kind), broken,
                         Column("a", kind)), kind)  # fmt: skip


@pytest.mark.parametrize(("op", "source", "kind"), TWO)
def test_an_operator_of_two_on_all_pairs(op: str, source: str, kind: str) -> None:
    rows = [{"a": a, "b": b} for a, b in itertools.product(POOLS[source], repeat=2)]
    a, b = Column("a", source), Column("b", source)
    columns = columns_from(rows, {"a": source, "b": source})
    pairs: list[tuple[Expression, Expression]] = [(a, b), (a, raising(source)), (raising(source), b)]
    for left, right in pairs:
        check(Call(op, (left, right), kind), rows, columns, tolerance_of(op))
    for constant in POOLS[source]:
        fixed = literal(constant, source)
        few = rows[:: len(POOLS[source])]
        narrow = columns_from(few, {"a": source, "b": source})
        for args in ((a, fixed), (fixed, a), (fixed, fixed)):
            check(Call(op, args, kind), few, narrow, tolerance_of(op))


@pytest.mark.parametrize(("op", "source", "kind"), ONE)
def test_an_operator_of_one_on_all_values(op: str, source: str, kind: str) -> None:
    rows = [{"a": a} for a in POOLS[source]]
    columns = columns_from(rows, {"a": source})
    for argument in (Column("a", source), raising(source), *(literal(value, source) for value in POOLS[source])):
        check(Call(op, (argument,), kind), rows, columns, tolerance_of(op))


@pytest.mark.parametrize("op", ["startswith", "endswith", "contains"])
def test_a_search_for_a_constant(op: str) -> None:
    rows = [{"a": a} for a in POOLS[STRING]]
    columns = columns_from(rows, {"a": STRING})
    for part in POOLS[STRING]:
        for text in (Column("a", STRING), raising(STRING), literal("zz ß", STRING)):
            check(Call(op, (text, literal(part, STRING)), BOOLEAN), rows, columns, Tolerance())


@pytest.mark.parametrize("kind", ORDERED)
def test_a_struct_and_its_fields(kind: str) -> None:
    rows = [{"a": a, "b": b} for a, b in itertools.product(POOLS[kind], (True, False, None))]
    columns = columns_from(rows, {"a": kind, "b": BOOLEAN})
    for value in (Column("a", kind), raising(kind), literal(POOLS[kind][0], kind)):
        inner = struct_of([value], f"struct<a:{kind}>", Column("b", BOOLEAN))
        outer = struct_of([Column("b", BOOLEAN), inner], f"struct<b:boolean,s:{inner.type}>")
        for made in (inner, Call("field", (outer, literal(1, INT)), inner.type)):
            check(Call("field", (made, literal(0, INT)), kind), rows, columns, Tolerance())
            for op in ("isnull", "isnotnull", "ran"):
                check(Call(op, (made,), BOOLEAN), rows, columns, Tolerance())


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("scale", [-30, -19, -2, -1, 0, 1, 2, 5, 30])
def test_round(kind: str, scale: int) -> None:
    rows = [{"a": a} for a in POOLS[kind]]
    columns = columns_from(rows, {"a": kind})
    for argument in (Column("a", kind), literal(POOLS[kind][2], kind)):
        check(Call("round", (argument, literal(scale, INT)), kind), rows, columns, Tolerance())


@pytest.mark.parametrize("kind", DECIMALS)
@pytest.mark.parametrize("places", [-39, -30, -2, -1, 0, 1, 5, 37])
def test_round_of_decimals(kind: str, places: int) -> None:
    given = digits_of(kind)
    scale = min(given.scale, max(0, places))
    # the type that Spark gives the result
    digits = max(given.precision - given.scale + 1 + scale, 1 - places)
    whole = Call("round", (Column("a", kind), literal(places, INT)), Digits(min(38, digits), scale).type)
    rows = [{"a": a} for a in POOLS[kind]]
    check(whole, rows, columns_from(rows, {"a": kind}), Tolerance())


@pytest.mark.parametrize("op", ["add", "subtract", "multiply"])
def test_arithmetic_of_decimals_of_two_scales(op: str) -> None:
    left, right = "decimal(18,6)", "decimal(10,2)"
    rows = [{"a": a, "b": b} for a, b in itertools.product(POOLS[left], POOLS[right])]
    kind = exact_digits(op, digits_of(left), digits_of(right)).type
    check(Call(op, (Column("a", left), Column("b", right)), kind), rows, columns_from(rows, {"a": left, "b": right}),
          Tolerance())  # fmt: skip


def test_round_of_large_doubles_sees_the_ties_that_their_texts_have() -> None:
    # 35184372088.8325 * 10^3 is no tie in binary, but its text ends in 5
    dice = random.Random(5)
    rows = [{"a": float(f"{dice.randint(2**33, 2**46)}.5e-{scale}")} for scale in (1, 2, 3) for _ in range(2000)]
    columns = columns_from(rows, {"a": DOUBLE})
    for scale in (1, 2, 3):
        check(Call("round", (Column("a", DOUBLE), literal(scale, INT)), DOUBLE), rows, columns, Tolerance())


def test_round_half_up_keeps_the_shape_of_constants() -> None:
    assert round_half_up(np.array(2.5), 0).shape == ()


def test_products_around_the_border_of_int64() -> None:
    dice = random.Random(2)
    factors = [dice.randint(2**k, 2 ** (k + 1)) * dice.choice((1, -1)) for k in range(62) for _ in range(6)]
    rows = [{"a": a, "b": int(border / a) + dice.randint(-1, 1)} for a in factors for border in (2**63, -(2**63))]
    rows = [row for row in rows if -(2**63) <= row["b"] < 2**63]
    product = Call("multiply", (Column("a", BIGINT), Column("b", BIGINT)), BIGINT)
    check(product, rows, columns_from(rows, {"a": BIGINT, "b": BIGINT}), Tolerance())


def tolerance_within(expression: Expression) -> Tolerance:
    inexact = any(isinstance(node, Call) and tolerance_of(node.op) == NEARLY for node in walk(expression))
    return NEARLY if inexact else Tolerance()


def check_all(expressions: Iterable[Expression], rows: Sequence[Row]) -> None:
    types = {field.name: field.type for field in STREAM.columns}
    table = table_of(rows)
    arrays = {name: table.column(name).combine_chunks() for name in table.column_names}
    columns = {name: from_arrow(array, types[name]) for name, array in arrays.items()}
    for expression in expressions:
        assert columns_of(expression) <= set(columns)
        check(expression, rows, columns, tolerance_within(expression))


def drawn(dice: cases.Dice) -> list[Expression]:
    column = Column("f", DOUBLE)
    return [
        *(cases.condition(dice, EVERYTHING, 3) for _ in range(3)),
        *(cases.number(dice, EVERYTHING, column) for _ in range(2)),
        cases.key(dice, EVERYTHING),
    ]


@pytest.mark.parametrize("seed", seeds(0, 20))
def test_nested_expressions_of_seeded_cases(seed: int) -> None:
    dice = random.Random(seed)
    rows = [row for epoch in random_case(seed, 80, 0).epochs for row in epoch]
    check_all(drawn(dice), rows)


class _Chance:
    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def choice(self, seq: Sequence[Any], /) -> Any:
        return self._data.draw(st.sampled_from(seq))

    def randint(self, a: int, b: int, /) -> int:
        return self._data.draw(st.integers(a, b))


@settings(PROPERTY, max_examples=examples(20))
@given(rows=events(max_size=12), data=st.data())
def test_nested_expressions_on_small_nasty_streams(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    check_all(drawn(_Chance(data)), rows)


def test_a_sub_expression_is_evaluated_once() -> None:
    looked_up: list[str] = []

    class Spy(dict[str, Values]):
        def __getitem__(self, name: str) -> Values:
            looked_up.append(name)
            return super().__getitem__(name)

    twice = Call("add", (Column("a", DOUBLE), literal(1.0, DOUBLE)), DOUBLE)
    rows = Evaluator(Spy({"a": Values(np.array([1.0]))}), 1)
    total = rows(Call("multiply", (twice, Call("sqrt", (twice,), DOUBLE)), DOUBLE))
    assert total.data.tolist() == [2 * 2**0.5]
    assert looked_up == ["a"]
