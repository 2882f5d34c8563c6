"""Translates the plan of any query: `JoinReader` reads joins of streams, other modules what keeps other state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

from pyspark.sql import DataFrame

from millpond.errors import UnsupportedQuery
from millpond.model.selection import AnyQuery, Selection, foreign_below
from millpond.model.stream import Stream
from millpond.plan.options.clock_parameters import check_clock
from millpond.spark.analysis.extract import extract_query
from millpond.spark.analysis.grouping.storable_keys import with_storable_keys
from millpond.spark.analysis.joins.joins import JoinReader
from millpond.spark.analysis.joins.subqueries import without_subqueries
from millpond.spark.analysis.joins.ttl import check_ttl
from millpond.spark.analysis.query_terms import Extraction, Terms
from millpond.spark.analysis.steps.computed_below import reads_inner_rows, with_lower_columns
from millpond.spark.analysis.steps.inputs import Inputs, StepContext
from millpond.spark.analysis.steps.normalise_clauses import normalise_clauses
from millpond.spark.analysis.steps.rows_of_branches import with_rows_of_branches
from millpond.spark.analysis.steps.step_boundaries import (
    joins_streams,
    makes_rows_of_results,
    output_ids,
    referenced_ids,
    streaming_child,
)
from millpond.spark.analysis.upstream.processors import read_processor, rows_of_processor
from millpond.spark.analysis.upstream.ranks import (
    limit_of,
    ranks_rows,
    read_first,
    read_frames,
    read_limit,
    read_ranks,
    read_rows,
)
from millpond.spark.analysis.user_aggregates import UserFunctions
from millpond.spark.catalyst.inlined_size import check_inlined
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, analysed, kind_of, outputs
from millpond.spark.sources.declared_paths import reads_rows


def extract_any(
    catalyst: Catalyst, frame: DataFrame, terms: Terms, streams: Sequence[Stream] = (), relation: str | None = None,
    functions: UserFunctions | None = None, earlier: Mapping[str, AnyQuery] = MappingProxyType({}),
    lower: Callable[[Extraction], AnyQuery] = lambda extraction: extraction.query,
) -> Extraction:  # fmt: skip
    """Read a streaming DataFrame that was not started and may contain a join; see `extract_query`.

    `earlier` are the queries whose rows can be among `streams`. `lower` completes the query of each lower step.

    Raises:
        UnsupportedQuery, QueryTypeError: see `extract_query`.
    """
    plan = normalise_clauses(catalyst, catalyst.clean(analysed(frame)))
    plan = with_rows_of_branches(catalyst, without_subqueries(catalyst, plan))
    plan = with_storable_keys(catalyst, plan, terms.name if terms.serve else None)
    check_inlined(plan)
    known = functions or UserFunctions(catalyst)

    def extract(plan: JavaObject, terms: Terms) -> Extraction:
        inputs = Inputs(catalyst, streams, relation, earlier, extract, lower)
        made = _extract(StepContext(catalyst, terms, inputs, known), plan)
        check_clock(made.query)
        return inputs.finished(made)

    extraction = extract(plan, terms)
    if reads_inner_rows(extraction):
        with suppress(UnsupportedQuery):  # then the error about the first form says more
            extraction = extract(with_lower_columns(catalyst, plan), terms)
    if terms.ttl_us is not None:
        check_ttl(extraction)
    return extraction


def _extract(context: StepContext, plan: JavaObject) -> Extraction:
    above: list[JavaObject] = []
    node = plan
    while kind_of(node) in ("Project", "Filter", "SubqueryAlias", "ResolvedHint") or (
        makes_rows_of_results(node) and rows_of_processor(context, node) is None
    ):
        above.append(node)
        node = streaming_child(node)
    if joins_streams(node):
        reader = JoinReader(context, node, referenced_ids([node, *above]) | output_ids(plan))
        return reader.read(outputs(plan), above[::-1])
    if kind_of(node) == "GlobalLimit":
        if (limit := limit_of(node, above)) is not None:
            return read_limit(context, limit)
        if above:
            raise UnsupportedQuery("LIMIT without ORDER BY is not the end of the query.", "Leave out what follows it.")
        return read_first(context, node)
    if kind_of(node) == "Window":
        read = read_ranks if ranks_rows(node) else read_frames
        return read(context, node, above)
    if (made := rows_of_processor(context, node)) is not None:
        return read_processor(context, made, above)
    rows = reads_rows(node) and not context.terms.updates
    if rows and any(kind_of(one) in ("Join", "Generate") for one in above):
        return read_rows(context, node, above) or extract_query(context, plan)
    found = extract_query(context, plan)
    if rows and isinstance(found.query, Selection) and foreign_below(found.query):
        return read_rows(context, node, above) or found
    return found
