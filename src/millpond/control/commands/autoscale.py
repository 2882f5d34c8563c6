"""Observes the load of a pond's instances, and changes their number, buckets and shards as a policy decides.

This is the loop of Amoeba: *monitor* the committed epochs, *analyse* a stretch of them, *plan* a number of instances
and of shards, and *execute* the plan by a change record with the reason. `Pond.scale` carries it out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from millpond.control.wiring.pond_reader import newest_records, read_truth
from millpond.errors import ForeignPondError, MillpondError
from millpond.log.locations.address import Address, Given
from millpond.log.manifest import Manifest
from millpond.log.port import Log
from millpond.log.records import EpochRecord
from millpond.model.spec import PondSpec
from millpond.placement.alignment import Owners
from millpond.placement.autoscale import Decision, Memory, Observed, balanced, decide
from millpond.placement.autoscale_policy import Policy
from millpond.placement.moves import maps_in, requested_map_in
from millpond.plan.explain.amounts import count_of
from millpond.reconfigure.apply import plan_of
from millpond.runtime.migration.bucket_load import bucket_loads
from millpond.runtime.task.counters import WHOLE_POND, in_receipt
from millpond.state.ports.files import Files

LOOK_EVERY_US = 10_000_000
"""The length of the stretch of epochs on which one decision is based."""

WHO = "autoscale"
"""The requester in the history."""

_FOLDED, _EVENTS = in_receipt("fold_us"), "events"


class ScalablePond(Protocol):
    """The part of a pond that the autoscaler changes."""

    address: Address

    def scale(
        self, instances: int, *, shards: int | None = None, who: str | None = None, why: str = "requested"
    ) -> None:  # fmt: skip
        """See `Pond.scale`."""

    def servers(self) -> tuple[str, ...]:
        """See `Pond.servers`."""

    def assign(self, owners: Owners, instances: int, why: str, *, who: str | None = None) -> None:
        """See `Pond.assign`."""


def observed(began_us: int, records: Iterable[EpochRecord]) -> Observed | None:
    """The load of the epochs since the stretch began (newest last, one number of instances); None: no epochs."""
    useful: list[int] = []
    rows, at_us = 0, began_us
    for record in records:
        useful = useful or [0] * len(record.receipts)
        at_us, rows = record.at, rows + record.counts.get(WHOLE_POND, {}).get(_EVENTS, 0)
        for receipt in record.receipts:
            useful[receipt.instance] += receipt.counts.get(_FOLDED, 0)
    return Observed(at_us, at_us - began_us, rows, tuple(useful)) if useful and at_us > began_us else None


class Autoscaler:
    """Decides once per stretch of epochs; call `epoch` with each committed epoch."""

    def __init__(self, policy: Policy, every_us: int = LOOK_EVERY_US) -> None:
        self._policy, self._every_us = policy, every_us
        self._memory, self._began_us = Memory(), 0
        self._records: list[EpochRecord] = []
        self._before: EpochRecord | None = None
        self.last: Decision | None = None

    def epoch(self, pond: ScalablePond, record: EpochRecord) -> None:
        """Add an epoch, and change the pond if a decision is due; called within the epoch."""
        before = self._before
        self._before = record
        if before is None or before.map != record.map or len(before.receipts) != len(record.receipts):
            self._began_us, self._records = record.at, []  # the epoch migrated state, and more migrations may follow
            return
        self._records.append(record)
        if record.at < self._began_us + self._every_us:
            return
        seen = observed(self._began_us, self._records)
        self._began_us, self._records = record.at, []
        if seen is not None:
            self.last, self._memory = decide(self._policy, self._memory, seen)
            try:
                self._do(pond, self.last, seen)
            except MillpondError as error:  # the epoch continues, and the next decision may repeat the change
                self.last = msgspec.structs.replace(self.last, why=f"{self.last.why}; refused: {error.what}")

    def _do(self, pond: ScalablePond, decision: Decision, seen: Observed) -> None:
        if decision.instances != seen.instances:
            shards = self._policy.shards_for(decision.instances, len(pond.servers()))
            pond.scale(decision.instances, shards=shards, who=WHO, why=decision.why)
        elif decision.balance:
            truth, spec = read_truth(pond.address)
            owners = truth.sections(lambda now: better_owners(spec, now, truth.files(), self._policy))
            if owners is not None:
                pond.assign(owners, seen.instances, decision.why, who=WHO)


def better_owners(spec: PondSpec, manifest: Manifest, files: Files, policy: Policy) -> Owners | None:
    """Owners that distribute the last epoch's load more evenly; None: no move helps, or buckets still migrate."""
    current, target = maps_in(spec, manifest)[0], requested_map_in(spec, manifest)
    if current.owners != target.owners:
        return None
    loads = bucket_loads(plan_of(spec), manifest, files, current.instances, spec.buckets)
    owners = balanced(target.owners, loads, target.instances, policy.skew)
    return owners if owners != target.owners else None


