"""Every store of files passes the conformance suite; Redis expires attempts that no record names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from kit.servers.redis_servers import RedisCluster, RedisServer
from kit.simulator.memory_files import MemoryFiles
from millpond.placement.slots import hash_tags
from millpond.state.backends import redis_files
from millpond.state.backends.redis_files import RedisFiles
from millpond.state.ports.file_store import UNNAMED_SECONDS
from millpond.state.ports.files import Files
from millpond.testing.conformance import check_file_store

TAGS = hash_tags(4)
NAME = "delta/00000000000000000012/1-a-7.1.arrow"


def test_memory_passes() -> None:
    check_file_store(MemoryFiles())


@pytest.mark.parametrize("kind", ["redis_server", "redis_cluster"])
def test_redis_passes(kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = request.getfixturevalue(kind)
    servers.flush()
    monkeypatch.setattr(redis_files, "PIECE_BYTES", 1 << 20)
    for pond in ("one", "two"):
        files = RedisFiles(servers.url, pond, TAGS)
        check_file_store(files)
        files.close()


def test_an_attempt_is_discarded_unless_it_is_taken(redis_server: RedisServer) -> None:
    redis_server.flush()
    files = RedisFiles(f"{redis_server.url}?prefix=p", "pond", TAGS)
    key = f"p:{{{TAGS[1]}}}:pond:file:{NAME}"
    with redis.Redis.from_url(redis_server.url) as client:
        files.put(NAME, [b"abc"])
        assert 0 < client.ttl(key) <= UNNAMED_SECONDS
        assert files.get_many([NAME]) == [b"abc"]
        assert client.ttl(key) > 0
        assert files.take_many([NAME]) == [b"abc"]
        assert client.ttl(key) == -1
        client.hset(key, "size", 4)
        assert files.get_many([NAME]) == [None], "a torn file is none"
        client.hdel(key, "size")
        assert files.lacking([NAME]) == [NAME]
    files.close()


def test_files_lie_with_the_rows_of_the_instance_that_wrote_them(redis_cluster: RedisCluster) -> None:
    redis_cluster.flush()
    tags = hash_tags(3)
    files = RedisFiles(redis_cluster.url, "pond", tags)
    for instance in range(3):
        files.put(f"delta/{1:020d}/{instance}-a-0.0.arrow", [b"x"])
    files.close()
    with redis.RedisCluster.from_url(redis_cluster.url) as client:
        for instance, tag in enumerate(tags):
            key = f"mp:{{{tag}}}:pond:file:delta/{1:020d}/{instance}-a-0.0.arrow"
            assert client.exists(key)
            assert client.get_node_from_key(key) == client.get_node_from_key(f"mp:{{{tag}}}:meta")


WRITING: dict[str, Callable[[Files, str], object]] = {
    "write": lambda files, name: files.write(name, [b"new"]),
    "message": lambda files, name: files.write_message(name, b"new"),
    "rename": lambda files, name: files.rename({"staged": name}),
}


@pytest.mark.parametrize("way", WRITING)
def test_a_folder_that_a_sweep_removes_before_its_first_file_is_made_again(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of an epoch is empty until its first task opens a file, and pruning removes empty folders."""
    folder = tmp_path / "delta" / f"{7:020d}"
    (tmp_path / "staged").write_bytes(b"new")
    made, swept = Path.mkdir, list[Path]()

    def make_and_sweep(path: Path, *arguments: Any, **named: Any) -> None:
        made(path, *arguments, **named)
        if path == folder and not swept:
            swept.append(path)
            assert not list(Files(tmp_path).written())
            assert not folder.exists()

    monkeypatch.setattr(Path, "mkdir", make_and_sweep)
    WRITING[way](Files(tmp_path), f"delta/{folder.name}/0-a.arrow")
    assert swept == [folder]
    assert (folder / "0-a.arrow").read_bytes() == b"new"
