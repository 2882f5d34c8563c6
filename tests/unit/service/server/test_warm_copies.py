"""A standby has copies of the live state that fits, and of nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from obstore.store import MemoryStore

from kit.servers.servers import until
from millpond.control.wiring.truth import Truth
from millpond.errors import CorruptError
from millpond.log.locations.address import address_of
from millpond.log.locations.object_store import StoreObjects
from millpond.log.locations.objects import ObjectFolder
from millpond.log.manifest import LiveSection, Manifest, Manifests
from millpond.log.port import Log
from millpond.log.records import SectionKind
from millpond.service.server import warm_copies
from millpond.service.server.warm_copies import WarmCopies
from millpond.state.ports.object_files import HostCopies, ObjectFiles

SIZE = 100


def section(n: int, kind: SectionKind = "segment", *, inline: bool = False) -> LiveSection:
    file = None if inline else f"delta/{n:020d}/0-a-1.arrow"
    return LiveSection(f"{n}", n, 0, kind, "g", 0, SIZE, 1, "digest", file)


class World:
    """The log of a pond in a store, as a standby with room for `limit` bytes sees it."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.objects = StoreObjects(MemoryStore(), "pond", "s3://bucket/pond")
        self.copies, self.manifest = HostCopies(folder / "copies", limit), Manifest()
        self.warm = WarmCopies(self.truth)

    def truth(self) -> Truth:
        class Opened(Truth):
            def files(_self) -> ObjectFiles:
                return ObjectFiles(self.copies, self.objects, "a")

        log = ObjectFolder(self.objects)
        return Opened(address_of("s3://bucket/pond"), Path(), "pond", Log(log), Manifests(log), self.manifest)

    def live(self, *sections: LiveSection, written: bool = True) -> None:
        for one in sections:
            if one.file is not None and written:
                self.objects.put(one.file, bytes(SIZE))
        self.manifest = Manifest(sections={str(place): one for place, one in enumerate(sections)})

    def kept(self) -> list[int]:
        return sorted(int(path.parent.name) for path in self.copies.folder.rglob("*.arrow"))


def test_the_live_state_is_copied_once_and_rows_are_not(tmp_path: Path) -> None:
    world = World(tmp_path, 1000)
    world.live(section(1), section(2, "keys"), section(3, "rows"), section(4, inline=True))
    world.warm.look()
    assert world.kept() == [1, 2]
    world.copies.path(section(1).file or "").unlink()
    world.warm.look()
    assert world.kept() == [2], "what was deleted to make room is not copied again"
    world.live(section(2, "keys"), section(5))
    world.warm.look()
    assert world.kept() == [2, 5]


def test_the_oldest_files_are_copied_as_far_as_they_take_half_of_the_room(tmp_path: Path) -> None:
    world = World(tmp_path, 5 * SIZE)
    world.live(section(4), section(2), section(3))
    world.warm.look()
    assert world.kept() == [2, 3]
    world.live(section(4), section(3), section(5))
    world.warm.look()
    assert {3, 4} <= {*world.kept()} and 5 not in world.kept()
    world.live(replace(section(6), size=3 * SIZE), section(7), written=False)
    world.objects.put(section(7).file or "", bytes(SIZE))
    world.warm.look()
    assert 7 in world.kept() and 6 not in world.kept(), "what is too large keeps out nothing else"


def test_a_file_that_was_pruned_meanwhile_is_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, 1000)
    world.live(section(1), written=False)
    with pytest.raises(CorruptError):
        world.warm.look()
    monkeypatch.setattr(warm_copies, "LOOK_SECONDS", 0.01)
    wanted, looks = [False], [0]

    def standing_by() -> bool:
        looks[0] += 1
        return wanted[0]

    with world.warm.running(standing_by):
        until(lambda: looks[0] > 2, "looks")
        world.live(section(2))
        assert world.kept() == []
        wanted[0] = True
        until(lambda: world.kept() == [2], "a copy")


def test_no_error_ends_the_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, 1000)
    world.live(section(1))
    monkeypatch.setattr(warm_copies, "LOOK_SECONDS", 0.01)
    errors = [OSError("No space left on device")]

    def standing_by() -> bool:
        if errors:
            raise errors.pop()
        return True

    with world.warm.running(standing_by):
        until(lambda: world.kept() == [1], "a copy")
