"""Reads and writes files of HDFS with hdfs-native, a client without Java, so workers need no Hadoop either.

A file is written under a temporary name, and appears when it is renamed. The name node refuses to rename to a name that
exists, so it decides which writer wins. The client compares the checksums of what it reads.

The name node, or the pair of a name service, and the settings of security are those of `core-site.xml` and
`hdfs-site.xml` in `HADOOP_CONF_DIR`, if there are such files. Credentials are a ticket of Kerberos or a token of
Hadoop; without security, the user is `HADOOP_USER_NAME`, else that of the process. An address with `viewfs://` names a
mount table of `core-site.xml`. A pond lies below one of its links, because files are not renamed across links.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from hdfs_native import AsyncClient, WriteOptions

from millpond.clock import now_us
from millpond.errors import PlaceError, UnreachableError
from millpond.log.locations.objects import PARALLEL, Objects
from millpond.tokens import writer_token

T = TypeVar("T")

_SECONDS = 20.0
"""The longest time of one request, and of each `_LEAST_RATE` bytes besides: a host that was cut off does not answer."""

_LEAST_RATE = 2 << 20
_OWNER_ONLY = 0o700
_DRAFT = ".tmp-"
"""How the last part of a temporary name begins."""

_DRAFT_MS = 86_400_000
_OS_ERROR = "(os error "
"""In the text of an error of a connection."""

_PANIC = "PanicException"
"""The client's versions since 0.14.5 panic in the wait before they try again to connect. This is no `Exception`."""

_REASON = re.compile(r'^\w+\("(?:[\w.]*", ")?(.*?)(?:\\n.*)?"\)$', re.DOTALL)
"""An error of the client: its kind, often a class of Java, and a message with the trace of the name node."""


