"""Every operator of the naive twin, with results that were measured on Spark 4.3 under ANSI rules."""

import math
from typing import Any

import pytest

from kit.naive.expressions import _LAZY, _STRICT, Raised, evaluate
from millpond.errors import UnsupportedQuery
from millpond.model.expressions import OPERATORS, Call, Column, Expression, Foreign, literal

NAN, INF = math.nan, math.inf
RAISES = "raises"
BIG = 2**63


def constant(value: Any, kind: str = "") -> Expression:
    kinds = {bool: "boolean", int: "int", float: "double", str: "string", type(None): "int"}
    return value if isinstance(value, Call) else literal(value, kind or kinds[type(value)])


def run(op: str, *args: Any, kind: str) -> Any:
    try:
        return evaluate(Call(op, tuple(constant(arg) for arg in args), kind), {})
    except Raised:
        return RAISES


def same(left: Any, right: Any) -> bool:
    if type(left) is float and type(right) is float:
        return repr(left) == repr(right)  # tells -0.0 from 0.0, and NaN equals NaN
    return type(left) is type(right) and bool(left == right)


BOOM = Call("divide", (literal(1.0, "double"), literal(0.0, "double")), "double")
TRAP = Call("gt", (BOOM, literal(1.0, "double")), "boolean")


def test_the_twin_knows_every_operator() -> None:
    assert _LAZY.keys() | _STRICT.keys() == OPERATORS.keys()
    assert not _LAZY.keys() & _STRICT.keys()


#                                 x      y      x AND y  x OR y
@pytest.mark.parametrize(("left", "right", "both", "any_"), [
    (True, True, True, True), (True, False, False, True), (True, None, None, True),
    (False, True, False, True), (False, False, False, False), (False, None, False, None),
    (None, True, None, True), (None, False, False, None), (None, None, None, None),
    (False, TRAP, False, RAISES), (True, TRAP, RAISES, True), (None, TRAP, RAISES, RAISES),
    (TRAP, False, RAISES, RAISES), (TRAP, True, RAISES, RAISES),
])  # fmt: skip
def test_logic_has_three_values_and_stops_early(left: Any, right: Any, both: Any, any_: Any) -> None:
    assert run("and", left, right, kind="boolean") == both
    assert run("or", left, right, kind="boolean") == any_


def test_logic_continues_after_null_in_longer_chains() -> None:
    assert run("and", True, None, False, TRAP, kind="boolean") is False
    assert run("or", False, None, True, TRAP, kind="boolean") is True


@pytest.mark.parametrize(("op", "args", "expected"), [
    ("eq", (NAN, NAN), True), ("eq", (0.0, -0.0), True), ("lt", (-0.0, 0.0), False), ("gt", (NAN, INF), True),
    ("le", (NAN, NAN), True), ("lt", (INF, NAN), True), ("ge", (1, None), None), ("eq", (None, None), None),
    ("lt", ("B", "a"), True), ("lt", ("\uffff", "\U0001f600"), True), ("lt", (False, True), True),
    ("eq", (None, TRAP), None), ("eq", (TRAP, None), RAISES),
    ("same", (None, None), True), ("same", (None, 1), False), ("same", (NAN, NAN), True),
    ("same", (-0.0, 0.0), True), ("same", (None, TRAP), RAISES),
    ("in", (NAN, 1.0, NAN), True), ("in", (-0.0, 0.0), True), ("in", (1, 2, None), None),
    ("in", (1, None, 1), True),
    ("in", (None, BOOM), None), ("in", (1.0, 1.0, BOOM), True), ("in", (1.0, 2.0, None, BOOM), RAISES),
    ("not", (None,), None), ("not", (True,), False), ("isnull", (None,), True), ("isnotnull", (None,), False),
    ("isnull", (BOOM,), RAISES), ("isnan", (None,), False), ("isnan", (NAN,), True), ("isnan", (INF,), False),
    ("ran", (BOOM,), False), ("ran", (None,), True), ("ran", (False,), True),
    ("startswith", ("abc", "ab"), True), ("startswith", (None, TRAP), None), ("endswith", ("a", None), None),
    ("contains", ("a", ""), True), ("contains", ("", "a"), False),
])  # fmt: skip
def test_conditions(op: str, args: tuple[Any, ...], expected: Any) -> None:
    assert run(op, *args, kind="boolean") == expected


