"""The log in an object store (S3, GCS, Azure, a local folder for tests): `obstore.put(mode="create")`.

The condition is part of the request (`If-None-Match: *` or similar), so the store itself decides which writer wins.
The client retries after lost replies, so an append can lose against itself. obstore's local store creates files by hard
link but never calls fsync: use `local.LocalFolder` for a pond on a local disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import ObjectStore

from millpond.errors import PlaceError


class ObjectStoreFolder:
    """A `port.Folder` under one prefix of an object store; `where` is its address as a user would write it."""

    def __init__(self, store: ObjectStore, prefix: str, where: str) -> None:
        self._store = store
        self._prefix = prefix.strip("/") + "/"
        self._where = where

    @property
    def where(self) -> str:
        """The address of the folder, for messages."""
        return self._where

    def create(self, name: str, data: bytes) -> bool:
        """Creates the object unless its name exists; see `port.Folder`."""
        with self._explained():
            try:
                obstore.put(self._store, self._prefix + name, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
            return True

    def replace(self, name: str, data: bytes) -> None:
        """Writes the object, and replaces an older one; see `port.Folder`."""
        with self._explained():
            obstore.put(self._store, self._prefix + name, data, mode="overwrite")

    def read(self, name: str) -> bytes | None:
        """Returns the content of the object, or None; see `port.Folder`."""
        with self._explained():
            try:
                return bytes(obstore.get(self._store, self._prefix + name).bytes())
            except (FileNotFoundError, NotFoundError):
                return None

    def exists(self, name: str) -> bool:
        """Whether the object exists, by a HEAD request; see `port.Folder`."""
        with self._explained():
            try:
                obstore.head(self._store, self._prefix + name)
            except (FileNotFoundError, NotFoundError):
                return False
            return True

    def names(self) -> list[str]:
        """Returns all names by listing the prefix; see `port.Folder`."""
        with self._explained():
            pages = obstore.list(self._store, self._prefix)
            return [str(found["path"]).removeprefix(self._prefix) for page in pages for found in page]

    def remove(self, name: str) -> None:
        """Removes the object if it exists; see `port.Folder`."""
        with self._explained():
            try:
                obstore.delete(self._store, self._prefix + name)
            except (FileNotFoundError, NotFoundError):
                return

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            raise PlaceError(
                f"The object store at {self._where} failed: {error}.",
                "Check its address and credentials, and that it supports conditional puts.",
            ) from error
