"""Edges: the times at which windows of a group start or end. They cut event time into slices, the units of state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from millpond.arrays import distinct_of
from millpond.model.windows import Sliding

Times: TypeAlias = npt.NDArray[np.int64]

_SPARE_EDGES = 1 << 16
"""The number of edges that may always be listed, however few events there are."""


class Slicing(NamedTuple):
    """Slices [start, end) in time order, and for each event the position of its slice."""

    starts_us: Times
    ends_us: Times
    position: npt.NDArray[np.int64]


def slices_of(windows: Sequence[Sliding], times_us: Times) -> Slicing:
    """Slices that contain all of `times_us`, which must not be empty; at most a constant number per event.

    >>> slices_of([Sliding(20, 20)], np.array([21, 39, 3]))[0].tolist()
    [0, 20]
    """
    first, last = int(times_us.min()), int(times_us.max())
    many = sum((last - first) // step + 2 for _, step in phases(windows))
    if many <= _SPARE_EDGES + len(times_us):
        edges = edges_between(windows, first, last)
        return Slicing(edges[:-1], edges[1:], slice_of(times_us, edges))
    found = [(times_us - (times_us - phase) % step, step) for phase, step in phases(windows)]
    starts, rows, position = np.unique(
        np.maximum.reduce([low for low, _ in found]), return_index=True, return_inverse=True
    )
    ends = np.minimum.reduce([low[rows] + step for low, step in found])
    return Slicing(starts, ends, position)


def edges_between(windows: Sequence[Sliding], first_us: int, last_us: int) -> Times:
    """All edges of `windows` around [first_us, last_us], ascending: the first at or before `first_us`,
    the last after `last_us`.

    >>> edges_between([Sliding(45, 15), Sliding(20, 20)], 21, 39).tolist()
    [20, 30, 40]
    """
    parts = []
    for phase, step in phases(windows):
        low = first_us - (first_us - phase) % step
        high = last_us - (last_us - phase) % step + step
        parts.append(low + step * np.arange((high - low) // step + 1, dtype=np.int64))  # exact, however long a step
    edges = distinct_of(np.concatenate(parts))
    begin = int(np.searchsorted(edges, first_us, "right")) - 1
    end = int(np.searchsorted(edges, last_us, "right"))
    return edges[begin : end + 1]


def phases(windows: Sequence[Sliding]) -> set[tuple[int, int]]:
    """The regular grids (phase, step) on which the windows start and end.

    >>> sorted(phases([Sliding(45, 15), Sliding(50, 20)]))
    [(0, 15), (0, 20), (10, 20)]
    """
    edges = [(edge, w.slide_us) for w in windows for edge in (w.offset_us, w.offset_us + w.size_us)]
    return {(edge % step, step) for edge, step in edges}


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