@pytest.mark.parametrize(("op", "args", "kind", "expected"), [
    # integers raise where they leave their own type
    ("add", (2**31 - 1, 1), "int", RAISES), ("add", (7, 120), "tinyint", 127),
    ("add", (7, 121), "tinyint", RAISES),
    ("add", (BIG - 1, 1), "bigint", RAISES), ("subtract", (-(2**31), 1), "int", RAISES),
    ("multiply", (BIG - 1, -1), "bigint", -BIG + 1), ("multiply", (2**32, 2**31), "bigint", RAISES),
    ("negate", (-(2**31),), "int", RAISES), ("abs", (-(2**31),), "int", RAISES), ("abs", (-3,), "int", 3),
    # doubles never do
    ("add", (NAN, 1.0), "double", NAN), ("multiply", (1e300, 1e300), "double", INF),
    ("negate", (-0.0,), "double", 0.0),
    ("add", (0.10000000149011612, 0.20000000298023224), "float", 0.30000001192092896),
    ("multiply", (1e30, 1e30), "float", INF),
    # the divisor is read first, and NULL beats zero
    ("divide", (1.0, 0.0), "double", RAISES), ("divide", (1.0, -0.0), "double", RAISES),
    ("divide", (None, 0.0), "double", None), ("divide", (BOOM, None), "double", None),
    ("divide", (None, BOOM), "double", RAISES), ("divide", (INF, INF), "double", NAN),
    ("add", (None, BOOM), "double", None), ("add", (BOOM, None), "double", RAISES),
    ("remainder", (7, 0), "int", RAISES), ("remainder", (None, 0), "int", None),
    ("remainder", (-7, 3), "int", -1),
    ("remainder", (7, -3), "int", 1), ("remainder", (-(2**31), -1), "int", 0),
    ("remainder", (-7.5, 2.0), "double", -1.5), ("remainder", (INF, 2.0), "double", NAN),
    ("remainder", (1.0, INF), "double", 1.0), ("remainder", (NAN, 1.0), "double", NAN),
    # rounding
    ("floor", (NAN,), "bigint", 0), ("floor", (INF,), "bigint", RAISES), ("ceil", (-1e30,), "bigint", RAISES),
    ("ceil", (-2.5,), "bigint", -2), ("floor", (-2.5,), "bigint", -3),
    ("floor", (2.0**63,), "bigint", RAISES),
    ("floor", (-(2.0**63),), "bigint", -BIG), ("round", (2.675, 2), "double", 2.68),
    ("round", (-2.5, 0), "double", -3.0),
    ("round", (1.005, 2), "double", 1.01), ("round", (-0.4, 0), "double", 0.0),
    ("round", (5e-324, 1), "double", 0.0),
    ("round", (2.5, 400), "double", 2.5), ("round", (2.5, -400), "double", 0.0),
    ("round", (NAN, 1), "double", NAN),
    ("round", (2.674999952316284, 2), "float", 2.6700000762939453), ("round", (25, -1), "int", 30),
    ("round", (2**31 - 1, -1), "int", RAISES), ("round", (7, 2), "int", 7),
    ("round", (1.0, None), "double", None),
    # functions
    ("sqrt", (-2.5,), "double", NAN), ("sqrt", (4.0,), "double", 2.0), ("ln", (0.0,), "double", None),
    ("ln", (NAN,), "double", NAN), ("log10", (-1.0,), "double", None), ("log10", (100.0,), "double", 2.0),
    ("exp", (1e30,), "double", INF), ("exp", (0.0,), "double", 1.0), ("pow", (1.0, NAN), "double", NAN),
    ("pow", (NAN, 0.0), "double", 1.0), ("pow", (-2.5, 0.5), "double", NAN),
    ("pow", (1.0, INF), "double", NAN),
    ("pow", (-1.0, INF), "double", NAN), ("pow", (-10.0, 309.0), "double", -INF),
    ("pow", (0.0, -1.0), "double", INF),
    ("pow", (-0.0, -3.0), "double", -INF), ("pow", (None, BOOM), "double", None),
    # choice
    ("least", (-0.0, 0.0), "double", -0.0), ("least", (0.0, -0.0), "double", 0.0),
    ("least", (None, NAN, 1.0), "double", 1.0),
    ("greatest", (NAN, INF, None), "double", NAN), ("greatest", (None, None), "int", None),
    ("least", (None, BOOM), "double", RAISES),
    ("case", (None, BOOM, True, 2.0, BOOM, 3.0), "double", 2.0), ("case", (False, 1), "int", None),
    ("case", (False, 1, 2), "int", 2), ("case", (TRAP, 1), "int", RAISES),
    ("coalesce", (1.0, BOOM), "double", 1.0), ("coalesce", (None, BOOM), "double", RAISES),
    ("coalesce", (None, None), "int", None),
    # text
    ("upper", ("ßıŉ",), "string", "SSI\u02bcN"), ("lower", ("İΑΣ",), "string", "i̇ας"),
    ("length", ("héllo😀",), "int", 6),
    ("length", (None,), "int", None), ("concat", ("a", None), "string", None),
    ("concat", ("a", "b"), "string", "ab"),
    # here alone generated code differs: it stops at the NULL
    ("concat", (None, Call("cast", (Call("cast", (BOOM,), "int"),), "string")), "string", None),
])  # fmt: skip
def test_values(op: str, args: tuple[Any, ...], kind: str, expected: Any) -> None:
    found = run(op, *args, kind=kind)
    assert same(found, expected), found


