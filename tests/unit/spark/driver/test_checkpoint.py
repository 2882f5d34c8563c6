"""Spark's checkpoints: each driver has its own, one that does not continue the log is refused, some are repaired."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from millpond.errors import CorruptError, OffsetGapError
from millpond.log.manifest import Manifest
from millpond.log.records import Offsets
from millpond.spark.driver.checkpoint import (
    check_continues,
    check_names,
    next_checkpoint,
    own_checkpoint,
    query_id,
    read_offsets,
    read_taken,
    repair,
    set_query_id,
)

KAFKA: Offsets = {"clicks": '{"clicks":{"0":7}}'}
FILES: Offsets = {"events": '{"logOffset":2}'}


def put(file: Path, text: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def checkpoint(folder: Path, offsets: Offsets, batch: int = 4, query: str = "q") -> Path:
    """What Spark has left after some batches."""
    put(folder / "metadata", f'{{"id":"{query}"}}')
    lines = [f"{name}:{offset}" for name, offset in offsets.items()]
    for number in range(batch + 1):
        put(folder / "offsets" / str(number), "\n".join(["v2", '{"conf":{"a":"b"}}', *lines]))
        put(folder / "commits" / str(number), "v1\n{}")
    put(folder / "sources" / "events" / "2.compact", 'v1\n{"path":"a","batchId":2}')
    return folder


def manifest(offsets: Offsets, batch: int = 4) -> Manifest:
    return Manifest(n=9, epoch_n=9, spark_query="q", batch=batch, offsets=offsets)


def files(folder: Path) -> set[str]:
    return {os.path.relpath(os.path.join(place, name), folder) for place, _, names in os.walk(folder) for name in names}


def test_a_driver_goes_on_with_a_copy_of_its_predecessors_checkpoint(tmp_path: Path) -> None:
    first = own_checkpoint(tmp_path, 0)
    assert files(first) == set()
    checkpoint(first, KAFKA)
    second = own_checkpoint(tmp_path, 5)
    assert files(second) == files(first)
    put(first / "offsets" / "5", "written by a driver that was overtaken")
    assert not (second / "offsets" / "5").exists()


def test_what_spark_has_merged_is_not_copied(tmp_path: Path) -> None:
    first = checkpoint(own_checkpoint(tmp_path, 0), FILES)
    lists = first / "sources" / "events"
    for name in (*map(str, range(9)), "9.compact", *map(str, range(10, 19)), "19.compact", "20"):
        put(lists / name)
    assert {file.name for file in (next_checkpoint(first) / "sources" / "events").iterdir()} == {
        "9.compact", *map(str, range(10, 19)), "19.compact", "20"
    }  # fmt: skip


def test_two_checkpoints_are_kept_and_no_leftovers(tmp_path: Path) -> None:
    put(tmp_path / ".00000000000000000002-half" / "metadata")
    for claim in (1, 5, 9):
        own_checkpoint(tmp_path, claim)
    assert sorted(folder.name[-1] for folder in tmp_path.iterdir()) == ["5", "9"]


def test_a_query_that_is_to_follow_has_a_copy_with_an_id_of_its_own(tmp_path: Path) -> None:
    first = checkpoint(own_checkpoint(tmp_path, 3), KAFKA)
    second = next_checkpoint(first)
    assert files(second) == files(first) and query_id(second) not in ("", "q")
    set_query_id(second, "q")
    assert query_id(second) == query_id(first) == "q"
    third = next_checkpoint(second)
    assert sorted(tmp_path.iterdir()) == [second, third]
    assert first.name < second.name < third.name < own_checkpoint(tmp_path, 4).name


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_driver_goes_on_with_the_query_that_the_log_is_of(tmp_path: Path, taken_over: bool) -> None:
    first = checkpoint(own_checkpoint(tmp_path, 3), KAFKA)
    second = next_checkpoint(first)
    put(second / "offsets" / "5", "planned by the successor")
    if taken_over:
        set_query_id(second, "q")
    after = own_checkpoint(tmp_path, 9, "q")
    assert (after / "offsets" / "5").exists() is taken_over
    # whoever is overtaken may be at work in either
    assert sorted(tmp_path.iterdir()) == [first, second, after]
    own_checkpoint(tmp_path, 12, "q")
    assert not first.exists() and not second.exists()


@pytest.mark.parametrize("offsets", [KAFKA, FILES])
def test_a_checkpoint_that_continues_the_log_passes(tmp_path: Path, offsets: Offsets) -> None:
    check_continues(checkpoint(tmp_path, offsets), manifest(offsets))
    check_continues(checkpoint(tmp_path, offsets, batch=200), manifest(offsets))
    check_continues(tmp_path / "none", Manifest())


def test_a_checkpoint_that_does_not_is_refused(tmp_path: Path) -> None:
    refused = {
        "it does not exist": (tmp_path / "none", FILES),
        "belongs to query other": (checkpoint(tmp_path / "other", KAFKA, query="other"), KAFKA),
        "last batch is 3": (checkpoint(tmp_path / "older", KAFKA, batch=3), KAFKA),
        "lacks the list of what events read": (checkpoint(tmp_path / "files", FILES), {"events": '{"logOffset":3}'}),
    }
    for why, (folder, offsets) in refused.items():
        with pytest.raises(OffsetGapError, match=why):
            check_continues(folder, manifest(offsets))


@pytest.mark.parametrize("left", [None, 2, 7])
def test_offsets_that_speak_for_themselves_are_repaired_from_the_log_alone(tmp_path: Path, left: int | None) -> None:
    folder = tmp_path / "c"
    if left is not None:
        checkpoint(folder, {"clicks": '{"clicks":{"0":1}}'}, left, query="other")
    repair(folder, manifest({**KAFKA, "millpond_tick": "99"}))
    check_continues(folder, manifest(KAFKA))
    assert (query_id(folder), read_offsets(folder, 4)) == ("q", KAFKA)
    assert [sorted(os.listdir(folder / name)) for name in ("offsets", "commits")] == [["3", "4"], ["4"]]


def test_when_offsets_were_taken_stands_beside_them_if_spark_wrote_them(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", KAFKA)
    assert read_taken(folder, 4).at_us == 0, "a repair wrote them"
    put(folder / "offsets" / "5", 'v2\n{"batchWatermarkMs":0,"batchTimestampMs":1795641628768,"conf":{}}\nclicks:-')
    assert (read_taken(folder, 5).at_us, read_offsets(folder, 5)) == (1795641628768000, {})
    with pytest.raises(CorruptError, match="batch 6"):
        read_taken(folder, 6)


def test_files_are_repaired_while_their_list_is_there(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", FILES, batch=1)
    repair(folder, manifest(FILES))
    check_continues(folder, manifest(FILES))
    assert (folder / "offsets" / "4").read_text().splitlines()[1] == '{"conf":{"a":"b"}}'
    for lost in (tmp_path / "none", checkpoint(tmp_path / "other", FILES, query="other")):
        with pytest.raises(OffsetGapError, match="cannot be repaired"):
            repair(lost, manifest(FILES))


def test_a_repair_does_not_write_through_to_the_checkpoint_it_was_copied_from(tmp_path: Path) -> None:
    first = checkpoint(own_checkpoint(tmp_path, 0), KAFKA)
    before = (first / "offsets" / "4").read_text()
    repair(own_checkpoint(tmp_path, 5), manifest({"clicks": '{"clicks":{"0":8}}'}))
    assert (first / "offsets" / "4").read_text() == before


def test_offsets_by_position_are_refused() -> None:
    check_names({"clicks": "1", "millpond_tick": "3"}, ["clicks", "views"])
    with pytest.raises(OffsetGapError, match="of 0, not of clicks"):
        check_names({"0": "1"}, ["clicks"])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [empty, halved])
@pytest.mark.parametrize("name", ["metadata", "offsets/3", "offsets/4", "commits/4", "sources/events/2.compact"])
def test_a_damaged_file_is_named_and_repaired_unless_it_stands_only_there(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    folder = checkpoint(tmp_path / "c", FILES)
    damage(folder / name)
    with pytest.raises(OffsetGapError, match=f"{folder / name} is damaged.*millpond repair"):
        check_continues(folder, manifest(FILES))
    if name.startswith("sources"):
        with pytest.raises(OffsetGapError, match=f"cannot be repaired: {folder / name} is damaged"):
            repair(folder, manifest(FILES))
        return
    assert "batch 4, where the log ends (record 9)" in repair(folder, manifest(FILES))
    check_continues(folder, manifest(FILES))


def test_older_files_that_spark_does_not_read_may_be_damaged(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, FILES)
    for name in ("offsets/1", "commits/2"):
        (folder / name).write_text("")
    (folder / "sources" / "clicks" / "0").parent.mkdir()
    (folder / "sources" / "clicks" / "0").write_bytes(b'\0v1\n{"clicks":{"0":0}}')  # as Kafka's begins
    check_continues(folder, manifest(FILES))


@pytest.mark.parametrize("log_ends", [3, 0, -1])
def test_a_log_that_is_older_is_told_from_a_checkpoint_that_is(tmp_path: Path, log_ends: int) -> None:
    folder = checkpoint(tmp_path, KAFKA)
    for batch in range(5):
        put(folder / "offsets" / str(batch), f'v2\n{{"conf":{{}}}}\nclicks:{{"clicks":{{"0":{batch}}}}}')
    at = {"clicks": f'{{"clicks": {{"0": {log_ends}}}}}'} if log_ends >= 0 else {}
    older = Manifest(n=7, epoch_n=7, spark_query="q" if at else "", batch=log_ends, offsets=at)
    with pytest.raises(OffsetGapError, match=r"The log is older .* record 7, .* batch 4, which read more of clicks"):
        check_continues(folder, older)
    told = repair(folder, older)
    assert "from the beginning" in told if log_ends < 0 else f"from batch 4 to batch {log_ends}" in told
    check_continues(folder, older)


def test_a_batch_that_spark_planned_and_did_not_commit_is_ahead_of_no_log(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, KAFKA)
    put(folder / "offsets" / "5", 'v2\n{"conf":{}}\nclicks:{"clicks":{"0":99}}')
    check_continues(folder, manifest(KAFKA))
    put(folder / "offsets" / "6", 'v2\n{"conf":{}}\nmillpond_tick:99\nclicks:{"clicks":{"0":7}}')
    put(folder / "commits" / "6", "v1\n{}")
    check_continues(folder, manifest(KAFKA))  # a batch in which only the tick moved leaves no record


def test_checkpoints_of_claims_that_the_log_has_lost_are_begun_from_and_go(tmp_path: Path) -> None:
    checkpoint(own_checkpoint(tmp_path, 0), KAFKA, batch=1)
    for lost in (5, 8):
        put(checkpoint(own_checkpoint(tmp_path, lost), KAFKA, batch=lost) / "offsets" / "9", "v2")
    mine = own_checkpoint(tmp_path, 5, "q")
    assert (mine / "offsets" / "8").exists(), "the newest one knows most of what was read"
    assert [folder.name[-1] for folder in sorted(tmp_path.iterdir())] == ["5"]
