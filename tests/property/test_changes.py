"""Queries that come, go, pause and change between epochs: every row is that of the naive twin, who knows of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millpond.errors import ChangeRefused
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.reconfigure import accept
from millpond.reconfigure.accept import Pond
from millpond.reconfigure.changes import Add, Change
from millpond.runtime.followers.rows import RowsReader
from millpond.runtime.followers.sinks import MemorySink
from millpond.testing.answers import dealt, read_section, table_of
from millpond.testing.cases import SESSIONS, STREAM, WINDOWS, Menu, condition, query, random_case
from millpond.testing.compare import assert_same_rows, rows_of
from millpond.testing.local_pond import LocalPond
from millpond.testing.naive_changes import NaiveChanges, Plain

MENU = Menu(summed=("v", "amount", "p"), raising=False, variance=False, events=False)
SLICED = MENU._replace(windows=WINDOWS)
MIXED = MENU._replace(windows=(*WINDOWS, *SESSIONS))
MEMORY = Sink("memory")


def kept(asked: Plain) -> Plain:
    return msgspec.structs.replace(asked, sink=MEMORY)


class Changing:
    """A local pond whose queries change, and the naive twin that is told of it."""

    def __init__(self, folder: Path, queries: Sequence[Plain], instances: int) -> None:
        self._folder, self._sinks = folder, dict[str, MemorySink]()
        self._reader = RowsReader(lambda _n, receipt, section: read_section(folder, receipt, section))
        asked = [kept(one) for one in queries]
        self.pond = LocalPond(folder, [STREAM], asked, instances, 16)
        self.naive, self._turn = NaiveChanges(asked), 0
        self.known = {one.name: one for one in asked}
        for one in asked:
            self._follow(one.name, -1)

    def _follow(self, name: str, since: int) -> None:
        if name not in self._sinks:  # the rows of a name that comes again are its rows, too
            self._sinks[name] = MemorySink(name, self._reader, since)
            self.pond.follow(self._sinks[name])

    def between(self) -> Pond:
        return Pond(self.pond.spec, self.pond.manifest)

    def change(self, change: Change) -> Change:
        n = self.pond.change(change)
        self.naive.change(change)
        if isinstance(change, Add):
            self._follow(change.name, n)
            self.known[change.name] = change.asked.query  # type: ignore[assignment]
        return change

    def restart(self) -> None:
        """Another driver takes over, who is told of no query."""
        self._turn += 1
        sinks = list(self._sinks.values())
        self.pond = LocalPond(self._folder, [STREAM], None, 1, 16, sinks, token=f"turn-{self._turn}")

    def epoch(self, parts: Sequence[Sequence[dict[str, Any]]]) -> None:
        for end in accept.ends(*self.between()):
            self.pond.change(end)
        self.pond.epoch({STREAM.name: [table_of(part) for part in parts]})
        self.naive.epoch()

    def check(self, epochs: Sequence[Sequence[dict[str, Any]]], about: object) -> int:
        self.pond.drain()
        self.naive.epoch()
        assert not self.pond.manifest.quarantined
        expected = self.naive.rows(epochs, drained=True)
        for name, rows in expected.items():
            assert_same_rows(rows, rows_of(self._sinks[name].table()), about=f"{about}: {name}")
        return sum(map(len, expected.values()))


def asked_at_random(dice: random.Random, name: str, menu: Menu, others: Sequence[Plain]) -> Plain:
    """A new query, or one that shares most of what it asks with another."""
    if dice.random() < 0.15:
        where = condition(dice, MENU)
        return kept(Selection(name, STREAM.name, (Named("k", Column("k", "string")),), where))
    fresh = query(dice, name, menu)
    siblings = [one for one in others if isinstance(one, Query)]
    if siblings and dice.random() < 0.6:
        other = dice.choice(siblings)
        fresh = msgspec.structs.replace(
            other, name=name, window=dice.choice((other.window, fresh.window)),
            where=dice.choice((other.where, fresh.where)), delay_us=dice.choice((other.delay_us, fresh.delay_us)),
            having=dice.choice((other.having, None)),
        )  # fmt: skip
    return kept(fresh)


def altered(dice: random.Random, old: Plain, menu: Menu) -> Plain:
    """Another version with the same columns."""
    fresh = query(dice, old.name, menu)
    if isinstance(old, Selection):
        return msgspec.structs.replace(old, where=fresh.where)
    kinds: list[dict[str, Any]] = [
        {"having": fresh.having if fresh.aggregates == old.aggregates else None},
        {"where": fresh.where},
        {"window": fresh.window},
        {"delay_us": fresh.delay_us},
        {"window": fresh.window, "where": fresh.where},
    ]
    return msgspec.structs.replace(old, **dice.choice(kinds))


def change_at_random(dice: random.Random, run: Changing, menu: Menu) -> str:
    """Make a random change, or be refused; its kind."""
    pond = run.between()
    current = [one for one in pond.spec.asked if one.name not in pond.spec.left.replaced]
    names = [one.name for one in current] or ["none"]
    some = dice.choice(names)
    kind = dice.choice(("add", "add", "drop", "pause", "resume", "resume", "alter", "alter"))
    try:
        if kind == "add":
            name = f"q{dice.randint(0, 9)}"
            again = run.known.get(name)
            asked = altered(dice, again, menu) if again else asked_at_random(dice, name, menu, current)  # type: ignore[arg-type]
            change: Change = accept.add(pond, asked)
        elif kind == "alter":
            old = next((one for one in current if one.name == some), None)
            if old is None:
                return "nothing"
            change = accept.alter(pond, altered(dice, old, menu))  # type: ignore[arg-type]
        else:
            change = getattr(accept, kind)(pond, some)
    except ChangeRefused:
        return "refused"
    run.change(change)
    return kind


def random_run(folder: Path, seed: int, menu: Menu, events: int = 160, epochs: int = 14) -> set[str]:
    """A pond whose queries change at random; what was done to it."""
    dice = random.Random(seed)
    case = random_case(seed, events, 3, epochs=epochs, menu=menu)
    run, deal, done = Changing(folder, case.queries, 1 + seed % 3), dealt(seed), set[str]()
    for batch in case.epochs:
        for _ in range(dice.choice((0, 1, 1, 2, 4))):
            done.add(change_at_random(dice, run, menu))
        run.epoch(deal(batch))
    run.check(case.epochs, seed)
    return done


@pytest.mark.parametrize("seed", range(24))
def test_changes_between_random_epochs_are_those_of_the_naive_twin(tmp_path: Path, seed: int) -> None:
    random_run(tmp_path, seed, MIXED if seed % 2 else SLICED)
