"""Packets of raw rows transfer the same events as partial results; their choice does not affect results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from kit.inputs.cases import STREAM, random_case
from kit.inputs.examples import seeds
from kit.judges.answers import Answers, Run
from kit.naive.queries.windows import answer
from millpond.model.expressions import Column, call, literal
from millpond.model.query import Query
from millpond.runtime.gather import group_parts
from millpond.runtime.task.counters import WHOLE_POND
from millpond.testing.compare import assert_same_rows

SECOND = 1_000_000


def read(folder: Path, queries: list[Query], epochs: list[list[dict[str, Any]]]) -> Run:
    """A pond of two instances that has read everything."""
    run = Run(folder, queries, instances=2)
    for epoch in epochs:
        run.epoch([epoch[::2], epoch[1::2]])
    return run


def drained(folder: Path, queries: list[Query], epochs: list[list[dict[str, Any]]]) -> Run:
    """The same, after a drain."""
    run = read(folder, queries, epochs)
    run.pond.drain()
    return run


def moved(folder: Path, queries: list[Query], epochs: list[list[dict[str, Any]]]) -> int:
    """Bytes of its packets; a drain sends none."""
    return read(folder, queries, epochs).ledger.counts[WHOLE_POND]["bytes_moved"]


@pytest.mark.parametrize("seed", seeds(0, 4))
def test_raw_rows_and_partials_give_the_same_answers(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = random_case(seed, 200, 5)
    found: list[Answers] = []
    for raw in (True, False):
        monkeypatch.setattr(group_parts, "is_smaller_raw", lambda *_, raw=raw: raw)
        found.append(drained(tmp_path / str(raw), case.queries, case.epochs).answers())
    assert {q.name: found[0].counts.get(q.name) for q in case.queries} == {
        q.name: found[1].counts.get(q.name) for q in case.queries
    }
    assert found[0].quarantined == found[1].quarantined
    for query in case.queries:
        if query.name not in found[0].quarantined:
            assert_same_rows(found[1].rows[query.name], found[0].rows[query.name], about=query.name)
            assert_same_rows(answer(query, case.epochs, drained=True), found[0].rows[query.name], about=query.name)


def shaped(filters: int, keys: int, rows: int) -> tuple[list[Query], list[list[dict[str, Any]]]]:
    """`filters` queries that differ in their WHERE, over `rows` events of `keys` keys."""
    base = next(q for seed in range(99) for q in random_case(seed, 10, 5).queries if q.having is None)
    key = Column("g", "bigint")
    queries = [
        msgspec.structs.replace(
            base,
            name=f"q{i}",
            keys=(key,),
            aggregates=base.aggregates[:0],
            output=base.output[:1],
            where=call("gt", (Column("amount", "double"), literal(float(i), "double")), "boolean"),
            delay_us=0,
        )
        for i in range(filters)
    ]
    dice = np.random.default_rng(1)
    empty = dict.fromkeys(field.name for field in STREAM.columns)
    events = [
        empty | {"ts": i * SECOND // 100, "g": int(dice.integers(keys)), "amount": float(dice.integers(200))}
        for i in range(rows)
    ]
    return queries, [events]


def unrelated(queries: list[Query], epochs: list[list[dict[str, Any]]]) -> None:
    """Give the queries filters that have nothing to do with each other: each a letter that half of the events have."""
    letters = [chr(0x4E00 + i) for i in range(len(queries))]
    for i, letter in enumerate(letters):
        condition = call("contains", (Column("k", "string"), literal(letter, "string")), "boolean")
        queries[i] = msgspec.structs.replace(queries[i], where=condition)
    dice = np.random.default_rng(2)
    for event in epochs[0]:
        event["k"] = "".join(letter for letter in letters if dice.random() < 0.5)


@pytest.mark.parametrize("are_related", [True, False])
@pytest.mark.parametrize(
    ("filters", "keys"), [(1, 5), (1, 100_000), (20, 40), (20, 400), (20, 4000), (100, 5), (100, 100_000)]
)
def test_bytes_moved_are_those_of_the_smaller_form(
    filters: int, keys: int, are_related: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, epochs = shaped(filters, keys, 2000)
    if not are_related:
        unrelated(queries, epochs)
    chosen = moved(tmp_path / "chosen", queries, epochs)
    forced = []
    for raw in (True, False):
        monkeypatch.setattr(group_parts, "is_smaller_raw", lambda *_, raw=raw: raw)
        forced.append(moved(tmp_path / str(raw), queries, epochs))
    assert chosen <= 1.25 * min(forced), f"chosen {chosen}, raw {forced[0]}, partials {forced[1]}"


def test_bytes_of_raw_rows_grow_by_bits_with_the_filters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_parts, "is_smaller_raw", lambda *_: True)
    sizes = {}
    for filters in (1, 101):
        queries, epochs = shaped(filters, 100_000, 4000)
        sizes[filters] = moved(tmp_path / str(filters), queries, epochs)
    # one bit a row and filter, plus what a packet says of each column
    assert sizes[101] - sizes[1] <= 100 * (4000 / 8 + 4 * 200)
