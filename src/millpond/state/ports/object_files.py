"""Reads and writes the files of a pond in an object store; each host maps copies in a folder of bounded size.

A file is one object, whose name is that of the file in a pond's folder. Objects carry the digest of their content,
which is compared when a copy is made. A copy may be deleted at any time: whoever needs it makes it again.

No two deltas have the same name. But a record has the same name as another one if the log was restored from an older
copy and continued, or if the bucket was copied. So copies of records serve only the tasks of one driver.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import pyarrow as pa

from millpond.clock import now_us
from millpond.errors import CorruptError, PlaceError, unreadable
from millpond.log.locations.address import Address, objects_at
from millpond.log.locations.objects import Objects, in_parallel
from millpond.state.ports.file_store import Parts
from millpond.state.ports.files import DELTA_FOLDER, Files, in_folder
from millpond.state.ports.private_folder import is_own, own_folder

LIMIT_VARIABLE = "MILLPOND_CACHE_BYTES"
"""The environment variable with the most bytes of copies on this host."""

_SHARE_OF_DISK = 4
"""Without the variable, copies take at most this fraction of the disk: a quarter."""

_LOOKS_PER_LIMIT = 16
"""The folder is looked at whenever this process has added a sixteenth of the limit."""

_PARALLEL = 8
_DRAFT_US = 3_600_000_000
_TRIES = 3


class HostCopies:
    """The copies of files in `folder`, of at most `limit` bytes; what was used least recently is deleted first.

    All processes of a host share the folder. Each looks at it after it has added a part of the limit, so together they
    may exceed the limit by such a part each.
    """

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self.folder = folder
        self._limit = limit if limit is not None else _limit_of(folder)
        self._added = self._limit  # look at the folder when the first copy is made

    @property
    def room(self) -> int:
        """Half of the limit, in bytes."""
        return self._limit // 2

    def path(self, file: str) -> Path:
        """Where the copy of a file is, if there is one."""
        return self.folder / file

    def has(self, file: str) -> bool:
        """Whether there is a copy of a file."""
        return self.path(file).exists()

    def add(self, file: str, write: Callable[[Path], object]) -> None:
        """Makes a copy, which appears atomically; `write` writes it to the path that it is given."""
        path = self.path(file)
        self.folder.mkdir(parents=True, exist_ok=True)
        number, temporary = tempfile.mkstemp(dir=self.folder, prefix=".")
        os.close(number)
        try:
            write(Path(temporary))
            self._added += os.path.getsize(temporary)
            in_folder(path, lambda: os.replace(temporary, path))
        except BaseException:
            with suppress(FileNotFoundError):  # another process took it for the draft of a process that was killed
                os.unlink(temporary)
            raise
        if self._added * _LOOKS_PER_LIMIT >= self._limit:
            self.bound()

    def mark_used(self, file: str) -> None:
        """Notes that a copy is used now."""
        with suppress(OSError):
            os.utime(self.path(file))

    def bound(self) -> None:
        """Deletes the copies that were used least recently, until the others take less than the limit."""
        self._added, found, size = 0, [], 0
        self._remove_drafts()
        for path in self._copies():
            with suppress(FileNotFoundError):
                entry = path.stat()
                found.append((entry.st_mtime_ns, entry.st_size, path))
                size += entry.st_size
        for _, one, path in sorted(found):
            if size <= self._limit:
                return
            path.unlink(missing_ok=True)
            size -= one
            with suppress(OSError):  # it contains other copies
                path.parent.rmdir()

    def _remove_drafts(self) -> None:
        """Deletes unfinished copies of processes that were killed."""
        for draft in self.folder.glob(".*"):
            with suppress(FileNotFoundError):
                if now_us() - draft.stat().st_mtime_ns // 1000 > _DRAFT_US:
                    draft.unlink()

    def _copies(self) -> Iterator[Path]:
        for parent, _, names in os.walk(self.folder):
            yield from (Path(parent, name) for name in names if Path(parent) != self.folder)


class ObjectFiles(Files):
    """The files of a pond in `objects`, with the copies of this host.

    `run`: the name of the driver, or other process, whose copies of records are used. `messages`: the folder for small
    files between tasks that all run on one host; None: they go through the store.
    """

    def __init__(self, copies: HostCopies, objects: Objects, run: str, messages: Path | None = None) -> None:
        super().__init__(copies.folder)
        self._copies, self._objects, self._run = copies, objects, run
        self._messages = None if messages is None else Files(messages)

    def where(self, file: str) -> str:
        """See `Files.where`."""
        return f"{self._objects.where}/{file}"

    def write(self, file: str, parts: Parts) -> None:
        """See `Files.write`; this host keeps a copy, because the next epoch usually reads it here."""
        data = self._put(file, parts)
        with suppress(OSError):  # the file is in the store, so a full disk of this host matters only to a reader
            self._copies.add(file, lambda path: path.write_bytes(data))

    def hand_over(self, file: str, parts: Parts) -> None:
        """See `Files.hand_over`; this host keeps no copy."""
        self._put(file, parts)

    def _put(self, file: str, parts: Parts) -> bytes:
        data = b"".join(parts)
        self._objects.put(file, data)
        return data

    def fetch(self, names: Iterable[str]) -> None:
        """See `Files.fetch`; the requests run in parallel.

        Raises:
            CorruptError: an object does not exist, or differs from its digest.
        """
        new = [name for name in dict.fromkeys(names) if name not in self._mapped]
        absent = [name for name in new if not self._copies.has(copy_of(name, self._run))]
        copied = in_parallel(self._copied, absent, _PARALLEL)
        lost = [name for name, exists in zip(absent, copied, strict=True) if not exists]
        if lost:
            raise CorruptError(f"{self.where(lost[0])} does not exist.", "Restore the object from a copy.")

    @property
    def room(self) -> int:
        """The bytes of which this host can keep copies, and of as many of other files."""
        return self._copies.room

    def written(self) -> Iterator[tuple[str, int]]:
        """See `Files.written`; lists the objects."""
        for name, _ in self._objects.below(DELTA_FOLDER).list():
            number, _, _ = name.partition("/")
            if number.isdecimal():
                yield f"{DELTA_FOLDER}/{name}", int(number)

    def delete(self, files: Iterable[str]) -> int:
        """See `Files.delete`; copies are deleted when room is needed. The sizes are not known."""
        self._objects.remove(files)
        return 0

    def rename(self, renamed: Mapping[str, str]) -> None:
        """See `Files.rename`; the store copies the objects."""
        for file, name in renamed.items():
            self._objects.rename(file, name)

    def clear(self, prefix: str) -> None:
        """See `Files.clear`."""
        with suppress(PlaceError):
            self._objects.remove(f"{prefix}/{name}" for name, _ in self._objects.below(prefix).list())

    def open(self, file: str) -> pa.Buffer:
        """See `Files.open`; makes a copy if this host has none."""
        for _ in range(_TRIES):  # another process may delete a copy to make room
            copy = copy_of(file, self._run)
            if not self._copies.has(copy) and not self._copied(file):
                break
            with suppress(FileNotFoundError):
                mapped = super().open(copy)
                self._copies.mark_used(copy)
                return mapped
        raise FileNotFoundError(f"{self.where(file)} does not exist")

    def write_message(self, file: str, data: bytes) -> None:
        if self._messages is None:
            self._objects.put(file, data)
        else:
            self._messages.write_message(file, data)

    def read_messages(self, files: Sequence[str]) -> list[bytes | None]:
        if self._messages is None:
            return [self._objects.get(file) for file in files]
        return self._messages.read_messages(files)

    def remove_messages(self, files: Iterable[str]) -> None:
        if self._messages is None:
            self._objects.remove(files)
        else:
            self._messages.remove_messages(files)

    def _copied(self, file: str) -> bool:
        """Makes a copy of an object; False if it does not exist."""
        exists = [False]

        def write(path: Path) -> None:
            exists[0] = self._objects.get_file(file, path)
            if not exists[0]:
                raise FileNotFoundError

        try:
            with suppress(FileNotFoundError):
                self._copies.add(copy_of(file, self._run), write)
        except OSError as error:
            raise unreadable(self._copies.path(copy_of(file, self._run)), error) from error
        return exists[0]


def copy_of(file: str, run: str) -> str:
    """The name of the copy of a file that the tasks of `run` use."""
    folder, _, name = file.partition("/")
    return f"records/{run}/{name}" if folder == "log" else file


def files_of(address: Address, folder: Path, run: str, *, one_host: bool = True) -> Callable[[], Files]:
    """A function that opens the files of the pond at `address`; tasks call it, too.

    `folder`: the pond's folder, or the folder of this host for copies; on other hosts, see `folder_on_host`. `run`: see
    `ObjectFiles`. `one_host`: all tasks run on this host, so that they need no object store to exchange messages.
    """
    if address.path is not None:
        return partial(Files, address.path)
    return partial(_object_files, address.text, str(folder), run, one_host)


def _object_files(url: str, folder: str, run: str, one_host: bool) -> ObjectFiles:
    here = Path(folder) if one_host else folder_on_host(Path(folder))
    copies, messages = here / "files", here / "messages"
    return ObjectFiles(_copies_in(copies), objects_at(url), run, messages if one_host else None)


@cache
def folder_on_host(folder: Path) -> Path:
    """The folder for copies on this host, which may be another one than the driver's, where it is `folder`.

    It has the same path, unless that cannot be created here, or belongs to another user; then it is in the temporary
    folder of this process.
    """
    return folder if is_own(folder.parent) else own_folder(Path(tempfile.gettempdir())) / folder.name


def keep_record(folder: Path, run: str, name: str, data: bytes) -> None:
    """Makes a copy of a record that this host has just created, so that its tasks need not request it."""
    with suppress(OSError):
        _copies_in(folder / "files").add(copy_of(f"log/{name}", run), lambda path: path.write_bytes(data))


@cache
def _copies_in(folder: Path) -> HostCopies:
    """The copies in a folder; one process counts what it adds."""
    return HostCopies(folder)


def _limit_of(folder: Path) -> int:
    limit = os.environ.get(LIMIT_VARIABLE, "")
    if limit.isdecimal():
        return int(limit)
    folder.mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(folder).total // _SHARE_OF_DISK
