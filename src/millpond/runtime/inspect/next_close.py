"""Finds when the next window of a query closes, in the live state of a pond."""

from __future__ import annotations

from millpond.log.manifest import Manifest
from millpond.plan.groups.plan import GroupPlan, QueryPlan
from millpond.runtime.epoch import watermarks
from millpond.runtime.fold.kinds import state_kind
from millpond.runtime.fold.next_due import Due
from millpond.runtime.fold.state_size import Stored
from millpond.runtime.task.state_locations import group_state
from millpond.runtime.task.task_values import Watermark
from millpond.state.ports.files import Files


def next_due(group: GroupPlan, plan: QueryPlan, manifest: Manifest, files: Files, instances: int) -> Due | None:
    """The earliest open window of a query that contains one of its events, or None.

    Raises:
        CorruptError: a section is not readable.
    """
    mark = watermarks(manifest).get(group.stream, Watermark())
    states = (group_state(manifest, instance, group) for instance in range(instances))
    return state_kind(group).next_due([Stored(group, state, files, mark) for state in states], plan)
