"""Latency over Kafka, from the moment a record was due to the moment a reader of committed records has its result.

    python benchmarks/peers/over_kafka.py [--rates 20000,100000] [--seconds 300] [--workloads identity,…] [--queries 8]
        [--small]

The streaming workloads of HiBench, each answered by a pond, plain Spark (micro-batches one after another) and Flink SQL
(checkpoint each second, since exactly-once results are seen at checkpoints): *identity* (records go on as they are),
*repartition* (after a shuffle; a pond's rows have one in any case, SQL of Flink has no word for it), *wordcount*
(records per visitor until now, updated), *fixwindow* (records per visitor in ten seconds; latency from their end). As
HiBench does, latency is measured at the topic of results: a reader in this program, `read_committed`, compares the time
with the newest `made` that a result tells. Plain Spark's sink knows no transactions, so its results may come twice.

With `--queries N`, *fixwindow* is the first N of `WINDOWED`: a pond has them in one application, Flink in one job with
N inserts, plain Spark as N streaming queries. All write to the same topic. A pond is fed once it is ready.

`spark-rt` is Spark's real-time mode. It has no final rows, so it takes no part in *fixwindow*. Instead, *updates* has
the same queries, whose rows are emitted with each change; latency is from the newest record of a row.

Broker, feeder, reader and engine share the machine. What was made in the first fifth of the time is warm-up. An engine
that falls behind shows as latency: nobody waits for it, and `answered` is the part of the last fifth's records (or
windows) that had a result at all.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import here  # noqa: F401
import numpy as np
import numpy.typing as npt
from compared import leave
from confluent_kafka import Consumer
from feeder import COLUMNS, PARTITIONS
from install import environment
from meter import Failed, Measured, measured
from results import FOLDER
from settings import FLINK, FLINK_STATE

from kit.servers.kafka_server import KafkaServer

REAL_TIME = "spark-rt"
ENGINES = ("millpond", "spark", REAL_TIME, "flink")
WORKLOADS = ("identity", "repartition", "wordcount", "fixwindow", "updates")
LEFT_OUT = {("repartition", "flink"), ("updates", "flink"), ("repartition", REAL_TIME), ("fixwindow", REAL_TIME)}
"""Workloads that an engine has no words for."""

OF_WINDOWS = ("fixwindow", "updates")
_ALL = "made, ip, url, revenue, agent, country, word, seconds"
_STREAM = "STREAM visits WATERMARK ts DELAY OF INTERVAL 1 MILLISECOND"
_IDENTITY = (f"SELECT {_ALL} FROM STREAM visits", "final")
POND = {
    "identity": _IDENTITY,
    "repartition": _IDENTITY,
    "wordcount": (f"SELECT ip, count(*) AS n, max(made) AS made FROM {_STREAM} GROUP BY ip", "update"),
    "fixwindow": (
        f"SELECT ip, window(ts, '10 seconds') AS w, count(*) AS n, max(made) AS made FROM {_STREAM}"
        " GROUP BY ip, window(ts, '10 seconds')",
        "final",
    ),
}
"""The query of a pond, and its output mode."""

WINDOWED = (
    ("ip", "count(*)", "TRUE"),
    ("country", "sum(revenue)", "TRUE"),
    ("agent", "count(*)", "seconds >= 3"),
    ("word", "avg(seconds)", "country = 'DEU'"),
    ("country", "max(revenue)", "agent LIKE 'Mozilla%'"),
    ("url", "count(*)", "revenue > 0.9"),
    ("agent", "avg(revenue)", "country IN ('USA', 'GRC')"),
    ("ip", "sum(seconds)", "agent NOT LIKE 'Googlebot%'"),
)
"""Key, value and condition of the queries over windows of ten seconds that `--queries` runs together."""

_MADE = re.compile(rb'"made":\s*(\d+)')
_WINDOW_MS = 10_000


class Cell(NamedTuple):
    """Milliseconds of latency, results seen, part of what was due at the end that was answered, and what it took.

    `p99_begun`: also of what was made in the first fifth of the time. `steps`: of a pond, where the time of its newest
    epochs went.
    """

    workload: str
    rate: int
    engine: str
    p50: float
    p99: float
    p999: float
    p99_begun: float
    results: int
    answered: float
    cores: float
    peak_mb: float
    steps: Sequence[str] = ()


def main(argv: Sequence[str] | None = None, results: Path = FOLDER) -> dict[str, float]:
    """Run everything and print it; returns the figures of the last line."""
    parser = argparse.ArgumentParser(description="Latency over Kafka.")
    parser.add_argument("--rates", type=lambda text: tuple(map(int, text.split(","))), default=(20_000, 100_000))
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=list(WORKLOADS))
    parser.add_argument("--engines", type=lambda text: text.split(","), default=list(ENGINES))
    parser.add_argument("--queries", type=int, default=1, choices=range(1, len(WINDOWED) + 1), help="over windows")
    parser.add_argument("--small", action="store_true", help="500 records a second for 30 seconds, to see it work")
    options = parser.parse_args(argv)
    rates, seconds = ((500,), 30.0) if options.small else (options.rates, options.seconds)
    cells = []
    for workload in options.workloads:
        for rate in rates:
            for engine in options.engines:
                if (workload, engine) in LEFT_OUT:
                    continue
                try:
                    queries = options.queries if workload in OF_WINDOWS else 1
                    cells.append(run(workload, rate, engine, seconds, queries))
                except Failed as failure:
                    print(f"{engine}, {workload}: failed\n{failure}", file=sys.stderr, flush=True)
                    continue
                print(line(cells[-1]), flush=True)
    print("\n" + table(cells))
    found = figures(cells)
    leave("over_kafka", found, None if options.small else results)
    return found


def run(workload: str, rate: int, engine: str, seconds: float, queries: int = 1) -> Cell:
    """One cell, with a broker of its own; `queries`: how many queries over windows there are."""
    with (
        tempfile.TemporaryDirectory(prefix="millpond-kafka-") as scratch,
        KafkaServer(Path(scratch) / "kafka") as broker,
    ):
        for topic in ("visits", "answers"):
            broker.create(topic, PARTITIONS)
        program, request = _program(engine, workload, queries, broker.servers, seconds + 30, Path(scratch))
        spec = Path(scratch) / "spec.json"
        spec.write_text(json.dumps(request))
        there = environment("pond" if engine != "flink" else "flink")
        reader = Reader(broker.servers)
        reader.start()
        feeding = _Feeding(broker.servers, rate, seconds)
        found = measured(
            [str(there.python), "-u", str(program), str(spec)], there.variables, patience=seconds + 300,
            begun=feeding.start,
        )  # fmt: skip
        feeding.join()
        reader.end()
    cell = _cell(workload, rate, engine, seconds, reader, feeding.began_ms, found)
    return cell if queries == 1 else cell._replace(workload=f"{workload}{queries}")


def _program(
    engine: str, workload: str, queries: int, servers: str, seconds: float, folder: Path
) -> tuple[Path, dict[str, Any]]:
    beside = Path(__file__).parent
    if engine != "flink":
        request = {
            "engine": engine, "servers": servers, "workload": workload, "queries": queries, "seconds": seconds
        }  # fmt: skip
        return beside / "kafka_child.py", request
    options = {**FLINK, **FLINK_STATE["heap"], "execution.checkpointing.dir": f"file://{folder}/checkpoints"}
    options["execution.checkpointing.interval"] = "1s"
    options["table.exec.mini-batch.allow-latency"] = "100ms"
    jars = [f"file://{jar}" for jar in environment("flink").jars]
    one = {**flink_sql(workload, servers, queries), "seconds": seconds}
    return beside / "flink_child.py", {"options": options, "jars": jars, "passes": [one]}


def pond_queries(workload: str, queries: int) -> list[tuple[str, str]]:
    """The queries of a pond, each with its output mode."""
    if queries == 1 and workload != "updates":
        return [POND[workload]]
    window = "window(ts, '10 seconds')"
    return [
        (
            f"SELECT {key} AS k, {window} AS w, {value} AS v, max(made) AS made FROM {_STREAM} WHERE {condition}"
            f" GROUP BY {key}, {window}",
            "update" if workload == "updates" else "final",
        )
        for key, value, condition in WINDOWED[:queries]
    ]


def flink_sql(workload: str, servers: str, queries: int = 1) -> dict[str, list[str]]:
    """The tables and statements of Flink: a source, and for each query a sink and an insert."""
    source = COLUMNS.replace("ts TIMESTAMP", "ts STRING")
    reads = (
        f"CREATE TABLE visits ({source}, et AS TO_TIMESTAMP_LTZ(made, 3), WATERMARK FOR et AS et) WITH ("
        f"'connector' = 'kafka', 'topic' = 'visits', 'properties.bootstrap.servers' = '{servers}',"
        " 'scan.startup.mode' = 'earliest-offset', 'format' = 'csv')"
    )
    delivery = (
        f"'topic' = 'answers', 'properties.bootstrap.servers' = '{servers}', 'properties.transaction.timeout.ms' ="
        " '600000', 'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = 'bench"
    )
    if queries > 1:
        tumble = "TUMBLE(TABLE visits, DESCRIPTOR(et), INTERVAL '10' SECOND)"
        sinks = [
            f"CREATE TABLE answers{place} (k STRING, v DOUBLE, made BIGINT) WITH ('connector' = 'kafka',"
            f" 'format' = 'json', {delivery}{place}')"
            for place in range(queries)
        ]
        inserts = [
            f"INSERT INTO answers{place} SELECT {key}, CAST({value} AS DOUBLE), MAX(made) FROM {tumble}"
            f" WHERE {condition} GROUP BY {key}, window_start, window_end"
            for place, (key, value, condition) in enumerate(WINDOWED[:queries])
        ]
        return {"tables": [reads, *sinks], "inserts": inserts}
    if workload == "wordcount":
        columns = "ip STRING, n BIGINT, made BIGINT, PRIMARY KEY (ip) NOT ENFORCED"
        form = "'connector' = 'upsert-kafka', 'key.format' = 'json', 'value.format' = 'json'"
        select = "SELECT ip, COUNT(*), MAX(made) FROM visits GROUP BY ip"
    elif workload == "fixwindow":
        columns, form = "ip STRING, n BIGINT, made BIGINT", "'connector' = 'kafka', 'format' = 'json'"
        select = (
            "SELECT ip, COUNT(*), MAX(made) FROM TUMBLE(TABLE visits, DESCRIPTOR(et), INTERVAL '10' SECOND)"
            " GROUP BY ip, window_start, window_end"
        )
    else:
        columns = source.replace("ts STRING, ", "")
        form, select = "'connector' = 'kafka', 'format' = 'json'", f"SELECT {_ALL} FROM visits"
    return {
        "tables": [reads, f"CREATE TABLE answers ({columns}) WITH ({form}, {delivery}')"],
        "inserts": [f"INSERT INTO answers {select}"],
    }


class _Feeding:
    """The feeder, a process of its own, started when the engine is ready."""

    def __init__(self, servers: str, rate: int, seconds: float) -> None:
        program = str(Path(__file__).with_name("feeder.py"))
        self._command = [sys.executable, program, servers, "visits", str(rate), str(seconds)]
        self._process: subprocess.Popen[str] | None = None
        self.began_ms = 0.0

    def start(self) -> None:
        self.began_ms = time.time() * 1e3
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)

    def join(self) -> None:
        if self._process is None:
            return
        said, _ = self._process.communicate()
        late = float(said.split()[-1]) if said.split() else 0.0
        if late > 200:
            print(f"the feeder was {late:.0f} ms late at worst: the offered load was not steady", file=sys.stderr)


class Reader(threading.Thread):
    """Reads results as they are committed, and records the arrival and the content of each."""

    def __init__(self, servers: str) -> None:
        super().__init__(daemon=True)
        settings = {"group.id": "reader", "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        self._consumer = Consumer({"bootstrap.servers": servers, "fetch.wait.max.ms": 10, **settings})
        self._ended = threading.Event()
        self.made: list[int] = []
        self.came: list[float] = []

    def run(self) -> None:
        self._consumer.subscribe(["answers"])
        while not self._ended.is_set():
            messages = self._consumer.consume(10_000, 0.05)
            now = time.time() * 1e3
            for message in messages:
                value = message.value() if message.error() is None else None
                found = _MADE.search(value) if value else None
                if found is not None:
                    self.made.append(int(found.group(1)))
                    self.came.append(now)

    def end(self) -> None:
        """Stop, and let go of the broker."""
        self._ended.set()
        self.join()
        self._consumer.close()


def latencies(
    made: Sequence[int], came: Sequence[float], began: float, seconds: float, left_out: float = 0.2
) -> tuple[npt.NDArray[np.float64], float]:
    """Milliseconds of each result of a record that was made after the part `left_out` of the time, and the part of the
    moments of the last fifth (tenths of a second, or the windows in it) that any result has.
    """
    made_ms, seen = np.asarray(made, np.int64), np.asarray(came, np.float64)
    inside = (made_ms >= began + seconds * 1000 * left_out) & (made_ms <= began + seconds * 1000)
    last = made_ms[inside & (made_ms >= began + seconds * 800)]
    step = _WINDOW_MS if len(made_ms) and (made_ms % _WINDOW_MS == 0).all() else 100
    due = max(1, int(seconds * 200 // step))
    return (seen - made_ms)[inside], min(1.0, len(np.unique(last // step)) / due)


def _cell(workload: str, rate: int, engine: str, seconds: float, reader: Reader, began: float, found: Measured) -> Cell:
    made = reader.made
    if workload == "fixwindow":  # a result is due when its window ends
        made = [(one // _WINDOW_MS + 1) * _WINDOW_MS for one in made]
    late, answered = latencies(made, reader.came, began, seconds)
    if not len(late):
        raise Failed("no result came")
    p50, p99, p999 = np.percentile(late, [50, 99, 99.9])
    begun = float(np.percentile(latencies(made, reader.came, began, seconds, 0.0)[0], 99))
    cores = found.cpu / found.seconds
    return Cell(
        workload, rate, engine, p50, p99, p999, begun, len(reader.made), answered, cores, found.peak_mb,
        _steps(found.ends[-1]) if engine == "millpond" else (),
    )  # fmt: skip


def _steps(ended: Mapping[str, Any]) -> list[str]:
    """Lines that show where the time of a pond's epochs went, as `kafka_child` measured it."""
    cpu = ", ".join(f"{name} {ms:.0f} ms" for name, ms in ended["cpu"].items())
    every = f"an epoch begins every {ended['every_ms']:.0f} ms, so records wait half of that for it on average"
    return [*ended["steps"], every, f"CPU per epoch: {cpu}"]


