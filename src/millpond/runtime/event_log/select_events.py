"""Selects events for the event log of their group in the gather, and assigns key slots to them in the fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Ints, Mask
from millpond.kernels.columns import arrow_type, to_arrow
from millpond.kernels.evaluate import Evaluator
from millpond.kernels.structs import struct_column
from millpond.model.expressions import Call, Expression
from millpond.plan.groups.event_log import LogPlan, is_always_present
from millpond.plan.groups.plan import fingerprint
from millpond.runtime.aggregates.partials import Rows
from millpond.state.layout.event_log import OFFSET, PARTITION, Events, concatenated


def value_name(value: Expression) -> str:
    """The name of the log column with a value, the same in every plan."""
    return f"v:{fingerprint(value)}"


def value_column(events: Events, value: Expression) -> pa.Array:
    """The values of an expression for each event; a struct is made of the stored values of its fields."""
    if not (isinstance(value, Call) and value.op == "struct"):
        return events.columns[value_name(value)]
    made = struct_column([value_column(events, part) for part in value.args[1:]], value.type, events.rows)
    if is_always_present(value):
        return made
    present = pc.fill_null(value_column(events, value.args[0]), False)
    return pc.if_else(present, made, pa.scalar(None, made.type))


def filter_name(condition: Expression) -> str:
    """The name of the log column that states whether an event passes a filter, the same in every plan."""
    return f"f:{fingerprint(condition)}"


def passed_mask(columns: Mapping[str, pa.Array], condition: Expression) -> Mask:
    """Which events pass a filter that is stored in the log.

    NULL, because no query used the filter when the event arrived, counts as not passed.
    """
    passed: Mask = columns[filter_name(condition)].fill_null(False).to_numpy(zero_copy_only=False)
    return passed


def column_types(log: LogPlan, ordered: bool) -> dict[str, pa.DataType]:
    """The columns of a log with their types; `ordered`: whether source partitions and offsets are stored."""
    types = {value_name(value): arrow_type(value.type) for value in log.values}
    types |= {filter_name(condition): pa.bool_() for condition in log.filters}
    return types | ({PARTITION: pa.string(), OFFSET: pa.int64()} if ordered else {})


def column_of(evaluator: Evaluator, value: Expression) -> pa.Array:
    """The values of an expression for all rows of a chunk; NULL where it fails."""
    known = evaluator(value)
    return to_arrow(known._replace(null=known.null | known.error), value.type, evaluator.rows)


class LoggedRows:
    """The rows of a chunk that a group keeps as events, before they are assigned to instances and keys."""

    def __init__(
        self, log: LogPlan, rows: Rows, times_us: Ints, late: Ints, order: tuple[pa.Array | None, Ints | None]
    ) -> None:
        """`times_us`, `late` and `order` (source partition and offset) are given for the whole chunk."""
        self._log, self._rows, self._every = log, rows, np.ones(rows.count, bool)
        self._masks = [self._passed(condition) for condition in log.filters]
        taken = self._every if log.takes_all or not self._masks else np.logical_or.reduce(self._masks)
        self.index = np.flatnonzero(taken)
        self._times, self._late, self._order = rows.take(times_us), rows.take(late), order

    def order(self, chosen: Ints) -> tuple[pa.Array, Ints] | None:
        """The source partition and offset of the rows at `chosen`, if they are known."""
        (partition, offset), rows = self._order, self._rows
        if partition is None or offset is None:
            return None
        places = chosen if rows.index is None else rows.index[chosen]
        offsets = np.broadcast_to(offset, (rows.evaluator.rows,))[places]
        return partition.take(pa.array(places)).cast(pa.string()), offsets

    def _passed(self, condition: Expression) -> Mask:
        passed = self._rows.passed(self._rows.filter_of(condition))
        return self._every if passed is None else np.broadcast_to(passed, (self._rows.count,))

    def passing(self, condition: Expression | None) -> Mask:
        """Which rows of the group pass a filter of the log; None: all."""
        return self._every if condition is None else self._masks[self._log.filters.index(condition)]

    def values(self, value: Expression, chosen: Ints) -> pa.Array:
        """The values of a stored expression at `chosen` (positions among the group's rows)."""
        return self._column(value).take(pa.array(chosen if self._rows.index is None else self._rows.index[chosen]))

    def _column(self, value: Expression) -> pa.Array:
        return column_of(self._rows.evaluator, value)

    def events(self, chosen: Ints, keys: Ints) -> Events:
        """The events at `chosen` (positions among the group's rows); `keys` are the codes of their keys."""
        rows = self._rows
        whole = chosen if rows.index is None else rows.index[chosen]
        places, columns = pa.array(whole), {}
        for value in self._log.values:
            columns[value_name(value)] = self._column(value).take(places)
        for condition, mask in zip(self._log.filters, self._masks, strict=True):
            columns[filter_name(condition)] = pa.array(mask[chosen])
        order = self.order(chosen)
        if order is not None:
            columns[PARTITION], columns[OFFSET] = order[0], pa.array(order[1])
        return Events(keys, self._times[chosen], self._late[chosen], columns)


def numbered(parts: Sequence[tuple[Events, Ints]], log: LogPlan) -> Events | None:
    """The events of an epoch with the key slots of their instance; None if there are none.

    `parts`: events with key codes, and the slot of each code.
    """
    found = [events._replace(slots=slots[events.slots]) for events, slots in parts if events.rows]
    if not found:
        return None
    return concatenated(found, column_types(log, any(OFFSET in events.columns for events in found)))
