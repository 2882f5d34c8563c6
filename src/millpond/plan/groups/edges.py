"""Edges: the times at which windows of a group start or end. They cut event time into slices, the units of state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from millpond.arrays import distinct_of
from millpond.model.calendars.grids import EdgeGrid
from millpond.model.windows import Sliced

Times: TypeAlias = npt.NDArray[np.int64]

_SPARE_EDGES = 1 << 16
"""The number of edges that may always be listed, however few events there are."""


class Slicing(NamedTuple):
    """Slices [start, end) in time order, and for each event the position of its slice."""

    starts_us: Times
    ends_us: Times
    position: npt.NDArray[np.int64]


def slices_of(windows: Sequence[Sliced], times_us: Times) -> Slicing:
    """Slices that contain all of `times_us`, which must not be empty; at most a constant number per event.

    >>> from millpond.model.windows import Sliding
    >>> slices_of([Sliding(20, 20)], np.array([21, 39, 3]))[0].tolist()
    [0, 20]
    """
    first, last = int(times_us.min()), int(times_us.max())
    many = sum((last - first) // grid.typical_us + 2 for grid in phases(windows))
    if many <= _SPARE_EDGES + len(times_us):
        edges = edges_between(windows, first, last)
        return Slicing(edges[:-1], edges[1:], slice_of(times_us, edges))
    grids = phases(windows)
    lows = np.maximum.reduce([grid.floor(times_us) for grid in grids])
    starts, rows, position = np.unique(lows, return_index=True, return_inverse=True)
    ends = np.minimum.reduce([grid.after(times_us[rows]) for grid in grids])
    return Slicing(starts, ends, position)


def edges_between(windows: Sequence[Sliced], first_us: int, last_us: int) -> Times:
    """All edges of `windows` around [first_us, last_us], ascending: the first at or before `first_us`,
    the last after `last_us`.

    >>> from millpond.model.windows import Sliding
    >>> edges_between([Sliding(45, 15), Sliding(20, 20)], 21, 39).tolist()
    [20, 30, 40]
    """
    edges = distinct_of(np.concatenate([grid.between(first_us, last_us) for grid in phases(windows)]))
    begin = int(np.searchsorted(edges, first_us, "right")) - 1
    end = int(np.searchsorted(edges, last_us, "right"))
    return edges[begin : end + 1]


def phases(windows: Sequence[Sliced]) -> set[EdgeGrid]:
    """The grids on which the windows start and end.

    >>> from millpond.model.windows import Sliding
    >>> sorted(tuple(grid) for grid in phases([Sliding(45, 15), Sliding(50, 20)]))
    [(0, 15), (0, 20), (10, 20)]
    """
    return {grid for window in windows for grid in window.edges}


def slice_of(times_us: Times, edges_us: Times) -> npt.NDArray[np.int64]:
    """Position of the slice `[edges[i], edges[i + 1])` that holds each time.

    A table over a regular grid answers in a few ns per event where the edges allow one (the usual case);
    else binary search. All times must lie within the edges.
    """
    steps = np.diff(edges_us)
    grain = int(np.gcd.reduce(steps)) if len(steps) else 1
    cells = (int(edges_us[-1]) - int(edges_us[0])) // grain
    if cells <= max(4096, len(times_us) // 4):
        table = np.repeat(np.arange(len(steps)), steps // grain)
        position: npt.NDArray[np.int64] = table[(times_us - edges_us[0]) // grain]
        return position
    return np.searchsorted(edges_us, times_us, "right") - 1
