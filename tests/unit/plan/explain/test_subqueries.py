"""Where queries are cut, what the parts share, and how rows are exchanged between them."""

from __future__ import annotations

from msgspec.structs import replace

from millpond.model.aggregates import Aggregate
from millpond.model.change_history import ChangeEffects
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column, call, literal
from millpond.model.join import Join, Side, Within
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.stream import Derivation, Field, Order, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Session, Sliding
from millpond.plan.explain.plan_text import explain
from millpond.plan.explain.subqueries import Exchange, Shared, subqueries
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.deduplication import deduplicated
from millpond.plan.upstream.rows_as_stream import chained_stream

K, V, TOTAL = Column("k", "string"), Column("v", "bigint"), Column("total", "bigint")
COUNT, SUM = Aggregate("count", None, None, "bigint"), Aggregate("sum", V, None, "bigint")
POSITIVE = call("gt", (V, literal(0, "bigint")), "boolean")
OUTPUT = (Named("total", Column("agg:0", "bigint")), Named("w", Column("window", WINDOW)))
SPEND = Query("spend", "tx", "ts", 0, Sliding(10, 10), (K,), (SUM,), OUTPUT, POSITIVE)
MORE = replace(SPEND, name="more", aggregates=(SUM, COUNT), where=POSITIVE)
TOP = Query("top", "spend", "w.time", 0, Sliding(60, 60), (), (replace(SUM, argument=TOTAL),), OUTPUT)
LARGE = Selection("large", "tx", (Named("k", K),), POSITIVE, Sink("console"))
TX = Stream("tx", (Field("k", "string"), Field("v", "bigint"), Field("ts", "timestamp")))
STREAMS = (TX, chained_stream(SPEND))


def test_a_query_is_cut_where_it_remembers() -> None:
    found = subqueries(build_plan([SPEND, MORE, TOP, LARGE]), STREAMS)
    assert {name: [part.name for part in parts] for name, parts in found.items()} == {
        "large": ["large.1"], "more": ["more.1", "more.2"], "spend": ["spend.1", "spend.2"], "top": ["top.1", "top.2"],
    }  # fmt: skip
    first, second = found["spend"]
    assert first.operators == ("filter (v > 0)", "map to keys and values", "add up by key and slice")
    assert second.operators == ("aggregate by k", "map total, w")
    assert first.inputs == (Exchange("tx", "point-to-point", "a task for each source partition"),)
    assert [(travel.place, travel.route) for travel in second.inputs] == [
        ("spend.1", "by key"), ("spend.1", "broadcast")
    ]  # fmt: skip


def test_repeated_events_are_dropped_before_where_on_the_instance_of_the_key() -> None:
    once = deduplicated(SPEND, TX, ["k", "v"], 10)
    first, second = subqueries(build_plan([once]), STREAMS)["spend"]
    assert first.operators == ("map to keys and events",)
    assert second.operators == ("drop repeated events", "filter (v > 0)", "aggregate by k", "map total, w")
    assert second.inputs[0].how == "events; the instance that owns the key has its state"


def test_a_join_has_a_part_for_each_side() -> None:
    left, right = Side("tx", "ts", 0, (K,), (V,), POSITIVE), Side("pay", "at", 0, (K,), (V,))
    join = Join("paid", left, right, "left", Within(0, 10), (Named("v", Column("left:0", "bigint")),))
    found = subqueries(build_plan([SPEND, join, replace(join, name="again")]), STREAMS)
    one, two, both = found["paid"]
    assert [part.name for part in (one, two, both)] == ["paid.1", "paid.2", "paid.3"]
    assert one.operators == ("filter (v > 0)", "map to keys and events")
    assert two.operators == ("map to keys and events",)
    assert one.shared == (Shared("the read", ("spend", "again")), Shared("the filter", ("spend", "again")))
    assert both.operators[0].startswith("left join by k, a right event from 0 seconds after")
    assert [(travel.place, travel.route) for travel in both.inputs] == [
        ("paid.1", "by key"), ("paid.2", "by key"), ("paid.1 and .2", "broadcast"),
    ]  # fmt: skip
    assert both.shared == (Shared("the left events", ("again",)), Shared("the right events", ("again",)))


def test_events_of_a_join_without_keys_travel_to_a_grid() -> None:
    left, right = Side("tx", "ts", 0, (), (V,)), Side("pay", "at", 0, (), (V,))
    routes = {}
    for kind in ("inner", "left", "right", "full"):
        join = Join("paid", left, right, kind, Within(0, 10), (Named("v", Column("left:0", "bigint")),))
        *_, both = subqueries(build_plan([join]), STREAMS)["paid"]
        routes[kind] = [travel.route for travel in both.inputs[:2]]
    assert routes == {
        "inner": ["by hash", "by hash"], "left": ["by hash", "broadcast"], "right": ["broadcast", "by hash"],
        "full": ["by key", "by key"],
    }  # fmt: skip


def test_rows_of_a_join_come_from_where_it_pairs() -> None:
    time = Column("w.time", "timestamp")
    both = Join("both", Side("spend", "w.time", 0, (), (time,)), Side("tx", "ts", 0, (), (K,)), "left", Within(0, 0),
                (Named("t", Column("left:0", "timestamp")),))  # fmt: skip
    last = replace(TOP, name="last", stream="both", event_time="t", aggregates=(COUNT,))
    plan, streams = build_plan([SPEND, both, last]), (*STREAMS, chained_stream(both))
    found = subqueries(plan, streams)
    assert [part.inputs[0].place for part in found["both"][:2]] == ["spend.2", "tx"]
    assert found["last"][0].inputs[0].place == "both.3"
    assert found["both"][2].operators[0] == "left join without a key, a right event at the time of the left one"
    assert "its watermark follows the final rows of that join: no row is late" in explain(plan, streams)


