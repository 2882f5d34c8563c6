"""Rows of a query as rows of a database table: columns, keys, and the last change of each key against a loop."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.followers.sinks.rows_table import RowsTable
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named
from millpond.testing import sink_program

TYPES = {"timestamp": "T", "string": "S", "bigint": "I"}
QUERY = sink_program.query(Sink("postgres"))
UPDATES = replace(QUERY, emit="update")


def test_a_window_is_two_columns_and_the_key_is_that_of_the_query() -> None:
    table = RowsTable.of(QUERY, "x", TYPES.get)
    assert table == ({"w_start": "T", "w_end": "T", "k": "S", "n": "I"}, ("w_start", "w_end", "k"), "w_end", False)
    assert RowsTable.of(QUERY, "x", TYPES.get, " n , w").key == ("n", "w_start", "w_end")
    corrected = RowsTable.of(replace(UPDATES, emit="final", correct_us=5), "x", TYPES.get)
    assert list(corrected.columns)[-1] == "_revision" and corrected.changing


def test_columns_and_keys_that_do_not_fit_are_refused() -> None:
    listed = replace(QUERY, output=(*QUERY.output, Named("l", Column("agg:1", "array<int>"))))
    with pytest.raises(UnsupportedQuery, match=r"The x sink of q cannot write l, of type array<int>"):
        RowsTable.of(listed, "x", TYPES.get)
    with pytest.raises(QueryTypeError, match=r"The x sink of q has no column y"):
        RowsTable.of(QUERY, "x", TYPES.get, "k,y")


@pytest.mark.parametrize("seed", range(20))
def test_the_last_change_of_each_key_is_that_of_a_loop(seed: int) -> None:
    dice = random.Random(seed)
    schema = pa.schema([*list(sink_program.SCHEMA)[:3], ("_op", pa.string())])
    rows: list[dict[str, Any]] = []
    for n in range(dice.randint(0, 60)):
        start = dice.randint(0, 2) * 60_000_000
        window = {"start": start, "end": start + 60_000_000}
        op = "delete" if dice.random() < 0.3 else "upsert"
        rows.append({"w": window, "k": dice.choice(("a", "b", None)), "n": n, "_op": op})
    last: dict[Any, dict[str, Any]] = {}
    for row in rows:
        known = last.get(row["k"])
        if known is None or row["w"]["end"] >= known["w"]["end"]:
            last[row["k"]] = row
    found = RowsTable.of(UPDATES, "x", TYPES.get, "k").last(pa.Table.from_pylist(rows, schema))
    for op, table in (("upsert", found.upserts), ("delete", found.deletes)):
        assert table.column_names == ["w_start", "w_end", "k", "n"]
        assert table["n"].to_pylist() == sorted(row["n"] for row in last.values() if row["_op"] == op)


def test_without_a_key_all_rows_are_inserted() -> None:
    table = pa.Table.from_batches([sink_program.rows(0)])
    event = replace(QUERY, event=(Column("id", "bigint"),))
    changes = RowsTable.of(event, "x", TYPES.get).last(table)
    assert changes.upserts["n"].to_pylist() == table["n"].to_pylist() and len(changes.deletes) == 0


def test_zeros_of_both_signs_and_nulls_are_equal_keys() -> None:
    query = replace(QUERY, output=(Named("v", Column("key:0", "double")), Named("n", Column("agg:0", "bigint"))))
    table = RowsTable.of(query, "x", (TYPES | {"double": "F"}).get, "v")
    nan = float("nan")
    rows = pa.table({"v": pa.array([0.0, -0.0, None, None, nan, nan, 1.5]), "n": pa.array(range(7), pa.int64())})
    assert table.last(rows).upserts["n"].to_pylist() == [1, 3, 5, 6]
