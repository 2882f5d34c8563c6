"""Estimates the load of each bucket from what the last epoch added to the state of the bucket's keys."""

from __future__ import annotations

import numpy as np

from millpond.arrays import Ints
from millpond.log.manifest import LiveSection, Manifest
from millpond.plan.groups.event_log import LogPlan
from millpond.plan.groups.plan import GroupPlan, Plan
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.keys.current_slots import CurrentCells, read_keys, slot_buckets
from millpond.runtime.task.state_locations import group_state
from millpond.runtime.task.task_values import GroupState, SectionPlace
from millpond.state.ports.files import Files


def bucket_loads(plan: Plan, manifest: Manifest, files: Files, instances: int, buckets: int) -> Ints:
    """The number of cells, logged events and tallies that the last epoch added to each bucket, over all groups.

    State of groups without keys counts towards the bucket in which it is stored.

    Raises:
        CorruptError: a section is not readable.
    """
    loads = np.zeros(buckets, np.int64)
    for group in plan.groups:
        for instance in range(instances):
            state = group_state(manifest, instance, group)
            if state.keys:
                loads += _loads(group, state, manifest, files, buckets)
    return loads


def _loads(group: GroupPlan, state: GroupState, manifest: Manifest, files: Files, buckets: int) -> Ints:
    sections = read_keys(files, state, group, buckets)
    of = slot_buckets(sections)
    loads = np.zeros(buckets, np.int64)
    fresh = {section.id: section for section in manifest.sections.values() if section.n == manifest.epoch_n}
    added = [place for place in state.segments if _is_added(fresh, place)]
    for cells in CurrentCells(files, state, added, sections, group.delays_us):
        loads += np.bincount(of[cells.slots], minlength=buckets)
    log = EventLog(files, group, LogPlan((), (), False), state, sections)
    for place in (*state.events, *state.tallies):
        if _is_added(fresh, place):
            loads += np.bincount(of[log.section(place).slots], minlength=buckets)
    return loads


def _is_added(fresh: dict[str, LiveSection], place: SectionPlace) -> bool:
    """Whether the last epoch wrote a section with new data, not as a merge of older sections."""
    return place.id in fresh and place.level == 0