@pytest.mark.parametrize(("value", "source", "target", "expected"), [
    (NAN, "double", "int", RAISES), (INF, "double", "bigint", RAISES), (-2.9, "double", "int", -2),
    (2147483647.5, "double", "int", 2**31 - 1), (2147483648.5, "double", "int", RAISES),
    (2.0**63, "double", "bigint", BIG - 1), (-9.3e18, "double", "bigint", RAISES),
    (2.0**31, "float", "int", RAISES),
    (127.9, "double", "tinyint", 127), (300.5, "double", "tinyint", RAISES),
    (BIG - 1, "bigint", "int", RAISES),
    (BIG - 1, "bigint", "float", 2.0**63), (16777217, "bigint", "float", 16777216.0),
    (9007199791611905, "bigint", "float", 9007200328482816.0),
    (-9007199791611905, "bigint", "float", -9007200328482816.0),
    (2.675, "double", "float", 2.674999952316284), (1e50, "double", "float", INF),
    (-1e50, "double", "float", -INF),
    (2**53 + 1, "bigint", "double", 2.0**53), (NAN, "double", "boolean", True),
    (-0.0, "double", "boolean", False),
    (True, "boolean", "double", 1.0), (True, "boolean", "int", 1), (False, "boolean", "string", "false"),
    (-12, "int", "string", "-12"), (-1_500_000, "timestamp", "bigint", -2),
    (-1_500_000, "timestamp", "double", -1.5),
    (2**53 + 1, "timestamp", "double", 9007199254.740992),
    (2, "int", "timestamp", 2_000_000), (None, "int", "string", None),
])  # fmt: skip
def test_casts(value: Any, source: str, target: str, expected: Any) -> None:
    try:
        found = evaluate(Call("cast", (literal(value, source),), target), {})
    except Raised:
        found = RAISES
    assert same(found, expected), found


def test_a_cast_beyond_the_twin_is_refused_and_not_guessed() -> None:
    with pytest.raises(UnsupportedQuery):
        evaluate(Call("cast", (literal(0.1, "double"),), "string"), {})


def test_a_foreign_expression_is_read_from_the_column_that_spark_projects() -> None:
    foreign = Foreign("7f", "soundex(k)", "string", ("k",))
    assert evaluate(foreign, {"x_7f": "R163"}) == "R163"
    with pytest.raises(Raised):
        evaluate(foreign, {"x_7f": Raised("in Spark")})
    assert evaluate(Call("ran", (foreign,), "boolean"), {"x_7f": Raised("in Spark")}) is False


def test_a_column_that_is_not_there_is_a_mistake_of_the_test() -> None:
    with pytest.raises(KeyError):
        evaluate(Column("nope", "int"), {})
