"""What Spark reports is read from the JVM once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from millpond.runtime.inspect.timeline import SparkBatch
from millpond.spark.driver.spark_progress import MOST_BATCHES, SparkTimes


class Progress:
    """The report of a batch in the JVM; counts how often it is read."""

    def __init__(self, number: int) -> None:
        self.number, self.read = number, 0

    def batchId(self) -> int:
        return self.number

    def json(self) -> str:
        self.read += 1
        steps = {"addBatch": 20} if self.number % 2 == 0 else {"latestOffset": 1}
        progress = {"batchId": self.number, "timestamp": f"1970-01-01T00:00:{self.number % 60:02}Z"}
        return msgspec.json.encode(progress | {"durationMs": steps}).decode()


def test_batches_are_read_once_and_kept_after_their_query_has_ended() -> None:
    reports = [Progress(number) for number in range(10)]
    query: Any = SimpleNamespace(_jsq=SimpleNamespace(recentProgress=lambda: reports))
    times = SparkTimes(None)  # type: ignore[arg-type]
    assert times.batches(query)[8] == SparkBatch(8_000_000, {"addBatch": 20_000})
    reports += [Progress(10), Progress(11)]
    assert [*times.batches(query)] == [0, 2, 4, 6, 8, 10]
    assert [one.read for one in reports] == [1] * 8 + [1, 2, 1, 1], "of an idle batch, no time is kept"
    reports[:] = [Progress(number) for number in range(0, 1000, 2)]
    times.batches(query)
    assert [*times.batches(None)] == [*range(1000 - 2 * MOST_BATCHES, 1000, 2)]