def line(cell: Cell) -> str:
    return (
        f"{cell.workload:12} {cell.rate:>7}/s {cell.engine:9} p50 {cell.p50:8.0f}  p99 {cell.p99:8.0f}  p99.9"
        f" {cell.p999:8.0f} ms, p99 from the start {cell.p99_begun:8.0f} ms, {cell.results:,} results,"
        f" {cell.answered:.0%} answered, {cell.cores:.2f} cores, {cell.peak_mb:,.0f} MB"
    )


def table(cells: Sequence[Cell]) -> str:
    """Markdown: a row per workload, rate and engine."""
    lines = [
        "| workload | records/s | engine | p50 ms | p99 ms | p99.9 ms | p99 from start | answered | cores | peak MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        lines.append(
            f"| {cell.workload} | {cell.rate:,} | {cell.engine} | {cell.p50:,.0f} | {cell.p99:,.0f} | {cell.p999:,.0f}"
            f" | {cell.p99_begun:,.0f} | {cell.answered:.0%} | {cell.cores:.2f} | {cell.peak_mb:,.0f} |"
        )
    return "\n".join(lines)


def figures(cells: Sequence[Cell]) -> dict[str, float]:
    """Percentiles of each cell."""
    found = {}
    for cell in cells:
        name = f"{cell.workload}_{cell.rate}_{cell.engine}"
        found |= {f"{name}_p50_ms": round(cell.p50), f"{name}_p99_ms": round(cell.p99)}
        found |= {f"{name}_p999_ms": round(cell.p999), f"{name}_p99_begun_ms": round(cell.p99_begun)}
        found |= {f"{name}_answered": round(cell.answered, 3)}
    return found


if __name__ == "__main__":
    main()
