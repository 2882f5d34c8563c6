"""Queries with one row for each distinct key: what they remember, share and explain, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from millpond.errors import QueryError
from millpond.model.expressions import Column, call, literal
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.stream import Field, Order, Stream
from millpond.model.windows import NEVER_LATE_US, Distinct
from millpond.plan.explain.plan_text import explain
from millpond.plan.explain.price import price, price_text
from millpond.plan.groups.build import build_plan, needed_columns
from millpond.plan.groups.distinct import Timing, distinct_by_name, distinct_rows
from millpond.plan.options.output_modes import with_mode
from millpond.plan.upstream.first_rows import first_rows
from millpond.plan.upstream.rows_as_stream import bounds_of, chained_stream, last_row_us, reached_us
from millpond.reconfigure.validate import keeps_state

HOUR = 3_600_000_000
ID, KIND, TIME, TAGS = (
    Column(name, kind)
    for name, kind in (("id", "bigint"), ("kind", "string"), ("ts", "timestamp"), ("tags", "array<string>"))
)
STREAM = Stream(
    "tx", (*(Field(one.name, one.type) for one in (ID, KIND, TIME, TAGS)), Field("p", "int"), Field("o", "bigint")),
    order=Order("p", "o"),
)  # fmt: skip
ROWS = Selection("q", "tx", (Named("id", ID), Named("kind", KIND), Named("at", TIME)))
LATE = Timing(TIME, HOUR)


def test_a_key_is_remembered_for_ever_or_until_an_equal_event_would_be_late() -> None:
    ever, timed = distinct_rows(ROWS, [ID], LATE), distinct_rows(ROWS, [ID, TIME], LATE)
    within, untimed = distinct_rows(ROWS, [ID], LATE, within=True), distinct_rows(ROWS, [ID, TIME, ID], None)
    kept = [query.window for query in (ever, timed, within, untimed)]
    assert kept == [Distinct(), Distinct(0), Distinct(HOUR), Distinct()]
    assert [query.event_time for query in (ever, untimed)] == ["ts", ""]
    assert [query.delay_us for query in (ever, untimed)] == [HOUR, NEVER_LATE_US]
    assert untimed.keys == (ID, TIME)


def test_values_are_read_once_and_conditions_above_are_of_the_row() -> None:
    large = call("gt", (ID, literal(5, "bigint")), "boolean")
    query = distinct_rows(replace(ROWS, output=(*ROWS.output, Named("again", ID))), [ID], LATE, above=[large])
    assert query.event == (ID, KIND, large)
    assert [item.expression.name for item in query.output] == ["event:0", "event:1", "window.time", "event:0"]
    assert query.having == Column("event:2", "boolean")


@pytest.mark.parametrize(("names", "kept_us"), [(["ID"], HOUR), (["at"], HOUR), (["kind", "id"], 5)])
def test_names_are_of_the_stream_or_of_the_rows(names: list[str], kept_us: int) -> None:
    query = distinct_by_name(ROWS, STREAM, names, LATE, kept_us)
    assert query.window == Distinct(kept_us)
    columns = {"ID": ID, "at": TIME, "kind": KIND, "id": ID}
    assert query.keys == tuple(columns[name] for name in names)


def test_all_columns_are_those_but_the_order() -> None:
    plain = replace(STREAM, columns=tuple(field for field in STREAM.columns if field.name != "tags"))
    assert distinct_by_name(ROWS, plain, ["*"], LATE, HOUR).keys == (ID, KIND, TIME)


@pytest.mark.parametrize(("call_of", "says"), [
    (lambda: distinct_rows(ROWS, [ID], None, within=True), "its stream has no watermark"),
    (lambda: distinct_rows(ROWS, [ID, TAGS], LATE), "a column of type array<string>"),
    (lambda: distinct_by_name(ROWS, STREAM, ["nobody"], LATE, HOUR), "tx has no column nobody"),
    (lambda: with_mode(distinct_rows(ROWS, [ID], LATE), "update", None), "is emitted once, and never changes"),
    (lambda: Distinct(-1), "Use a positive time"),
])  # fmt: skip
def test_what_cannot_be_is_refused_by_name(call_of: Any, says: str) -> None:
    with pytest.raises(QueryError, match=says):
        call_of()


def test_only_queries_with_equal_first_events_share_a_group() -> None:
    q = distinct_rows(ROWS, [ID], LATE)
    others: list[Query] = [
        replace(q, name="outputs", output=q.output[:1], having=call("eq", (q.output[0].expression,) * 2, "boolean")),
        replace(q, name="patient", delay_us=2 * HOUR),
        replace(q, name="where", where=call("isnull", (KIND,), "boolean")),
        replace(q, name="short", window=Distinct(HOUR)), distinct_rows(replace(ROWS, name="untimed"), [ID], None),
    ]  # fmt: skip
    plan = build_plan([q, *others])
    assert sorted([one.query.name for one in group.queries] for group in plan.groups) == [
        ["outputs", "q"], ["patient"], ["short"], ["untimed"], ["where"],
    ]  # fmt: skip
    since = build_plan([q, others[0]], {"outputs": HOUR})
    assert len(since.groups) == 2  # a query that is added later knows none of the earlier keys
    assert {plan.since_us for group in since.groups for plan in group.queries} == {UNSET}
    assert needed_columns(build_plan([others[-1]]), "tx") == ("id", "kind", "ts")


def test_a_version_with_other_outputs_keeps_the_keys() -> None:
    q = distinct_rows(ROWS, [ID], LATE)
    assert keeps_state(q, replace(q, output=q.output[:1], event=(ID,)))
    assert not keeps_state(q, replace(q, keys=(KIND,)))
    share = call("divide", (ID, ID), "double")
    assert not keeps_state(q, replace(q, event=(share,), output=(Named("id", Column("event:0", "double")),)))


def test_future_rows_are_later_than_the_watermark() -> None:
    q = distinct_rows(ROWS, [ID], LATE)
    assert bounds_of(q) == {"at": "time"}
    assert chained_stream(q).upstreams == ("q",)
    assert reached_us(q, "at", 100) == 100
    assert last_row_us(q, "at", {"tx": 7}) == 7


def test_plan_and_price_list_what_is_kept() -> None:
    q, untimed = distinct_rows(ROWS, [ID], LATE, within=True), distinct_rows(replace(ROWS, name="u"), [ID], None)
    text = explain(build_plan([q, untimed]), [STREAM])
    assert "windows   the first event of each key, which is remembered for 1 hour of event time" in text
    assert "group" in text and "by id, no event time" in text
    assert "events    of the first event of each key, not stored: 2 values" in text
    assert "computed from new events" in text
    assert "q.2: keep the first event by id, then map id, kind, at" in text
    assert "kept      each key, indefinitely" in price_text(price(build_plan([q]), untimed), [])
    few = explain(build_plan([first_rows(ROWS, TIME, 4)]), [STREAM])
    assert "windows   the first 4 events" in few and "events    of the first 4 events, not stored: 3 values" in few
    assert "the times of the rows that were emitted, indefinitely" in few and "keep the first 4 events" in few
