"""Finds the input of each step of a text: a stream, or the rows of the step below, which becomes an inner query."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import msgspec

from millpond.errors import UnsupportedQuery
from millpond.model.endpoints import Sink
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.model.stream import Stream
from millpond.model.windows import RUNNING
from millpond.plan.chains.steps import over, step_name, times_in
from millpond.plan.chains.upstream import inner_stream
from millpond.spark.analysis.aggregation_input import InputPlan
from millpond.spark.analysis.input_streams import QueryInput, find_source
from millpond.spark.analysis.query_terms import Extraction, Terms
from millpond.spark.analysis.steps.cut import columns_read, rows_not_seen
from millpond.spark.analysis.steps.row_windows import grids_of
from millpond.spark.catalyst.private_names import Catalyst, JavaObject


class Inputs:
    """Finds the inputs of one step, and collects the steps below it.

    A stream gets the name `relation`, or the name of the equal stream in `streams`, or else a name with its digest.
    `earlier` are the queries whose rows can be among `streams`. `extract` reads the plan of a lower step.
    """

    def __init__(
        self, catalyst: Catalyst, streams: Sequence[Stream], relation: str | None, earlier: Mapping[str, AnyQuery],
        extract: Callable[[JavaObject, Terms], Extraction],
    ) -> None:  # fmt: skip
        self._catalyst, self._streams, self._relation, self._earlier = catalyst, streams, relation, earlier
        self._extract = extract
        self._below: list[Extraction] = []

    def source(self, plan: InputPlan, terms: Terms, needed: Collection[int], *, timed: bool = True) -> QueryInput:
        """The input of a plan, of which the columns with the expression ids `needed` are read; see `find_source`."""
        if not plan.is_step:
            found = find_source(self._catalyst, plan, self._streams, self._relation, timed=timed)
            upstream = self._earlier.get(found.stream.upstream or "")
            grids = {} if upstream is None else grids_of(upstream, self._earlier)
            return replace(found, upstream=upstream, grids=grids)
        if any(step.makes_rows for step in plan.steps):
            raise rows_not_seen("exploded or joined with a table")
        columns = columns_read(plan.leaf, plan.nodes, needed)
        name = f"step {len(self._below)}"  # until the query that reads it is known, see `finished`
        below = self._extract(plan.leaf, terms._replace(name=name, sink=Sink(), serve=False, columns=columns))
        query = msgspec.structs.replace(below.query, text="")
        if isinstance(query, Query) and query.window == RUNNING:
            raise UnsupportedQuery(
                "The inner aggregation has no window, so its rows change with each epoch, and results that used them "
                "cannot be retracted.",
                "Group it by a window, too.",
            )
        self._below.append(below._replace(query=query))
        known = {**self._earlier, **{one.query.name: one.query for one in below.inner}}
        return QueryInput(inner_stream(query), dict(columns), upstream=query, grids=grids_of(query, known))

    def finished(self, found: Extraction) -> Extraction:
        """The extraction of the step, with the final names of the steps below it."""
        names: dict[str, str] = {}
        inner: dict[str, Extraction] = {}
        for below in self._below:
            temporary = below.query.name
            names[temporary] = step_name(below.query, next(iter(times_in(found.query, temporary)), ""))
            final = msgspec.structs.replace(below.query, name=names[temporary])
            inner |= {one.query.name: one for one in (*below.inner, below._replace(query=final, inner=()))}

        def renamed(stream: Stream) -> Stream:
            return inner_stream(inner[names[stream.name]].query) if stream.name in names else stream

        return found._replace(
            query=over(found.query, names), stream=renamed(found.stream),
            also=tuple((renamed(stream), derived) for stream, derived in found.also), inner=tuple(inner.values()),
        )  # fmt: skip
