"""A dropped query's bytes are removed from the disk, also while no events arrive, and the pond continues."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import millpond.control.pond.lifetime as control
from millpond import Pond
from millpond.control.wiring.stores_and_followers import follow
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.manifest import Manifests, load
from millpond.log.port import Log
from millpond.model.endpoints import Sink, Source
from millpond.model.stream import Field, Stream

FIELDS = (Field("ts", "timestamp"), Field("k", "bigint"))
MANY = """
    SELECT k, window(ts, '1 hour') AS w, count(*) AS n FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 0 SECONDS
    GROUP BY ALL
"""
FEW = "SELECT ts, k FROM STREAM tx WHERE k < 3"
ROWS = 30_000


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "follow", functools.partial(follow, grace_seconds=1.0))


def put(source: Path, numbers: range) -> None:
    for number in numbers:
        times = [1_700_000_000_000_000 + number * ROWS + i for i in range(ROWS)]
        table = pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC")), "k": pa.array(range(ROWS))})
        pq.write_table(table, source / f"{number}.parquet")
        os.utime(source / f"{number}.parquet", (1_700_000_000 + number,) * 2)  # the order in which they are read


def on_disk(folder: Path) -> int:
    files = (path for name in ("delta", "log") for path in (folder / name).rglob("*"))
    return sum(path.stat().st_size for path in files if path.is_file())


def test_state_of_dropped_queries_is_deleted_while_the_pond_is_idle(spark: SparkSession, tmp_path: Path) -> None:
    source, folder = tmp_path / "in", tmp_path / "pond"
    source.mkdir()
    stream = Stream("tx", FIELDS, Source("parquet", (("maxFilesPerTrigger", "1"), ("path", str(source)))))
    put(source, range(3))
    with Pond(spark, folder, instances=2) as pond:
        pond.stream(stream)
        pond.add("few", FEW, sink=Sink("parquet", str(tmp_path / "out")))
        pond.add("many", MANY)
        pond.run(once=True)
        full = on_disk(folder)
        assert full > 300_000
        pond.drop("many")
        until = time.monotonic() + 120
        while on_disk(folder) > full / 10 and time.monotonic() < until:
            time.sleep(0.2)
        assert on_disk(folder) < full / 10
        assert [type(one.change).__name__ for one in pond.history()] == ["Drop"]
    put(source, range(3, 4))
    before = load(Log(LocalFolder(folder / "log")), Manifests(LocalFolder(folder / "no-manifests")))
    with Pond(spark, folder, instances=2) as pond:
        pond.run(drain=True)
        assert pond.manifest().epoch_n > before.n
    found = [row["k"] for part in (tmp_path / "out").glob("*.parquet") for row in pq.read_table(part).to_pylist()]
    assert sorted(found) == [0] * 4 + [1] * 4 + [2] * 4
