"""Keyed tables and their sink, over a dict, have the results of one event or row at a time."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kit.inputs.log_examples import numbered
from kit.naive.keyed_tables import DictRows, looked_up, merged_rows
from millpond.followers.sinks.redis_rows import KeyedSink, target_of
from millpond.log.records import Entry
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.keyed_table import PROBLEM, KeyedTable
from millpond.model.query import Named
from millpond.model.selection import Selection
from millpond.model.stream import Field
from millpond.runtime.joins.lookup_rows import KeyedReader

COLUMNS = (
    Field("id", "int"), Field("name", "string"), Field("level", "tinyint"), Field("score", "double"),
    Field(PROBLEM, "string"),
)  # fmt: skip
VALUES = st.one_of(
    st.none(), st.text(max_size=3), st.integers(-300, 300), st.floats(allow_nan=False, allow_infinity=False)
)
OBJECTS = st.dictionaries(st.sampled_from(["name", "level", "score", "other"]), VALUES, max_size=4)
IDS = st.integers(0, 4)
WORTH = st.sampled_from(["null", "default", "dead-letter"])
WINDOW = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
TYPES = {
    "id": ("bigint", pa.int64()), "name": ("string", pa.string()), "total": ("bigint", pa.int64()),
    "w": ("struct<start:timestamp,end:timestamp>", WINDOW), "_op": ("string", pa.string()),
}  # fmt: skip
QUERY = Selection("q", "tx", tuple(Named(name, Column(name, kind)) for name, (kind, _) in TYPES.items()))
ROWS = st.fixed_dictionaries({
    "id": st.one_of(st.none(), IDS), "name": st.one_of(st.none(), st.text(max_size=3)),
    "total": st.one_of(st.none(), st.integers(-9, 9)), "w": st.integers(1, 3).map(lambda n: {"start": n - 1, "end": n}),
    "_op": st.sampled_from(["upsert", "upsert", "delete"]),
})  # fmt: skip


@st.composite
def held(draw: st.DrawFn, form: str) -> dict[str, Any]:
    """A dict of hashes with texts, or of strings that should hold objects; some are of the other kind."""
    found: dict[str, Any] = {}
    for id, row in draw(st.dictionaries(IDS, OBJECTS)).items():
        texts = {name: str(value) for name, value in row.items() if value is not None}
        if draw(st.integers(0, 9)) == 0:
            found[f"user:{id}"] = draw(st.sampled_from(["", "[1]", "{"])) if form == "json" else "text"
        elif form == "json":
            found[f"user:{id}"] = json.dumps(row)
        elif texts:
            found[f"user:{id}"] = texts
    return found


@given(st.data(), st.sampled_from(["hash", "json"]), WORTH, WORTH, st.lists(st.one_of(st.none(), IDS), max_size=12))
def test_a_batch_is_answered_as_event_by_event(
    data: st.DataObject, form: str, missing: str, wrong: str, ids: list[int | None]
) -> None:
    rows = data.draw(held(form))
    table = KeyedTable("users", "user:{id}", COLUMNS, form, missing, wrong, defaults='{"name": "nobody", "level": 1}')
    answer = KeyedReader(table, lambda: DictRows(rows))(pa.array(ids, pa.int32()))
    assert answer.to_pylist() == [looked_up(table, rows, (id,)) for id in ids]


class Records:
    """Stands for the log's rows, by record."""

    def __init__(self, records: list[list[Any]]) -> None:
        self._records = records

    def table(self, record: Entry, _query: str) -> pa.Table:
        schema = pa.schema([(name, kind) for name, (_, kind) in TYPES.items()])
        return pa.Table.from_pylist(self._records[record.n], schema)


@given(
    st.lists(st.lists(ROWS, max_size=6), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 1), st.booleans()), max_size=12),
    st.dictionaries(IDS.map("user:{}".format), st.fixed_dictionaries({"name": st.just("old"), "age": st.just("7")})),
)
def test_hashes_end_as_if_each_record_were_applied_once(
    records: list[list[Any]], turns: list[tuple[int, bool]], before: dict[str, dict[str, str]]
) -> None:
    """Two drivers, each with a cursor of its own that it may lose, apply what they think comes next."""
    server = DictRows(before)
    target = target_of(QUERY, Sink("redis", None, (("key", "user:{id}"), ("columns", "name, total"))))
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, str(number)) for number in range(2)]
        sinks = [KeyedSink("q", "p", target, Records(records), path, lambda: server) for path in paths]  # type: ignore[arg-type]
        for which, loses in turns:
            if loses:
                paths[which].unlink(missing_ok=True)
            n = sinks[which].cursor().n + 1
            if n < len(records):
                sinks[which].apply(n, numbered(n), None)  # type: ignore[arg-type]
        for one in sorted(sinks, key=lambda one: one.cursor(), reverse=True):
            for n in range(one.cursor().n + 1, len(records)):
                one.apply(n, numbered(n), None)  # type: ignore[arg-type]
    assert server.held == merged_rows(before, enumerate(records), "p", "q", "id", ("name", "total"))
