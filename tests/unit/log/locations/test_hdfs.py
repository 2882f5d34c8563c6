"""A request to HDFS ends within its limit, whatever of it does not answer."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from millpond.errors import UnreachableError
from millpond.log.locations import hdfs
from millpond.log.locations.hdfs import HdfsObjects, hdfs_objects


class Silent:
    """A client of a name node that stops answering before `silent` is done; it never answers again."""

    def __init__(self, silent: str) -> None:
        self._silent = silent
        self._stopped = False
        self._waiting: list[asyncio.Future[None]] = []

    async def _ask(self, what: str) -> None:
        self._stopped |= what == self._silent
        if self._stopped:
            self._waiting.append(asyncio.get_running_loop().create_future())
            await self._waiting[-1]

    def resume(self) -> None:
        """Answer everything, so that nothing is left of the requests."""
        self._stopped, self._silent = False, ""
        for waiting in self._waiting:
            loop = waiting.get_loop()
            loop.call_soon_threadsafe(lambda waiting=waiting: waiting.done() or waiting.set_result(None))

    async def mkdirs(self, *_: Any, **__: Any) -> None:
        await self._ask("mkdirs")

    async def create(self, *_: Any) -> Silent:
        await self._ask("create")
        return self

    async def write(self, _data: bytes) -> None:
        await self._ask("write")

    async def rename(self, *_: Any) -> None:
        await self._ask("rename")

    async def delete(self, _path: str) -> None:
        await self._ask("delete")

    async def __aenter__(self) -> Silent:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._ask("close")


def test_a_name_node_that_refuses_connections_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs, "_SECONDS", 0.1)  # some requests are made again until then
    with socket.socket() as nobody:  # bound, and not listening
        nobody.bind(("127.0.0.1", 0))
        objects = hdfs_objects(f"hdfs://127.0.0.1:{nobody.getsockname()[1]}/pond")
        for request in (lambda: objects.get("a"), lambda: objects.create("a", b"x"), lambda: [*objects.list()]):
            with pytest.raises(UnreachableError, match="Check its address and the network"):
                request()


@pytest.mark.parametrize("silent", ["mkdirs", "create", "write", "close", "rename"])
def test_a_write_ends_although_its_draft_cannot_be_deleted(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs, "_SECONDS", 0.01)
    client = Silent(silent)
    objects = HdfsObjects(client, "/pond", "hdfs://host/pond")  # type: ignore[arg-type]
    with ThreadPoolExecutor() as pool, pytest.raises(UnreachableError, match="it does not answer"):
        pool.submit(objects.create, "log/1", b"x").result()
    client.resume()
