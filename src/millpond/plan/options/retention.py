"""Applies what streams declare to a plan: retained slices and their grain, retained events, the key of the topic."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millpond.model.expressions import Column
from millpond.model.query import Query
from millpond.model.stream import Stream
from millpond.model.types import is_known
from millpond.model.windows import RUNNING
from millpond.plan.groups.build import needed_columns
from millpond.plan.groups.plan import GroupPlan, KeptEvents, Plan


def with_declared(plan: Plan, streams: Iterable[Stream]) -> Plan:
    """The plan with the retention that its streams declare, and with buckets that follow the keys of their topics."""
    declared = tuple(streams)
    return _with_spread(_with_retention(plan, declared), declared)


def _with_spread(plan: Plan, streams: Iterable[Stream]) -> Plan:
    by = {stream.name: stream.partitioned_by for stream in streams if stream.partitioned_by is not None}
    if not by:
        return plan
    found = ((group, spread_of(group, by.get(group.stream))) for group in plan.groups)
    groups = (group if at is None else msgspec.structs.replace(group, spread=at) for group, at in found)
    return msgspec.structs.replace(plan, groups=tuple(groups))


def spread_of(of: GroupPlan | Query, partitioned_by: str | None) -> int | None:
    """The position of the key that partitions the topic and so alone determines the bucket; None: there is none."""
    if of.grouping_sets:  # some sets may lack this key
        return None
    named = (i for i, key in enumerate(of.keys) if isinstance(key, Column) and key.name == partitioned_by)
    return next(named, None)


def _with_retention(plan: Plan, streams: Iterable[Stream]) -> Plan:
    keeping = {stream.name: stream for stream in streams if stream.retain is not msgspec.UNSET}
    if not keeping:
        return plan
    groups = tuple(_retaining(one, keeping[one.stream]) if one.stream in keeping else one for one in plan.groups)
    found = (_events(plan, keeping[name]) for name in sorted(keeping) if keeping[name].retention.events_us)
    kept = tuple(events for events in found if events is not None)
    return msgspec.structs.replace(plan, groups=groups, kept=kept or msgspec.UNSET)


def _retaining(group: GroupPlan, stream: Stream) -> GroupPlan:
    """The group with retention, if it has slices; the single cell of a window over all time is kept anyway."""
    if not group.sliding or RUNNING in group.windows:
        return group
    return msgspec.structs.replace(group, retain=stream.retain)


def _events(plan: Plan, stream: Stream) -> KeptEvents | None:
    """The events that a stream retains, with the columns that it names and those that are read anyway."""
    time = plan.event_time_of(stream.name)
    if time is None:  # no query has used a column of this stream as event time yet
        return None
    wanted = {*needed_columns(plan, stream.name), *stream.retention.columns, time}
    columns = (Column(one.name, one.type) for one in stream.columns if one.name in wanted and is_known(one.type))
    return KeptEvents(stream.name, time, tuple(columns), stream.retention.events_us)
