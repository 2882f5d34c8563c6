"""Reads and writes the files of a pond for an instance, in a folder that all hosts share or through a store."""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from millpond.errors import CorruptError, FilesLostError, HostError, unreadable
from millpond.local_path import no_link
from millpond.log.locations.address import Address, address_of
from millpond.log.locations.local_folder import sync_folder
from millpond.log.records import Body, body_of
from millpond.state.ports.file_store import FileStore, Parts

INLINE_BYTES = 256 * 1024
"""A delta up to this size is returned with its receipt, so that a tiny epoch writes a single file."""

DELTA_FOLDER = "delta"
"""The folder of the files of deltas, by the number of their record."""

IDENTITY = "pond.id"
"""The file of a pond's folder that contains the name of the pond."""

UNSHARED_CURE = (
    "Put the pond on a file system that all hosts of executors share, or give it a store that all reach (redis://…)."
)

REACH_CURE = "Executors must reach the same object store as the driver, with the same endpoint and credentials."

_EPOCHS_PER_SWEEP = 64
_ATTEMPTS = 10
_NUMBER_DIGITS = 20

T = TypeVar("T")


class Files:
    """Maps each file of a pond's folder into memory once; sections are read in place."""

    inline_bytes = INLINE_BYTES

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mapped: dict[str, pa.Buffer] = {}
        self._bodies: dict[str, Body] = {}

    def where(self, file: str) -> str:
        """The address of a file, for messages."""
        return str(self._folder / file)

    def hold(self, file: str, data: pa.Buffer) -> None:
        """Makes the content of a file readable before it is written."""
        self._mapped[file] = data

    def read(self, file: str, offset: int, size: int) -> pa.Buffer:
        """Reads `size` bytes at `offset`.

        Raises:
            CorruptError: the file is missing or too short.
            FilesLostError: the store has lost the file.
        """
        if not size:
            return pa.py_buffer(b"")
        buffer = self._mapped.get(file)
        if buffer is None:
            buffer = self._mapped[file] = self._map(file)
        if offset + size > buffer.size:
            raise CorruptError(f"{file} ends before byte {offset + size}.", "Restore the file from a copy.")
        return buffer.slice(offset, size)

    def read_inline(self, record: str, offset: int, size: int) -> pa.Buffer:
        """Reads `size` bytes at `offset` of the body of a record's file, and copies them so that they are aligned.

        Raises:
            CorruptError, FilesLostError: as for `read`, or the body was removed from the record.
        """
        body = self._bodies.get(record)
        if body is None:
            body = self._bodies[record] = self._body(record)
        try:
            content = body.read(offset, size)
        except ValueError as error:
            raise CorruptError(f"{record} does not unpack: {error}.", "Restore the file from a copy.") from error
        if len(content) < size:
            raise CorruptError(f"The body of {record} ends before {offset + size}.", "Restore the file from a copy.")
        aligned = pa.allocate_buffer(size)
        memoryview(aligned).cast("B")[:] = content
        return aligned

    def write(self, file: str, parts: Parts) -> None:
        """Writes a file durably, so that it survives a crash of this process and this machine."""
        path = self._folder / file
        with in_folder(path, lambda: open(path, "wb", opener=no_link)) as handle:
            for part in parts:
                handle.write(part)
            handle.flush()
            os.fsync(handle.fileno())

    def hand_over(self, file: str, parts: Parts) -> None:
        """Writes a file for the driver, which no task reads; it is as durable as after `write`."""
        self.write(file, parts)

    def fetch(self, names: Iterable[str]) -> None:
        """Brings files to this host before they are read, all at once."""

    def sweep(self, number: int, needed: Callable[[], Collection[str]]) -> None:
        """Called once per instance and epoch, to delete copies on this host that are not `needed`."""

    def write_message(self, file: str, data: bytes) -> None:
        """Publishes a small file for tasks that wait for it; it appears atomically, and may be lost."""
        leave(self._folder / file, [data])

    def read_messages(self, files: Sequence[str]) -> list[bytes | None]:
        """The contents of small files; None for a missing file."""
        return [_content(self._folder / file) for file in files]

    def remove_messages(self, files: Iterable[str]) -> None:
        """Removes small files; a missing file is not an error."""
        for path in (self._folder / file for file in files):
            path.unlink(missing_ok=True)
            with suppress(OSError):  # the folder contains other files
                path.parent.rmdir()

    def _body(self, record: str) -> Body:
        if record not in self._mapped:
            self._mapped[record] = self._map(record)
        body = body_of(memoryview(self._mapped[record]).cast("B"), str(self._folder / record))
        if body is None:
            raise CorruptError(f"The body of {record} was removed.", "Restore the file from a copy.")
        return body

    def written(self) -> Iterator[tuple[str, int]]:
        """The names of all files of deltas, with the number of their record; for pruning only."""
        for folder, record in _records_in(self._folder):
            with suppress(FileNotFoundError):
                names = [f"delta/{folder.name}/{entry.name}" for entry in os.scandir(folder)]
                yield from ((name, record) for name in names)
                if not names:
                    _remove_if_empty(folder)

    def delete(self, files: Iterable[str]) -> int:
        """Deletes files for good, also on other hosts; returns the number of bytes. A missing one is no error."""
        freed, folders = 0, set[Path]()
        for file in files:
            path = self._folder / file
            with suppress(FileNotFoundError):
                size = path.stat().st_size
                path.unlink()
                freed += size
            folders.add(path.parent)
        for folder in folders:
            _remove_if_empty(folder)
        return freed

    def rename(self, renamed: Mapping[str, str]) -> None:
        """Gives files their new names, durably."""
        parents = set[Path]()
        for file, name in renamed.items():
            source, target = self._folder / file, self._folder / name
            parents.add(target.parent)
            in_folder(target, partial(os.replace, source, target))
        for parent in parents:
            sync_folder(parent)
            sync_folder(parent.parent)

    def clear(self, prefix: str) -> None:
        """Deletes all files below a folder; what cannot be deleted stays."""
        shutil.rmtree(self._folder / prefix, ignore_errors=True)
        with suppress(OSError):  # it contains other files, or is the pond's own folder
            if "/" in prefix:
                (self._folder / prefix).parent.rmdir()

    def open(self, file: str) -> pa.Buffer:
        """Maps a whole file.

        Raises:
            FileNotFoundError: it does not exist. OSError, ValueError: it cannot be mapped.
        """
        with open(self._folder / file, "rb") as handle:
            return pa.py_buffer(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))

    def _map(self, file: str) -> pa.Buffer:
        try:
            return self.open(file)
        except (OSError, ValueError) as error:
            raise unreadable(self._folder / file, error) from error


