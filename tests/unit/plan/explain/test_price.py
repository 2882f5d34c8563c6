"""The price of one more query: what it adds and what it shares."""

from __future__ import annotations

from fractions import Fraction

import pytest

from millpond.errors import QueryTypeError
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, Expression, call, literal
from millpond.model.query import Named, Query
from millpond.model.windows import Session, Sliding, Window
from millpond.plan.explain.price import price, price_text
from millpond.plan.groups.build import build_plan

MINUTE, HOUR = 60_000_000, 3_600_000_000
CUSTOMER, KIND, AMOUNT = Column("customer", "string"), Column("kind", "string"), Column("amount", "double")
POS = call("eq", (KIND, literal("pos", "string")), "boolean")


def query(
    name: str, window: Window, *aggregates: tuple[str, Expression | None], where: Expression | None = None,
    keys: tuple[Expression, ...] = (CUSTOMER,), delay: int = MINUTE,
) -> Query:  # fmt: skip
    made = tuple(Aggregate(function, argument, None, "double") for function, argument in aggregates)
    return Query(name, "tx", "ts", delay, window, keys, made, (Named("a", Column("agg:0", "double")),), where)


SPEND = query("spend", Sliding(HOUR, 10 * MINUTE), ("count", None), ("sum", AMOUNT))
PLAN = build_plan([SPEND])


def test_a_twin_is_free() -> None:
    found = price(PLAN, query("twin", SPEND.window, ("count", None), ("sum", AMOUNT)))
    assert (found.columns, found.measures, found.filters) == ((), (), ())
    assert {names for _, names in found.shared} == {("spend",)}
    assert found.edges == (Fraction(6), Fraction(6))
    text = price_text(found, [])
    assert "  group     shares " in text
    assert "  measures  none more; 3 shared\n" in text
    assert "6, as before per hour" in text


def test_what_it_brings_is_named() -> None:
    found = price(PLAN, query("pos", Sliding(6 * HOUR, 5 * MINUTE), ("max", AMOUNT), where=POS, delay=HOUR))
    assert found.columns == ("kind",)
    assert set(found.shared_columns) == {"amount", "customer", "ts"}
    assert POS in found.filters and not found.shared_filters
    assert [measure.kind for measure in found.measures] == ["count", "max", "count"]
    text = price_text(found, ["about 1 byte", "at most 2"])
    assert "  columns   1 more: kind; 3 shared\n" in text
    assert "    + max(amount) where ((kind = 'pos') and isnotnull(amount))\n" in text
    assert "  edges     6 → 12 per hour: the number of slices per key with events\n" in text
    assert "  kept      61 minutes → 7 hours of event time" in text
    assert "  delay     one more, 1 hour" in text
    assert text.endswith("  state     about 1 byte\n            at most 2\n")
    # 7 hours of 12 slices, and the one that is open
    assert found.most_cells == 7 * 12 + 1


def test_what_it_keeps_as_events_is_named() -> None:
    before = build_plan([SPEND, query("seen", SPEND.window, ("collect_list", CUSTOMER))])
    text = price_text(price(before, query("q", SPEND.window, ("mode", AMOUNT), ("first", CUSTOMER))), [])
    assert "  events    1 more: amount stored individually; 1 shared\n" in text
    assert "  events" not in price_text(price(before, query("q", SPEND.window, ("sum", AMOUNT))), [])


def test_a_group_of_its_own() -> None:
    found = price(PLAN, query("kinds", Sliding(HOUR, HOUR), ("count", None), keys=(KIND,)))
    assert found.before is None
    text = price_text(found, [])
    assert "a group of its own: tx by kind" in text
    assert "  edges     1 per hour: the number of slices per key with events\n" in text


def test_a_name_that_is_taken() -> None:
    with pytest.raises(QueryTypeError, match="used twice"):
        price(PLAN, SPEND)


@pytest.mark.parametrize("added", ["twin", "pos"])
def test_the_price_is_the_difference_of_two_plans(added: str) -> None:
    more = query(added, Sliding(HOUR, 5 * MINUTE), ("avg", AMOUNT), where=POS if added == "pos" else None)
    found = price(PLAN, more)
    before, after = PLAN.groups[0], build_plan([SPEND, more]).groups[0]
    assert set(found.measures) == set(after.measures) - set(before.measures)
    assert {measure for measure, _ in found.shared} <= set(before.measures)


def test_sessions_ride_on_sessions_over_the_same_events() -> None:
    visits = query("visits", Session(30 * MINUTE), ("count", None))
    assert price(PLAN, visits).before is None
    plan = build_plan([SPEND, visits])
    found = price(plan, query("pauses", Session(5 * MINUTE), ("count", None), ("max", AMOUNT)))
    assert found.before is not None and [one.kind for one in found.measures] == ["max", "count"]
    text = price_text(found, [])
    assert "  edges     0, as before per hour: " in text
    assert "  kept      31 minutes, as before of event time after the last event of a session" in text
    assert price(plan, query("paid", Session(5 * MINUTE), ("count", None), where=POS)).before is None
