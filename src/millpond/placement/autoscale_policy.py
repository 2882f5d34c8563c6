"""The parameters of the autoscale policy; this module imports no arrays, so that the command line starts fast."""

from __future__ import annotations

import msgspec


class Policy(msgspec.Struct, frozen=True):
    """When to change the number of instances, or to balance buckets.

    `target`: the part of the time in which an instance should fold, 0 … 1. `least` and `most`: bounds of the number of
    instances. `steady`: how many observations in a row must agree. `rest_us`: how long nothing changes after a change.
    `slack`: fewer instances are used only if they stay below this part of the target. `skew`: the allowed load of the
    busiest instance, as a multiple of the mean.
    """

    target: float = 0.5
    least: int = 1
    most: int = 8
    steady: int = 3
    rest_us: int = 60_000_000
    slack: float = 0.8
    skew: float = 1.25
