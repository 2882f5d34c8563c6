"""The files of a pond in an object store: copies are complete, verified, few, and made again when they are missing."""

from __future__ import annotations

import errno
import os
import pickle
import stat
import tempfile
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from millpond.errors import CorruptError, DiskFullError, HostError
from millpond.log.locations.address import address_of
from millpond.log.locations.object_store import StoreObjects
from millpond.log.locations.objects import Objects
from millpond.log.records import Receipt
from millpond.runtime.task.file_sync import check_objects
from millpond.state.ports.files import Files
from millpond.state.ports.object_files import HostCopies, ObjectFiles, files_of, folder_on_host, keep_record

ONE = "delta/00000000000000000001/0-a-1.arrow"


def name(n: int) -> str:
    return f"delta/{n:020d}/0-a-1.arrow"


def on_host(folder: Path, objects: Objects, limit: int = 1 << 20, run: str = "a") -> ObjectFiles:
    return ObjectFiles(HostCopies(folder, limit), objects, run)


@pytest.fixture
def objects() -> Objects:
    return StoreObjects(MemoryStore(), "pond", "s3://bucket/pond")


def test_what_one_host_writes_another_one_reads(tmp_path: Path, objects: Objects) -> None:
    on_host(tmp_path / "a", objects).write(ONE, [b"abc", b"def"])
    there = on_host(tmp_path / "b", objects)
    there.fetch([ONE, ONE])
    objects.remove([ONE])
    assert bytes(there.read(ONE, 1, 3)) == b"bcd", "from the copy"
    assert bytes(on_host(tmp_path / "a", objects).read(ONE, 0, 6)) == b"abcdef", "the writer keeps a copy, too"


def test_a_handed_over_file_has_no_local_copy(tmp_path: Path, objects: Objects) -> None:
    on_host(tmp_path, objects).hand_over(ONE, [b"abc"])
    assert not [*tmp_path.rglob("*.arrow")] and objects.get(ONE) == b"abc"


def test_a_missing_object_is_named(tmp_path: Path, objects: Objects) -> None:
    files = on_host(tmp_path, objects)
    with pytest.raises(CorruptError, match=f"s3://bucket/pond/{ONE} does not exist"):
        files.fetch([ONE])
    with pytest.raises(CorruptError, match=ONE):
        files.read(ONE, 0, 1)
    with pytest.raises(FileNotFoundError):
        files.open(ONE)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_object_that_differs_from_its_digest_is_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    objects = StoreObjects(store, "pond", "s3://bucket/pond")
    objects.put(ONE, b"abd")
    obstore.put(store, f"pond/{ONE}", b"abc", attributes=obstore.get(store, f"pond/{ONE}").attributes)
    files = on_host(tmp_path, objects)
    for read in (lambda: files.fetch([ONE]), lambda: files.read(ONE, 0, 1)):
        with pytest.raises(CorruptError, match="has the digest"):
            read()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_copies_stay_below_the_limit_and_the_least_used_go_first(tmp_path: Path, objects: Objects) -> None:
    writer = on_host(tmp_path / "a", objects)
    for n in range(10):
        writer.hand_over(name(n), [bytes(100)])
    copies = HostCopies(tmp_path / "b", 450)
    reader = ObjectFiles(copies, objects, "a")
    for n in range(4):
        reader.fetch([name(n)])
        os.utime(copies.path(name(n)), ns=(n, n))
    reader.open(name(0))  # used again, so that 1 is now the oldest
    for n in range(4, 10):
        reader.fetch([name(n)])
        os.utime(copies.path(name(n)), ns=(n, n))
        size = sum(path.stat().st_size for path in (tmp_path / "b").rglob("*") if path.is_file())
        assert size <= 450 and copies.has(name(0)) and copies.has(name(n))
    assert not copies.has(name(1))


def test_a_copy_that_was_deleted_is_made_again(tmp_path: Path, objects: Objects) -> None:
    on_host(tmp_path, objects).write(ONE, [b"abc"])
    files, copies = on_host(tmp_path, objects), HostCopies(tmp_path, 1)
    files.fetch([ONE])
    copies.bound()
    assert not copies.has(ONE)
    mapped = files.read(ONE, 0, 3)
    copies.bound()
    assert bytes(mapped) == bytes(files.read(ONE, 0, 3)) == b"abc", "what is mapped stays readable"


