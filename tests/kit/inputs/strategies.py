"""Hypothesis strategies: small streams with special values, their epochs, and sets of queries over one test schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

from kit.inputs import cases
from kit.inputs.cases import EVERYTHING, STREAM, Case, Menu, random_case
from millpond.model.query import Query
from millpond.model.stream import Stream

__all__ = [
    "EVERYTHING", "STREAM", "Case", "Menu",
    "cases_of", "cuts", "events", "queries", "query_sets", "random_case",
]  # fmt: skip

T = TypeVar("T")
Event = dict[str, Any]


class _Drawn:
    """Hypothesis as a source of randomness, so that the results of `cases` shrink."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def choice(self, seq: Sequence[T], /) -> T:
        return self._draw(st.sampled_from(seq))

    def randint(self, a: int, b: int, /) -> int:
        return self._draw(st.integers(a, b))


_TEXT = st.one_of(
    st.sampled_from(cases.TEXTS),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4),
)
_TIME = st.one_of(
    st.integers(-30, 90).map(lambda second: second * cases.SECOND),
    st.integers(-30 * cases.SECOND, 90 * cases.SECOND),
)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": _TEXT,
    "bigint": st.one_of(st.integers(0, 3), st.sampled_from(cases.BIGINTS)),
    "int": st.one_of(st.integers(-5, 20), st.sampled_from(cases.INTS)),
    "boolean": st.booleans(),
    "double": st.one_of(st.sampled_from(cases.DOUBLES), st.floats()),
    "timestamp": _TIME,
    "decimal(10,2)": st.one_of(st.decimals(-10, 10, places=2), st.sampled_from(cases.decimals("decimal(10,2)"))),
    "decimal(38,6)": st.one_of(
        st.decimals(-(10**26), 10**26, places=6),
        st.sampled_from(cases.decimals("decimal(38,6)") * 3 + cases.decimals("decimal(38,6)", cases.EXTREMES)),
    ),
}
_PRICES = st.integers(0, 100_000).map(lambda cents: cents / 100)


def _sometimes_null(values: st.SearchStrategy[Any], one_in: int) -> st.SearchStrategy[Any]:
    return st.integers(0, one_in).flatmap(lambda n: st.none() if n == one_in else values)


def events(schema: Stream = STREAM, *, max_size: int = 60) -> st.SearchStrategy[list[Event]]:
    """Unordered events: ties, times before and after 1970, NULLs, rarely a NULL time."""
    columns: dict[str, st.SearchStrategy[Any]] = {}
    for field in schema.columns:
        values = _PRICES if field.name == "amount" else _VALUES[field.type]
        some = 30 if field.type == "timestamp" else 8
        columns[field.name] = _sometimes_null(values, some)
    times = [field.name for field in schema.columns if field.type == "timestamp"]

    def moved(base: int, rows: list[Event]) -> list[Event]:
        for row in rows:
            row.update({name: row[name] + base for name in times if row[name] is not None})
        return rows

    rows = st.lists(st.fixed_dictionaries(columns), max_size=max_size)
    return st.builds(moved, st.sampled_from(cases.BASES), rows)


@st.composite
def cuts(draw: st.DrawFn, rows: list[Event], *, max_epochs: int = 6) -> list[list[Event]]:
    """The rows in their order, cut into one to `max_epochs` batches, empty ones included."""
    places = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=max_epochs - 1)))
    return [rows[start:end] for start, end in zip([0, *places], [*places, len(rows)], strict=True)]


@st.composite
def queries(draw: st.DrawFn, menu: Menu = EVERYTHING) -> Query:
    """One query over `STREAM`."""
    return cases.query(_Drawn(draw), menu=menu)


@st.composite
def query_sets(draw: st.DrawFn, *, max_size: int = 8, menu: Menu = EVERYTHING) -> list[Query]:
    """One to `max_size` queries over `STREAM`, some with equal keys, filters and aggregates."""
    return cases.query_set(_Drawn(draw), draw(st.integers(1, max_size)), menu)


@st.composite
def cases_of(draw: st.DrawFn, *, max_events: int = 60, max_queries: int = 8, menu: Menu = EVERYTHING) -> Case:
    """A stream cut into epochs, and queries over it."""
    rows = draw(events(max_size=max_events))
    return Case(draw(cuts(rows)), draw(query_sets(max_size=max_queries, menu=menu)))
