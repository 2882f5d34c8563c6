"""A pond in an S3 bucket or in HDFS: another host continues it by its address, and an epoch takes few requests."""

from __future__ import annotations

import json
import os
from collections import Counter
from functools import partial
from pathlib import Path

import duckdb
import pytest
from hdfs_native import Client, WriteOptions
from pyspark.sql import SparkSession

import millpond.control.pond.lifetime as control
from kit.servers.hdfs_server import HdfsServer
from kit.servers.s3_server import S3Server
from millpond import Pond
from millpond.control.wiring import stores_and_followers
from millpond.control.wiring.pond_reader import read_truth
from millpond.control.wiring.stores_and_followers import follow
from millpond.errors import FencedError
from millpond.log.locations.hdfs import hdfs_objects
from millpond.spark.driver.epochs import Epoch

ROWS, KEYS, START = 4_000, 50, 1704067200


def feed(base: Path, first: int, end: int) -> None:
    (base / "in").mkdir(exist_ok=True)
    for file in range(first, end):
        lines = [
            json.dumps({"k": f"k{n % KEYS}", "n": n, "ts": f"2024-01-01T00:{file:02}:{n * 60 // ROWS % 60:02}Z"})
            for n in range(file * ROWS, (file + 1) * ROWS)
        ]
        path = base / "in" / f"{file:03}.json"
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (START + file, START + file))  # Spark reads the oldest first


def feed_hdfs(server: HdfsServer, base: Path, first: int, end: int) -> str:
    """Write the same files there, too; the address of their folder."""
    feed(base, first, end)
    client, folder = Client(server.uri), f"/{base.name}/in"
    for file in range(first, end):
        name, time = f"{file:03}.json", (START + file) * 1000
        with client.create(f"{folder}/{name}", WriteOptions(create_parent=True)) as written:
            written.write((base / "in" / name).read_bytes())
        client.set_times(f"{folder}/{name}", time, time)
    return server.uri + folder


def pond_of(
    spark: SparkSession, base: Path, address: str, host: str, counted: list[Epoch] | None = None,
    out: str = "", source: str = "",
) -> Pond:  # fmt: skip
    def committed(epoch: Epoch) -> None:
        if counted is not None:
            counted.append(epoch)

    pond = Pond(spark, address, instances=2, cache=base / host, on_epoch=committed)
    pond.load(f"""
        CREATE TABLE ev (k STRING, n BIGINT, ts TIMESTAMP) USING json
        OPTIONS (path '{source or base / 'in'}', maxFilesPerTrigger '1');
        CREATE STREAMING TABLE w USING parquet TBLPROPERTIES ('path' = '{out or base}/out/w', 'serve' = 'true') AS
        SELECT k, window(ts, '2 minutes') AS w, count(*) AS c, sum(n) AS s
        FROM STREAM ev WATERMARK ts DELAY OF INTERVAL 5 SECONDS GROUP BY k, window(ts, '2 minutes');
        CREATE STREAMING TABLE none USING console AS SELECT k, n FROM STREAM ev WHERE n < 0;
    """)
    return pond


def check_rows(base: Path, files: int) -> None:
    """Compare the rows with those of a loop over all events; each exists once."""
    windows: dict[tuple[str, int], list[int]] = {}
    for n in range(files * ROWS):
        windows.setdefault((f"k{n % KEYS}", START + n // ROWS // 2 * 120), []).append(n)
    found = duckdb.sql(f"SELECT k, epoch(w.start)::BIGINT, c, s FROM read_parquet('{base}/out/w/part-*.parquet')")
    assert Counter(found.fetchall()) == Counter((k, at, len(of), sum(of)) for (k, at), of in windows.items())


@pytest.fixture
def workers(spark: SparkSession, s3_connected: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, known to Spark's Python workers, too: their environment is that of the JVM, which is older."""
    for name, value in s3_connected.environment.items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    return s3_connected


def test_another_host_continues_a_pond_in_s3_with_the_address_alone(
    spark: SparkSession, workers: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores_and_followers, "SWEEP_SECONDS", 1e6)  # a sweep lists the objects
    address = f"s3://{workers.bucket()}/ponds/a"
    feed(tmp_path, 0, 2)
    first = pond_of(spark, tmp_path, address, "host-a")
    first.run(once=True)
    feed(tmp_path, 2, 3)
    epochs = list[Epoch]()
    with pond_of(spark, tmp_path, address, "host-b", epochs) as second:
        second.run(once=True)
        with pytest.raises(FencedError):
            first.drain()
        first.close()
        feed(tmp_path, 3, 7)
        epochs.clear()
        before = workers.requests()
        second.run(once=True)
        check_few_requests(before, workers.requests(), len(epochs))
        workers.fail(("PUT", "throttled"), ("PUT", "failed after"), ("GET", "throttled"), ("GET", "cut after"))
        second.drain()
        assert second.lookup("w", "k3").document is not None
        assert second.sharing().stored and second.why("w").causes
    check_rows(tmp_path, 7)
    truth, spec = read_truth(address, tmp_path / "host-c")
    assert [query.name for query in spec.all_queries] == ["w", "none"]
    secrets = [workers.environment[name].encode() for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
    records = [truth.log.read(n) or b"" for n in range(truth.manifest.n + 1)]
    assert all(records) and not any(secret in record for record in records for secret in secrets)


def test_another_host_continues_a_pond_in_hdfs_with_the_address_alone(
    spark: SparkSession, hdfs_server: HdfsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "follow", partial(follow, grace_seconds=0.0))
    monkeypatch.setattr(stores_and_followers, "SWEEP_SECONDS", 0.0)
    address = f"{hdfs_server.uri}/{tmp_path.name}/ponds/a"
    source = feed_hdfs(hdfs_server, tmp_path, 0, 2)
    first = pond_of(spark, tmp_path, address, "host-a", out=address, source=source)
    first.run(once=True)
    feed_hdfs(hdfs_server, tmp_path, 2, 4)
    with pond_of(spark, tmp_path, address, "host-b", out=address, source=source) as second:
        second.run(once=True)
        assert "read:ev: read with Arrow in 2 of 2 epochs" in [f"{one.name}: {one.note}" for one in second.status()]
        with pytest.raises(FencedError):
            first.drain()
        first.close()
        second.drain()
        assert second.lookup("w", "k3").document is not None
    pond = hdfs_objects(address)
    (tmp_path / "out" / "w").mkdir(parents=True)
    for name, _ in pond.below("out/w").list():
        pond.get_file(f"out/w/{name}", tmp_path / "out" / "w" / name)
    check_rows(tmp_path, 4)
    files = Client(hdfs_server.uri).list_status(f"/{tmp_path.name}/ponds/a", recursive=True)
    epochs = {status.path for status in files if "/delta/" in status.path and status.isdir}
    assert len(epochs) <= 2, "folders of deltas that pruning has emptied are removed"


def check_few_requests(before: dict[str, int], after: dict[str, int], epochs: int) -> None:
    """Compare the requests of all processes with the bounds that docs/how-to/object-store.md states."""
    spent = {kind: after.get(kind, 0) - before.get(kind, 0) for kind in after}
    assert epochs == 4
    assert spent["LIST"] == spent["DELETE"] == 0, spent
    assert spent["PUT"] <= 2 * epochs + 1, "the record, the cursor of the console, and sometimes a hint"
    assert spent["GET"] <= 10 * epochs and spent["HEAD"] <= 2 * epochs, spent
