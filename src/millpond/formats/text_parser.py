"""Parses batches of texts, and finds the texts that do not parse.

If a batch does not parse, texts of unusual form are parsed apart from the others; what still does not parse is halved.
`json_values` and `csv_values` say how a batch is parsed, and what a single text is that does not parse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.formats.json_checks import Doubt

Mask: TypeAlias = npt.NDArray[np.bool_]
Positions: TypeAlias = npt.NDArray[np.int64]


class Parsed(NamedTuple):
    """A column of each requested name, and the texts that are malformed; all their values are NULL.

    `reasons`: why texts are malformed, by their rows; a text that is NULL or empty has none.
    """

    columns: list[pa.Array]
    malformed: Mask
    reasons: Mapping[int, str]


class TextParser:
    """Collects parts of the columns with the rows that they hold, and the malformed rows."""

    def __init__(self, texts: pa.BinaryArray | pa.LargeBinaryArray, types: Sequence[pa.DataType]) -> None:
        self._texts, self._types = texts, types
        self._suspects = 8 + len(texts) // 500
        self._failures = 128 + len(texts) // 125
        self._parts: list[list[pa.Array]] = []
        self._rows: list[Positions] = []
        self._malformed: dict[int, str] = {}

    def parse(self, rows: Positions) -> None:
        """Parse the texts of these rows, in order.

        Raises:
            Doubt: a result that equals Spark's is not known for some text.
        """
        texts = self._texts.take(pa.array(rows)) if len(rows) < len(self._texts) else self._texts
        texts = texts.cast(pa.binary())  # Spark may send them as large_binary
        try:
            self._add(*self._parsed(rows, texts))
        except Doubt:
            unusual = self._unusual(texts)
            for part in (unusual, ~unusual):
                if part.any():
                    self._halve(rows[part], texts.filter(pa.array(part)))

    def result(self, malformed: Mask) -> Parsed:
        """The columns of all texts; NULL where no text was parsed. `malformed` has the texts that were not given."""
        malformed[[*self._malformed]] = True
        rows = np.concatenate([np.zeros(0, np.int64), *self._rows])
        columns = [
            pa.concat_arrays([part[place] for part in self._parts] or [pa.nulls(0, kind)])
            for place, kind in enumerate(self._types)
        ]
        return Parsed(_placed(columns, rows, len(self._texts)), malformed, self._malformed)

    def _halve(self, rows: Positions, texts: pa.BinaryArray) -> None:
        """Parse texts; where this fails, parse each half, down to single texts."""
        try:
            self._add(*self._parsed(rows, texts))
            return
        except Doubt as doubt:
            self._failures -= 1
            if self._failures < 0:
                raise
            if len(rows) == 1:
                self._suspects -= 1
                if self._suspects < 0:
                    raise Doubt("many values do not parse") from doubt
                self._judge(int(rows[0]), texts[0].as_py(), doubt)
        for start, end in pairwise((0, len(rows) // 2, len(rows))) if len(rows) > 1 else ():
            self._halve(rows[start:end], texts[start:end])

    def _add(self, rows: Positions, columns: list[pa.Array]) -> None:
        self._rows.append(rows)
        self._parts.append(columns)

    def _parsed(self, rows: Positions, texts: pa.BinaryArray) -> tuple[Positions, list[pa.Array]]:
        """The columns of these texts, and their rows without those that are malformed.

        Raises:
            Doubt: one of them is not known to be parsed as Spark does.
        """
        raise NotImplementedError

    def _unusual(self, texts: pa.BinaryArray) -> Mask:
        """The texts that probably do not parse; an error costs time only."""
        raise NotImplementedError

    def _judge(self, row: int, text: bytes, doubt: Doubt) -> None:
        """Decide what a single text is that does not parse, and why; raises `doubt` if this is not known."""
        raise NotImplementedError


def _placed(columns: list[pa.Array], rows: Positions, count: int) -> list[pa.Array]:
    """The columns with their values at distinct rows of `count`, in any order; all other rows are NULL."""
    if np.array_equal(rows, np.arange(count)):
        return columns
    places = np.full(count, -1)
    places[rows] = np.arange(len(rows))
    index = pa.array(places, mask=places < 0)
    return [column.take(index) for column in columns]
