"""Runs an epoch of a small pond in a standby, so that the first epoch after a take-over does not wait for a cold JVM.

In a new JVM the first epoch takes about seven times as long as the next one: Spark loads and compiles classes, and its
Python workers start and import. The small pond is in a temporary folder; an executor that does not see this folder
ends the epoch, and stays cold.
"""

from __future__ import annotations

import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millpond.control.pond.pond import Pond
from millpond.errors import MillpondError
from millpond.spark.session.session import Session, explaining

EXIT_SECONDS = 60.0
"""How long the end of the process waits for a thread that prepares a take-over."""

SQL = """
CREATE TABLE events (k BIGINT, ts TIMESTAMP) USING parquet OPTIONS (path '{folder}/in');
CREATE STREAMING TABLE counts AS
SELECT k, window(ts, '1 minute') AS w, count(*) AS n
FROM STREAM events WATERMARK ts DELAY OF INTERVAL 1 MINUTE GROUP BY ALL;
"""


class WarmUp:
    """Warms up this process once, in a thread of its own that a take-over does not wait for."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def begin(self, spark: Session) -> None:
        """Begin, unless this process has begun before."""
        if self._thread is None:
            self._thread = threading.Thread(target=_warm_up, args=(spark,), name="millpond-warm-up", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Wait until it has ended: Python aborts if it ends while another thread returns from native code."""
        if self._thread is not None:
            self._thread.join(EXIT_SECONDS)


def _warm_up(spark: Session) -> None:
    with suppress(MillpondError):  # it is only for speed
        run_small_pond(spark)


@explaining()
def run_small_pond(spark: Session) -> int:
    """Read, gather, shuffle, fold and commit three events in a pond of its own; return how many were applied.

    Raises:
        MillpondError: the pond cannot run here.
    """
    with tempfile.TemporaryDirectory(prefix="millpond-warm-up-") as name:
        folder = Path(name)
        (folder / "in").mkdir()
        keys, times = pa.array(range(3), pa.int64()), pa.array([0] * 3, pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"k": keys, "ts": times}), folder / "in" / "events.parquet")
        pond = Pond(spark, folder / "pond", store="memory")
        try:
            pond.load(SQL.format(folder=folder))
            pond.run(once=True)
            return pond.counts()["counts"].whole.applied
        finally:
            pond.end()
