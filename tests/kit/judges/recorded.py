"""Compares with recorded answers of Spark's batch instead of running Spark: a golden file keeps their digests.

Spark runs a query if the query is new or the rows of the pond differ from the record, and every query if
`MILLPOND_GOLDEN` is `write`, which records its answers, or `check`, as in `make exhaustive`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

_Answer = TypeVar("_Answer")

_VERSION = "version of pyspark"
"""The key of the version with which a file was recorded. Another version runs all queries, which is no failure."""

_FOLDER = Path(__file__).parents[2] / "golden" / "batch_answers"
_UTC = re.compile(r"tzinfo=(<UTC>|zoneinfo\.ZoneInfo\(key='UTC'\)|datetime\.timezone\.utc)")
"""As different versions of pyarrow represent it."""


class RecordedAnswers:
    """Spark's answers to the queries of one file of tests.

    `inputs` determine, with a query, its answer: Spark's version is always one of them.
    """

    def __init__(self, test_file: str, *inputs: object, folder: Path = _FOLDER) -> None:
        self._tests = Path(test_file).name
        self._path = folder / f"{Path(test_file).stem}.json"
        self._inputs = (version("pyspark"), *inputs)
        self._known: dict[str, list[str]] = json.loads(self._path.read_text()) if self._path.exists() else {}

    def answer(self, name: str, query: object, ours: _Answer, run: Callable[[], _Answer]) -> _Answer:
        """Spark's answer to `query`: `ours` if that is recorded, otherwise what `run` returns.

        Raises:
            AssertionError: the answer is right, but not recorded.
        """
        key, mode = _digest((query, self._inputs)), os.environ.get("MILLPOND_GOLDEN")
        known = self._known.get(name) == [key, _digest(ours)]
        if known and mode not in ("write", "check"):
            return ours
        theirs = run()
        if mode == "write":
            self._known |= {name: [key, _digest(theirs)], _VERSION: [version("pyspark")]}
            lines = (f"{json.dumps(name)}: {json.dumps(digests)}" for name, digests in sorted(self._known.items()))
            self._path.parent.mkdir(exist_ok=True)
            self._path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        elif theirs == ours and not known and self._known.get(_VERSION) == [version("pyspark")]:
            command = f"MILLPOND_GOLDEN=write pytest tests/spark/{self._tests}"
            raise AssertionError(f"Spark's answer to {name} is not the recorded one: {command}")
        return theirs


def columns_and_rows(
    table: pa.Table, shown: Callable[[object], object] = lambda value: value
) -> tuple[list[tuple[str, str]], list[str]]:
    """The columns with their types, and the sorted rows as texts, each value as `shown` returns it."""
    # as in every file that Spark writes, columns and the elements of arrays may be NULL
    columns = [(field.name, str(field.type).replace(" not null", "")) for field in table.schema]
    return columns, sorted(repr([shown(value) for value in row.values()]) for row in table.to_pylist())


def _digest(value: object) -> str:
    text = json.dumps(value)  # not `repr`, whose quotation marks depend on those in a text
    return hashlib.sha256(_UTC.sub("UTC", text).encode()).hexdigest()[:16]
