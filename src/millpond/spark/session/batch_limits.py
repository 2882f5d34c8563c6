"""Decides whether the batches that Spark passes to Python need a limit in bytes besides the limit in rows.

With a limit in bytes Spark measures the batch after each row, which takes as long as the rest of the transfer. If the
rows of the previous epoch were small and all of them parsed, the limit in rows suffices. The first epoch of a process
always has the limit in bytes, so that a pond whose process ran out of memory on large rows continues after a restart.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from millpond.runtime.scheduling.committed_epoch import CommittedEpoch
from millpond.runtime.task.counters import WHOLE_POND

LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"

_NONE = str(2**31 - 1)
_SMALL = 2048
"""Largest average size of a small row, in bytes. A batch of 4,096 rows a hundred times as large can still be allocated.
"""


class BatchLimits:
    """Sets the limit before an epoch from measurements of the previous one; a limit that the user has set is kept."""

    def __init__(self, session: SparkSession) -> None:
        self._given = session.conf.get(LIMIT, None) is not None
        self._small = False
        self._applied: tuple[SparkSession, bool] | None = None

    def committed(self, epoch: CommittedEpoch) -> None:
        """Measure the rows of an epoch, and whether all of them were parsed."""
        record = epoch.record
        counts = record.counts.get(WHOLE_POND, {})
        rows = counts.get("events", 0)
        if rows:
            parsed = not any(of.get("dead", 0) for of in record.counts.values())
            self._small = parsed and counts.get("bytes_read", 0) <= _SMALL * rows

    def limit(self, session: SparkSession) -> None:
        """Set the limit for the next epoch, in the session that reads it."""
        if self._given or self._applied == (session, self._small):
            return
        self._applied = session, self._small
        if self._small:
            session.conf.set(LIMIT, _NONE)
        else:
            session.conf.unset(LIMIT)
