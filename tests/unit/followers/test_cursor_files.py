"""Cursors of a pond in an object store are objects: kept between processes and hosts, with the same content."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore.store import MemoryStore

from millpond.errors import CorruptError
from millpond.followers import cursors
from millpond.followers.cursors import CursorFile, cursor_path, make_folder
from millpond.log.cursor import Cursor
from millpond.log.locations import address
from millpond.log.locations.address import address_of
from millpond.log.locations.object_store import StoreObjects
from millpond.log.locations.objects import Objects


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Objects:
    store = MemoryStore()

    def opened(url: str, seconds: float | None = None) -> Objects:
        return StoreObjects(store, url.partition("://bucket/")[2], url)

    monkeypatch.setattr(address, "objects_at", opened)
    return opened("s3://bucket/pond")


def test_a_cursor_is_an_object_with_the_content_of_the_file(bucket: Objects, tmp_path: Path) -> None:
    remote, local = address_of("s3://bucket/pond") / "cursors", address_of(tmp_path) / "cursors"
    for place in (remote, local):
        make_folder(place)
        file = CursorFile(cursor_path(place, "a/b", "kafka"), lasting=True)
        assert file.read() == Cursor()
        file.write(Cursor(7, "mark"))
        file.write(Cursor(8, "mark"))
        assert CursorFile(cursor_path(place, "a/b", "kafka")).read() == Cursor(8, "mark")
    assert bucket.get("cursors/a%2Fb.kafka") == (tmp_path / "cursors" / "a%2Fb.kafka").read_bytes()
    assert cursors.local_of(local) == tmp_path / "cursors" and cursors.local_of(remote) is remote


def test_a_damaged_cursor_is_named_by_its_address(bucket: Objects) -> None:
    file = CursorFile(address_of("s3://bucket/pond") / "cursors" / "q.kafka", lasting=True)
    bucket.put("cursors/q.kafka", b"{")
    with pytest.raises(CorruptError, match=r"s3://bucket/pond/cursors/q\.kafka, is damaged"):
        file.read()
