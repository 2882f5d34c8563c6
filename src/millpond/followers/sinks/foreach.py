"""Foreach sink: calls a function in the pond's process with the rows of an epoch and its number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from millpond.errors import QueryTypeError, UserFunctionError
from millpond.followers.record_rows import RowsReader
from millpond.followers.sinks.delivery import RepeatingDelivery
from millpond.log.records import Entry

Foreach: TypeAlias = Callable[[pa.RecordBatch, int], object]
"""A user's function of the rows of an epoch (at least one) and the number of its record; its result is ignored."""


class ForeachSink(RepeatingDelivery):
    """Passes rows to a function; starts after record `since` if there is no cursor.

    QueryTypeError: the query has no function.
    """

    def __init__(self, query: str, rows: RowsReader, cursor: Path, function: Foreach | None, since: int) -> None:
        if function is None:
            raise QueryTypeError(
                f"The rows of {query} go to a function, and there is none.",
                f"Call pond.foreach({query!r}, function) before the pond is opened.",
            )
        super().__init__(query, rows, f"The function of {query}", cursor, since)
        self._function = function

    def _hand_over(self, record: Entry, table: pa.Table) -> None:
        (rows,) = table.combine_chunks().to_batches()
        try:
            self._function(rows, record.n)
        except Exception as error:
            raise UserFunctionError(
                f"The function that takes the rows of {self._query} raised {type(error).__name__} in epoch {record.n}: "
                f"{' '.join(str(error).split())}.",
                "It is called again with this epoch, and with no later one before.",
            ) from error
