"""Histograms with a limited number of bins: merges the nearest neighbours first, for all result rows at once.

Spark's `histogram_numeric` inserts value by value (Ben-Haim, Tom-Tov 2010), so its bins depend on the order of
events. Here the bins depend on the values alone. As in Spark, a row with at most `most` different values has one bin
per value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.arrays import Ints

Doubles = npt.NDArray[np.float64]


class Bins(NamedTuple):
    """Bins sorted by row and centre: the result row of each, the mean of its values, and the number of its values."""

    rows: Ints
    centres: Doubles
    counts: Doubles


def binned(bins: Bins, most: int, size: int) -> Bins:
    """Merges neighbouring bins until each of `size` rows has at most `most` bins.

    In each round a row closes its smallest gaps: half of them, or as many as it has excess bins if these are fewer. Of
    adjacent gaps to close, only every second one is closed. So few rounds suffice, however many bins there are.
    """
    while True:
        held = np.bincount(bins.rows, minlength=size)
        closing = np.minimum(held - most, held // 2)
        if not len(held) or closing.max() <= 0:
            return bins
        bins = _put_together(bins, _closed(bins, closing))


def _closed(bins: Bins, closing: Ints) -> Ints:
    """The bins to merge with their next bin; `closing`: the most gaps that each row closes."""
    rows, centres, _ = bins
    gaps = np.flatnonzero((rows[1:] == rows[:-1]) & (closing[rows[:-1]] > 0))
    with np.errstate(invalid="ignore", over="ignore"):
        widths = centres[gaps + 1] - centres[gaps]
    order = np.lexsort((np.where(np.isnan(widths), np.inf, widths), rows[gaps]))
    owners = rows[gaps]  # ascending, and therefore equal to the rows of the sorted gaps
    nth = np.arange(len(gaps)) - np.searchsorted(owners, owners, "left")
    chosen = np.zeros(len(rows), bool)
    chosen[gaps[order[nth < closing[owners]]]] = True
    places = np.arange(len(rows))
    before = np.maximum.accumulate(np.where(chosen, -1, places))  # the last bin up to here that is not chosen, or -1
    return np.flatnonzero(chosen & ((places - before) % 2 == 1))


def _put_together(bins: Bins, left: Ints) -> Bins:
    """Merges each bin at `left` with its next bin; no two positions in `left` are adjacent."""
    rows, centres, counts = bins.rows, bins.centres.copy(), bins.counts.copy()
    totals = counts[left] + counts[left + 1]
    with np.errstate(invalid="ignore"):
        centres[left] = centres[left] * (counts[left] / totals) + centres[left + 1] / totals * counts[left + 1]
    counts[left] = totals
    kept = np.ones(len(rows), bool)
    kept[left + 1] = False
    return Bins(rows[kept], centres[kept], counts[kept])
