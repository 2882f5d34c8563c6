"""Files whose content Spark delivers are read like local ones, in any order and by any task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond.runtime.inputs.file_parts import FileColumn, FilePart, FileRows, FileTask, FolderValue
from millpond.runtime.inputs.read_files import read_delivered, read_files
from millpond.runtime.task.obstacle import ObstacleError

COLUMNS = (FileColumn("day", "string", 1), FileColumn("n", "bigint", 2))


def _delivered(*contents: tuple[str, bytes]) -> pa.RecordBatch:
    paths, values = zip(*contents, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(paths), pa.array(values, pa.binary())], names=["path", "content"])


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_a_delivered_file_has_the_rows_of_the_local_one(tmp_path: Path, form: str) -> None:
    local = []
    for number in range(3):
        path = tmp_path / f"{number}.{form}"
        if form == "json":
            path.write_text("".join(f'{{"n": {number + i}}}\n' for i in range(5 * number)))
        else:
            pq.write_table(pa.table({"n": np.arange(5 * number) + number}), path, row_group_size=2)
        local.append(FilePart(0, str(path), 0, 1, path.stat().st_size, (FolderValue("day", "string", f"d{number}"),)))
    remote = tuple(part._replace(path=f"s3a://b/{Path(part.path).name}", size=0) for part in local)
    task = FileTask((FileRows("tx", 0, COLUMNS, 3, form),), (tuple(local),), remote)
    contents = [(there.path, Path(here.path).read_bytes()) for here, there in zip(local, remote, strict=True)]
    expected = pa.Table.from_batches(read_files(task, [0]))
    found = pa.Table.from_batches(read_delivered(task, [_delivered(*contents[:1]), _delivered(*contents[1:])]))
    assert found.equals(expected) and found.num_rows == 15
    assert found["c1"].to_pylist() == ["d1"] * 5 + ["d2"] * 10


def test_a_delivered_file_that_no_list_names_is_an_obstacle() -> None:
    task = FileTask((FileRows("tx", 0, COLUMNS[1:], 3),), (), (FilePart(0, "s3a://b/w"),))
    with pytest.raises(ObstacleError, match="s3a://b//w is not a path in the list of new files"):
        list(read_delivered(task, [_delivered(("s3a://b//w", b""))]))


def test_a_delivered_file_of_mostly_other_columns_is_left_to_spark(tmp_path: Path) -> None:
    path = tmp_path / "wide.parquet"
    task = FileTask((FileRows("tx", 0, COLUMNS[1:], 3),), (), (FilePart(0, "s3a://b/w"),))
    noise = np.random.default_rng(1).integers(0, 1 << 62, (2, 20_000))
    pq.write_table(pa.table({"n": noise[0], "other": noise[1]}), path)
    batches = read_delivered(task, [_delivered(("s3a://b/w", path.read_bytes()))])
    assert sum(batch.num_rows for batch in batches) == 20_000
    pq.write_table(pa.table({"n": noise[0] % 2, "other": noise[1]}), path)
    with pytest.raises(ObstacleError, match=r"s3a://b/w has \d+,\d+ bytes, and the columns that are read have only"):
        list(read_delivered(task, [_delivered(("s3a://b/w", path.read_bytes()))]))
