"""Sessions from atoms: which a query has, which of them the watermark closes, and their merged columns.

All atoms that an open session still holds are taken together in each epoch. A session of gap g is a run of a key's
atoms with no hole longer than g; it closes when the watermark reaches its end. No event that is not late can join a
closed one: such an event lies above the watermark, so at or after the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.arrays import Ints, Mask
from millpond.model.windows import Session
from millpond.plan.plan import GroupPlan, QueryPlan
from millpond.runtime.tasks import Watermark
from millpond.state.atoms import FIRST, LAST, begins, reduced, sorted_by
from millpond.state.cells import Cells, extreme_of, merge_rule, taken

AT_ONCE = 1 << 18
"""So many sessions are answered at once."""


class Sessions(NamedTuple):
    """The sessions of one gap and delay, by slot and start: those of all atoms, closed ones too.

    `rows` are the atoms they are made of, session by session; `new` tells where one begins among them.
    """

    slots: Ints
    starts_us: Ints
    ends_us: Ints
    rows: Ints
    new: Mask

    def take(self, chosen: Mask) -> Sessions:
        """Some of the sessions."""
        if chosen.all():
            return self
        inside = chosen[np.cumsum(self.new) - 1]
        return Sessions(
            self.slots[chosen], self.starts_us[chosen], self.ends_us[chosen], self.rows[inside], self.new[inside]
        )

    def columns(self, atoms: Cells, measures: Collection[str]) -> dict[str, npt.NDArray[Any]]:
        """Merged columns of the measures with these ids, one row per session; extremes of 128 bits are one column."""
        wanted = {name: c for name, c in atoms.columns.items() if name.partition(":")[0] in measures}
        merged = reduced(taken(wanted, self.rows), self.new)
        whole: dict[str, npt.NDArray[Any]] = {}
        for name in (name for name in merged if merge_rule(name) != "low"):
            extremes = extreme_of(name, merged)
            whole[name] = merged[name] if extremes is None else extremes
        return whole

    def runs(self, most: int) -> Iterator[Sessions]:
        """The same, at most so many at once."""
        places = np.arange(len(self.slots)) // most
        for place in range(int(places[-1]) + 1 if len(places) else 0):
            yield self.take(places == place)


class Asked(NamedTuple):
    """Queries of one gap and delay that answer sessions from one time on: they have the same sessions."""

    gap_us: int
    delay: int
    from_us: int
    before_us: int
    plans: list[QueryPlan]


def asked_of(group: GroupPlan) -> list[Asked]:
    """The queries of a group of session windows, by gap, delay and which starts they answer."""
    found: dict[tuple[int, int, int, int], list[QueryPlan]] = {}
    for plan in group.queries:
        assert isinstance(plan.query.window, Session)
        alike = plan.query.window.gap_us, plan.delay, plan.from_us, plan.before_us
        found.setdefault(alike, []).append(plan)
    return [Asked(*alike, plans) for alike, plans in sorted(found.items())]


def sessions_of(atoms: Cells, gap_us: int, delay: int) -> Sessions:
    """The sessions of all events of lateness classes 0 … `delay`."""
    low, high = np.searchsorted(atoms.slices.late_class, [0, delay + 1]).tolist()
    rows = np.arange(int(atoms.offsets[low]), int(atoms.offsets[high]))
    slots, first = atoms.slots[rows].astype(np.int64), atoms.columns[FIRST][rows].astype(np.int64)
    if high - low > 1:
        order = sorted_by(slots, first)
        rows, slots, first = rows[order], slots[order], first[order]
    last = atoms.columns[LAST][rows].astype(np.int64)
    new = begins(slots, first, last, gap_us)
    starts = np.flatnonzero(new)
    ends = np.maximum.reduceat(last, starts) + gap_us if len(starts) else starts
    return Sessions(slots[starts], first[starts], ends, rows, new)


def open_ones(sessions: Sessions, mark_us: int | None) -> Mask:
    """Which sessions end above the watermark."""
    if mark_us is None:
        return np.ones(len(sessions.ends_us), bool)
    still: Mask = sessions.ends_us > mark_us
    return still


def needed_atoms(group: GroupPlan, atoms: Cells, mark: Watermark) -> Mask:
    """Which atoms an open session of some query holds."""
    needed = np.zeros(atoms.rows, bool)
    for asked in asked_of(group):
        found = sessions_of(atoms, asked.gap_us, asked.delay)
        needed[found.take(open_ones(found, mark.at(group.delays_us[asked.delay]))).rows] = True
    return needed


def first_needed(atoms: Cells, needed: Mask) -> int:
    """The time of the earliest event that a needed atom holds; beyond all times if none is needed."""
    held = atoms.columns[FIRST][needed] if atoms.rows else np.zeros(0, np.int64)
    return int(held.min()) if len(held) else int(np.iinfo(np.int64).max)


def closing(group: GroupPlan, asked: Asked, atoms: Cells, before: Watermark, after: Watermark) -> Sessions:
    """The sessions that close when the watermark moves."""
    delay_us = group.delays_us[asked.delay]
    found = sessions_of(atoms, asked.gap_us, asked.delay)
    closed = open_ones(found, before.at(delay_us)) & ~open_ones(found, after.at(delay_us))
    return found.take(closed & (found.starts_us >= asked.from_us) & (found.starts_us < asked.before_us))
