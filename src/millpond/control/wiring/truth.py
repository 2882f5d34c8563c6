"""Opens the log of a pond at an address, with its files as this host sees them."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from millpond.errors import CorruptError, ForeignPondError, PlaceError
from millpond.local_path import check_own_links
from millpond.log.check_create_if_absent import check_create_if_absent
from millpond.log.locations.address import Address, Given, address_of
from millpond.log.manifest import Manifest, Manifests, check_no_hole, contains_manifest, load, read_sections
from millpond.log.port import Log
from millpond.log.recent_records import RecentRecords
from millpond.runtime.task.file_sync import OpenFiles
from millpond.state.ports.files import IDENTITY, Files
from millpond.state.ports.object_files import files_of, keep_record
from millpond.state.ports.private_folder import own_folder
from millpond.tokens import writer_token

T = TypeVar("T")

_DAMAGED = re.compile(rb"|(?![0-9a-f]{24}\Z)([0-9a-f]+|.{24})|.*[^!-~].*", re.DOTALL)
"""Matches a damaged name of a pond. A generated name has 24 hexadecimal digits, so fewer digits, or 24 characters that
are not all such digits, are damaged. A name that somebody else chose may be any other printable text."""


class Truth(NamedTuple):
    """The log of a pond, with the manifest that was loaded from it.

    `folder` is on this host: the pond's folder, or, for a pond in an object store, the folder of this host for copies
    of its files and for what is derived from the log. `run`: see `ObjectFiles`. `recent`: what `log` keeps of an object
    store.
    """

    address: Address
    folder: Path
    pond: str
    log: Log
    manifests: Manifests
    manifest: Manifest
    run: str = ""
    recent: RecentRecords | None = None

    @property
    def open_files(self) -> OpenFiles:
        """A function that opens the pond's files on this host, or, in an object store, on any host."""
        return files_of(self.address, self.folder, self.run)

    @property
    def cursors(self) -> Address:
        """The folder for the cursors of sinks that have no folder of their own."""
        return self.address / "cursors"

    def files(self) -> Files:
        """The pond's files, with nothing mapped yet."""
        return self.open_files()

    def sections(self, read: Callable[[Manifest], T], manifest: Manifest | None = None) -> T:
        """The result of `read` for the live sections (by `manifest`), although concurrent epochs may replace them.

        Raises:
            CorruptError: a section that the newest manifest names is missing.
        """
        return read_sections(self.log, self.manifests, self.manifest if manifest is None else manifest, read)


def open_truth(given: Given, cache: Path | None = None) -> Truth:
    """The pond at an address, created if the folder, or the prefix of the bucket, is new or empty.

    `cache`: the folder of this host for copies of a pond in an object store; None: `host_cache`.

    Raises:
        ForeignPondError: the folder holds something else.
        PlaceError: the folder cannot be written, or does not support create-if-absent.
    """
    address = address_of(given)
    if address.path is not None:
        _make_private(address.path)
    root = address.folder()
    if not root.exists(IDENTITY):
        begun, used = holds_log(address), holds_something(address)
        if not root.exists(IDENTITY):  # another process that creates the pond now makes this file first
            _check_unused(address, begun, used)
            root.create(IDENTITY, writer_token().encode())
    identity = identity_in(address)
    _check_create_if_absent_once(address / "log")
    truth = _loaded(address, identity, cache)
    check_no_hole(truth.log, truth.manifest)
    return truth


@cache
def _check_create_if_absent_once(log: Address) -> None:
    """Check once in a process that a folder supports create-if-absent: in a bucket that takes twelve round trips."""
    check_create_if_absent(log.folder(), writer_token())


def _check_unused(address: Address, begun: bool, used: bool) -> None:
    """Refuse an address without the name of a pond that has a log, or anything else."""
    if begun:
        raise ForeignPondError(
            f"The file {address}/{IDENTITY} is missing, so it is not known which pond this is.",
            "Restore it from a copy.",
        )
    if used:
        raise ForeignPondError(f"{address} holds files, but no pond.", "Name a new or empty folder.")


