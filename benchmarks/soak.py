"""Kafka → pond → Kafka for a set time, while driver, workers and broker are killed: is each row there, once, and right?

    python benchmarks/soak.py --minutes 20

A generator pays at a steady pace: some events are late, some no JSON, some filtered. `millpond run` answers two
queries: a row per event of a kind, from which latency is taken (from produce to a consumer of committed records), and
sums by window and key. Something is killed again and again, in a random order: `kill -9` of the driver, which is
started again, of a Python worker, and of the broker, which comes back. Then the generator ends, the rest is taken, and
what was produced is compared with what came out: read = applied + late + dead + filtered, by the log; each row exactly
once, and the same as DuckDB's. The last line is one JSON object; the exit code is 1 where something differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

from kit.servers.kafka_server import KafkaServer, Message
from millpond.connections import VARIABLE
from millpond.control.diagnose.dead_letters import kinds
from millpond.control.pond.event_totals import EventCounts, EventTotals
from millpond.control.wiring.pond_reader import read_truth
from millpond.log.records import EpochRecord, decode

PARTITIONS, CUSTOMERS = 3, 50
DELAY_US, JITTER_US, BEHIND_US, WARM_UP_SECONDS = 5_000_000, 2_000_000, 120_000_000, 10
NOISE, LATE, BROKEN, BIG = 0.1, 0.02, 0.005, 900
"""Parts of events that WHERE does not take, that are late, that are no JSON; cents from which an event is big."""

SQL = """
CREATE TABLE payments (id BIGINT, sent BIGINT, ts TIMESTAMP, customer STRING, cents BIGINT, kind STRING)
USING kafka OPTIONS (subscribe 'payments', format 'json', startingOffsets 'earliest', maxOffsetsPerTrigger 20000)
TBLPROPERTIES ('dead.path' = '{dead}');

CREATE STREAMING TABLE big USING kafka TBLPROPERTIES ('topic' = 'answers') AS
SELECT id, sent, customer FROM STREAM payments WHERE cents >= {big};

