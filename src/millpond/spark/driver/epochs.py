"""What the driver reports of each committed epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millpond.log.records import EpochRecord


class Epoch(NamedTuple):
    """What one committed epoch did, for progress and metrics.

    `seconds` from the first event asked for to the commit; `job_seconds` of them were Spark's job: read, gather,
    shuffle, fold (of which its Python workers took the record's counts `gather_us` and `fold_us`). `missing`: by
    stream, files that were listed and deleted before they were read.
    """

    record: EpochRecord
    seconds: float
    job_seconds: float = 0.0
    missing: Mapping[str, Sequence[str]] = {}
