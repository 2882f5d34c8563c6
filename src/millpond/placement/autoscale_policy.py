"""The autoscale policy's parameters as a value; it needs no arrays, so that a command line starts without them."""

from __future__ import annotations

import msgspec


class Policy(msgspec.Struct, frozen=True):
    """When to change what. `target`: the part of the time that an instance should fold, 0 … 1; `least` and `most`
    instances; `steady`: so many looks in a row must agree; `rest_us`: how long nothing changes after a change; `slack`:
    fewer instances must be below this part of the target; `skew`: the busiest may have so many times the mean.
    """

    target: float = 0.5
    least: int = 1
    most: int = 8
    steady: int = 3
    rest_us: int = 60_000_000
    slack: float = 0.8
    skew: float = 1.25
