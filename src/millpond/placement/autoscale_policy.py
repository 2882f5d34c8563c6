"""The parameters of the autoscale policy; this module imports no arrays, so that the command line starts fast."""

from __future__ import annotations

import msgspec


class Policy(msgspec.Struct, frozen=True):
    """When to change the number of instances, or to balance buckets.

    `target`: the part of the time in which an instance should fold, 0 … 1. `agreeing_observations`: how many
    observations in a row must agree. `cooldown_us`: how long nothing changes after a change.
    `slack`: fewer instances are used only if they stay below this part of the target. `skew`: the allowed load of the
    busiest instance, as a multiple of the mean. `shards`: the least and the most shards of the store, which follow the
    number of instances; None: shards stay.
    """

    target: float = 0.5
    min_instances: int = 1
    max_instances: int = 8
    agreeing_observations: int = 3
    cooldown_us: int = 60_000_000
    slack: float = 0.8
    skew: float = 1.25
    shards: tuple[int, int] | None = None

    def shards_for(self, instances: int, servers: int) -> int | None:
        """The number of shards for a number of instances, if the store has enough servers; None: shards stay.

        >>> policy = Policy(shards=(2, 6))
        >>> policy.shards_for(1, 4), policy.shards_for(3, 4), policy.shards_for(8, 4), policy.shards_for(8, 0)
        (2, 3, 4, None)
        """
        if self.shards is None or not servers:
            return None
        return min(max(instances, self.shards[0]), self.shards[1], servers)
