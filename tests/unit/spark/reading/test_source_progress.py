"""What a source has read according to a checkpoint, from folders as Spark leaves them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millpond.errors import CorruptError
from millpond.log.file_lists import ListedFile
from millpond.runtime.inputs.backfill import PastEpoch
from millpond.spark.reading.source_progress import first_offsets, listed_files, offsets_of, records_in


def entry(batch: int, name: str = "") -> str:
    path = f"file:///in/{name or batch}.json"
    return json.dumps({"path": path, "timestamp": 1_700_000_000_000 + batch, "batchId": batch})


def write(folder: Path, name: str, *lines: str) -> None:
    (folder / name).write_text("\n".join(("v1", *lines)))


def test_files_are_listed_by_the_batch_that_read_them_whatever_was_merged(tmp_path: Path) -> None:
    for batch in range(3):
        write(tmp_path, str(batch), entry(batch))
    assert [one.batch for one in listed_files(tmp_path, -1, 1)] == [0, 1]
    # Spark merges batches, and deletes those before it some time later
    write(tmp_path, "2.compact", entry(0), entry(1), entry(2))
    (tmp_path / "0").unlink()
    write(tmp_path, "3", entry(3, "a%20b"), entry(3, "c"))
    (tmp_path / ".3.crc").write_bytes(b"")
    found = listed_files(tmp_path, -1, 3)
    assert [one.batch for one in found] == [0, 1, 2, 3, 3]
    assert found[3] == ListedFile("file:///in/a%20b.json", 1_700_000_000_003, 3)
    assert found[3].decoded == "file:///in/a b.json"
    assert listed_files(tmp_path, 0, 2) == found[1:3]
    assert listed_files(tmp_path, 1, 2) == found[2:3], "the compaction holds the batch"
    assert [one.batch for one in listed_files(tmp_path, -1, 1)] == [0, 1]
    assert listed_files(tmp_path, -1, -1) == []


def test_a_list_with_a_hole_is_not_taken_for_whole(tmp_path: Path) -> None:
    write(tmp_path, "0", entry(0))
    write(tmp_path, "2", entry(2))
    with pytest.raises(CorruptError, match="lacks batch 1"):
        listed_files(tmp_path, -1, 2)
    with pytest.raises(CorruptError, match="cannot be read"):
        listed_files(tmp_path / "none", -1, 2)
    with pytest.raises(CorruptError, match="cannot be read"):
        listed_files(tmp_path, 2, 3)
    write(tmp_path, "1", "{")
    with pytest.raises(CorruptError, match="does not decode"):
        listed_files(tmp_path, -1, 2)


def test_of_a_large_compaction_only_the_end_is_read_but_all_of_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.spark.reading.source_progress._TAIL_BYTES", 100)
    write(tmp_path, "9.compact", *(entry(batch) for batch in range(9)), *(entry(9, str(n)) for n in range(50)))
    assert listed_files(tmp_path, 8, 9) == [one for one in listed_files(tmp_path, -1, 9) if one.batch == 9]
    write(tmp_path, "0.compact", entry(0))
    assert [one.batch for one in listed_files(tmp_path, -1, 0)] == [0]


def test_kafka_begins_where_its_first_batch_did(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(b'\0v1\n{"t":{"0":5,"1":0}}')
    first = first_offsets(tmp_path)
    assert offsets_of("", first) == {"t": {"0": 5, "1": 0}}
    # a partition that came later begins with 0
    epochs = [
        PastEpoch(1, "", '{"t":{"0":7,"1":2}}', None, None, {}, {}),
        PastEpoch(2, '{"t":{"0":7,"1":2}}', '{"t":{"0":9,"1":2,"2":4}}', None, None, {}, {}),
    ]
    assert records_in(epochs, first) == 10
    assert records_in(epochs[1:], first) == 6
    assert records_in([], first) == 0
    with pytest.raises(CorruptError, match="Where none began"):
        first_offsets(tmp_path / "none")
