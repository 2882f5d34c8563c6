"""Edges: where the windows of a group cut event time. Between two edges lies a slice; no window cuts one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from millpond.model.windows import Sliding

Times: TypeAlias = npt.NDArray[np.int64]


def edges_between(windows: Sequence[Sliding], first_us: int, last_us: int) -> Times:
    """All edges of `windows` around [first_us, last_us], ascending: the first at or before `first_us`,
    the last after `last_us`.

    >>> edges_between([Sliding(45, 15), Sliding(20, 20)], 21, 39).tolist()
    [20, 30, 40]
    """
    parts = []
    for phase, step in {_phase(edge, w) for w in windows for edge in (w.offset_us, w.offset_us + w.size_us)}:
        low = first_us - (first_us - phase) % step
        high = last_us - (last_us - phase) % step + step
        parts.append(np.arange(low, high + 1, step, dtype=np.int64))
    edges = np.unique(np.concatenate(parts))
    begin = int(np.searchsorted(edges, first_us, "right")) - 1
    end = int(np.searchsorted(edges, last_us, "right"))
    return edges[begin : end + 1]


def _phase(edge_us: int, window: Sliding) -> tuple[int, int]:
    return edge_us % window.slide_us, window.slide_us


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
