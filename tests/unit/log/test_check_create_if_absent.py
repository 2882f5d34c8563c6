"""The race test passes on folders that create atomically, and names those that do not."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier, Lock

import pytest

from kit.simulator.simulated_world import MemoryFolder
from millpond.errors import PlaceError
from millpond.log.check_create_if_absent import check_create_if_absent
from millpond.log.locations.local_folder import LocalFolder


class Overwriting(MemoryFolder):
    """As `pyarrow.fs` does it: the last writer replaces the first, and all believe that they won."""

    def create(self, name: str, data: bytes) -> bool:
        self.files[name] = data
        return True


class LooksThenWrites(MemoryFolder):
    """As in a naive adapter: the file does not exist yet, so write it; all four contenders look before one writes."""

    def __init__(self) -> None:
        super().__init__("memory:bad")
        self._looked = Barrier(4)

    def create(self, name: str, data: bytes) -> bool:
        if name in self.files:
            return False
        self._looked.wait(60)
        self.files[name] = data
        return True


class Forgetful(MemoryFolder):
    """Elects a winner, and keeps what a loser wrote."""

    def __init__(self) -> None:
        super().__init__("memory:bad")
        self._lock = Lock()

    def create(self, name: str, data: bytes) -> bool:
        with self._lock:
            won = name not in self.files
            self.files[name] = data
            return won


class Refusing(MemoryFolder):
    """Lets nobody create anything."""

    def create(self, name: str, data: bytes) -> bool:
        return False


class LosingReplies(MemoryFolder):
    """Creates a file, and the repeated request finds it there, because the first reply was lost."""

    def create(self, name: str, data: bytes) -> bool:
        self.files.setdefault(name, data)
        return False


def test_a_lost_reply_is_no_broken_promise() -> None:
    folder = LosingReplies("memory:slow")
    check_create_if_absent(folder, "token")
    assert folder.files == {}


def test_a_local_folder_passes_and_is_left_empty(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    check_create_if_absent(folder, "token")
    assert folder.names() == []


@pytest.mark.parametrize(
    "folder",
    [Overwriting("memory:bad"), LooksThenWrites(), Forgetful(), Refusing("memory:bad")],
    ids=lambda folder: type(folder).__name__,
)
def test_a_folder_that_breaks_the_promise_is_named_and_cleaned(folder: MemoryFolder) -> None:
    with pytest.raises(PlaceError, match="memory:bad"):
        check_create_if_absent(folder, "token")
    assert folder.files == {}
