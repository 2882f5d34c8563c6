"""Takes columns from the names of folders, such as `dt=2026-01-01/shop=athens`, where Spark takes the same values.

The columns must be the last ones of the declaration, in the order of the folders: Spark appends them to the columns of
the files. Only plain names and values qualify; what Spark may unescape, cast in another way or refuse is left to it.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from millpond.kernels.columns import arrow_type
from millpond.runtime.inputs.file_parts import FileColumn, FolderValue

_FOLDER = re.compile(r"(\w+)=([\w.,+-]*)", re.ASCII)
_NONE = "__HIVE_DEFAULT_PARTITION__"


def _integer(digits: int) -> Callable[[str], int]:
    pattern = re.compile(rf"-?[0-9]{{1,{digits}}}")

    def parse(text: str) -> int:
        if not pattern.fullmatch(text):
            raise ValueError(text)
        return int(text)

    return parse


def _date(text: str) -> dt.date:
    if len(text) != len("2026-01-01"):
        raise ValueError(text)
    return dt.date.fromisoformat(text)


_PARSED: Mapping[str, Callable[[str], Any]] = {
    "string": str, "int": _integer(9), "bigint": _integer(18), "date": _date
}  # fmt: skip


def folder_values(base: str, path: str, declared: Sequence[tuple[str, str]]) -> tuple[FolderValue, ...] | str:
    """The columns in the folders between `base` and a file; or why they may not be those that Spark finds.

    `declared`: the names and SQL types of all columns of the stream.

    >>> folder_values("/in", "/in/dt=2026-01-01/0.parquet", [("ts", "timestamp"), ("dt", "date")])
    (FolderValue(name='dt', type='date', text='2026-01-01'),)
    """
    folder = os.path.dirname(path)
    if "=" not in folder:
        return ()
    if not base or not folder.startswith(f"{base}/") or "=" in base:
        return f"{path} may be in the folder of a partition"
    found = [_FOLDER.fullmatch(one) for one in folder[len(base) + 1 :].split("/")]
    names = [one[1] for one in found if one is not None]
    if len(names) < len(found) or names != [name for name, _ in declared[-len(names) :]] or len(names) == len(declared):
        return f"{path} is in folders that are not named after the last columns of the stream"
    values = [FolderValue(*column, one[2]) for one, column in zip(found, declared[-len(names) :], strict=True) if one]
    for value in values:
        try:
            _PARSED[value.type](value.text)
        except (KeyError, ValueError):
            return f"{path} has a folder for {value.name}, which is declared as {value.type}"
        if value.text in ("", _NONE):
            return f"{path} has a folder for {value.name} without a value"
    return tuple(values)


def split_columns(
    columns: Sequence[FileColumn], values: Sequence[FolderValue]
) -> tuple[list[FileColumn], dict[str, pa.Scalar]]:
    """The columns that are read from a file, and the values of those that its folders are named after."""
    known = {one.name: pa.scalar(_PARSED[one.type](one.text), arrow_type(one.type)) for one in values}
    return [column for column in columns if column.name not in known], known
