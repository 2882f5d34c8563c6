"""Creates the advisers of a driver, and passes each committed epoch to them; they decide how later epochs run."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from millpond.clock import lap_us
from millpond.model.stream import Stream
from millpond.reconfigure.budgets import Budgets
from millpond.reconfigure.change_queue import Make
from millpond.reconfigure.late_functions import LateFunctions
from millpond.runtime.scheduling.committed_epoch import Adviser, CommittedEpoch
from millpond.runtime.scheduling.epoch_size import Pace
from millpond.runtime.scheduling.idle_partitions import IdleWatch
from millpond.runtime.scheduling.small_epochs import SmallEpochs
from millpond.spark.catalyst.user_scalars import late_calls
from millpond.spark.driver.direct_epochs import Direct
from millpond.spark.reading.arrow_files import ArrowFiles
from millpond.spark.session.batch_limits import BatchLimits
from millpond.spark.session.hosts import is_local
from millpond.spark.sources.text_parsing_choice import TextReading


class Advisers:
    """The advisers of one driver; each attribute is one of them.

    - `idle`: which source partitions the watermarks do not wait for.
    - `direct`: which epochs run without the shuffle.
    - `small`: which epochs one task gathers and folds.
    - `files`: which epochs read files without Spark's reader; it learns from attempts, not from commits.
    - `texts`: which streams' JSON texts the gather parses; it learns from attempts, not from commits.
    - `batches`: how many rows an Arrow batch may have.
    - `budgets`: which queries exceed their budgets.
    - `pace`: how many records an epoch reads.
    - `functions`: which user functions exceed their deadlines.
    """

    def __init__(self, spark: SparkSession, streams: Sequence[Stream]) -> None:
        self.idle = IdleWatch(streams, lap_us())
        self.direct, self.batches, self.small = Direct(), BatchLimits(spark), SmallEpochs(is_local(spark))
        self.files, self.texts = ArrowFiles(spark), TextReading()
        self.budgets, self.pace, self.functions = Budgets(), Pace(), LateFunctions(late_calls)
        self._all: tuple[Adviser, ...] = (
            self.idle, self.direct, self.small, self.batches, self.budgets, self.pace, self.functions
        )  # fmt: skip

    def committed(self, epoch: CommittedEpoch) -> None:
        """Pass a committed epoch to every adviser."""
        for adviser in self._all:
            adviser.committed(epoch)

    def changes(self) -> list[Make]:
        """The changes of queries that advisers request."""
        return [*self.budgets.changes(), *self.functions.changes()]
