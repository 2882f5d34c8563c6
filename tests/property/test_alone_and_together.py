"""A query has the same rows alone and beside other queries, also where many events have one time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.property.test_counted import framed
from tests.property.test_windows_and_modes import MODES, moded

from kit.inputs.cases import SECOND, SESSIONS, STREAM, UNEQUAL, WINDOWS, random_case
from kit.inputs.examples import seeds
from kit.inputs.pattern_cases import random_query as random_pattern
from kit.judges.answers import Answers, answers, dealt
from millpond.errors import UnsupportedQuery
from millpond.model.expressions import Column, Expression
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.windows import NEVER_LATE_US, RUNNING, Counted, Range
from millpond.plan.groups.deduplication import deduplicated
from millpond.plan.groups.distinct import Timing, distinct_rows
from millpond.plan.options.output_modes import with_mode
from millpond.plan.upstream.first_rows import first_rows
from millpond.testing.compare import canonical

COLUMNS = tuple(Column(field.name, field.type) for field in STREAM.columns)
TIME = Column("ts", "timestamp")
KEYS = (Column("k", "string"), Column("flag", "boolean"), Column("g", "bigint"))


def with_ties(seed: int, events: int, queries: int) -> tuple[list[list[dict[str, Any]]], list[Query]]:
    """Epochs of events of few keys and times, and random queries."""
    dice, case, step = random.Random(seed), random_case(seed, events, queries, epochs=6), 20 * SECOND
    return [
        [{**row, "k": dice.choice("ab"), "ts": row["ts"] and row["ts"] // step * step} for row in batch]
        for batch in case.epochs
    ], case.queries


def of_any_kind(query: Query, dice: random.Random) -> Query:
    """The query's expressions in any kind of query."""
    kind = dice.choice(("sliced", "sliced", "session", "range", "count", "frame", "running", "pattern", "first",
                        "first", "first", "chosen", "limit"))  # fmt: skip
    query = replace(query, delay_us=dice.choice((0, 5 * SECOND, 30 * SECOND)))
    if kind == "sliced":
        return in_a_mode(replace(query, window=dice.choice((*WINDOWS[:3], *UNEQUAL))), dice)
    if kind == "session":
        return in_a_mode(replace(query, window=dice.choice(SESSIONS)), dice)
    if kind == "range":
        return replace(query, window=Range(dice.choice((0, 20, 40)) * SECOND))
    if kind == "count":
        return replace(query, window=Counted(*dice.choice(((1, 1), (3, 2), (7, 3)))))
    if kind == "frame":
        return framed(query, dice)
    if kind == "running":
        return moded(replace(query, window=RUNNING, delay_us=NEVER_LATE_US), "update", 0)
    if kind == "pattern":
        return replace(random_pattern(dice, query.name), delay_us=query.delay_us)
    return _of_events(kind, query, dice)


def in_a_mode(query: Query, dice: random.Random) -> Query:
    """The query in one of the modes that it supports; repeated events are equal in all columns."""
    mode = dice.choice(MODES)
    if mode != "deduplicated":
        return moded(query, mode, 40 * SECOND)
    with suppress(UnsupportedQuery):
        return deduplicated(query, STREAM, [column.name for column in COLUMNS], 40 * SECOND)
    return query


def _of_events(kind: str, query: Query, dice: random.Random) -> Query:
    """A query whose rows are events."""
    shown = tuple(Named(one.name, one) for one in dice.sample(COLUMNS, dice.randint(1, 3)))
    rows = Selection(query.name, STREAM.name, shown, where=KEYS[1] if dice.random() < 0.3 else None)
    keys: list[Expression] = list(dice.choice((KEYS[:1], KEYS[:2], (KEYS[0], TIME))))
    timing = dice.choice((None, Timing(TIME, query.delay_us)))
    if kind == "limit":
        return first_rows(rows, dice.choice((None, TIME)), dice.randint(1, 40))
    if kind == "first":
        within = timing is not None and dice.random() < 0.5
        return distinct_rows(rows, keys, timing, within=within)
    made = distinct_rows(rows, keys, Timing(TIME, query.delay_us), keeps=dice.choice(("earliest", "latest")))
    moded_query = with_mode(made, "update", None)
    assert isinstance(moded_query, Query)
    return moded_query


def held_alike(one: Answers, other: Answers, query: Query) -> int:
    """Compare all results of a query; returns the number of its rows."""
    name = query.name
    left, right = (sorted(map(repr, map(canonical, found.rows[name]))) for found in (one, other))
    assert left == right, query
    assert one.counts.get(name) == other.counts.get(name), query
    assert one.withheld.get(name) == other.withheld.get(name), query
    assert one.quarantined.get(name) == other.quarantined.get(name), query
    return len(left)


@pytest.mark.parametrize("seed", seeds(9103, 2))
def test_rows_do_not_depend_on_other_queries(seed: int, folders: Iterator[Path]) -> None:
    dice = random.Random(seed)
    epochs, made = with_ties(seed, 120, 14)
    queries = [of_any_kind(query, dice) for query in made]
    together = answers(next(folders), queries, epochs, dice.randint(1, 3), 16, dealt(seed))
    rows = 0
    for query in queries:
        alone = answers(next(folders), [query], epochs, dice.randint(1, 3), 16, dealt(seed + 1))
        rows += held_alike(alone, together, query)
    assert rows > 100
