"""Reads the files of an epoch into Arrow inside a gather task, as batches of the frame that Spark would deliver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from millpond.formats.json_checks import TextColumn
from millpond.kernels.columns import as_attempted, from_arrow
from millpond.kernels.evaluate import Evaluator
from millpond.kernels.scalar_functions import Uncovered
from millpond.model.expressions import columns_of
from millpond.runtime.inputs.file_parts import NOWHERE, FileColumn, FilePart, FileRows, FileTask, NotEqual
from millpond.runtime.inputs.parquet_files import read_columns
from millpond.runtime.inputs.partition_folders import split_columns
from millpond.runtime.inputs.text_files import read_csv, read_lines
from millpond.runtime.task.obstacle import Obstacle, ObstacleError
from millpond.state.keys.keys import plain


def read_files(task: FileTask, numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """The rows of some parts, as batches of the frame that the epoch reads.

    Raises:
        ObstacleError: a file is not known to be read as Spark reads it.
    """
    for part in (part for number in numbers for part in task.parts[number]):
        yield from _read(task, part)


def read_delivered(task: FileTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Like `read_files`, for files of which Spark delivers the path and the content, a row for each file.

    Raises:
        ObstacleError: as `read_files`.
    """
    parts = {part.path: part for part in task.delivered}
    for batch in batches:
        for path, value in zip(*batch.columns, strict=True):
            part, content = parts.get(path.as_py()), value.as_buffer()
            if part is None:
                other = task.sources[task.delivered[0].rows].source
                raise ObstacleError(Obstacle(f"{path} is not a path in the list of new files", other))
            yield from _read(task, part._replace(size=content.size, content=content))


def _read(task: FileTask, part: FilePart) -> Iterator[pa.RecordBatch]:
    rows = task.sources[part.rows]
    try:
        for columns, count in _columns(rows, part):
            yield _of_frame(rows, columns, count)
    except (NotEqual, Uncovered) as error:
        raise ObstacleError(Obstacle(f"{part.path} {error}", rows.source)) from error


def _columns(rows: FileRows, part: FilePart) -> Iterator[tuple[list[pa.Array], int]]:
    """The declared columns of a part, in batches, with the number of rows."""
    stored, known = split_columns(rows.columns, part.values)
    for arrays, count in _stored(rows, part, stored):
        found = {column.name: array for column, array in zip(stored, arrays, strict=True)}
        found |= {name: pa.repeat(value, count) for name, value in known.items()}
        yield [found[column.name] for column in rows.columns], count


def _stored(rows: FileRows, part: FilePart, stored: Sequence[FileColumn]) -> Iterator[tuple[list[pa.Array], int]]:
    """Like `_columns`, for the columns that the file has itself."""
    if rows.format == "parquet":
        return read_columns(part.path if part.content is None else part.content, stored, part.share, part.shares)
    columns = [TextColumn(one.name, one.type) for one in stored]
    if rows.csv is not None:
        folders = {value.name for value in part.values}
        form = rows.csv._replace(names=tuple(name for name in rows.csv.names if name not in folders))
        return read_csv(part, form, columns, rows.zone)
    return read_lines(part, columns, rows.zone)


def _of_frame(rows: FileRows, columns: Sequence[pa.Array], count: int) -> pa.RecordBatch:
    """A batch of the frame; the columns of other streams are NULL, without a buffer.

    Raises:
        Uncovered: a column might be computed otherwise than by Spark.
    """
    none = pa.nulls(count)
    arrays: list[pa.Array] = [pa.array(np.full(count, rows.stream, np.int32)), *[none] * (rows.width - 1)]
    for place, column in zip(rows.columns, columns, strict=True):
        if place.position != NOWHERE:
            arrays[place.position] = column
    if rows.computed:
        used = frozenset[str]().union(*(columns_of(one.expression) for one in rows.computed))
        named = {
            place.name: from_arrow(plain(column), place.type)
            for place, column in zip(rows.columns, columns, strict=True) if place.name in used
        }  # fmt: skip
        evaluator = Evaluator(named, count)
        for one in rows.computed:
            arrays[one.position] = as_attempted(evaluator(one.expression), one.expression.type, count)
    return pa.RecordBatch.from_arrays(arrays, names=[f"c{position}" for position in range(rows.width)])
