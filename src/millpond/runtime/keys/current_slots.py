"""Reads the keys and cells of a group in the slots and late classes that are current now.

When the key dictionary has been compacted (`fold.state.State.roll`), segments of the previous generation are not
rewritten: the column `was` of the first key section maps their slots to current ones, in the same order. At most two
generations exist at a time. Also lists departed slots, those of keys that belong to another instance now.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays import Ints, Mask
from millpond.plan.groups.joins import SideLog
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.keys.buckets import buckets_of_keys
from millpond.runtime.task.task_values import GroupState, SectionPlace
from millpond.state.keys.key_dictionary import BUCKET, WAS, key_columns, with_buckets
from millpond.state.layout.cells import Cells, span_of
from millpond.state.layout.event_log import Events
from millpond.state.layout.segments import decode_cells, from_bytes, to_bytes
from millpond.state.layout.session_atoms import some_atoms
from millpond.state.ports.files import Files

SLOT = "slot"
"""The column of a section of departed slots, whose keys belong to another instance now."""

OPENING = -1
"""The level of the section of keys that opens a generation; it is never merged, so that `was` is preserved."""


def read_section(files: Files, place: SectionPlace) -> pa.RecordBatch:
    """The batch of a section of keys or cells.

    Raises:
        CorruptError: it is not readable.
    """
    read = files.read_inline if place.inline else files.read
    return from_bytes(read(place.file, place.offset, place.size))


def read_keys(files: Files, state: GroupState, group: GroupPlan | SideLog, buckets: int) -> list[pa.RecordBatch]:
    """Reads the key sections of a group, and adds the bucket of each key; `buckets`: the number of buckets.

    Raises:
        CorruptError: a section is not readable.
    """
    bucket_of = partial(buckets_of_keys, group, buckets=buckets)
    return [with_buckets(read_section(files, place), len(group.keys), bucket_of) for place in state.keys]


def slot_buckets(sections: Sequence[pa.RecordBatch]) -> npt.NDArray[np.uint16]:
    """The bucket of each slot, from sections that `read_keys` returned."""
    return np.concatenate([np.zeros(0, np.uint16), *(np.asarray(section.column(BUCKET)) for section in sections)])


class CurrentCells(Sequence[Cells]):
    """The cells of live segments, converted to current slots and late classes when first accessed.

    The late classes are those of `delays_us`. `keys`: the key sections of the generation, in order.

    Raises:
        CorruptError: an accessed section is not readable.
    """

    def __init__(
        self, files: Files, state: GroupState, places: Sequence[SectionPlace], keys: Sequence[pa.RecordBatch],
        delays_us: tuple[int, ...],
    ) -> None:  # fmt: skip
        self.places = places
        self._files, self._generation, self._keys, self._delays_us = files, state.generation, keys, delays_us
        self._known: dict[int, Cells] = {}
        self._current_slot_of: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, at: int) -> Cells: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Cells]: ...

    def __getitem__(self, at: int | slice) -> Cells | Sequence[Cells]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        place = self.places[at]
        if at not in self._known:
            self._known[at] = self._in_current_slots(place, read_cells(self._files, place, self._delays_us))
        return self._known[at]

    def _in_current_slots(self, place: SectionPlace, cells: Cells) -> Cells:
        if place.generation == self._generation:
            return cells
        if self._current_slot_of is None:
            self._current_slot_of = current_slot_of(self._keys)
        return cells._replace(slots=self._current_slot_of[cells.slots])


class Renumbered(NamedTuple):
    """Sections of keys, and for each of their old slots the new slot (-1: dropped)."""

    sections: Sequence[pa.RecordBatch]
    new_slots: npt.NDArray[np.int32]


def renumbered_keys(parts: Iterable[Renumbered], width: int) -> pa.RecordBatch | None:
    """The keys (of `width` columns) that have a new slot, in the given order, as one section; None: no key."""
    names, chosen = key_columns(width), list[pa.RecordBatch]()
    for sections, new_slots in parts:
        first = 0
        for section in sections:
            wanted = new_slots[first : first + section.num_rows] >= 0
            first += section.num_rows
            if wanted.any():
                chosen.append(section.select(names).filter(pa.array(wanted)))
    return pa.concat_batches(chosen) if chosen else None


def departed_slots(files: Files, state: GroupState) -> Ints | None:
    """The departed slots of the newest generation, whose keys belong to another instance now; None: there are none.

    Raises:
        CorruptError: a section is not readable.
    """
    if not state.left:
        return None
    found = [np.asarray(read_section(files, place).column(SLOT)) for place in state.left]
    return np.concatenate(found).astype(np.int64)


def departed_within(span: tuple[int, int], departed: Ints) -> int:
    """The number of departed slots (ascending) in the half-open interval `span`."""
    low, high = np.searchsorted(departed, span)
    return int(high - low)


def departed_fractions(
    state: GroupState, places: Sequence[SectionPlace], cells: Sequence[Cells], departed: Ints | None
) -> list[float]:
    """Estimates for each segment the fraction of its cells whose slots have departed since it was written.

    Assumes that cells are spread evenly over the slots that a segment spans (slots are in order of the keys' arrival).
    `departed`: the departed slots, ascending; None: there are none. Cells are only read if their `SectionPlace` does
    not state which slots they span.
    """
    if departed is None:
        return [0.0] * len(places)
    found = []
    for i, place in enumerate(places):
        current = place.generation == state.generation
        span = place.slots if current and place.slots is not None else span_of(cells[i])
        before, spanned = place.gone if current else 0, span[1] - span[0]
        found.append((departed_within(span, departed) - before) / (spanned - before) if spanned > before else 0.0)
    return found


def slots_section(slots: Ints) -> pa.Buffer:
    """Encodes a section of departed slots."""
    return to_bytes(pa.RecordBatch.from_arrays([pa.array(slots.astype(np.int32))], names=[SLOT]))


def without_departed(cells: Iterable[Cells], departed: Ints | None, slots: int) -> list[Cells]:
    """Drops the cells of departed slots; `slots`: the number of all slots."""
    if departed is None:
        return list(cells)
    here = np.ones(slots, bool)
    here[departed] = False
    return [some_atoms(some, here[some.slots]) if some.rows else some for some in cells]


def current_slot_of(keys: Sequence[pa.RecordBatch]) -> npt.NDArray[np.int32]:
    """The current slot of each slot of the previous generation, -1 where the key was dropped.

    The result is empty if there is no previous generation.
    """
    if not keys or WAS not in keys[0].schema.names:
        return np.zeros(0, np.int32)
    was = np.asarray(keys[0].column(WAS))
    current = np.full(int(was[-1]) + 1 if len(was) else 0, -1, np.int32)
    current[was] = np.arange(len(was), dtype=np.int32)
    return current


def read_cells(files: Files, place: SectionPlace, delays_us: tuple[int, ...]) -> Cells:
    """Reads the cells of a segment; late classes of an earlier plan are converted to those of `delays_us`.

    Raises:
        CorruptError: the section is not readable.
    """
    cells = decode_cells(read_section(files, place))
    if place.delays_us in ((), delays_us):
        return cells
    classes = np.array(current_class_of(place.delays_us, delays_us))[cells.slices.late_class]
    return cells._replace(slices=cells.slices._replace(late_class=classes))


def current_class_of(before_us: Sequence[int], delays_us: Sequence[int]) -> list[int]:
    """The current late class of each late class of an earlier plan with the delays `before_us`.

    Data that was in time for a delay counts as in time for all longer delays, and as late for all shorter ones. Data
    that was late for all former delays (of which some may no longer exist) counts as late for all current ones.

    >>> current_class_of((0, 30), (0, 10, 30))
    [0, 2, 3]
    """
    return [*(bisect_left(delays_us, delay) for delay in before_us), len(delays_us)]


def used_slots(parts: Iterable[Cells | Events], keys: int) -> Mask:
    """For each slot below `keys`, whether a cell or event refers to it."""
    used = np.zeros(keys, bool)
    for part in parts:
        used[part.slots] = True
    return used
