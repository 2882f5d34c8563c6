"""The values that a live parameter may take while queries use it."""

from __future__ import annotations

import pytest

from millpond.errors import ChangeRefused
from millpond.model.expressions import Call, Column, Expression, Parameter, literal
from millpond.model.query import Named
from millpond.model.selection import Selection
from millpond.plan.options.live_parameters import another_value, as_double, constant_of

LIMIT = Parameter("limit", "bigint")
AS_DOUBLE = Call("cast", (LIMIT,), "double")
AMOUNT, NUMBER = Column("amount", "double"), Column("n", "bigint")


def selection(name: str, where: Expression, output: Expression = AMOUNT) -> Selection:
    return Selection(name, "tx", (Named("v", output),), where=where)


def above(column: Expression, limit: Expression) -> Call:
    return Call("gt", (column, limit), "boolean")


def test_a_number_whose_uses_make_a_double_of_it_may_become_one() -> None:
    fraud = selection("fraud", above(AMOUNT, AS_DOUBLE))
    assert as_double("limit", [fraud])
    known = constant_of("limit", 200)
    made = another_value("limit", 250.5, known, ["fraud"], as_double("limit", [fraud]))
    assert made == literal(250.5, "double")
    assert another_value("limit", 300, made, ["fraud"], True) == literal(300.0, "double")
    assert another_value("limit", 300, known, ["fraud"], True) == literal(300, "bigint")


@pytest.mark.parametrize(
    "other",
    [
        selection("n", above(NUMBER, LIMIT)),
        selection("n", above(AMOUNT, AS_DOUBLE), LIMIT),
        selection("n", above(AMOUNT, Call("cast", (LIMIT,), "decimal(20,0)"))),
        selection("n", above(AMOUNT, Call("cast", (Call("add", (LIMIT, LIMIT), "bigint"),), "double"))),
    ],
)
def test_one_use_as_a_whole_number_keeps_the_type(other: Selection) -> None:
    fraud = selection("fraud", above(AMOUNT, AS_DOUBLE))
    assert not as_double("limit", [fraud, other])
    assert as_double("another", [fraud, other])
    with pytest.raises(ChangeRefused, match="of type double, not of type bigint; it is used by n") as error:
        another_value("limit", 250.5, constant_of("limit", 200), ["n"], False)
    assert "`DECLARE VARIABLE name DOUBLE DEFAULT …`" in error.value.cure
    with pytest.raises(ChangeRefused, match="of type string, not of type double") as error:
        another_value("limit", "abc", constant_of("limit", 700.5), ["n"], False)
    assert "`DECLARE VARIABLE name STRING DEFAULT …`" in error.value.cure


def test_a_text_is_never_taken_for_a_number() -> None:
    with pytest.raises(ChangeRefused):
        another_value("limit", "many", constant_of("limit", 200), ["fraud"], True)
    with pytest.raises(ChangeRefused):
        another_value("limit", 1.5, constant_of("limit", "many"), ["fraud"], True)
