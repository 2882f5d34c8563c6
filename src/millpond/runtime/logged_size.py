"""Estimates how much an event log stores, and how much each query would need on its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from millpond.arrays import Mask
from millpond.model.expressions import Expression
from millpond.model.query import Query
from millpond.model.windows import Session
from millpond.plan.build import build_plan, presence_filter
from millpond.plan.event_log import logged_rows
from millpond.plan.plan import GroupPlan, QueryPlan
from millpond.runtime.event_log.retention import events_needed_from, needed_from
from millpond.runtime.event_log.select_events import filter_name, value_name
from millpond.runtime.keys.key_compaction import read_section
from millpond.runtime.task.task_values import GroupState, Watermark
from millpond.state.event_log import Events, decode_events
from millpond.state.files import Files

_LEADING_BYTES = 16
"""Slot and time of an event, and its class, as they are told apart in memory."""


class LoggedSize(NamedTuple):
    """The live events of a group on one instance."""

    parts: Sequence[Events]

    @classmethod
    def of(cls, group: GroupPlan, state: GroupState, files: Files) -> LoggedSize:
        """Read them.

        Raises:
            CorruptError: a section does not read.
        """
        places = state.events if group.events is not None else ()
        return cls([decode_events(read_section(files, place)) for place in places])

    @property
    def bytes(self) -> int:
        """Bytes of all events and columns."""
        return sum(_bytes(part, part.rows, part.columns) for part in self.parts)

    def alone(self, plan: QueryPlan, mark: Watermark) -> int:
        """Bytes of those that the query would keep by itself: its columns of the events that it takes, while it
        needs them.
        """
        if plan.query.deduplicated is not None:
            return self._waiting(plan.query, mark)
        presence = presence_filter(plan.query)
        asked = [aggregate for aggregate in plan.query.aggregates if aggregate.logged]
        filters = [logged_rows(aggregate, presence) for aggregate in asked]
        names = {value_name(value) for aggregate in asked for value in aggregate.arguments}
        names |= {filter_name(condition) for condition in filters if condition is not None}
        horizon = None if isinstance(plan.query.window, Session) else needed_from((plan,), mark)
        total = 0
        for part in self.parts if asked else ():
            kept = np.ones(part.rows, bool) if None in filters else _any(part, filters)
            if horizon is not None:
                kept &= part.times_us >= horizon
            total += _bytes(part, int(np.count_nonzero(kept)), names & part.columns.keys())
        return total


    def _waiting(self, query: Query, mark: Watermark) -> int:
        """The same where events wait until it is known which repeat others."""
        group = build_plan([query]).groups[0]
        kept, horizon = group.events, events_needed_from(group, mark)
        assert kept is not None
        names = {*map(value_name, kept.values), *map(filter_name, kept.filters)}
        total = 0
        for part in self.parts:
            rows = part.rows if horizon is None else int(np.count_nonzero(part.times_us >= horizon))
            total += _bytes(part, rows, names & part.columns.keys())
        return total


def _any(part: Events, filters: Sequence[Expression | None]) -> Mask:
    kept = np.zeros(part.rows, bool)
    for condition in filters:
        column = None if condition is None else part.columns.get(filter_name(condition))
        if column is not None:
            kept |= pc.fill_null(column, False).to_numpy(zero_copy_only=False)
    return kept


def _bytes(part: Events, rows: int, names: Iterable[str]) -> int:
    widths = [int(part.columns[name].nbytes) / max(part.rows, 1) for name in names]
    return round(rows * (_LEADING_BYTES + sum(widths)))
