"""A view in Redis beside one in LMDB, on one machine: what serving costs, and how fast a lost view comes back.

No flags; needs a `redis-server`. The last line is one JSON object, kept in `results/`. `redis_vs_lmdb`: throughput of
the canonical benchmark's eight queries, all served, with Redis over that with LMDB, each until its view has every row
(the faster of two passes, in turn). `redis_tail_s`, `lmdb_tail_s`: how many of these came after the last commit.
`read_vs_redis`: throughput with Redis while another program looks up a thousand rows a second, one by one, over that
without; `read_p50_ms`, `read_p99_ms`: how long its look-ups took, with the pond at work on all cores.
`view_mb`: keys and documents of a larger view; `redis_rebuild_mb_s`, `lmdb_rebuild_mb_s`: those per second when it was
lost, from opening the pond until every row is back.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from engines import INSTANCES, aggregations, stream_of
from pyspark.sql import SparkSession
from results import FOLDER, keep
from workload import LARGE, Size, transactions, windows

from kit.servers.redis_servers import RedisServer
from millpond import Pond, spark_session
from millpond.control.wiring.pond_reader import read_truth
from millpond.control.wiring.stores_and_followers import open_store
from millpond.errors import StoreError
from millpond.model.endpoints import Sink

QUERIES = 8
VIEW = Size(3_000_000, 6, 500_000)
"""A view of about 1 GB: half a million customers in each of the eight queries."""

PASSES = 2
LONG_SECONDS = 3600.0


class Pass(NamedTuple):
    """Seconds from the first event until the view has every row, and how many of them came after the last commit."""

    seconds: float
    tail: float


def main(size: Size = LARGE, view: Size = VIEW, results: Path = FOLDER) -> dict[str, float]:
    """Run everything and print it; returns the figures of the last line."""
    spark = spark_session(f"local[{INSTANCES}]", driver_memory="4g")
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as scratch:
        work = Path(scratch)
        with RedisServer(work / "redis") as server:
            _throughput(spark, transactions(size), size.customers, work / "pond", server, figures)
            server.flush()
            _rebuild(spark, transactions(view), work / "large", server, figures)
    figures = {name: round(value, 3) for name, value in figures.items()}
    keep("store_view", figures, results)
    return figures


def _throughput(
    spark: SparkSession, source: Path, customers: int, folder: Path, server: RedisServer, figures: dict[str, float]
) -> None:
    _pass(spark, source, folder, "lmdb")  # warms the JVM and the workers
    best: dict[str, Pass] = {}
    for _ in range(PASSES):
        for name, store in (("lmdb", "lmdb"), ("redis", server.url), ("read", server.url)):
            server.flush()
            with _reader(server, customers, figures) if name == "read" else nullcontext():
                done = _pass(spark, source, folder, store)
            print(f"{name:6} {done.seconds:.2f} s, {done.tail:.2f} s of them after the last commit", flush=True)
            best[name] = min(done, best.get(name, done))
    figures["redis_vs_lmdb"] = best["lmdb"].seconds / best["redis"].seconds
    figures["read_vs_redis"] = best["redis"].seconds / best.pop("read").seconds
    figures |= {f"{name}_tail_s": done.tail for name, done in best.items()}


@contextmanager
def _reader(server: RedisServer, customers: int, figures: dict[str, float]) -> Iterator[None]:
    """Another program reads meanwhile; how it fared is added to the figures."""
    words = [sys.executable, str(Path(__file__).with_name("readers.py")), server.url, str(customers), str(QUERIES)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stdin is not None and running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        print("go", file=running.stdin, flush=True)
        yield
        print("end", file=running.stdin, flush=True)
        reads = json.loads(running.stdout.readline())
    assert reads["found"] > 0, "nothing was there to be read"
    print(f"read   {reads['reads']:,} look-ups, {reads['found']:,} rows, p99 {reads['p99_ms']:.1f} ms", flush=True)
    figures |= {"read_p50_ms": reads["p50_ms"], "read_p99_ms": reads["p99_ms"]}


def _pass(spark: SparkSession, source: Path, folder: Path, store: str) -> Pass:
    shutil.rmtree(folder, ignore_errors=True)
    last = [0.0]
    with _pond(spark, source, folder, store, lambda _epoch: last.append(perf_counter())) as running:
        running.open()
        began = perf_counter()
        _run(running)
        ended = perf_counter()
    return Pass(ended - began, ended - last[-1])


def _rebuild(spark: SparkSession, source: Path, folder: Path, server: RedisServer, figures: dict[str, float]) -> None:
    with _pond(spark, source, folder, "lmdb") as running:
        _run(running, drain=True)
    figures["view_mb"] = size = _view_bytes(folder) / 1e6
    shutil.rmtree(folder / "view")
    for name, store in (("redis", server.url), ("lmdb", "lmdb")):
        with _pond(spark, source, folder, store) as running:
            began = perf_counter()
            running.open()
            running.settle(LONG_SECONDS)
            figures[f"{name}_rebuild_mb_s"] = speed = size / (perf_counter() - began)
        print(f"{name:6} a lost view of {size:,.1f} MB is back at {speed:.1f} MB/s", flush=True)


def _pond(
    spark: SparkSession, source: Path, folder: Path, store: str, committed: Callable[[object], None] | None = None
) -> Pond:
    made = Pond(spark, folder, store=store, on_epoch=committed)
    stream = stream_of(spark, source)
    for number, make in enumerate(aggregations(windows(QUERIES))):
        made.add(f"q{number}", make(stream), sink=Sink("noop"), serve=True)
    return made


def _run(running: Pond, drain: bool = False) -> None:
    try:
        running.run(drain=drain)
    except StoreError:  # a run waits a minute for the view; here all of it counts
        running.settle(LONG_SECONDS)


def _view_bytes(folder: Path) -> int:
    truth, spec = read_truth(folder)
    store = open_store("lmdb", truth, spec.buckets, read_only=True)
    try:
        found = (store.scan(bucket, query.name) for query in spec.queries for bucket in range(spec.buckets))
        return sum(sum(map(len, rows.keys)) + sum(map(len, rows.values)) for rows in found)
    finally:
        store.close()


if __name__ == "__main__":
    main()
