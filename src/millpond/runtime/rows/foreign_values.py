"""Values of expressions over the results of an aggregation that only Spark evaluates.

A fold cannot call Spark. So the results of such a query are computed twice in one job: first `Requests` collects the
inputs of its expressions, then Spark evaluates these, and then the fold finds the values in `EvaluatedValues`. A fold
is repeatable, so both times a query makes the same requests in the same order, by which the values are found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import CorruptError, TooManyPairsError, UnsupportedQuery
from millpond.kernels.columns import Values, arrow_type, attempted
from millpond.model.expressions import Foreign
from millpond.model.types import is_known

QUERY, REQUEST = "query", "request"
"""The columns of the requests: the query, and the number of the request among those of the query."""

MOST_ROWS = 10_000
"""The most rows of a table of which each result tries all, because a join compares nothing for equality."""

TOO_MANY = ".too_many"
"""After the name of an expression: the column with whether a table that it reads whole has too many rows."""


class ForeignValues(Protocol):
    """The values of expressions that only Spark evaluates."""

    def of(
        self, query: str, foreigns: Sequence[Foreign], inputs: Mapping[str, pa.Array], rows: int, /
    ) -> dict[str, Values] | None:
        """The values for some results of a query, by the name of the expression; None: they are not known yet.

        `inputs`: the columns that the expressions read.
        """


class Requests:
    """Collects the inputs of expressions; `batches` has a batch for each request."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, int, dict[Foreign, pa.StructArray]]] = []
        self._counts: dict[str, int] = {}

    def of(
        self, query: str, foreigns: Sequence[Foreign], inputs: Mapping[str, pa.Array], rows: int
    ) -> dict[str, Values] | None:
        """Notes a request."""
        number = self._counts.get(query, 0)
        self._counts[query] = number + 1
        if rows:
            self.batches.append((query, number, {foreign: _struct(foreign, inputs, rows) for foreign in foreigns}))
        return None


class EvaluatedValues:
    """The values that Spark has computed for the requests, in the order of the requests.

    `batches` have the columns `QUERY` and `REQUEST`, and each expression, by its name, as `struct<v>`, which is NULL
    where the evaluation raised.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        made = list(batches)
        self._table = pa.Table.from_batches(made).combine_chunks() if made else None
        self._places: dict[tuple[str, int], tuple[int, int]] = {}
        self._counts: dict[str, int] = {}
        if self._table is not None and len(self._table):
            queries = self._table[QUERY].combine_chunks().dictionary_encode()
            numbers = self._table[REQUEST].to_numpy()
            codes = queries.indices.to_numpy()
            cuts = np.flatnonzero((np.diff(codes) != 0) | (np.diff(numbers) != 0)) + 1
            for first, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(codes)], strict=True):
                name = queries.dictionary[int(codes[first])].as_py()
                self._places[name, int(numbers[first])] = first, end

    def of(
        self, query: str, foreigns: Sequence[Foreign], _inputs: Mapping[str, pa.Array], rows: int
    ) -> dict[str, Values] | None:
        """Finds the values of the query's next request.

        Raises:
            CorruptError: the fold has requested other values before.
            TooManyPairsError: an expression reads a table whole that has too many rows for this.
        """
        number = self._counts.get(query, 0)
        self._counts[query] = number + 1
        first, end = self._places.get((query, number), (0, 0))
        if end - first != rows:
            what = f"Spark has evaluated other results of {query} than the fold has."
            raise CorruptError(what, "Run the batch again.")
        if self._table is None or not rows:
            return {foreign.name: _none(foreign) for foreign in foreigns}
        part = self._table.slice(first, rows)
        for foreign in foreigns:
            name = foreign.name + TOO_MANY
            if name in part.column_names and pc.any(part[name]).as_py():
                raise TooManyPairsError(
                    f"`{foreign.sql}` of query {query!r} tries all rows of a table for each result, and there are "
                    f"more than {MOST_ROWS:,}.",
                    "Compare a column of the table with one of the result by `=`; for NOT IN, write NOT EXISTS.",
                )
        return {foreign.name: attempted(_whole(part[foreign.name]), foreign.type) for foreign in foreigns}


_values: ContextVar[ForeignValues | None] = ContextVar("foreign_values", default=None)


@contextmanager
def foreign_values(values: ForeignValues) -> Iterator[None]:
    """A context in which folds find the values of such expressions in `values`."""
    before = _values.set(values)
    try:
        yield
    finally:
        _values.reset(before)


def values_of(
    query: str, foreigns: Sequence[Foreign], inputs: Mapping[str, pa.Array], rows: int
) -> dict[str, Values] | None:
    """See `ForeignValues.of`, for the values of the current fold.

    Raises:
        UnsupportedQuery: the fold does not run in Spark.
    """
    values = _values.get()
    if values is None:
        raise UnsupportedQuery(
            f"Only Spark evaluates `{foreigns[0].sql}` of {query}, over its results.",
            "Test the query in a pond, or without that expression.",
        )
    return values.of(query, foreigns, inputs, rows)


def _struct(foreign: Foreign, inputs: Mapping[str, pa.Array], rows: int) -> pa.StructArray:
    """The inputs of an expression; one without inputs gets an empty column, as a struct has at least one."""
    columns = [inputs[name] for name in foreign.columns] or [pa.nulls(rows, pa.bool_())]
    return pa.StructArray.from_arrays(columns, names=[f"c{place}" for place in range(len(columns))])


def _whole(column: pa.ChunkedArray) -> pa.Array:
    chunks = column.combine_chunks()
    return chunks.chunk(0) if isinstance(chunks, pa.ChunkedArray) else chunks


def _none(foreign: Foreign) -> Values:
    kind = arrow_type(foreign.type) if is_known(foreign.type) else pa.null()
    return attempted(pa.StructArray.from_arrays([pa.array([], kind)], names=["v"]), foreign.type)
