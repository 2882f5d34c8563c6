"""Finding pairs: a merge of two sorted sides by (key, place), whose pairs come in runs of bounded size.

No loop goes over events or keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from millpond.arrays import Ints, Mask

PAIRS_AT_ONCE = 1 << 18


class Placed(NamedTuple):
    """Rows of one side: positions of events, codes of their keys, and a place: time or the start of a window."""

    events: Ints
    codes: Ints
    at: Ints

    def take(self, rows: Ints | Mask) -> Placed:
        """Some of the rows, by a mask or positions."""
        return Placed(*(column[rows] for column in self))


class Candidates:
    """For each asking row the rows of the other side with its code and a place in [low, high]."""

    def __init__(self, asking: Placed, low: Ints, high: Ints, other: Placed) -> None:
        places = np.unique(other.at)
        width = len(places) + 1
        # ranks of places keep code and place in one integer, whatever the unit of time
        at = other.codes * width + np.searchsorted(places, other.at)
        self._order = np.argsort(at, kind="stable")
        ordered = at[self._order]
        base = asking.codes * width
        self._first = np.searchsorted(ordered, base + np.searchsorted(places, low), "left")
        last = np.searchsorted(ordered, base + np.searchsorted(places, high, "right"), "left")
        self._ends = np.cumsum(np.maximum(last - self._first, 0))
        self._asking, self._other = asking, other

    @property
    def count(self) -> int:
        """How many pairs there are."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def runs(self) -> Iterator[tuple[Ints, Ints]]:
        """All pairs, `PAIRS_AT_ONCE` at most: positions among the asking rows, and among the other ones."""
        for start in range(0, self.count, PAIRS_AT_ONCE):
            nth = np.arange(start, min(start + PAIRS_AT_ONCE, self.count))
            asking = np.searchsorted(self._ends, nth, "right")
            before = np.where(asking > 0, self._ends[asking - 1], 0)
            yield asking, self._order[self._first[asking] + nth - before]
