"""Committed epochs in the form that advisers receive, from records that a test made."""

from __future__ import annotations

from collections.abc import Sequence

from millpond.log.manifest import Manifest
from millpond.log.records import EpochRecord
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream
from millpond.plan.groups.plan import Plan
from millpond.runtime.scheduling.committed_epoch import CommittedEpoch


def committed(
    record: EpochRecord, *, streams: Sequence[Stream] = (), spec: PondSpec | None = None, plan: Plan | None = None,
    manifest: Manifest | None = None, at_us: int = 0, seconds: float = 0.0, between: float = 0.0,
) -> CommittedEpoch:  # fmt: skip
    """The committed epoch of a record; omitted parts are empty."""
    return CommittedEpoch(
        record, tuple(streams), spec, plan or Plan(()), manifest or Manifest(), at_us, seconds, between
    )
