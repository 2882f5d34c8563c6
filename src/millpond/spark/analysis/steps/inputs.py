"""Finds the input of each step of a text: a stream, or the rows of the step below, which becomes an inner query."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.endpoints import Sink
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, Selection
from millpond.model.stream import Stream
from millpond.model.windows import RUNNING
from millpond.plan.upstream.rows_as_stream import inner_stream, passed_column, stream_of_steps, united_stream
from millpond.plan.upstream.steps import over, times_in
from millpond.spark.analysis.aggregation_input import InputPlan
from millpond.spark.analysis.input_streams import QueryInput, find_source
from millpond.spark.analysis.query_terms import Extraction, Terms
from millpond.spark.analysis.steps.group_by_window import grids_of, nullable_times
from millpond.spark.analysis.steps.step_boundaries import columns_read, unseen_rows_error
from millpond.spark.analysis.user_aggregates import UserFunctions
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, children, id_of, kind_of, outputs


class StepContext(NamedTuple):
    """What the analysis of one step of a text needs: its terms, its inputs and the user functions that it may call."""

    catalyst: Catalyst
    terms: Terms
    inputs: Inputs
    functions: UserFunctions

    def source(self, plan: InputPlan, needed: Collection[int], *, timed: bool = True) -> QueryInput:
        """The input of a plan; see `Inputs.source`."""
        return self.inputs.source(plan, self.terms, needed, timed=timed)


class Inputs:
    """Finds the inputs of one step, and collects the steps below it.

    A stream gets the name `relation`, or the name of the equal stream in `streams`, or else a name with its digest.
    `earlier` are the queries whose rows can be among `streams`. `extract` reads the plan of a lower step. `lower`
    applies the text's options and live parameters to the query of a lower step.
    """

    def __init__(
        self, catalyst: Catalyst, streams: Sequence[Stream], relation: str | None, earlier: Mapping[str, AnyQuery],
        extract: Callable[[JavaObject, Terms], Extraction], lower: Callable[[Extraction], AnyQuery],
    ) -> None:  # fmt: skip
        self._catalyst, self._streams, self._relation, self._earlier = catalyst, streams, relation, earlier
        self._extract, self._lower_query = extract, lower
        self._below: dict[str, list[Extraction]] = {}

    def source(self, plan: InputPlan, terms: Terms, needed: Collection[int], *, timed: bool = True) -> QueryInput:
        """The input of a plan, of which the columns with the expression ids `needed` are read; see `find_source`."""
        if not plan.is_step:
            found = find_source(self._catalyst, plan, self._streams, self._relation, timed=timed)
            upstreams = tuple(self._earlier[name] for name in found.stream.upstreams if name in self._earlier)
            return _over_rows(found, upstreams, self._earlier)
        if any(step.makes_rows for step in plan.steps):
            raise unseen_rows_error(
                "exploded, joined with a table or compared with a sub-query",
                "Join the table, or explode, below the aggregation, and group by the columns of the table, too: SELECT "
                "t.name, sum(s.x) FROM s JOIN t ON t.k = s.k GROUP BY t.name, …. A condition on keys can be in WHERE.",
            )
        columns = columns_read(plan.leaf, plan.nodes, needed)
        name = f"step {len(self._below)}"  # until the query that reads it is known, see `finished`
        terms = terms._replace(name=name, sink=Sink(), serve=False, columns=columns, updates=False)
        if kind_of(plan.leaf) != "Union":
            below = [self._lower(plan.leaf, terms)]
            stream = inner_stream(below[0].query)
        else:
            below = [self._branch(plan.leaf, branch, terms) for branch in children(plan.leaf)]
            stream = united_stream(name, [one.query for one in below])
        self._below[name] = below
        known = {**self._earlier, **{one.query.name: one.query for lower in below for one in lower.inner}}
        queries = tuple(one.query for one in below)
        return _over_rows(QueryInput(stream, dict(columns)), queries, known)

    def _lower(self, node: JavaObject, terms: Terms) -> Extraction:
        """The step that emits the rows of a plan node."""
        below = self._extract(node, terms)
        query = msgspec.structs.replace(self._lower_query(below), name=terms.name, text="")
        if isinstance(query, Query) and query.window == RUNNING:
            raise UnsupportedQuery(
                "The inner aggregation has no window, so its rows change with each epoch, and results that used them "
                "cannot be retracted.",
                "Group it by a window, too.",
            )
        return below._replace(query=query)

    def _branch(self, union: JavaObject, branch: JavaObject, terms: Terms) -> Extraction:
        """The step of a branch of a UNION ALL, whose columns get the names of the union's."""
        assert terms.columns is not None
        if not branch.isStreaming():
            raise QueryTypeError("A branch of the union is no stream.", "Write its rows where the stream is read.")
        pairs = zip(outputs(branch), outputs(union), strict=True)
        columns = {id_of(own): terms.columns[id_of(one)] for own, one in pairs if id_of(one) in terms.columns}
        return self._lower(branch, terms._replace(columns=columns))

    def finished(self, extraction: Extraction) -> Extraction:
        """The extraction of the step, with the final names of the steps below it."""
        names: dict[str, str] = {}
        inner: dict[str, Extraction] = {}
        streams: dict[str, Stream] = {}
        for temporary, below in self._below.items():
            event_time = next(iter(times_in(extraction.query, temporary)), "")
            queries = [_timed(one, event_time) if len(below) > 1 else one.query for one in below]
            streams[temporary] = stream_of_steps(queries, event_time)
            names[temporary] = streams[temporary].name
            for one, query in zip(below, streams[temporary].steps, strict=True):
                inner |= {step.query.name: step for step in (*one.inner, one._replace(query=query, inner=()))}

        def renamed(stream: Stream) -> Stream:
            return streams.get(stream.name, stream)

        return extraction._replace(
            query=over(extraction.query, names), stream=renamed(extraction.stream),
            also=tuple((renamed(stream), derived) for stream, derived in extraction.also), inner=tuple(inner.values()),
        )  # fmt: skip


def _over_rows(source: QueryInput, upstreams: tuple[AnyQuery, ...], known: Mapping[str, AnyQuery]) -> QueryInput:
    """The input with what is known of the rows of `upstreams`; `known`: the queries whose rows these may read."""
    if not upstreams:
        return source
    first, *others = [grids_of(upstream, known) for upstream in upstreams]
    grids = {name: grid for name, grid in first.items() if all(other.get(name) == grid for other in others)}
    nullable = frozenset[str]().union(*(nullable_times(upstream, known) for upstream in upstreams))
    return replace(source, upstreams=upstreams, grids=grids, nullable_times=nullable)


def _timed(branch: Extraction, event_time: str) -> AnyQuery:
    """The query of a branch of a UNION ALL; a stateless one says when its rows are complete if `event_time` is used."""
    query = branch.query
    if not isinstance(query, Selection) or not event_time:
        return query
    column = passed_column(query, event_time)
    if branch.stream.upstreams:  # no row is late
        delay_us = 0
    elif branch.timing is not None and branch.timing.event_time.name == column:
        delay_us = branch.timing.delay_us
    else:
        return query
    return query if column is None else msgspec.structs.replace(query, event_time=column, delay_us=delay_us)
