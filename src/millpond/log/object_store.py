"""The log in an object store (S3, GCS, Azure, a local folder for tests): `obstore.put(mode="create")`.

The condition travels with the request (`If-None-Match: *` and its kin), so the store itself decides the race.
The client retries lost replies on its own, which is how an append can lose against itself. obstore's local
store creates by hard link but never calls fsync: use `local.LocalFolder` for a pond on a local disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import ObjectStore

from millpond.errors import PlaceError


class ObjectStoreFolder:
    """A `port.Folder` under one prefix of an object store; `where` is how a user would write it."""

    def __init__(self, store: ObjectStore, prefix: str, where: str) -> None:
        self._store = store
        self._prefix = prefix.strip("/") + "/"
        self._where = where

    @property
    def where(self) -> str:
        """The folder's address, for messages."""
        return self._where

    def create(self, name: str, data: bytes) -> bool:
        """Create the object unless its name exists; see `port.Folder`."""
        with self._explained():
            try:
                obstore.put(self._store, self._prefix + name, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
            return True

    def replace(self, name: str, data: bytes) -> None:
        """Write the object over any older one; see `port.Folder`."""
        with self._explained():
            obstore.put(self._store, self._prefix + name, data, mode="overwrite")

    def read(self, name: str) -> bytes | None:
        """Return the whole object, or None; see `port.Folder`."""
        with self._explained():
            try:
                return bytes(obstore.get(self._store, self._prefix + name).bytes())
            except (FileNotFoundError, NotFoundError):
                return None

    def exists(self, name: str) -> bool:
        """Tell whether the object is there, by a HEAD request; see `port.Folder`."""
        with self._explained():
            try:
                obstore.head(self._store, self._prefix + name)
            except (FileNotFoundError, NotFoundError):
                return False
            return True

    def names(self) -> list[str]:
        """Return all names by listing the prefix; see `port.Folder`."""
        with self._explained():
            pages = obstore.list(self._store, self._prefix)
            return [str(found["path"]).removeprefix(self._prefix) for page in pages for found in page]

    def remove(self, name: str) -> None:
        """Remove the object if it is there; see `port.Folder`."""
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
