"""State of 1 to 16 patterns over common windows of events of 300 bytes: the experiment on shared window state.

No flags. The workload is `bank.py`'s; every pattern needs whole events, in windows of five minutes that slide by 100
seconds. Where events are kept:
  * `heap`: each pattern has copies of its own, in lists per window (a process of its own, `kept.py`);
  * `rocksdb`: plain Structured Streaming with Spark's RocksDB state store, a streaming query per pattern;
  * `memory + references`, `lmdb + references`, `redis + references`: each event once in that store, patterns have its
    number in lists per window, and read what a window holds when it closes (`kept.py`): the paper's proposal, batched;
  * `pond`: all patterns in one pond; its event log has each event once, and a window is two positions in it;
  * `pond, lmdb view` and `pond, redis view`: the same, its rows served from a store.
Bytes are the most after a step: anonymous memory of the process over that at its start (heap, and the lists of
references), plus data of the Redis server, or pages of the LMDB file; live sections of the pond's log (events, cells,
keys) at the end, plus the view's; SST files of RocksDB, as Spark's metrics tell. A step is a file, 100 seconds of
events; latency is the time of a step, from its events to the results of all windows that it closes (in a view: the
mean of whole steps until the view has them), without the first; per result it is divided by the results.

*Strong* scaling: as many events, whatever the number of patterns; *weak*: events grow with the patterns. Before
anything is measured, answers are compared with Spark's own batch answer. The last line is one JSON object; with the
picture it is kept in `results/`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import reduce
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from bank import SCHEMA, SIZE_US, SLIDE_US, Size, excluded, transactions
from engines import INSTANCES, STATE
from kept import digest_of
from picture import Panel, draw
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from results import FOLDER, keep

from kit.servers.redis_servers import RedisServer
from millpond import Pond, spark_session
from millpond.model.endpoints import Sink
from millpond.state.backends.lmdb import LmdbStore

HEAP, ROCKSDB, POND = "heap", "rocksdb", "pond"
REFERENCES = {f"{store} + references": store for store in ("memory", "lmdb", "redis")}
VIEWS = {POND: "memory", "pond, lmdb view": "lmdb", "pond, redis view": "redis"}
BACKENDS = (HEAP, ROCKSDB, *REFERENCES, *VIEWS)
QUIET = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Memory that a process has freed goes back at once, so that what it has is what it keeps."""


class Sizes(NamedTuple):
    """Events under strong scaling, numbers of patterns; under weak scaling the most patterns have as many events."""

    events: Size
    patterns: tuple[int, ...]
    scalings: tuple[str, ...] = ("strong", "weak")


LARGE = Sizes(Size(48_000, 6, 200), (1, 4, 16))
SMALL = Sizes(Size(600, 3, 5), (1, 2), ("strong",))

CHECKED = 2
"""Patterns whose answers are compared with Spark's, on the events of `SMALL`."""


class Kept(NamedTuple):
    """What a cell measured; `digest` and `results` are those of the answers, where they were looked at."""

    bytes: int
    seconds: float
    results: int = 0
    digest: int = 0


