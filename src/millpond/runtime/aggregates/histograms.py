"""Histograms with few bins: the nearest neighbours of sorted values are merged first, for all result rows at once.

Spark's `histogram_numeric` inserts value by value (Ben-Haim, Tom-Tov 2010), so its bins depend on the order of
events. Here only the values count. As in Spark, a row with at most `most` different values has one bin per value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.arrays import Ints

Doubles = npt.NDArray[np.float64]


class Bins(NamedTuple):
    """Bins by their rows and centres: the row of each, the mean of its values, and how many they are."""

    rows: Ints
    centres: Doubles
    counts: Doubles


def binned(bins: Bins, most: int, size: int) -> Bins:
    """At most `most` bins for each of `size` rows, each the mean of a run of neighbours.

    In every round a row closes the smaller half of its gaps, or as many as it has bins too many; where the gaps of one
    bin would both be closed, every second one is. So it takes few rounds, however many bins there are.
    """
    while True:
        held = np.bincount(bins.rows, minlength=size)
        closing = np.minimum(held - most, held // 2)
        if not len(held) or closing.max() <= 0:
            return bins
        bins = _put_together(bins, _closed(bins, closing))


def _closed(bins: Bins, closing: Ints) -> Ints:
    """The bins that are put together with the next one; `closing`: how many gaps each row may close."""
    rows, centres, _ = bins
    gaps = np.flatnonzero((rows[1:] == rows[:-1]) & (closing[rows[:-1]] > 0))
    with np.errstate(invalid="ignore", over="ignore"):
        widths = centres[gaps + 1] - centres[gaps]
    order = np.lexsort((np.where(np.isnan(widths), np.inf, widths), rows[gaps]))
    owners = rows[gaps]  # ascending, as the sorted ones are
    nth = np.arange(len(gaps)) - np.searchsorted(owners, owners, "left")
    chosen = np.zeros(len(rows), bool)
    chosen[gaps[order[nth < closing[owners]]]] = True
    places = np.arange(len(rows))
    before = np.maximum.accumulate(np.where(chosen, -1, places))  # the last one that is not chosen, or -1
    return np.flatnonzero(chosen & ((places - before) % 2 == 1))


def _put_together(bins: Bins, left: Ints) -> Bins:
    """Each bin at `left` with its next one, of which none is at `left`."""
    rows, centres, counts = bins.rows, bins.centres.copy(), bins.counts.copy()
    totals = counts[left] + counts[left + 1]
    with np.errstate(invalid="ignore"):
        centres[left] = centres[left] * (counts[left] / totals) + centres[left + 1] / totals * counts[left + 1]
    counts[left] = totals
    kept = np.ones(len(rows), bool)
    kept[left + 1] = False
    return Bins(rows[kept], centres[kept], counts[kept])
