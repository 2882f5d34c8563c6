"""Replaces the running streaming query by one that reads more and that starts during the old query's last epoch.

Spark fixes what a query reads when it starts, so a change that needs other columns needs another query, and starting
it takes as long as an epoch. The successor starts while an epoch runs, on a copy of the checkpoint in which the batch
of that epoch is planned but not committed. So its first callback is for that same batch. In this callback it waits
until the epoch and the change are in the log; then it continues with the next batch.

While it waits, its checkpoint has a query id of its own, because two queries with one id cannot run. When the successor
takes over, its checkpoint receives the log's query id atomically.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from millpond.faults import FaultError, reached
from millpond.runtime.task.column_layout import ReadLayout
from millpond.spark.driver.checkpoint import copy_checkpoint, query_id, set_query_id
from millpond.spark.reading.arrow_files import Readers, by_tasks
from millpond.spark.session.batch_rows import BatchRows, Call, calling
from millpond.spark.sources.file_tables import RefreshedTables

_START_S = 10.0
"""How long the end of an epoch waits at most for its successor to start, in seconds; a start usually takes 0.1 s."""


class Reading(NamedTuple):
    """What a streaming query reads.

    - `frame`, and `layout`, which gives the positions of its columns.
    - `lookups`: the tables in the frame whose lists of files are refreshed.
    - `limits`: by stream, the largest number of records that its first epoch reads.
    - `readers`: how gather tasks can read the files of each source, or why Spark reads it.
    """

    frame: DataFrame
    layout: ReadLayout
    tables: RefreshedTables
    limits: Mapping[str, int] = {}
    readers: Readers = MappingProxyType({})


class Stopped(Exception):
    """Raised in Spark's callback to leave its batch uncommitted.

    The next driver then runs the batch, or this driver does so when it reads other columns.
    """


def started(reading: Reading, call: Call, checkpoint: Path, *, once: bool) -> StreamingQuery:
    """Start a streaming query from a checkpoint, over all existing input (`once`) or until it is stopped.

    The checkpoint is on this host, whatever the default file system of Hadoop is.
    """
    writer = calling(reading.frame, call, by_tasks(reading.readers))
    writer = writer.option("checkpointLocation", f"file:{checkpoint.absolute()}")
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")
    return writer.start()


class Successor:
    """The streaming query that reads `reading` and is to replace the query that `checkpoint` belongs to.

    It starts immediately, in its own thread. The caller must call `decide` later.
    """

    def __init__(self, reading: Reading, checkpoint: Path, call: Call, *, once: bool) -> None:
        self.reading, self.checkpoint, self._before = reading, checkpoint, checkpoint
        self.query: StreamingQuery | None = None
        self._call, self._once, self._goes = call, once, False
        self._begun, self._decided = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="millpond-successor", daemon=True)
        self._thread.start()

    def takes_over(self) -> bool:
        """Make its checkpoint the one that continues the log, if the query has started and is active; return whether it
        is.
        """
        if not self._begun.wait(_START_S) or self.query is None or not self.query.isActive:
            return False
        set_query_id(self.checkpoint, query_id(self._before))
        reached("read.handed")
        self._goes = True
        return True

    def decide(self) -> None:
        """Let the query continue if it has taken over; otherwise end it and remove its checkpoint."""
        self._decided.set()

    def join(self) -> None:
        """Wait until the thread has ended, after a successor that did not take over."""
        self._thread.join(_START_S)

    def _work(self) -> None:
        try:
            self.checkpoint = copy_checkpoint(self._before)
            reached("read.copied")
            self.query = started(self.reading, self._called, self.checkpoint, once=self._once)
        except (PySparkException, Py4JError, ConnectionError, OSError, FaultError):
            pass  # the running query then ends as usual, and the query after it reports the failure
        finally:
            self._begun.set()
        self._decided.wait()
        if not self._goes:
            if self.query is not None:
                with suppress(PySparkException, Py4JError, ConnectionError):
                    self.query.stop()
            if self.checkpoint != self._before:
                shutil.rmtree(self.checkpoint, ignore_errors=True)

    def _called(self, rows: BatchRows, number: int) -> None:
        self._decided.wait()
        if not self._goes:
            raise Stopped
        self._call(rows, number)


class Succession:
    """Replaces streaming queries within one run: keeps the reading offered for the next epoch and the new query."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._offered: Reading | None = None
        self._newest: Successor | None = None
        self._took_over: Successor | None = None

    def offer(self, reading: Reading) -> None:
        """Announce what must be read after a change that is about to be requested."""
        with self._gate:
            self._offered = reading

    def begin(self, checkpoint: Path, call: Call, *, once: bool) -> Successor | None:
        """Start a successor if a reading was offered since the last call; otherwise return None."""
        with self._gate:
            offered, self._offered = self._offered, None
        if offered is not None:
            self._newest = Successor(offered, checkpoint, call, once=once)
            return self._newest
        return None

    def note_takeover(self, successor: Successor) -> None:
        """Note that this successor has taken over."""
        with self._gate:
            self._took_over = successor

    @property
    def has_taken_over(self) -> bool:
        """Whether a successor has taken over that `take` has not returned yet."""
        return self._took_over is not None

    def take(self) -> StreamingQuery | None:
        """Return the query that has taken over, once; otherwise None."""
        with self._gate:
            successor, self._took_over = self._took_over, None
        return None if successor is None else successor.query

    def end(self) -> None:
        """End the run: wait for the thread of a successor that did not take over."""
        with self._gate:
            self._offered = self._took_over = None
        if self._newest is not None:
            self._newest.join()
