"""User functions in a child process return the results of their naive twins, for any keys and cells."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.naive.functions import naive_holistic, naive_mergeable
from millpond.model.functions import UserFunction
from millpond.runtime.functions.host import FunctionHost
from millpond.runtime.functions.kinds import mergeable

FOLDER = Path(__file__).parents[1] / "unit" / "runtime" / "functions"
ROWS = 6

events = st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(-5, 5).map(float)), max_size=25).map(
    lambda found: sorted(found, key=lambda event: event[0])
)
cells = st.lists(st.lists(st.integers(0, ROWS + 1), max_size=9), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def host() -> Iterator[FunctionHost]:
    sys.path.insert(0, str(FOLDER))
    with FunctionHost() as made:
        yield made
    sys.path.remove(str(FOLDER))


def _sample() -> Any:
    spec = util.spec_from_file_location("sample_functions", FOLDER / "sample_functions.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SAMPLE = _sample()


def _declared(attribute: str, kind: str, returns: str) -> UserFunction:
    return UserFunction("f", "1", f"sample_functions:{attribute}", kind, ("double",), returns, 60_000)


def _table(found: list[tuple[int, float]]) -> pa.Table:
    keys, values = [key for key, _ in found], [value for _, value in found]
    return pa.table({"key": pa.array(keys, pa.int64()), "value": pa.array(values, pa.float64())})


@given(events)
def test_holistic(host: FunctionHost, found: list[tuple[int, float]]) -> None:
    answer = host.call(_declared("median", "holistic", "double"), _table(found), ROWS)
    assert answer.to_pylist() == naive_holistic(SAMPLE.median, found, ROWS)


@given(events, cells)
def test_mergeable(host: FunctionHost, found: list[tuple[int, float]], members: list[list[int]]) -> None:
    lists = pa.array(members, pa.list_(pa.int64()))
    joined = _declared("Joined", "mergeable", "string")
    answer = host.call(joined, _table(found), len(members), lists)
    assert answer.to_pylist() == naive_mergeable(SAMPLE.Joined(), found, members)
    alone = host.call(joined, _table(found), ROWS)
    assert alone.to_pylist() == naive_mergeable(SAMPLE.Joined(), found, [[row] for row in range(ROWS)])


@given(events)
def test_batches_of_events_do_not_matter(found: list[tuple[int, float]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        answers = []
        for rows in (1, 4, 1 << 16):
            patch.setattr("millpond.runtime.functions.kinds.BATCH_ROWS", rows)
            answers.append(mergeable(SAMPLE.Joined(), _table(found), ROWS, pa.string()).to_pylist())
    assert answers[0] == answers[1] == answers[2]
