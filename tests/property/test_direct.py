"""Epochs without the shuffle have the results of epochs with it, for any distribution of keys to partitions: direct
ones, and those of one task."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kit.inputs.cases import SECOND, STREAM, WITH_SESSIONS, random_case
from kit.inputs.examples import seeds
from kit.judges.answers import Run
from kit.naive.placement import partition_of
from millpond.errors import UnsupportedQuery
from millpond.log.manifest import Manifest
from millpond.log.records import Entry, EpochRecord
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.selection import AnyQuery, Selection
from millpond.model.stream import Field, Order
from millpond.model.windows import Sliding
from millpond.placement.partitions import homes, owners_by_partition
from millpond.plan.options.output_modes import with_mode
from millpond.plan.upstream.rows_as_stream import chained_stream
from millpond.runtime.inputs import without_shuffle
from millpond.runtime.inputs.without_shuffle import FoldInput
from millpond.runtime.task.obstacle import Obstacle
from millpond.testing.compare import canonical
from millpond.testing.local_pond import Ledger

TOPIC = replace(
    STREAM, columns=(*STREAM.columns, Field("_source", "string"), Field("_offset", "bigint")),
    order=Order("_source", "_offset"), partitioned="k",
)  # fmt: skip
TOTAL = Column("total", "bigint")
LOWER = Query(
    "lower", "events", "ts", 2 * SECOND, Sliding(5 * SECOND, 5 * SECOND), (Column("k", "string"),),
    (Aggregate("sum", Column("v", "int"), None, "bigint"), Aggregate("count", None, None, "bigint")),
    (Named("end", Column("window.end", "timestamp")), Named("n", Column("agg:1", "bigint")),
     Named("total", Column("agg:0", "bigint"))),
)  # fmt: skip
UPPER = Query(
    "upper", "lower", "end", 0, Sliding(10 * SECOND, 10 * SECOND), (Column("n", "bigint"),),
    (Aggregate("sum", TOTAL, None, "bigint"), Aggregate("max", TOTAL, None, "bigint")),
    tuple(Named(name, Column(name, kind)) for name, kind in {
        "window.end": "timestamp", "key:0": "bigint", "agg:0": "bigint", "agg:1": "bigint"}.items()),
)  # fmt: skip
"""Reads the rows of `lower` by another key than the topic's."""
Rows = list[dict[str, Any]]


class Topic:
    """Deals events to partitions by their key, a few of them anyhow; partitions without events have no task."""

    def __init__(self, seed: int, partitions: int, misplaced: float) -> None:
        self._dice, self._ends, self._misplaced = random.Random(seed), [0] * partitions, misplaced

    def deal(self, rows: Rows) -> Sequence[Rows]:
        parts: list[Rows] = [[] for _ in self._ends]
        for row in rows:
            partition = partition_of((row["k"] or "").encode(), len(parts))
            if self._dice.random() < self._misplaced:
                partition = self._dice.randrange(len(parts))
            self._ends[partition] += 1
            parts[partition].append({**row, "_source": f"tx-{partition}", "_offset": self._ends[partition]})
        return [part for part in parts if part]


def random_input(seed: int) -> tuple[list[Rows], list[AnyQuery]]:
    """A random case, most of whose queries are keyed by the topic's key, in several modes; and a selection."""
    dice = random.Random(f"{seed} modes")
    case = random_case(seed, 120, 4, epochs=4, menu=WITH_SESSIONS)
    queries: list[AnyQuery] = []
    for query in case.queries:
        made = replace(query, late=Sink("memory")) if dice.random() < 0.3 else query
        try:
            queries.append(with_mode(made, dice.choice(("final", "update")), None))
        except UnsupportedQuery:
            queries.append(made)
    columns = (Column("k", "string"), Column("v", "int"))
    plain = Selection("plain", "events", tuple(Named(column.name, column) for column in columns))
    return case.epochs, [*queries, plain, LOWER, UPPER]


def played(folder: Path, seed: int, partitions: int, instances: int, misplaced: float, without: bool) -> Run:
    epochs, queries = random_input(seed)
    owners = owners_by_partition(64, instances, partitions)
    run = Run(folder, queries, instances, 64, stream=TOPIC, owners=owners, others=[chained_stream(LOWER)])
    topic = Topic(seed, partitions, misplaced)
    run.pond.partitions = partitions if without else None
    for rows in epochs:
        run.epoch(topic.deal(rows))
    run.pond.drain()
    return run


