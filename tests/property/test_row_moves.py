"""Served rows that move between stores while epochs run: readers see the rows of a fixed view, after any crash."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kit.inputs.cases import STREAM, Menu, random_case
from kit.judges.answers import dealt, table_of
from kit.simulator.changing_pond import ChangingPond
from millpond.control.pond import move as moving
from millpond.control.pond.move import RowMover, routed, sweep
from millpond.control.wiring.truth import Truth
from millpond.errors import ChangeRefused, StoreError
from millpond.followers.record_rows import RowsReader, section_reader
from millpond.followers.view import move_rows
from millpond.followers.view.view import ViewFollower, scan
from millpond.log.locations.address import address_of
from millpond.log.manifest import load
from millpond.model.endpoints import Sink
from millpond.model.query import Query, length_us
from millpond.placement.bucket_stores import places_in
from millpond.reconfigure.catalog import in_force
from millpond.reconfigure.placement_changes import move
from millpond.reconfigure.validate import KnownPond
from millpond.state.backends.lmdb import LmdbStore
from millpond.state.backends.memory import MemoryStore
from millpond.state.ports.files import Files
from millpond.state.ports.sharded import ShardedStore
from millpond.state.ports.store import BucketStore

BUCKETS = 8
PLACES = ("", "lmdb:b", "lmdb:c")


class Killed(BaseException):
    """The process has ended: nothing cleans up."""


class Bench:
    """A pond whose view is in several stores, and one in memory that stays."""

    def __init__(self, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dice, self.folder = random.Random(seed), folder / "pond"
        case = random_case(seed, 200, 3, epochs=24, menu=Menu(raising=False))
        queries = [
            msgspec.structs.replace(query, serve=True, sink=Sink("noop"), emit=self.dice.choice(("final", "update")))
            for query in case.queries if isinstance(query, Query)
        ]  # fmt: skip
        self.names, self.sizes = [q.name for q in queries], {q.name: length_us(q.window) for q in queries}
        self.epochs, self.deal = iter(case.epochs), dealt(seed)
        self.stores: dict[str, BucketStore] = {
            place: LmdbStore(folder / f"{number}.lmdb") for number, place in enumerate(PLACES)
        }
        self.stays, self.acts, self.turn, self.steps = MemoryStore(), True, 0, list[str]()
        self.start(queries)
        for module in (moving, move_rows):
            monkeypatch.setattr(module, "reached", self.reached)

    def start(self, queries: Sequence[Query] | None = None) -> None:
        """Another driver takes over, who knows the log alone."""
        self.turn += 1
        self.pond = ChangingPond(self.folder, [STREAM], queries, 2, BUCKETS, token=f"turn-{self.turn}")
        self.store = ShardedStore(self.stores.__getitem__, places_in(self.pond.spec))
        for number, store in enumerate((self.store, self.stays)):
            view = ViewFollower(store, self.rows(), BUCKETS, lambda: self.sizes, self.head, self.pond.log.read)
            view.name = f"view-{number}"  # type: ignore[misc]
            self.pond.follow(view)
        pond, address = self.pond, address_of(self.folder)
        truth = Truth(address, self.folder, "local", pond.log, pond.manifests, pond.manifest)
        runner = SimpleNamespace(wait=lambda _n, _seconds: True)
        followers: Any = SimpleNamespace(store=self.store, attached=SimpleNamespace(served=self.sizes), runner=runner)
        self.moving = RowMover(truth, followers, "lmdb")

    def rows(self) -> RowsReader:
        return RowsReader(section_reader(Files(self.folder)))

    def head(self) -> Any:
        return load(self.pond.log, self.pond.manifests)

    def epoch(self) -> bool:
        """One more, if there is one."""
        rows = next(self.epochs, None)
        if rows is not None:
            self.pond.epoch({STREAM.name: [table_of(part) for part in self.deal(rows)]})
        return rows is not None

    def reached(self, step: str) -> None:
        """Between two steps of a move epochs come, stores fail and processes die."""
        self.steps.append(step)
        if not self.acts:
            return
        fate = self.dice.random()
        if fate < 0.4:
            self.epoch()
        elif fate < 0.5:
            raise Killed
        elif fate < 0.55:
            raise StoreError("It failed.", "Try again.")

    def move(self, buckets: Sequence[int], to: str) -> None:
        """See `Pond.move`."""

        def switch() -> int:
            n = self.pond.change(move(KnownPond(self.pond.spec, self.pond.manifest), buckets, to))
            routed(self.store, self.pond.spec)
            return n

        self.moving.move(buckets, to, switch)

    def seen(self, store: BucketStore) -> dict[str, list[tuple[int, list[tuple[str, bytes]]]]]:
        """What a reader finds: for each query and bucket the record and the rows."""
        return {
            name: [(one.n, sorted(zip(one.keys, one.documents, strict=True))) for one in scan(store, name, BUCKETS)]
            for name in self.names
        }

    def check(self, reader: ShardedStore) -> None:
        assert self.seen(reader) == self.seen(self.stays)
        places = places_in(self.pond.spec)
        for place, store in self.stores.items():
            if place in {*places, ""}:
                there = [bucket for bucket, n in enumerate(store.applied_many(range(BUCKETS))) if n >= 0]
                assert {*there} >= {bucket for bucket, of in enumerate(places) if of == place}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Bench]]:
    made: list[Bench] = []

    def make(seed: int) -> Bench:
        made.append(Bench(tmp_path / str(seed), seed, monkeypatch))
        return made[-1]

    yield make
    for one in made:
        for store in one.stores.values():
            store.close()


def test_readers_see_what_a_view_that_stays_holds(bench: Callable[[int], Bench]) -> None:
    steps, done = set[str](), 0
    for seed in range(4):
        run = bench(seed)
        reader = ShardedStore(run.stores.__getitem__, places_in(run.pond.spec), lambda run=run: at(run))  # type: ignore[misc]
        while run.epoch():
            buckets, to = run.dice.sample(range(BUCKETS), run.dice.randint(1, 5)), run.dice.choice(PLACES)
            before = places_in(run.pond.spec)
            try:
                run.move(buckets, to)
            except Killed:
                run.start()
            except (ChangeRefused, StoreError):
                pass
            after = places_in(run.pond.spec)
            moved = tuple(to if bucket in buckets else place for bucket, place in enumerate(before))
            assert after in (before, moved), "wholly there, or not at all"
            done += after != before
            run.pond.change(nothing(run))  # a record, by which the view notices what it lacks
            run.check(run.store)
            if run.dice.random() < 0.5:
                sweep(run.store)
                run.check(reader)
        steps |= {*run.steps}
    assert done > 12 and len(steps) == 5


def at(run: Bench) -> tuple[str, ...]:
    return places_in(in_force(run.head()))


def nothing(run: Bench) -> Any:
    """A change of nothing that is served."""
    from millpond.model.expressions import literal
    from millpond.reconfigure.changes import SetParameter

    return SetParameter("x", literal(run.turn, "bigint"))


def test_what_cannot_be_moved_is_refused(bench: Callable[[int], Bench]) -> None:
    run = bench(1)
    run.acts = False
    for buckets, to, what in (([0], "", "at own already"), ([BUCKETS], "lmdb:b", "buckets 0 to 7"),
                              ([0], "redis://ann:secret@host", "has a user or a password")):  # fmt: skip
        with pytest.raises(ChangeRefused, match=what):
            move(KnownPond(run.pond.spec, run.pond.manifest), buckets, to)
    assert sorted(run.moving.buckets("2-4", run.pond.spec)) == [2, 3, 4]
    assert len(run.moving.buckets("own", run.pond.spec)) == BUCKETS
    with pytest.raises(ChangeRefused, match="names no bucket"):
        run.moving.buckets("elsewhere", run.pond.spec)
    run.epoch()
    run.move([1, 2], "lmdb:b")
    assert run.stores["lmdb:b"].applied(1) == run.pond.manifest.n and run.stores[""].applied(1) == -1
    assert run.moving.price([1, 3], "lmdb:b").buckets == 1
    run.moving.close()
    with pytest.raises(StoreError, match="closed"):
        run.move([3], "lmdb:b")
    assert run.stores["lmdb:b"].applied(3) == -1
