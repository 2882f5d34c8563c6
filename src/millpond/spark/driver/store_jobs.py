"""Writes rows into stores in small Spark jobs, with one task per instance, so that they do not pass through the driver.

One job updates the view, another one writes the rows of a sink `redis`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from millpond.followers.sinks.redis_rows import upsert_own
from millpond.followers.upserts import Upsert, Upserted
from millpond.followers.view.shared_view import Caught, Share, catch_up, owners_of
from millpond.log.locations.address import address_of
from millpond.runtime.joins.lookup_rows import OpenRows
from millpond.spark.session.arrow_rows import ArrowRows
from millpond.spark.session.failures import explained
from millpond.spark.session.task_hosts import TaskHosts
from millpond.spark.session.worker import VersionChecked, worker_task
from millpond.state.ports.files import check_sees
from millpond.state.ports.store import BucketStore

Work: TypeAlias = Callable[[int], msgspec.Struct]
"""The work of one instance; it must be importable by workers. Its result is sent to the driver as JSON."""

DONE = StructType([StructField("done", BinaryType())])


class _PerInstance(VersionChecked):
    """Does the work of instances; the input rows of a task are positions in `instances`."""

    def __init__(self, work: Work, instances: Sequence[int], address: str, pond: str) -> None:
        self._work, self._instances, self._address, self._pond = work, instances, address, pond

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with worker_task():
            check_sees(address_of(self._address), self._pond)
            for place in (place for batch in batches for place in batch.column(0).to_pylist()):
                done = self._work(self._instances[place])
                yield pa.RecordBatch.from_arrays([pa.array([msgspec.json.encode(done)])], names=["done"])


def update_view(
    spark: SparkSession, share: Share, pond: str, open_store: Callable[[Share], BucketStore], hosts: TaskHosts
) -> list[Caught]:  # fmt: skip
    """Bring the view up to date by `catch_up`, in one task per instance; return the results.

    `open_store` must be importable by workers.

    Raises:
        HostError: an executor's host does not see the pond's folder.
        MillpondError: the log is damaged, or Spark failed.
    """
    owners = owners_of(share)
    doing = _PerInstance(partial(_catch_up, share, open_store), owners, share.address, pond)
    return [msgspec.json.decode(done, type=Caught) for done in _run(spark, doing, hosts.chosen(owners), len(owners))]


def _catch_up(share: Share, open_store: Callable[[Share], BucketStore], instance: int) -> Caught:
    return catch_up(share, instance, open_store(share))


def upsert_rows(spark: SparkSession, upsert: Upsert, opens: OpenRows, hosts: TaskHosts) -> list[Upserted] | None:
    """Write rows by `upsert_own`, in one task per instance; return the results, or None if no instance prefers a host.

    Raises:
        HostError: an executor's host does not see the pond's folder.
        MillpondError: the log is damaged, or Spark failed.
    """
    instances = sorted(set(upsert.owners.buckets))
    preferred = hosts.chosen(instances)
    if not any(preferred):
        return None
    doing = _PerInstance(partial(upsert_own, upsert, opens=opens), instances, upsert.owners.address, upsert.pond)
    return [msgspec.json.decode(done, type=Upserted) for done in _run(spark, doing, preferred, len(instances))]


def _run(spark: SparkSession, doing: _PerInstance, hosts: Sequence[str], tasks: int) -> list[bytes]:
    try:
        places = ArrowRows.numbers(spark, tasks, tasks).on(hosts)
        return [done for (done,) in places.map(doing, DONE).collect()]
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise explained(error) from error
