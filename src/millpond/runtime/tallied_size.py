"""Estimates the size of a group's tallies, and what each query would need on its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.kernels.bins import coarser
from millpond.model.expressions import Expression
from millpond.model.windows import Sliding
from millpond.plan.build import tallies_asked
from millpond.plan.edges import slices_of
from millpond.plan.plan import GroupPlan, QueryPlan
from millpond.plan.tallies import Tally, keeps_tallies
from millpond.runtime.event_log.bin_counts import TallyLog
from millpond.runtime.event_log.retention import needed_from
from millpond.runtime.event_log.select_events import filter_name, value_name
from millpond.runtime.keys.key_compaction import read_section
from millpond.runtime.task.task_values import GroupState, Watermark
from millpond.state.event_log import Events
from millpond.state.files import Files
from millpond.state.tallies import COUNT, added_up

_TALLY_BYTES = 24
"""Slot and time, class, bin and count of a tally, about as they are stored."""


class TalliedSize(NamedTuple):
    """The live tallies of a group on one instance, all together; None: there are none."""

    whole: Events | None

    @classmethod
    def of(cls, group: GroupPlan, state: GroupState, files: Files) -> TalliedSize:
        """Read them.

        Raises:
            CorruptError: a section does not read.
        """
        if not group.tallies:
            return cls(None)
        log = TallyLog(files, group, state, [read_section(files, place) for place in state.keys])
        return cls(log.together(log.parts()))

    @property
    def bytes(self) -> int:
        """Bytes of all of them."""
        return 0 if self.whole is None else self.whole.rows * _TALLY_BYTES

    def alone(self, plan: QueryPlan, mark: Watermark) -> int:
        """Bytes of those that the query would keep by itself: in its own slices and bins, while it needs them."""
        if self.whole is None or not keeps_tallies(plan.query):
            return 0
        own = tallies_asked([plan.query])
        horizon, kept = needed_from((plan,), mark), self.whole
        kept = kept.take(kept.late_class <= plan.delay)
        kept = kept if horizon is None else kept.take(kept.times_us >= horizon)
        return sum(_rows_alone(plan, tally, kept) for tally in own) * _TALLY_BYTES


def _rows_alone(plan: QueryPlan, tally: Tally, kept: Events) -> int:
    window = plan.query.window
    assert isinstance(window, Sliding)
    passed = _passed(tally.filters, kept)
    mine = kept.take(np.flatnonzero(np.logical_or.reduce([mask.to_numpy(zero_copy_only=False) for mask in passed])))
    if not mine.rows:
        return 0
    starts, _, slices = slices_of([window], mine.times_us)
    codes = coarser(np.asarray(mine.columns[value_name(tally.value)]), tally.bits)
    columns = {"bin": pa.array(codes), COUNT: mine.columns[COUNT]}
    columns |= {filter_name(condition): mine.columns[filter_name(condition)] for condition in tally.filters}
    return added_up(Events(mine.slots, starts[slices], mine.late_class, columns)).rows


def _passed(filters: Sequence[Expression], kept: Events) -> list[pa.Array]:
    return [pc.fill_null(kept.columns[filter_name(condition)], False) for condition in filters]