class Bench:
    """Runs cells; `work` is an empty folder."""

    def __init__(self, spark: SparkSession, work: Path) -> None:
        self._spark, self._work, self._number = spark, work, 0

    def run(self, backend: str, patterns: int, source: Path, *, look: bool = False) -> Kept:
        """One cell on transactions in `source`; `look` at a pond's answers, too, which takes time."""
        self._number += 1
        folder = self._work / str(self._number)
        if backend == ROCKSDB:
            return self._rocksdb(patterns, source, folder)
        kind = REFERENCES.get(backend) or VIEWS.get(backend, backend)
        with RedisServer(folder / "redis") if kind == "redis" else nullcontext() as server:
            if backend in VIEWS:
                return self._pond(patterns, source, folder, kind, server, look)
            return _process(kind, patterns, source, server.url if server else str(folder / "events"))

    def expected(self, patterns: int, source: Path) -> tuple[int, int]:
        """Number and digest of Spark's own batch answers, of the windows that have closed."""
        batch = self._spark.read.schema(SCHEMA).parquet(str(source))
        newest = batch.agg({"ts": "max"}).first()[0]
        rows = [
            _digests(pattern, _pattern(batch, pattern).where(f"window.end <= timestamp'{newest}'").toArrow())
            for pattern in range(patterns)
        ]
        return sum(map(len, rows)), reduce(int.__xor__, (one for some in rows for one in some))

    def _stream(self, source: Path) -> DataFrame:
        reader = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(source)).withWatermark("ts", "0 seconds")

    def _rocksdb(self, patterns: int, source: Path, folder: Path) -> Kept:
        provider = "spark.sql.streaming.stateStore.providerClass"
        self._spark.conf.set(provider, STATE[ROCKSDB])
        running = []
        for pattern in range(patterns):
            writer = _pattern(self._stream(source), pattern).writeStream.format("noop").outputMode("append")
            writer = writer.option("checkpointLocation", str(folder / str(pattern)))
            running.append(writer.trigger(availableNow=True).start())
        size, seconds = 0, []
        for query in running:
            query.awaitTermination()
            progress = query.recentProgress
            size += max(one["stateOperators"][0]["customMetrics"]["rocksdbSstFileSize"] for one in progress)
            seconds += [one["durationMs"]["triggerExecution"] / 1e3 for one in progress[1:] if one["numInputRows"]]
        self._spark.conf.unset(provider)
        return Kept(size, fmean(seconds))

    def _pond(
        self, patterns: int, source: Path, folder: Path, kind: str, server: RedisServer | None, look: bool
    ) -> Kept:
        before = _redis_bytes(server) if server else 0
        address = {"lmdb": f"lmdb:{folder / 'view'}", "redis": server.url if server else ""}.get(kind, kind)
        marks: list[float] = []
        with Pond(
            self._spark, folder / "pond", store=address, on_epoch=lambda _epoch: marks.append(perf_counter())
        ) as pond:
            for pattern in range(patterns):
                sink = Sink("memory" if look else "noop")
                pond.add(f"q{pattern}", _pattern(self._stream(source), pattern), sink=sink, serve=kind != "memory")
            pond.run()
            pond.settle(timeout=300.0)
            seconds = (perf_counter() - marks[0]) / max(1, len(marks) - 1)
            live = pond.manifest().sections.values()
            size = sum(section.size for section in live if section.kind in ("segment", "keys", "events"))
            tables = [pond.table(f"q{pattern}") for pattern in range(patterns)] if look else []
        if kind == "lmdb":
            view = LmdbStore(folder / "view", read_only=True)
            size += view.statistics().stored_bytes
            view.close()
        elif server:
            size += _redis_bytes(server) - before
        found = [digest for pattern, table in enumerate(tables) for digest in _digests(pattern, table)]
        return Kept(size, seconds, len(found), reduce(int.__xor__, found, 0))


def _pattern(events: DataFrame, pattern: int) -> DataFrame:
    """Pattern i as a query."""
    window = F.window("ts", f"{SIZE_US // 1_000_000} seconds", f"{SLIDE_US // 1_000_000} seconds")
    chosen = events.where(F.col("kind") != excluded(pattern))
    return chosen.groupBy(window, "customer").agg(F.expr("mode(event, true)").alias("text"))


def _digests(pattern: int, rows: pa.Table) -> list[int]:
    ends = pc.struct_field(rows["window"], "end").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    columns = zip(ends.to_pylist(), rows["customer"].to_pylist(), rows["text"].to_pylist(), strict=True)
    return [digest_of(pattern, end, customer, text.encode()) for end, customer, text in columns]


