"""Computes owners of buckets for a new number of instances, with the fewest moves that balance them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millpond.placement.alignment import Owners


def rescaled(owners: Sequence[int], instances: int) -> Owners:
    """The owners after the fewest moves that make the shares of all instances differ by at most one bucket.

    The instances with most buckets keep the larger shares. An instance with too many buckets gives up its last ones.

    >>> rescaled((0, 0, 0, 1, 1, 1), 3)
    (0, 0, 2, 1, 1, 2)
    >>> rescaled((0, 0, 2, 1, 1, 2), 2), rescaled((0, 0, 0, 1, 1, 1), 2)
    ((0, 0, 0, 1, 1, 1), (0, 0, 0, 1, 1, 1))
    """
    held = np.array(owners)
    counts = np.bincount(held, minlength=instances)[:instances]
    shares = np.full(instances, len(held) // instances)
    shares[np.argsort(-counts, kind="stable")[: len(held) % instances]] += 1
    # the position of each bucket among the buckets of its instance
    order = np.argsort(held, kind="stable")
    place = np.empty(len(held), np.int64)
    place[order] = np.arange(len(held)) - np.searchsorted(held[order], held[order])
    stays = (held < instances) & (place < np.append(shares, 0)[np.minimum(held, instances)])
    lacking = shares - np.bincount(held[stays], minlength=instances)
    held[~stays] = np.repeat(np.arange(instances), lacking)
    return tuple(held.tolist())
