"""CPU time per record of JSON or CSV values from Kafka, parsed with Arrow in the gather and by Spark.

    python benchmarks/json_values.py [--format csv] [--records 200000] [--rounds 3]

A topic of two partitions with records of about 170 bytes, of which a query needs three of seven members (CSV: 100 bytes
and seven fields, all of them declared). Each round reads it three times in turns: `arrow` parses in the gather, `spark`
parses in the JVM, and `raw` counts the bytes and parses nothing. The figures are microseconds of Spark's JVM and its
Python workers per record, without the first epoch; medians. `parsed_part` is what `arrow` costs above `raw`, as a part
of what `spark` costs above `raw`. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from confluent_kafka import Producer
from keyed_topic import processor_seconds
from pyspark.sql import SparkSession
from results import FOLDER, keep

from kit.servers.kafka_server import KafkaServer
from millpond import Pond, spark_session
from millpond.connections import VARIABLE
from millpond.model.endpoints import Sink

EPOCHS = 4
OPTIONS = "subscribe 'records', startingOffsets 'earliest', maxOffsetsPerTrigger {most}"
TABLES = {
    "json": "CREATE TABLE tx (id BIGINT, ts TIMESTAMP, k STRING, v DOUBLE)"
    " USING kafka OPTIONS (format 'json', {options});",
    "csv": "CREATE TABLE tx (id BIGINT, ts TIMESTAMP, k STRING, v DOUBLE, merchant INT, name STRING, note STRING)"
    " USING kafka OPTIONS (format 'csv', {options});",
}
RAW = "CREATE TABLE tx (value BINARY) USING kafka OPTIONS (format 'raw', {options});"
SUM = """
    SELECT k, window(ts, '1 minute') AS w, count(*) AS n, sum(v) AS total
    FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 5 SECONDS GROUP BY ALL
"""
BYTES = """
    SELECT window(_timestamp, '1 minute') AS w, count(*) AS n, sum(length(value)) AS total
    FROM STREAM tx WATERMARK _timestamp DELAY OF INTERVAL 10 MINUTES GROUP BY ALL
"""
READERS = {
    "arrow": ("", SUM),
    "spark": (", dateFormat 'yyyy-MM-dd'", SUM),  # no column needs the option, which only Spark's parser has
    "raw": ("", BYTES),
}


def main(argv: Sequence[str] | None = None, results: Path = FOLDER) -> dict[str, float]:
    """Run all readers; returns the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=200_000, help="records per epoch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--format", choices=list(TABLES), default="json")
    arguments = parser.parse_args(argv)
    used: dict[str, list[float]] = {name: [] for name in READERS}
    with tempfile.TemporaryDirectory() as held:
        work = Path(held)
        spark = spark_session("local[2]", app_name="json-values", driver_memory="2g")
        with KafkaServer(work / "kafka") as server:
            (work / "connections.json").write_text(json.dumps({"bench": {"servers": server.servers}}))
            os.environ[VARIABLE] = str(work / "connections.json")
            produce(server, arguments.records * EPOCHS, arguments.format)
            for turn in range(arguments.rounds + 1):
                for name in READERS:
                    table = RAW if name == "raw" else TABLES[arguments.format]
                    micros = one_pass(spark, work / f"{name}-{turn}", name, table, arguments.records)
                    print(f"{name}: {micros:.2f}", flush=True)
                    used[name] += [micros] if turn else []  # in the first turn, Java compiles
        spark.stop()
    found = {name: round(median(some), 3) for name, some in used.items()}
    found["parsed_part"] = round((found["arrow"] - found["raw"]) / (found["spark"] - found["raw"]), 3)
    found["records"] = arguments.records
    keep(f"{arguments.format}_values", found, results)
    return found


def produce(server: KafkaServer, count: int, form: str) -> None:
    """Records of 40 seconds of event time and 10,000 keys."""
    server.create("records", 2)
    producer = Producer(server.client(**{"linger.ms": 50, "queue.buffering.max.messages": 1_000_000}))
    for number in range(count):
        second = number * 40 // count
        value = {
            "id": number, "ts": f"2023-11-14T22:00:{second:02}.{number % 1000:03}Z", "k": f"k-{number * 7919 % 10_000}",
            "v": number * 31 % 10_007 / 100, "merchant": {"id": number % 77, "name": f"m{number % 77}"},
            "tags": ["a", "b"], "note": "paid by card at the counter",
        }  # fmt: skip
        fields = (*list(value.values())[:4], number % 77, f"m{number % 77}", value["note"])
        text = ",".join(map(str, fields)) if form == "csv" else json.dumps(value)
        producer.produce("records", text, partition=number % 2)
        if number % 10_000 == 0:
            producer.poll(0)
            while len(producer) > 500_000:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def one_pass(spark: SparkSession, folder: Path, name: str, table: str, records: int) -> float:
    """Microseconds of CPU time per record of one pond over the topic."""
    more, query = READERS[name]
    times: list[float] = []
    with Pond(spark, folder, instances=2, on_epoch=lambda _epoch: times.append(processor_seconds())) as pond:
        pond.load(table.format(options=OPTIONS.format(most=records) + more))
        pond.add("q", query, sink=Sink("noop"))
        pond.run()
        notes = [one.note or "" for one in pond.status() if one.name == "read:tx"]
    assert not any("by Spark" in note for note in notes)
    assert bool(notes) == (name == "arrow")
    return (times[-1] - times[0]) / (len(times) - 1) / records * 1e6


if __name__ == "__main__":
    main()
