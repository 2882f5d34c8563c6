"""Pruning deletes what nothing can need, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millpond.runtime.followers.prune import PruneFollower

SECOND = 1_000_000


class World:
    """The other followers' lowest cursor and the clock, as the test wants them."""

    def __init__(self) -> None:
        self.lowest = 100
        self.us = 0


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def filled(pond: Any, make_row: Any) -> Any:
    """Records: 0 claim, 1 rows (retired by 3), 2 rows, 3 none; and attempts that never counted in 1, 2 and 4."""
    pond.claim()
    pond.epoch({"q": [make_row("a", 1.0)]})
    pond.epoch({"q": [make_row("a", 2.0)]})
    pond.epoch(retired=["1/0/0"])
    for n in (1, 2, 4):
        stray = pond.path / f"delta/{n:020d}/0-w-99.arrow"
        stray.parent.mkdir(parents=True, exist_ok=True)
        stray.write_bytes(b"stray")
    (pond.path / "delta/notes").mkdir()
    return pond


def pruner(pond: Any, world: World, grace: float = 10, start: int = 3) -> PruneFollower:
    return PruneFollower(pond.path, lambda: world.lowest, grace, start=start, clock=lambda: world.us)


def files(pond: Any) -> list[str]:
    return sorted(f"{int(path.parent.name)}/{path.name}" for path in pond.path.glob("delta/*/*"))


ALL = ["1/0-w-0.arrow", "1/0-w-99.arrow", "2/0-w-0.arrow", "2/0-w-99.arrow", "4/0-w-99.arrow"]


def test_after_the_grace_only(filled: Any, world: World) -> None:
    follower = pruner(filled, world)
    # Record 3 itself made the empty delta of an instance without rows.
    before = files(filled)
    assert set(ALL) <= set(before)
    follower.sweep(filled.at[3])
    world.us = 10 * SECOND - 1
    follower.sweep(filled.at[3])
    assert files(filled) == before
    world.us += 1
    follower.sweep(filled.at[3])
    assert files(filled) == ["2/0-w-0.arrow", "4/0-w-99.arrow"]
    assert not (filled.path / f"delta/{1:020d}").exists()
    assert (filled.path / "delta/notes").exists()
    assert (follower.deleted_files, follower.deleted_bytes > 0) == (4, True)


def test_never_what_a_follower_may_still_read(filled: Any, world: World) -> None:
    follower = pruner(filled, world, grace=0)
    world.lowest = 0
    assert follower.sweep(filled.at[3]) == 0
    world.lowest = 1
    assert follower.sweep(filled.at[3]) == 2
    assert files(filled)[0].startswith("2/")


def test_never_an_attempt_of_an_uncommitted_record(filled: Any, world: World) -> None:
    follower = pruner(filled, world, grace=0)
    for _ in range(3):
        world.us += SECOND
        follower.sweep(filled.at[3])
    assert "4/0-w-99.arrow" in files(filled)
    filled.epoch()
    follower.sweep(filled.at[4])
    assert "4/0-w-99.arrow" not in files(filled)


def test_as_a_follower_it_sweeps_now_and_then(filled: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps: list[int] = []
    follower = pruner(filled, world, grace=8, start=-1)
    monkeypatch.setattr(follower, "sweep", lambda manifest: sweeps.append(manifest.n))
    for second in (0, 1, 2, 5):
        world.us = second * SECOND
        filled.feed(follower, follower.cursor() + 1, follower.cursor() + 1)
    filled.feed(follower, 0)
    assert follower.cursor() == 3
    assert sweeps == [0, 2, 3]


def test_nothing_to_prune(pond: Any, world: World, tmp_path: Path) -> None:
    pond.claim()
    assert pruner(pond, world, 0).sweep(pond.at[0]) == 0
