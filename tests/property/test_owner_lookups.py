"""Rows looked up by the owners of keys: the same rows and counts as event by event, each key requested once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kit.naive.keyed_tables import DictRows, Held, looked_up
from millpond.kernels.evaluate import Evaluator
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column, Expression, Foreign, call, conjunction, literal
from millpond.model.keyed_table import KeyedTable
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.stream import Field, Retention, Stream
from millpond.model.windows import Sliding
from millpond.placement.slots import buckets_of
from millpond.plan.groups.build import build_plan
from millpond.plan.options.keyed_lookups import own_conditions, why_by_readers
from millpond.runtime.gather.owner_lookups import events_for_owners, rows_of_owner
from millpond.runtime.gather.stream_columns import StreamColumns
from millpond.runtime.joins.lookup_rows import KeyedReader, slots_of_keys
from millpond.runtime.packets.event_counts import ChunkCounts, add_fates
from millpond.runtime.task.column_layout import (
    LookedColumn,
    OwnerLookup,
    ReadColumn,
    ReadLayout,
    StreamLayout,
)
from millpond.runtime.task.counters import Counters
from millpond.runtime.task.task_values import FoldTask, GatherTask
from millpond.state.ports.keyed_rows import Absent, Row

ID, AMOUNT, MET = Column("id", "bigint"), Column("amount", "int"), Column("join1", "boolean")
SCORE = Column("join1.score", "bigint")
SOUND = Foreign("sound", "taken", "boolean", ("taken",))
KEYED = ("join1.id", "join1.n", "join1.score", "join1._alive", "join1", "taken")
FIELDS = (Field("id", "bigint"), Field("amount", "int"), Field("part", "string"))
STREAM = Stream("tx_1", (*FIELDS, *(Field(name, "string") for name in KEYED)), keyed=KEYED)
ROW_ID, ROW_NAME = Column("join1.id", "bigint"), Column("join1.n", "string")
OWN = call("gt", (AMOUNT, literal(2, "int")), "boolean")
RAISES = call("lt", (call("divide", (literal(6, "int"), AMOUNT), "int"), literal(4, "int")), "boolean")
RICH = call("gt", (SCORE, literal(2, "bigint")), "boolean")
WHERES: dict[str, list[Expression]] = {
    "all": [], "inner": [MET], "own": [OWN], "own inner": [OWN, MET], "inner own": [MET, OWN],
    "row own row": [RICH, OWN, MET], "raises": [RAISES, MET],
}  # fmt: skip


class Server(DictRows):
    """Counts calls and keys."""

    def __init__(self, held: Held) -> None:
        super().__init__(held)
        self.requested: list[Sequence[bytes]] = []

    def read(self, keys: Sequence[bytes], slots: Sequence[int], fields: Sequence[bytes]) -> list[Row | Absent]:
        self.requested.append(keys)
        return super().read(keys, slots, fields)


def query(name: str, *parts: Expression) -> Selection:
    output = tuple(Named(f"o{i}", one) for i, one in enumerate((ID, AMOUNT, ROW_ID, ROW_NAME, SCORE)))
    return Selection(name, STREAM.name, output, conjunction(list(parts)), Sink("memory"))


def fate(where: Sequence[Expression], event: dict[str, Any], row: dict[str, Any]) -> str:
    """What becomes of an event, condition by condition."""
    applied = True
    for part in where:
        if part is SOUND:
            if row["alive"] is None:
                return "dead"
            continue
        if part is RAISES:
            if event["amount"] == 0:
                return "dead"
            value = None if event["amount"] is None else 6 / event["amount"] < 4
        else:
            given = {OWN: event["amount"], RICH: row["score"], MET: row["partner"]}[part]
            value = None if given is None else given if given is True else given > 2
        if value is False:
            return "filtered"
        applied = applied and value is True
    return "applied" if applied else "filtered"


EVENTS = st.lists(
    st.fixed_dictionaries({
        "id": st.one_of(st.none(), st.integers(0, 6)), "amount": st.one_of(st.none(), st.integers(0, 5)),
        "part": st.sampled_from(["a", "b"]),
    }),
    max_size=12,
)  # fmt: skip
ROWS = st.dictionaries(
    st.integers(0, 6).map("user:{}".format),
    st.one_of(
        st.just("no hash"),
        st.dictionaries(st.sampled_from(["n", "score"]), st.sampled_from(["1", "3", "x"]), min_size=1),
    ),
)


@given(
    st.lists(EVENTS, min_size=1, max_size=3), ROWS, st.sets(st.sampled_from(sorted(WHERES)), min_size=1), st.booleans(),
    st.sampled_from(["null", "dead-letter", "default"]), st.integers(1, 3),
)  # fmt: skip
def test_owners_answer_as_event_by_event(
    chunks: list[list[dict[str, Any]]], held: Held, names: set[str], lethal: bool, missing: str, instances: int
) -> None:
    fields = (Field("id", "bigint"), Field("n", "string"), Field("score", "bigint"))
    table = KeyedTable("users", "user:{id}", fields, missing=missing, defaults='{"score": 3}')
    wheres = {name: [SOUND, *WHERES[name]] if lethal else WHERES[name] for name in sorted(names)}
    queries = [query(name, *parts) for name, parts in wheres.items()]
    if why_by_readers(STREAM, queries) is not None:
        assert lethal and any(OWN in parts or RAISES in parts for parts in wheres.values())
        return
    server = Server(held)
    lookup = OwnerLookup(table, KeyedReader(table, lambda: server), ("join1.key:0",), (
        LookedColumn("join1.id", "bigint", "id"), LookedColumn("join1.n", "string", "n"),
        LookedColumn("join1.score", "bigint", "score"), LookedColumn("join1", "boolean", "partner"),
        LookedColumn(SOUND.name, "boolean", "alive", foreign=True),
    ))  # fmt: skip
    columns = [ReadColumn(field.name, place, field.type) for place, field in enumerate(FIELDS, 1)]
    layout = StreamLayout(STREAM.name, (*columns, ReadColumn("join1.key:0", 4, "bigint")), "part", lookup=lookup)
    plan, owners = build_plan(queries), tuple(bucket * instances // 8 for bucket in range(8))
    gathering = GatherTask(plan, ReadLayout((layout,)), {}, owners, instances)
    folding = FoldTask("p", "", 1, plan, {}, {}, {}, owners, "w", instances=instances, looked_up=ReadLayout((layout,)))
    counters, fates = Counters(), dict[str, dict[str, list[int]]]()
    sent: dict[int, list[pa.RecordBatch]] = {}
    for partition, chunk in enumerate(chunks):
        if not chunk:
            continue
        ids = pa.array([event["id"] for event in chunk], pa.int64())
        arrays = [pa.array([0] * len(chunk)), ids, pa.array([event["amount"] for event in chunk], pa.int32()),
                  pa.array([event["part"] for event in chunk]), ids]  # fmt: skip
        batch = pa.RecordBatch.from_arrays(arrays, names=list("abcde"))
        evaluator, counts = Evaluator(StreamColumns(layout, batch), len(chunk)), ChunkCounts(Counters(), [])
        found = events_for_owners(gathering, lookup, layout, batch, evaluator, counts, partition)
        counters.add(counts.counters)
        add_fates(fates, counts.fates)
        for instance, data in found.items():
            sent.setdefault(instance, []).append(pa.ipc.open_stream(data).read_next_batch())
    rows = Counter[tuple[Any, ...]]()
    for instance, batches in sent.items():
        server.requested.clear()
        for of in rows_of_owner(folding, layout, lookup, batches, counters, fates):
            rows.update((of.owner, *row.values()) for row in of.rows.to_pylist())
        assert len(server.requested) <= 1, "each instance requests all its keys at once"
        keys = pa.array([key.decode() for keys in server.requested for key in keys], pa.string())
        assert {owners[bucket] for bucket in buckets_of(slots_of_keys(keys), 8).tolist()} <= {instance}
    expected, by_part = Counter[tuple[Any, ...]](), Counter[tuple[str, str, str]]()
    for event in (event for chunk in chunks for event in chunk):
        row = looked_up(table, held, (event["id"],))
        for name, where in wheres.items():
            became = fate(where, event, row)
            by_part[name, event["part"], became] += 1
            if became == "applied":
                expected[name, event["id"], event["amount"], row["id"], row["n"], row["score"]] += 1
    assert rows == expected
    for name in names if any(chunks) else ():
        for part, numbers in fates[name].items():
            given_ = dict(zip(("read", "applied", "late", "dead", "filtered"), numbers, strict=True))
            assert given_.pop("read") == sum(given_.values())
            assert given_ == {"late": 0} | {one: by_part[name, part, one] for one in ("applied", "dead", "filtered")}
        whole = counters[name]
        assert whole.rows == whole.applied == sum(by_part[name, part, "applied"] for part in "ab")


def test_owners_look_rows_up_only_for_queries_that_send_events() -> None:
    assert own_conditions(conjunction([RICH, OWN, RAISES]), KEYED) == conjunction([OWN, RAISES])
    assert why_by_readers(STREAM, [query("q", SOUND, RICH), query("r", OWN, MET)]) is None
    counted = Query("sums", STREAM.name, "ts", 0, (ROW_NAME,), Sliding(60, 60), (), ())
    other = Stream("tx_2", FIELDS)
    parts = [SOUND, OWN]
    upper = Foreign("u", "upper(n)", "string", ("join1.n",))
    for stream, queries, why in (
        (other, [], "may depend on the row"),
        (STREAM, [query("q"), counted], "sums needs the row before"),
        (STREAM, [query("late", *parts)], "WHERE of late leaves out events"),
        (STREAM, [query("q", upper)], "only Spark evaluates an expression of q"),
        (Stream("s", FIELDS, keyed=KEYED, partitioned="id"), [], "partitioned by id"),
        (Stream("s", FIELDS, keyed=KEYED, retain=Retention(events_us=1)), [], "retains its events"),
    ):
        found = why_by_readers(stream, queries)
        assert found is not None and why in found, found
    assert why_by_readers(STREAM, [], "join1.ts") is None and why_by_readers(STREAM, [], "join1.n") is not None


