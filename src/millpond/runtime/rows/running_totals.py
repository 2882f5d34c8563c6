"""Running totals over the events of a key, of which only the last ones are stored: earlier ones are one cell per key.

The cells of totals are columns beside the counts of a count window. They contain the counted events of a key without
the last `size - 1`, which are stored anyway because rows need them. So a total up to any stored event can be computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.arrays import Ints, Mask
from millpond.plan.groups.build import presence_filter
from millpond.plan.groups.measures import measures_of
from millpond.plan.groups.plan import Measure, QueryPlan
from millpond.runtime.aggregates.partials import Partials
from millpond.runtime.rows.frame_rows import Carried, EventFacts, Frames
from millpond.state.layout.cells import Cells, Piece, Slices, merge
from millpond.state.layout.event_log import Events

ALL_TIME = Slices(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))
"""The only slice of the cells of count windows."""


def total_piece(name: str, measure: Measure, events: Events) -> Piece:
    """A measure of some events by key, in columns with the id `name`; `events` are sorted by slot."""
    partials = Partials(EventFacts(events), events.slots.astype(np.int64), int(events.slots[-1]) + 1)
    partials.add(measure)
    columns = partials.columns(np.arange(len(partials.ids)))
    renamed = {_renamed(column, {measure.id: name}): values for column, values in columns.items()}
    return Piece(ALL_TIME, np.zeros(len(partials.ids), np.int64), partials.ids, renamed)


def running_columns(
    plan: QueryPlan, totals: Mapping[str, Measure], stored: Sequence[Cells], events: Events, keys: tuple[Ints, Ints],
    within: Mask, at: Ints,
) -> dict[int, dict[str, npt.NDArray[Any]]]:
    """For each running total of a query, by its position, the columns of its measures for the rows of the events `at`.

    `events` are sorted by slot and time. `keys`: the position of the first event of each key, and for each event the
    position of its key among these. `within`: which events the stored totals contain, the first ones of each key.
    """
    slots = events.slots.astype(np.int64)
    firsts, key_of = keys
    begins = firsts + np.bincount(key_of[within], minlength=len(firsts))
    frames = Frames(events, carried=_carried(totals, stored, slots[firsts], begins))
    low = begins + np.arange(len(firsts))
    new_time = np.append((np.diff(slots) != 0) | (np.diff(events.times_us) != 0), True)
    peers = np.flatnonzero(new_time)
    presence, found = presence_filter(plan.query), dict[int, dict[str, npt.NDArray[Any]]]()
    for i, aggregate in enumerate(plan.query.aggregates):
        if aggregate.running:
            last = at if aggregate.running == "rows" else peers[np.searchsorted(peers, at)]
            high = last + 1 + key_of[at] + 1  # a carried cell is inserted for this key and for each before it
            found[i] = frames.columns(measures_of(aggregate, presence), low[key_of[at]], high)
    return found


def _carried(totals: Mapping[str, Measure], stored: Sequence[Cells], slots: Ints, begins: Ints) -> Carried:
    """The stored totals of these slots (ascending), one cell each."""
    ids = {name: measure.id for name, measure in totals.items()}
    pieces = [Piece(ALL_TIME, np.zeros(len(slots), np.int64), np.arange(len(slots)), {})]
    for cells in stored:
        names = [name for name in cells.columns if name.partition(":")[0] in ids]
        place = np.minimum(np.searchsorted(slots, cells.slots), len(slots) - 1)
        rows = np.flatnonzero(slots[place] == cells.slots) if names else place[:0]
        if len(rows):
            columns = {_renamed(name, ids): cells.columns[name][rows] for name in names}
            pieces.append(Piece(ALL_TIME, np.zeros(len(rows), np.int64), place[rows], columns))
    return Carried(begins, merge(pieces, len(slots)).columns)


def _renamed(column: str, names: Mapping[str, str]) -> str:
    """The name of a column with another id."""
    identity, _, part = column.partition(":")
    return f"{names[identity]}:{part}"
