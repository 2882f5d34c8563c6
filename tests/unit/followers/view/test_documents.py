"""Documents of the view are read back as the rows from which they were made, for all types."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Context, Decimal

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import CorruptError
from millpond.followers.view.documents import Documents, served_columns
from millpond.followers.view.view import BUCKET, END, KEY, latest_documents
from millpond.kernels.columns import arrow_type
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.types import INTERVAL, WINDOW
from millpond.model.windows import Sliding
from millpond.runtime.rows.window_rows import output_schema

UTC = dt.timezone.utc
EXACT = Context(prec=40)
_TIMES = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59))
_MOMENTS = _TIMES.map(lambda time: time.replace(tzinfo=UTC))
_TEXTS = st.text('aZ"\\\n\t\x00é日😀,:{}', max_size=5)
VALUES = {
    "bigint": st.integers(-(1 << 63), (1 << 63) - 1),
    "tinyint": st.integers(-128, 127),
    "double": st.floats(),
    "float": st.floats(width=32),
    "string": st.one_of(_TEXTS, st.sampled_from(["null", "NaN", '"', "\\u0000", "[1]"])),
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp": _MOMENTS,
    "timestamp_ntz": _TIMES,
    INTERVAL: st.timedeltas(dt.timedelta(-100_000_000), dt.timedelta(100_000_000)),
    "decimal(38,6)": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda whole: Decimal(whole).scaleb(-6, EXACT)),
    WINDOW: st.fixed_dictionaries({"start": _MOMENTS, "end": _MOMENTS}),
    "array<string>": st.lists(_TEXTS, max_size=3),
    "array<double>": st.lists(st.floats(), max_size=3),
    "array<timestamp>": st.lists(_MOMENTS, max_size=3),
    "array<struct<x:float,y:double>>": st.lists(
        st.fixed_dictionaries({"x": st.floats(width=32), "y": st.floats(0, 9)}), max_size=3
    ),
}  # fmt: skip


def query_of(kinds: list[str], **changes: object) -> Query:
    output = tuple(Named(f"c {i}`", Column(f"c{i}", kind)) for i, kind in enumerate(kinds))
    made = Query("q", "tx", "ts", 0, Sliding(10, 10), (), (), output)
    return msgspec.structs.replace(made, **changes)


@given(st.data())
def test_rows_read_back_as_they_were(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4))
    one = st.tuples(*(st.one_of(st.none(), VALUES[kind]) for kind in kinds))
    rows = data.draw(st.lists(one, min_size=1, max_size=5))
    query = query_of(kinds)
    schema = output_schema(query)
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    own = pa.Table.from_arrays(columns, schema=schema)
    table = own.append_column(KEY, pa.array([f"{i:03}" for i in range(len(rows))]))
    table = table.append_column(BUCKET, pa.array([0] * len(rows))).append_column(END, pa.array([0] * len(rows)))
    [(_, _, documents)] = latest_documents(table, 7, 0)
    found = Documents(query).rows([document for document in documents if document is not None])
    assert found.schema == schema
    assert repr(found.to_pylist()) == repr(own.to_pylist())


def test_columns_of_rows_that_may_change_are_those_that_are_stored() -> None:
    query = query_of(["bigint"], correct_us=1_000_000)
    assert [tuple(column) for column in served_columns(query)] == [("c 0`", "bigint"), ("_revision", "bigint")]
    assert Documents(query).schema.names == ["c 0`", "_revision"]


def test_no_rows_and_rows_that_do_not_read() -> None:
    documents = Documents(query_of(["double", "decimal(4,2)"]))
    assert documents.rows([]).num_rows == 0
    [row] = documents.rows([b'{"epoch":1,"window":[0,1],"row":{"c 0`":"-Infinity","c 1`":1.5}}']).to_pylist()
    assert row == {"c 0`": -math.inf, "c 1`": Decimal("1.50")}
    assert arrow_type("decimal(4,2)") == documents.schema.field(1).type
    for wrong in (b'{"row":{"c 0`":"x","c 1`":1}}', b"{}", b'{"row":{"c 0`":1,"c 1`":12345.5}}', b"x"):
        with pytest.raises(CorruptError, match="do not read"):
            documents.rows([wrong])
    with pytest.raises(CorruptError, match="10 minutes"):
        Documents(query_of([INTERVAL])).rows([b'{"row":{"c 0`":"10 minutes"}}'])
