"""Which epochs gather tasks read, and how the files are divided among them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import DataFrame

from millpond.log.file_lists import ListedFile, file_list
from millpond.log.protocol import TICK
from millpond.log.records import Offsets, SourceUpdate
from millpond.model.endpoints import Source
from millpond.runtime.inputs.file_parts import FileColumn, FileRows, FileTask
from millpond.runtime.task.obstacle import Obstacle
from millpond.spark.reading.arrow_files import LEAST_BYTES, NO_MEMORY, ArrowFiles, ChosenFiles, Readers, _folder

ROWS = FileRows("tx", 0, (FileColumn("c", "string", 1),), 2)
START, END = {"tx": '{"logOffset":0}', "t": "1"}, {"tx": '{"logOffset":1}', "t": "1"}


def files_of(folder: Path, sizes: Sequence[int], batch: int = 1) -> dict[str, SourceUpdate]:
    """Files of these sizes, and one of an earlier batch that does not exist."""
    listed = [ListedFile("file:///nowhere/0.parquet", 0, 0)]
    for number, size in enumerate(sizes):
        path = folder / f"{number}.parquet"
        path.touch()
        with path.open("r+b") as file:
            file.truncate(size)
        listed.append(ListedFile(f"file://{path}", 0, batch))
    return {"tx": SourceUpdate(file_list(listed))}


def chooser(readers: Readers, cores: int = 2) -> ArrowFiles:
    spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=cores))
    files = ArrowFiles(spark)  # type: ignore[arg-type]
    files.reads(readers)
    return files


def choose(
    files: ArrowFiles, start: Offsets, end: Offsets, updates: Mapping[str, SourceUpdate], others: object = None
) -> FileTask | None:
    """The chosen files, if Spark's plan gives the frame `others` for the other new input."""
    found = files.choose(start, end, updates, lambda new, left_out: cast(DataFrame, others))
    return None if found is None else found.task


def test_large_files_are_divided_and_small_ones_share_a_task(tmp_path: Path) -> None:
    large, small = 4 * LEAST_BYTES, 1000
    task = choose(chooser({"tx": ROWS}), START, END, files_of(tmp_path, [small, large, small]))
    assert task is not None and len(task.parts) == 2
    found = sorted((Path(part.path).name, part.share, part.shares) for some in task.parts for part in some)
    assert found == [("0.parquet", 0, 1), ("1.parquet", 0, 2), ("1.parquet", 1, 2), ("2.parquet", 0, 1)]
    few = choose(chooser({"tx": ROWS}), START, END, files_of(tmp_path, [small] * 5))
    assert few is not None and [len(some) for some in few.parts] == [5]


def test_spark_reads_other_streams_with_new_input_if_its_plan_separates_them(tmp_path: Path) -> None:
    files, updates = chooser({"t": "its format is rate", "tx": ROWS}), files_of(tmp_path, [9])
    end = {**END, "t": "2", TICK: "1"}
    assert choose(files, START, end, updates) is None
    why = "by Spark in the last: Spark's plan does not separate t, which has new input too"
    assert files.notes["tx"].endswith(f"in 0 of 1 epochs; {why}")
    calls: list[tuple[Sequence[str], Collection[str]]] = []
    frame = cast(DataFrame, object())
    found = files.choose(START, end, updates, lambda *call: calls.append(call) or frame)
    assert found is not None and found.others is frame and calls == [(["t", "tx"], ["tx"])]
    files.note_success(found)
    assert files.notes == {"tx": "read with Arrow in 1 of 2 epochs"}
    assert found.reads("tx") and not found.reads("t")


def test_a_stream_with_an_obstacle_does_not_keep_spark_at_another_one(tmp_path: Path) -> None:
    files, updates = chooser({"tx": ROWS, "up": ROWS._replace(source="up")}), files_of(tmp_path, [9])
    start, end = ({**one, "up": one["tx"]} for one in (START, END))
    task = choose(files, start, end, {**updates, "up": updates["tx"]})
    assert task is not None
    files.note_obstacle(ChosenFiles(task, None), Obstacle("1.parquet is encrypted", "tx"))
    found = choose(files, start, end, {**updates, "up": updates["tx"]}, others=object())
    assert found is not None and [rows.source for rows in found.sources] == ["up"]


