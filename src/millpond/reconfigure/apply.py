"""From the catalog to the plan and the setting of the next epoch, and what a change gives back."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import msgspec

from millpond.log.manifest import Manifest
from millpond.log.protocol import Run
from millpond.log.records import ChangeRecord
from millpond.model.selection import Selection
from millpond.model.spec import PondSpec
from millpond.plan.build import build_plan, needed_columns
from millpond.plan.late import late_asks
from millpond.plan.parameters import with_parameters
from millpond.plan.plan import Plan
from millpond.reconfigure.catalog import applied, shadow_name
from millpond.reconfigure.changes import Add, Alter, Change, Discard, Drop, End, Promote, Shadow, change_text
from millpond.runtime.epoch import Setting


def is_read(setting: Setting) -> bool:
    """Whether the layout has every column that the plan needs of what is read."""
    if setting.layout is None:
        return False
    have = {layout.name: {column.name for column in layout.columns} for layout in setting.layout.streams}
    late = late_asks(setting.plan, setting.streams)
    for stream in setting.streams:
        if stream.upstream is not None:
            continue
        needed = {*needed_columns(setting.plan, stream.name)}
        needed.update(name for ask in late.get(stream.name, ()) for name in ask.columns)
        if needed and stream.order is not None:
            needed |= {*stream.order.columns}
        if stream.name not in have and (needed or stream.name not in setting.layout.sources):
            return False
        if not needed <= have.get(stream.name, set()):
            return False
    return True


_STATE = ("segment", "keys", "events", "tallies")


def plan_of(spec: PondSpec) -> Plan:
    """How the queries in force are answered together; a stateless query that is paused is not asked at all."""
    asked = (query for query in spec.asked if not (isinstance(query, Selection) and query.name in spec.left.paused))
    return build_plan(asked, spec.since, spec.left)


def arranged(setting: Setting, spec: PondSpec) -> Setting:
    """The setting in which the queries in force are answered; the layout of the read stays."""
    left = spec.left
    replaced = tuple(sorted(left.replaced.items()))
    paused = frozenset(left.paused) | {name for name, of in replaced if of in left.paused}
    return setting._replace(
        streams=spec.streams, plan=with_parameters(plan_of(spec), left.parameters), paused=paused, replaced=replaced,
        parameters=tuple(sorted(left.parameters.items())),
    )  # fmt: skip


def change_record(spec: PondSpec, change: Change, run: Run, writer: str, at_us: int) -> ChangeRecord:
    """The record of a change to the pond `spec`: whatever no query in force is answered from any more goes with it."""
    change = msgspec.structs.replace(change, before=spec.left.last)
    if isinstance(change, Add | Alter | Drop | End | Shadow | Discard):
        change = _in_form(spec, change)
    after = plan_of(applied(spec, run.n, change))
    lifted = sorted({*lifted_by(change)} & {*run.manifest.quarantined})
    return ChangeRecord(
        n=run.n,
        writer=writer,
        prev=run.prev,
        at=at_us,
        change=change_text(change),
        retired=orphaned(after, run.manifest) or msgspec.UNSET,
        lifted=tuple(lifted) or msgspec.UNSET,
    )


def lifted_by(change: Change) -> tuple[str, ...]:
    """Names that another version has, or none, after the change: what raised under them is no more."""
    match change:
        case Drop() | Promote():
            return change.name, shadow_name(change.name)
        case Discard() | Shadow():
            return (shadow_name(change.name),)
        case Alter() | End():
            return (change.name,)
    return ()


def _in_form(spec: PondSpec, change: Add | Alter | Drop | End | Shadow | Discard) -> Change:
    """The change under which all state keeps the form it has: cells by filter, or split by signature."""
    before = {group.id: group for group in plan_of(spec).groups}
    after = [group for group in plan_of(applied(spec, 0, change)).groups if group.id in before]
    turned = any(group.signed and not before[group.id].signed for group in after)
    if turned and isinstance(change, Add | Alter | Shadow):
        return _in_form(spec, msgspec.structs.replace(change, apart=True))
    signed = tuple(group.id for group in after if before[group.id].signed and not group.signed)
    return msgspec.structs.replace(change, signed=signed)


def clear_tables(cache: Path, gone: Collection[str]) -> None:
    """Delete this host's tables of the keys of groups that are gone; they are derived, and cached again if need be."""
    for group in gone:
        for table in cache.glob(f"{group}-*"):
            with suppress(OSError):
                table.unlink()


def orphaned(plan: Plan, manifest: Manifest) -> tuple[str, ...]:
    """The live sections of state that no group, and no side of a join, of the plan reads."""
    kept = {group.id for group in plan.groups} | {log.id for log in plan.joins.logs}
    sections = manifest.sections.values()
    return tuple(section.id for section in sections if section.kind in _STATE and section.group not in kept)