class HdfsObjects(Objects):
    """The files below one folder; `root` is the folder of the pond, which only its owner may read."""

    def __init__(self, client: AsyncClient, root: str, where: str, prefix: str = "") -> None:
        self._client = client
        self._root = root
        self._path = root + prefix
        self._made = False
        self.where = where

    def below(self, name: str) -> HdfsObjects:
        prefix = f"{self._path.removeprefix(self._root)}/{name}"
        return HdfsObjects(self._client, self._root, f"{self.where}/{name}", prefix)

    def create(self, name: str, data: bytes) -> bool:
        try:
            self._await(self._written(name, data, overwrite=False), len(data))
        except FileExistsError:
            return False
        return True

    def put(self, name: str, data: bytes) -> None:
        self._await(self._written(name, data, overwrite=True), len(data))

    async def _written(self, name: str, data: bytes, *, overwrite: bool) -> None:
        if not self._made:
            await self._client.mkdirs(self._root, _OWNER_ONLY, create_parent=True)
            self._made = True
        path = f"{self._path}/{name}"
        folder, _, last = path.rpartition("/")
        draft = f"{folder}/{_DRAFT}{last}.{writer_token()}"
        try:
            async with await self._client.create(draft, WriteOptions(create_parent=True)) as file:
                await file.write(data)
            await self._client.rename(draft, path, overwrite)
        except BaseException:
            with suppress(Exception):
                await self._client.delete(draft)
            raise

    def get(self, name: str) -> bytes | None:
        try:
            reader = self._await(self._client.read(f"{self._path}/{name}"))
            return self._await(reader.read(), len(reader))
        except FileNotFoundError:
            return None

    def get_file(self, name: str, path: Path) -> bool:
        try:
            reader = self._await(self._client.read(f"{self._path}/{name}"))
        except FileNotFoundError:
            return False
        with path.open("wb") as file:
            self._await(_copied(reader.read_range_stream(0, len(reader)), file), len(reader))
        return True

    def size(self, name: str) -> int | None:
        try:
            return int(self._await(self._client.get_file_info(f"{self._path}/{name}")).length)
        except FileNotFoundError:
            return None

    async def _statuses(self) -> list[Any]:
        try:
            return [found async for found in self._client.list_status(self._path, recursive=True) if not found.isdir]
        except FileNotFoundError:
            return []

    def list(self, after: str = "") -> Iterator[tuple[str, int]]:
        # Temporary files of processes that were killed long ago are removed, since nothing else would.
        oldest, left = now_us() // 1000 - _DRAFT_MS, []
        for found in self._await(self._statuses()):
            name = found.path.removeprefix(f"{self._path}/")
            if not name.rpartition("/")[2].startswith(_DRAFT):
                if name > after:
                    yield name, int(found.length)
            elif found.modification_time < oldest:
                left.append(name)
        self.remove(left)

    def rename(self, name: str, to: str) -> None:
        self._await(self._renamed(f"{self._path}/{name}", f"{self._path}/{to}"))

    async def _renamed(self, path: str, to: str) -> None:
        await self._client.mkdirs(to.rpartition("/")[0], _OWNER_ONLY, create_parent=True)
        await self._client.rename(path, to, overwrite=True)

    def remove(self, names: Iterable[str]) -> None:
        # Folders that become empty are removed, too.
        paths = [f"{self._path}/{name}" for name in names]
        folders = {path.rpartition("/")[0] for path in paths}
        self._made = False
        self._await(self._deleted(paths))
        with suppress(PlaceError):  # a folder that is not empty, or that another process removes
            self._await(self._deleted(sorted(folders)))

    async def _deleted(self, paths: Iterable[str]) -> None:
        turns = asyncio.Semaphore(PARALLEL)

        async def delete(path: str) -> None:
            async with turns:
                await self._client.delete(path)

        for outcome in await asyncio.gather(*map(delete, paths), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def _await(self, request: Coroutine[Any, Any, T], size: int = 0) -> T:
        """The result of a request that transfers about `size` bytes; FileNotFoundError and FileExistsError as usual."""
        limit = _SECONDS * (1 + size / _LEAST_RATE)
        with self._explained():
            return asyncio.run_coroutine_threadsafe(_within(request, limit), _loop()).result()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except TimeoutError as error:
            raise _unreachable(self.where, "it does not answer") from error
        except (OSError, RuntimeError, ValueError) as error:
            failed = _unreachable if _OS_ERROR in str(error) else _refused
            raise failed(self.where, _reason(error)) from error
        except BaseException as error:
            if type(error).__name__ != _PANIC:
                raise
            raise _unreachable(self.where, "no connection to a name node can be made") from error


async def _within(request: Coroutine[Any, Any, T], limit: float) -> T:
    """The result of a request; after the limit it is cancelled.

    `asyncio.wait_for` would also wait for what the request does when it is cancelled, such as deleting its draft.
    """
    task = asyncio.ensure_future(request)
    done, _ = await asyncio.wait({task}, timeout=limit)
    if not done:
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody else looks at it
        task.cancel()
        raise TimeoutError
    return task.result()


async def _copied(chunks: AsyncIterator[bytes], file: Any) -> None:
    async for chunk in chunks:
        file.write(chunk)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all requests of this process, in a thread of its own."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="hdfs", daemon=True).start()
    return loop


@cache
def hdfs_objects(url: str) -> HdfsObjects:
    """The files below an address such as `hdfs://host:8020/ponds/a`; opened once per process, without a request.

    Raises:
        PlaceError: the address, or a setting of Hadoop, is not valid.
    """
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    try:
        return HdfsObjects(AsyncClient(f"{scheme}://{host}"), f"/{path}", url)
    except (OSError, RuntimeError, ValueError) as error:
        raise _refused(url, _reason(error)) from error


def _refused(where: str, reason: str) -> PlaceError:
    return PlaceError(
        f"HDFS at {where} failed: {reason.rstrip('.')}.",
        "Check its address, `HADOOP_CONF_DIR`, and that your user, or `HADOOP_USER_NAME`, may write there.",
    )


def _unreachable(where: str, reason: str) -> UnreachableError:
    return UnreachableError(
        f"HDFS at {where} failed: {reason.rstrip('.')}.",
        "Check its address and the network, and that its name node runs; then start again.",
    )


def _reason(error: Exception) -> str:
    """The message of an error, without the name node's trace."""
    return _REASON.sub(r"\1", str(error).splitlines()[0] if str(error) else type(error).__name__)
