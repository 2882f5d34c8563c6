"""Reads the packets of an epoch: columns per group, and the dictionary slots of their keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints
from millpond.log.records import Fates
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.packets.event_counts import add_fates
from millpond.runtime.packets.packet import GroupPart, decode_packet, late_rows_of, selected_rows_of
from millpond.runtime.packets.raw_columns import RawRows, piece_of_raw
from millpond.runtime.task.counters import Counters
from millpond.state.keys.key_dictionary import KeyDictionary
from millpond.state.layout.cells import Piece
from millpond.state.layout.event_log import Events
from millpond.state.layout.tallies import COUNT

Held = dict[str, list[pa.RecordBatch]]
"""Rows by stream."""


@dataclass(slots=True)
class Arrived:
    """The combined contents of an instance's packets.

    `newest`: the largest event time by stream and source partition. `late`, `selected` and `dead`: late rows, rows of
    stateless queries and dead letters by stream. `parts`: by group.
    """

    counters: Counters = field(default_factory=Counters)
    fates: Fates = field(default_factory=dict)
    newest: dict[str, dict[str, int]] = field(default_factory=dict)
    late: Held = field(default_factory=dict)
    selected: Held = field(default_factory=dict)
    dead: Held = field(default_factory=dict)
    parts: dict[str, list[GroupPart]] = field(default_factory=dict)


def arrived(packets: Sequence[pa.Buffer]) -> Arrived:
    """Combines packets; the result does not depend on their order.

    Raises:
        CorruptError: a packet is not readable.
    """
    found = Arrived()
    decoded = [(*decode_packet(packet), packet) for packet in packets]
    decoded.sort(key=lambda packet: (packet[0].stream, packet[0].partition, packet[0].sequence))
    for header, groups, packet in decoded:
        found.counters.add(header.counts)
        add_fates(found.fates, header.fates)
        apart = found.dead if header.malformed is True else found.selected
        for held, rows in ((found.late, late_rows_of(header, packet)), (apart, selected_rows_of(header, packet))):
            if rows is not None:
                held.setdefault(header.stream, []).append(rows)
        reached = found.newest.setdefault(header.stream, {})
        for name, time in header.newest_us.items():
            reached[name] = max(time, reached.get(name, time))
        for part in groups:
            found.parts.setdefault(part.group, []).append(part)
    return found


class Came(NamedTuple):
    """A group's new input: partial results, events for the log, and tallies."""

    pieces: list[Piece]
    logged: list[Events]
    tallied: list[Events]


def numbered(group: GroupPlan, keys: KeyDictionary, parts: Sequence[GroupPart]) -> Came:
    """Maps the keys of packet parts to dictionary slots; new keys are added to `keys`."""
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
        # the cells and events of a group share one set of keys in a packet
        found.append(found[-1] if part.keys is last else keys.number(part.keys, part.key_count))
        last = part.keys
    now = keys.by_bucket()
    if now is None:
        return found
    known = keys.committed
    return [np.where(slots < known, slots, now[np.maximum(slots - known, 0)]) for slots in found]
