"""The naive twin of updating results: remembers every emitted row and compares it with the current one."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from kit.naive.expressions import order
from kit.naive.queries import windows
from kit.naive.queries.windows import Batch, Result, Value
from millpond.model.query import Query
from millpond.plan.options.output_modes import OP, REVISION, only_distinct

_Place = tuple[Value, ...]


def emitted_by_epoch(query: Query, epochs: Sequence[Batch]) -> list[list[Result]]:
    """The rows that each epoch emits, with `_op`, and `_revision` if the query corrects its rows.

    Raises:
        Raised: HAVING or an output expression raises.
        OverflowedError: an integer sum left its type.
    """
    cells: dict[_Place, windows._Cell] = {}
    sent: dict[_Place, Result] = {}
    revisions: dict[_Place, int] = {}
    every = []
    late = windows.watermarks(query, epochs)
    spoken = windows.watermarks(replace(query, correct_us=UNSET), epochs)
    for batch, missed, before, after in zip(epochs, late, spoken, spoken[1:], strict=False):
        times: dict[_Place, list[int]] = {}
        for row in batch:
            judged = windows._judge(query, row, missed)
            if judged.fate == "applied":
                windows._place(query, row, judged, cells)
                identity = tuple(None if value is None else order(value) for value in judged.keys)
                times.setdefault(identity, []).append(row[query.event_time])
        fresh = {
            place for place, cell in cells.items()
            if any(cell.window.start_us <= time < cell.window.end_us for time in times.get(place[1:], ()))
        }  # fmt: skip
        due = set(fresh)
        if not query.updating:
            due = {place for place in fresh if before is not None and cells[place].window.end_us <= before}
            due |= {
                place for place, cell in cells.items()
                if after is not None and cell.window.end_us <= after and (before is None or cell.window.end_us > before)
            }  # fmt: skip
        # sessions that were merged or extended are no longer windows
        emitted = [(place, "delete", sent.pop(place)) for place in [*sent] if place not in cells]
        for place in due:
            rows = list(windows._emit(query, [cells[place]]))
            if rows and query.updating and only_distinct(query) and repr(sent.get(place)) == repr(rows[0]):
                continue  # a repeated value changes no DISTINCT aggregate
            if rows:
                emitted.append((place, "upsert", rows[0]))
                sent[place] = rows[0]
            elif place in sent:
                emitted.append((place, "delete", sent.pop(place)))
        found = []
        for place, how, result in emitted:
            revisions[place] = revisions.get(place, -1) + 1
            own = {OP: how} if query.updating else {OP: how, REVISION: revisions[place]}
            found.append({**result, **own})
        every.append(found)
    return every
