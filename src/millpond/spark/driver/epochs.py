"""Defines the report on each committed epoch that the driver passes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millpond.log.records import EpochRecord
from millpond.runtime.inspect.timeline import EpochTimeline


class Epoch(NamedTuple):
    """Report on one committed epoch, for progress and metrics.

    - `seconds`: the time from the request for the first event to the commit.
    - `job_seconds`: the part of `seconds` that Spark's job took to read, gather, shuffle and fold. The record's counts
      `gather_us` and `fold_us` say how much of it the Python workers took.
    - `missing`: by stream, the files that were listed but deleted before they were read.
    - `ahead`: by stream, the files with dates in the future, because of which Spark may skip later files.
    - `timeline`: its steps until the commit, without what Spark reports later.
    - `hosts`: the host on which each instance was folded.
    """

    record: EpochRecord
    seconds: float
    job_seconds: float = 0.0
    missing: Mapping[str, Sequence[str]] = {}
    ahead: Mapping[str, Sequence[str]] = {}
    timeline: EpochTimeline | None = None
    hosts: Mapping[int, str] = {}
