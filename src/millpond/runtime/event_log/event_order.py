"""The order of a query's events: by time, then by the source's order, else by the values that its aggregates use.

All aggregates of a query use one order, which is computed once and carried by the events as a column of numbers.
It does not depend on how the events were cut, stored or merged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Ints
from millpond.kernels.columns import from_arrow
from millpond.model.aggregates import DIRECTIONS
from millpond.model.expressions import Expression
from millpond.model.types import is_decimal, is_float
from millpond.runtime.event_log.select_events import value_name
from millpond.state.layout.cells import order_codes
from millpond.state.layout.event_log import OFFSET, PARTITION, Events

LEAST = np.iinfo(np.int64).min
"""The rank of NULL."""

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
    return events._replace(columns=events.columns | {POSITION: pa.array(position)})


def deciding(events: Events, ties: Sequence[Expression]) -> list[Ints]:
    """Sort keys for events of equal time, the major key last, as for `lexsort`."""
    if OFFSET in events.columns:
        return [np.asarray(events.columns[OFFSET]), ranks(events.columns[PARTITION], "string")]
    return ranks_and_signs([(events.columns[value_name(value)], value.type) for value in reversed(ties)])


def ranks_and_signs(values: Sequence[tuple[pa.Array, str]]) -> list[Ints]:
    """Sort keys for columns given with their types, the last column major; signs are minor to all ranks."""
    signed = [signs(column, kind) for column, kind in values if is_float(kind)]
    return [*signed, *(ranks(column, kind) for column, kind in values)]


def signs(column: pa.Array, kind: str) -> Ints:
    """The sign bit as a sort key, which distinguishes the two zeros: they have equal ranks."""
    found: Ints = (~np.signbit(from_arrow(pc.fill_null(column, 0.0), kind).data)).astype(np.int64)
    return found


def ranks(column: pa.Array, kind: str) -> Ints:
    """Integer ranks in the order of the values, equal for equal values: NaN largest, one zero, NULL is `LEAST`."""
    null = np.asarray(column.is_null())
    if is_decimal(kind) or kind == "string":
        encoded = column.dictionary_encode()
        place = np.empty(len(encoded.dictionary) + 1, np.int64)
        place[np.asarray(pc.sort_indices(encoded.dictionary))] = np.arange(len(encoded.dictionary))
        codes: Ints = place[np.asarray(encoded.indices.fill_null(0))]
    else:
        data = from_arrow(column, kind).data
        codes = order_codes(data) if is_float(kind) else data.astype(np.int64)
    if null.any() and bool((codes[~null] == LEAST).any()):  # the least bigint must not look like NULL
        codes = np.unique(codes, return_inverse=True)[1].reshape(-1)
    return np.where(null, LEAST, codes)


def directed(codes: Ints, direction: str) -> list[Ints]:
    """Sort keys for a direction, the major key last: NULLs first or last, then the codes."""
    descending, nulls_last = divmod(DIRECTIONS.index(direction), 2)
    null = (codes == LEAST).astype(np.int64)
    return [~codes if descending else codes, null if nulls_last else -null]