CREATE STREAMING TABLE spend USING kafka TBLPROPERTIES ('topic' = 'answers') AS
SELECT customer, window.start AS s, window.end AS e, count(*) AS n, sum(cents) AS total
FROM STREAM payments WATERMARK ts DELAY OF INTERVAL 5 SECONDS WHERE kind <> 'noise'
GROUP BY customer, window(ts, '10 seconds');
"""

SPEND = """
SELECT customer, ts_us // 10000000 * 10000000 AS s, count(*) AS n, sum(cents) AS total
FROM events WHERE NOT late AND kind <> 'noise' GROUP BY ALL
"""


class Generator(threading.Thread):
    """Produces payments until it is stopped; then every record is acknowledged."""

    def __init__(self, server: KafkaServer, rate: float, seed: int) -> None:
        super().__init__()
        self.produced = 0
        self._server, self._rate, self._dice = server, rate, random.Random(seed)
        self._ended = threading.Event()

    def run(self) -> None:
        producer = Producer(self._server.client(**{"enable.idempotence": True, "linger.ms": 5}))
        began = time.monotonic()
        while not self._ended.wait(max(0.0, began + self.produced / self._rate - time.monotonic())):
            warm = time.monotonic() - began > WARM_UP_SECONDS
            producer.produce("payments", self._event(warm), partition=self._dice.randrange(PARTITIONS))
            producer.poll(0)
            self.produced += 1
        assert producer.flush(120) == 0, "Kafka did not take every event"

    def end(self) -> None:
        self._ended.set()
        self.join()

    def _event(self, warm: bool) -> bytes:
        dice, now_us = self._dice, time.time_ns() // 1000
        if dice.random() < BROKEN:
            return b"oops"
        at_us = now_us - dice.randrange(JITTER_US) - (BEHIND_US if warm and dice.random() < LATE else 0)
        ts = datetime.fromtimestamp(at_us / 1e6, timezone.utc).isoformat()
        kind = "noise" if dice.random() < NOISE else "card"
        return json.dumps({
            "id": self.produced, "sent": now_us, "ts": ts, "customer": f"c{dice.randrange(CUSTOMERS)}",
            "cents": dice.randrange(1000), "kind": kind,
        }).encode()  # fmt: skip


class Reader(threading.Thread):
    """Consumes committed results as they arrive, and times those that contain their send time."""

    def __init__(self, server: KafkaServer, quick: float) -> None:
        super().__init__()
        self._quick = quick
        self.all_ms: list[float] = []
        self.quiet_ms: list[float] = []
        self.quiet_since: float | None = None
        """When an answer was last quick after the last kill; None: none was yet."""
        self._server, self._ended = server, threading.Event()

    def run(self) -> None:
        settings = {"group.id": "soak", "isolation.level": "read_committed", "fetch.wait.max.ms": 20}
        consumer = Consumer(self._server.client(**settings))
        consumer.assign([TopicPartition("answers", number, 0) for number in range(PARTITIONS)])
        while not self._ended.is_set():
            message = consumer.poll(0.1)
            if message is None or message.error() is not None or dict(message.headers())["query"] != b"big":
                continue
            now = time.time()
            sent = json.loads(message.value())["sent"] / 1e6
            self.all_ms.append((now - sent) * 1e3)
            quiet = self.quiet_since
            if quiet is not None and sent >= quiet:
                self.quiet_ms.append(self.all_ms[-1])
            elif quiet is None and now - sent < self._quick:
                self.quiet_since = now
        consumer.close()

    def end(self) -> None:
        self._ended.set()
        self.join()


class Driver:
    """`millpond run` and its processes, which are identified by their sessions, also after its end."""

    def __init__(self, folder: Path, memory: str) -> None:
        self._folder, self._memory = folder, memory
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.lives: list[list[tuple[float, float]]] = []
        self._sessions: set[int] = set()

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start it where it does not run."""
        if self._process is None or self._process.poll() is not None:
            self._sweep()
            self.starts += 1
            self.lives.append([])
            command = [
                sys.executable, "-m", "millpond", "run", str(self._folder / "soak.sql"), "--checkpoint",
                str(self._folder / "pond"), "--memory", self._memory, "--master", "local[2]", *words,
            ]  # fmt: skip
            with (self._folder / f"driver-{self.starts}.log").open("wb") as log:
                self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            self._sessions = {self._process.pid}
        return self._process

    def measure(self) -> None:
        """Note how much memory it and all its processes have."""
        self.lives[-1].append((time.monotonic(), sum(_resident(pid) for pid in self._own()) / 2**20))

    def kill(self) -> None:
        """End its Python process at once; the JVM follows by itself."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def kill_worker(self) -> bool:
        """End one Python worker at once; False: there is none."""
        found = {pid: _field(pid, _PARENT) for pid in self._own() if b"pyspark" in _command(pid)}
        workers = [pid for pid, parent in found.items() if parent in found]  # others are Spark's daemon and its JVM
        if workers:
            with suppress(ProcessLookupError):
                os.kill(workers[-1], signal.SIGKILL)
        return bool(workers)

    def stop(self) -> None:
        """Let it end after the epoch at hand."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(180)
        self._sweep()

    def finish(self) -> int:
        """Take what there is and close every window; the exit code."""
        return self.start("--once", "--drain").wait(900)

    def _own(self) -> set[int]:
        """Its processes that run now; the JVM begins a session of its own."""
        running = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        of = {pid: (_field(pid, _PARENT), _field(pid, _SESSION)) for pid in running}
        own, before = set[int](), -1
        while len(own) > before:
            before = len(own)
            own |= {pid for pid, (parent, session) in of.items() if session in self._sessions or parent in own}
            self._sessions |= {of[pid][1] for pid in own} - {os.getsid(0), 0, -1}
        return own

    def _sweep(self) -> None:
        """End what a killed driver left running."""
        for pid in self._own():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


_PARENT, _SESSION, _PAGES = 1, 3, 21
"""Fields of /proc/PID/stat, counted from the one after the name."""


