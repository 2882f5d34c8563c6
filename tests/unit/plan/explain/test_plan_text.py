"""`explain`: golden texts, and facts that they must contain. MILLPOND_GOLDEN=write rewrites them."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from millpond.control.diagnose.cost_report import price_of_state
from millpond.model.aggregates import APPROX_DISTINCT, PERCENTILE, Aggregate
from millpond.model.endpoints import Sink, Source
from millpond.model.expressions import Column, Expression, Foreign, call, literal
from millpond.model.functions import UserFunction
from millpond.model.join import Join, Side, Within
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.stream import Derivation, Field, Order, Stream
from millpond.model.windows import NEVER_LATE_US, RUNNING, Session, Sliding
from millpond.plan.explain.amounts import duration
from millpond.plan.explain.plan_text import edges_per_hour, explain
from millpond.plan.explain.price import price, price_text
from millpond.plan.groups.build import build_plan
from millpond.plan.options.retention import with_declared
from millpond.reconfigure.change_price import price_by_step

GOLDEN = Path(__file__).parents[3] / "golden" / "plans"
HOUR = 3_600_000_000
MINUTE = 60_000_000

CUSTOMER, KIND = Column("customer", "string"), Column("kind", "string")
AMOUNT, QUANTITY = Column("amount", "double"), Column("quantity", "int")
POS = call("eq", (KIND, literal("pos", "string")), "boolean")


def query(
    name: str, window: Sliding, *aggregates: tuple[str, Expression | None],
    keys: tuple[Expression, ...] = (CUSTOMER,), where: Expression | None = None, delay_us: int = 10_000_000,
) -> Query:  # fmt: skip
    made = tuple(Aggregate(function, argument, None, "double") for function, argument in aggregates)
    output = tuple(Named(f"a{i}", Column(f"agg:{i}", "double")) for i in range(len(made)))
    return Query(name, "tx", "ts", delay_us, window, keys, made, output, where)


SPEND = query("spend", Sliding(HOUR, MINUTE), ("count", None), ("sum", AMOUNT), ("avg", AMOUNT))
DAILY = query("daily", Sliding(24 * HOUR, HOUR), ("sum", AMOUNT), ("stddev_samp", AMOUNT), delay_us=HOUR)
FINE = query("fine", Sliding(90_000_000, 90_000_000), ("count", None), ("max", AMOUNT), where=POS)
TWIN = query("twin", Sliding(HOUR, MINUTE), ("count", None), ("sum", AMOUNT), ("avg", AMOUNT))
KINDS = query("kinds", Sliding(HOUR, HOUR, 15 * MINUTE), ("sum", QUANTITY), keys=(KIND, CUSTOMER))
TOTAL = query("total", Sliding(7_000_000, 7_000_000), ("count", None), keys=())

VISITS = [
    query("visits", Session(30 * MINUTE), ("count", None)),
    query("pauses", Session(5 * MINUTE), ("count", None), ("max", AMOUNT), delay_us=HOUR),
    query("paid", Session(5 * MINUTE), ("count", None), where=POS),
]

CARD, PAID = Column("card", "string"), Column("amount", "double")
LEFT_SIDE = Side("tx", "ts", MINUTE, (CARD,), (AMOUNT, CARD), POS)
RIGHT_SIDE = Side("pay", "at", 10 * MINUTE, (CARD,), (PAID,))
MORE = call("gt", (Column("right:0", "double"), Column("left:0", "double")), "boolean")
NEAR = Join("near", LEFT_SIDE, RIGHT_SIDE, "left", Within(-5 * MINUTE, 10 * MINUTE), (), MORE)
SAME = Join("same", LEFT_SIDE, RIGHT_SIDE, "inner", Sliding(HOUR, MINUTE), ())
EVERY = Join(
    "every", replace(LEFT_SIDE, keys=()), replace(RIGHT_SIDE, keys=()), "full", Within(0, MINUTE), (), most_pairs=10**6
)

PLANS = {
    "joins": [NEAR, SAME, EVERY],
    "one": [SPEND],
    "shared": [SPEND, TWIN, DAILY, FINE],
    "groups": [SPEND, KINDS, TOTAL],
    "sessions": [*VISITS, FINE],
}


@pytest.mark.parametrize("name", PLANS)
def test_golden(name: str) -> None:
    text = explain(build_plan(PLANS[name]))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("MILLPOND_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_where_events_of_a_join_without_keys_go() -> None:
    """One kind of row needs all candidates of an event at one place, so the shape of the grid follows from the kind."""
    said = {}
    for kind in ("inner", "left", "right", "full"):
        lines = explain(build_plan([replace(EVERY, kind=kind)])).splitlines()
        [said[kind]] = [line for line in lines if "no key" in line]
    assert "a left event goes to one row, a right event to one column" in said["inner"]
    assert "a left event goes to one instance, a right event to every instance" in said["left"]
    assert "a right event goes to one instance, a left event to every instance" in said["right"]
    assert "all events go to one instance; at most" in said["full"]
    assert all("at most 1,000,000 pairs are tried per epoch" in text for text in said.values())


def test_the_order_of_queries_changes_nothing() -> None:
    queries = PLANS["shared"]
    assert explain(build_plan(queries)) == explain(build_plan(queries[::-1]))


def test_a_twin_is_free() -> None:
    lines = explain(build_plan([SPEND, TWIN])).splitlines()
    costs = [line.strip() for line in lines if "if added last" in line]
    assert costs == ["if added last  no more measures, no more edges"] * 2


def test_a_percentile_of_bins_says_how_far_it_may_be() -> None:
    half, column = (literal(0.5, "double"),), Column("amount", "double")
    fine, coarse = (
        replace(
            query(f"q{i}", Sliding(HOUR, MINUTE)),
            aggregates=(Aggregate(PERCENTILE, column, None, "double", UNSET, half, accuracy=accuracy),),
            output=(Named("a0", Column("agg:0", "double")),),
        )
        for i, accuracy in enumerate((UNSET, 100))
    )  # fmt: skip
    lines = [line.strip() for line in explain(build_plan([fine, coarse])).splitlines()]
    assert [line for line in lines if line.startswith(("approximate  ", "tallies", "bin("))] == [
        "tallies   counted by value in each slice, each once: 1 value, 1 predicate",
        "bin(amount): 512 bins per power of two  <- q0, q1",
        "approximate  a0: approx_percentile(amount), relative error at most 0.098%",
        "approximate  a0: approx_percentile(amount), relative error at most 0.78%",
    ]
    text = price_text(price(build_plan([fine]), coarse), [])
    assert "tallies   none more counted by value; 1 shared" in text


def test_what_is_approximate_says_so_and_how_far() -> None:
    visitors = Aggregate(APPROX_DISTINCT, CUSTOMER, None, "bigint", literal(0.05, "double"))
    lines = explain(build_plan([SPEND, replace(SPEND, name="who", aggregates=(visitors, *SPEND.aggregates[1:]))]))
    assert [line.strip() for line in lines.splitlines() if "approximate  " in line] == [
        "approximate  a0: approx_count_distinct(customer, 0.05), standard error 4.60%"
    ]


def test_aggregates_that_keep_events_are_listed_once() -> None:
    def query_of(name: str, function: str) -> Query:
        first = Aggregate(function, CUSTOMER, None, "bigint")
        return replace(SPEND, name=name, aggregates=(first, *SPEND.aggregates[1:]))

    lines = explain(build_plan([query_of("one", "collect_list"), query_of("two", "percentile")])).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("  events"))
    assert lines[at] == "  events    stored individually, each once: 1 value, 1 predicate"
    assert lines[at + 1] == "    customer  <- one, two"
    assert lines[at + 2].endswith("isnotnull(customer)  <- one, two")
    lines = explain(build_plan([query_of("one", "count_distinct"), query_of("two", "mode")])).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("  tallies"))
    assert lines[at] == "  tallies   counted by value in each slice, each once: 1 value, 1 predicate"
    assert lines[at + 1] == "    customer: a count for each distinct value  <- one, two"
    assert not any(line.startswith("  events") for line in lines)
    mixed = replace(
        query_of("one", "count_distinct"),
        aggregates=query_of("two", "mode").aggregates[:1] + query_of("one", "collect_list").aggregates,
    )
    assert [tally for group in build_plan([mixed]).groups for tally in group.tallies] == [], "events answer both"


def test_event_time_and_late_sinks_of_streams_are_explained() -> None:
    order = Order("p", "o", ("0", "1"), 30_000_000)
    stream = Stream("tx", (), order=order, max_ahead_us=HOUR)
    lines = explain(build_plan([replace(SPEND, late=Sink("json", "/late"))]), [stream, replace(stream, name="other")])
    assert lines.splitlines()[2:5] == [
        "    in the order of o within each p, and waits for 0, 1",
        "    a partition without events for 30 seconds does not hold back the watermark",
        "    an event more than 1 hour ahead of the clock is dead",
    ]
    assert "      late rows  json /late\n" in lines
    unordered = explain(build_plan([SPEND]), [replace(stream, order=None, max_ahead_us=None)])
    assert "no order" in unordered
    assert "ahead" not in unordered


def test_a_source_is_read_once_and_a_long_expression_is_printed_once() -> None:
    long = replace(SPEND, where=call("eq", (CARD, literal(f"a-rather-long-text{'-' * 50}", "string")), "boolean"))
    times = "tx WITH try_to_timestamp(concat(day, hour), 'yyyy-MM-dd HH:mm') AS ts"
    made = [Stream(f"tx_{n}", (), made_of=Derivation(times, ("tx",), n)) for n in ("0000000a", "0000000b")]
    queries = [replace(long, name=f"q{n}", stream=stream.name) for n, stream in enumerate(made)]
    lines = explain(build_plan(queries), made).splitlines()
    assert lines[0].endswith(" over 2 streams")
    assert lines[1] == "  tx is read once, and its rows are copied for 2 streams"
    assert lines[2].startswith("  tx_0000000a is computed while tx is read: ")
    assert lines[3] == f"    {times}"
    (condition,) = (line for line in lines if "a-rather-long-text" in line)
    assert condition.strip().startswith("[1] ") and len([line for line in lines if "[1]" in line]) > 3
    assert explain(build_plan(queries[:1]), made).splitlines()[1] == "  tx is read once"
    adds = price_by_step(build_plan(queries[:1]), queries[1], made, ())
    assert adds.count("a-rather-long-text") == 1 and "tx, with ts (0000000b) by" in adds


def test_expressions_that_may_let_spark_read_the_files_are_named() -> None:
    hour = Foreign("0", "hour(ts)", "int", ("ts",))
    plan = build_plan([Selection("hours", "tx", (Named("h", hour),))])
    stream = Stream("tx", (Field("ts", "timestamp"),), Source("parquet", (("path", "/in"),)))
    shown = "    its files are read with Arrow if these have equal functions over columns: hour(ts)\n"
    assert shown in explain(plan, [stream])
    assert "  tx is read once: hour(ts)\n" in explain(plan, [stream])
    stream = replace(stream, columns=(Field("ts", "array<int>"),))
    assert "    its files are read by Spark: its column ts is array<int>\n" in explain(plan, [stream])


def test_a_topic_that_is_partitioned_by_a_key_skips_the_shuffle() -> None:
    stream = Stream("tx", (), partitioned="customer")
    plan = with_declared(build_plan([SPEND, TOTAL]), [stream])
    assert {group.spread_by for group in plan.groups} == {0, None}
    lines = explain(plan, [stream])
    assert "    partitioned by customer: the shuffle is skipped where the keys of each instance are in one" in lines
    assert "    total: not grouped by customer, so it is skipped only while they exchange little data\n" in lines
    assert with_declared(build_plan([SPEND]), [replace(stream, partitioned=UNSET)]) == build_plan([SPEND])


def test_functions_of_users_are_named_with_their_limits() -> None:
    made = UserFunction("mid", "2", "rates:mid", "holistic", ("double",), "double", 1_500)
    text = explain(build_plan([replace(query("q", Sliding(HOUR, HOUR), (made.function, AMOUNT)), functions=(made,))]))
    assert "function  mid@2 (holistic) of rates:mid: 1500 milliseconds a call, 256 MB" in text


def test_no_queries() -> None:
    assert explain(build_plan([])).startswith("plan ")


@pytest.mark.parametrize(
    ("windows", "rate"),
    [
        ([Sliding(HOUR, MINUTE)], 60),
        ([Sliding(HOUR, MINUTE), Sliding(24 * HOUR, HOUR)], 60),
        ([Sliding(24 * HOUR, 24 * HOUR)], Fraction(1, 24)),
        # every 90 s and every 60 s: 40 + 60 edges, a third of the former also in the latter
        ([Sliding(90_000_000, 90_000_000), Sliding(HOUR, MINUTE)], 80),
        # starts and ends fall apart
        ([Sliding(90_000_000, MINUTE)], 120),
        ([Sliding(HOUR, HOUR, 15 * MINUTE), Sliding(HOUR, HOUR)], 2),
    ],
)
def test_edges_per_hour(windows: list[Sliding], rate: Fraction) -> None:
    assert edges_per_hour(windows) == (rate, True)


def test_edges_without_a_short_common_period_are_bounded() -> None:
    windows = [Sliding(7_000_003, 7_000_003), Sliding(11_000_017, 11_000_017), Sliding(13_000_001, 13_000_001)]
    rate, exact = edges_per_hour(windows)
    assert not exact
    assert rate == sum(Fraction(HOUR, window.slide_us) for window in windows)
    assert "at most" in explain(build_plan([query(f"q{i}", w) for i, w in enumerate(windows)]))


@pytest.mark.parametrize(
    ("us", "text"),
    [(1, "1 microsecond"), (48 * HOUR, "2 days"), (5_400_000_000, "90 minutes"), (1000, "1 millisecond")],
)
def test_duration(us: int, text: str) -> None:
    assert duration(us) == text


def test_a_query_without_a_window_is_described_in_words() -> None:
    output = [Named("n", Column("agg:0", "bigint"))]
    count = Aggregate("count", None, None, "bigint")
    query = Query("so_far", "tx", "ts", NEVER_LATE_US, RUNNING, (), (count,), tuple(output), emit="update")
    text = explain(build_plan([query]))
    for line in ("  windows   all events until now", "  edges     none", "  delays    none: nothing is late",
                 "    so_far: all events until now, nothing is late, emits updates"):  # fmt: skip
        assert f"{line}\n" in text
    assert "no more edges" in text
    found = price(build_plan([]), query)
    text = price_text(found, price_of_state(found, None))
    assert "  kept      one cell for each key ever seen\n" in text and ": 1 cells of 1 columns" in text
    listed = Aggregate("collect_list", Column("v", "int"), None, "array<int>")
    text = price_text(price(build_plan([]), replace(query, aggregates=(listed,))), [])
    assert "  kept      one cell for each key ever seen, and every event that it takes\n" in text
