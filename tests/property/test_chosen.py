"""The earliest or latest event of each key is that of the naive twin, for any cut, instances, moves and restarts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kit.inputs.cases import SECOND, STREAM
from kit.inputs.event_files import cut
from kit.inputs.examples import seeds
from kit.judges.answers import run_with_moves
from millpond.errors import QueryError
from millpond.followers.record_rows import key_columns
from millpond.model.expressions import Column, call, conjunction, literal
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.windows import Distinct
from millpond.plan.groups.distinct import Timing, distinct_rows
from millpond.plan.groups.ranked_rows import replaces_rows
from millpond.plan.options.output_modes import OP, with_mode
from millpond.runtime.fold import fold
from millpond.spark.analysis.upstream.ordered_functions import rank_by

KEY, ID, TIME = Column("k", "string"), Column("g", "bigint"), Column("ts", "timestamp")
ODD = call("eq", (call("remainder", (ID, literal(2, "bigint")), "bigint"), literal(1, "bigint")), "boolean")
ROWS = Selection("q", STREAM.name, tuple(Named(one.name, one) for one in (KEY, ID, TIME)))


def query(name: str, keeps: Any, emit: str, delay_us: int = 15 * SECOND, above: Sequence[Any] = ()) -> Query:
    made = distinct_rows(replace(ROWS, name=name), [KEY], Timing(TIME, delay_us), keeps=keeps, above=above)
    moded = with_mode(made, emit, None)
    assert isinstance(moded, Query)
    return moded


QUERIES = [
    query("first", "earliest", "final"), query("first_so_far", "earliest", "update"),
    query("last_so_far", "latest", "update"), query("odd_last", "latest", "update", above=[ODD]),
]  # fmt: skip


def events(seed: int, count: int) -> list[dict[str, Any]]:
    dice = random.Random(seed)
    empty = dict.fromkeys((field.name for field in STREAM.columns), None)
    return [
        {**empty, "k": dice.choice(("a", "b", "c", None, f"x{i // 9}")), "g": dice.randint(0, 5),
         "ts": (i - dice.choice((0, 3, 10))) // 3 * SECOND}
        for i in range(count)
    ]  # fmt: skip


def best(rows: Sequence[dict[str, Any]], keeps: str) -> dict[Any, dict[str, Any]]:
    """The chosen event of each key; of equal times, by the values k, g."""
    found: dict[Any, dict[str, Any]] = {}
    choose = max if keeps == "latest" else min
    for row in rows:
        known = found.get(row["k"], row)
        found[row["k"]] = choose(known, row, key=lambda one: (one["ts"], one["g"]))
    return found


def shown(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["k"], row["g"], row["ts"]


def updates(keeps: str, odd: bool, epochs: Sequence[list[dict[str, Any]]]) -> list[list[tuple[Any, ...]]]:
    """The rows of each epoch: what was chosen anew, and what was deleted because the new choice is not shown."""
    seen: list[dict[str, Any]] = []
    before: dict[Any, dict[str, Any]] = {}
    found = []
    for batch in epochs:
        seen += batch
        after, rows = best(seen, keeps), []
        for key, row in after.items():
            old = before.get(key)
            if old is not None and shown(old) == shown(row):
                continue
            if not odd or row["g"] % 2 == 1:
                rows.append((*shown(row), "upsert"))
            elif old is not None and old["g"] % 2 == 1:
                rows.append((*shown(old), "delete"))
        before = after
        found.append(rows)
    return found


def in_time(epochs: Sequence[list[dict[str, Any]]], delay_us: int) -> list[dict[str, Any]]:
    newest, found = None, []
    for batch in epochs:
        found += [row for row in batch if newest is None or row["ts"] > newest - delay_us]
        newest = max([row["ts"] for row in batch] + ([] if newest is None else [newest]), default=None)
    return found


@pytest.mark.parametrize("seed", seeds(0, 2))
def test_rows_are_those_of_the_naive_twin(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "FAN_IN", 3)
    dice = random.Random(seed)
    epochs = cut(events(seed, 150), dice, 10)
    run = run_with_moves(tmp_path, QUERIES, epochs, dice, seed, 0.5)
    stored = [one for one in run.pond.manifest.sections.values() if one.kind == "events"]
    run.pond.drain()
    found = run.answers().rows
    firsts = best(in_time(epochs, 15 * SECOND), "earliest")
    assert sorted(map(repr, map(shown, found["first"]))) == sorted(repr(shown(row)) for row in firsts.values())
    for name, keeps, odd in (("first_so_far", "earliest", False), ("last_so_far", "latest", False),
                             ("odd_last", "latest", True)):  # fmt: skip
        wanted = [row for rows_of_epoch in updates(keeps, odd, epochs) for row in rows_of_epoch]
        emitted = [(*shown(row), row[OP]) for row in found[name]]
        assert sorted(map(repr, emitted)) == sorted(map(repr, wanted)), name
    assert "delete" in {row[OP] for row in found["odd_last"]}
    assert sum(one.rows for one in stored) < 300  # of more than 800 that were written


def ranked(name: str, function: str, most: int, *, shown: bool = True, odd: bool = False, keys: bool = True) -> Query:
    """The first events of each key by `g` descending, then time; a filter above may withhold some of them."""
    order = {ID: "desc nulls last", TIME: "asc nulls first"} if function == "row_number" else {ID: "desc nulls last"}
    rank, event = rank_by(function, order), (KEY, ID, TIME)
    output = [Named(f"c{i}", Column(f"event:{i}", value.type)) for i, value in enumerate(event)]
    number = Column("agg:0", "int")
    having = [call("le", (number, literal(most, "int")), "boolean")]
    if odd:
        two = literal(2, "bigint")
        rest = call("remainder", (Column("event:1", "bigint"), two), "bigint")
        having.append(call("eq", (rest, literal(1, "bigint")), "boolean"))
    made = with_mode(
        Query(
            name, STREAM.name, "ts", 0, Distinct(keeps="ranked", rows=most), (KEY,) if keys else (), (rank,),
            (*output, Named("r", number)) if shown else tuple(output), having=conjunction(having), event=event,
        ), "update", None,
    )  # fmt: skip
    assert isinstance(made, Query)
    return made


RANKED = [
    ranked("top", "row_number", 3), ranked("top_bare", "row_number", 3, shown=False), ranked("ranks", "rank", 4),
    ranked("top_odd", "row_number", 3, odd=True), ranked("dense", "dense_rank", 2, shown=False),
    ranked("all", "row_number", 5, keys=False), ranked("top_without_key", "row_number", 3),
]  # fmt: skip
RANKED[-1] = replace(RANKED[-1], output=RANKED[-1].output[1:])
RANKED += [
    replace(  # the limited rank is the second one
        RANKED[0], name="numbered_dense", window=Distinct(keeps="ranked", rows=2),
        aggregates=(*RANKED[0].aggregates, *RANKED[4].aggregates),
        having=call("le", (Column("agg:1", "int"), literal(2, "int")), "boolean"),
    ),
    replace(
        RANKED[2], name="all_ranks", aggregates=tuple(RANKED[i].aggregates[0] for i in (2, 4, 0)),
        output=(*RANKED[2].output, Named("d", Column("agg:1", "int")), Named("n", Column("agg:2", "int"))),
    ),
]  # fmt: skip


def ranks_shown(query: Query) -> list[str]:
    names = [item.expression.name for item in query.output if isinstance(item.expression, Column)]
    return [name for name in names if name.startswith("agg:")]


def first_rows(query: Query, seen: Sequence[dict[str, Any]]) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """The identity and the values of each row over all events until now."""
    most = query.window.rows  # type: ignore[union-attr]
    functions = [query.aggregates[int(name[-1])].function for name in ranks_shown(query)]
    limit = query.aggregates[1 if query.name == "numbered_dense" else 0].function
    odd, partitions = "odd" in query.name, dict[Any, list[dict[str, Any]]]()
    for row in seen:
        partitions.setdefault(row["k"] if query.keys else None, []).append(row)
    found = []
    for rows in partitions.values():
        rows.sort(key=lambda row: (-row["g"], row["ts"], row["k"] is not None, row["k"] or ""))
        for place, row in enumerate(rows, 1):
            better = [one["g"] for one in rows if one["g"] > row["g"]]
            numbers = {"row_number": place, "rank": 1 + len(better), "dense_rank": 1 + len({*better})}
            if numbers[limit] <= most and (not odd or row["g"] % 2 == 1):
                values = (*shown(row), *(numbers[function] for function in functions))
                values = values if query.output[0].name == "c0" else values[1:]
                keyed = "row_number" in functions
                found.append(((row["k"] if query.keys else None, place) if keyed else values, values))
    return found


@pytest.mark.parametrize("seed", seeds(0, 2))
def test_first_ranked_rows_are_those_of_the_naive_twin(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "FAN_IN", 3)
    dice = random.Random(seed)
    epochs = cut(events(seed, 150), dice, 10)
    run = run_with_moves(tmp_path, RANKED, epochs, dice, seed, 0.5)
    found = run.answers().rows
    for query in RANKED:
        seen: list[dict[str, Any]] = []
        before: Counter[Any] = Counter()
        wanted: list[Any] = []
        for batch in epochs:
            seen += batch
            after = Counter(first_rows(query, seen))
            wanted += [(*values, "upsert") for _, values in (after - before).elements()]
            there = {identity for identity, _ in after} if replaces_rows(query) else set()
            gone = (before - after).elements()
            wanted += [(*values, "delete") for identity, values in gone if identity not in there]
            before = after
        emitted = Counter(repr(tuple(row.values())) for row in found[query.name])
        missing = Counter(map(repr, wanted)) - emitted
        again = emitted - Counter(map(repr, wanted))  # the row of a number, although its new event equals the old one
        assert not missing and {*again} <= {*map(repr, wanted)}, query.name
        assert not again or query.name in ("numbered_dense", "all_ranks")
    assert "delete" in {row[OP] for row in found["top_odd"]} and {row[OP] for row in found["top"]} == {"upsert"}
    assert "delete" in {row[OP] for row in found["top_without_key"]}
    assert key_columns(RANKED[0]) == ("c0", "r") and key_columns(RANKED[5]) == ("r",)
    with pytest.raises(QueryError, match=r"lacks the row_number\(\)"):
        key_columns(RANKED[1])
    with pytest.raises(QueryError, match="lacks all its key columns"):
        key_columns(RANKED[6])
    stored = [one for one in run.pond.manifest.sections.values() if one.kind == "events"]
    assert sum(one.rows for one in stored) < 1500


def test_what_is_never_final_is_refused_and_updates_have_keys() -> None:
    with pytest.raises(QueryError, match="a later one may always replace"):
        query("q", "latest", "final")
    assert key_columns(QUERIES[1]) == ("k",)
    with pytest.raises(QueryError, match="lacks all its key columns"):
        key_columns(replace(QUERIES[1], output=QUERIES[1].output[1:]))