def emitted(run: Run) -> dict[str, list[Any]]:
    """Rows of every query, and late ones, each epoch's in one order."""
    found = run.answers()
    late = {f"late {name}": sink.table().to_pylist() for name, sink in run.late_sinks.items()}
    return {name: sorted(map(repr, map(canonical, rows))) for name, rows in (found.rows | late).items()}


def fates(run: Run) -> dict[str, dict[str, int]]:
    """What became of the events, by query."""
    return {name: run.answers().counts.get(name, {}) for name in run.sinks}


@pytest.mark.parametrize("seed", seeds(0, 4))
def test_direct_epochs_answer_the_same(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    partitions, misplaced = dice.choice((1, 2, 3, 4)), dice.choice((0.0, 0.0, 0.05, 0.5))
    instances = partitions + dice.choice((0, 0, 1, 3))
    shuffled, skipped = (
        played(tmp_path / name, seed, partitions, instances, misplaced, name == "skipped")
        for name in ("shuffled", "skipped")
    )
    assert emitted(skipped) == emitted(shuffled)
    assert skipped.answers().quarantined == shuffled.answers().quarantined
    assert fates(skipped) == fates(shuffled)
    assert skipped.pond.direct and all(isinstance(one, FoldInput) for some in skipped.pond.direct for one in some)
    if misplaced == 0 or partitions == 1:
        assert not any(one.misplaced for some in skipped.pond.direct for one in some if isinstance(one, FoldInput))


@pytest.mark.parametrize("seed", seeds(0, 4))
def test_epochs_of_one_task_answer_the_same(seed: int, tmp_path: Path) -> None:
    """And they store the same bytes if the input has one partition, beside epochs with a shuffle, too."""
    dice = random.Random(f"{seed} one task")
    partitions, instances, (epochs, queries) = dice.choice((1, 2, 3)), dice.choice((1, 2, 3)), random_input(seed)
    runs, stored = list[Run](), list[list[list[str]]]()
    for name in ("shuffled", "one task", "both"):
        digests = Digests()
        run = Run(tmp_path / name, queries, instances, 64, [digests], stream=TOPIC, others=[chained_stream(LOWER)])
        topic = Topic(seed, partitions, 0.5)
        for number, rows in enumerate(epochs):
            run.pond.in_one_task = name == "one task" or (name == "both" and bool(number % 2))
            run.epoch(topic.deal(rows))
        run.pond.settle()
        run.pond.drain()
        runs.append(run)
        stored.append(digests.found)
    for run in runs[1:]:
        assert emitted(run) == emitted(runs[0]) and fates(run) == fates(runs[0])
        assert run.answers().quarantined == runs[0].answers().quarantined
    assert partitions > 1 or (stored[0] == stored[1] == stored[2] and any(stored[0]))
    moved = [run.ledger.counts["*"].get("bytes_moved", 0) for run in runs]
    assert moved[0] > moved[2] > moved[1] == 0


class Digests(Ledger):
    """A follower that keeps the digests of the deltas of each epoch."""

    name = "digests"

    def __init__(self) -> None:
        super().__init__()
        self.found: list[list[str]] = []

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        if n > self.cursor().n and isinstance(record.record, EpochRecord):
            self.found.append([receipt.digest for receipt in record.record.receipts])
        super().apply(n, record, manifest)


def test_large_parts_for_others_go_through_the_shuffle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(without_shuffle, "MOST_BYTES", 4096)
    monkeypatch.setattr(without_shuffle, "LEAST_BYTES", 0)
    shuffled, skipped = (played(tmp_path / f"{on}", 8, 3, 3, 0.9, on) for on in (False, True))
    assert emitted(skipped) == emitted(shuffled)
    refused = [one for some in skipped.pond.direct for one in some if isinstance(one, Obstacle)]
    assert any("lie in another partition than their hash says" in one.why for one in refused)


def test_owners_that_do_not_fit_go_through_the_shuffle(tmp_path: Path) -> None:
    run = Run(tmp_path, random_input(1)[1], 2, 64, stream=TOPIC, others=[chained_stream(LOWER)])
    assert homes(run.pond.setting.owners, 2, 2) is None
    run.pond.partitions = 2
    run.epoch(Topic(1, 2, 0.0).deal(random_input(1)[0][0]))
    assert not run.pond.direct
