"""A function of batches in a worker, without Spark: failing rows are separated, the others continue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ByteType, LongType, StructField, StructType

from millpond.errors import QueryTypeError
from millpond.spark.sources.arrow_functions import ArrowFunction, _Mapping, batches_of

MAKES = StructType([StructField("twice", LongType())])


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Twice each value, three times in a row for a multiple of three; raises below zero."""
    values = [value for value in batch["a"].to_pylist() for _ in range(1 if value % 3 else 3)]
    if any(value < 0 for value in values):
        raise ValueError("below zero")
    return pa.RecordBatch.from_arrays([pa.array([2 * value for value in values], pa.int64())], names=["twice"])


def run(values: Sequence[int], numbers: Sequence[int], number: int | None, cut: int) -> list[tuple[Any, ...]]:
    """Columns a, which (with a number), twice, ran; cut into batches of `cut` rows."""
    whole = pa.record_batch({"c0": pa.array(values, pa.int64()), "c1": pa.array(numbers, pa.int32())})
    whole = whole.select(["c0"] if number is None else ["c0", "c1"])
    batches = [whole.slice(at, cut) for at in range(0, len(values), cut)]
    mapping = _Mapping(ArrowFunction("s", doubled, "m:doubled", "0", ("a",), MAKES), number)
    return [tuple(row.values()) for batch in mapping(iter(batches)) for row in batch.to_pylist()]


@given(st.lists(st.tuples(st.integers(-3, 9), st.integers(0, 2)), max_size=40), st.integers(1, 50))
def test_each_row_has_its_own_fate_however_batches_are_cut(rows: list[tuple[int, int]], cut: int) -> None:
    expected: list[tuple[Any, ...]] = []
    for value, number in rows:
        if number != 1:
            expected.append((value, number, None, None))
        elif value < 0:
            expected.append((None, 1, None, None))
        else:
            expected += [(None, 1, 2 * value, True)] * (1 if value % 3 else 3)
    found = run([value for value, _ in rows], [number for _, number in rows], 1, cut)
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_rows_stay_in_their_order_and_a_lone_form_needs_no_number() -> None:
    assert run([1, 2, -1, 4, 3], [0] * 5, None, 5) == [
        (None, 2, True), (None, 4, True), (None, None, None), (None, 8, True), *[(None, 6, True)] * 3,
    ]  # fmt: skip


def test_a_value_that_leaves_its_type_is_that_row_s() -> None:
    def narrow(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pc.add(batch["a"], 0)], names=["b"])

    makes = StructType([StructField("b", ByteType())])
    mapping = _Mapping(ArrowFunction("s", narrow, "m:narrow", "0", ("a",), makes), None)
    [*found] = mapping(iter([pa.RecordBatch.from_arrays([pa.array([1, 1000, 2])], names=["c0"])]))
    assert [row["c1"] for batch in found for row in batch.to_pylist()] == [1, None, 2]


@pytest.mark.parametrize("made", [None, 7, pa.table({"twice": [1]}), pa.record_batch({"other": [1]})])
def test_what_is_no_batch_of_the_schema_is_a_mistake_of_the_function(made: object) -> None:
    mapping = _Mapping(ArrowFunction("s", lambda _: made, "m:f", "0", ("a",), MAKES), None)
    with pytest.raises(QueryTypeError, match="m:f gave"):
        list(mapping(iter([pa.RecordBatch.from_arrays([pa.array([1])], names=["c0"])])))


def test_a_function_is_known_by_its_module_s_source_or_by_its_version() -> None:
    by_source, again = (batches_of("s", doubled, ("a",), MAKES) for _ in range(2))
    first, second = (batches_of("s", doubled, ("a",), MAKES, version) for version in ("1", "2"))
    assert by_source == again
    assert by_source.reference == f"{__name__}:doubled"
    assert len({by_source.digest, first.digest, second.digest}) == 3
