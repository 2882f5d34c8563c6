"""Values of expressions above an aggregation: requests, and the values that Spark computes for them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import CorruptError, UnsupportedQuery
from millpond.model.expressions import Foreign
from millpond.runtime.rows.foreign_values import (
    QUERY,
    REQUEST,
    EvaluatedValues,
    Requests,
    foreign_values,
    values_of,
)

TWICE = Foreign("a", "twice(n)", "bigint", ("agg:0",))


def evaluated(requests: Requests) -> list[pa.RecordBatch]:
    """What Spark would return: twice each number, and an error for negative ones."""
    made = []
    for query, number, inputs in requests.batches:
        numbers = inputs[TWICE].field("c0").to_pylist()
        values = pa.array([None if n < 0 else {"v": 2 * n} for n in numbers], pa.struct([("v", pa.int64())]))
        columns = [pa.array([query] * len(numbers)), pa.array([number] * len(numbers), pa.int32()), values]
        made.append(pa.RecordBatch.from_arrays(columns, names=[QUERY, REQUEST, TWICE.name]))
    return made


def request(query: str, numbers: list[int]) -> list[int | str] | None:
    found = values_of(query, [TWICE], {"agg:0": pa.array(numbers, pa.int64())}, len(numbers))
    if found is None:
        return None
    values = found[TWICE.name]
    raised = np.broadcast_to(values.error, (len(numbers),)).tolist()
    return ["raised" if error else int(n) for error, n in zip(raised, values.data, strict=True)]


@given(st.lists(st.tuples(st.sampled_from("pq"), st.lists(st.integers(-3, 9), max_size=4)), max_size=8))
def test_values_are_found_by_the_order_of_requests_of_each_query(calls: list[tuple[str, list[int]]]) -> None:
    requests = Requests()
    with foreign_values(requests):
        assert [request(*call) for call in calls] == [None] * len(calls)
    with foreign_values(EvaluatedValues(evaluated(requests))):
        # the calls of one query keep their order; those of different queries need not
        for query, numbers in sorted(calls, key=lambda call: call[0]):
            assert request(query, numbers) == ["raised" if n < 0 else 2 * n for n in numbers]


def test_other_requests_than_before_are_an_error() -> None:
    requests = Requests()
    with foreign_values(requests):
        request("q", [1, 2])
    with foreign_values(EvaluatedValues(evaluated(requests))):
        with pytest.raises(CorruptError, match="other results of q"):
            request("q", [1])
        with pytest.raises(CorruptError):
            request("q", [1, 2])


def test_outside_spark_there_are_no_values() -> None:
    with pytest.raises(UnsupportedQuery, match=r"Only Spark evaluates `twice\(n\)` of q"):
        request("q", [1])
