"""Buckets move to the shards that the log names; another plan, another driver or a refusal ends or delays the move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kit.inputs.cases import STREAM, Menu, random_case
from kit.judges.answers import Run
from kit.naive.queries.windows import answer
from kit.servers.servers import until
from kit.simulator.changing_pond import ChangingPond
from millpond.errors import ChangeRefused, StoreError
from millpond.followers.view.move_shards import BUCKETS_AT_ONCE, ShardMover
from millpond.followers.view.shard_watch import SlotsWatch
from millpond.placement.alignment import placement_of
from millpond.placement.moves import BucketMap
from millpond.placement.run_lengths import runs_of
from millpond.placement.shards import assign_buckets
from millpond.placement.slots import even_owners
from millpond.reconfigure.placement_changes import resharded, scale
from millpond.reconfigure.validate import KnownPond
from millpond.runtime.epoch import maps
from millpond.state.backends.memory import MemoryStore
from millpond.state.ports.elastic import ElasticStore, elastic
from millpond.state.ports.sharded import ShardedStore
from millpond.testing.compare import difference

BUCKETS = 3 * BUCKETS_AT_ONCE


class Elastic(MemoryStore, ElasticStore):
    """A store in memory that claims to have servers; `before_move` is called before each move."""

    def __init__(self) -> None:
        super().__init__()
        self.on, self.finished, self.broken = ["a"] * BUCKETS, 0, ""
        self.before_move: Callable[[], None] = lambda: None

    def servers(self) -> list[str]:
        return ["a", "b", "c"]

    def check_server(self, name: str) -> None:
        if name == self.broken:
            raise StoreError(f"{name} evicts rows.", "Set it.")

    def shards(self, buckets: Sequence[int]) -> list[str]:  # type: ignore[override]
        return [self.on[bucket] for bucket in buckets]

    def move_shard(self, buckets: Sequence[int], to: str) -> None:
        self.before_move()
        for bucket in buckets:
            self.on[bucket] = to

    def unfinished(self) -> int:
        return 0

    def finish(self) -> None:
        self.finished += 1


class Bench:
    """A mover that records where its plans have arrived; `leads` as a driver's claim."""

    def __init__(self) -> None:
        self.store, self.watch = Elastic(), SlotsWatch(BUCKETS, every_us=0)
        self.arrived: list[tuple[str, ...]] = []
        self.leads = True
        whole = ShardedStore(lambda _place: self.store, ("",) * BUCKETS)
        self.mover = ShardMover(whole, self.watch, lambda: self.leads, self.arrive)

    def arrive(self, target: Sequence[str]) -> None:
        self.arrived.append(tuple(target))
        self.mover.aim(())  # as the record of the arrival does


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.mover.close()


