"""The first rows of each partition, compared with plain sorting; and which queries need only these."""

from __future__ import annotations

import random

import numpy as np
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from millpond.arrays import Ints
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Call, Column, call, literal
from millpond.model.query import Query
from millpond.model.windows import Range
from millpond.plan.groups.top_rows import top_rows
from millpond.runtime.gather.top_rows import SortKey, first_rows


@pytest.mark.parametrize("seed", range(30))
def test_the_first_rows_are_kept_and_most_others_are_not(seed: int) -> None:
    dice = random.Random(seed)
    count, rows, distinct = dice.randint(0, 60), dice.randint(1, 4), dice.random() < 0.5
    columns = [np.array([dice.randint(0, dice.choice([2, 9, 99])) for _ in range(count)], np.int64) for _ in range(3)]
    partitions = np.sort([dice.randrange(3) for _ in range(count)]).astype(np.int64)
    sizes: list[int] = []

    def key(place: int) -> SortKey:
        def of(chosen: Ints) -> list[Ints]:
            sizes.append(len(chosen))
            return [columns[place][chosen]]

        return of

    kept = {*first_rows(partitions, [key(i) for i in range(3)], rows, distinct=distinct).tolist()}
    assert sizes == sorted(sizes, reverse=True)
    order = [(int(part), *(int(column[i]) for column in columns)) for i, part in enumerate(partitions)]
    needed = set()
    for i, own in enumerate(order):
        before = [other for other in order if other[0] == own[0] and other < own]
        if len({*before} if distinct else before) < rows:
            needed.add(i)
    assert needed <= kept
    assert len(kept) <= max(len(needed), 2 * rows * (int(partitions.max(initial=0)) + 1))


def test_a_million_rows_are_sorted_by_few_keys() -> None:
    sizes: list[int] = []

    def ties(chosen: Ints) -> list[Ints]:
        sizes.append(len(chosen))
        return [chosen]

    values = np.random.default_rng(1).integers(0, 100_000, 1_000_000)
    kept = first_rows(np.zeros(1_000_000, np.int64), [lambda chosen: [values[chosen]], ties], 10)
    assert {*np.argsort(values, kind="stable")[:10].tolist()} <= {*kept.tolist()}
    assert len(kept) <= 40 and sum(sizes) <= 40


A, B = Column("a", "bigint"), Column("b", "bigint")


def rank(function: str, *by: Column, direction: str = "asc nulls first") -> Aggregate:
    directions = tuple(literal(direction, "string") for _ in by)
    return Aggregate(function, by[0], None, "int", by[1] if by[1:] else UNSET, parameters=directions)


def at_most(place: int, rows: int) -> Call:
    return call("le", (Column(f"agg:{place}", "int"), literal(rows, "int")), "boolean")


def test_a_query_needs_only_its_first_rows_if_all_its_ranks_fit() -> None:
    fine, coarse = rank("row_number", A, B), rank("dense_rank", A)
    query = Query("q", "s", "ts", 0, Range(0), (), (fine, coarse), (), having=at_most(0, 3), event=(A,))
    first = top_rows(query)
    assert first is not None and (first.rank, first.rows, first.distinct) == (fine, 3, False)
    second = top_rows(replace(query, having=call("and", (at_most(0, 3), at_most(1, 2)), "boolean")))
    assert second is not None and (second.rank, second.rows, second.distinct) == (coarse, 2, True)
    for aggregates in ((fine, rank("rank", B)), (fine, rank("rank", A, direction="desc nulls last"))):
        assert top_rows(replace(query, aggregates=aggregates)) is None
    assert top_rows(replace(query, aggregates=(fine, Aggregate("count", None, None, "bigint")))) is None
    assert top_rows(replace(query, having=None)) is None
    assert top_rows(replace(query, having=call("gt", (Column("agg:0", "int"), literal(3, "int")), "boolean"))) is None
    assert top_rows(replace(query, having=call("or", (at_most(0, 3), at_most(1, 2)), "boolean"))) is None
