"""Output modes: what a query may declare, what is refused, and where a pond mentions them."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column
from millpond.model.join import Join, Side, Within
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.windows import Counted, Range, Sliding
from millpond.plan.explain.plan_text import explain
from millpond.plan.explain.price import price, price_text
from millpond.plan.groups.build import build_plan
from millpond.plan.options.output_modes import with_mode
from millpond.runtime.rows.window_rows import output_schema

MINUTE, HOUR = 60_000_000, 3_600_000_000
COUNT = Aggregate("count", None, None, "bigint")
PLAIN = Query(
    "q", "tx", "ts", MINUTE, Sliding(HOUR, HOUR), (), (COUNT,), (Named("n", Column("agg:0", "bigint")),),
)  # fmt: skip
SIDE = Side("tx", "ts", MINUTE, (), ())
UPDATE, CORRECTED = with_mode(PLAIN, "update", None), with_mode(PLAIN, "final", HOUR)


def test_a_query_without_a_mode_is_stored_as_before() -> None:
    assert with_mode(PLAIN, "final", None) is PLAIN
    assert not {"emit", "correct_us"} & msgspec.to_builtins(PLAIN).keys()
    for query in (UPDATE, CORRECTED):
        assert isinstance(query, Query)
        assert msgspec.json.decode(msgspec.json.encode(query), type=Query) == query


@pytest.mark.parametrize(
    ("query", "emit", "correct_us", "error", "says"),
    [
        (PLAIN, "each", None, QueryTypeError, "q emits 'each'"),
        (PLAIN, "final", 0, QueryTypeError, "q corrects rows for 0"),
        (PLAIN, "update", HOUR, QueryTypeError, "never corrected"),
        (replace(PLAIN, window=Range(HOUR)), "update", None, UnsupportedQuery, "updates, and has windows that"),
        (replace(PLAIN, window=Counted(10, 5)), "final", HOUR, UnsupportedQuery, "rows, and has windows that"),
        (Join("j", SIDE, SIDE, "inner", Within(0, HOUR), ()), "update", None, UnsupportedQuery, "j emits .* is a join"),
        (replace(PLAIN, output=(Named("_OP", Column("agg:0", "bigint")),)), "update", None, UnsupportedQuery, "_OP"),
        (Selection("s", "tx", (), None), "update", None, UnsupportedQuery, "s emits updates, but has no window"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_by_name(
    query: Query, emit: str, correct_us: int | None, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        with_mode(query, emit, correct_us)


def test_rows_that_may_change_say_so() -> None:
    assert output_schema(PLAIN).names == ["n"]
    assert output_schema(UPDATE).names == ["n", "_op"]
    assert output_schema(CORRECTED).names == ["n", "_op", "_revision"]


def test_a_corrected_query_takes_events_as_long_as_it_corrects() -> None:
    plan = build_plan([PLAIN, replace(CORRECTED, name="c"), replace(UPDATE, name="u")])
    assert plan.groups[0].delays_us == (MINUTE, HOUR + MINUTE)
    assert [query.delay for query in plan.groups[0].queries] == [1, 0, 0]
    text = explain(plan)
    assert "    c: 1 hour, delay 1 minute, corrected for 1 hour more\n" in text
    assert "    u: 1 hour, delay 1 minute, emits updates\n" in text


def test_the_price_of_changing_rows_is_named() -> None:
    text = price_text(price(build_plan([PLAIN]), replace(CORRECTED, name="c")), [])
    assert "  kept      61 minutes → 121 minutes of event time: its longest window, with its delay and as" in text
    assert "  delay     one more, 61 minutes" in text
    assert "  rows      are emitted in each epoch that corrects them" in text
    text = price_text(price(build_plan([PLAIN]), replace(UPDATE, name="u")), [])
    assert "  rows      are emitted in each epoch that changes them" in text
    assert "one more, " not in text
