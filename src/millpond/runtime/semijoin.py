"""Which events an epoch's rows of a join may be made of: both sides are reduced to these before anything is copied.

Sides remember events as long as the join's bounds are wide, and few of them are due in an epoch: those that ask, and
those of the other side that have a hash which is asked for. Hashes are told apart by their lowest bits, of which one
table says which are asked for, so a few are read that nobody asks for (Mackert and Lohman, R* Optimizer Validation and
Performance Evaluation for Distributed Queries, VLDB 1986, whose filter has several tables).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.arrays import Ints, Mask
from millpond.model.join import LEFT, RIGHT
from millpond.state.event_log import Events

_TABLE = 1 << 20


class Live(NamedTuple):
    """Events of a section: those that ask the other side for their hash, those that are read whoever asks, and those
    that are if the other side asks for their hash.
    """

    events: Events
    asking: Mask
    needed: Mask
    possible: Mask


def reduced(sides: Mapping[str, Sequence[Live]]) -> dict[str, list[Events]]:
    """The events of each side that some row may be made of, section by section."""
    asked = {RIGHT: _asked(sides[LEFT]), LEFT: _asked(sides[RIGHT])}
    return {side: [_read(part, asked[side]) for part in parts] for side, parts in sides.items()}


def _asked(parts: Iterable[Live]) -> Mask:
    """Of each place in the table whether a hash that is asked for has it."""
    table = np.zeros(_TABLE, bool)
    for part in parts:
        table[_places(part.events.slots[part.asking])] = True
    return table


def _read(part: Live, asked: Mask) -> Events:
    wanted = asked[_places(part.events.slots)]
    wanted &= part.possible
    wanted |= part.needed
    return part.events if wanted.all() else part.events.take(wanted)


def _places(hashes: npt.NDArray[np.integer]) -> Ints:
    return hashes.astype(np.int64, copy=False) & (_TABLE - 1)
