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
from millpond.spans import Span
from millpond.state.keys.key_dictionary import KeyDictionary
from millpond.state.layout.cells import Piece
from millpond.state.layout.event_log import Events
from millpond.state.layout.tallies import COUNT

RowsByStream = dict[str, list[pa.RecordBatch]]
"""Rows by stream."""


@dataclass(slots=True)
class PacketContents:
    """The combined contents of an instance's packets.

    `newest`: the largest event time by stream and source partition. `late`, `selected` and `dead`: late rows, rows of
    stateless queries and dead letters by stream. `parts`: by group. `spans`: of the tasks that made the packets.
    """

    counters: Counters = field(default_factory=Counters)
    fates: Fates = field(default_factory=dict)
    newest: dict[str, dict[str, int]] = field(default_factory=dict)
    late: RowsByStream = field(default_factory=dict)
    selected: RowsByStream = field(default_factory=dict)
    dead: RowsByStream = field(default_factory=dict)
    parts: dict[str, list[GroupPart]] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)


def combine_packets(packets: Sequence[pa.Buffer]) -> PacketContents:
    """Combines packets; the result does not depend on their order.

    Raises:
        CorruptError: a packet is not readable.
    """
    contents = PacketContents()
    decoded = [(*decode_packet(packet), packet) for packet in packets]
    decoded.sort(key=lambda packet: (packet[0].stream, packet[0].partition, packet[0].sequence))
    for header, groups, packet in decoded:
        contents.counters.add(header.counts)
        add_fates(contents.fates, header.fates)
        contents.spans += header.spans or []
        rows_of_kind = contents.dead if header.malformed is True else contents.selected
        late, other = late_rows_of(header, packet), selected_rows_of(header, packet)
        for by_stream, rows in ((contents.late, late), (rows_of_kind, other)):
            if rows is not None:
                by_stream.setdefault(header.stream, []).append(rows)
        newest = contents.newest.setdefault(header.stream, {})
        for name, time in header.newest_us.items():
            newest[name] = max(time, newest.get(name, time))
        for part in groups:
            contents.parts.setdefault(part.group, []).append(part)
    return contents


class GroupInput(NamedTuple):
    """A group's new input: partial results, events for the log, and tallies."""

    pieces: list[Piece]
    logged: list[Events]
    tallied: list[Events]


def number_keys(group: GroupPlan, keys: KeyDictionary, parts: Sequence[GroupPart]) -> GroupInput:
    """Maps the keys of packet parts to dictionary slots; new keys are added to `keys`."""
    group_input, part_slots = GroupInput([], [], []), _slots(keys, parts)
    for part, slots in zip(parts, part_slots, strict=True):
        body = part.body
        if isinstance(body, Events):
            events = group_input.tallied if COUNT in body.columns else group_input.logged
            events.append(body._replace(slots=slots[body.slots]))
            continue
        piece = piece_of_raw(group, body, part.key_count) if isinstance(body, RawRows) else body
        group_input.pieces.append(Piece(piece.slices, piece.slice_rows, slots[piece.slots], piece.columns))
    return group_input


def _slots(keys: KeyDictionary, parts: Sequence[GroupPart]) -> list[Ints]:
    """The slots of the keys of each part."""
    slots_of_parts, last = list[Ints](), None
    for part in parts:
        # the cells and events of a group share one set of keys in a packet
        is_same = part.keys is last
        slots_of_parts.append(
            slots_of_parts[-1] if is_same else keys.number(part.keys, part.key_count, part.buckets)
        )  # fmt: skip
        last = part.keys
    final = keys.by_bucket()
    if final is None:
        return slots_of_parts
    committed = keys.committed
    return [np.where(slots < committed, slots, final[np.maximum(slots - committed, 0)]) for slots in slots_of_parts]
