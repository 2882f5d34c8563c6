"""Chooses the segments that an epoch merges (`merges_due`) and computes the merged cells (`merged`).

Full levels are merged (`task.levels`). A merge of gigabytes would stop its epoch, so a large merge is written in
portions, one per epoch: the cells of some slices, then those of the next slices; a large slice is split by key slots.
Slices that will be coalesced count as one. A portion lists the segments that it replaces; readers ignore it while one
of those is still live (`state_locations.group_state`), and the last portion supersedes them all.

Epochs in which windows close, or in which state arrives from other instances, are the longest. If windows close in an
epoch, its merges wait for the next one, unless windows close in the previous and the next epoch too
(`closing.each_closes`). Merges also wait, for a limited time, for an epoch without a backlog
(`scheduling.quiet_epochs`).

Merges drop the cells of keys whose buckets have moved to another instance. Levels alone might not reach a segment for
a long time, so a segment that has lost half of its cells is due at once: the merge writes no more than it frees
(Rosenblum and Ousterhout, The Design and Implementation of a Log-Structured File System, 1992, §3). A segment that
has lost all its cells is not read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from millpond.arrays import Ints, distinct_of, places_of
from millpond.runtime.fold.coalesce_slices import Edges, widened
from millpond.runtime.keys.current_slots import without_departed
from millpond.runtime.task.levels import Levels
from millpond.runtime.task.task_values import UNTIL, Position, SectionPlace
from millpond.state.layout.cells import Cells, merge, needed_slices, part_of, piece_of, with_measures

PORTION_BYTES = 4 << 20

_PORTION_PER_ADDED_BYTE = 4
"""A portion has at least this many bytes for each byte that its epoch adds, so that merges keep up with new input.