def test_shared_work_is_listed_with_its_queries() -> None:
    found = subqueries(build_plan([SPEND, MORE, TOP, LARGE]), STREAMS)
    first, second = found["spend"]
    assert first.shared == (Shared("the read", ("more", "large")), Shared("the filter", ("more", "large")))
    assert second.shared == (Shared("the dictionary and the slices", ("more",)), Shared("3 of 3 measures", ("more",)))
    assert found["top"][0].shared == found["top"][1].shared == ()


def test_rows_of_a_query_go_to_the_next_one_and_stateless_rows_are_dealt_out() -> None:
    found = subqueries(build_plan([SPEND, TOP, LARGE]), STREAMS)
    (rows,) = found["top"][0].inputs
    assert (rows.place, rows.route) == ("spend.2", "point-to-point")
    assert "one instance has the state" in found["top"][1].inputs[0].how
    leaves = found["large"][0].output_exchange
    assert leaves is not None
    assert (leaves.place, leaves.route) == ("console", "round-robin")
    silent = replace(LARGE, sink=Sink())
    assert subqueries(build_plan([silent]), STREAMS)["large"][0].output_exchange is None
    beside = ChangeEffects(shadows={"large": "large@shadow"})
    compared = subqueries(build_plan([silent, replace(silent, name="large@shadow")], changes=beside), STREAMS)
    assert [parts[0].output_exchange.place for parts in compared.values() if parts[0].output_exchange] == [
        "diff",
        "diff",
    ]


def test_a_join_is_an_operator_of_several_inputs() -> None:
    joined = replace(TX, made_of=Derivation("tx LEFT JOIN cards ON k", ("tx",), "abc"), order=Order("k", None))
    first, second = subqueries(build_plan([replace(SPEND, window=Session(5))]), [joined])["spend"]
    assert first.operators[0] == "multi-input: tx"
    assert [(travel.place, travel.route) for travel in first.inputs] == [
        ("tx", "point-to-point"), ("tables it is joined with", "broadcast")
    ]  # fmt: skip
    assert second.inputs[0].how.startswith("atoms;")


def test_rows_of_other_programs_are_looked_up_by_readers_and_written_by_owners() -> None:
    text = "tx LEFT JOIN hash u:{k} (0123456789abcdef) BY k LEFT JOIN range ON v = id"
    text += " LEFT JOIN json {k} (00112233445566aa) BY k"
    stream = Stream("joined", TX.columns, None, Order("k", None), made_of=Derivation(text, ("tx",), "d"))
    upserting = replace(SPEND, stream="joined", sink=Sink("redis", None, (("key", "spend:{total}"),)))
    first, second = subqueries(build_plan([upserting]), (stream,))["spend"]
    how = "looked up by the task that reads the events, with one request per batch and primary: "
    how += "other columns or joins of the events may depend on the row"
    assert first.inputs[1:] == (
        Exchange("u:{k}", "point-to-point", how), Exchange("{k}", "point-to-point", how),
        Exchange("tables it is joined with", "broadcast", "completely, to each task, so that events keep their order"),
    )  # fmt: skip
    assert second.output_exchange is not None
    assert (second.output_exchange.place, second.output_exchange.route) == ("spend:{total}", "by key")
    assert "written by the instance that owns the hash slot" in second.output_exchange.how
    elsewhere = replace(upserting, sink=Sink("redis", None, (("address", "env:A"), ("key", "spend:{total}"))))
    alone = text.replace(" LEFT JOIN range ON v = id", "")
    stream = replace(stream, made_of=Derivation(alone, ("tx",), "d"))
    first, second = subqueries(build_plan([elsewhere]), (stream,))["spend"]
    assert [one.route for one in first.inputs] == ["point-to-point"] * 3
    assert second.output_exchange == Exchange("spend:{total}", "point-to-point", "written by the driver")
    stream = replace(stream, made_of=Derivation("tx LEFT JOIN hash u:{k} (0123456789abcdef) BY k", ("tx",), "d"))
    stream = replace(stream, order=None, keyed=("v",))
    events = replace(LARGE, stream="joined")
    (alone,) = subqueries(build_plan([events]), (stream,))["large"]
    assert alone.inputs[1] == Exchange(
        "u:{k}", "by key", "looked up by the instance that owns the key, with one request per shard"
    )
    assert alone.output_exchange is not None and alone.output_exchange.route == "by key"
    (beside,) = subqueries(build_plan([events, replace(SPEND, stream="joined")]), (stream,))["large"]
    assert beside.inputs[1].how.endswith("spend needs the row before events are exchanged")
    assert beside.output_exchange is not None and beside.output_exchange.route == "round-robin"


def test_explain_shows_the_chain_and_its_parts() -> None:
    text = explain(build_plan([TOP, SPEND]), STREAMS)
    assert "spend: the rows of the query spend, one epoch later: total, w.time" in text
    assert "  top.1: map to keys and values, then add up by key and slice\n    from spend.2, point-to-point" in text
    assert text == explain(build_plan([SPEND, TOP]), STREAMS)
    assert "sub-queries" not in explain(build_plan([SPEND]))
