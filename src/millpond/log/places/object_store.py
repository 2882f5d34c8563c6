"""Reads and writes objects of S3, Google Cloud Storage or Azure, or of a local folder for tests, with obstore.

The condition of a create is part of the request (`If-None-Match: *` or similar), so the store itself decides which
writer wins. The client retries after lost replies, so an append can lose against itself. obstore's local store creates
files by hard link but never calls fsync: use `local_folder.LocalFolder` for a pond on a local disk.

Credentials are found by obstore, as the platform's own tools find them: in the environment, in the files of a
container's or workload's identity, or at the metadata service of the instance.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, ObjectStore, from_url

from millpond.errors import CorruptError, PlaceError
from millpond.log.places.objects import Objects

ONE_PUT_BYTES = 64 << 20
"""Objects up to this size are written with one request, larger ones in parts of this size."""

_CHUNK_BYTES = 4 << 20
_DELETED_AT_ONCE = 1000
_DIGEST = "millpond-sha256"
"""The name under which an object carries the SHA-256 of its content."""

_OMITTED = re.compile(r"\?[^\s<]*|:? *<.*")
"""Query strings, which may contain signatures, and bodies of replies, which say the same as the status."""
_LONGEST_MESSAGE = 300


class StoreObjects(Objects):
    """The objects under one prefix of a store; each carries the SHA-256 of its content."""

    def __init__(self, store: ObjectStore, prefix: str, where: str) -> None:
        self._store = store
        self._prefix = f"{prefix.strip('/')}/".lstrip("/")
        self._carries_digests = not isinstance(store, LocalStore)  # files have no attributes
        self.where = where

    def below(self, name: str) -> StoreObjects:
        return StoreObjects(self._store, self._prefix + name, f"{self.where.rstrip('/')}/{name}")

    def create(self, name: str, data: bytes) -> bool:
        with self._explained():
            try:
                self._put(name, data, "create")
            except AlreadyExistsError:
                return False
            return True

    def put(self, name: str, data: bytes) -> None:
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
        with self._explained():
            try:
                return bytes(obstore.get(self._store, self._prefix + name).bytes())
            except (FileNotFoundError, NotFoundError):
                return None

    def get_file(self, name: str, path: Path) -> bool:
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
        # A HEAD request.
        with self._explained():
            try:
                return int(obstore.head(self._store, self._prefix + name)["size"])
            except (FileNotFoundError, NotFoundError):
                return None

    def list(self) -> Iterator[tuple[str, int]]:
        with self._explained():
            for page in obstore.list(self._store, self._prefix or None):
                for found in page:
                    yield str(found["path"]).removeprefix(self._prefix), int(found["size"])

    def rename(self, name: str, to: str) -> None:
        # The store copies the object, and deletes the old one.
        with self._explained():
            obstore.rename(self._store, self._prefix + name, self._prefix + to)

    def remove(self, names: Iterable[str]) -> None:
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


@cache
def store_objects(url: str) -> StoreObjects:
    """The objects below an address such as `s3://bucket/prefix`; opened once per process.

    Raises:
        PlaceError: the address, or the configuration in the environment, is not valid.
    """
    try:
        return StoreObjects(from_url(url), "", url)
    except (BaseError, OSError, ValueError) as error:
        raise PlaceError(f"{url} cannot be opened: {_reason(error)}", "Correct the address.") from error


def _reason(error: Exception) -> str:
    """The first line of an error, without what is not for messages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return f"{_OMITTED.sub('', lines[0])[:_LONGEST_MESSAGE].rstrip('.')}."
