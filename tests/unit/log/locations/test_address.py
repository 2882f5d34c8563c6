"""Tests of the addresses of ponds: what is accepted, what is refused by name, and which folders follow from it."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from millpond.errors import PlaceError, SetupError
from millpond.log.locations.address import OTHERS, SCHEMES, Address, address_of
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.locations.objects import ObjectFolder
from millpond.version import install


def test_a_path_is_a_folder_of_this_machine(tmp_path: Path) -> None:
    for given in (tmp_path / "pond", str(tmp_path / "pond"), f"file://{tmp_path}/pond"):
        assert address_of(given) == Address(f"{tmp_path}/pond", tmp_path / "pond")
    assert address_of("pond", home=tmp_path).path == tmp_path / "pond"
    folder = address_of(tmp_path / "pond").folder("log")
    assert isinstance(folder, LocalFolder) and folder.where == f"{tmp_path}/pond/log"


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/a", "s3a://bucket/a/b", "gs://bucket/a", "az://container/a", "abfss://c@account.x/a",
        "hdfs://host:8020/a/b", "hdfs://service/a",
    ],
)  # fmt: skip
def test_a_url_is_a_prefix_of_an_object_store_or_a_folder_of_hdfs(text: str) -> None:
    for given in (text, f"{text}/", Path(text)):
        assert str(address_of(given)) == text and address_of(given).path is None
    address = address_of(text)
    assert address_of(address) is address and pickle.loads(pickle.dumps(address)) == address


@pytest.mark.parametrize(("text", "cure"), [
    ("ftp://host/a", "Name a path of this machine, `s3://BUCKET/PREFIX`"),
    ("ofs://host/volume/bucket/a", "`s3://BUCKET/PREFIX`, and set `AWS_ENDPOINT_URL` to the address of Ozone's S3"),
    ("o3fs://bucket.volume/a", "Ozone's S3 gateway"),
    ("webhdfs://host:9870/a", "hdfs://HOST:PORT/PATH"),
    ("wasbs://c@account.blob.core.windows.net/a", "abfss://CONTAINER@ACCOUNT"),
    ("S3N://bucket/a", "s3://BUCKET/PREFIX"),
    ("oss://bucket/a", "AWS_ENDPOINT_URL"),
    ("dbfs:/a", "the object store below it"),
    ("maprfs:///a", "Mount it"),
])  # fmt: skip
def test_another_scheme_is_refused_by_name_with_another_way(text: str, cure: str) -> None:
    with pytest.raises(PlaceError, match=f"cannot be at {text.partition(':')[0].lower()}://") as refused:
        address_of(text)
    assert cure in str(refused.value)


def test_no_supported_scheme_is_refused() -> None:
    assert not {*OTHERS} & {*SCHEMES}


@pytest.mark.parametrize("text", ["s3://bucket", "s3://bucket/", "s3:///a"])
def test_an_address_names_a_bucket_and_a_prefix(text: str) -> None:
    with pytest.raises(PlaceError, match="names no prefix of a bucket"):
        address_of(text)


@pytest.mark.parametrize("text", ["hdfs:///a", "hdfs://host", "hdfs://host:8020/"])
def test_an_address_of_hdfs_names_a_name_node_and_a_folder(text: str) -> None:
    with pytest.raises(PlaceError, match=f"{text}.* names no name node, or no folder.*hdfs://SERVICE/PATH"):
        address_of(text)


def test_hdfs_needs_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    monkeypatch.delitem(sys.modules, "millpond.log.locations.hdfs", raising=False)
    with pytest.raises(SetupError, match="The library for hdfs is missing") as refused:
        address_of("hdfs://host/a").folder("log")
    assert install("hdfs") in refused.value.cure


@pytest.mark.parametrize(
    "text", ["s3://key:secret@bucket/a", "abfss://c:secret@account.x/a", "az://container/a?sig=secret", "s3://k@b/a", "hdfs://user:secret@host/a"]
)
def test_secrets_in_an_address_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(PlaceError, match="with a password or options") as refused:
        address_of(text)
    assert "secret" not in str(refused.value)


def test_the_folders_of_a_bucket_are_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    address = address_of("s3://bucket/a")
    log, root = address.folder("log"), address.folder()
    assert isinstance(log, ObjectFolder) and log.where == "s3://bucket/a/log"
    assert root.where == "s3://bucket/a"
