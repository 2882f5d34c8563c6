"""Registers the rows of a query as a stream, and checks the queries that read it; Spark never reads its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession

from millpond.errors import UnsupportedQuery
from millpond.model.expressions import foreigns_in
from millpond.model.join import Join, Side
from millpond.model.selection import AnyQuery, expressions_of, is_inner
from millpond.model.stream import Stream
from millpond.model.types import WINDOW
from millpond.plan.upstream.rows_as_stream import chained_stream, check_event_time
from millpond.plan.upstream.steps import times_in
from millpond.spark.analysis.query_terms import Extraction
from millpond.spark.catalyst.data_types import columns_type
from millpond.spark.catalyst.private_names import WINDOW_MARK
from millpond.spark.sources.declared_paths import rows_path


def show_rows(spark: SparkSession, upstream: AnyQuery) -> Stream:
    """Register the rows of a query as a stream under the query's name.

    Raises:
        UnsupportedQuery: it is stateless, or emits updating results.
    """
    stream = chained_stream(upstream)
    schema = columns_type((item.name, item.expression.type) for item in upstream.output)
    for field, item in zip(schema.fields, upstream.output, strict=True):
        if item.expression.type == WINDOW:
            field.metadata = {WINDOW_MARK: True}  # so that window(w, …) is a window over the time of w, as in Spark
    frame = spark.readStream.format("json").schema(schema).load(rows_path(upstream.name))
    frame.createOrReplaceTempView(upstream.name)
    return stream


def check_chained(found: Extraction, upstreams: Iterable[AnyQuery]) -> None:
    """Refuse expressions that only Spark can evaluate, and event times that are missing, over the rows of other
    queries.

    Raises:
        UnsupportedQuery: the query has one of these.
    """
    by_name: dict[str, tuple[AnyQuery, ...]] = {upstream.name: (upstream,) for upstream in upstreams}
    for step in (*found.inner, found):
        by_name |= {stream.name: stream.steps for stream in step.streams if stream.steps}
        _check_step(step, by_name)


def _check_step(found: Extraction, by_name: Mapping[str, tuple[AnyQuery, ...]]) -> None:
    query = found.query
    for _, derived in ((found.stream, found.derived), *found.also):
        for name in () if derived is None else (branch.base.name for branch in derived.branches):
            if name in by_name:
                raise UnsupportedQuery(
                    f"Rows of {name} cannot be united, exploded or joined with a table: Spark evaluates this, and "
                    "does not see them.",
                    f"Do it below the aggregation of {name}, or use another stream.",
                )
    for part in query.sides.values() if isinstance(query, Join) else (query,):
        if part.stream not in by_name:
            continue
        expressions = part.expressions if isinstance(part, Side) else expressions_of(part)
        foreign = [node for one in expressions for node in foreigns_in(one)]
        if foreign and is_inner(part.stream):
            raise UnsupportedQuery(
                f"`{foreign[0].sql}` is evaluated by Spark, which does not see the rows of an inner query.",
                f"Compute `{foreign[0].sql}` in the inner SELECT, as a column with a name.",
            )
        if foreign:
            raise UnsupportedQuery(
                f"`{foreign[0].sql}` is evaluated by Spark, which does not see the rows of {part.stream}.",
                _cure(part.stream, foreign[0].sql),
            )
        for time in times_in(query, part.stream):
            for upstream in by_name[part.stream]:
                check_event_time(upstream, time)


def _cure(upstream: str, sql: str) -> str:
    """What to write instead of an expression that Spark would evaluate over the rows of a query."""
    return f"Compute `{sql}` in {upstream}, as a column that it emits."
