"""The log on every folder that needs no Spark: one winner, whole records, a tail found without listing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import LocalStore

from kit.inputs.folder_suite import FolderSuite
from kit.simulator.simulated_world import MemoryFolder
from millpond.errors import CorruptError, PlaceError
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.locations.object_store import StoreObjects
from millpond.log.locations.objects import ObjectFolder
from millpond.log.port import Folder, Log, Won, numbered_name

FOLDERS: dict[str, Callable[[Path], Folder]] = {
    "local": lambda path: LocalFolder(path / "log"),
    "object store": lambda path: ObjectFolder(StoreObjects(LocalStore(path), "pond/log", f"file://{path}/pond/log")),
    "memory": lambda path: MemoryFolder("memory:log"),
}


@pytest.fixture(params=sorted(FOLDERS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return FOLDERS[request.param](tmp_path)


class UnlistedFolder(MemoryFolder):
    """A folder that counts probes, and must not be listed."""

    def __init__(self) -> None:
        super().__init__("memory:unlisted")
        self.probes = 0

    def exists(self, name: str) -> bool:
        self.probes += 1
        return super().exists(name)

    def names(self, after: str = "") -> list[str]:
        raise AssertionError("the normal path never lists the folder")


class TestFolders(FolderSuite):
    """Every folder without a server."""


def test_of_two_processes_exactly_one_wins(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from millpond.log.locations.local_folder import LocalFolder; from millpond.log.port import Log, Won\n"
        "log = Log(LocalFolder(Path(sys.argv[1]))); sys.stdin.readline()\n"
        "print(sum(log.append(n, sys.argv[2].encode()) == Won() for n in range(100)))"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "log"), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("first", "second")
    ]
    wins = [int(racer.communicate("go\n", timeout=60)[0]) for racer in racers]
    assert sum(wins) == 100
    log = Log(LocalFolder(tmp_path / "log"))
    held = [log.read(n) for n in range(100)]
    assert wins == [held.count(b"first"), held.count(b"second")]


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 8, 9, 40])
@pytest.mark.parametrize("hint", [None, b"", b"garbage", b"-3", b"0", b"5", b"39", b"40", b"999999", b"9" * 21])
def test_the_tail_is_found_whatever_the_hint_says(folder: Folder, length: int, hint: bytes | None) -> None:
    log = Log(folder)
    for n in range(length):
        log.append(n, b"x")
    if hint is not None:
        folder.replace("_last", hint)
    expected = length - 1 if length else None
    assert log.last() == expected
    assert log.last(hint=0) == expected
    assert log.last(hint=length + 3) == expected


@given(length=st.integers(1, 2_000), behind=st.integers(0, 2_000))
def test_with_a_good_hint_the_tail_costs_few_probes_and_no_listing(length: int, behind: int) -> None:
    folder = UnlistedFolder()
    log = Log(folder)
    for n in range(length):
        folder.files[numbered_name(n)] = b"x"
    hint = max(0, length - 1 - behind)
    log.write_hint(hint)
    assert log.last() == length - 1
    assert folder.probes <= 3 + 2 * (length - hint).bit_length()


def test_a_record_that_exists_but_cannot_be_read_is_corrupt() -> None:
    class Unreadable(MemoryFolder):
        def read(self, name: str) -> bytes | None:
            return None

    log = Log(Unreadable("memory:unreadable"))
    log.append(0, b"x")
    with pytest.raises(CorruptError, match="Record 0 in memory:unreadable"):
        log.append(0, b"y")


def test_a_number_is_never_negative() -> None:
    with pytest.raises(ValueError, match="negative"):
        numbered_name(-1)


def test_a_local_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PlaceError, match=r"\[MP-PLACE\] .*file/log"):
        LocalFolder(tmp_path / "file" / "log")


def test_a_temporary_file_left_by_a_crash_is_no_record(tmp_path: Path) -> None:
    log = Log(LocalFolder(tmp_path))
    (tmp_path / ".tmp-crashed-0").write_bytes(b"half a rec")
    assert log.last() is None
    assert log.append(0, b"whole") == Won()
    assert log.last() == 0


def test_an_unreachable_object_store_is_a_place_error(tmp_path: Path) -> None:
    folder = ObjectFolder(StoreObjects(LocalStore(tmp_path), "log", "file:///log"))
    (tmp_path / "log").write_text("in the way")
    with pytest.raises(PlaceError, match="file:///log"):
        folder.create("name", b"x")
