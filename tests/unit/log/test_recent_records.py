"""Recent records are requested once, and everything else passes through."""

from __future__ import annotations

import pytest

from kit.inputs.folder_suite import FolderSuite
from kit.simulator.simulated_world import MemoryFolder
from millpond.log.port import Folder, Log, Lost, Won, numbered_name
from millpond.log.recent_records import RecentRecords


class CountingFolder(MemoryFolder):
    """A folder in memory that counts what is read."""

    def __init__(self) -> None:
        super().__init__("memory")
        self.reads = list[str]()

    def read(self, name: str) -> bytes | None:
        self.reads.append(name)
        return super().read(name)


class TestRecentRecords(FolderSuite):
    """The suite of all folders."""

    @pytest.fixture
    def folder(self) -> Folder:
        return RecentRecords(MemoryFolder("memory"))


def test_a_record_is_requested_once() -> None:
    below = CountingFolder()
    log, other = Log(RecentRecords(below)), Log(below)
    assert log.append(0, b"zero") == Won()
    assert log.read(0) == b"zero" and not below.reads, "what this process created is not read"
    assert log.read(1) is None and log.read(1) is None and len(below.reads) == 2, "a missing record may come"
    assert other.append(1, b"one") == Won()
    assert log.append(1, b"mine") == Lost(b"one")
    below.reads.clear()
    assert log.read(1) == b"one" and not below.reads
    log.write_hint(1)
    assert log.last() == 1


def test_copies_end_with_the_given_record_and_replace_nothing() -> None:
    old, restored = RecentRecords(MemoryFolder("old")), CountingFolder()
    for n in range(4):
        Log(old).append(n, b"old")
    for n, data in enumerate((b"old", b"old", b"new", b"new")):
        Log(restored).append(n, data)
    new = RecentRecords(restored)
    log = Log(new)
    assert log.read(2) == b"new"
    new.copy_from(old, 1)
    assert [log.read(n) for n in range(4)] == [b"old", b"old", b"new", b"new"]
    assert restored.reads == [numbered_name(2), numbered_name(3)]
    new.copy_from(old, 3)
    assert [log.read(n) for n in (2, 3)] == [b"new", b"new"]


def test_what_this_process_creates_is_reported() -> None:
    created = list[tuple[str, bytes]]()
    log = Log(RecentRecords(MemoryFolder("memory"), lambda name, data: created.append((name, data))))
    log.append(0, b"zero")
    log.append(0, b"again")
    log.write_hint(0)
    log.read(0)
    assert created == [(numbered_name(0), b"zero")]


def test_only_so_many_are_kept() -> None:
    below = CountingFolder()
    log = Log(RecentRecords(below))
    for n in range(300):
        log.append(n, bytes(1000))
    log.read(0)
    log.read(299)
    assert below.reads == [numbered_name(0)]
    for n in range(300, 310):
        log.append(n, bytes(20 << 20))
    below.reads.clear()
    log.read(309)
    log.read(300)
    assert below.reads == [numbered_name(300)]
