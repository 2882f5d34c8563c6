"""Which columns late events are written with, and what is refused beforehand."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from millpond.errors import UnsupportedQuery
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column, Foreign, call, literal
from millpond.model.query import Named, Query
from millpond.model.spec import PondSpec, from_json, to_json
from millpond.model.stream import Field, Order, Stream
from millpond.model.windows import Sliding
from millpond.plan.groups.build import build_plan
from millpond.plan.upstream.late_sinks import check_late, late_columns, late_columns_read, late_sinks
from millpond.plan.upstream.rows_as_stream import stream_of_steps

STREAM = Stream(
    "tx",
    tuple(Field(name, kind) for name, kind in (
        ("unread", "string"), ("kind", "string"), ("customer", "string"), ("amount", "double"), ("p", "int"),
        ("o", "bigint"), ("ts", "timestamp"), ("tags", "array<string>"), ("price", "double"),
    )),
)  # fmt: skip
LARGE = call("gt", (Column("price", "double"), literal(1.0, "double")), "boolean")
QUERY = Query(
    "q", "tx", "ts", 5, Sliding(10, 10), (Column("customer", "string"),),
    (Aggregate("sum", Column("amount", "double"), LARGE, "double"), Aggregate("count", None, None, "bigint")), (),
    late=Sink("json", "/late"),
)  # fmt: skip
SOUND = Foreign("abc", "soundex(kind)", "string", ("kind",))


def test_the_columns_are_those_the_query_reads_event_time_first() -> None:
    assert late_columns(QUERY, STREAM) == ("ts", "customer", "amount", "price")
    ordered = replace(STREAM, order=Order("p", "o"))
    assert late_columns(QUERY, ordered) == ("ts", "p", "o", "customer", "amount", "price")


def test_what_spark_computes_is_written_as_what_it_is_computed_from() -> None:
    where = call("eq", (SOUND, literal("S530", "string")), "boolean")
    assert late_columns(replace(QUERY, where=where), STREAM) == ("ts", "kind", "customer", "amount", "price")


def test_late_sinks_state_group_and_delay() -> None:
    patient = replace(QUERY, name="patient", delay_us=50)
    silent = replace(QUERY, name="silent", late=msgspec.UNSET)
    plan = build_plan([QUERY, patient, silent])
    sinks = late_sinks(plan, [STREAM])["tx"]
    assert [(sink.query, sink.delay_index, sink.delay_us) for sink in sinks] == [("patient", 1, 50), ("q", 0, 5)]
    assert {sink.group for sink in sinks} == {plan.groups[0].id}
    assert late_sinks(build_plan([silent]), [STREAM]) == {}


def test_a_text_of_several_steps_writes_the_late_events_of_its_first_step() -> None:
    at = Column("window.time", "timestamp")
    where = call("eq", (SOUND, literal("S530", "string")), "boolean")
    lower = replace(QUERY, where=where, output=(Named("at", at), Named("n", Column("agg:1", "bigint"))))
    inner = stream_of_steps([replace(lower, late=msgspec.UNSET)], "at")
    reader = replace(QUERY, stream=inner.name, event_time="at", delay_us=0, keys=(), aggregates=(), where=None)
    [sink] = late_sinks(build_plan([*inner.steps, reader]), [STREAM, inner])["tx"]
    assert (sink.query, sink.delay_us, sink.where) == ("q", 5, where)
    assert {*sink.columns} == {"ts", "kind", "customer", "amount", "price"}
    by_name = {stream.name: stream for stream in (STREAM, inner)}
    assert late_columns_read([reader], by_name) == {"tx": {*sink.columns}}
    check_late(reader, by_name)
    united = stream_of_steps([lower, lower], "at")
    with pytest.raises(UnsupportedQuery, match="several aggregations"):
        check_late(replace(reader, stream=united.name), by_name | {united.name: united})


def test_a_query_without_a_late_sink_keeps_its_json() -> None:
    silent = replace(QUERY, late=msgspec.UNSET)
    assert silent.late_sink is None
    for query in (QUERY, silent):
        spec = PondSpec((STREAM,), (query,), 1)
        assert from_json(to_json(spec)) == spec
        assert ('"late":' in to_json(spec)) == (query is QUERY)


@pytest.mark.parametrize(
    ("query", "stream", "what"),
    [
        (replace(QUERY, late=Sink("noop")), STREAM, "go nowhere"),
        (replace(QUERY, keys=(Foreign("x", "tags[0]", "string", ("tags",)),)), STREAM, r"tags of type array"),
        (
            replace(QUERY, keys=(Column("_epoch", "int"),)),
            replace(STREAM, columns=(*STREAM.columns, Field("_epoch", "int"))),
            "already have a column _epoch",
        ),
    ],
)
def test_refusals(query: Query, stream: Stream, what: str) -> None:
    with pytest.raises(UnsupportedQuery, match=what) as caught:
        check_late(query, {stream.name: stream})
    assert caught.value.cure
