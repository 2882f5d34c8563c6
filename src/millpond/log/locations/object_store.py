"""Reads and writes objects of S3, Google Cloud Storage or Azure, or of a local folder for tests, with obstore.

The condition of a create is part of the request (`If-None-Match: *` or similar), so the store itself decides which
writer wins. A request whose reply is lost is made again, so an append can lose against itself. obstore's local store
creates files by hard link but never calls fsync: use `local_folder.LocalFolder` for a pond on a local disk.

Credentials are found by obstore, as the platform's own tools find them: in the environment, in the files of a
container's or workload's identity, or at the metadata service of the instance.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, ObjectStore, from_url

from millpond.clock import Clock, lap_us
from millpond.errors import CorruptError, PlaceError, UnreachableError
from millpond.log.locations.objects import Objects

if TYPE_CHECKING:  # these types exist for type checkers only
    from obstore.store import ClientConfig, RetryConfig

ONE_PUT_BYTES = 64 << 20
"""Objects up to this size are written with one request, larger ones in parts of this size."""

CONNECT_SECONDS, SILENT_SECONDS, RETRY_SECONDS = 3.0, 10.0, 20.0
"""A connection must be made, and the next bytes of a reply must arrive, within the first two of these times. After the
third, a request that fails is not made again.
"""

_REQUEST_SECONDS = 300.0
"""The longest time of a request whose bytes keep arriving."""

_VARIABLES = {"s": "AWS_", "g": "GOOGLE_", "a": "AZURE_"}
"""The beginning of the names of obstore's variables, by the first letter of a scheme."""

_FROM_ENVIRONMENT = (
    "allow_http", "allow_invalid_certificates", "proxy_url", "proxy_excludes", "connect_timeout", "read_timeout",
    "timeout",
)  # fmt: skip
"""Settings of the client that obstore reads from the environment only if it is given no other."""

_CHUNK_BYTES = 4 << 20
_DELETED_AT_ONCE = 1000
_DIGEST = "millpond-sha256"
"""The name under which an object carries the SHA-256 of its content."""

_OMITTED = re.compile(r"\?[^\s<]*|:? *<.*")
"""Query strings, which may contain signatures, and bodies of replies, which say the same as the status."""
_LONGEST_MESSAGE = 300

_UNREACHABLE = re.compile(r"HTTP error(?!: builder error)|status code: (408|429|5(?!01)\d\d)\b")
"""In the first line of an error after which the same request may succeed: no connection, no reply in time, an error of
the server. The client has made the request again before, except a create that got no reply in time. Stores without
conditional puts may answer them with 501, which is final.
"""


class StoreObjects(Objects):
    """The objects under one prefix of a store; each carries the SHA-256 of its content.

    `again_seconds`: for how long a create that got no reply is made again. A store that does not answer in time raises
    UnreachableError.
    """

    def __init__(
        self, store: ObjectStore, prefix: str, where: str, again_seconds: float = RETRY_SECONDS, clock: Clock = lap_us
    ) -> None:  # fmt: skip
        self._store = store
        self._again_seconds, self._clock = again_seconds, clock
        self._prefix = f"{prefix.strip('/')}/".lstrip("/")
        self._carries_digests = not isinstance(store, LocalStore)  # files have no attributes
        self.where = where

    def below(self, name: str) -> StoreObjects:
        where = f"{self.where.rstrip('/')}/{name}"
        return StoreObjects(self._store, self._prefix + name, where, self._again_seconds, self._clock)

    def create(self, name: str, data: bytes) -> bool:
        until = self._clock() + round(self._again_seconds * 1e6)
        while True:
            try:
                with self._explained():
                    self._put(name, data, "create")
            except AlreadyExistsError:
                return False
            except UnreachableError:
                if self._clock() >= until:
                    raise
            else:
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
        sha256 = hashlib.sha256()
        with self._explained():
            try:
                reply = obstore.get(self._store, self._prefix + name)
            except (FileNotFoundError, NotFoundError):
                return False
            with path.open("wb") as file:
                for chunk in reply.stream(min_chunk_size=_CHUNK_BYTES):
                    sha256.update(chunk)
                    file.write(chunk)
        if (digest := reply.attributes.get(_DIGEST)) not in (None, sha256.hexdigest()):
            raise CorruptError(
                f"{self.where}/{name} has the digest {sha256.hexdigest()} instead of {digest}.",
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

    def list(self, after: str = "") -> Iterator[tuple[str, int]]:
        # S3 and Google Cloud Storage begin the listing behind this name; for others the client leaves names out.
        offset = self._prefix + after if after else None
        with self._explained():
            for page in obstore.list(self._store, self._prefix or None, offset=offset):
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
        except AlreadyExistsError:
            raise
        except (BaseError, OSError) as error:
            what = f"The object store at {self.where} failed: {_reason(error)}"
            if _UNREACHABLE.search(str(error).partition("\n")[0]):
                cure = "Check the network, and that the store is available; then start again."
                raise UnreachableError(what, cure) from error
            raise PlaceError(
                what, "Check its address and credentials, and that it supports conditional puts."
            ) from error


@cache
def store_objects(url: str, seconds: float | None = None) -> StoreObjects:
    """The objects below an address such as `s3://bucket/prefix`; opened once per process and limit.

    `seconds`: a request must be complete within this time, and is not made again after it, so it fails within twice
    this time; None: the limits of this module.

    Raises:
        PlaceError: the address, or the configuration in the environment, is not valid.
    """
    again = RETRY_SECONDS if seconds is None else seconds
    retry: RetryConfig = {"retry_timeout": timedelta(seconds=again)}
    try:
        store = from_url(url, client_options=_client_options(url, seconds), retry_config=retry)
    except (BaseError, OSError, ValueError) as error:
        raise PlaceError(f"{url} cannot be opened: {_reason(error)}", "Correct the address.") from error
    return StoreObjects(store, "", url, again)


def _client_options(url: str, seconds: float | None) -> ClientConfig:
    """The settings of the environment, which give way to `seconds`, and before which the limits of this module do."""
    names = {name: f"{_VARIABLES.get(url[:1], '')}{name.upper()}" for name in _FROM_ENVIRONMENT}
    given = {name: os.environ[variable] for name, variable in names.items() if variable in os.environ}
    default = _limits(CONNECT_SECONDS, SILENT_SECONDS, _REQUEST_SECONDS)
    limits = {} if seconds is None else _limits(seconds, seconds, seconds)
    return cast("ClientConfig", {**default, **given, **limits})


def _limits(connect: float, silent: float, request: float) -> dict[str, timedelta]:
    seconds = {"connect_timeout": connect, "read_timeout": silent, "timeout": request}
    return {name: timedelta(seconds=limit) for name, limit in seconds.items()}


def _reason(error: Exception) -> str:
    """The first line of an error, without what is not for messages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return f"{_OMITTED.sub('', lines[0])[:_LONGEST_MESSAGE].rstrip('.')}."
