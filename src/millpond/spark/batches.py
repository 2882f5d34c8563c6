"""Whether the batches that Spark hands to Python have a limit of bytes beside that of rows.

Spark asks how large a batch has become after each row, which takes as long as all else that hands rows over. Where the
rows of the epoch before were small, and all of them parsed, a batch of as many as it may have needs no such limit. The
first epoch of a process has it, so that one that died of large rows goes on when it is started again.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from millpond.log.records import EpochRecord
from millpond.runtime.tasks import WHOLE_POND

LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"

_NONE = str(2**31 - 1)
_SMALL = 2048
"""Bytes of a row on average. A batch of 4,096 that are a hundred times as large still fits into an allocation."""


class Batches:
    """Sets the limit before an epoch, by what the one before has told; one that the user has set stays."""

    def __init__(self, session: SparkSession) -> None:
        self._given = LIMIT in session.conf.getAll
        self._small = False

    def committed(self, record: EpochRecord) -> None:
        """Learn from an epoch."""
        counts = record.counts.get(WHOLE_POND, {})
        rows = counts.get("events", 0)
        if rows:
            parsed = not any(of.get("dead", 0) for of in record.counts.values())
            self._small = parsed and counts.get("bytes_read", 0) <= _SMALL * rows

    def limit(self, session: SparkSession) -> None:
        """For the next epoch, in the session that reads it."""
        if self._given:
            return
        if self._small:
            session.conf.set(LIMIT, _NONE)
        else:
            session.conf.unset(LIMIT)
