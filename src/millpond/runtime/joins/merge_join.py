"""Merge join of two sides that are sorted by (key, position); pairs come in runs of bounded size.

No loop runs over events or keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from millpond.arrays import Ints, Mask, ordered

PAIRS_AT_ONCE = 1 << 18


class Placed(NamedTuple):
    """Rows of one side: positions of events, codes of their keys, and their place (time, or start of a window)."""

    events: Ints
    codes: Ints
    at: Ints

    def take(self, rows: Ints | Mask) -> Placed:
        """Some of the rows, by a mask or positions."""
        return Placed(*(column[rows] for column in self))


class Candidates:
    """For each searching row, the rows of the other side with the same code and a place in [low, high]."""

    def __init__(self, searching: Placed, low: Ints, high: Ints, other: Placed) -> None:
        near = _near(searching, low, high, other)
        codes, near_at = other.codes[near], other.at[near]
        places = np.sort(near_at)
        width = len(places) + 1
        # ranks of places keep code and place in one integer, whatever the unit of time
        at = codes * width + np.searchsorted(places, near_at)
        order = ordered(at)
        sorted_, self._order = at[order], near[order]
        base = searching.codes * width
        self._first = np.searchsorted(sorted_, base + np.searchsorted(places, low), "left")
        last = np.searchsorted(sorted_, base + np.searchsorted(places, high, "right"), "left")
        self._ends = np.cumsum(np.maximum(last - self._first, 0))

    @property
    def count(self) -> int:
        """The number of pairs."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def runs(self) -> Iterator[tuple[Ints, Ints]]:
        """All pairs, in runs of at most `PAIRS_AT_ONCE`: positions of the searching rows, and of the other rows."""
        for start in range(0, self.count, PAIRS_AT_ONCE):
            nth = np.arange(start, min(start + PAIRS_AT_ONCE, self.count))
            searching = np.searchsorted(self._ends, nth, "right")
            before = np.where(searching > 0, self._ends[searching - 1], 0)
            yield searching, self._order[self._first[searching] + nth - before]


def _near(searching: Placed, low: Ints, high: Ints, other: Placed) -> Ints:
    """The positions of the other rows that may match.

    A searching row has their code, and their place is between the smallest `low` and the largest `high`.
    """
    if not len(low) or not len(other.at):
        return np.zeros(0, np.int64)
    searched = np.zeros(max(int(searching.codes.max()), int(other.codes.max())) + 1, bool)
    searched[searching.codes] = True
    return np.flatnonzero(searched[other.codes] & (other.at >= low.min()) & (other.at <= high.max()))
