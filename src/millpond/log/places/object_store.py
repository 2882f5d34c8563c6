"""Reads and writes objects of S3, Google Cloud Storage or Azure, or of a local folder for tests, with obstore.

`ObjectStoreFolder` is the log's folder in an object store. The condition of a create is part of the request
(`If-None-Match: *` or similar), so the store itself decides which writer wins. The client retries after lost replies,
so an append can lose against itself. obstore's local store creates files by hard link but never calls fsync: use
`local_folder.LocalFolder` for a pond on a local disk.

Credentials are found by obstore, as the platform's own tools find them: in the environment, in the files of a
container's or workload's identity, or at the metadata service of the instance.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, ObjectStore, from_url

from millpond.errors import CorruptError, PlaceError

T = TypeVar("T")

ONE_PUT_BYTES = 64 << 20
"""Objects up to this size are written with one request, larger ones in parts of this size."""

_PARALLEL = 16
"""The most requests at once of one call."""

_CHUNK_BYTES = 4 << 20
_DELETED_AT_ONCE = 1000
_DIGEST = "millpond-sha256"
"""The name under which an object carries the SHA-256 of its content."""

_OMITTED = re.compile(r"\?[^\s<]*|:? *<.*")
"""Query strings, which may contain signatures, and bodies of replies, which say the same as the status."""
_LONGEST_MESSAGE = 300


class Objects:
    """The objects under one prefix of a store; `where` is their address as a user would write it.

    Each object carries the SHA-256 of its content.

    Raises:
        PlaceError: the store cannot be reached, or refuses (any method).
    """

    def __init__(self, store: ObjectStore, prefix: str, where: str) -> None:
        self._store = store
        self._prefix = f"{prefix.strip('/')}/".lstrip("/")
        self._carries_digests = not isinstance(store, LocalStore)  # files have no attributes
        self.where = where

    def below(self, name: str) -> Objects:
        """The objects whose names begin with `name` and a slash."""
        return Objects(self._store, self._prefix + name, f"{self.where.rstrip('/')}/{name}")

    def create(self, name: str, data: bytes) -> bool:
        """Creates an object unless its name exists; True if this call created it."""
        with self._explained():
            try:
                self._put(name, data, "create")
            except AlreadyExistsError:
                return False
            return True

    def put(self, name: str, data: bytes) -> None:
        """Writes an object, and replaces an older one."""
        with self._explained():
            self._put(name, data, "overwrite")

    def _put(self, name: str, data: bytes, mode: Literal["create", "overwrite"]) -> None:
        large = mode == "overwrite" and len(data) > ONE_PUT_BYTES
        attributes = {_DIGEST: hashlib.sha256(data).hexdigest()} if self._carries_digests else None
        obstore.put(
            self._store, self._prefix + name, data, attributes=attributes, mode=mode, use_multipart=large,
            chunk_size=ONE_PUT_BYTES,
        )  # fmt: skip

    def get(self, name: str) -> bytes | None:
        """The content of an object, or None if it does not exist."""
        with self._explained():
            try:
                return bytes(obstore.get(self._store, self._prefix + name).bytes())
            except (FileNotFoundError, NotFoundError):
                return None

    def get_file(self, name: str, path: Path) -> bool:
        """Writes the content of an object to `path`; False if it does not exist.

        Raises:
            CorruptError: the content does not have the digest that the object carries.
        """
        found = hashlib.sha256()
        with self._explained():
            try:
                reply = obstore.get(self._store, self._prefix + name)
            except (FileNotFoundError, NotFoundError):
                return False
            with path.open("wb") as file:
                for chunk in reply.stream(min_chunk_size=_CHUNK_BYTES):
                    found.update(chunk)
                    file.write(chunk)
        if (digest := reply.attributes.get(_DIGEST)) not in (None, found.hexdigest()):
            raise CorruptError(
                f"{self.where}/{name} has the digest {found.hexdigest()} instead of {digest}.",
                "Restore the object from a copy.",
            )
        return True

    def size(self, name: str) -> int | None:
        """The size of an object in bytes, by a HEAD request; None if it does not exist."""
        with self._explained():
            try:
                return int(obstore.head(self._store, self._prefix + name)["size"])
            except (FileNotFoundError, NotFoundError):
                return None

    def sizes(self, names: Sequence[str]) -> list[int | None]:
        """The sizes of several objects; the requests run in parallel."""
        return in_parallel(self.size, names, _PARALLEL)

    def list(self) -> Iterator[tuple[str, int]]:
        """The names and sizes of all objects."""
        with self._explained():
            for page in obstore.list(self._store, self._prefix or None):
                for found in page:
                    yield str(found["path"]).removeprefix(self._prefix), int(found["size"])

    def rename(self, name: str, to: str) -> None:
        """Gives an object another name: the store copies it, and deletes the old one."""
        with self._explained():
            obstore.rename(self._store, self._prefix + name, self._prefix + to)

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects; a missing one is not an error."""
        paths = [self._prefix + name for name in names]
        with self._explained():
            for first in range(0, len(paths), _DELETED_AT_ONCE):
                try:
                    obstore.delete(self._store, paths[first : first + _DELETED_AT_ONCE])
                except (FileNotFoundError, NotFoundError):
                    continue

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            raise PlaceError(
                f"The object store at {self.where} failed: {_reason(error)}",
                "Check its address and credentials, and that it supports conditional puts.",
            ) from error


def in_parallel(request: Callable[[str], T], names: Sequence[str], most: int) -> list[T]:
    """The results of `request` for each name, in order; at most `most` requests run at once, a single one here."""
    if len(names) < 2:
        return [request(name) for name in names]
    with ThreadPoolExecutor(min(most, len(names)), thread_name_prefix="objects") as pool:
        return [*pool.map(request, names)]


@cache
def objects_at(url: str) -> Objects:
    """The objects below an address such as `s3://bucket/prefix`; opened once per process.

    Raises:
        PlaceError: the address, or the configuration in the environment, is not valid.
    """
    try:
        return Objects(from_url(url), "", url)
    except (BaseError, OSError, ValueError) as error:
        raise PlaceError(f"{url} cannot be opened: {_reason(error)}", "Correct the address.") from error


class ObjectStoreFolder:
    """A `port.Folder` of objects."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    @property
    def where(self) -> str:
        """The address of the folder, for messages."""
        return self._objects.where

    def create(self, name: str, data: bytes) -> bool:
        """Creates the object unless its name exists; see `port.Folder`."""
        return self._objects.create(name, data)

    def replace(self, name: str, data: bytes) -> None:
        """Writes the object, and replaces an older one; see `port.Folder`."""
        self._objects.put(name, data)

    def read(self, name: str) -> bytes | None:
        """Returns the content of the object, or None; see `port.Folder`."""
        return self._objects.get(name)

    def exists(self, name: str) -> bool:
        """Whether the object exists, by a HEAD request; see `port.Folder`."""
        return self._objects.size(name) is not None

    def names(self) -> list[str]:
        """Returns all names by listing the prefix; see `port.Folder`."""
        return [name for name, _ in self._objects.list()]

    def remove(self, name: str) -> None:
        """Removes the object if it exists; see `port.Folder`."""
        self._objects.remove([name])


def _reason(error: Exception) -> str:
    """The first line of an error, without what is not for messages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return f"{_OMITTED.sub('', lines[0])[:_LONGEST_MESSAGE].rstrip('.')}."