def _process(kind: str, patterns: int, source: Path, address: str) -> Kept:
    """A cell in a process of its own."""
    words = [sys.executable, str(Path(__file__).with_name("kept.py")), kind, str(patterns), str(source), address]
    environment = {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return Kept(found["heap"] + found["stored"], fmean(found["seconds"][1:]), found["results"], found["digest"])


def _redis_bytes(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.info("memory")["used_memory_dataset"])


Cells = Mapping[tuple[str, str, int], Kept]


def main(sizes: Sizes = LARGE, folder: Path = FOLDER) -> dict[str, float]:
    """Run everything and print it; returns the figures of the last line."""
    spark = spark_session(f"local[{INSTANCES}]", driver_memory="4g")
    most = max(sizes.patterns)
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as scratch:
        bench = Bench(spark, Path(scratch) / "cells")
        checked = _check(bench, transactions(Path(scratch) / "checked", SMALL.events))
        print(f"{'scaling':>7} {'patterns':>8} {'events':>7}  {'events kept in':<20} {'MB':>7} {'MB/pattern':>10}"
              f" {'step s':>7} {'us/result':>9}", flush=True)  # fmt: skip
        found: dict[tuple[str, str, int], Kept] = {}
        for scaling in sizes.scalings:
            for patterns in sizes.patterns:
                events = sizes.events.events * (patterns if scaling == "weak" else most) // most
                size = sizes.events._replace(events=events)
                source = Path(scratch) / f"{events}"
                if not source.exists():
                    transactions(source, size)
                for backend in BACKENDS:
                    if scaling == "weak" and patterns == most:
                        kept = found["strong", backend, patterns]
                    elif (size, patterns) == (SMALL.events, CHECKED) and backend in checked:
                        kept = checked[backend]
                    else:
                        kept = bench.run(backend, patterns, source)
                    # all tell as many results
                    results = kept.results or found[scaling, HEAP, patterns].results
                    found[scaling, backend, patterns] = kept._replace(results=results)
                    per_result = kept.seconds * (size.files - 1) / results * 1e6
                    megabytes = kept.bytes / 1e6
                    print(f"{scaling:>7} {patterns:>8} {events:>7}  {backend:<20} {megabytes:>7.2f}"
                          f" {megabytes / patterns:>10.2f} {kept.seconds:>7.3f} {per_result:>9.0f}",
                          flush=True)  # fmt: skip
    figures = _figures(most, min(sizes.patterns), found)
    keep("shared_state", figures, folder)
    _draw(folder / "shared_state.svg", sizes, found)
    return figures


def _check(bench: Bench, source: Path) -> dict[str, Kept]:
    """Compare answers to `CHECKED` patterns with Spark's; returns the cells."""
    expected = bench.expected(CHECKED, source)
    cells = {backend: bench.run(backend, CHECKED, source, look=True) for backend in (HEAP, *REFERENCES, POND)}
    for backend, kept in cells.items():
        assert (kept.results, kept.digest) == expected, f"{backend} differs from Spark's batch answer"
    print(f"results: {expected[0]} rows of {CHECKED} patterns equal Spark's own batch answer", flush=True)
    return cells


def _figures(most: int, least: int, found: Cells) -> dict[str, float]:
    """Of the most patterns: bytes, also over those of the fewest and over those of the heap; seconds of a step."""
    figures: dict[str, float] = {}
    for backend in BACKENDS:
        name = backend.replace(" + ", "_").replace(", ", "_").replace(" ", "_")
        kept = found["strong", backend, most]
        figures[f"{name}_mb_{most}"] = round(kept.bytes / 1e6, 2)
        figures[f"{name}_growth_{most}"] = round(kept.bytes / found["strong", backend, least].bytes, 2)
        figures[f"{name}_vs_heap_{most}"] = round(kept.bytes / found["strong", HEAP, most].bytes, 3)
        figures[f"{name}_step_s_{most}"] = round(kept.seconds, 3)
    return figures


def _draw(path: Path, sizes: Sizes, found: Cells) -> None:
    counts = sizes.patterns

    def series(scaling: str, value: Callable[[Kept, int], float]) -> dict[str, list[float]]:
        return {backend: [value(found[scaling, backend, count], count) for count in counts] for backend in BACKENDS}

    panels = []
    for scaling in sizes.scalings:
        per_pattern = series(scaling, lambda kept, count: kept.bytes / count / 1e6)
        panels.append(Panel(f"MB per pattern, {scaling} scaling", counts, per_pattern, log=True))
        seconds = series(scaling, lambda kept, _: kept.seconds)
        panels.append(Panel(f"seconds of a step, {scaling} scaling", counts, seconds, log=True))
    draw(path, "State of patterns over common windows, by the number of patterns", panels)


if __name__ == "__main__":
    main()
