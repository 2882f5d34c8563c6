"""Key dictionary compaction: an instance drops keys that no cell names, without rewriting the cells.

A generation begins with the keys that live segments still name, in slot order, and records the previous slot of each
(`was`). Segments of the previous generation stay unchanged: read through that column, their slots are slots of the
new generation, in the same order. At most two generations exist at a time.
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
from millpond.state.layout.session_fragments import some_atoms
from millpond.state.ports.files import Files

SLOT = "slot"
"""The column of a section of slots that have left."""

OPENING = -1
"""The level of the section of keys that opens a generation: it is merged with no other, so that `was` stays."""


def read_section(files: Files, place: SectionPlace) -> pa.RecordBatch:
    """The batch of a section of keys or cells.

    Raises:
        CorruptError: it does not read.
    """
    read = files.read_inline if place.inline else files.read
    return from_bytes(read(place.file, place.offset, place.size))


def read_keys(files: Files, state: GroupState, group: GroupPlan | SideLog, buckets: int) -> list[pa.RecordBatch]:
    """The sections of keys of a group, with the bucket of each key, of so many.

    Raises:
        CorruptError: a section does not read.
    """
    bucket_of = partial(buckets_of_keys, group, buckets=buckets)
    return [with_buckets(read_section(files, place), len(group.keys), bucket_of) for place in state.keys]


def slot_buckets(sections: Sequence[pa.RecordBatch]) -> npt.NDArray[np.uint16]:
    """The bucket of each slot in sections as `read_keys` reads them."""
    return np.concatenate([np.zeros(0, np.uint16), *(np.asarray(section.column(BUCKET)) for section in sections)])


class Attached(Sequence[Cells]):
    """The cells of some live segments, all in slots of the newest generation, their classes those of `delays_us`; each
    is read when it is asked for, and once.

    `keys`: the sections of the generation, in order.

    Raises:
        CorruptError: a section that is asked for does not read.
    """

    def __init__(
        self, files: Files, state: GroupState, places: Sequence[SectionPlace], keys: Sequence[pa.RecordBatch],
        delays_us: tuple[int, ...],
    ) -> None:  # fmt: skip
        self.places = places
        self._files, self._generation, self._keys, self._delays_us = files, state.generation, keys, delays_us
        self._known: dict[int, Cells] = {}
        self._now: npt.NDArray[np.int32] | None = None

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
            self._known[at] = self._in_slots_of_now(place, read_cells(self._files, place, self._delays_us))
        return self._known[at]

    def _in_slots_of_now(self, place: SectionPlace, cells: Cells) -> Cells:
        if place.generation == self._generation:
            return cells
        if self._now is None:
            self._now = slots_now(self._keys)
        return cells._replace(slots=self._now[cells.slots])


class Numbered(NamedTuple):
    """Sections of keys, and for each of their slots another one, -1 where there is none."""

    sections: Sequence[pa.RecordBatch]
    now: npt.NDArray[np.int32]


def numbered_keys(parts: Iterable[Numbered], width: int) -> pa.RecordBatch | None:
    """The keys, of `width` columns, that have another slot, as one section in the order they come in; None: no key."""
    names, chosen = key_columns(width), list[pa.RecordBatch]()
    for sections, now in parts:
        first = 0
        for section in sections:
            wanted = now[first : first + section.num_rows] >= 0
            first += section.num_rows
            if wanted.any():
                chosen.append(section.select(names).filter(pa.array(wanted)))
    return pa.concat_batches(chosen) if chosen else None


def left_slots(files: Files, state: GroupState) -> Ints | None:
    """The slots of the newest generation whose keys are another instance's now; None: there are none.

    Raises:
        CorruptError: a section does not read.
    """
    if not state.left:
        return None
    found = [np.asarray(read_section(files, place).column(SLOT)) for place in state.left]
    return np.concatenate(found).astype(np.int64)


def left_within(span: tuple[int, int], left: Ints) -> int:
    """How many of the slots from one to before another have left."""
    low, high = np.searchsorted(left, span)
    return int(high - low)


def shares_left(
    state: GroupState, places: Sequence[SectionPlace], cells: Sequence[Cells], left: Ints | None
) -> list[float]:
    """For each segment about what part of its cells is of slots that have left since it was written; 1: all of it is.

    Slots of one segment have as many cells as each other, more or less: they are in the order in which keys came. Cells
    are asked for only where their place does not tell which slots they span.
    """
    if left is None:
        return [0.0] * len(places)
    found = []
    for i, place in enumerate(places):
        of_now = place.generation == state.generation
        span = place.slots if of_now and place.slots is not None else span_of(cells[i])
        before, spanned = place.gone if of_now else 0, span[1] - span[0]
        found.append((left_within(span, left) - before) / (spanned - before) if spanned > before else 0.0)
    return found


def slots_section(slots: Ints) -> pa.Buffer:
    """A section of slots that have left."""
    return to_bytes(pa.RecordBatch.from_arrays([pa.array(slots.astype(np.int32))], names=[SLOT]))


def still_here(cells: Iterable[Cells], left: Ints | None, keys: int) -> list[Cells]:
    """Of some cells those whose slots, below `keys`, have not left."""
    if left is None:
        return list(cells)
    here = np.ones(keys, bool)
    here[left] = False
    return [some_atoms(some, here[some.slots]) if some.rows else some for some in cells]


def slots_now(keys: Sequence[pa.RecordBatch]) -> npt.NDArray[np.int32]:
    """For each slot of the generation before, the slot of now, -1 where its key is gone; none: there is no generation
    before.
    """
    if not keys or WAS not in keys[0].schema.names:
        return np.zeros(0, np.int32)
    was = np.asarray(keys[0].column(WAS))
    now = np.full(int(was[-1]) + 1 if len(was) else 0, -1, np.int32)
    now[was] = np.arange(len(was), dtype=np.int32)
    return now


def read_cells(files: Files, place: SectionPlace, delays_us: tuple[int, ...]) -> Cells:
    """The cells of a segment, their classes those of `delays_us`, even if a former plan had others.

    Raises:
        CorruptError: the section does not read.
    """
    cells = decode_cells(read_section(files, place))
    if place.delays_us in ((), delays_us):
        return cells
    classes = np.array(classes_now(place.delays_us, delays_us))[cells.slices.late_class]
    return cells._replace(slices=cells.slices._replace(late_class=classes))


def classes_now(before_us: Sequence[int], delays_us: Sequence[int]) -> list[int]:
    """For each class by the delays of a former plan the one by those of now.

    What was in time for a delay is so for all longer ones, and taken to be late for all shorter ones; what was late for
    all of them, as a delay that is no more had left it, for all there are.

    >>> classes_now((0, 30), (0, 10, 30))
    [0, 2, 3]
    """
    return [*(bisect_left(delays_us, delay) for delay in before_us), len(delays_us)]


def full_level(places: Sequence[SectionPlace], fan_in: int) -> int | None:
    """The lowest level of which there are `fan_in` sections."""
    levels = levels_of(places)
    full = [level for level in sorted(set(levels)) if levels.count(level) >= fan_in]
    return full[0] if full else None


def levels_of(places: Iterable[SectionPlace]) -> list[int]:
    """The level of each section; all portions of a merge count as one."""
    return [level for level, _ in {(place.level, place.instead or place.id) for place in places}]


def due_sections(places: Sequence[SectionPlace], fan_in: int, most_rows: int | None) -> list[SectionPlace]:
    """The `fan_in` sections of events that become one of the next level, of `most_rows` at most (None: of any number);
    none: no level is full.
    """
    small = [place for place in places if most_rows is None or place.rows <= most_rows // fan_in]
    level = full_level(small, fan_in)
    return [] if level is None else [place for place in small if place.level == level][:fan_in]


def are_named(parts: Iterable[Cells | Events], keys: int) -> Mask:
    """Of each slot below `keys` whether some cell or event names it."""
    named = np.zeros(keys, bool)
    for part in parts:
        named[part.slots] = True
    return named
