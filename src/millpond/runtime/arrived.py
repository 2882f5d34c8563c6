"""Unpacks the packets of one instance in one epoch: parts of groups, counts, event times and rows to pass on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from millpond.log.records import Fates
from millpond.runtime.counting import add_fates
from millpond.runtime.packet import GroupPart, decode_packet, late_rows_of, selected_rows_of

Held = dict[str, list[pa.RecordBatch]]
"""Stream -> rows."""


@dataclass(slots=True)
class Arrived:
    """What came: `parts` by group, `newest` by stream and source partition, `late`, `selected` and
    `dead` rows by stream."""

    counts: dict[str, int] = field(default_factory=dict)
    fates: Fates = field(default_factory=dict)
    newest: dict[str, dict[str, int]] = field(default_factory=dict)
    late: Held = field(default_factory=dict)
    selected: Held = field(default_factory=dict)
    dead: Held = field(default_factory=dict)
    parts: dict[str, list[GroupPart]] = field(default_factory=dict)


def arrived(packets: Sequence[pa.Buffer]) -> Arrived:
    """The packets together, the same in whatever order they come.

    Raises:
        CorruptError: one does not read.
    """
    found = Arrived()
    decoded = [(*decode_packet(packet), packet) for packet in packets]
    decoded.sort(key=lambda packet: (packet[0].stream, packet[0].partition, packet[0].sequence))
    for header, groups, packet in decoded:
        for query, counted in header.counts.items():
            for name, value in counted.items():
                found.counts[f"{name}:{query}"] = found.counts.get(f"{name}:{query}", 0) + value
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
    for stream, times in found.newest.items():
        found.counts |= {f"max_time:{stream}:{name}": time for name, time in times.items()}
    return found
