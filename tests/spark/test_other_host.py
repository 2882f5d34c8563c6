"""A pond goes on, exactly once, on hosts that have nothing of it but `log`, `delta` and `pond.id`, for each source.

The folder is emptied of everything else between two runs. Kafka is in `test_kafka.py`, damage in `test_repair.py`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from kit.inputs.plugin_packages import install_plugin
from millpond import Pond
from millpond.errors import SparkError
from millpond.model.endpoints import GROUP
from millpond.spark.driver.epochs import Epoch

pytestmark = pytest.mark.spark

NUMBERS = """
from millpond.model.endpoints import SourceKind

def register(spark):
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Reader(DataSourceStreamReader):
        def __init__(self, path):
            self.path = path

        def initialOffset(self):
            return {"n": 0}

        def latestOffset(self):
            with open(self.path) as file:
                return {"n": int(file.read())}

        def partitions(self, start, end):
            return [InputPartition((start["n"], end["n"]))]

        def read(self, partition):
            first, end = partition.value
            return iter([(n,) for n in range(first, end)])

    class Numbers(DataSource):
        @classmethod
        def name(cls):
            return "numbers"

        def schema(self):
            return "n BIGINT"

        def streamReader(self, schema):
            return Reader(self.options["path"])

    spark.dataSource.register(Numbers)

KIND = SourceKind(name="numbers", options=("path",), prepare="millpond_numbers:register")
"""

QUERIES = """
    CREATE TABLE ev (n BIGINT) USING json OPTIONS (path '{base}/ev', maxFilesPerTrigger '1');
    CREATE TABLE newest (n BIGINT) USING json
    OPTIONS (path '{base}/newest', latestFirst 'true', maxFilesPerTrigger '2');
    CREATE STREAMING TABLE files USING parquet TBLPROPERTIES ('path' = '{base}/out/files') AS
    SELECT n FROM STREAM ev UNION ALL SELECT n FROM STREAM newest;
"""

OTHERS = """
    CREATE TABLE clock USING rate OPTIONS (rowsPerSecond '1000');
    CREATE STREAMING TABLE ticks USING parquet TBLPROPERTIES ('path' = '{base}/out/ticks') AS
    SELECT value AS n FROM STREAM clock;
    CREATE TABLE own (n BIGINT) USING numbers OPTIONS (path '{base}/numbers');
    CREATE STREAMING TABLE numbers USING parquet TBLPROPERTIES ('path' = '{base}/out/numbers') AS
    SELECT n FROM STREAM own;
"""


class HostLost(Exception):
    """Ends a driver in the middle of its work."""


def put(folder: Path, n: int, at: int) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / f"{n} %.json"
    path.write_text(json.dumps({"n": n}))
    os.utime(path, (at, at))


def emitted(base: Path, query: str) -> Counter[int]:
    return Counter(n for (n,) in duckdb.sql(f"SELECT n FROM read_parquet('{base}/out/{query}/part-*')").fetchall())


@pytest.fixture
def compacted_often(spark: SparkSession) -> Iterator[None]:
    name = "spark.sql.streaming.fileSource.log.compactInterval"
    spark.conf.set(name, "3")
    yield
    spark.conf.unset(name)


def leave_the_host(base: Path) -> None:
    """Remove what another host does not have, or need not have."""
    for derived in ("spark", "manifest", "view", "log/_last", "log/_bare"):
        path = base / "pond" / derived
        path.unlink(missing_ok=True) if path.is_file() else shutil.rmtree(path, ignore_errors=True)


@pytest.mark.usefixtures("compacted_often")
def test_every_host_reads_the_files_that_no_other_has_read(spark: SparkSession, tmp_path: Path) -> None:
    count = 0

    def feed(files: int) -> None:
        nonlocal count
        for n in range(count, count + files):
            # some are older than files that were read
            put(tmp_path / ("ev", "newest")[n % 2], n, 1_700_000_000 - 60 * (n % 5) + n)
        count += files

    epochs = 0

    def fail(_epoch: Epoch) -> None:
        nonlocal epochs
        epochs += 1
        if epochs % 2 == 0:
            feed(2)  # while the lead changes
            raise HostLost

    for host in range(7):
        leave_the_host(tmp_path)
        feed(4)
        lost, epochs = host % 2 == 1, 0
        with Pond(
            spark, tmp_path / "pond", instances=1, cache=tmp_path / f"cache-{host}", on_epoch=fail if lost else None
        ) as pond:  # fmt: skip
            pond.load(QUERIES.format(base=tmp_path))
            with pytest.raises(SparkError, match="Python Proxy") if lost else nullcontext():
                pond.run(once=True)
    assert emitted(tmp_path, "files") == Counter(range(count))
    assert count == 7 * 4 + 3 * 2


def test_sources_that_are_no_files_continue(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    kinds = {"numbers": "millpond_numbers:KIND"}
    install_plugin(tmp_path / "site", monkeypatch, GROUP, kinds, millpond_numbers=NUMBERS)
    for host in range(3):
        leave_the_host(tmp_path)
        (tmp_path / "numbers").write_text(str(5 * host + 5))
        with Pond(spark, tmp_path / "pond", instances=1, cache=tmp_path / f"cache-{host}") as pond:
            pond.load(OTHERS.format(base=tmp_path))
            pond.run(once=True)
    assert emitted(tmp_path, "numbers") == Counter(range(15))
    ticks = emitted(tmp_path, "ticks")
    assert ticks and ticks == Counter(range(max(ticks) + 1)), "`rate` knows when it began"
