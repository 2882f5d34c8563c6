"""Replaces the running streaming query by one that reads more, started beside the last epoch of the old one.

Spark fixes what a query reads when it starts, so a change that needs other columns needs another query, and starting
it takes as long as an epoch. The successor starts while an epoch runs, on a copy of the checkpoint in which the batch
of that epoch is planned but not committed. So its first callback is for that very batch. There it waits until the
epoch and the change are in the log; then it continues with the next batch.

While it waits, its checkpoint has an id of its own, because two queries of one id cannot run and no other process may
take it for the checkpoint that continues the log. It receives the log's id when it takes over, in one step.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from millpond.faults import FaultError, reached
from millpond.runtime.task.column_layout import ReadLayout
from millpond.spark.driver.checkpoint import next_checkpoint, query_id, set_query_id
from millpond.spark.driver.choose_shuffle import Between
from millpond.spark.sources.file_tables import Lookups

Call = Callable[[DataFrame, int], None]
"""What Spark calls for each batch, with its number."""

_START_S = 10.0
"""So long the end of an epoch waits for a successor to be started, which takes a tenth of a second."""


class Reading(NamedTuple):
    """What is read: the frame, where its columns stand, and the tables in it that are listed anew; `between` reads
    again, as a batch, what is between two offsets, if that is asked for; `limits`: most records of streams in an epoch.
    """

    frame: DataFrame
    layout: ReadLayout
    lookups: Lookups
    between: Between | None = None
    limits: Mapping[str, int] = {}


class Stopped(Exception):
    """Leaves Spark's callback so that the batch it was called for stays unread, to be run by the next driver, or by
    this one when it reads other columns.
    """


def started(frame: DataFrame, call: Call, checkpoint: Path, *, once: bool) -> StreamingQuery:
    """A streaming query from a checkpoint on: over all that is there (`once`), or until it is stopped."""
    writer = frame.writeStream.foreachBatch(call).option("checkpointLocation", str(checkpoint))
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")
    return writer.start()


class Successor:
    """The query that reads `reading` after the one whose `checkpoint` this is.

    It begins at once, in a thread of its own; `decide` must follow.
    """

    def __init__(self, reading: Reading, checkpoint: Path, call: Call, *, once: bool) -> None:
        self.reading, self.checkpoint, self._before = reading, checkpoint, checkpoint
        self.query: StreamingQuery | None = None
        self._call, self._once, self._goes = call, once, False
        self._begun, self._decided = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="millpond-successor", daemon=True)
        self._thread.start()

    def takes_over(self) -> bool:
        """Make its checkpoint the one that continues the log, if it has started and lives."""
        if not self._begun.wait(_START_S) or self.query is None or not self.query.isActive:
            return False
        set_query_id(self.checkpoint, query_id(self._before))
        reached("read.handed")
        self._goes = True
        return True

    def decide(self) -> None:
        """Let it go on if it has taken over; otherwise it ends, and its checkpoint goes."""
        self._decided.set()

    def join(self) -> None:
        """Wait until one that has not taken over has ended."""
        self._thread.join(_START_S)

    def _work(self) -> None:
        try:
            self.checkpoint = next_checkpoint(self._before)
            reached("read.copied")
            self.query = started(self.reading.frame, self._called, self.checkpoint, once=self._once)
        except (PySparkException, Py4JError, ConnectionError, OSError, FaultError):
            pass  # the query at work then ends as ever, and whatever is wrong is told by the one that follows
        finally:
            self._begun.set()
        self._decided.wait()
        if not self._goes:
            if self.query is not None:
                with suppress(PySparkException, Py4JError, ConnectionError):
                    self.query.stop()
            if self.checkpoint != self._before:
                shutil.rmtree(self.checkpoint, ignore_errors=True)

    def _called(self, frame: DataFrame, number: int) -> None:
        self._decided.wait()
        if not self._goes:
            raise Stopped
        self._call(frame, number)


class Succession:
    """The queries of one run, each in the place of another: `offered` for the next epoch, and the one that has come."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._offered: Reading | None = None
        self._newest: Successor | None = None
        self._came: Successor | None = None

    def offer(self, reading: Reading) -> None:
        """What is to be read from a change on that is about to be asked."""
        with self._gate:
            self._offered = reading

    def begin(self, checkpoint: Path, call: Call, *, once: bool) -> Successor | None:
        """A successor that reads what was offered, if anything was since the last."""
        with self._gate:
            offered, self._offered = self._offered, None
        if offered is not None:
            self._newest = Successor(offered, checkpoint, call, once=once)
            return self._newest
        return None

    def came(self, successor: Successor) -> None:
        """It has taken over."""
        with self._gate:
            self._came = successor

    @property
    def has_come(self) -> bool:
        """Whether `take` has something."""
        return self._came is not None

    def take(self) -> StreamingQuery | None:
        """The query that has taken over, told once."""
        with self._gate:
            came, self._came = self._came, None
        return None if came is None else came.query

    def end(self) -> None:
        """The run has ended; wait for what has not taken over."""
        with self._gate:
            self._offered = self._came = None
        if self._newest is not None:
            self._newest.join()
