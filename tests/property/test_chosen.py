"""The earliest or latest event of each key is that of the naive twin, for any cut, instances, moves and restarts."""

from __future__ import annotations

import random
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
from millpond.model.expressions import Column, call, literal
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.plan.groups.distinct import Timing, distinct_rows
from millpond.plan.options.output_modes import OP, with_mode
from millpond.runtime.fold import fold

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
    epochs = cut(events(seed, 220), dice, 15)
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


def test_what_is_never_final_is_refused_and_updates_have_keys() -> None:
    with pytest.raises(QueryError, match="a later one may always replace"):
        query("q", "latest", "final")
    assert key_columns(QUERIES[1]) == ("k",)
    with pytest.raises(QueryError, match="lacks all its key columns"):
        key_columns(replace(QUERIES[1], output=QUERIES[1].output[1:]))