class Advice(msgspec.Struct, frozen=True):
    """What the policy would do if the load of the newest epochs continued: see `Decision`.

    `moved`: the number of buckets that would move to other owners only for balance.
    """

    now: int
    utilisation: float
    skew: float
    epochs: int
    seconds: float
    instances: int
    balance: bool
    moved: int
    why: str


def advice(folder: Given, policy: Policy) -> Advice:
    """The advice for the pond in `folder`, from its newest epochs on the current instances; nothing is changed.

    Raises:
        ForeignPondError: the folder contains no pond, or the pond has not run long enough.
        CorruptError: its log cannot be read.
    """
    truth, spec = read_truth(folder)
    records = _newest(truth.log, truth.manifest)
    load = observed(records[0].at, records[1:]) if records else None
    if load is None:
        raise ForeignPondError(f"The pond in {folder} has not run long enough.", "Let it run for some epochs more.")
    memory, decision = Memory(), Decision(load.instances, False, "")
    for _ in range(policy.agreeing_observations):
        decision, memory = decide(policy, memory, load)
    owners = truth.sections(lambda now: better_owners(spec, now, truth.files(), policy) if decision.balance else None)
    before = requested_map_in(spec, truth.manifest).owners
    moved = sum(old != new for old, new in zip(before, owners or before, strict=True))
    return Advice(
        load.instances, load.utilisation, load.skew, len(records) - 1, load.wall_us / 1e6, decision.instances,
        decision.balance and moved > 0, moved, decision.why,
    )  # fmt: skip


def advice_text(advice: Advice) -> str:
    """The advice as text.

    >>> print(advice_text(Advice(2, 0.8, 1.1, 40, 12.5, 4, False, 0, "instances fold 80% of the time")))
    2 instances fold 80% of the time, the busiest 1.10 times the mean; 40 epochs in 12.5 s
    it would have 4 instances: instances fold 80% of the time
    >>> print(advice_text(Advice(1, 0.4, 1.0, 40, 12.5, 1, False, 0, "1 is right")).splitlines()[0][:37])
    1 instance folds 40% of the time, the
    """
    fold = "folds" if advice.now == 1 else "fold"
    measured = (
        f"{count_of(advice.now, 'instance')} {fold} {advice.utilisation:.0%} of the time, the busiest "
        f"{advice.skew:.2f} times the mean; {advice.epochs:,} epochs in {advice.seconds:.1f} s"
    )
    what = "it would change nothing"
    if advice.instances != advice.now:
        what = f"it would have {count_of(advice.instances, 'instance')}"
    elif advice.balance:
        what = f"it would give {advice.moved:,} buckets other owners"
    return f"{measured}\n{what}: {advice.why}"


def _newest(log: Log, manifest: Manifest) -> list[EpochRecord]:
    """The newest epochs on one number of instances, the oldest first; at most those of six looks of an autoscaler."""
    found: list[EpochRecord] = []
    for _, record in newest_records(log, manifest.n):
        if not isinstance(record, EpochRecord):
            continue
        if found and (len(record.receipts) != len(found[0].receipts) or record.at < found[0].at - 6 * LOOK_EVERY_US):
            break
        found.append(record)
    return found[::-1]
