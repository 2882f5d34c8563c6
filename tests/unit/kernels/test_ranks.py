"""Ranks of values of any type, compared with sorting plain Python values."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.inputs.examples import examples
from kit.naive.expressions import nested_order
from millpond.kernels.columns import arrow_type
from millpond.kernels.ranks import LEAST, ranks, signs
from millpond.model.types import INTERVAL, is_array, is_map, is_struct, parts_of, struct_fields
from millpond.state.keys.keys import canonical

_LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-1, 1), "bigint": st.sampled_from([-(2**63), 0, 2**63 - 1]), "boolean": st.booleans(),
    "double": st.sampled_from([-0.0, 0.0, -1.5, float("nan"), float("inf")]), "string": st.sampled_from(["", "a", "ä"]),
    "decimal(4,1)": st.sampled_from([Decimal("-0.1"), Decimal("2.0")]), "binary": st.sampled_from([b"", b"\xff", b"a"]),
    "date": st.sampled_from([datetime.date(1969, 1, 1), datetime.date(2024, 1, 1)]),
    INTERVAL: st.sampled_from([datetime.timedelta(-1), datetime.timedelta(0), datetime.timedelta(0, 1, 1)]),
}  # fmt: skip
KINDS = (
    *_LEAVES, "struct<a:int,b:double>", "array<int>", "array<double>", "map<string,int>", "struct<a:binary,b:date>",
    "struct<a:struct<b:bigint>,c:array<string>>", "array<struct<a:double,b:decimal(4,1)>>", "array<array<boolean>>",
    "map<int,array<double>>",
)  # fmt: skip


def values_of(kind: str) -> st.SearchStrategy[Any]:
    """Values of a type, NULL among them."""
    parts = [values_of(part) for part in parts_of(kind)]
    if is_struct(kind):
        made: st.SearchStrategy[Any] = st.tuples(*parts).map(
            lambda found: dict(zip([field.name for field in struct_fields(kind)], found, strict=True))
        )
    elif is_array(kind):
        made = st.lists(parts[0], max_size=3)
    elif is_map(kind):
        keys = _LEAVES[parts_of(kind)[0]]
        made = st.lists(st.tuples(keys, parts[1]), max_size=2, unique_by=lambda entry: entry[0])
    else:
        made = _LEAVES[kind]
    return st.none() | made


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(20))
@given(st.data())
def test_ranks_are_in_the_order_of_the_values(kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(values_of(kind), max_size=8))
    column = pa.array([*values[:1], *values], arrow_type(kind))[1 if values else 0 :]
    for signed in (False, True):
        found = ranks(column, kind, signed=signed)
        keys = [nested_order(value, signed=signed) for value in values]
        for one, key in zip(found.tolist(), keys, strict=True):
            assert [one < other for other in found.tolist()] == [key < other for other in keys]
            assert (one == LEAST) == (key == (0,))
    keys = [(nested_order(value), nested_order(value, signed=True)) for value in values]
    order = np.lexsort((signs(column, kind), ranks(column, kind)))
    assert [keys[place] for place in order.tolist()] == sorted(keys)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "map" not in kind])
@settings(max_examples=examples(10))
@given(st.data())
def test_equal_values_have_one_form(kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(values_of(kind), max_size=6))
    column = pa.array([*values[:1], *values], arrow_type(kind))[1 if values else 0 :]
    found = canonical(column)
    assert found.type == column.type
    assert ranks(found, kind).tolist() == ranks(column, kind).tolist()
    assert "-0.0" not in repr(found.to_pylist())
    assert [one is None for one in found.to_pylist()] == [value is None for value in values]
