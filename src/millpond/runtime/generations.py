"""Generations of keys: how an instance forgets keys that no cell names any more, without rewriting cells.

A generation opens with the keys that live segments still name, in the order of their slots, and tells the slot
each had before (`was`). Segments of the generation before stay as they are: read through that column, their slots
are those of this generation, in the same order. There are never more than these two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints
from millpond.runtime.tasks import GroupState, SectionPlace
from millpond.state.cells import Cells
from millpond.state.delta import Files
from millpond.state.dictionary import WAS
from millpond.state.segments import decode_cells, from_bytes

OPENING = -1
"""The level of the section of keys that opens a generation: it is merged with no other, so that `was` stays."""


def read_section(files: Files, place: SectionPlace) -> pa.RecordBatch:
    """The batch of a section of keys or cells.

    Raises:
        CorruptError: it does not read.
    """
    read = files.read_inline if place.inline else files.read
    return from_bytes(read(place.file, place.offset, place.size))


def attached(files: Files, state: GroupState, keys: Sequence[pa.RecordBatch]) -> list[Cells]:
    """The cells of each live segment, all in slots of the newest generation; `keys`: its sections, in order.

    Raises:
        CorruptError: a section does not read.
    """
    found = [decode_cells(read_section(files, place)) for place in state.segments]
    before = [place.generation != state.generation for place in state.segments]
    if not any(before):
        return found
    was = np.asarray(keys[0].column(WAS))
    now = np.zeros(int(was[-1]) + 1 if len(was) else 0, np.int32)
    now[was] = np.arange(len(was), dtype=np.int32)
    return [
        cells._replace(slots=now[cells.slots]) if moved else cells for cells, moved in zip(found, before, strict=True)
    ]


def named_slots(parts: Iterable[Cells], keys: int) -> Ints:
    """The slots below `keys` that some cell names, ascending."""
    named = np.zeros(keys, bool)
    for cells in parts:
        named[cells.slots] = True
    return np.flatnonzero(named)
