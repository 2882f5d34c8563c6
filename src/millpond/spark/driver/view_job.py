"""Updates the view in a small Spark job, with one task per instance, so that rows do not pass through the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millpond.followers.view.shared_view import Caught, Share, catch_up, owners_of
from millpond.log.places.address import address_of
from millpond.spark.session.failures import explained
from millpond.spark.session.task_hosts import TaskHosts, on_hosts
from millpond.spark.session.worker import VersionChecked, worker_task
from millpond.state.ports.files import check_sees
from millpond.state.ports.store import BucketStore


class _CatchUp(VersionChecked):
    """Applies the log to the view; the input rows of a task are positions of its instances among those that own
    buckets.
    """

    def __init__(self, share: Share, pond: str, open_store: Callable[[Share], BucketStore]) -> None:
        self._share, self._pond, self._open_store = share, pond, open_store

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        owners = owners_of(self._share)
        with worker_task():
            check_sees(address_of(self._share.address), self._pond)
            for place in (place for batch in batches for place in batch.column(0).to_pylist()):
                caught = catch_up(self._share, owners[place], self._open_store(self._share))
                yield pa.RecordBatch.from_arrays([pa.array([msgspec.json.encode(caught)])], names=["caught"])


def settled(
    spark: SparkSession, share: Share, pond: str, open_store: Callable[[Share], BucketStore], hosts: TaskHosts
) -> list[Caught]:  # fmt: skip
    """Run `catch_up` in one task per instance and return the results; `open_store` must be importable by workers.

    Raises:
        HostError: an executor's host does not see the pond's folder.
        MillpondError: the log is damaged, or Spark failed.
    """
    owners, catching = owners_of(share), _CatchUp(share, pond, open_store)
    tasks = len(owners)
    try:
        places = on_hosts(spark.range(0, tasks, 1, tasks), hosts.chosen(owners))
        table = places.mapInArrow(catching, "caught binary").toArrow()
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise explained(error) from error
    return [msgspec.json.decode(caught, type=Caught) for caught in table.column(0).to_pylist()]
