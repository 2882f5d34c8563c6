"""What the shuffle costs where a topic is partitioned by the key of the queries: with it, and without (PARTITIONED BY).

    python benchmarks/keyed_topic.py [--events 500000] [--rounds 3]

A topic of two partitions, written as Kafka's own producers do, one query per key and minute, two instances. Each round
reads the topic with the shuffle and without, in turns; the first epoch is left out. `cpu` is processor time
of Spark's JVM and its Python workers per epoch, which neighbours on the machine do not change much; `seconds` is the
time of an epoch's job, which they do. Both are medians; `moved` are bytes of packets per epoch. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from results import FOLDER, keep

from kit.servers.kafka_server import KafkaServer
from millpond import Pond, spark_session
from millpond.connections import VARIABLE
from millpond.model.endpoints import Sink

KEYS = (10_000, 1_000_000)
EPOCHS = 5
TABLE = """
    CREATE TABLE tx (id BIGINT, ts TIMESTAMP, k STRING, v BIGINT) USING kafka
    OPTIONS (subscribe '{topic}', format 'csv', startingOffsets 'earliest', maxOffsetsPerTrigger {most}) {by};
"""
QUERY = """
    SELECT k, window(ts, '1 minute') AS w, count(*) AS n, sum(v) AS total, max(v) AS most
    FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 5 SECONDS GROUP BY ALL
"""


class Pass(NamedTuple):
    """One run over a topic: per epoch processor seconds, job seconds, megabytes of packets; epochs without shuffle."""

    cpu: float
    seconds: float
    moved: float
    direct: int


def main(argv: Sequence[str] | None = None, results: Path = FOLDER) -> dict[str, float]:
    """Run all sizes; returns the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=500_000, help="events per epoch")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as held:
        work = Path(held)
        spark = spark_session("local[2]", app_name="keyed-topic", driver_memory="2g")
        with KafkaServer(work / "kafka") as server:
            (work / "connections.json").write_text(json.dumps({"bench": {"servers": server.servers}}))
            os.environ[VARIABLE] = str(work / "connections.json")
            for keys in KEYS:
                produce(server, f"k{keys}", keys, options.events)
                if keys == KEYS[0]:  # what Java compiles first would be the first pass's cost
                    measured(spark, work / "warm", keys, options.events, 1)
                found |= measured(spark, work, keys, options.events, options.rounds)
        spark.stop()
    found["events"] = options.events
    keep("keyed_topic", found, results)
    return found


def produce(server: KafkaServer, topic: str, keys: int, events: int) -> None:
    """`EPOCHS` times that number of events, ten seconds of event time each."""
    server.create(topic, 2)
    producer = Producer(server.client(**{
        "partitioner": "murmur2_random", "linger.ms": 50, "queue.buffering.max.messages": 1_000_000,
    }))  # fmt: skip
    dice, number = np.random.default_rng(1), 0
    for epoch in range(EPOCHS):
        chosen, values = dice.integers(0, keys, events).tolist(), dice.integers(1, 1000, events).tolist()
        for i, (key, value) in enumerate(zip(chosen, values, strict=True)):
            time = epoch * 10 + i * 10 // events
            name = f"customer-{key}".encode()
            line = f"{number},2023-11-14 22:{time // 60:02}:{time % 60:02},customer-{key},{value}"
            producer.produce(topic, line.encode(), name)
            number += 1
            if number % 10_000 == 0:
                producer.poll(0)
                while len(producer) > 500_000:
                    producer.poll(0.1)
    assert producer.flush(120) == 0


def measured(spark: SparkSession, work: Path, keys: int, events: int, rounds: int) -> dict[str, float]:
    """Figures of one topic."""
    passes: dict[str, list[Pass]] = {"shuffle": [], "direct": []}
    for turn in range(rounds):
        for name, by in (("shuffle", ""), ("direct", "PARTITIONED BY (k)")):
            passes[name].append(one_pass(spark, work / f"{name}-{keys}-{turn}", f"k{keys}", events, by))
            print(f"{keys} keys, {name}: {passes[name][-1]}", flush=True)
    assert not any(one.direct for one in passes["shuffle"]) and all(one.direct for one in passes["direct"])
    found = {
        f"{name}_{figure}_{keys}": round(median(getattr(one, figure) for one in some), 4)
        for name, some in passes.items() for figure in ("cpu", "seconds", "moved")
    }  # fmt: skip
    for figure in ("cpu", "seconds"):
        part = found[f"direct_{figure}_{keys}"] / found[f"shuffle_{figure}_{keys}"]
        found[f"saved_{figure}_{keys}"] = round(1 - part, 3)
    return found


def one_pass(spark: SparkSession, folder: Path, topic: str, events: int, by: str) -> Pass:
    """One pond over the whole topic."""
    done: list[Any] = []
    times: list[float] = []

    def committed(epoch: Any) -> None:
        done.append(epoch)
        times.append(processor_seconds())

    with Pond(spark, folder, instances=2, on_epoch=committed) as pond:
        pond.load(TABLE.format(topic=topic, most=events, by=by))
        pond.add("q", QUERY, sink=Sink("noop"))
        pond.run()
    counts = [epoch.record.counts["*"] for epoch in done[1:]]
    return Pass(
        (times[-1] - times[0]) / len(counts),
        median(epoch.job_seconds for epoch in done[1:]),
        sum(one.get("bytes_moved", 0) for one in counts) / len(counts) / 1e6,
        sum(one.get("direct", 0) for one in counts),
    )


def processor_seconds() -> float:
    """The CPU time of all descendants of this process: Spark's JVM and workers, without the broker."""
    lines = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            command = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        lines[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15])), b"kafka.Kafka" in command
    mine, ticks = {os.getpid()}, 0
    for process in sorted(lines):
        parent, used, broker = lines[process]
        if parent in mine and not broker:
            mine.add(process)
            ticks += used
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
