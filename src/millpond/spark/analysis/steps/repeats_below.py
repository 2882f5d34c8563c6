"""Removes repeated events below a window, where the window can do this itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millpond.errors import UnsupportedQuery
from millpond.model.expressions import Column, Expression
from millpond.model.query import Query
from millpond.model.stream import Stream
from millpond.plan.groups.deduplication import deduplicated
from millpond.spark.analysis.aggregation_input import LOWER, FirstOfRepeats, InputPlan
from millpond.spark.catalyst.private_names import JavaObject, kind_of


class RepeatsBelow(UnsupportedQuery):
    """A window does not remove these repeated events itself, so they are removed in a step of their own."""


def _within_us(plan: InputPlan, repeats: FirstOfRepeats, keys: Sequence[str], query: Query) -> int:
    """Within how much event time events with equal `keys` count as repeated, below the window of a query.

    Keys with the event time are equal only at the same time.

    Raises:
        UnsupportedQuery: `plan.groups.deduplication` does not remove such events, or not between these steps.
    """
    if not (repeats.within or query.event_time in keys):
        raise UnsupportedQuery(
            f"dropDuplicates or DISTINCT of {', '.join(keys)} below an aggregation is not supported in one text.",
            f"Compare {query.event_time} as well, use dropDuplicatesWithinWatermark, or remove them in a query of its "
            "own, say `lower`, and read its rows: FROM STREAM lower.",
        )
    if repeats.below or kind_of(plan.leaf) == "Union" or any(step.makes_rows for step in plan.steps):
        raise UnsupportedQuery(
            "The removal of repeated events above a filter or a union, or below a join or explode, is not supported in "
            "one text with an aggregation.",
            f"Drop duplicates of the stream first, and filter the remaining events. {LOWER}",
        )
    return query.delay_us if repeats.within else 0


def without_repeats(
    plan: InputPlan, query: Query, stream: Stream, meaning: Callable[[JavaObject], Expression]
) -> Query:  # fmt: skip
    """The windowed query over events without repeats, if they are removed below its window.

    Raises:
        RepeatsBelow: `plan.groups.deduplication` does not remove them.
    """
    repeats = plan.repeats
    if repeats is None:
        return query
    try:
        keys = [_plain(key, meaning) for key in repeats.keys]
        return deduplicated(query, stream, keys, _within_us(plan, repeats, keys, query))
    except UnsupportedQuery as error:
        raise RepeatsBelow(error.what, error.cure) from error


def _plain(column: JavaObject, meaning: Callable[[JavaObject], Expression]) -> str:
    """The name of the stream's column by which duplicates are recognised."""
    found = meaning(column)
    if isinstance(found, Column):
        return found.name
    raise UnsupportedQuery(
        f"Duplicates are compared by {column.name()}, which is computed.", "Name columns of the stream."
    )
