"""Splits a large rebalance into steps, so that no single epoch has to migrate all of the state. Pure.

The requested map stays as it was recorded. Before an epoch the driver records an intermediate map that moves at most
one step's worth of state. The next epoch uses that map, and another step follows it. A driver that takes over
continues from the map by which state is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.placement.alignment import Owners
from millpond.placement.moves import BucketMap


class Step(NamedTuple):
    """A map on the way to the map that record `towards` requested; the last step is the requested map itself."""

    owners: Owners
    instances: int
    towards: int


def step(
    lies: BucketMap, now: BucketMap, asked: BucketMap, sizes: Sequence[float], most: float, waits: bool = False
) -> Step | None:
    """The map to record before the next epoch; None if no record is needed, because the log has the right map.

    `lies` is the map by which state is stored, `now` the map for the next epoch, `asked` the requested map. `sizes` are
    the bytes of each bucket. A step moves at most `most` bytes, but at least one bucket. `waits`: nothing moves yet.

    >>> born, wanted = BucketMap(0, (0, 0, 0, 0), 1), BucketMap(7, (0, 1, 1, 1), 2)
    >>> step(born, wanted, wanted, (10,) * 4, 20)
    Step(owners=(0, 1, 1, 0), instances=2, towards=7)
    >>> step(BucketMap(8, (0, 1, 1, 0), 2), BucketMap(8, (0, 1, 1, 0), 2), wanted, (10,) * 4, 20)
    Step(owners=(0, 1, 1, 1), instances=2, towards=7)
    >>> step(born, wanted, wanted, (10,) * 4, 20, waits=True)
    Step(owners=(0, 0, 0, 0), instances=1, towards=7)
    """
    if now.number not in (lies.number, asked.number) or lies.number == asked.number:
        return None  # the recorded step waits for its epoch, or there is nothing to do
    if waits:
        return None if now.number == lies.number else Step(lies.owners, lies.instances, asked.number)
    before, after = np.array(lies.owners), np.array(asked.owners)
    moving = np.flatnonzero(before != after)
    first = _first(np.array(sizes)[moving], most)
    if first == len(moving):
        on_the_way = now.number == lies.number
        arrived = not len(moving) and lies.instances == asked.instances
        return Step(asked.owners, asked.instances, asked.number) if on_the_way and not arrived else None
    chosen = moving[:first]
    before[chosen] = after[chosen]
    return Step(tuple(before.tolist()), max(lies.instances, asked.instances), asked.number)


def _first(sizes: npt.NDArray[np.float64], most: float) -> int:
    """The number of leading buckets that fit into one step, at least one."""
    return min(len(sizes), max(1, int(np.searchsorted(np.cumsum(sizes), most, "right"))))
