"""Long windows with a short slide: tiles change what is read, not the results."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.inputs.cases import STREAM
from kit.inputs.examples import seeds
from kit.judges.answers import Run
from kit.naive.queries.windows import answer
from millpond.log.records import EpochRecord, decode
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.runtime.task.counters import WHOLE_POND
from millpond.runtime.windows.tiles import cover
from millpond.state.layout.cells import Slices
from millpond.testing.compare import assert_same_rows

SECOND = 1_000_000
Event = dict[str, Any]


def query(name: str, size: int, slide: int, delay: int, offset: int = 0) -> Query:
    amount = Column("amount", "double")
    aggregates = tuple(
        Aggregate(function, amount, None, "bigint" if function == "count" else "double")
        for function in ("count", "sum", "min", "max")
    )
    outputs = [Named("w", Column("window", WINDOW)), Named("k", Column("key:0", "string"))]
    outputs += [Named(f"a{i}", Column(f"agg:{i}", each.type)) for i, each in enumerate(aggregates)]
    window = Sliding(size * SECOND, slide * SECOND, offset * SECOND)
    return Query(
        name, STREAM.name, "ts", delay * SECOND, window, (Column("k", "string"),), aggregates, tuple(outputs),
        sink=Sink("memory"),
    )  # fmt: skip


QUERIES = [
    query("long", 600, 5, 0), query("longer", 1200, 5, 20, 3), query("uneven", 500, 7, 0), query("short", 30, 10, 20),
]  # fmt: skip


def epochs(seed: int, seconds: int) -> list[list[Event]]:
    dice = random.Random(seed)
    batches = []
    for start in range(0, seconds, 100):
        batch = []
        for _ in range(40):
            time = (start + dice.randint(0, 99) - dice.choice((0, 0, 5, 30))) * SECOND
            row = dict.fromkeys((field.name for field in STREAM.columns), None)
            batch.append(row | {"ts": time, "k": dice.choice("abc"), "amount": dice.randint(0, 999) / 100})
        batches.append(batch)
    return batches


@pytest.mark.parametrize("seed", seeds(0, 1))
def test_answers_are_those_of_the_naive_twin(seed: int, tmp_path: Path) -> None:
    batches = epochs(seed, 2000)
    run = Run(tmp_path, QUERIES, instances=2)
    for batch in batches:
        run.epoch([batch])
    run.pond.drain()
    for each in QUERIES:
        assert_same_rows(answer(each, batches, drained=True), run.answers().rows[each.name], about=each.name)


def test_a_long_window_reads_few_pieces(tmp_path: Path) -> None:
    # 6,000 s by 1 s: without tiles each epoch would read 6,000 slices and more
    run = Run(tmp_path, [query("very long", 6000, 1, 0)])
    for start in range(0, 8000, 100):
        rows = [dict.fromkeys((field.name for field in STREAM.columns), None) for _ in range(100)]
        for second, row in enumerate(rows):
            row |= {"ts": (start + second) * SECOND, "k": "a", "amount": 1.0}
        run.epoch([rows])
    last = decode(run.pond.log.read(run.pond.manifest.n) or b"").record
    assert isinstance(last, EpochRecord)
    # 100 windows close in two runs: a slide's slices at both ends of each, 7 tiles a width and side between
    assert last.counts[WHOLE_POND]["slices_read"] < 2 * (2 * 100 + 2 * 7 * 4)


@given(st.lists(st.tuples(st.integers(0, 60), st.sampled_from((1, 2, 8))), max_size=40), st.integers(0, 20))
def test_a_cover_holds_every_moment_that_is_held_at_all_once(wide: list[tuple[int, int]], edge: int) -> None:
    base = [(second, second + 1) for second in range(64)]
    tiles = sorted({(start // width * width, start // width * width + width) for start, width in wide})
    parts = [Slices(*map(np.array, ([s for s, _ in p], [e for _, e in p], [0] * len(p)))) for p in (base, tiles) if p]
    covered = cover(parts[:1], parts[1:], np.array([edge, edge + 17, edge + 40]))
    edges = np.array([edge, edge + 17, edge + 40])
    chosen = [
        (int(part.start_us[i]), int(part.end_us[i]))
        for part, mask in zip(parts, covered, strict=True)
        for i in np.flatnonzero(mask)
    ]
    held = sorted(second for start, end in set(chosen) for second in range(start, end))
    assert held == list(range(edge, edge + 40))
    assert not any(start < border < end for start, end in chosen for border in edges)
