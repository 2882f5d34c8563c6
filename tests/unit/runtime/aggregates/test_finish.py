"""Sums, averages and extremes of decimals of every precision and scale are the naive twin's, overflow included."""

from __future__ import annotations

from collections.abc import Hashable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.naive.queries.windows import aggregate
from millpond.arrays import WIDE, Mask, Wide
from millpond.errors import OverflowedError
from millpond.kernels.columns import to_arrow
from millpond.model.aggregates import OR_NULL, Aggregate
from millpond.model.expressions import Column, Expression, literal
from millpond.model.types import Digits
from millpond.plan.groups.aggregate_functions import result_type
from millpond.plan.groups.measures import measures_of
from millpond.runtime.aggregates.finish import finish
from millpond.runtime.aggregates.partials import Partials
from millpond.state.layout.cells import Piece, Slices, extreme_of, merge

CELLS = 3
TRIED = (literal(OR_NULL, "string"),)


class AllRows:
    """Facts about rows that all take part."""

    def __init__(self, values: Wide) -> None:
        self._values = values

    def filter_of(self, condition: Expression | None) -> Hashable:
        return condition

    def passed(self, name: Hashable) -> Mask | None:
        return None

    def values(self, expression: Expression) -> Wide:
        return self._values


@st.composite
def decimals(draw: st.DrawFn) -> tuple[Digits, list[tuple[int, int]]]:
    """A type, and unscaled values of it in cells 0 … CELLS - 1."""
    precision = draw(st.one_of(st.integers(1, 38), st.just(38)))
    kind = Digits(precision, draw(st.integers(0, precision)))
    most = 10**precision - 1
    number = st.one_of(st.integers(-most, most), st.integers(-min(99, most), min(99, most)), st.just(most))
    return kind, draw(st.lists(st.tuples(st.integers(0, CELLS - 1), number), min_size=1, max_size=40))


def merged(aggregated: Aggregate, rows: list[tuple[int, int]], cut: int) -> dict[str, Any]:
    """Columns of the aggregate's measures, from two pieces: the rows before `cut` and the others."""
    pieces = []
    for some in (rows[:cut], rows[cut:]):
        if some:
            values = np.array([(n & (2**64 - 1), n >> 64) for _, n in some], WIDE)
            partials = Partials(AllRows(values), np.array([cell for cell, _ in some]), CELLS)
            for measure in measures_of(aggregated, None):
                partials.add(measure)
            slices = Slices(*(np.array([value]) for value in (0, 10, 0)))
            columns = partials.columns(np.arange(len(partials.ids)))
            pieces.append(Piece(slices, np.zeros(len(partials.ids), np.int64), partials.ids, columns))
    columns = merge(pieces, CELLS).columns
    return {name: extreme_of(name, columns) if name.endswith(("min", "max")) else columns[name] for name in columns}


@pytest.mark.parametrize("function", ["count", "sum", "avg", "min", "max"])
@given(decimals(), st.integers(0, 40))
def test_an_aggregate_of_decimals_is_the_naive_one(
    function: str, drawn: tuple[Digits, list[tuple[int, int]]], cut: int
) -> None:
    kind, rows = drawn
    wanted = Aggregate(function, Column("a", kind.type), None, result_type(function, kind.type))
    cells = sorted({cell for cell, _ in rows})
    values = finish(wanted, measures_of(wanted, None), merged(wanted, rows, cut))
    error = np.broadcast_to(values.error, (len(cells),)).tolist()
    tried = finish(replace(wanted, parameters=TRIED), measures_of(wanted, None), merged(wanted, rows, cut))
    assert not np.any(tried.error)
    null_there = dict(zip(cells, np.broadcast_to(tried.null, (len(cells),)).tolist(), strict=True))
    shown = to_arrow(values._replace(null=values.null | values.error), wanted.type, len(cells)).to_pylist()
    for cell, raised, value in zip(cells, error, shown, strict=True):
        arguments = [Decimal(f"{number}E-{kind.scale}") for at, number in rows if at == cell]
        try:
            expected = aggregate(wanted, arguments)
        except OverflowedError:
            assert raised and null_there[cell]
            continue
        assert not raised
        assert str(value) == str(expected)


def test_an_average_of_few_digits_rounds_as_spark_s_doubles_do() -> None:
    # 20303480.87 / 160 is 126896.7554375, a tie; as a double it is a little less (tried in Spark 4.3)
    wanted = Aggregate("avg", Column("a", "decimal(10,2)"), None, "decimal(14,6)")
    rows = [(0, 2030348087)] + [(0, 0)] * 159
    values = finish(wanted, measures_of(wanted, None), merged(wanted, rows, 7))
    assert to_arrow(values, wanted.type, 1).to_pylist() == [Decimal("126896.755437")]
