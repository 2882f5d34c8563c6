"""Estimates how many logged events, and bytes, the queries over runs of events need."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow.compute as pc

from millpond.arrays import Mask, distinct_of
from millpond.plan.build import presence_filter
from millpond.plan.explain_events import event_bytes
from millpond.plan.plan import GroupPlan, QueryPlan
from millpond.runtime.event_log.event_log import GroupLog
from millpond.runtime.event_log.retention import needed_from
from millpond.runtime.event_log.select_events import filter_name
from millpond.runtime.keys.key_compaction import read_section
from millpond.runtime.rows.count_windows import needed_events
from millpond.runtime.task.task_values import GroupState, Watermark
from millpond.state.event_log import Events
from millpond.state.files import Files


def events_held(
    group: GroupPlan, plans: Sequence[QueryPlan], state: GroupState, files: Files, mark: Watermark, key_bytes: float
) -> tuple[tuple[int, int, int], dict[str, tuple[int, int, int]]]:
    """Events, keys and bytes that all of `plans` need together, and each of them alone, by name.

    Raises:
        CorruptError: a section does not read.
    """
    assert group.events is not None
    log = GroupLog(files, group, group.events, state, [read_section(files, place) for place in state.keys])
    every = log.together(log.parts())
    each = {plan.query.name: _needed(group, plan, log, every, mark) for plan in plans}
    sizes = {
        plan.query.name: _size(every, each[plan.query.name], event_bytes(plan), key_bytes) for plan in plans
    }
    whole = np.logical_or.reduce(list(each.values()))
    return _size(every, whole, max(map(event_bytes, plans)), key_bytes), sizes


def _needed(group: GroupPlan, plan: QueryPlan, log: GroupLog, every: Events, mark: Watermark) -> Mask:
    if group.counted:
        needed: Mask = np.concatenate(needed_events(log, msgspec.structs.replace(group, queries=(plan,)), mark))
        return needed
    horizon, presence = needed_from([plan], mark), presence_filter(plan.query)
    needed = every.late_class <= plan.delay
    if horizon is not None:
        needed &= every.times_us >= horizon
    if presence is not None:
        needed &= pc.fill_null(every.columns[filter_name(presence)], False).to_numpy(zero_copy_only=False)
    return needed


def _size(every: Events, needed: Mask, event: int, key_bytes: float) -> tuple[int, int, int]:
    events, keys = int(np.count_nonzero(needed)), len(distinct_of(every.slots[needed]))
    return events, keys, events * event + round(keys * key_bytes)