def test_all_files_of_an_epoch_are_in_folders_with_the_same_columns(tmp_path: Path) -> None:
    rows = ROWS._replace(folder=str(tmp_path), declared=(("c", "string"), ("day", "date")))
    paths = [tmp_path / f"day=2026-01-0{number}" / "0.parquet" for number in (1, 2)]
    for path in paths:
        path.parent.mkdir()
        path.touch()
    listed = [ListedFile(f"file://{path}", 0, 1) for path in paths]
    task = choose(chooser({"tx": rows}), START, END, {"tx": SourceUpdate(file_list(listed))})
    assert task is not None
    assert [value.text for some in task.parts for part in some for value in part.values] == ["2026-01-01", "2026-01-02"]
    (tmp_path / "1.parquet").touch()
    listed.append(ListedFile(f"file://{tmp_path}/1.parquet", 0, 1))
    files = chooser({"tx": rows})
    assert choose(files, START, END, {"tx": SourceUpdate(file_list(listed))}) is None
    assert "1.parquet is in other folders than" in files.notes["tx"]


@pytest.mark.parametrize(("recursive", "folder"), [("false", "/in"), ("TRUE", "")])
def test_spark_takes_no_columns_from_folders_that_it_looks_up_recursively(recursive: str, folder: str) -> None:
    assert _folder(Source("parquet", (("path", "/in"), ("recursivefilelookup", recursive)))) == folder


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("file:///nowhere/1.parquet", "No such file"),
        ("file:///data/dt=2024-01-01/1.parquet", "may be in the folder of a partition"),
    ],
)
def test_files_that_spark_must_read(uri: str, why: str) -> None:
    files = chooser({"tx": ROWS})
    assert choose(files, START, END, {"tx": SourceUpdate(file_list([ListedFile(uri, 0, 1)]))}) is None
    assert why in files.notes["tx"]


def test_after_an_obstacle_spark_reads_some_epochs(tmp_path: Path) -> None:
    files, updates = chooser({"tx": ROWS}), files_of(tmp_path, [9])
    task = choose(files, START, END, updates)
    assert task is not None
    files.note_obstacle(ChosenFiles(task, None), Obstacle("1.parquet is encrypted", "tx"))
    tried = [choose(files, START, END, updates) is not None for _ in range(17)]
    assert tried == [False] * 16 + [True]
    assert files.notes["tx"] == "read with Arrow in 1 of 18 epochs; by Spark in the last: 1.parquet is encrypted"


def test_after_an_obstacle_spark_reads_all_streams_of_the_epoch(tmp_path: Path) -> None:
    files, updates = chooser({"tx": ROWS, "up": ROWS._replace(source="up")}), files_of(tmp_path, [9])
    start, end = ({**one, "up": one["tx"]} for one in (START, END))
    task = choose(files, start, end, {**updates, "up": updates["tx"]})
    assert task is not None
    files.note_obstacle(ChosenFiles(task, None), Obstacle("1.parquet is encrypted", "tx"))
    assert files.notes == {
        "tx": "read with Arrow in 0 of 1 epochs; by Spark in the last: 1.parquet is encrypted",
        "up": "read with Arrow in 0 of 1 epochs; by Spark in the last: the stream tx could not be read with Arrow",
    }


def test_only_streams_whose_files_are_not_local_are_left_to_spark_after_memory_ran_out(tmp_path: Path) -> None:
    far = FileRows("far", 1, (FileColumn("c", "string", 1),), 2)
    files = chooser({"tx": ROWS, "far": far})
    files._contents = SimpleNamespace(of=lambda paths: object())  # type: ignore[assignment]

    def chosen(batch: int) -> ChosenFiles | None:
        updates = files_of(tmp_path, [10], batch)
        updates["far"] = SourceUpdate(file_list([ListedFile(f"s3a://b/{batch}.parquet", 0, batch)]))
        start, end = (dict.fromkeys(("tx", "far"), f'{{"logOffset":{n}}}') for n in (batch - 1, batch))
        return files.choose(start, end, updates, lambda new, left_out: cast(DataFrame, "the rest"))

    both = chosen(1)
    assert both is not None and [part.rows for part in both.task.delivered] == [1]
    files.read_remote_files_with_spark(both)
    assert files.notes == {
        "tx": "read with Arrow in 0 of 1 epochs; by Spark in the last: memory ran out while Spark held contents of "
        "files of far",
        "far": f"read with Arrow in 0 of 1 epochs; by Spark in the last: {NO_MEMORY}",
    }
    local = chosen(2)
    assert local is not None and local.reads("tx") and not local.reads("far")
    files.note_success(local)
    assert files.notes == {
        "tx": "read with Arrow in 1 of 2 epochs",
        "far": f"read with Arrow in 0 of 2 epochs; by Spark in the last: {NO_MEMORY}",
    }
