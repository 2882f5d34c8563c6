"""Which queries may be deduplicated, and that only those with equal waiting times share a group."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from millpond.errors import QueryError
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, Foreign
from millpond.model.join import Join, Side, Within
from millpond.model.query import Deduplication, Named, Query
from millpond.model.stream import Field, Order, Stream
from millpond.model.windows import Counted, Range, Session, Sliding
from millpond.plan.explain.plan_text import explain
from millpond.plan.explain.price import price, price_text
from millpond.plan.groups.build import build_plan, needed_columns
from millpond.plan.groups.deduplication import deduplicated
from millpond.plan.options.output_modes import with_mode

HOUR = 3_600_000_000
KIND = Column("kind", "string")
STREAM = Stream(
    "tx", (Field("id", "bigint"), Field("kind", "string"), Field("tags", "array<string>"), Field("ts", "timestamp"),
           Field("p", "int"), Field("o", "bigint")), order=Order("p", "o"),
)  # fmt: skip
PLAIN = Query(
    "q", "tx", "ts", HOUR, Sliding(HOUR, HOUR), (KIND,), (Aggregate("count", None, None, "bigint"),),
    (Named("n", Column("agg:0", "bigint")),),
)  # fmt: skip
SIDE = Side("tx", "ts", HOUR, (KIND,), ())
FOUND = Deduplication((Column("id", "bigint"), KIND), HOUR)


def test_columns_are_those_of_the_stream() -> None:
    assert deduplicated(PLAIN, STREAM, ["ID", "kind"], HOUR).deduplicated == FOUND
    plain = replace(STREAM, columns=tuple(field for field in STREAM.columns if field.name != "tags"))
    whole = deduplicated(PLAIN, plain, ["*"], HOUR).deduplicated
    assert whole is not None
    assert [column.name for column in whole.columns] == ["id", "kind", "ts"]


@pytest.mark.parametrize(
    ("query", "names", "within", "says"),
    [
        (PLAIN, ["id"], HOUR, "equal in id may differ in kind, which its key reads"),
        (replace(PLAIN, keys=(Foreign("x", "soundex(kind)", "string", ("kind",)),)), ["id"], HOUR, "differ in kind"),
        (PLAIN, ["nobody"], HOUR, "tx has no column nobody"),
        (PLAIN, ["kind", "tags"], HOUR, "cannot compare tags, an array<string>"),
        (PLAIN, ["kind"], -1, "within -1"),
        (replace(PLAIN, window=Session(HOUR)), ["kind"], HOUR, "has session windows"),
        (replace(PLAIN, aggregates=(Aggregate("mode", KIND, None, "string"),)), ["kind"], HOUR, "single events"),
        (replace(PLAIN, window=Range(HOUR)), ["kind"], HOUR, "windows that are runs of events"),
        (replace(PLAIN, window=Counted(10, 5)), ["kind"], HOUR, "windows that are runs of events"),
        (Join("j", SIDE, SIDE, "inner", Within(0, HOUR), ()), ["kind"], HOUR, "j is a join"),
    ],
)
def test_what_does_not_go_is_refused_by_name(query: Query | Join, names: list[str], within: int, says: str) -> None:
    with pytest.raises(QueryError, match=says):
        deduplicated(query, STREAM, names, within)


@pytest.mark.parametrize(("emit", "correct_us"), [("update", None), ("final", HOUR)])
def test_rows_that_may_change_know_no_repeats(emit: str, correct_us: int | None) -> None:
    with pytest.raises(QueryError, match="leaves repeated events out"):
        with_mode(replace(PLAIN, deduplicate=FOUND), emit, correct_us)


def test_a_group_is_of_one_stream_without_repeats() -> None:
    once = replace(PLAIN, name="once", deduplicate=FOUND)
    others = [replace(once, name="day", window=Sliding(24 * HOUR, HOUR)), replace(once, name="slow", delay_us=2 * HOUR)]
    plan = build_plan([PLAIN, once, *others, replace(once, name="s", deduplicate=replace(FOUND, within_us=1))])
    assert sorted([query.query.name for query in group.queries] for group in plan.groups) == [
        ["day", "once"], ["q"], ["s"], ["slow"],
    ]  # fmt: skip
    assert needed_columns(build_plan([once]), "tx") == ("id", "kind", "ts")
    text = explain(build_plan([once]))
    assert "  repeated  events equal in id, kind within 1 hour are dropped; events wait for the watermark" in text
    kept = text[text.index("  events    ") : text.index("  queries")].splitlines()
    assert kept == [
        "  events    stored individually, each once: 2 values, 0 predicates",
        "            for 2 hours of event time: the delay and the time within which repeats are dropped",
        "    id  <- once",
        "    kind  <- once",
    ]
    text = price_text(price(plan, replace(once, name="more")), [])
    assert "  repeated  events wait for the watermark, and are kept for 1 hour more" in text
    assert "deduplicate" not in msgspec.to_builtins(build_plan([PLAIN]).groups[0])
