"""Digests of Spark's lists of files and offsets: a changed byte is found, and a change by Spark is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.spark.reading.checkpoint_digests import DIGESTS, CheckpointDigests, changed_files, read_digests


def put(checkpoint: Path, name: str, text: str) -> None:
    path = checkpoint / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """What Spark has written by its batch 1, with digests."""
    for batch in (0, 1):
        put(tmp_path, f"sources/ev/{batch}", f'v1\n{{"path":"{batch}.json"}}')
        put(tmp_path, f"sources/millpond_tick/{batch}", f"v1\n{batch}")
        put(tmp_path, f"offsets/{batch}", f"v2\n{{}}\nev:{batch}")
    put(tmp_path, "sources/ev/.1.crc", "Hadoop's")
    CheckpointDigests().update(tmp_path, 1)
    return tmp_path


def test_all_files_that_decide_what_is_read_have_digests(checkpoint: Path) -> None:
    assert set(read_digests(checkpoint)) == {"sources/ev/0", "sources/ev/1", "offsets/0", "offsets/1"}
    assert not list(changed_files(checkpoint))


@pytest.mark.parametrize("name", ["sources/ev/0", "sources/ev/1", "offsets/1"])
def test_every_flipped_bit_is_found(checkpoint: Path, name: str) -> None:
    data = (checkpoint / name).read_bytes()
    for at in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[at // 8] ^= 1 << at % 8
        (checkpoint / name).write_bytes(damaged)
        assert list(changed_files(checkpoint)) == [checkpoint / name]


def test_files_that_spark_has_removed_or_just_written_are_not_changed(checkpoint: Path) -> None:
    (checkpoint / "sources/ev/0").unlink()
    put(checkpoint, "sources/ev/2.compact", "v1\n")
    put(checkpoint, "offsets/2", "v2\n{}\nev:2")
    assert not list(changed_files(checkpoint))
    CheckpointDigests().update(checkpoint, 2)
    assert set(read_digests(checkpoint)) == {"sources/ev/1", "sources/ev/2.compact", "offsets/1", "offsets/2"}


def test_another_process_keeps_the_digests_that_it_finds(checkpoint: Path) -> None:
    put(checkpoint, "sources/ev/1", "changed")
    CheckpointDigests().update(checkpoint, 2)
    assert list(changed_files(checkpoint)) == [checkpoint / "sources/ev/1"]


@pytest.mark.parametrize("text", ["", "[", "[]"])
def test_damaged_digests_are_ignored(checkpoint: Path, text: str) -> None:
    put(checkpoint, DIGESTS, text)
    assert not list(changed_files(checkpoint))


def test_an_epoch_goes_on_where_digests_cannot_be_stored(tmp_path: Path) -> None:
    put(tmp_path, "sources/ev/0", "v1\n")
    (tmp_path / DIGESTS).mkdir()
    CheckpointDigests().update(tmp_path, 0)
    assert not list(changed_files(tmp_path))
