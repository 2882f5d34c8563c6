"""Plans LIMIT without ORDER BY: a query with the first rows of the whole stream."""

from __future__ import annotations

import msgspec

from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.types import WINDOW
from millpond.model.windows import Distinct
from millpond.plan.groups.distinct import distinct_rows
from millpond.plan.upstream.upstream_joins import made_window


def first_rows(rows: Selection, time: Column | None, limit: int) -> Query:
    """The query with the first of the `rows`, `limit` of them in all; no event is late for it.

    If the source has no order, the rows of an epoch are ordered by `time`, then by their values. The window of an
    earlier query's row is stored as its bounds.

    Raises:
        UnsupportedQuery: an output has a type without operators.
    """
    parts = [_parts(item) for item in rows.output]
    stored = [*([] if time is None else [Named("", time)]), *(one for some in parts for one in some)]
    query = distinct_rows(msgspec.structs.replace(rows, output=tuple(stored)), (), None)
    shown = iter(query.output if time is None else query.output[1:])
    output = tuple(
        Named(item.name, made_window(next(shown).expression, next(shown).expression)) if len(some) > 1 else next(shown)
        for item, some in zip(rows.output, parts, strict=True)
    )
    return msgspec.structs.replace(query, window=Distinct(rows=limit), output=output)


def _parts(output: Named) -> list[Named]:
    """What is stored of an output column: the bounds of a window, or the column."""
    whole = output.expression
    if not isinstance(whole, Column) or whole.type != WINDOW:
        return [output]
    return [Named(f"{output.name}.{part}", Column(f"{whole.name}.{part}", "timestamp")) for part in ("start", "end")]
