"""The autoscale policy: how many instances a load needs, and which buckets should move.

The number follows DS2 (Kalavri et al., OSDI 2018): the rows that arrive per second, divided by the rows that one
instance folds per second of *useful* time, at a target utilisation. The moves follow the greedy balancing of
StreamCloud (Gulisano et al., TPDS 2012): the hottest bucket of the busiest instance moves to the least busy instance,
as long as that helps.

To avoid oscillation, several observations in a row must agree, and the smallest change that all of them support is
made. Then nothing changes for a while. Removing instances needs more spare capacity than the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import msgspec
import numpy as np

from millpond.arrays import Ints
from millpond.placement.alignment import Owners
from millpond.placement.autoscale_policy import Policy


class Observed(msgspec.Struct, frozen=True):
    """An observation of the `wall_us` until `at_us`: `rows` events in all, and how long each instance folded."""

    at_us: int
    wall_us: int
    rows: int
    useful_us: tuple[int, ...]

    @property
    def instances(self) -> int:
        """The number of instances."""
        return len(self.useful_us)

    @property
    def utilisation(self) -> float:
        """The part of the time in which instances fold, on average."""
        return sum(self.useful_us) / (self.instances * self.wall_us) if self.wall_us else 0.0

    @property
    def skew(self) -> float:
        """The fold time of the busiest instance divided by the mean; 1 if all are equal."""
        total = sum(self.useful_us)
        return max(self.useful_us) * self.instances / total if total else 1.0


class Memory(msgspec.Struct, frozen=True):
    """The result of earlier observations.

    `proposed`: the numbers of instances that the current streak needed. `uneven`: the number of uneven observations
    in a row. `changed_us`: the time of the last change; None: there was none.
    """

    proposed: tuple[int, ...] = ()
    uneven: int = 0
    changed_us: int | None = None


class Decision(msgspec.Struct, frozen=True):
    """The number of instances to use, whether to `balance` buckets among instances, and the reason as text."""

    instances: int
    balance: bool
    why: str


def needed(policy: Policy, observed: Observed, target: float) -> int:
    """The number of instances that the load needs at a target utilisation, within the bounds of the policy.

    >>> needed(Policy(), Observed(0, 1_000_000, 1000, (900_000, 700_000)), 0.5)
    4
    """
    useful = sum(observed.useful_us)
    if not (observed.rows and useful and observed.wall_us):
        return policy.min_instances
    arriving = observed.rows / observed.wall_us
    of_one = observed.rows / useful  # rows per µs of useful time: the true processing rate
    wanted = ceil(round(arriving / (of_one * target), 9))
    return min(max(wanted, policy.min_instances), policy.max_instances)


def decide(policy: Policy, memory: Memory, observed: Observed) -> tuple[Decision, Memory]:
    """The decision after one more observation, and the memory for the next one.

    If `instances` is the present number and `balance` is False, nothing changes.
    """
    current = observed.instances
    rate = f"instances fold {observed.utilisation:.0%} of the time, target {policy.target:.0%}"
    more, fewer = needed(policy, observed, policy.target), needed(policy, observed, policy.target * policy.slack)
    proposed = more if more > current else min(fewer, current)
    same_way = all((one > current) == (proposed > current) for one in memory.proposed)
    streak = () if proposed == current else (*(memory.proposed if same_way else ()), proposed)
    uneven = memory.uneven + 1 if current > 1 and observed.skew > policy.skew else 0
    next_memory = Memory(streak[-policy.agreeing_observations :], uneven, memory.changed_us)
    stay = Decision(current, False, f"{rate}: {current} {'is' if current == 1 else 'are'} right")
    if memory.changed_us is not None and observed.at_us < memory.changed_us + policy.cooldown_us:
        return Decision(current, False, f"{rate}; it waits after a change"), Memory((), 0, memory.changed_us)
    if len(streak) >= policy.agreeing_observations:
        chosen = min(next_memory.proposed) if proposed > current else max(next_memory.proposed)
        return Decision(chosen, False, f"{rate}: from {current} to {_counted(chosen)}"), Memory((), 0, observed.at_us)
    if streak:
        return Decision(current, False, f"{rate}: {_counted(proposed)} if this continues"), next_memory
    if uneven:
        why = f"the busiest instance folds {observed.skew:.2f} times as long as the mean"
        if uneven >= policy.agreeing_observations:
            return Decision(current, True, f"{why}: it hands over its busiest buckets"), Memory((), 0, observed.at_us)
        return Decision(current, False, f"{why}: buckets move if this continues"), next_memory
    return stay, next_memory


def _counted(instances: int) -> str:
    return "1 instance" if instances == 1 else f"{instances} instances"


def balanced(owners: Sequence[int], loads: Sequence[int] | Ints, instances: int, skew: float) -> Owners:
    """The owners after moves that reduce the busiest instance to `skew` times the mean load, or as far as possible.

    Each move takes the hottest bucket of the busiest instance that does not make the least busy instance as busy as the
    busiest one is now, and gives it to the least busy instance.

    >>> balanced((0, 0, 0, 1), (5, 4, 1, 2), 2, 1.25)
    (1, 0, 0, 1)
    """
    held, hot = np.array(owners), np.asarray(loads, np.int64)
    busy = np.bincount(held, hot, minlength=instances).astype(np.int64)
    most = skew * busy.sum() / instances
    while busy.max() > most:
        source, target = int(np.argmax(busy)), int(np.argmin(busy))
        mine = np.flatnonzero((held == source) & (hot > 0) & (hot < busy[source] - busy[target]))
        if not len(mine):
            break
        bucket = mine[np.argmax(hot[mine])]
        held[bucket] = target
        busy[source] -= hot[bucket]
        busy[target] += hot[bucket]
    return tuple(held.tolist())
