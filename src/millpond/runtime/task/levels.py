"""Levels of stored sections: `fan_in` or more sections of one level are merged into one section of the next level.

So each cell, key and event is rewritten O(log n) times (O'Neil et al., The Log-Structured Merge-Tree, 1996). Every kind
of section is merged by these rules; the module of each kind decides what is merged into one section, and what is
dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millpond.runtime.task.task_values import SectionPlace


class DueMerge(NamedTuple):
    """Sections to merge, by their positions, into one section of `level`."""

    chosen: list[int]
    level: int

    def sections_in(self, places: Sequence[SectionPlace]) -> list[SectionPlace]:
        """The chosen ones of all sections, `places`."""
        return [places[at] for at in self.chosen]


class Levels(NamedTuple):
    """The live sections of one kind.

    `most_rows`: the most rows of a merged section (None: no limit); sections that are too large for one are not merged.
    """

    places: Sequence[SectionPlace]
    fan_in: int
    most_rows: int | None = None

    @property
    def lowest_full(self) -> int | None:
        """The lowest level with at least `fan_in` sections; None if there is none."""
        held = self._held()
        return min((level for level in held if held.count(level) >= self.fan_in), default=None)

    def due(self, most: int | None = None) -> DueMerge | None:
        """The sections of the lowest full level, at most the first `most` of them; None: no level is full."""
        level = self.lowest_full
        if level is None:
            return None
        return DueMerge([at for at in self._mergeable() if self.places[at].level == level][:most], level + 1)

    def free_from(self, level: int) -> int:
        """The lowest level, from `level` on, in which one more section makes no merge due."""
        held = self._held()
        while held.count(level) >= self.fan_in - 1:
            level += 1
        return level

    def _mergeable(self) -> list[int]:
        most = None if self.most_rows is None else self.most_rows // self.fan_in
        return [at for at, place in enumerate(self.places) if most is None or place.rows <= most]

    def _held(self) -> list[int]:
        """The level of each section; all portions of a merge count as one."""
        places = [self.places[at] for at in self._mergeable()]
        return [level for level, _ in {(place.level, place.instead or place.id) for place in places}]