def even_shards(*shards: str) -> tuple[str, ...]:
    return tuple(shard for shard in shards for _ in range(BUCKETS // len(shards)))


def runs(*shards: str) -> tuple[tuple[str, int], ...]:
    return tuple(runs_of(even_shards(*shards)))


def test_buckets_arrive_and_owners_do_not_follow_slots_on_their_way(bench: Bench) -> None:
    now = BucketMap(0, (0,) * (BUCKETS // 2) + (1,) * (BUCKETS // 2), 2)
    seen = []

    def look() -> None:
        bench.watch.look(bench.store)
        bench.watch.look(bench.store)
        seen.append(bench.watch.wanted(now))

    bench.store.before_move = look
    bench.mover.aim(runs("a", "b"))
    until(lambda: bench.arrived, "the buckets arrive")
    assert bench.store.on == ["a"] * (BUCKETS // 2) + ["b"] * (BUCKETS // 2)
    assert len(seen) == 4 and {*seen} == {None} and bench.store.finished == 1
    until(lambda: bench.mover.note is None, "the move has ended")
    assert bench.watch.steady == tuple(bench.store.on) and bench.watch.planned == ()
    look()
    assert bench.watch.servers == ("a", "b", "c") and bench.watch.steady == tuple(bench.store.on)


def test_another_plan_changes_the_direction_at_once(bench: Bench) -> None:
    def turn() -> None:
        bench.store.before_move = lambda: None
        bench.mover.aim(runs("c"))

    bench.store.before_move = turn
    bench.mover.aim(runs("a", "b", "b"))
    until(lambda: bench.arrived, "the buckets arrive")
    assert bench.store.on == ["c"] * BUCKETS and bench.arrived == [("c",) * BUCKETS]


def test_a_cleared_plan_moves_no_further_slots(bench: Bench) -> None:
    bench.store.before_move = lambda: bench.mover.aim(())
    bench.mover.aim(runs("b"))
    until(lambda: bench.mover.note is None and bench.store.finished, "the move has ended")
    assert bench.store.on == ["b"] * BUCKETS_AT_ONCE + ["a"] * (BUCKETS - BUCKETS_AT_ONCE) and not bench.arrived


def test_a_refusal_is_reported_and_tried_again(bench: Bench) -> None:
    bench.store.broken = "b"
    bench.mover.aim(runs("a", "b"))
    until(lambda: "b evicts rows" in str(bench.mover.note), "the reason is shown")
    assert bench.store.on == ["a"] * BUCKETS, "nothing moves to a server that does not fit"
    bench.store.broken = ""
    bench.mover.aim(runs("b"))  # another plan does not wait for the next try
    until(lambda: bench.arrived, "the buckets arrive")


def test_errors_of_any_kind_are_shown_and_the_move_continues(bench: Bench) -> None:
    def fail() -> None:
        raise KeyError("no such slot")

    bench.store.before_move = fail
    bench.mover.aim(runs("b"))
    until(lambda: "no such slot" in str(bench.mover.note), "the reason is shown")
    bench.store.before_move = lambda: None
    bench.mover.aim(runs("c"))
    until(lambda: bench.arrived, "the buckets arrive")
    assert bench.store.on == ["c"] * BUCKETS


def test_a_driver_that_was_overtaken_moves_nothing_more(bench: Bench) -> None:
    bench.store.before_move = lambda: setattr(bench, "leads", False)
    bench.mover.aim(runs("b"))
    until(lambda: bench.mover.note is None and bench.store.finished, "the thread has ended")
    assert bench.store.on.count("b") == BUCKETS_AT_ONCE and not bench.arrived


def test_an_arrival_that_came_too_late_is_no_failure(bench: Bench) -> None:
    def refused(_target: Sequence[str]) -> None:
        bench.mover.aim(())
        raise ChangeRefused("No hash slots are moved there.", "Nothing is left to do.")

    mover = bench.mover = ShardMover(bench.store, bench.watch, lambda: True, refused)
    mover.aim(runs("c"))
    until(lambda: mover.note is None and bench.store.finished, "the move has ended")
    assert bench.store.on == ["c"] * BUCKETS


def test_owners_follow_slots_although_servers_are_not_shown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_store: Elastic) -> list[str]:
        raise StoreError("This user has no permissions.", "Grant them.")

    monkeypatch.setattr(Elastic, "servers", refuse)
    for _ in range(2):
        bench.watch.look(bench.store)
    assert bench.watch.servers == () and bench.watch.steady == ("a",) * BUCKETS


@pytest.mark.parametrize("killed", ["before the plan", "at once", "between slots", "before the arrival", "after it"])
def test_a_plan_whose_driver_is_killed_is_carried_out_by_the_next_one(killed: str, tmp_path: Path) -> None:
    """A shard and an instance are added in one plan: the next driver finds in the log whether it is due."""
    case, store = random_case(3, 40, 4, menu=Menu(raising=False, moments=False)), Elastic()
    queries = case.queries[:3]
    store.on = list(even_shards("a", "b"))
    run = Run(tmp_path, queries, 2, BUCKETS)
    epochs = iter(case.epochs)

    def carry_out(portions: int) -> bool:
        arrived, left = list[Sequence[str]](), [False] + [True] * portions
        mover = ShardMover(store, None, lambda: bool(left) and left.pop(), arrived.append)
        mover.aim(run.pond.spec.effects.shards)
        until(lambda: bool(arrived) or not left, "it ends")
        mover.aim(())
        mover.close()
        return bool(arrived)

    def arrive() -> None:
        run.pond.change(resharded(KnownPond(run.pond.spec, run.pond.manifest), store.on))

    run.epoch([next(epochs)])
    target = assign_buckets(store.on, ("a", "b", "c"))
    if killed != "before the plan":
        run.pond.change(scale(KnownPond(run.pond.spec, run.pond.manifest), 3, store.on, target=target))
        run.epoch([next(epochs)])
    if killed == "between slots":
        assert not carry_out(1) and set(store.on) != set(target)
    elif killed.endswith("arrival") or killed == "after it":
        assert carry_out(BUCKETS)
    if killed == "after it":
        arrive()

    followers = [follower for _, follower in run.pond._followers]
    run.pond = ChangingPond(tmp_path, [STREAM], None, followers=followers, token="next")
    due = killed in ("at once", "between slots", "before the arrival")
    assert bool(run.pond.spec.effects.shards) == due
    if due:
        assert carry_out(BUCKETS)
        arrive()
    assert not run.pond.spec.effects.shards
    for rows in epochs:
        run.epoch([rows])
    run.pond.drain()
    if killed == "before the plan":
        assert store.on == list(even_shards("a", "b")) and run.pond.setting.owners == even_owners(BUCKETS, 2)
    else:
        assert store.on == list(target)
        assert placement_of(maps(run.pond.setting, run.pond.manifest)[1].owners, store.on).aligned == 1
    found = run.answers()
    for query in queries:
        assert difference(answer(query, case.epochs, drained=True), found.rows[query.name]) is None


def test_rows_in_several_stores_do_not_move_between_shards() -> None:
    several = ShardedStore(lambda _place: Elastic(), ("", "env:OTHER"))
    assert elastic(several) is None and elastic(MemoryStore()) is None
    mover = ShardMover(several, None, lambda: True, lambda _target: None)
    mover.aim((("a", 2),))
    until(lambda: "no shards that can be moved" in str(mover.note), "the reason is shown")
    mover.close()
