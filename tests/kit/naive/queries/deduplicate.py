"""The naive twin of deduplication: compares every event that is not late with all previous ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from kit.naive.expressions import order
from kit.naive.queries import windows
from kit.naive.queries.windows import Batch, Row
from millpond.model.expressions import Column, conjunction
from millpond.model.query import Query

KEPT = "_kept"


def without_repeats(query: Query, epochs: Sequence[Batch]) -> tuple[Query, list[list[dict[str, Any]]]]:
    """An equivalent query without deduplication, and the events with a column that says whether they are kept.

    Dropped events still advance the watermark.
    """
    found = query.deduplicated
    assert found is not None
    late = iter(windows.late_marks(query, epochs))
    known: list[tuple[tuple[Any, ...], int, dict[str, Any]]] = []
    marked = [[{**row, KEPT: True} for row in batch] for batch in epochs]
    for batch in marked:
        for row in batch:
            time = row[query.event_time]
            if not next(late) and windows._is_known(time):
                values = (row[column.name] for column in found.columns)
                known.append((tuple(None if value is None else order(value) for value in values), time, row))
    places = [_place(i, row) for i, (_, _, row) in enumerate(known)]
    for (identity, time, row), place in zip(known, places, strict=True):
        row[KEPT] = not any(
            same == identity and 0 <= time - before <= found.within_us and (before, other) < (time, place)
            for (same, before, _), other in zip(known, places, strict=True)
        )
    parts = [part for part in (query.where, Column(KEPT, "boolean")) if part is not None]
    return replace(query, where=conjunction(parts), deduplicate=UNSET), marked


def _place(i: int, row: Row) -> tuple[Any, ...]:
    """The sort key of events with equal time; events without partition and offset must be interchangeable."""
    return (str(row["p"]), row["o"]) if "o" in row else (i,)
