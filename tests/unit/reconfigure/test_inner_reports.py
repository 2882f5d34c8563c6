"""Inner queries: names, which queries use them, changes that add and drop them, and reports that hide them."""

from __future__ import annotations

import msgspec
import pytest

from millpond.errors import UnsupportedQuery
from millpond.log.manifest import Manifest
from millpond.log.records import EpochRecord
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import REDIS, Sink, Source
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.selection import INNER
from millpond.model.spec import PondSpec, from_json, to_json
from millpond.model.stream import Derivation, Field, Relation, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.plan.groups.build import build_plan
from millpond.plan.upstream.rows_as_stream import inner_stream
from millpond.plan.upstream.steps import inner_of, inputs_of, step_name, streams_of, with_inner
from millpond.reconfigure import validate
from millpond.reconfigure.apply import plan_of
from millpond.reconfigure.budgets import with_versions
from millpond.reconfigure.catalog import applied, not_answered, visible
from millpond.reconfigure.change_price import _drop_text, price_by_step
from millpond.reconfigure.changes import Drop, Halt, change_of, change_text
from millpond.reconfigure.inner_reports import (
    declared_names,
    labels,
    plain_names,
    relabelled,
    visible_quarantine,
    visible_record,
)
from millpond.reconfigure.lifecycle import current
from millpond.reconfigure.validate import KnownPond
from millpond.runtime.inspect.costs import Cost

SOURCE = Stream("tx", (Field("v", "bigint"), Field("t", "timestamp")))
COUNT = Aggregate("count", None, None, "bigint")


def windowed(name: str, stream: str, time: str, size_us: int) -> Query:
    output = (Named("w", Column("window", WINDOW)), Named("n", Column("agg:0", "bigint")))
    return Query(name, stream, time, 0, Sliding(size_us, size_us), (), (COUNT,), output)


def inner(stream: str, time: str, size_us: int) -> Query:
    made = windowed("", stream, time, size_us)
    return msgspec.structs.replace(made, name=step_name(made, "w.time"))


FIRST = inner("tx", "t", 5)
SECOND = inner(FIRST.name, "w.time", 10)
LAST = windowed("q", SECOND.name, "w.time", 20)
OTHER = windowed("r", FIRST.name, "w.time", 30)
STREAMS = (SOURCE, inner_stream(FIRST), inner_stream(SECOND))
BY_NAME = {stream.name: stream for stream in STREAMS}


def pond(*queries: Query) -> PondSpec:
    used = {name for query in queries for name in streams_of(query, BY_NAME)}
    return PondSpec.of(tuple(stream for stream in STREAMS if stream.name in used), queries, 1)


def test_the_steps_of_a_query_are_found_lowest_first() -> None:
    assert inner_of(LAST, BY_NAME) == (FIRST, SECOND)
    assert with_inner([OTHER, LAST], BY_NAME) == (FIRST, OTHER, SECOND, LAST)
    assert streams_of(LAST, BY_NAME) == ("tx", FIRST.name, SECOND.name)
    assert inputs_of(LAST, BY_NAME) == ("tx",)


def test_equal_steps_have_one_name_and_their_text_does_not_matter() -> None:
    other = msgspec.structs.replace(FIRST, name="step 0", text="SELECT 1")
    assert step_name(other, "w.time") == FIRST.name != step_name(other, "w.start")
    assert step_name(msgspec.structs.replace(other, delay_us=1), "w.time") != FIRST.name


def test_a_change_adds_a_query_with_its_steps_and_they_go_with_the_last_reader() -> None:
    known = KnownPond(pond(windowed("z", "tx", "t", 7)), Manifest())
    change = validate.add(known, LAST, STREAMS)
    assert change_of(change_text(change)) == change
    spec = applied(known.spec, 3, change)
    assert [query.name for query in current(spec)] == ["q", "z"] and {*spec.computed} >= {FIRST, SECOND, LAST}
    assert from_json(to_json(spec)) == spec and visible(spec).streams == spec.streams
    spec = applied(spec, 4, validate.add(KnownPond(spec, Manifest()), OTHER, STREAMS))
    spec = applied(spec, 5, Drop("q"))
    assert {one.name for one in spec.streams} == {"tx", FIRST.name}
    assert {one.name for one in applied(spec, 6, Drop("r")).streams} == {"tx"}


def test_steps_stop_when_all_queries_that_use_them_are_quarantined() -> None:
    spec = applied(pond(LAST, OTHER), 3, Halt("q", "why"))
    assert not_answered(spec) == {"q", SECOND.name}
    assert not_answered(applied(spec, 4, Halt("r", "why"))) == {"q", "r", FIRST.name, SECOND.name}


