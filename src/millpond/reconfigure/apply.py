"""From the catalog to the plan and the setting of the next epoch, and what a change gives back."""

from __future__ import annotations

import msgspec

from millpond.log.manifest import Manifest
from millpond.log.protocol import Run
from millpond.log.records import ChangeRecord
from millpond.model.selection import Selection
from millpond.model.spec import PondSpec
from millpond.plan.build import build_plan
from millpond.plan.plan import Plan
from millpond.reconfigure.catalog import applied
from millpond.reconfigure.changes import Alter, Change, Drop, End, change_text
from millpond.runtime.epoch import Setting

_STATE = ("segment", "keys", "events", "tallies")


def plan_of(spec: PondSpec) -> Plan:
    """How the queries in force are answered together; a stateless query that is paused is not asked at all."""
    left = spec.left
    asked = (query for query in spec.asked if not (isinstance(query, Selection) and query.name in left.paused))
    return build_plan(asked, spec.since, left.until_us, left.times)


def arranged(setting: Setting, spec: PondSpec) -> Setting:
    """The setting in which the queries in force are answered; the layout of the read stays."""
    left = spec.left
    replaced = tuple(sorted(left.replaced.items()))
    paused = frozenset(left.paused) | {name for name, of in replaced if of in left.paused}
    return setting._replace(streams=spec.streams, plan=plan_of(spec), paused=paused, replaced=replaced)


def change_record(spec: PondSpec, change: Change, run: Run, writer: str, at_us: int) -> ChangeRecord:
    """The record of a change to the pond `spec`: whatever no query in force is answered from any more goes with it."""
    change = msgspec.structs.replace(change, before=spec.left.last)
    after = plan_of(applied(spec, run.n, change))
    lifted = [change.name] if isinstance(change, Drop | Alter | End) and change.name in run.manifest.quarantined else []
    return ChangeRecord(
        n=run.n,
        writer=writer,
        prev=run.prev,
        at=at_us,
        change=change_text(change),
        retired=orphaned(after, run.manifest) or msgspec.UNSET,
        lifted=tuple(lifted) or msgspec.UNSET,
    )


def orphaned(plan: Plan, manifest: Manifest) -> tuple[str, ...]:
    """The live sections of state that no group, and no side of a join, of the plan reads."""
    kept = {group.id for group in plan.groups} | {log.id for log in plan.joins.logs}
    sections = manifest.sections.values()
    return tuple(section.id for section in sections if section.kind in _STATE and section.group not in kept)