def existing_truth(given: Given, cache: Path | None = None) -> Truth | None:
    """The pond at an address, read-only; None: there is none.

    Raises:
        CorruptError: the file with the name, or the log, is damaged. PlaceError: as `identity_in`.
    """
    address = address_of(given)
    return _loaded(address, identity_in(address), cache) if holds_pond(address) else None


def _loaded(address: Address, identity: str, cache: Path | None) -> Truth:
    folder = address.path or (host_cache(address) if cache is None else cache) / _folder_name(address, identity)
    records, run, manifests = address.folder("log"), writer_token(), Manifests(address.folder("manifest"))
    if address.path is not None:
        log = Log(records)
        return Truth(address, folder, identity, log, manifests, load(log, manifests), run)
    recent = RecentRecords(records, partial(keep_record, folder, run))
    log, known = Log(recent), _last_truth.get((address, identity))
    manifest = load(log, manifests, known=None if known is None else known.manifest)
    if known is not None and known.recent is not None and contains_manifest(log, known.manifest):
        recent.copy_from(known.recent, known.manifest.n)
    return cache_truth(Truth(address, folder, identity, log, manifests, manifest, run, recent))


_last_truth = dict[tuple[Address, str], Truth]()
"""The pond in an object store that this process has read last, by its address and its name."""


def cache_truth(truth: Truth) -> Truth:
    """Keep the newest manifest and records of a pond in an object store, so that opening it again reads few of them.

    A standby that takes over would otherwise read up to 256 records, one after the other.
    """
    if truth.recent is not None:
        _last_truth.clear()
        _last_truth[truth.address, truth.pond] = truth
    return truth


def _folder_name(address: Address, identity: str) -> str:
    """A copy of a bucket has another folder than the pond with the same name from which it was made."""
    return f"{identity}-{hashlib.sha256(address.text.encode()).hexdigest()[:8]}"


def holds_pond(address: Address) -> bool:
    """Whether there is a pond at an address; a folder that is missing is not created."""
    if address.path is not None:
        return (address.path / IDENTITY).is_file() and (address.path / "log").is_dir()
    return address.folder().exists(IDENTITY)


def holds_log(address: Address) -> bool:
    """Whether there is a log at an address, although the name of the pond may be missing."""
    if address.path is not None:
        return (address.path / "log").is_dir()
    return any(True for _ in address.objects().below("log").list())


def identity_in(address: Address) -> str:
    """The name of the pond at an address.

    Raises:
        CorruptError: the file with the name is damaged.
        PlaceError: the file cannot be read, or the folder contains a link that another user made.
    """
    if address.path is not None:
        check_own_links(address.path)
    name = address.folder().read(IDENTITY) or b""
    if _DAMAGED.fullmatch(name):
        raise CorruptError(
            f"The file {address}/{IDENTITY} is damaged: {name[:40]!r} is not a pond's name.",
            "Restore it from a copy; the name is also in `_millpond` in the folder of each sink.",
        )
    return name.decode()


def host_cache(address: Address) -> Path:
    """The folder of this host for copies and derived files: in memory for a local pond, otherwise on a disk.

    A local pond keeps only tables of keys there, a pond in an object store all of its state.
    """
    in_memory = Path("/dev/shm")
    if address.path is not None and os.access(in_memory, os.W_OK):
        return own_folder(in_memory)
    return own_folder(Path(tempfile.gettempdir()))


def _make_private(folder: Path) -> None:
    """Create a new pond's folder, accessible to its owner only; an existing folder stays as it is."""
    with suppress(OSError):  # the first write into the folder reports the error
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)


def holds_something(address: Address) -> bool:
    """Whether a folder holds more than hidden files, or a prefix any object; a missing folder does not.

    Raises:
        PlaceError: it cannot be read.
    """
    if address.path is None:
        return any(True for _ in address.objects().list())
    try:
        return any(not entry.name.startswith(".") for entry in address.path.iterdir())
    except FileNotFoundError:
        return False
    except OSError as error:
        raise PlaceError(f"{address} cannot be read: {error}.", "Name a folder that you may write.") from error
