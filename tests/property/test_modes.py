"""Rows that may change: told as the naive twin tells them; what they amount to is the answer over the events so far."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from millpond.errors import OverflowedError
from millpond.model.expressions import Column, call, conjunction, literal
from millpond.model.query import Named, Query
from millpond.plan.build import build_plan
from millpond.testing import oracle
from millpond.testing.answers import Run, dealt
from millpond.testing.cases import SECOND, Case, Menu, random_case
from millpond.testing.compare import assert_same_rows, canonical, rows_of
from millpond.testing.naive_modes import told_by_epoch
from millpond.testing.rowwise import Raised
from millpond.testing.strategies import cases_of

PROPERTY = settings(deadline=None, suppress_health_check=list(HealthCheck))
MENU = Menu(events=False)
CALM = Menu(events=False, raising=False, summed=("v", "amount", "f", "p"))
CORRECTED_FOR = (1, 7 * SECOND, 40 * SECOND, 3600 * SECOND)


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Iterator[Path]]:
    """A new folder at each turn; those before are removed."""

    def fresh() -> Iterator[Path]:
        for i in itertools.count():
            shutil.rmtree(tmp_path / str(i - 1), ignore_errors=True)
            yield tmp_path / str(i)

    yield fresh()


def changing(query: Query, seed: int) -> Query:
    """The query with a mode, and columns that say of which window and key a row is."""
    dice = random.Random(f"{query.name}{seed}")
    bounds = [Named(f"at_{end}", Column(f"window.{end}", "timestamp")) for end in ("start", "end")]
    keys = [Named(f"by_{i}", Column(f"key:{i}", key.type)) for i, key in enumerate(query.keys)]
    having = query.having
    if having is None and query.aggregates and dice.random() < 0.5:
        counts = [i for i, one in enumerate(query.aggregates) if one.type == "bigint" and one.function == "count"]
        # rows that come, and go again as there are more events
        having = call("lt", (Column(f"agg:{counts[0]}", "bigint"), literal(3, "bigint")), "boolean") if counts else None
    query = replace(query, output=(*query.output, *bounds, *keys), having=having)
    if dice.random() < 0.1:
        return query  # a neighbour whose rows are final
    if dice.random() < 0.5:
        return replace(query, emit="update")
    return replace(query, correct_us=dice.choice(CORRECTED_FOR))


def told(folder: Path, case: Case, instances: int, seed: int) -> tuple[dict[str, list[list[dict[str, Any]]]], Run]:
    """By query and epoch the rows that a pond tells."""
    run, deal = Run(folder, case.queries, instances, 16), dealt(seed)
    found: dict[str, list[list[dict[str, Any]]]] = {query.name: [] for query in case.queries}
    for batch in case.epochs:
        before = {name: len(sink.table()) for name, sink in run.sinks.items()}
        run.epoch(deal(batch))
        for name, sink in run.sinks.items():
            found[name].append(rows_of(sink.table())[before[name] :])
    return found, run


def check(folder: Path, case: Case, instances: int, seed: int) -> int:
    """Hold each epoch against the naive twin, and what has been told so far against the oracle; how many rows."""
    found, run = told(folder, case, instances, seed)
    compared, counts = 0, run.answers().counts
    for query in case.queries:
        expected_counts = oracle.counts(query, case.epochs)
        assert counts.get(query.name, {}) == (expected_counts if expected_counts["read"] else {}), query
        twin = told_by_epoch if query.changing else oracle.answer_by_epoch
        try:
            expected = twin(query, case.epochs)
        except (Raised, OverflowedError):
            assert query.name in run.pond.manifest.quarantined, query
            continue
        assert query.name not in run.pond.manifest.quarantined, query
        for mine, theirs in zip(expected, found[query.name], strict=True):
            assert_same_rows(mine, theirs, about=str(query))
            compared += len(mine)
        if query.changing:
            amounts(query, case, found[query.name])
    return compared


def amounts(query: Query, case: Case, epochs: Sequence[Sequence[dict[str, Any]]]) -> None:
    """After each epoch the rows told so far are the answer over the events so far, no revision left out."""
    standing: dict[Any, dict[str, Any]] = {}
    revisions: dict[Any, int] = {}
    plain = replace(query, emit=UNSET, correct_us=UNSET, delay_us=query.late_after_us)
    marks = oracle.watermarks(replace(query, correct_us=UNSET), case.epochs)[1:]
    for i, (rows, closed) in enumerate(zip(epochs, marks, strict=True)):
        for row in rows:
            own = dict(row)
            place = tuple(canonical(own[name]) for name in own if name.startswith(("at_", "by_")))
            how, revision = own.pop("_op"), own.pop("_revision", None)
            if how == "delete":
                assert canonical(standing.pop(place)) == canonical(own)
            else:
                standing[place] = own
            if query.corrected_for_us:
                revisions[place] = revisions.get(place, -1) + 1
                assert revision == revisions[place]
        expected = oracle.answer(plain, case.epochs[: i + 1], drained=True)
        if query.corrected_for_us:
            expected = [row for row in expected if closed is not None and row["at_end"] <= closed]
        assert_same_rows(expected, list(standing.values()), about=str(query))


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_seeded_cases_are_told_as_the_naive_twin_does(first: int, folders: Iterator[Path]) -> None:
    compared = 0
    for seed in range(first, first + 8):
        case = random_case(seed, 60, 5, menu=MENU if seed % 2 else CALM)
        case = case._replace(queries=[changing(query, seed) for query in case.queries])
        compared += check(next(folders), case, 1 + seed % 3, seed)
    assert compared > 500


@settings(PROPERTY, max_examples=40)
@given(case=cases_of(max_events=30, max_queries=4, menu=MENU), instances=st.integers(1, 3), seed=st.integers(0, 9))
def test_small_nasty_streams_are_told_as_the_naive_twin_does(
    case: Case, instances: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pond")
    check(folder, case._replace(queries=[changing(query, seed) for query in case.queries]), instances, seed)
    shutil.rmtree(folder)


@pytest.mark.parametrize("seed", range(40, 43))
def test_cells_split_by_signature_tell_the_same_changes(seed: int, folders: Iterator[Path]) -> None:
    case = random_case(seed, 80, 2, menu=CALM)
    queries = []
    for i, query in enumerate(query for query in case.queries for _ in range(12)):
        above = call("gt", (Column("amount", "double"), literal(i * 40.0, "double")), "boolean")
        where = conjunction([part for part in (query.where, above) if part is not None])
        queries.append(changing(replace(query, name=f"{query.name}_{i}", where=where), seed))
    assert any(group.signed for group in build_plan(queries).groups)
    assert check(next(folders), case._replace(queries=queries), 2, seed) > 100
