"""Defines what advisers learn of a committed epoch, and the port through which they learn it.

An adviser measures epochs in order to decide something about later ones: limits of a read, idle partitions, budgets.
The driver keeps all advisers in one list and calls each of them once after every commit. Advisers live as long as the
driver. Nothing that an epoch computes may depend on them except through a record of the log.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from millpond.log.manifest import Manifest
from millpond.log.records import EpochRecord
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream
from millpond.plan.groups.plan import Plan


class CommittedEpoch(NamedTuple):
    """An epoch whose record was just appended to the log.

    `streams`, `spec` and `plan` were in force during the epoch; `spec` is None if the driver has not read it from the
    log. `manifest` is the one on which the epoch was based. `at_us` is the time of the commit on the clock of
    `lap_us`. `seconds` is the duration of the epoch, and `between` the pause since the previous commit.
    """

    record: EpochRecord
    streams: tuple[Stream, ...]
    spec: PondSpec | None
    plan: Plan
    manifest: Manifest
    at_us: int
    seconds: float
    between: float


class Adviser(Protocol):
    """Learns from every committed epoch."""

    def committed(self, epoch: CommittedEpoch) -> None:
        """Observes an epoch. Called once per commit, in the order of the log, by the thread that committed it."""
