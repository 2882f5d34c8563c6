"""Finds where a plan is divided into steps: above a lower aggregation, join of streams, `OVER` or deduplication.

Everything between two stateful nodes belongs to the lower step, because its rows are computed in the fold, where Spark
can evaluate any expression. The exceptions are what Spark's analyser puts below a window (a projection with the window,
one with `window_time`, a filter) and watermarks: the upper step reads these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from millpond.errors import UnsupportedQuery
from millpond.model.types import WINDOW
from millpond.spark.catalyst.private_names import (
    JavaObject,
    children,
    computed_in,
    delay_ms,
    id_of,
    items,
    kind_of,
    outputs,
    references,
    type_of,
    window_mark,
)
from millpond.spark.sources.declared_paths import reads_rows

_UNARY = (
    "Project", "Filter", "Expand", "EventTimeWatermark", "SubqueryAlias", "ResolvedHint", "Generate",
    "DeduplicateWithinWatermark", "Deduplicate", "Distinct",
)  # fmt: skip
REPEATS = ("Deduplicate", "DeduplicateWithinWatermark", "Distinct")
"""Nodes that remove repeated events."""
_UNITS = {
    "UnixSeconds": 1_000_000, "UnixTimestamp": 1_000_000, "ToUnixTimestamp": 1_000_000, "UnixMillis": 1_000,
    "UnixMicros": 1,
}  # fmt: skip
"""Spark's functions that count the time in whole units since 1970."""
_ORDER = re.compile(r"_w\d+")
_LOWER = ("Project", "Filter", "SubqueryAlias", "ResolvedHint", "Join", "Generate")
"""Nodes between two stateful nodes that belong to the lower step."""


def child_of(node: JavaObject) -> JavaObject:
    """The only child of a plan node; always the same object, so that it can be compared with `is`."""
    return children(node)[0]


def streaming_child(node: JavaObject) -> JavaObject:
    """The child of a plan node that reads a stream; of a join with a table, this is the other side."""
    if kind_of(node) == "Join" and not node.left().isStreaming():
        return children(node)[1]
    return child_of(node)


def makes_rows_of_results(node: JavaObject) -> bool:
    """Whether a node joins rows of a stateful node with a table, or makes a row for each element of their arrays."""
    joins_table = kind_of(node) == "Join" and bool(node.isStreaming()) and not joins_streams(node)
    return (joins_table or kind_of(node) == "Generate") and cut_below(node) is not None


def repeats_below_rows(node: JavaObject) -> tuple[JavaObject, list[JavaObject]] | None:
    """A node that removes repeated events, and the nodes above it, if one of these joins a table or explodes arrays."""
    above: list[JavaObject] = []
    while kind_of(node) in _LOWER and not joins_streams(node):
        above.append(node)
        node = streaming_child(node)
    makes_rows = any(kind_of(one) in ("Join", "Generate") for one in above)
    return (node, above) if makes_rows and kind_of(node) in REPEATS else None


def unseen_rows_error(how: str, cure: str = "Do it below, or aggregate in a query of its own.") -> UnsupportedQuery:
    """The error for rows of a lower step that Spark would have to see; `how`: what would be done with them."""
    return UnsupportedQuery(
        f"Rows of an aggregation or of a join of streams cannot be {how}: Spark evaluates this, and does not see them.",
        cure,
    )


def joins_streams(node: JavaObject) -> bool:
    """Whether a node is a join of two streams."""
    return kind_of(node) == "Join" and bool(node.left().isStreaming()) and bool(node.right().isStreaming())


def numbers_events(node: JavaObject) -> bool:
    """Whether a `Window` node only numbers events in the order of their time, as in `row_number() = 1`."""
    aliases, order = items(node.windowExpressions()), items(node.orderSpec())
    if len(aliases) != 1 or kind_of(aliases[0].child().windowFunction()) != "RowNumber" or len(order) != 1:
        return False
    by = order[0].child()
    return kind_of(by) == "AttributeReference" and delay_ms(by) is not None and type_of(by) != WINDOW


def _keeps_state(node: JavaObject) -> bool:
    if kind_of(node) == "Window":
        return bool(node.isStreaming()) and not numbers_events(node)
    return kind_of(node) == "Aggregate" or joins_streams(node) or sorted_below(node) is not None


def sorted_below(node: JavaObject) -> JavaObject | None:
    """The ORDER BY of a LIMIT node; None for other nodes."""
    if kind_of(node) != "GlobalLimit":
        return None
    below = child_of(node)
    while kind_of(below) in ("LocalLimit", "Project", "SubqueryAlias"):
        below = child_of(below)
    return below if kind_of(below) == "Sort" else None