def _field(pid: int, number: int) -> int:
    """A field of /proc/PID/stat; -1 where the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[number])
    except (OSError, IndexError):
        return -1


def _resident(pid: int) -> int:
    return max(0, _field(pid, _PAGES)) * os.sysconf("SC_PAGE_SIZE")


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


class Outcome(NamedTuple):
    """What was found, and what is wrong."""

    figures: dict[str, Any]
    wrong: list[str]


def soak(folder: Path, minutes: float, rate: float, pause: float, quick: float, seed: int, memory: str) -> Outcome:
    """Run it in `folder`; something is killed about `pause` seconds after an answer has come within `quick` seconds."""
    with KafkaServer(folder / "kafka") as server:
        (folder / "connections.json").write_text(json.dumps({"local": {"servers": server.servers}}))
        os.environ[VARIABLE] = str(folder / "connections.json")
        (folder / "soak.sql").write_text(SQL.format(dead=folder / "dead", big=BIG))
        for topic in ("payments", "answers"):
            server.create(topic, PARTITIONS)
        driver, generator, reader = Driver(folder, memory), Generator(server, rate, seed), Reader(server, quick)
        generator.start()
        reader.start()
        files: list[tuple[float, int]] = []
        try:
            kills = _disturb(server, driver, reader, folder, files, minutes * 60, pause, random.Random(seed))
            generator.end()
            driver.stop()
            code = driver.finish()
        finally:
            driver.stop()
            for thread in (generator, reader):
                thread.end()
        events, answers = server.read("payments"), server.read("answers")
    wrong = [] if code == 0 else [f"the last run ended with {code}; see driver-{driver.starts}.log"]
    counts = _counts(folder / "pond")
    wrong += [*_unconserved(counts, events, folder), *_differences(events, answers)]
    whole = counts["spend"]
    figures = {
        "minutes": minutes, "events": len(events), "rows": len(answers), "epochs": counts.pop("epochs", None),
        "applied": whole.applied, "late": whole.late, "dead": whole.dead, "filtered": whole.filtered,
        "kills": dict(kills), "starts": driver.starts, **_latencies(reader), **_slopes(driver, files),
        "conserved_and_exact": not wrong,
    }  # fmt: skip
    return Outcome(figures, wrong)


def _disturb(
    server: KafkaServer, driver: Driver, reader: Reader, folder: Path, files: list[tuple[float, int]], seconds: float,
    pause: float, dice: random.Random,
) -> Counter[str]:  # fmt: skip
    """Keep the driver running, and kill something whenever answers have been quick for a while."""
    kills: Counter[str] = Counter()
    began, due, order = time.monotonic(), [0.0], list[str]()
    while time.monotonic() - began < seconds:
        driver.start()
        driver.measure()
        files.append((time.monotonic(), sum(len(names) for _, _, names in os.walk(folder / "pond"))))
        if reader.quiet_since is not None and time.time() - reader.quiet_since > due[0]:
            order = order or dice.sample(["driver", "worker", "broker"], 3)
            what = order[-1]
            if what == "broker":
                server.kill()
                time.sleep(dice.uniform(0.5, 3))
                server.start()
            elif what == "driver":
                driver.kill()
            elif not driver.kill_worker():
                time.sleep(0.2)
                continue
            print(f"{time.monotonic() - began:6.0f} s: kill -9 of {order.pop()}", flush=True)
            kills[what] += 1
            reader.quiet_since, due[0] = None, dice.uniform(0.5, 1.5) * pause
        time.sleep(1)
    return kills


def _counts(pond: Path) -> dict[str, Any]:
    """What the log says became of events, by query."""
    truth, _ = read_truth(pond)
    tally, epochs = EventTotals(), 0
    for n in range(truth.manifest.n + 1):
        record = decode(truth.log.read(n) or b"").record
        if isinstance(record, EpochRecord):
            tally.add(record)
            epochs += 1
    return {query: counts.whole for query, counts in tally.counts().items()} | {"epochs": epochs}


def _unconserved(counts: dict[str, Any], events: list[Message], folder: Path) -> Iterator[str]:
    broken = sum(event.value == b"oops" for event in events)
    for query in ("spend", "big"):
        count: EventCounts = counts[query]
        if count.read != len(events) or count.read != count.applied + count.late + count.dead + count.filtered:
            yield f"{query} counts {count}, of {len(events)} events"
    letters = sum(kind.letters for kind in kinds(folder / "dead"))
    if letters != broken:
        yield f"there are {letters} dead letters of {broken} broken events"


def _differences(events: list[Message], answers: list[Message]) -> Iterator[str]:
    """Where the answers are not what DuckDB makes of the events, each once."""
    seen, wanted, big = dict[int, int](), [], Counter[int]()
    for event in events:  # by partition and offset: their order
        if event.value == b"oops":
            continue
        row = json.loads(event.value or b"")
        ts_us = round(datetime.fromisoformat(row["ts"]).timestamp() * 1e6)
        newest = seen.get(event.partition)
        late = newest is not None and ts_us <= newest - DELAY_US
        seen[event.partition] = ts_us if newest is None else max(newest, ts_us)
        wanted.append({"ts_us": ts_us, "late": late, **{name: row[name] for name in ("customer", "cents", "kind")}})
        big[row["id"]] += row["cents"] >= BIG
    with duckdb.connect() as connection:
        connection.register("events", pa.Table.from_pylist(wanted))
        expected = {(customer, s): (n, int(total)) for customer, s, n, total in connection.execute(SPEND).fetchall()}
    emitted: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for answer in answers:
        row = json.loads(answer.value or b"")
        if answer.headers["query"] == b"big":
            big[row["id"]] -= 1
            continue
        start_us = round(datetime.fromisoformat(row["s"].replace("Z", "+00:00")).timestamp() * 1e6)
        emitted.setdefault((row["customer"], start_us), []).append((row["n"], row["total"]))
    twice = sum(len(rows) > 1 for rows in emitted.values())
    if twice:
        yield f"{twice} rows of spend came more than once"
    other = [key for key in {*expected, *emitted} if emitted.get(key, [None])[0] != expected.get(key)]
    if other:
        first = other[0]
        yield f"{len(other)} rows of spend differ, such as {first}: {emitted.get(first)} for {expected.get(first)}"
    missing, repeated = sum(max(0, n) for n in big.values()), sum(max(0, -n) for n in big.values())
    if missing or repeated:
        yield f"of big {missing} rows are missing, {repeated} came again"


def _latencies(reader: Reader) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name, taken in (("", reader.quiet_ms), ("_with_outages", reader.all_ms)):
        both = np.percentile(taken, [50, 99]).round().tolist() if taken else [None, None]
        found |= {f"p50_ms{name}": both[0], f"p99_ms{name}": both[1]}
    return found


def _slopes(driver: Driver, files: list[tuple[float, int]]) -> dict[str, float | None]:
    """Growth per minute: of memory in the longest life of a driver, but for its first minute; of files over all."""
    longest = max(driver.lives, key=len, default=[])
    settled = [one for one in longest if one[0] > longest[0][0] + 60] if longest else []
    return {
        "rss_mb": round(longest[-1][1]) if longest else None, "rss_mb_per_minute": _slope(settled),
        "files": files[-1][1] if files else None, "files_per_minute": _slope(files),
    }  # fmt: skip


def _slope(points: list[tuple[float, Any]]) -> float | None:
    if len(points) < 20:
        return None
    times, values = np.array(points, float).T
    return round(float(np.polyfit((times - times[0]) / 60, values, 1)[0]), 2)


def main() -> int:
    """Soak, print what was found; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--rate", type=float, default=300, help="events a second")
    parser.add_argument("--pause", type=float, default=20, help="seconds without a failure before something is killed")
    parser.add_argument("--quick", type=float, default=5, help="seconds in which an answer comes when all is well")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory", default="1g", help="heap of the driver's JVM")
    parser.add_argument("--folder", type=Path, help="keep all files here [default: a temporary folder]")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left running
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = soak(folder, options.minutes, options.rate, options.pause, options.quick, options.seed, options.memory)
    for line in found.wrong:
        print(f"WRONG: {line}")
    print(json.dumps(found.figures))
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
