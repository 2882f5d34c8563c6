"""Maps the keys of incoming packets to dictionary slots.

New keys get their slots when all keys of an epoch are known, in bucket order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from millpond.arrays import Ints
from millpond.plan.plan import GroupPlan
from millpond.runtime.packet import GroupPart
from millpond.runtime.raw import RawRows, piece_of_raw
from millpond.state.cells import Piece
from millpond.state.dictionary import KeyDictionary
from millpond.state.event_log import Events
from millpond.state.tallies import COUNT


class Came(NamedTuple):
    """Partials, events for the log, and tallies."""

    pieces: list[Piece]
    logged: list[Events]
    tallied: list[Events]


def numbered(group: GroupPlan, keys: KeyDictionary, parts: Sequence[GroupPart]) -> Came:
    """Parts of packets, in slots; keys that are new are added to `keys`."""
    came, found = Came([], [], []), _slots(keys, parts)
    for part, slots in zip(parts, found, strict=True):
        body = part.body
        if isinstance(body, Events):
            (came.tallied if COUNT in body.columns else came.logged).append(body._replace(slots=slots[body.slots]))
            continue
        piece = piece_of_raw(group, body, part.key_count) if isinstance(body, RawRows) else body
        came.pieces.append(Piece(piece.slices, piece.slice_rows, slots[piece.slots], piece.columns))
    return came


def _slots(keys: KeyDictionary, parts: Sequence[GroupPart]) -> list[Ints]:
    """The slots of the keys of each part."""
    found, last = list[Ints](), None
    for part in parts:
        # a packet has the keys of a group's cells and events once
        found.append(found[-1] if part.keys is last else keys.number(part.keys, part.key_count))
        last = part.keys
    now = keys.by_bucket()
    if now is None:
        return found
    known = keys.committed
    return [np.where(slots < known, slots, now[np.maximum(slots - known, 0)]) for slots in found]