def _picks_events(node: JavaObject) -> bool:
    """Whether a node removes repeated events, or numbers events so that a condition can pick some of them."""
    return kind_of(node) in REPEATS or (kind_of(node) == "Window" and numbers_events(node))


def cut_below(node: JavaObject, *, at_repeats: bool = False) -> JavaObject | None:
    """The node at or below `node` whose rows a lower step emits; None if no state is kept below `node`.

    `at_repeats`: a node that removes repeated events, or numbers events by `row_number()`, is a step of its own.
    """
    path: list[JavaObject] = []
    while not (_keeps_state(node) or (at_repeats and _picks_events(node))):
        if kind_of(node) == "Union":
            return node if _is_cut(node) else None
        if not _has_one_input(node):
            if reads_rows(node) and any(kind_of(one) in ("Join", "Generate") for one in path):
                break  # Spark evaluates these, and does not see the rows
            return None
        path.append(node)
        node = streaming_child(node)
    while path and kind_of(path[-1]) in _LOWER and not (_makes_window(path[-1]) or _makes_order(path[-1])):
        if kind_of(path[-1]) == "Filter" and len(path) > 1 and _makes_window(path[-2]):
            break  # the analyser's filter of NULL under a window
        node = path.pop()
    return node


def _has_one_input(node: JavaObject) -> bool:
    """Whether a plan node reads one stream, and keeps no state."""
    return kind_of(node) in _UNARY or (kind_of(node) == "Join" and bool(node.isStreaming()))


def _is_cut(union: JavaObject) -> bool:
    """Whether the branches of a UNION ALL are steps of their own: one keeps state or reads the rows of a query, or they
    wait differently for late events.
    """
    if not union.isStreaming():
        return False
    branches = children(union)
    delays = ([delay_ms(column) for column in outputs(branch)] for branch in branches)
    return len({tuple(own) for own in delays}) > 1 or any(map(_has_step, branches))


def _has_step(branch: JavaObject) -> bool:
    if cut_below(branch) is not None:
        return True
    while _has_one_input(branch):
        branch = streaming_child(branch)
    return reads_rows(branch)


def _makes_window(node: JavaObject) -> bool:
    """Whether a node computes a window, or the time of one."""
    if kind_of(node) != "Project":
        return kind_of(node) == "Expand"
    made = (column.child() for column in computed_in(node) if kind_of(column) == "Alias")
    kinds = {kind_of(one) for one in made}
    windows = any(window_mark(column) for column in computed_in(node) if kind_of(column) == "Alias")
    return "PreciseTimestampConversion" in kinds or (windows and not kinds <= {"AttributeReference", "GetStructField"})


def _makes_order(node: JavaObject) -> bool:
    """Whether a node computes a time in whole units for the ORDER BY of `OVER`, whose column the analyser names."""
    if kind_of(node) != "Project":
        return False
    made = (column for column in computed_in(node) if kind_of(column) == "Alias")
    return any(_ORDER.fullmatch(str(column.name())) and unit_of_time(column.child()) for column in made)


def unit_of_time(node: JavaObject) -> int | None:
    """The unit in microseconds in which an expression counts a timestamp since 1970; None: it does not."""
    kind = "UnixSeconds" if kind_of(node) == "Cast" and type_of(node) == "bigint" else kind_of(node)
    return _UNITS[kind] if kind in _UNITS and type_of(children(node)[0]) == "timestamp" else None


def columns_read(leaf: JavaObject, above: Iterable[JavaObject], needed: Iterable[int]) -> dict[int, str]:
    """The columns of a lower step that an upper one reads, by expression id, with distinct names.

    `above` are the nodes above the cut, from the highest down, and `needed` the ids of the columns that are read of the
    highest. Columns with a watermark are always read.
    """
    ids = set(needed)
    for node in above:
        if kind_of(node) != "Project":
            ids |= {id_of(column) for column in references(node)}
            continue
        computed = {id_of(column): column for column in computed_in(node)}
        for identity in ids & computed.keys():
            ids |= {id_of(column) for column in references(computed[identity])}
    chosen = [column for column in outputs(leaf) if id_of(column) in ids or delay_ms(column) is not None]
    return _named({id_of(column): str(column.name()) for column in chosen})


def _named(names: dict[int, str]) -> dict[int, str]:
    taken: set[str] = set()
    for identity, name in names.items():
        number, free = 1, name
        while free in taken:
            number += 1
            free = f"{name}_{number}"
        taken.add(free)
        names[identity] = free
    return names


def referenced_ids(nodes: Sequence[JavaObject]) -> set[int]:
    """The expression ids of all columns that plan nodes refer to."""
    return {id_of(column) for node in nodes for column in references(node)}


def output_ids(plan: JavaObject) -> set[int]:
    """The expression ids of the columns of a plan."""
    return {id_of(column) for column in outputs(plan)}
