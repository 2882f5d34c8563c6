"""Pruning deletes exactly what nothing can need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from millpond.followers.prune import PruneFollower
from millpond.followers.record_rows import RowsGone
from millpond.log.drop_bodies import HINT_NAME, Bodies
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.locations.object_store import StoreObjects
from millpond.log.records import decode
from millpond.state.ports.files import Files
from millpond.state.ports.object_files import HostCopies, ObjectFiles

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
    files, log = Files(pond.path), LocalFolder(pond.path / "log")
    return PruneFollower(files, log, lambda: world.lowest, grace, start=start, clock=lambda: world.us)


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


def test_objects_are_pruned_as_files_are_and_listed_less_often(filled: Any, world: World, tmp_path: Path) -> None:
    objects, log = StoreObjects(MemoryStore(), "pond", "s3://bucket/pond"), LocalFolder(tmp_path / "log")
    for path in filled.path.glob("delta/*/*"):
        objects.put(f"delta/{path.parent.name}/{path.name}", path.read_bytes())
    stored = ObjectFiles(HostCopies(tmp_path / "copies", 1000), objects, "a")
    there = PruneFollower(
        stored, log, lambda: world.lowest, 10, start=3, sweep_seconds=120, clock=lambda: world.us
    )  # fmt: skip
    here = pruner(filled, world)
    for seconds in (0, 10, 20):
        world.us = seconds * SECOND
        assert there.sweep(filled.at[3]) == here.sweep(filled.at[3])
        left = sorted(f"{n}/{name.rpartition('/')[2]}" for name, n in stored.written())
        assert left == files(filled)
    assert there.deleted_files == here.deleted_files == 4
    swept: list[int] = []
    there.sweep = lambda manifest: swept.append(manifest.n) or 0  # type: ignore[method-assign, func-returns-value]
    for seconds in range(0, 300, 10):
        world.us = seconds * SECOND
        there._sweep_if_due(filled.at[3])
    assert len(swept) == 3


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
        filled.feed(follower, follower.cursor().n + 1, follower.cursor().n + 1)
    filled.feed(follower, 0)
    assert follower.cursor().n == 3
    assert sweeps == [0, 1, 2], "as of the newest record that it has seen when it is time"


def test_nothing_to_prune(pond: Any, world: World, tmp_path: Path) -> None:
    pond.claim()
    assert pruner(pond, world, 0).sweep(pond.at[0]) == 0


def size_of_log(pond: Any) -> int:
    return sum(path.stat().st_size for path in (pond.path / "log").glob("0*"))


def test_bodies_of_records_go_and_records_stay(pond: Any, make_row: Any, world: World) -> None:
    rows = [make_row(f"c-{i}", float(i)) for i in range(100)]
    pond.claim()
    for _ in range(3):
        pond.epoch({"q": rows}, inline=True)
    pond.epoch(retired=["1/0/0", "3/0/0"])
    follower, before = pruner(pond, world, start=4), size_of_log(pond)
    world.lowest = 2
    follower.sweep(pond.at[4])
    world.us = 10 * SECOND - 1
    follower.sweep(pond.at[4])
    assert size_of_log(pond) == before
    world.us += 1
    follower.sweep(pond.at[4])
    assert size_of_log(pond) == before - follower.deleted_bytes < before
    world.lowest = 3
    follower.sweep(pond.at[4])
    world.us += 10 * SECOND
    follower.sweep(pond.at[4])
    # 2 is live; what is folded, and vouched for, is as before
    assert [decode(pond.log.read(n)).body is None for n in range(5)] == [False, True, False, True, False]
    assert pond.head() == pond.at[4]
    with pytest.raises(RowsGone):
        pond.rows.table(decode(pond.log.read(1)), "q")
    assert pond.rows.table(decode(pond.log.read(2)), "q").num_rows == 100


def test_a_driver_that_comes_later_looks_at_few_records(
    pond: Any, make_row: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.log.drop_bodies._RECORDS_PER_HINT", 8)
    monkeypatch.setattr("millpond.followers.prune._BODIES_PER_SWEEP", 5)
    pond.claim()
    for n in range(1, 13):
        pond.epoch({"q": [make_row("a", float(n))]}, inline=True, retired=[f"{n - 1}/0/0"] if n > 2 else [])
    world.lowest, folder = 11, LocalFolder(pond.path / "log")
    follower = pruner(pond, world, start=12)
    went = []
    for _ in range(5):
        before = follower.deleted_bytes
        follower.sweep(pond.at[12])
        went.append(follower.deleted_bytes > before)
        world.us += 10 * SECOND
    assert went == [False, True, True, True, False], "a few at once: 0 and 2 to 11"
    full = [n for n in range(1, 13) if decode(pond.log.read(n)).body is not None]
    assert full == [1, 12], "1 is live, and 12 is not followed"
    left = sorted(Bodies(folder).upto(12))
    assert {1, 12} <= {*left} and len(left) < 13
    folder.replace(HINT_NAME, b"damaged")
    assert sorted(Bodies(folder).upto(12)) == [*range(13)]


def test_a_quiet_pond_is_swept_when_its_cursor_is_read(filled: Any, world: World) -> None:
    follower = pruner(filled, world, start=2)
    filled.feed(follower)
    assert "1/0-w-0.arrow" in files(filled)
    for _ in range(5):
        world.us += 5 * SECOND
        assert follower.cursor().n == 3
    assert files(filled) == ["2/0-w-0.arrow", "4/0-w-99.arrow"]
