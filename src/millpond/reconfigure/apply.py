"""Derives the next epoch's plan and settings from a `PondSpec`, and builds the record of a change."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from millpond.log.manifest import Manifest
from millpond.log.protocol import Run
from millpond.log.records import STATE, ChangeRecord, Receipt
from millpond.model.selection import Selection, is_inner
from millpond.model.spec import PondSpec
from millpond.placement.alignment import Owners
from millpond.plan.groups.build import build_plan, needed_columns
from millpond.plan.groups.plan import Plan
from millpond.plan.options.clock_parameters import clock_parameters
from millpond.plan.options.keyed_lookups import why_by_readers
from millpond.plan.options.live_parameters import with_parameters
from millpond.plan.options.retention import with_declared
from millpond.plan.upstream.late_sinks import late_sinks
from millpond.plan.upstream.parameter_feeds import feeds_of
from millpond.reconfigure.catalog import applied, not_answered, shadow_name
from millpond.reconfigure.changes import Add, Alter, Change, Discard, Drop, End, Halt, Promote, Shadow, change_text
from millpond.reconfigure.inner_reports import declared_names
from millpond.runtime.epoch import Setting


def is_read(setting: Setting) -> bool:
    """Whether the layout of the read has every column that the plan needs, where the plan needs it."""
    if setting.layout is None:
        return False
    have = {layout.name: {column.name for column in layout.columns} for layout in setting.layout.streams}
    by_owners = {layout.name: layout.lookup.names for layout in setting.layout.looked_up if layout.lookup is not None}
    late = late_sinks(setting.plan, setting.streams)
    for stream in setting.streams:
        if stream.upstreams:
            continue
        if stream.name in by_owners:
            if why_by_readers(stream, setting.plan.all_queries, setting.plan.watched.get(stream.name)) is not None:
                return False
            have[stream.name] |= by_owners[stream.name]
        needed = {*needed_columns(setting.plan, stream.name)}
        needed.update(name for sink in late.get(stream.name, ()) for name in sink.columns)
        if needed and stream.order is not None:
            needed |= {*stream.order.columns}
        if stream.name not in have and (needed or stream.name not in setting.layout.sources):
            return False
        if not needed <= have.get(stream.name, set()):
            return False
    return True


def plan_of(spec: PondSpec) -> Plan:
    """The shared plan of the queries in force, without quarantined queries and without paused stateless queries."""
    halted = not_answered(spec)
    answered = (
        query for query in spec.computed
        if query.name not in halted and not (isinstance(query, Selection) and query.name in spec.effects.paused)
    )  # fmt: skip
    with declared_names(spec.streams, spec.relations):
        return with_declared(build_plan(answered, spec.since, spec.effects), spec.streams)


def setting_of(pond: str, folder: Path, cache: Path, spec: PondSpec, owners: Owners) -> Setting:
    """The setting in which the pond `spec` begins, without a layout; `owners`: the pond's first owners of buckets."""
    bare = Setting(pond, str(folder), str(cache), spec.streams, build_plan(()), None, spec.instances, owners)
    return arranged(bare, spec)


def arranged(setting: Setting, spec: PondSpec) -> Setting:
    """The setting of the queries in force according to `spec`; the layout of the read stays as it is."""
    effects, halted = spec.effects, not_answered(spec)
    replaced = tuple(sorted(effects.replaced.items()))
    paused = frozenset(effects.paused) | {name for name, of in replaced if of in effects.paused}
    still = {name: value for name, value in effects.parameters.items() if name not in effects.feeds}
    plan = with_parameters(plan_of(spec), still)
    return setting._replace(
        streams=tuple(stream for stream in spec.streams if halted.isdisjoint(stream.upstreams)),
        plan=plan, paused=paused, replaced=replaced,
        parameters=tuple(sorted(effects.parameters.items())),
        recalled=tuple((name, one.n, one.from_us) for name, one in sorted(effects.recalled.items())),
        scaled=effects.scaled,
        feeds=feeds_of(effects.feeds, effects.parameters, spec.all_queries),
        clock=clock_parameters(plan.all_queries),
    )  # fmt: skip


def change_record(
    spec: PondSpec, change: Change, run: Run, writer: str, at_us: int, receipts: tuple[Receipt, ...] = ()
) -> ChangeRecord:  # fmt: skip
    """The record of a change to the pond `spec`; it also retires all state that no query needs after the change.

    `receipts`: of the deltas that were prepared for the change.
    """
    change = msgspec.structs.replace(change, before=spec.effects.last)
    if isinstance(change, Add | Alter | Drop | End | Shadow | Discard | Halt):
        change = _in_form(spec, change)
    after = plan_of(applied(spec, run.n, change))
    computed = {query.name for query in applied(spec, run.n, change).computed}
    lifted = [
        name for name in sorted(run.manifest.quarantined)
        if lifts_quarantine(change, name) or (is_inner(name) and name not in computed)
    ]  # fmt: skip
    return ChangeRecord(
        n=run.n,
        writer=writer,
        prev=run.prev,
        at=at_us,
        change=change_text(change),
        retired=(*orphaned(after, run.manifest), *_rows_of_former(spec, change, run.manifest)) or msgspec.UNSET,
        lifted=tuple(lifted) or msgspec.UNSET,
        receipts=receipts or msgspec.UNSET,
    )


def lifts_quarantine(change: Change, quarantined: str) -> bool:
    """Whether a change ends the quarantine of a name, because the version that failed under it is replaced or gone."""
    match change:
        case Drop():
            return quarantined == change.name or quarantined.startswith(f"{change.name}@")
        case Promote():
            return quarantined in (change.name, shadow_name(change.name))
        case Discard() | Shadow():
            return quarantined == shadow_name(change.name)
        case Alter() | End():
            return quarantined == change.name
    return False


def _in_form(spec: PondSpec, change: Add | Alter | Drop | End | Shadow | Discard | Halt) -> Change:
    """The change, completed so that existing state keeps its form: cells by filter, or cells split by signature."""
    before = {group.id: group for group in plan_of(spec).groups}
    after = [group for group in plan_of(applied(spec, 0, change)).groups if group.id in before]
    turned = any(group.signed and not before[group.id].signed for group in after)
    if turned and isinstance(change, Add | Alter | Shadow):
        return _in_form(spec, msgspec.structs.replace(change, apart=True))
    signed = tuple(group.id for group in after if before[group.id].signed and not group.signed)
    return msgspec.structs.replace(change, signed=signed)


def clear_tables(cache: Path, gone: Collection[str]) -> None:
    """Delete this host's cached key tables of removed groups. They are derived data, and are cached again if needed."""
    for group in gone:
        for table in cache.glob(f"{group}-*"):
            with suppress(OSError):
                table.unlink()


def _rows_of_former(spec: PondSpec, change: Change, manifest: Manifest) -> Iterator[str]:
    """The row sections of a served query that is dropped: a rebuilt view must not serve them as rows of a successor."""
    if isinstance(change, Drop) and any(one.name == change.name and one.serve for one in spec.queries):
        yield from (s.id for s in manifest.sections.values() if s.kind == "rows" and s.group == change.name)


def orphaned(plan: Plan, manifest: Manifest) -> tuple[str, ...]:
    """The live sections of state that no group, side of a join or retention of a stream in `plan` needs."""
    kept = {group.id for group in plan.groups} | {log.id for log in plan.joins.logs} | {one.id for one in plan.retained}
    sections = manifest.sections.values()
    return tuple(section.id for section in sections if section.kind in STATE and section.group not in kept)
