"""Reads ranks of all events until now with a condition on the rank: the first rows of each key, which change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from millpond.errors import UnsupportedQuery
from millpond.model.aggregates import RANKS, Aggregate
from millpond.model.expressions import Column, Expression, call, conjunction, literal
from millpond.model.query import Query
from millpond.model.selection import foreign_above
from millpond.model.types import WINDOW
from millpond.model.windows import Distinct
from millpond.plan.groups.top_rows import top_rows
from millpond.spark.analysis.extract import NO_TIME, Reader
from millpond.spark.analysis.query_terms import Extraction
from millpond.spark.analysis.upstream.ordered_functions import NAMES, ordering, rank_by
from millpond.spark.catalyst.private_names import (
    JavaObject,
    id_of,
    items,
    kind_of,
    outputs,
    text_of,
    timed_column,
    type_of,
)

_CURE = "Write WHERE n <= 10 above it, where n is the column of row_number(), rank() or dense_rank()."


class Limit(NamedTuple):
    """ORDER BY … LIMIT: the nodes of both, the number of rows, and the nodes above ORDER BY, the highest first."""

    sort: JavaObject
    rows: JavaObject
    above: list[JavaObject]


class UpdatingRankReader(Reader):
    """Reads one `Window` node, or ORDER BY … LIMIT, over events or over the rows of an upstream query."""

    def ranks(self, windows: Sequence[JavaObject], above: list[JavaObject]) -> Extraction:
        """The query of the node; `above` are the nodes above it, the highest first.

        Raises:
            UnsupportedQuery: it is not ranks in one order with a condition.
        """
        node, ranked = windows[0], items(windows[0].windowExpressions())
        functions = [alias.child().windowFunction() for alias in ranked]
        other = next((one for one in functions if NAMES.get(kind_of(one)) not in RANKS), None)
        if len(windows) > 1 or other is not None:
            raise UnsupportedQuery(
                f"`{text_of(functions[0] if other is None else other)}` OVER (…) in update mode is not supported: only "
                "ranks with one PARTITION BY and ORDER BY, and a condition, are.",
                _CURE,
            )
        keys = items(node.partitionSpec())
        if self.input_plan.windows or any(type_of(key) == WINDOW for key in keys):
            raise UnsupportedQuery(
                f"{self._terms.name} ranks rows of windows, which do not change.", "Leave 'emit' out."
            )
        by_key = self._keys(keys)
        for key in keys:  # a row shows the values of its event
            self._scope.pop(id_of(key), None)
        order, ranks = ordering(items(node.orderSpec()), self.translate), list[Aggregate]()
        for alias, function in zip(ranked, functions, strict=True):
            rank = rank_by(NAMES[kind_of(function)], order)
            ranks += [] if rank in ranks else [rank]
            self._scope[id_of(alias)] = Column(f"agg:{ranks.index(rank)}", rank.type)
        return self._ranked(node, by_key, ranks, above)

    def first_rows(self, limit: Limit, rows: int) -> Extraction:
        """The query of ORDER BY … LIMIT: the first of all rows until now."""
        number = rank_by("row_number", ordering(items(limit.sort.order()), self.translate))
        first = call("le", (Column("agg:0", number.type), literal(rows, "int")), "boolean")
        return self._ranked(limit.sort, (), [number], limit.above, first)

    def _ranked(
        self, node: JavaObject, keys: tuple[Expression, ...], ranks: Sequence[Aggregate], above: list[JavaObject],
        first: Expression | None = None,
    ) -> Extraction:  # fmt: skip
        """The query of the rows of `node` that meet a condition on their rank: `first`, or one in the nodes `above`."""
        if self._terms.serve:
            raise UnsupportedQuery(
                f"{self._terms.name} has several rows for each key, so it has no latest row per key to serve.",
                "Leave 'serve' out.",
            )
        self._event = []
        having, output = self._finish(outputs(node), above)
        having = conjunction([part for part in (first, having) if part is not None])
        columns = () if self.stream.upstreams else outputs(node.child())
        time = timed_column(columns) or NO_TIME
        made = self._query(time, Distinct(keeps="ranked", rows=1), keys, tuple(ranks), having, output)
        query = made.query
        assert isinstance(query, Query)
        top = top_rows(query)
        if top is None:
            raise UnsupportedQuery(f"{ranks[0].function}() OVER (…) ranks all events, so all would be kept.", _CURE)
        if foreign_above(msgspec.structs.replace(query, output=())):
            raise UnsupportedQuery(
                f"{query.name} has a condition on ranked events that only Spark evaluates.",
                "Write this condition in the inner SELECT, below OVER.",
            )
        window = Distinct(keeps="ranked", rows=top.rows)
        return made._replace(query=msgspec.structs.replace(query, window=window))