def check_sees(address: Address, pond: str) -> None:
    """Checks on the host of a task that `pond` is at `address`, before anything is read or written there.

    Raises:
        HostError: it is not. Writing would create a folder that only this host sees.
    """
    if address.path is None:
        if (address.folder().read(IDENTITY) or b"").decode() != pond:
            raise HostError(f"The host {socket.gethostname()} does not see the pond at {address}.", REACH_CURE)
        return
    try:
        found = (address.path / IDENTITY).read_text()
    except OSError as error:
        found = f"{error.strerror}"
    if found != pond:
        raise HostError(f"The host {socket.gethostname()} does not see the pond's folder {address}.", UNSHARED_CURE)


def shared_files(folder: Path, pond: str) -> Files:
    """The files of a pond on the host of a task, in a folder that all hosts share.

    Raises:
        HostError: this host does not see the folder.
    """
    check_sees(address_of(folder), pond)
    return Files(folder)


class CarriedFiles(Files):
    """Files that a store transfers between hosts; each host keeps copies in `folder`, which may be lost, too.

    Every delta is its own file, even a small one, because the records of the log are not on this host.
    """

    inline_bytes = 0

    def __init__(self, folder: Path, store: FileStore) -> None:
        super().__init__(folder)
        self._store = store

    def write(self, file: str, parts: Parts) -> None:
        """See `Files.write`: puts the file into the store; it is durable once the driver has taken it."""
        self._store.put(file, parts)
        leave(self._folder / file, parts)

    def hand_over(self, file: str, parts: Parts) -> None:
        """See `Files.hand_over`; this host keeps no copy."""
        self._store.put(file, parts)

    def fetch(self, names: Iterable[str]) -> None:
        """See `Files.fetch`: gets the files that this host lacks, in one round trip.

        Raises:
            FilesLostError: the store has lost some of them.
        """
        missing = [name for name in dict.fromkeys(names) if not (self._folder / name).exists()]
        if not missing:
            return
        lost = 0
        for name, data in zip(missing, self._store.get_many(missing), strict=True):
            if data is None:
                lost += 1
            else:
                leave(self._folder / name, [data])
        if lost:
            raise FilesLostError(f"The store has lost {lost} files of the pond.", "They are restored from its folder.")

    def sweep(self, number: int, needed: Callable[[], Collection[str]]) -> None:
        """See `Files.sweep`; keeps the newest files, because other instances may need them or write them late."""
        if number % _EPOCHS_PER_SWEEP:
            return
        named = needed()
        for folder, record in _records_in(self._folder):
            if record < number - _EPOCHS_PER_SWEEP:
                for path in folder.iterdir():
                    if f"{folder.parent.name}/{folder.name}/{path.name}" not in named:
                        path.unlink(missing_ok=True)
                with suppress(OSError):  # another instance on this host has just written a file there
                    folder.rmdir()

    def write_message(self, file: str, data: bytes) -> None:
        self._store.put(file, [data])

    def read_messages(self, files: Sequence[str]) -> list[bytes | None]:
        """See `Files.read_messages`; it takes one round trip."""
        return self._store.get_many(files)

    def remove_messages(self, files: Iterable[str]) -> None:
        self._store.remove_many(files)

    def _map(self, file: str) -> pa.Buffer:
        self.fetch([file])
        return super()._map(file)


def leave(path: Path, parts: Parts) -> None:
    """Writes a file of this host that appears atomically; it need not survive a crash of the machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number, temporary = tempfile.mkstemp(dir=path.parent.parent, prefix=".")
    try:
        with open(number, "wb") as handle:
            for part in parts:
                handle.write(part)
        in_folder(path, lambda: os.replace(temporary, path))
    except BaseException:
        os.unlink(temporary)
        raise


def in_folder(path: Path, create: Callable[[], T]) -> T:
    """Creates the file `path` by a function, with its folder; pruning may remove the folder while it is empty."""
    for _ in range(_ATTEMPTS):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return create()
    return create()


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # a late attempt has just written a file there; the next sweep finds it
        folder.rmdir()


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _records_in(folder: Path) -> Iterator[tuple[Path, int]]:
    for path in sorted((folder / "delta").glob("*")):
        if path.name.isdecimal() and len(path.name) == _NUMBER_DIGITS:
            yield path, int(path.name)