With k times as many level-0 segments as one merge needs, portions are k times larger."""

_MOST_SEGMENTS = 64
"""The most segments in one merge. With more, a portion would spend its time on reading their metadata."""

_DUE_FRACTION_MOVED = 0.5
"""A segment is merged, whatever its level, if at least this fraction of its cells has moved to other instances."""


class SegmentMerge(NamedTuple):
    """Segments to merge, by their positions, into one of `level`.

    `portions`: the number of portions, of which this epoch writes the one that begins at `begin`. None: one merge,
    without portions. 0: no cells remain, and the segments are only removed.
    """

    chosen: tuple[int, ...]
    level: int
    portions: int | None = None
    begin: Position = Position(np.iinfo(np.int64).min, 0)


class MergedCells(NamedTuple):
    """The cells of a merge from its current position to `until`; `until` is None if nothing is left to merge."""

    cells: Cells
    until: Position | None

    def info(self, due: SegmentMerge, names: Sequence[str]) -> dict[str, int | str]:
        """The section info of a portion of a merge of the sections `names`; empty if the merge has no portions."""
        if not due.portions:
            return {}
        return {"instead": " ".join(names), **dict(zip(UNTIL, self.until or (), strict=False))}


def merges_due(
    segments: Sequence[SectionPlace], unread_portions: Sequence[SectionPlace], fan_in: int, added: int,
    moving: bool = False, moved_fractions: Sequence[float] = (), no_merges: bool = False,
) -> list[SegmentMerge]:  # fmt: skip
    """The merges of an epoch: the next portion of the merge that has begun, and merges that become due.

    Only one merge in portions runs at a time; small merges do not wait for it.

    `unread_portions`: the written portions of unfinished merges. `added`: bytes that the epoch adds. `moving`: buckets
    are migrating; then no portion is written, because a migration takes time of its own, and windows close in the
    epochs between its steps. `moved_fractions`: for each segment, the fraction of its cells that has moved to other
    instances since it was written; empty: nothing has moved. `no_merges`: the epoch is long already, so only segments
    without remaining cells are removed.
    """
    backlog = max(1, sum(not segment.level for segment in segments) // fan_in)

    def portions(chosen: Sequence[int]) -> int:
        size = sum(segments[i].size for i in chosen)
        return -(-size // max(PORTION_BYTES, _PORTION_PER_ADDED_BYTE * added * backlog))

    merges, instead = list[SegmentMerge](), {name for portion in unread_portions for name in portion.instead}
    begun = tuple(i for i, segment in enumerate(segments) if segment.id in instead)
    mine = [portion for portion in unread_portions if any(segments[i].id in portion.instead for i in begun)]
    if mine and not no_merges and not moving:
        merges.append(SegmentMerge(begun, mine[0].level, portions(begun), max(portion.until for portion in mine)))
    moved = moved_fractions or [0.0] * len(segments)
    free = [i for i in range(len(segments)) if i not in begun]
    ended = tuple(i for i in free if moved[i] >= 1)
    if ended:
        merges.append(SegmentMerge(ended, 0, 0))
    if no_merges:
        return merges
    mostly = tuple(i for i in free if _DUE_FRACTION_MOVED <= moved[i] < 1)
    wanted = [(mostly[:_MOST_SEGMENTS], max(segments[i].level for i in mostly))] if mostly else []
    others = [i for i in free if moved[i] < _DUE_FRACTION_MOVED]
    full = Levels([segments[i] for i in others], fan_in).due(_MOST_SEGMENTS)
    if full is not None:
        wanted.append((tuple(others[at] for at in full.chosen), full.level))
    busy = moving or bool(mine)
    for chosen, level in wanted:
        many = portions(chosen)
        # while buckets migrate, a merge of two portions is done at once; otherwise small segments would accumulate
        if many < 2 or (moving and many == 2):
            merges.append(SegmentMerge(chosen, level))
        elif not busy:
            merges.append(SegmentMerge(chosen, level, many))
            busy = True
    return merges


def merged(
    due: SegmentMerge, old: Sequence[Cells], departed: Ints | None, committed: int, keys: int, horizon: int | None,
    ids: Collection[str] | None = None, edges: Edges | None = None,
) -> MergedCells:  # fmt: skip
    """The cells that the epoch writes of a merge: all of them, or the next portion that has cells.

    Dropped are slices that end at or before `horizon`, the slots `departed` of keys that moved to other instances,
    and columns of measures that are not among `ids` (None: keep all columns). Old cells have slots below `committed`,
    all cells have slots below `keys`. Slices are widened to `edges` (None: not widened).
    """
    chosen = [with_measures(old[i], ids) for i in due.chosen]
    if due.portions == 0:
        return MergedCells(part_of(chosen[0], np.zeros(0, np.int64)), None)
    kept = [needed_slices(cells, horizon) for cells in chosen]
    cells_per_portion, begin = -(-sum(cells.rows for cells in chosen) // (due.portions or 1)), due.begin
    while True:
        first, last, slots, until = _portion(chosen, kept, cells_per_portion, begin, keys, edges)
        parts = []
        for cells, rows in zip(chosen, kept, strict=True):
            starts = cells.slices.start_us[rows]
            inside = part_of(cells, rows[(starts >= first) & (starts <= last)], *slots)
            parts.append(inside)
        low, high = slots
        # renumber slots from 0, so that arrays over all slots are small
        renumbered = [
            cells._replace(slots=cells.slots.astype(np.int32) - np.int32(low))
            for cells in without_departed(parts, departed, committed)
        ]
        wide = renumbered if edges is None else [part for cells in renumbered for part in widened(cells, edges)]
        pieces = [piece_of(cells) for cells in wide]
        found = merge(pieces, max(1, (keys if high is None else min(keys, high)) - low))
        if found.rows or until is None:
            return MergedCells(found._replace(slots=found.slots + np.int32(low)), until)
        begin = until


def _portion(
    chosen: Sequence[Cells], kept: Sequence[Ints], count: int, begin: Position, keys: int, edges: Edges | None
) -> tuple[int, int, tuple[int, int | None], Position | None]:
    """About `count` cells from the position `begin` on: the first and last start of their slices, the range of their
    slots, and the position where they end (None: at the end of all cells).

    Slices that will be coalesced stay in one portion, unless they are split by slots.
    """
    pairs = list(zip(chosen, kept, strict=True))
    starts = np.concatenate([cells.slices.start_us[rows] for cells, rows in pairs])
    cells_of = np.concatenate([np.diff(cells.offsets)[rows] for cells, rows in pairs])
    later = starts >= begin.start_us
    distinct, where = places_of(starts[later])
    if not len(distinct):
        return 0, -1, (0, None), None
    upto = np.cumsum(np.bincount(where, cells_of[later]).astype(np.int64))
    begun = int(np.searchsorted(distinct, begin.start_us + begin.span_us, "right")) if begin.slot else 0
    wide = distinct if edges is None else edges.around(distinct, distinct)[0]
    ends = np.append(np.flatnonzero(np.diff(wide)) + 1, len(wide))
    # a begun run of slices continues with the same slices, even if edges between them and others no longer exist
    here, end, slot = int(distinct[0]), begun or int(ends[0]), begin.slot if begun else 0
    if not slot and upto[end - 1] <= count:
        end = int(ends[np.searchsorted(upto[ends - 1], count, "right") - 1])
    last = int(distinct[end - 1])
    if slot or upto[end - 1] > count:
        high = _slot_after(pairs, (here, last), slot, count)
        if high is not None and high < keys:
            return here, last, (slot, high), Position(here, high, last - here)
    return here, last, (slot, None), None if end == len(distinct) else Position(last + 1, 0)


def _slot_after(
    pairs: Sequence[tuple[Cells, Ints]], starts_us: tuple[int, int], slot: int, cells_wanted: int
) -> int | None:  # fmt: skip
    """The slot that ends a run of about `cells_wanted` cells which begins at `slot`; None if there are fewer cells.

    Only slices count that start within `starts_us` (first, last). The cells of a segment in a slice are assumed to be
    spread evenly between their first slot and their last. These may be few of all slots: the keys of migrated cells,
    for example, follow all keys that existed before.
    """
    first, end, count = list[Ints](), list[Ints](), list[Ints]()
    for cells, rows in pairs:
        starts, counts = cells.slices.start_us[rows], np.diff(cells.offsets)[rows]
        some = rows[(starts >= starts_us[0]) & (starts <= starts_us[1]) & (counts > 0)]
        first.append(cells.slots[cells.offsets[some]].astype(np.int64))
        end.append(cells.slots[cells.offsets[some + 1] - 1].astype(np.int64) + 1)
        count.append(cells.offsets[some + 1] - cells.offsets[some])
    begins, ends, counts = (np.concatenate(some) for some in (first, end, count))
    places = distinct_of(np.concatenate([begins, ends, [slot]]))
    each, rise = counts / (ends - begins), np.zeros(len(places))
    np.add.at(rise, np.searchsorted(places, begins), each)
    np.subtract.at(rise, np.searchsorted(places, ends), each)
    before = np.append(0, np.cumsum(np.cumsum(rise)[:-1] * np.diff(places)))
    end_at = before[np.searchsorted(places, slot)] + cells_wanted
    if end_at >= before[-1]:
        return None
    return max(slot + 1, int(np.ceil(np.interp(end_at, before, places))))
