"""Grouping sets: each epoch emits the rows of one plain query for each set, in every mode and for any cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from kit.inputs.cases import SECOND, SESSIONS, WINDOWS, Case, Menu, aggregate_of, random_case
from kit.inputs.examples import seeds
from kit.judges.answers import Run, answers, dealt
from kit.naive.expressions import Raised
from kit.naive.queries import windows as twin
from kit.naive.queries.grouping_sets import plain_queries
from kit.naive.queries.output_modes import emitted_by_epoch
from millpond.errors import OverflowedError
from millpond.model.expressions import Column, call, columns_of, literal
from millpond.model.query import GroupingSet, Named, Query
from millpond.model.windows import NEVER_LATE_US, RUNNING, Session, Sliding
from millpond.plan.groups.build import build_plan
from millpond.runtime.aggregates.partials import Rolled, coarser
from millpond.runtime.gather import group_parts
from millpond.testing.compare import assert_same_rows, rows_of

MENU = Menu(raising=False, summed=("v", "amount", "f", "p"), windows=(*SESSIONS[:2], *WINDOWS))
KEYS = (Column("k", "string"), Column("v", "int"), Column("flag", "boolean"))


def with_sets(query: Query, seed: int) -> Query:
    """The query by some grouping sets of three keys, with their id and their keys in its rows, in a random mode."""
    dice = random.Random(f"{query.name}{seed}")
    every = [tuple(i for i in range(3) if mask >> i & 1) for mask in range(8)]
    rollup = [(0, 1, 2), (0, 1), (0,), ()]
    kept = dice.choice((rollup, every, [(0,), (1,)], dice.sample(every, 3)))
    sets = tuple(GroupingSet(keys, sum(4 >> i for i in range(3) if i not in keys)) for keys in kept)
    keys = (*KEYS, literal(0, "bigint"))
    bounds = [Named(f"at_{end}", Column(f"window.{end}", "timestamp")) for end in ("start", "end")]
    named = [Named(f"by_{i}", Column(f"key:{i}", key.type)) for i, key in enumerate(keys)]
    kept_output = [one for one in query.output if all(name.startswith("agg:") for name in columns_of(one.expression))]
    query = replace(query, keys=keys, sets=sets, output=(*kept_output, *bounds, *named), having=None)
    mode = dice.choice(("final", "update", "correct", "running"))
    if mode == "correct":
        return replace(query, correct_us=20 * SECOND)
    if mode == "running" and isinstance(query.window, Sliding):
        return replace(query, window=RUNNING, delay_us=NEVER_LATE_US, emit="update", output=(*kept_output, *named))
    return query if mode == "final" else replace(query, emit="update")


def check(folder: Path, case: Case, instances: int, seed: int) -> int:
    """Compare each epoch with the naive twin; returns the number of rows."""
    run, deal, compared = Run(folder, case.queries, instances, 16), dealt(seed), 0
    found: dict[str, list[list[dict[str, Any]]]] = {query.name: [] for query in case.queries}
    for batch in case.epochs:
        before = {name: len(sink.table()) for name, sink in run.sinks.items()}
        run.epoch(deal(batch))
        for name, sink in run.sinks.items():
            found[name].append(rows_of(sink.table())[before[name] :])
    for query in case.queries:
        judge = emitted_by_epoch if query.changing else twin.answer_by_epoch
        try:
            expected = [judge(plain, case.epochs) for plain in plain_queries(query)]
        except (Raised, OverflowedError):
            assert query.name in run.pond.manifest.quarantined, query
            continue
        assert query.name not in run.pond.manifest.quarantined, query
        counted = twin.counts(query, case.epochs)
        assert run.answers().counts.get(query.name, {}) == (counted if counted["read"] else {}), query
        for *theirs, mine in zip(*expected, found[query.name], strict=True):
            rows = [row for rows in theirs for row in rows]
            assert_same_rows(rows, mine, about=str(query))
            compared += len(rows)
    return compared


@pytest.mark.parametrize("first", seeds(0, 1, step=6))
def test_rows_are_those_of_a_plain_query_for_each_set(first: int, folders: Iterator[Path]) -> None:
    compared, kinds = 0, set()
    for seed in range(first, first + 6):
        case = random_case(seed, 50, 5, menu=MENU)
        case = case._replace(queries=[with_sets(query, seed) for query in case.queries])
        kinds |= {(type(query.window), query.changing) for query in case.queries}
        compared += check(next(folders), case, random.Random(seed).randint(1, 3), seed)
    assert compared > 600
    assert {(Sliding, False), (Sliding, True), (Session, False), (Session, True)} <= kinds


def test_many_filters_and_the_form_of_packets_change_no_row(
    folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells that are split by signature, and rows that are sent instead of cells."""
    case = random_case(7, 120, 1, menu=Menu(raising=False, events=False, windows=WINDOWS[:1]))
    above = [call("gt", (KEYS[1], literal(bound, "int")), "boolean") for bound in range(-10, 110, 6)]
    counts = tuple(aggregate_of("count", None, one) for one in above)
    output = tuple(Named(f"n{i}", Column(f"agg:{i}", "bigint")) for i in range(len(counts)))
    one = replace(case.queries[0], where=None, aggregates=counts, output=output)
    few = replace(one, name="few", aggregates=counts[:2], output=output[:2])
    for queries in ([with_sets(one, 1)], [with_sets(few, 1)]):
        assert build_plan(queries).groups[0].signed == (queries[0].name != "few")
        compared = []
        for raw in (True, False):
            monkeypatch.setattr(group_parts, "is_smaller_raw", lambda *_, raw=raw: raw)
            compared.append(check(next(folders), case._replace(queries=queries), 2, 3))
        assert compared[0] == compared[1] > 0


def test_a_key_that_is_null_is_not_a_set_that_leaves_it_out(folders: Iterator[Path]) -> None:
    rows = [{"k": None, "v": 1, "ts": 0}, {"k": "a", "v": 2, "ts": 1}]
    sets = (GroupingSet((0,), 0), GroupingSet((), 1))
    output = (Named("k", Column("key:0", "string")), Named("g", Column("key:1", "bigint")))
    total = Named("t", Column("agg:0", "bigint"))
    keys, window = (KEYS[0], literal(0, "bigint")), Sliding(10 * SECOND, 10 * SECOND)
    query = Query("q", "events", "ts", 0, window, keys, (aggregate_of("sum", KEYS[1]),), (*output, total), sets=sets)
    found = answers(next(folders), [query], [rows], instances=2).rows["q"]
    assert sorted((row["g"], row["k"] or "", row["t"]) for row in found) == [(0, "", 1), (0, "a", 2), (1, "", 3)]


def test_cells_are_rolled_up_without_overflow() -> None:
    """More words than int64 can add at once."""
    count = 5000
    words = np.full(count, (1 << 51) - 1)
    rolled = Rolled(np.arange(count), {"a:w0": words, "b:max": np.arange(count), "b:n": np.ones(count, np.int64)})
    found = coarser(rolled, np.arange(count) % 2, 1)
    assert found.ids.tolist() == [0, 1]
    half = count // 2 * ((1 << 51) - 1)
    assert [sum(int(found.columns[f"a:w{k}"][i]) << 52 * k for k in (0, 1)) for i in (0, 1)] == [half, half]
    assert found.columns["b:max"].tolist() == [count - 2, count - 1]
    assert found.columns["b:n"].tolist() == [count // 2] * 2
