"""Which epochs gather tasks read, and how the files are divided among them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from millpond.log.file_lists import ListedFile, file_list
from millpond.log.records import SourceUpdate
from millpond.runtime.inputs.file_parts import FileColumn, FileRows, FileTask
from millpond.runtime.task.obstacle import Obstacle
from millpond.spark.reading.arrow_files import LEAST_BYTES, ArrowFiles, Readers

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


def test_large_files_are_divided_and_small_ones_share_a_task(tmp_path: Path) -> None:
    large, small = 4 * LEAST_BYTES, 1000
    task = chooser({"tx": ROWS}).task(START, END, files_of(tmp_path, [small, large, small]))
    assert task is not None and len(task.parts) == 2
    found = sorted((Path(part.path).name, part.share, part.shares) for some in task.parts for part in some)
    assert found == [("0.parquet", 0, 1), ("1.parquet", 0, 2), ("1.parquet", 1, 2), ("2.parquet", 0, 1)]
    few = chooser({"tx": ROWS}).task(START, END, files_of(tmp_path, [small] * 5))
    assert few is not None and [len(some) for some in few.parts] == [5]


def test_spark_reads_while_another_stream_has_new_input(tmp_path: Path) -> None:
    files, updates = chooser({"tx": ROWS, "t": "its format is rate"}), files_of(tmp_path, [9])
    assert files.task(START, {**END, "t": "2"}, updates) is None
    assert files.notes["tx"].endswith("in 0 of 1 epochs; by Spark in the last: t has new input too, which Spark reads")
    task = files.task(START, END, updates)
    assert task is not None
    files.succeeded(task)
    assert files.notes == {"tx": "read with Arrow in 1 of 2 epochs"}


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("s3a://bucket/1.parquet", "is not a local file"),
        ("file:///nowhere/1.parquet", "No such file"),
        ("file:///data/dt=2024-01-01/1.parquet", "may be in the folder of a partition"),
    ],
)
def test_files_that_spark_must_read(uri: str, why: str) -> None:
    files = chooser({"tx": ROWS})
    assert files.task(START, END, {"tx": SourceUpdate(file_list([ListedFile(uri, 0, 1)]))}) is None
    assert why in files.notes["tx"]


def test_after_an_obstacle_spark_reads_some_epochs(tmp_path: Path) -> None:
    files, updates = chooser({"tx": ROWS}), files_of(tmp_path, [9])
    task = files.task(START, END, updates)
    assert isinstance(task, FileTask)
    files.refused(task, Obstacle("1.parquet is encrypted", "tx"))
    tried = [files.task(START, END, updates) is not None for _ in range(17)]
    assert tried == [False] * 16 + [True]
    assert files.notes["tx"] == "read with Arrow in 1 of 18 epochs; by Spark in the last: 1.parquet is encrypted"


def test_after_an_obstacle_spark_reads_all_streams_of_the_epoch(tmp_path: Path) -> None:
    files, updates = chooser({"tx": ROWS, "up": ROWS._replace(source="up")}), files_of(tmp_path, [9])
    start, end = ({**one, "up": one["tx"]} for one in (START, END))
    task = files.task(start, end, {**updates, "up": updates["tx"]})
    assert task is not None
    files.refused(task, Obstacle("1.parquet is encrypted", "tx"))
    assert files.notes == {
        "tx": "read with Arrow in 0 of 1 epochs; by Spark in the last: 1.parquet is encrypted",
        "up": "read with Arrow in 0 of 1 epochs; by Spark in the last: 1.parquet is encrypted",
    }
