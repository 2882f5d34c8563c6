"""Files of an epoch are checked before a record names them; a host that does not see the folder uses a store."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from millpond.errors import HostError, from_text
from millpond.log.locations.address import address_of
from millpond.log.manifest import Manifest
from millpond.log.records import Receipt
from millpond.runtime.task.file_sync import Carrier, Deltas, FileRoute, FileTransport
from millpond.state.ports.files import IDENTITY, CarriedFiles, Files, check_sees, shared_files

NAME = "delta/00000000000000000001/0-a-1.arrow"


class DictStore:
    """A store of files in memory."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def put(self, name: str, parts: list[bytes], kept: bool = False) -> None:
        self.files[name] = b"".join(parts)

    def take_many(self, names: list[str]) -> list[bytes | None]:
        return [self.files.get(name) for name in names]

    def lacking(self, names: list[str]) -> list[str]:
        return [name for name in names if name not in self.files]

    def names(self) -> set[str]:
        return set(self.files)

    def remove_many(self, names: set[str]) -> None:
        for name in names:
            self.files.pop(name, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / IDENTITY).write_text("me")
    return tmp_path


def receipt(data: bytes) -> Receipt:
    return Receipt(instance=0, attempt="a-1", size=len(data), digest=hashlib.sha256(data).hexdigest(), file=NAME)


def transport(folder: Path, **more: object) -> FileTransport:
    return FileTransport(folder, FileRoute(partial(shared_files, folder, "me"), None), **more)  # type: ignore[arg-type]


def test_a_task_refuses_a_folder_that_is_not_the_ponds_and_makes_none(tmp_path: Path) -> None:
    absent = tmp_path / "elsewhere" / "pond"
    with pytest.raises(HostError, match="does not see the pond's folder") as failed:
        shared_files(absent, "me")
    assert not absent.parent.exists()
    assert isinstance(from_text(str(failed.value)), HostError)
    (tmp_path / IDENTITY).write_text("somebody else")
    with pytest.raises(HostError):
        check_sees(address_of(tmp_path), "me")


def test_a_task_that_sees_the_folder_writes_there(folder: Path) -> None:
    shared_files(folder, "me").write(NAME, [b"abc"])
    assert (folder / NAME).read_bytes() == b"abc"


@pytest.mark.parametrize(
    ("stored", "digests", "refused"),
    [(None, False, True), (b"ab", False, True), (b"abd", True, True), (b"abd", False, False), (b"abc", True, False)],
    ids=["missing", "shorter", "other bytes", "other bytes, one host", "right"],
)
def test_what_a_receipt_names_must_be_there(folder: Path, stored: bytes | None, digests: bool, refused: bool) -> None:
    if stored is not None:
        Files(folder).write(NAME, [stored])
    made: Deltas = [(receipt(b"abc"), b"")]
    run = partial(transport(folder, digests=digests).run, Manifest(), lambda: made)
    if refused:
        with pytest.raises(HostError, match="missing or differs"):
            run()
    else:
        assert run() == made


def test_a_delta_in_the_record_needs_no_file(folder: Path) -> None:
    made: Deltas = [(Receipt(instance=0, attempt="a-1", size=1, digest=""), b"x")]
    assert transport(folder).run(Manifest(), lambda: made) == made


def test_an_epoch_is_run_again_through_the_store(folder: Path) -> None:
    store, data, opened = DictStore(), b"abc", partial(Files, folder / "there")
    route = FileRoute(opened, Carrier(folder, store))  # type: ignore[arg-type]
    files = transport(folder, through_store=lambda: route)

    def attempt() -> Deltas:
        if files.carrier is None:
            raise HostError("The host b does not see the pond's folder.", "Share it.")
        store.put(NAME, [data])
        return [(receipt(data), b"")]

    assert [one.file for one, _ in files.run(Manifest(), attempt)] == [NAME]
    assert (folder / NAME).read_bytes() == data
    assert files.open_files is opened and files.carrier is not None
    assert files.carrier.note is not None and "The host b" in files.carrier.note
    files.remove([NAME])
    assert not store.files


def test_without_a_store_the_host_is_the_reason(folder: Path) -> None:
    def attempt() -> Deltas:
        raise HostError("The host b does not see the pond's folder.", "Share it.")

    files = transport(folder)
    assert not files.can_carry
    with pytest.raises(HostError, match="The host b"):
        files.run(Manifest(), attempt)


def test_an_epoch_and_a_backfill_switch_to_the_store_once(folder: Path) -> None:
    store, data, opened = DictStore(), b"abc", list[str]()
    staged = "backfill/a/1-0-0-0.arrow"

    def through_store() -> FileRoute:
        opened.append("store")
        return FileRoute(partial(Files, folder / "there"), Carrier(folder, store))  # type: ignore[arg-type]

    files = transport(folder, through_store=through_store)

    def backfill() -> Deltas:
        if files.carrier is None:
            raise HostError("The host b does not see the pond's folder.", "Share it.")
        store.put(staged, [data])
        return [(replace(receipt(data), file=staged), b"")]

    def epoch() -> Deltas:
        if not opened:  # it began before the backfill, whose tasks find the host first
            files.run(Manifest(), backfill)
            assert (folder / staged).read_bytes() == data
            raise HostError("The host b does not see the pond's folder.", "Share it.")
        store.put(NAME, [data])
        return [(receipt(data), b"")]

    assert [one.file for one, _ in files.run(Manifest(), epoch)] == [NAME]
    assert (opened, store.names()) == (["store"], {NAME, staged}), "the second switch removes no file that is in use"
    files.remove([staged])
    files.add([NAME])
    assert store.files == {NAME: data}


def test_a_file_for_the_driver_leaves_no_copy_on_its_host(folder: Path) -> None:
    store = DictStore()
    CarriedFiles(folder / "cache", store).hand_over("backfill/a/1-0-0-0.arrow", [b"abc"])  # type: ignore[arg-type]
    assert store.files == {"backfill/a/1-0-0-0.arrow": b"abc"}
    assert not (folder / "cache").exists()
    Files(folder).hand_over(NAME, [b"abc"])
    assert (folder / NAME).read_bytes() == b"abc"
