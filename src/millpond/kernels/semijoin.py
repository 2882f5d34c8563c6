"""Semi-join: reduces both sides of a join to the events that an epoch's rows can need, before anything is copied.

Sides keep events for as long as the join's time bounds require, but an epoch needs few of them: new events, and events
of the other side with a matching hash. Hashes are compared by their lowest bits in one table, so a few extra events are
read (Mackert and Lohman, R* Optimizer Validation and Performance Evaluation for Distributed Queries, VLDB 1986, whose
filter has several tables).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.arrays import Ints, Mask
from millpond.model.join import LEFT, RIGHT
from millpond.state.layout.event_log import Events

_TABLE = 1 << 20


class Live(NamedTuple):
    """Events of a section of one side of a join.

    `searching`: events that need the events with their hash on the other side. `needed`: events that are always read.
    `possible`: events that are read if a searching event of the other side has their hash.
    """

    events: Events
    searching: Mask
    needed: Mask
    possible: Mask


class Sieve:
    """Tests whether hashes may be in a set, with a few false positives; also used by deduplication.

    >>> Sieve([np.array([5, 7])])(np.array([7, 6, 5])).tolist()
    [True, False, True]
    """

    def __init__(self, hashes: Iterable[npt.NDArray[np.integer]]) -> None:
        self._known = np.zeros(_TABLE, bool)
        for some in hashes:
            self._known[_places(some)] = True

    def __call__(self, hashes: npt.NDArray[np.integer]) -> Mask:
        """Which of `hashes` may be in the set."""
        found: Mask = self._known[_places(hashes)]
        return found


def reduced(sides: Mapping[str, Sequence[Live]]) -> dict[str, list[Events]]:
    """The events of each side from which rows may result, section by section."""
    searched = {side: Sieve(part.events.slots[part.searching] for part in parts) for side, parts in sides.items()}
    return {LEFT: _read(sides[LEFT], searched[RIGHT]), RIGHT: _read(sides[RIGHT], searched[LEFT])}


def _read(parts: Iterable[Live], searched: Sieve) -> list[Events]:
    found = []
    for part in parts:
        wanted = searched(part.events.slots)
        wanted &= part.possible
        wanted |= part.needed
        found.append(part.events if wanted.all() else part.events.take(wanted))
    return found


def _places(hashes: npt.NDArray[np.integer]) -> Ints:
    return hashes.astype(np.int64, copy=False) & (_TABLE - 1)
