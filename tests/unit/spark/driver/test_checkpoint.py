"""Spark's checkpoints: each driver makes its own from the log; only ponds of earlier versions need an older one."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import pytest

from millpond.errors import CorruptError, OffsetGapError
from millpond.log.file_lists import ListedFile, file_list
from millpond.log.manifest import Manifest, SourceState
from millpond.log.records import FileList, Offsets
from millpond.spark.driver.checkpoint import (
    check_names,
    copy_checkpoint,
    make_checkpoint,
    query_id,
    read_offsets,
    read_taken,
    set_query_id,
)
from millpond.spark.driver.earlier_checkpoint import DIGESTS
from millpond.spark.reading.source_progress import listed_files

KAFKA: Offsets = {"clicks": '{"clicks":{"0":7}}'}
FILES: Offsets = {"events": '{"logOffset":2}'}
NO_LISTS: dict[str, FileList] = {}


def put(file: Path, text: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def manifest(offsets: Offsets, batch: int = 4, sources: dict[str, SourceState] | None = None) -> Manifest:
    known = {name: SourceState() for name in offsets} if sources is None else sources
    return Manifest(n=9, epoch_n=9, spark_query="q", batch=batch, offsets=offsets, sources=known)


def made(root: Path, claim: int = 0, of: Manifest | None = None) -> Path:
    return make_checkpoint(root, claim, manifest(KAFKA) if of is None else of, NO_LISTS, 10)


def read(*batches: int) -> list[ListedFile]:
    """Two files of each batch."""
    return [ListedFile(f"file:///in/{batch}%20{n}", 7, batch) for batch in batches for n in range(2)]


def earlier(folder: Path, query: str = "q", upto: int = 2) -> Path:
    """What Spark has left where an earlier version ran."""
    put(folder / "metadata", json.dumps({"id": query}))
    for batch in range(upto + 1):
        lines = [json.dumps({"path": one.path, "timestamp": 7, "batchId": batch}) for one in read(batch)]
        put(folder / "sources" / "events" / str(batch), "\n".join(["v1", *lines]))
    return folder


def files(folder: Path) -> set[str]:
    return {os.path.relpath(os.path.join(place, name), folder) for place, _, names in os.walk(folder) for name in names}


def test_a_log_without_epochs_gives_an_empty_checkpoint(tmp_path: Path) -> None:
    assert files(made(tmp_path, 0, Manifest(n=0))) == set()


def test_the_last_epoch_is_the_last_committed_batch(tmp_path: Path) -> None:
    folder = made(tmp_path, 3, manifest({**KAFKA, "millpond_tick": "99"}))
    assert (query_id(folder), read_offsets(folder, 4), read_offsets(folder, 3)) == ("q", KAFKA, KAFKA)
    assert files(folder) == {"metadata", "offsets/3", "offsets/4", "commits/4"}
    first = made(tmp_path, 5, manifest(KAFKA, batch=0))
    assert files(first) == {"metadata", "offsets/0", "commits/0"}


def test_the_time_of_offsets_is_stored_with_them_if_spark_wrote_it(tmp_path: Path) -> None:
    folder = made(tmp_path)
    assert read_taken(folder, 4).at_us == 0, "the driver wrote them"
    put(folder / "offsets" / "5", 'v2\n{"batchWatermarkMs":0,"batchTimestampMs":1795641628768,"conf":{}}\nclicks:-')
    assert (read_taken(folder, 5).at_us, read_offsets(folder, 5)) == (1795641628768000, {})
    with pytest.raises(CorruptError, match="batch 6"):
        read_taken(folder, 6)


def test_an_offset_of_another_stream_is_refused(tmp_path: Path) -> None:
    check_names({**KAFKA, "millpond_tick": "1"}, ["clicks", "later"])
    with pytest.raises(OffsetGapError, match="of clicks, not of tx"):
        check_names(KAFKA, ["tx"])


@pytest.mark.parametrize("interval", [1, 3, 10])
@pytest.mark.parametrize("last", [0, 2, 8, 9, 10, 19, 25])
def test_lists_of_files_are_laid_out_as_by_spark(tmp_path: Path, last: int, interval: int) -> None:
    entries = read(*range(last + 2))  # and one batch that is not in the log
    of = manifest({"events": f'{{"logOffset":{last}}}'}, sources={"events": SourceState(last)})
    lists = make_checkpoint(tmp_path, 0, of, {"events": file_list(entries)}, interval) / "sources" / "events"
    assert listed_files(lists, -1, last) == entries[:-2]
    names = {path.name for path in lists.iterdir()}
    merged = {name for name in names if name.endswith(".compact")}
    assert len(merged) == (last + 1 >= interval)
    assert all((int(name.removesuffix(".compact")) + 1) % interval == 0 for name in merged)
    assert all((int(name) + 1) % interval for name in names - merged)


def test_what_other_sources_keep_is_written_byte_by_byte(tmp_path: Path) -> None:
    every = bytes(range(256))
    state = SourceState(stored={"0": '\0v1\n{"clicks":{"0":1}}', "deep/er": every.decode("latin-1")})
    folder = made(tmp_path, of=manifest(KAFKA, sources={"clicks": state})) / "sources" / "clicks"
    assert (folder / "0").read_bytes() == b'\0v1\n{"clicks":{"0":1}}' and (folder / "deep" / "er").read_bytes() == every


@pytest.mark.parametrize("damage", [None, "lost", "cut", "changed", "other", "short"])
def test_lists_that_the_log_lacks_come_from_the_newest_checkpoint_of_its_query(
    tmp_path: Path, damage: str | None
) -> None:  # fmt: skip
    of = manifest(FILES, sources={})
    lists = earlier(tmp_path / f"{2:020}") / "sources" / "events"
    earlier(tmp_path / f"{2:020}-000001", query="a successor that never took over", upto=1)
    put(lists.parents[1] / DIGESTS, json.dumps({"sources/events/2": zlib.crc32((lists / "2").read_bytes())}))
    match damage:
        case "lost":
            (lists / "1").unlink()
        case "cut":
            put(lists / "0", "")
        case "changed":
            put(lists / "2", (lists / "2").read_text().replace("in/2", "in/3"))
        case "other":
            put(lists.parents[1] / "metadata", '{"id":"other"}')
        case "short":
            (lists / "2").unlink()
    if damage is None:
        first = made(tmp_path, 5, of)
        assert listed_files(first / "sources" / "events", -1, 2) == read(0, 1, 2)
        second = made(tmp_path, 7, of)  # no epoch ran in between
        assert listed_files(second / "sources" / "events", -1, 2) == read(0, 1, 2)
        return
    with pytest.raises(OffsetGapError, match=r"what events read.*before 0\.3"):
        made(tmp_path, 5, of)


def test_of_the_other_sources_only_those_whose_offset_has_no_meaning_alone_need_an_earlier_checkpoint(
    tmp_path: Path,
) -> None:
    assert read_offsets(made(tmp_path, 5, manifest(KAFKA, sources={})), 4) == KAFKA
    rate = manifest({"clock": "17"}, sources={})
    with pytest.raises(OffsetGapError, match="what clock read"):
        made(tmp_path, 6, rate)
    put(tmp_path / f"{7:020}" / "sources" / "clock" / "0", "v1\n1700000000000")
    assert (made(tmp_path, 8, rate) / "sources" / "clock" / "0").read_text() == "v1\n1700000000000"
    assert files(made(tmp_path, 9, manifest({"own": "17"}))) == {"metadata", "offsets/3", "offsets/4", "commits/4"}


def test_two_checkpoints_are_kept_and_no_leftovers(tmp_path: Path) -> None:
    put(tmp_path / ".00000000000000000002-half" / "metadata")
    for claim in (1, 5, 9):
        made(tmp_path, claim)
    assert sorted(folder.name[-1] for folder in tmp_path.iterdir()) == ["5", "9"]
    put(tmp_path / f"{12:020}" / "offsets" / "9", "of a claim that the log has lost")
    made(tmp_path, 10)
    assert sorted(folder.name[-2:] for folder in tmp_path.iterdir()) == ["09", "10"]


def test_a_query_that_is_to_follow_has_a_copy_with_an_id_of_its_own(tmp_path: Path) -> None:
    first = made(tmp_path, 3)
    second = copy_checkpoint(first)
    assert files(second) == files(first) and query_id(second) not in ("", "q")
    set_query_id(second, "q")
    assert query_id(second) == query_id(first) == "q"
    third = copy_checkpoint(second)
    assert sorted(tmp_path.iterdir()) == [second, third]
    after = made(tmp_path, 4)
    assert first.name < second.name < third.name < after.name
    # whoever is overtaken may be at work in either
    assert sorted(tmp_path.iterdir()) == [second, third, after]
    made(tmp_path, 5)
    assert not second.exists() and not third.exists()


def test_what_spark_has_merged_is_not_copied(tmp_path: Path) -> None:
    first = made(tmp_path, 0)
    lists = first / "sources" / "events"
    for name in (*map(str, range(9)), "9.compact", *map(str, range(10, 19)), "19.compact", "20"):
        put(lists / name)
    assert {file.name for file in (copy_checkpoint(first) / "sources" / "events").iterdir()} == {
        "9.compact", *map(str, range(10, 19)), "19.compact", "20"
    }  # fmt: skip


def test_a_write_does_not_change_the_checkpoint_that_a_copy_was_made_from(tmp_path: Path) -> None:
    first = made(tmp_path, 3)
    second = copy_checkpoint(first)
    assert (first / "offsets" / "4").stat().st_ino == (second / "offsets" / "4").stat().st_ino
    set_query_id(second, "r")
    assert query_id(first) == "q"
