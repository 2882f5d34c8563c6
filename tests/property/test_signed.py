"""Filter chains over cells by signature have the results of adding cell by cell."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from kit.inputs.examples import seeds
from kit.naive.filter_chains import Results, number, results
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, Expression, call, conjunction, literal
from millpond.model.query import Named, Query
from millpond.model.windows import Sliding
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.rows import query_families
from millpond.runtime.rows.query_families import Family, Shares
from millpond.runtime.windows import combine_by_filter, filter_chains
from millpond.runtime.windows.closing import Closing
from millpond.runtime.windows.combine_by_filter import signed_blocks
from millpond.state.keys.filter_signatures import narrowest, numbered
from millpond.state.layout.cells import Cells, Piece, Signed, Slices, merge
from millpond.state.numbers.exact_sums import WORD_BITS

PANE, PANES, SLOTS = 10, 6, 40

LARGE = [*range(-2, 3), -(2**63), 2**63 - 1, -(2**62), 2**40]
"""Few, so that the high words of numbers are often the same."""


def group_of(dice: random.Random, count: int) -> GroupPlan:
    """Queries that differ only in their filters: thresholds up and down, with and without a letter beside them."""
    v, k = Column("v", "double"), Column("k", "string")
    queries = []
    for position in range(count):
        parts: list[Expression] = [
            call(dice.choice(("gt", "ge", "gt", "lt")), (v, literal(float(dice.randint(0, 40)), "double")), "boolean")
        ]
        if dice.random() < 0.6:
            parts.append(call("eq", (k, literal(dice.choice("abc"), "string")), "boolean"))
        aggregates = (
            Aggregate("count", None, None, "bigint"), Aggregate("sum", v, None, "double"),
            Aggregate("min", v, None, "double"), Aggregate("max", Column("d", "decimal(38,2)"), None, "decimal(38,2)"),
            Aggregate("approx_count_distinct", k, None, "bigint", other=literal(0.3, "double")),
        )  # fmt: skip
        output = tuple(Named(f"a{i}", Column(f"agg:{i}", one.type)) for i, one in enumerate(aggregates))
        window = Sliding(2 * PANE, PANE)
        queries.append(Query(f"q{position}", "s", "ts", 0, window, (k,), aggregates, output, conjunction(parts)))
    return build_plan(queries).groups[0]


def cells_of(dice: random.Random, group: GroupPlan, rows: int, known: float) -> Cells:
    """Cells of random sets of the group's filters, with a number of known filters per ladder."""
    ladders = [names for ladder in group.ladders if (names := [n for n in ladder.filters if dice.random() < known])]
    lengths = [len(names) for names in ladders]
    drawn = [[dice.randint(0, length) if dice.random() < 0.3 else 0 for length in lengths] for _ in range(30)]
    ranks = np.unique(np.array(drawn, narrowest(lengths)), axis=0)
    table, ids = numbered([name for names in ladders for name in names], ranks, lengths)
    pairs = [(pane, dice.choice(ids.tolist())) for pane in range(PANES) for _ in range(8)]
    starts = np.array([pane * PANE for pane, _ in pairs])
    signed_ = Signed(np.array([signature for _, signature in pairs]), table)
    slices = Slices(starts, starts + PANE, np.zeros(len(pairs), np.int64), signed_)
    places = np.array(dice.sample(range(len(pairs) * SLOTS), rows))
    columns = {}
    for measure in group.kept:
        if measure.kind == "count":
            columns[f"{measure.id}:n"] = np.array([dice.randint(1, 5) for _ in range(rows)])
        elif measure.kind == "sum":
            for word in (-1, 0):
                half = 1 << (WORD_BITS - 1)
                columns[f"{measure.id}:w{word}"] = np.array([dice.randint(-half, half - 1) for _ in range(rows)])
        elif measure.kind == "registers4":
            for column in range(2):
                values = dice.choices([0, 0, 0, 1, 2, 40], k=8 * rows)
                columns[f"{measure.id}:r{column}"] = np.array(values, np.uint8).view(np.int64)
        else:
            parts = {"min": ("min",), "max": ("max", "maxlow")}[measure.kind]
            for part in parts:
                columns[f"{measure.id}:{part}"] = np.array([dice.choice(LARGE) for _ in range(rows)])
    return merge([Piece(slices, places // SLOTS, places % SLOTS, columns)], SLOTS)


def of_runs(group: GroupPlan, parts: Sequence[Cells], windows: Sequence[Closing]) -> Results:
    family, found = Family(group, group.queries), Results()
    edges = [pane * PANE for pane in range(PANES + 1)]
    chosen = [np.ones(len(cells.slices.start_us), bool) for cells in parts]
    for block in signed_blocks(edges, parts, chosen, group.measures, SLOTS):
        chains = family.chains(block.table)
        runs = chains.runs(block, windows)
        assert bool((np.diff(runs.windows * SLOTS + runs.slots) >= 0).all())
        for i, slot in enumerate((runs.slots + block.first).tolist()):
            columns = {name: number(name, {name: column}, i) for name, column in runs.columns.items()}
            for query in chains.order[runs.first[i] : runs.until[i]].tolist():
                place = query, int(runs.windows[i]), slot
                assert place not in found, "a result is of one run"
                found[place] = columns
    return found


def value(columns: dict[str, int]) -> dict[str, int]:
    """Words as the number they stand for, since one sum may be written in several ways."""
    whole: dict[str, int] = {}
    for name, held in columns.items():
        measure, _, part = name.partition(":")
        if part.startswith("w"):
            whole[f"{measure}:w"] = whole.get(f"{measure}:w", 0) + (held << (WORD_BITS * (int(part[1:]) + 1)))
        elif held != {"min": 2**63 - 1, "max": -(2**127)}.get(part):
            whole[name] = held
    return {name: held for name, held in whole.items() if held}


@pytest.mark.parametrize("added_at_once", [1024, 1])
@pytest.mark.parametrize("seed", seeds(0, 4))
def test_runs_of_queries_are_what_adding_cell_by_cell_makes(
    seed: int, added_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_chains, "_ADDED_AT_ONCE", added_at_once)
    monkeypatch.setattr(combine_by_filter, "_ENTRIES", (1 << 19, 300)[seed % 2])
    monkeypatch.setattr(filter_chains, "_PAIRS", (1 << 16, 50)[seed // 2 % 2])
    dice = random.Random(seed)
    group = group_of(dice, 24)
    assert group.signed
    assert max(len(ladder.filters) for ladder in group.ladders) > 2
    parts = [cells_of(dice, group, 300, (1.0, 0.6)[part]) for part in range(2)]
    windows = [Closing((i + 2) * PANE, i * PANE, 0, 0) for i in (0, 1, 3)]
    expected, found = results(group, group.queries, parts, windows), of_runs(group, parts, windows)
    assert found.keys() == expected.keys()
    assert len(found) > 200
    for place, columns in expected.items():
        assert value(found[place]) == value(columns), place


@pytest.mark.parametrize("copied", [1 << 22, 3])
@pytest.mark.parametrize("seed", seeds(0, 2))
def test_rows_of_a_run_are_copied_to_each_query_that_is_read(
    seed: int, copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_families, "_COPIED", copied)
    dice = np.random.default_rng(seed)
    queries, rows = int(dice.integers(1, 9)), 50
    first = dice.integers(0, queries, rows)
    until = np.minimum(queries, first + dice.integers(1, 5, rows))
    shares = Shares(first, until, dice.permutation(queries))
    read = dice.random(queries) < 0.7
    expected: dict[int, list[int]] = {}
    for row in range(rows):
        for place in range(first[row], until[row]):
            expected.setdefault(int(shares.order[place]), []).append(row)
    found = dict(shares.split(pa.record_batch({"row": np.arange(rows)}), read))
    assert {i: own.column(0).to_pylist() for i, own in found.items()} == {i: e for i, e in expected.items() if read[i]}
    assert shares.counts().tolist() == [len(expected.get(i, ())) for i in range(queries)]


def test_a_thousand_thresholds_are_answered_by_as_many_results_as_cells_come_in() -> None:
    dice = random.Random(1)
    base = group_of(dice, 1).queries[0].query
    queries = [
        msgspec.structs.replace(
            base, name=f"q{limit}",
            where=call("gt", (Column("v", "double"), literal(float(limit), "double")), "boolean"),
        )
        for limit in range(1000)
    ]  # fmt: skip
    group = build_plan(queries).groups[0]
    assert max(len(ladder.filters) for ladder in group.ladders) == 1000
    cells = cells_of(dice, group, 300, 1.0)
    (block,) = signed_blocks([0, PANE * PANES], [cells], [np.ones(len(cells.offsets) - 1, bool)], group.measures, SLOTS)
    runs = Family(group, group.queries).chains(block.table).runs(block, [Closing(PANE * PANES, 0, 0, 0)])
    assert len(runs.slots) <= 2 * cells.rows
    assert int((runs.until - runs.first).sum()) > 10 * len(runs.slots)
