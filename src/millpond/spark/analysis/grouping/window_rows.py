"""Reads windows that a query emits without aggregating: each event is a row for each of its windows.

A tumbling window is a column of the event. Spark's analyser plans the windows of a hopping window as an `Expand`, which
is read like `explode` of an array of these windows.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeGuard

from millpond.errors import UnsupportedQuery
from millpond.model.windows import Cumulating, Sliding, Written
from millpond.spark.analysis.steps.step_boundaries import joins_streams
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, kind_of, nodes_of

MOST_WINDOWS = 100
"""The most windows of one event that a query without an aggregation may emit, because Spark plans each of them."""


def emits_windows(plan: JavaObject) -> bool:
    """Whether an analysed plan neither aggregates its windows nor joins two streams in them."""
    return not any(kind_of(node) == "Aggregate" or joins_streams(node) for node in nodes_of(plan))


def is_hopping(window: Written | None) -> TypeGuard[Sliding]:
    """Whether one event can belong to several windows."""
    return isinstance(window, Sliding) and window.slide_us < window.size_us


def check_grouped(window: object, fields: Collection[str | None]) -> None:
    """Refuse windows that grow where rows are grouped by their start alone; `fields` are the parts in the key.

    Raises:
        UnsupportedQuery: the key has only the start of such windows.
    """
    if isinstance(window, Cumulating) and not {None, "end"} & {*fields}:
        raise UnsupportedQuery(
            "Windows that grow by steps have equal starts, so their start alone is no key.",
            "Group by the whole window.",
        )


def check_emitted(windows: int) -> None:
    """Refuse to emit more than `MOST_WINDOWS` windows of each event.

    Raises:
        UnsupportedQuery: there are more.
    """
    if windows > MOST_WINDOWS:
        raise UnsupportedQuery(
            f"The query has no aggregation, so it would emit each event in {windows:,} windows; {MOST_WINDOWS} are "
            "allowed.",
            "Group by the window, or use a longer slide.",
        )


def exploded_windows(catalyst: Catalyst, windows: list[JavaObject]) -> JavaObject:
    """The generator that makes a row for each of these structs, which are the windows of one event.

    Raises:
        UnsupportedQuery: there are too many.
    """
    check_emitted(len(windows))
    bare = [window.child() if kind_of(window) == "Alias" else window for window in windows]
    return catalyst.make("Explode", catalyst.make("CreateArray", bare))


def ungrouped_window_error() -> UnsupportedQuery:
    """The error for a window that only exists as the key of an aggregation."""
    return UnsupportedQuery(
        "The query has a count window, a cumulate_window, or a window of millpond.window, but no aggregation.",
        "Group by it. To emit the windows of each event, use window(ts, …) of Spark.",
    )
