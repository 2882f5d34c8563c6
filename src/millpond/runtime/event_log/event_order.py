"""The order of a query's events: by time, then by the source's order, else by the values that its aggregates use.

All aggregates of a query use one order, which is computed once and carried by the events as a column of numbers.
It does not depend on how the events were cut, stored or merged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints
from millpond.kernels.ranks import ranks, ranks_and_signs
from millpond.model.expressions import Expression
from millpond.runtime.event_log.select_events import value_column
from millpond.state.layout.event_log import OFFSET, PARTITION, Events

POSITION = "position"
"""The column that `in_order` adds; stored columns have other names."""


def in_order(events: Events, ties: Sequence[Expression]) -> Events:
    """Adds the column `POSITION`: numbers that ascend in the query's order among the events of a key.

    `ties`: the expressions that order events of equal time if the source has no order, see `ties_of`. The two zeros are
    different here, so that the sign of the chosen value is the same wherever the events are cut.
    """
    order = np.lexsort((events.times_us, events.slots))
    slots, times = events.slots[order], events.times_us[order]
    tied = np.zeros(len(order) + 1, bool)  # whether an event ties with the previous one
    tied[1:-1] = (slots[1:] == slots[:-1]) & (times[1:] == times[:-1])
    places = np.flatnonzero(tied[:-1] | tied[1:])
    if len(places):
        some = events.take(order[places])
        order[places] = order[places][np.lexsort((*deciding(some, ties), some.times_us, some.slots))]
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return with_position(events, position)


def with_position(events: Events, position: Ints) -> Events:
    """The events with a given order."""
    return events._replace(columns=events.columns | {POSITION: pa.array(position)})


def deciding(events: Events, ties: Sequence[Expression]) -> list[Ints]:
    """Sort keys for events of equal time, the major key last, as for `lexsort`."""
    if OFFSET in events.columns:
        return [np.asarray(events.columns[OFFSET]), ranks(events.columns[PARTITION], "string")]
    return ranks_and_signs([(value_column(events, value), value.type) for value in reversed(ties)])
