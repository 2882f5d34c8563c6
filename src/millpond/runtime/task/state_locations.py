"""Locations of a group's live sections on an instance, cached between epochs."""

from __future__ import annotations

from millpond.log.manifest import LiveSection, Manifest
from millpond.log.port import numbered_name
from millpond.plan.groups.joins import SideLog
from millpond.plan.groups.plan import GroupPlan, KeptEvents
from millpond.runtime.task.task_values import UNTIL, GroupState, Position, SectionPlace

_MOST = 10_000


def group_state(manifest: Manifest, instance: int, group: GroupPlan | SideLog | KeptEvents) -> GroupState:
    """The locations of an instance's state of a group or a log; key sections are in the order of their slots."""
    keys = sorted(manifest.live(instance, group.id, "keys"), key=_base)
    every = manifest.live(instance, group.id, "segment")
    portions = {section.id for section in every if any(name in manifest.sections for name in place_of(section).instead)}
    segments = [section for section in every if section.id not in portions]
    return GroupState(
        tuple(place_of(section) for section in keys),
        tuple(place_of(s) for s in segments if not _number(s, "tiles") and not _number(s, "revisions")),
        tuple(place_of(section) for section in segments if _number(section, "tiles")),
        tuple(place_of(section) for section in manifest.live(instance, group.id, "events")),
        tuple(place_of(section) for section in segments if _number(section, "revisions")),
        tuple(place_of(section) for section in manifest.live(instance, group.id, "tallies")),
        tuple(place_of(section) for section in manifest.live(instance, group.id, "left")),
        tuple(place_of(section) for section in every if section.id in portions),
    )


def place_of(section: LiveSection) -> SectionPlace:
    """The location of a section, and the facts that its info states."""
    known = _known.get(id(section))
    if known is None:
        if len(_known) >= _MOST:
            _known.clear()
        known = _known[id(section)] = section, _placed(section)
    return known[1]


_known: dict[int, tuple[LiveSection, SectionPlace]] = {}
"""Locations by the identity of their sections, as each epoch needs those of all live sections. Threads share it."""


def _placed(section: LiveSection) -> SectionPlace:
    file = section.file if section.file is not None else f"log/{numbered_name(section.n)}"
    numbers = _number(section, "level"), _number(section, "generation")
    delays = section.info.get("delays", [])
    first, last = (_number(section, name) if name in section.info else None for name in ("first", "last"))
    return SectionPlace(
        section.id,
        file,
        section.file is None,
        section.offset,
        section.size,
        section.rows,
        *numbers,
        tuple(delays) if isinstance(delays, list) else (),
        last,
        str(section.info.get("columns", "")),
        tuple(str(section.info.get("instead", "")).split()),
        Position(*(_number(section, name) for name in UNTIL)),
        _number(section, "gone"),
        first,
        _slots(section),
        bool(_number(section, "counted")),
    )


def _slots(section: LiveSection) -> tuple[int, int] | None:
    slots = section.info.get("slots")
    return (slots[0], slots[1]) if isinstance(slots, list) and len(slots) == 2 else None


def _base(section: LiveSection) -> int:
    return _number(section, "base")


def _number(section: LiveSection, name: str) -> int:
    value = section.info.get(name, 0)
    return value if isinstance(value, int) else 0