def test_reports_name_the_queries_only() -> None:
    counts = {
        FIRST.name: {"read": 10, "applied": 7, "late": 2, "dead": 1, "rows": 5},
        SECOND.name: {"read": 5, "applied": 4, "dead": 1, "rows": 2},
        "q": {"read": 2, "applied": 2, "rows": 1},
        "r": {"read": 5, "applied": 5, "rows": 3},
    }
    why = {FIRST.name: f"A result of query '{FIRST.name}' leaves its type."}
    record = EpochRecord(
        n=1, writer="", prev="", at=0, spark_query="", batch=0, start={}, end={}, counts=counts, quarantined=why
    )  # fmt: skip
    found = visible_record(record, pond(LAST, OTHER))
    assert found.counts["q"] == {"read": 11, "applied": 7, "late": 2, "dead": 2, "filtered": 0, "rows": 1}
    assert found.counts["r"] == {"read": 10, "applied": 7, "late": 2, "dead": 1, "filtered": 0, "rows": 3}
    assert found.counts.keys() == {"q", "r"}
    assert found.quarantined == {name: f"A result of query '{name}' leaves its type." for name in ("q", "r")}
    assert visible_quarantine({"r": "own"} | why, pond(LAST, OTHER))["r"] == "own"
    assert visible_record(record, pond(windowed("q", "tx", "t", 7))) is record
    named = labels([LAST, OTHER, FIRST, SECOND], STREAMS, ())
    assert named == {FIRST.name: "step 1 of q", SECOND.name: "step 2 of q"}
    assert relabelled(f"reads {SECOND.name}", named) == "reads step 2 of q"
    assert plain_names(f"reads {SECOND.name}.", "it") == "reads it."


def test_a_derived_stream_is_called_after_the_declared_ones_and_what_is_added() -> None:
    def made(name: str, text: str, *reads: str) -> Stream:
        return Stream(name, SOURCE.columns, made_of=Derivation(text, reads or ("tx",), name))

    timed = "tx WITH try_to_timestamp(s) AS event_time"
    joined = "tx LEFT JOIN parquet file:/dim/shops ON (tx.shop = join1.shop)"
    streams = [
        SOURCE,
        made("tx_00000001", timed),
        made("tx_00000002", f"{joined} WITH to_ts(s) AS event_time WHERE (v > 1)"),
        made("tx_00000003", joined),
        made("tx_00000004", joined.replace("LEFT", "EXISTENCE")),
        made("tx_00000005", "tx LEFT JOIN hash card:{id} (0123456789abcdef) BY card LATERAL VIEW OUTER explode(xs)"),
        made("tx_ev_00000006", "tx UNION ALL ev WHERE (v > 1)", "tx", "ev"),
        made("tx_00000007", "tx"),
        made(f"{FIRST.name}_00000008", FIRST.name, FIRST.name),
    ]
    reader = windowed("q", f"{FIRST.name}_00000008", "w.time", 20)
    cards = Relation("cards", table=Source(REDIS, (("key", "card:{id}"),)))
    found = labels([reader], [*streams, inner_stream(FIRST)], [cards])
    assert [found.get(stream.name) for stream in streams] == [
        None, "tx, with event_time", "tx joined with shops, with event_time", "tx joined with shops (00000003)",
        "tx joined with shops (00000004)", "tx joined with cards, with a row for each element", "tx and ev",
        "tx (00000007)", "rows of an inner query",
    ]  # fmt: skip
    assert relabelled("tx_00000002 by c, tx_000000021", found) == (
        "tx joined with shops, with event_time by c, tx_000000021"
    )
    other = windowed("r", "tx_00000001", "w.time", 20)
    named = pytest.raises(UnsupportedQuery, match="as the event time of tx, with event_time, other")
    with named, declared_names(streams, ()):
        build_plan([windowed("q", "tx_00000001", "ts", 20), other])


def test_the_price_of_a_query_is_that_of_its_new_steps() -> None:
    known = KnownPond(pond(OTHER), Manifest())
    adds = price_by_step(plan_of(known.spec), LAST, STREAMS, ())
    lines = [line for line in adds.splitlines() if line[0] != " " or line.startswith("  group")]
    assert [line for line in lines if line[0] != " "] == [
        "shared: step 1 of r", "one more query: step 2 of q", "one more query: q",
    ]  # fmt: skip
    assert "step 1 of r" in lines[2] and "step 2 of q" in lines[4] and INNER not in adds


def test_a_drop_says_what_is_freed_who_reads_the_streams_and_what_stays() -> None:
    served = msgspec.structs.replace(LAST, sink=Sink("parquet", "/out/q"), serve=True)
    known = KnownPond(pond(served, OTHER), Manifest())
    assert _drop_text(known, "q", Cost(own_bytes=9, shared_bytes=7)).splitlines() == [
        "  shared    7 bytes, its share of state that other queries need, stay",
        "  reads     tx, which is also read by r",
        "  served    its rows are no longer served", "  rows      those in parquet /out/q stay",
    ]  # fmt: skip
    alone = KnownPond(pond(LAST), Manifest())
    assert "  reads     tx, which no other query reads\n" in _drop_text(alone, "q", Cost())
    in_memory = KnownPond(pond(msgspec.structs.replace(LAST, sink=Sink("memory"))), Manifest())
    assert "  rows      those in memory are freed\n" in _drop_text(in_memory, "q", Cost())


def test_the_costs_of_the_queries_sum_to_the_total() -> None:
    costs = {FIRST.name: Cost(11, 5, 7, 2, 3), SECOND.name: Cost(5, 2, 4, 0, 1), "q": Cost(1, 1, 1, 1, 1),
             "r": Cost(2, 3, 0, 0, 1)}  # fmt: skip
    found = with_versions(pond(LAST, OTHER), costs)
    assert found.keys() == {"q", "r"} and (found["q"].rows, found["r"].rows) == (1, 3)
    assert sum(cost.time_us for cost in found.values()) == 19 and sum(cost.bytes for cost in found.values()) == 15
    assert found["q"].keys == 3
