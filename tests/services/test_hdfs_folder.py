"""Tests of files in HDFS: one writer wins, bytes are as written, empty folders are removed, errors name the place."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hdfs_native import AsyncClient, Client, WriteOptions

from kit.inputs.folder_suite import FolderSuite
from kit.servers.hdfs_server import HdfsServer
from millpond.errors import PlaceError
from millpond.log.locations import hdfs
from millpond.log.locations.address import address_of
from millpond.log.locations.hdfs import HdfsObjects, hdfs_objects
from millpond.log.locations.objects import ObjectFolder


@pytest.fixture
def objects(hdfs_server: HdfsServer, tmp_path: Path) -> HdfsObjects:
    """The objects of an empty folder, which does not exist yet."""
    return hdfs_objects(f"{hdfs_server.uri}/{tmp_path.name}/pond")


class TestHdfs(FolderSuite):
    """Threads race as processes of several hosts do: nothing but the name node decides who wins."""

    races = 3

    @pytest.fixture
    def folder(self, objects: HdfsObjects) -> ObjectFolder:
        return ObjectFolder(objects.below("log"))


def test_objects_are_those_that_were_written(objects: HdfsObjects, tmp_path: Path) -> None:
    deltas = objects.below("delta")
    large = bytes(range(256)) * 40_000
    assert [*deltas.list()] == []
    deltas.put("1/a", b"old")
    deltas.put("1/a", large)
    deltas.put("2/b", b"")
    assert deltas.get("1/a") == large and deltas.get("2/b") == b"" and deltas.get("2/c") is None
    assert deltas.get_file("1/a", tmp_path / "copy") and (tmp_path / "copy").read_bytes() == large
    assert not deltas.get_file("2/c", tmp_path / "none") and not (tmp_path / "none").exists()
    assert deltas.sizes(["1/a", "2/b", "2/c"]) == [len(large), 0, None]
    deltas.rename("1/a", "3/a")
    assert sorted(objects.list()) == [("delta/2/b", 0), ("delta/3/a", len(large))]


def test_folders_that_become_empty_are_removed(objects: HdfsObjects, hdfs_server: HdfsServer, tmp_path: Path) -> None:
    for name in ("delta/1/a", "delta/1/b", "delta/2/a"):
        objects.put(name, b"x")
    objects.remove(["delta/1/a", "delta/2/a", "delta/9/missing"])
    found = Client(hdfs_server.uri).list_status(f"/{tmp_path.name}/pond", recursive=True)
    assert sorted(status.path.partition("/pond/")[2] for status in found) == ["delta", "delta/1", "delta/1/b"]


def test_only_its_owner_may_read_a_pond(objects: HdfsObjects, hdfs_server: HdfsServer, tmp_path: Path) -> None:
    objects.put("log/1", b"x")
    assert Client(hdfs_server.uri).get_file_info(f"/{tmp_path.name}/pond").permission == 0o700


def test_unfinished_files_are_not_listed_and_go_after_a_day(
    objects: HdfsObjects, hdfs_server: HdfsServer, tmp_path: Path
) -> None:
    client, folder = Client(hdfs_server.uri), f"/{tmp_path.name}/pond/log"
    for name in (".tmp-new", ".tmp-old"):
        with client.create(f"{folder}/{name}", WriteOptions(create_parent=True)) as file:
            file.write(b"x")
    client.set_times(f"{folder}/.tmp-old", 1, 1)
    assert [*objects.list()] == []
    assert [status.path for status in client.list_status(folder)] == [f"{folder}/.tmp-new"]


def test_a_folder_that_cannot_be_made_is_named(objects: HdfsObjects) -> None:
    objects.put("file", b"in the way")
    with pytest.raises(PlaceError, match=r"MP-PLACE.*/pond/file failed: .*not a directory") as refused:
        objects.below("file").put("log/1", b"x")
    assert "\\n" not in str(refused.value) and "org.apache" not in str(refused.value)


MOUNTS = """<configuration>
<property><name>fs.viewfs.mounttable.{table}.link./ponds</name><value>{uri}/{table}/below</value></property>
<property><name>fs.viewfs.mounttable.{table}.linkFallback</name><value>{uri}/</value></property>
</configuration>"""


def test_a_mount_table_leads_to_the_same_files(
    hdfs_server: HdfsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "core-site.xml").write_text(MOUNTS.format(table=tmp_path.name, uri=hdfs_server.uri))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    mounted = hdfs_objects(str(address_of(f"viewfs://{tmp_path.name}/ponds/a")))
    assert mounted.create("log/1", b"x") and not mounted.create("log/1", b"y")
    mounted.put("delta/1/a", b"abc")
    mounted.rename("delta/1/a", "delta/2/a")
    plain = hdfs_objects(f"{hdfs_server.uri}/{tmp_path.name}/below/a")
    assert sorted(mounted.list()) == sorted(plain.list()) == [("delta/2/a", 3), ("log/1", 1)]
    assert plain.get("delta/2/a") == b"abc"
    mounted.remove(["delta/2/a"])
    assert [*plain.list()] == [("log/1", 1)]


@pytest.fixture
def paused(hdfs_server: HdfsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A name node that does not answer, and a short limit."""
    monkeypatch.setattr(hdfs, "_SECONDS", 0.5)
    hdfs_server.pause()
    yield
    hdfs_server.resume()


def test_a_name_node_that_does_not_answer_is_an_error(objects: HdfsObjects, paused: None) -> None:
    with pytest.raises(PlaceError, match="it does not answer"):
        objects.get("log/1")
    with ThreadPoolExecutor() as pool, pytest.raises(PlaceError, match="it does not answer"):
        pool.submit(objects.create, "log/1", b"x").result()


def test_a_name_without_a_service_is_refused() -> None:
    with pytest.raises(PlaceError, match="No NameNode hosts found"):
        hdfs_objects("hdfs://no-such-service/pond")
    assert isinstance(hdfs_objects("hdfs://127.0.0.1:1/pond")._client, AsyncClient)
