"""Defines which files the gather tasks of an epoch read into Arrow, and how their rows become rows of the frame."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from millpond.model.expressions import Expression

NOWHERE = -1


class FileColumn(NamedTuple):
    """A declared column: its name, SQL type and position in the frame; a column with a `default` may not be missing."""

    name: str
    type: str
    position: int
    default: bool = False


class CsvForm(NamedTuple):
    """The names of all columns of CSV files, in order, the separator, and whether the first line is a header."""

    names: tuple[str, ...]
    separator: str = ","
    header: bool = False


class ComputedColumn(NamedTuple):
    """A column of the frame that is computed from declared columns: its position, and an expression over their names.

    Its values are `struct<v>`, which is NULL where the expression raises.
    """

    position: int
    expression: Expression


class FileRows(NamedTuple):
    """How rows of a source's files become rows of the frame that an epoch reads.

    `stream`: the position of the stream in the layout. `width`: the number of columns of the frame. `zone`: the
    session's time zone. `csv`: how CSV files are read. A column with the position `NOWHERE` is not in the frame; only
    `computed` columns read it. `folder`: the folder of the source. `declared`: the names and types of all columns.
    """

    source: str
    stream: int
    columns: tuple[FileColumn, ...]
    width: int
    format: str = "parquet"
    zone: str = "UTC"
    csv: CsvForm | None = None
    computed: tuple[ComputedColumn, ...] = ()
    folder: str = ""
    declared: tuple[tuple[str, str], ...] = ()


class FolderValue(NamedTuple):
    """A column that a folder is named after, such as `dt=2026-01-01`: its name, SQL type and value as text."""

    name: str
    type: str
    text: str


class FilePart(NamedTuple):
    """Share `share` of `shares` of a file of `size` bytes; `rows`: a position in `FileTask.sources`.

    `values`: the columns in the names of its folders. `content`: that of a whole file which is not local.
    """

    rows: int
    path: str
    share: int = 0
    shares: int = 1
    size: int = 0
    values: tuple[FolderValue, ...] = ()
    content: pa.Buffer | None = None


class FileTask(NamedTuple):
    """What all tasks of an epoch read of files; `parts[i]` is what task i reads.

    `delivered`: whole files of other file systems, of which Spark delivers the content to any task.
    """

    sources: tuple[FileRows, ...]
    parts: tuple[tuple[FilePart, ...], ...]
    delivered: tuple[FilePart, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """By source, the bytes of its files, or of the shares that are read."""
        found = dict.fromkeys((rows.source for rows in self.sources), 0)
        for part in (part for parts in self.parts for part in parts):
            found[self.sources[part.rows].source] += part.size // part.shares
        return found


class NotEqual(Exception):
    """A file might be read otherwise than by Spark; the text is the reason."""