def test_messages_go_through_the_store_or_a_folder_of_the_only_host(tmp_path: Path, objects: Objects) -> None:
    copies = HostCopies(tmp_path / "copies", 1000)
    for messages in (None, tmp_path / "messages"):
        files = ObjectFiles(copies, objects, "a", messages)
        files.write_message("messages/1/0", b"one")
        assert files.read_messages(["messages/1/0", "messages/1/1"]) == [b"one", None]
        assert (objects.get("messages/1/0") is None) == (messages is not None)
        files.remove_messages(["messages/1/0", "messages/1/1"])
        assert files.read_messages(["messages/1/0"]) == [None]


def test_files_are_listed_renamed_and_deleted_as_in_a_folder(tmp_path: Path, objects: Objects) -> None:
    for files in (on_host(tmp_path / "copies", objects), Files(tmp_path / "pond")):
        files.hand_over("backfill/t/1", [b"abc"])
        files.hand_over("backfill/u/1", [b"abc"])
        for n in (3, 5):
            files.write(name(n), [b"abc"])
        files.rename({"backfill/t/1": name(7)})
        assert sorted(files.written()) == [(name(n), n) for n in (3, 5, 7)]
        assert bytes(files.open(name(7))) == b"abc"
        files.delete([name(3), name(5), name(4)])
        assert [*files.written()] == [(name(7), 7)]
        files.clear("backfill/u")
        with pytest.raises(FileNotFoundError):
            files.open("backfill/u/1")
        files.clear("backfill")
        files.clear("backfill")


def test_files_of_an_address_are_those_of_its_folder_or_its_objects(tmp_path: Path) -> None:
    assert type(files_of(address_of(tmp_path), tmp_path / "copies", "a")()) is Files
    os.environ.setdefault("AWS_REGION", "us-east-1")
    opened = files_of(address_of("s3://bucket/pond"), tmp_path / "copies", "a")
    files = pickle.loads(pickle.dumps(opened))()
    assert files.where(ONE) == f"s3://bucket/pond/{ONE}", "a task on another host can open it"


def test_another_host_keeps_copies_in_a_writable_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "file").write_bytes(b"")
    others = tmp_path / "others"
    others.mkdir()
    others.chmod(0o777)
    named = tmp_path / "cache" / "pond-1"
    assert folder_on_host(named) == named
    for driver in (tmp_path / "file" / "cache", others):
        here = folder_on_host(driver / "pond-1")
        assert here.parent.parent == tmp_path / "tmp" and here.name == "pond-1"
        assert stat.S_IMODE(here.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(("written", "error"), [(b"abc", ""), (b"ab", "2 bytes of it"), (None, "no such object")])
def test_a_delta_is_in_the_store_before_a_record_names_it(objects: Objects, written: bytes | None, error: str) -> None:
    if written is not None:
        objects.put(ONE, written)
    receipts = [Receipt(instance=3, attempt="a-1", size=3, digest="d", file=ONE)]
    if not error:
        check_objects(objects, receipts)
        return
    with pytest.raises(HostError, match=f"Instance 3 wrote {ONE}, but s3://bucket/pond has .*{error}"):
        check_objects(objects, receipts)


def test_a_record_of_this_host_is_a_copy(tmp_path: Path) -> None:
    keep_record(tmp_path, "a", "00000000000000000001", b"record")
    assert (tmp_path / "files/records/a/00000000000000000001").read_bytes() == b"record"
    keep_record(Path("/proc/none"), "a", "00000000000000000001", b"record")


def test_a_record_of_a_restored_log_is_not_taken_from_an_older_copy(tmp_path: Path, objects: Objects) -> None:
    record = "log/00000000000000000001"
    objects.create("log/00000000000000000001", b"lost")
    before = on_host(tmp_path, objects, run="before")
    assert bytes(before.open(record)) == b"lost"
    objects.put(record, b"made")
    before.fetch([record])
    assert bytes(before.open(record)) == b"lost", "a driver is stopped before the log is restored"
    assert bytes(on_host(tmp_path, objects, run="after").open(record)) == b"made"


def test_a_full_disk_of_the_host_does_not_lose_a_file(
    tmp_path: Path, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_of: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    files = on_host(tmp_path, objects)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        files.write(ONE, [b"abc"])
    assert bytes(files.read(ONE, 0, 3)) == b"abc"
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(DiskFullError):
            on_host(tmp_path / "other", objects).read(ONE, 0, 3)


def test_a_folder_that_another_process_deletes_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, replace, left = HostCopies(tmp_path, 1000), os.replace, [3]

    def replacing(source: str, target: Path) -> None:
        if left[0]:
            left[0] -= 1
            target.parent.rmdir()
        replace(source, target)

    monkeypatch.setattr(os, "replace", replacing)
    copies.add(ONE, lambda path: path.write_bytes(b"abc"))
    assert copies.path(ONE).read_bytes() == b"abc" and left == [0]
