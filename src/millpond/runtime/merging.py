"""Which segments are merged in an epoch, and how much of them: a large merge is made in portions, an epoch each.

Where `fan_in` segments of one level are, they become one of the next, so each cell is rewritten O(log) times (O'Neil et
al., The Log-Structured Merge-Tree, 1996). A merge of gigabytes would hold up its epoch for as long as it takes; here an
epoch merges the cells of some slots, the next one those of the next slots. A portion tells instead of which segments it
is, and nobody reads it while one of them is left (`epoch.group_state`): the last portion ends them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millpond.arrays import Ints
from millpond.runtime.generations import full_level, still_here
from millpond.runtime.tasks import SectionPlace
from millpond.state.atoms import between
from millpond.state.cells import Cells, merge, piece_of

PORTION_BYTES = 8 << 20

_REWRITTEN = 4
"""A portion is at least so many times as large as what its epoch adds: each cell is rewritten about that often."""


class Merge(NamedTuple):
    """Segments to merge, by their positions, into one of `level`: the cells of slots from `first` on, `step` slots at
    most; None: all of them.
    """

    chosen: tuple[int, ...]
    level: int
    first: int = 0
    step: int | None = None


class Merged(NamedTuple):
    """The cells of slots below `until`, from where the merge stood; `whole`: nothing is left to merge."""

    cells: Cells
    until: int
    whole: bool


def merges_due(
    places: Sequence[SectionPlace], waiting: Sequence[SectionPlace], fan_in: int, keys: int, added: int
) -> list[Merge]:
    """The merges of an epoch that adds so many bytes: the next portion of what has begun, and what becomes due; slots
    are below `keys`.

    `waiting`: the portions that nobody reads yet. One merge in portions goes on at a time; small ones do not wait.
    """

    def step(chosen: Sequence[int]) -> int | None:
        portions = -(-sum(places[i].size for i in chosen) // max(PORTION_BYTES, _REWRITTEN * added))
        return None if portions < 2 else max(1, -(-keys // portions))

    found = []
    instead = {name for place in waiting for name in place.instead}
    begun = tuple(i for i, place in enumerate(places) if place.id in instead)
    mine = [portion for portion in waiting if any(places[i].id in portion.instead for i in begun)]
    if mine:
        found.append(Merge(begun, mine[0].level, max(portion.until for portion in mine), step(begun) or keys))
    free = [i for i in range(len(places)) if i not in begun]
    level = full_level([places[i] for i in free], fan_in)
    if level is not None:
        chosen = tuple(i for i in free if places[i].level == level)
        slots = step(chosen)
        if slots is None or not mine:
            found.append(Merge(chosen, level + 1, 0, slots))
    return found


def merged(
    due: Merge, old: Sequence[Cells], left: Ints | None, committed: int, keys: int, horizon: int | None
) -> Merged:
    """What the epoch writes of a merge: the next slots that have cells, and where it then stands.

    Without slices that end by the `horizon`, and keys that have `left`; `committed`: old cells have slots below it.
    """
    first, until, whole = due.first, keys, True
    while True:
        some = [old[i] for i in due.chosen]
        if due.step is not None:
            until = first + due.step
            some, whole = [between(cells, first, until) for cells in some], until >= keys
        here = [still_here(cells, left, committed) for cells in some]
        pieces = [piece_of(cells, None if horizon is None else cells.slices.end_us > horizon) for cells in here]
        cells = merge(pieces, max(keys, 1))
        if cells.rows or whole:
            return Merged(cells, until, whole)
        first = until
