"""Drivers and workers that are killed, and drivers that are stopped and wake up late: the output stays exact.

In each scenario drivers run one pond, one after the other, each with a fault at one step of `millpond.faults`, and a
last driver finishes. A scenario in which a step was not reached fails. Some ponds are in a bucket of a server that
throttles requests, loses replies, does puts late and lists objects late.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from kit.naive.queries.query_chain import as_events
from kit.naive.queries.windows import answer, counts, late_rows, withheld
from kit.programs.forked_program import ForkedProgram
from kit.programs.s3_program import DISTURBANCES, MOST_UNLISTED
from kit.programs.shared_java import joining
from kit.servers.s3_server import S3Server
from kit.servers.servers import until
from millpond.faults import COMMON_STEPS, DRIVER_STEPS, FOLLOWER_STEPS, WORKER_STEPS
from millpond.followers.view.view import scan
from millpond.log.manifest import Manifest, Manifests, load
from millpond.log.port import Log, numbered_name, numbers_in
from millpond.log.records import EpochRecord, decode, without_body
from millpond.model.selection import AnyQuery
from millpond.model.spec import PondSpec, from_json
from millpond.plan.upstream.steps import inner_of
from millpond.state.backends.lmdb import LmdbStore
from millpond.testing.compare import difference

PROGRAM = Path(__file__).with_name("crash_program.py")
FILES = 6
TAGS, TAG_LETTERS = 500, 2000
"""An instance's delta of an epoch has half a megabyte of tags, so that it is a file and not part of its record."""

DISTURBED = 0.1
"""The part of the requests to the bucket that fail."""

LANES = 3
"""Scenarios at once: those that wait for a successor need no core."""

SECONDS = 300.0
"""How long one process may take; far more than it needs."""

INHERITED = {name: value for name, value in os.environ.items() if not name.startswith("MILLPOND_FAULT")}
"""What drivers inherit; read once, as pytest writes to the environment while threads start them."""

_spec = importlib.util.spec_from_file_location("crash_program", PROGRAM)
assert _spec is not None and _spec.loader is not None
program = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(program)


# --- input and truth ---------------------------------------------------------------------------------------


def make_input(folder: Path) -> list[list[dict[str, Any]]]:
    """Write the files; return their rows, an epoch per file, times in microseconds."""
    dice = random.Random(7)
    tags = [f"{dice.getrandbits(4 * TAG_LETTERS):0{TAG_LETTERS}x}" for _ in range(TAGS)]
    folder.mkdir(parents=True)
    epochs = []
    for i in range(FILES):
        rows = []
        for tag in tags:
            late = 40.0 if dice.random() < 0.05 else 0.0
            rows.append(
                {
                    "ts": int((1_700_000_000 + 30 * i + 30 * dice.random() - late) * 1e6),
                    "customer": f"c{int(20 * dice.random() ** 2)}",
                    "tag": tag,
                    "kind": dice.choice(("web", "pos", None)),
                    "amount": None if dice.random() < 0.02 else dice.randint(0, 100_000) / 100,
                    "n": dice.randint(-5, 20),
                }
            )
        columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
        columns["ts"] = pa.array(columns["ts"], pa.timestamp("us", "UTC"))
        file = folder / f"f{i}.parquet"
        pq.write_table(pa.table(columns), file)
        os.utime(file, (1_700_000_000 + i, 1_700_000_000 + i))
        epochs.append(rows)
    return epochs


class Expected(NamedTuple):
    """What every way to the end must lead to."""

    rows: dict[str, list[dict[str, Any]]]
    late: list[dict[str, Any]]
    counts: dict[str, dict[str, int]]
    view: dict[str, dict[str, Any]]


class World(NamedTuple):
    """What all scenarios share: input, its truth, how often a quiet run reaches each step, a successor, and victims.

    The successor has a Java machine of its own, so its workers can be others for a pond.
    """

    root: Path
    truth: Truth
    reached: dict[str, int]
    successor: Driver
    victims: Victims
    store: S3Server
    faults_before: Counter[str]
    seen: dict[tuple[str, str], str]

    def base(self, name: str, files: int = FILES, bucket: bool = False) -> Path:
        """A folder for one pond, with the first files of the input; the pond is in it, or in a bucket."""
        base = self.root / name
        (base / "in").mkdir(parents=True)
        (base / "faults").mkdir()
        if bucket:
            (base / "address").write_text(f"s3://{self.store.bucket()}/pond")
        self.feed(base, 0, files)
        return base

    def feed(self, base: Path, first: int, end: int = FILES) -> None:
        """Let some files arrive."""
        for i in range(first, end):
            shutil.copy2(self.root / "input" / f"f{i}.parquet", base / "in")


class Driver:
    """A process that runs one pond after the other, each with the fault that is planned for it."""

    def __init__(self, log: Path, **environment: str) -> None:
        self._turn = threading.Lock()
        with log.open("ab") as errors:
            self.process = ForkedProgram(
                [PROGRAM], env=INHERITED | environment, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip

    def order(self, base: Path, **options: Any) -> None:
        """Start to run a pond to its end.

        The options are `fault`, `markers`, `drain`, `repair`, `two_stages` and `workers`.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"base": str(base), **options}) + "\n")
        self.process.stdin.flush()

    def reply(self) -> dict[str, Any]:
        """How it went; a program that hangs is killed, and says nothing."""
        assert self.process.stdout is not None
        watch = threading.Timer(SECONDS, self.process.kill)
        watch.start()
        try:
            line = self.process.stdout.readline()
        finally:
            watch.cancel()
        assert line, "the program ended, or hung, without a word"
        return dict(json.loads(line))

    def stopped(self) -> dict[str, Any] | None:
        """Wait for the planned SIGSTOP; return the outcome if the run ends without it."""
        assert self.process.stdout is not None
        for _ in range(int(SECONDS / 0.05)):
            if is_stopped(self.process):
                return None
            if select.select([self.process.stdout], [], [], 0.05)[0]:
                return self.reply()
        raise AssertionError("step not reached in time")

    def finish(self, base: Path, **options: Any) -> dict[str, Any]:
        """Run a pond, and return the outcome."""
        with self._turn:
            self.order(base, **options)
            return self.reply()

    def end(self) -> None:
        """Kill the process if it still runs; its Java machine ends with it."""
        send_signal(descendants(self.process.pid), signal.SIGCONT)
        self.process.kill()
        self.process.wait(SECONDS)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class Victims:
    """Drivers that wait for a pond: to start one with Spark costs more than all that a scenario does."""

    def __init__(self, root: Path, spark: SparkSession, environment: dict[str, str]) -> None:
        self._log, self._spark, self._waiting = root / "victims.log", spark, list[Driver]()
        self._environment = environment
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def joined(self) -> Iterator[Driver]:
        """A process whose Java machine is that of the tests, and outlives it."""
        driver = Driver(self._log, **joining(self._spark), **self._environment)
        try:
            yield driver
        finally:
            driver.end()

    @contextlib.contextmanager
    def one(self) -> Iterator[Driver]:
        """The process with a Java machine of its own, for one scenario at a time.

        It is reused unless it was killed or failed: to start Spark costs more than to wait for a turn.
        """
        with self._turn:
            driver = self._waiting.pop() if self._waiting else Driver(self._log, **self._environment)
            try:
                yield driver
            except BaseException:
                driver.end()
                raise
            if driver.process.poll() is None:
                self._waiting.append(driver)
            else:
                driver.end()

    def end(self) -> None:
        """Kill those that are left."""
        for driver in self._waiting:
            driver.end()


def reached_in(markers: Path) -> set[str]:
    """The steps at which a planned fault has killed, by the folder of their markers."""
    return {marker.name.rsplit(".", 2)[0] for marker in markers.glob("*.kill")}


def send_signal(family: list[int], what: signal.Signals) -> None:
    """Send a signal to processes; an idle worker may end at any time."""
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)


def descendants(pid: int) -> list[int]:
    """All processes below `pid`."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


# --- what there is at the end ------------------------------------------------------------------------------


class Truth:
    """What the naive twin says to the queries, for each cut of the files into epochs.

    A crash after Spark's file source noted a file, and before Spark noted the batch, puts that file into one batch
    with the next one; what is late then depends on it. So the cut is taken from the log.
    """

    def __init__(self, files: list[list[dict[str, Any]]]) -> None:
        self._files = files
        self._known: dict[tuple[int, ...], Expected] = {}
        self._lock = threading.Lock()

    def of(self, spec: str, ends: tuple[int, ...]) -> Expected:
        """The truth if epoch i ends with file `ends[i]`."""
        with self._lock:
            if ends not in self._known:
                self._known[ends] = self._answer(spec, ends)
            return self._known[ends]

    def _answer(self, spec: str, ends: tuple[int, ...]) -> Expected:
        cuts = zip((-1, *ends), ends, strict=False)
        epochs = [[row for file in self._files[first + 1 : last + 1] for row in file] for first, last in cuts]
        pond = from_json(spec)
        queries = {query.name: query for query in pond.queries}
        events = {name: _events(query, pond, epochs) for name, query in queries.items()}
        rows = {name: answer(query, events[name], drained=True) for name, query in queries.items()}
        latest: dict[str, dict[str, Any]] = {}
        for row in sorted(rows[program.SERVED], key=lambda row: int(str(row["at"]))):
            latest[str(row["customer"])] = row
        late = late_rows(queries[program.LATE], epochs)
        expected_counts = {name: counts(query, events[name]) for name, query in queries.items()}
        for name, query in queries.items():
            if query.having is not None:
                expected_counts[name]["withheld"] = withheld(query, epochs, len(rows[name]), drained=True)
        return Expected(rows, late, expected_counts, latest)


def _events(query: AnyQuery, pond: PondSpec, epochs: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """What a query reads: the events, or the rows of its inner query, of which none is late."""
    below = inner_of(query, {stream.name: stream for stream in pond.streams})
    return [as_events(below[-1], answer(below[-1], epochs, drained=True))] if below else epochs


def micros(text: str) -> int:
    """Microseconds of a time as the JSON sink writes it."""
    at = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    return round((at - datetime.datetime.fromtimestamp(0, datetime.timezone.utc)) / datetime.timedelta(microseconds=1))


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """All rows that a reader of the folder sees; each part by itself, as any reader would."""
    rows: list[dict[str, Any]] = []
    for part in sorted(folder.glob("part-*")):
        if part.suffix == ".parquet":
            table = pq.read_table(part)
            at = table.schema.get_field_index("at")
            table = table.set_column(at, "at", table["at"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()))
            rows += table.to_pylist()
        else:
            rows += [{**row, "at": micros(row["at"])} for row in map(json.loads, part.read_text().splitlines())]
    return rows


def completed(row: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The row with the NULLs that JSON leaves out."""
    return {name: row.get(name) for name in names}


def contents(base: Path) -> dict[str, bytes]:
    """Every byte that counts: log, even after a hole, and parts."""
    folder = program.address_in(base).folder("log")
    end = max(numbers_in(folder), default=-1) + MOST_UNLISTED + 1
    records = ((name, folder.read(name)) for name in map(numbered_name, range(end)))
    found = {f"pond/log/{name}": record for name, record in records if record is not None}
    return found | {str(file.relative_to(base)): file.read_bytes() for file in (base / "out").glob("*/part-*")}


def lasting(base: Path) -> dict[str, bytes]:
    """The contents without the bodies of records: pruning takes back those that nothing needs, at any time."""
    return {
        name: without_body(data) or data if name.startswith("pond/log") else data
        for name, data in contents(base).items()
    }  # fmt: skip


def log_of(base: Path) -> tuple[Manifest, list[EpochRecord]]:
    """The manifest and all epochs of the pond's log."""
    address = program.address_in(base)
    log = Log(address.folder("log"))
    manifest = load(log, Manifests(address.folder("manifest")))
    records = [decode(log.read(n) or b"").record for n in range(manifest.n + 1)]
    return manifest, [record for record in records if isinstance(record, EpochRecord)]


def check_exact(base: Path, truth: Truth) -> Expected:
    """Outputs, counts and view are those of the naive twin: nothing lost, nothing twice."""
    manifest, epochs = log_of(base)
    read = {json.loads(offset)["logOffset"]: epoch.n for epoch in reversed(epochs) for offset in epoch.end.values()}
    ends = [*reversed(read)]
    assert ends == sorted(ends) and ends[-1] == FILES - 1
    expected = truth.of(manifest.spec, tuple(ends))
    for name, rows in expected.rows.items():
        names = list(rows[0])
        found = difference(rows, [completed(row, names) for row in rows_in(base / "out" / name)])
        assert found is None, f"{name}: {found}"
    summed: dict[str, dict[str, int]] = {name: {} for name in expected.counts}
    for epoch in epochs:
        for name in expected.counts:
            for kind, value in epoch.counts.get(name, {}).items():
                summed[name][kind] = summed[name].get(kind, 0) + value
    of_rows = {name: {**of, "rows": len(expected.rows[name])} for name, of in expected.counts.items()}
    of_rows[program.LATE]["late_rows"] = len(expected.late)
    assert summed == of_rows
    check_late(base, expected, [read[end] for end in ends])
    check_view(base, expected, manifest)
    return expected


def check_late(base: Path, expected: Expected, numbers: list[int]) -> None:
    """Each late event that the query's filter takes stands in its folder once."""
    parts = [pq.read_table(part) for part in sorted((base / "out" / "late").glob("part-*"))]
    names = ["ts", "customer", "kind", "amount", "n", "_watermark"]
    rows = [{name: row[name] for name in names} | {"_epoch": numbers[row["_epoch"]]} for row in expected.late]
    assert rows
    found = difference(rows, pa.concat_tables(parts))
    assert found is None, f"late: {found}"


def check_view(base: Path, expected: Expected, manifest: Manifest) -> None:
    """The served query's latest rows, as of the last record in every bucket."""
    (file,) = [*base.glob("pond/view/rows.lmdb"), *base.glob("cache/*/view/rows.lmdb")]
    store = LmdbStore(file, read_only=True)
    try:
        buckets = list(scan(store, program.SERVED, from_json(manifest.spec).buckets))
    finally:
        store.close()
    assert {bucket.n for bucket in buckets} == {manifest.n}
    rows = [json.loads(document)["row"] for bucket in buckets for document in bucket.documents]
    found = {row["customer"]: {**row, "at": micros(row["at"])} for row in rows}
    assert found == expected.view


# --- scenarios ---------------------------------------------------------------------------------------------


ALONE = "epoch.after_job"
"""The step at which a driver is killed with its Java machine, which is its own."""

HERE = (*DRIVER_STEPS, *FOLLOWER_STEPS)


class Scenario(NamedTuple):
    """Drivers that are killed or stopped at these steps, in this order; `turn` chooses among the occurrences of a step.

    A step may name its occurrence, as in `begin.start:2`: each driver counts from one.
    """

    action: str
    steps: tuple[str, ...]
    turn: int = 0
    bucket: bool = False

    def __str__(self) -> str:
        steps = (step.partition(":")[0] for step in self.steps)
        return "-".join((self.action, *steps, str(self.turn), *(["bucket"] if self.bucket else [])))

    def has_two_stages(self, number: int) -> bool:
        """Whether each epoch of a driver has two stages; the drivers of a scenario alternate, and so do scenarios."""
        return (number + len("".join(self.steps)) + self.turn) % 2 == 1

    def faults(self, reached: dict[str, int]) -> list[tuple[str, str]]:
        """The steps, and the faults as the environment plans them."""
        return [(step.partition(":")[0], f"{self._occurrence(step, reached)}:{self.action}") for step in self.steps]

    def alone(self, step: str) -> bool:
        """Whether the driver needs a Java machine of its own: one in which tasks end waits for a stopped Python."""
        return step == ALONE or (self.action == "stop" and step in FOLLOWER_STEPS)

    def _occurrence(self, step: str, reached: dict[str, int]) -> str:
        """One of the occurrences in a quiet run, but not the last one, so that something is left to do."""
        if ":" in step:
            return step
        if step in program.PRUNE_STEPS:
            return f"{step}:1"
        last = max(1, reached[step] - 1 if step in DRIVER_STEPS else reached[step] // 2)
        first = min(2, last) if step.startswith("commit") and not self.turn else 1
        return f"{step}:{random.Random(f'{step}{self.turn}').randint(first, last)}"


SCENARIOS = [
    Scenario("stop", (f"{ALONE}:2", "drain.before:1", "claim.before:1")),
    Scenario("stop", ("begin.start:2", "sink.before_tmp:4")),
    Scenario("stop", ("begin.decided:2", "sink.after_tmp:4")),
    Scenario("stop", ("epoch.before_job:2", "sink.after_link:4"), bucket=True),
    Scenario("stop", ("commit.before_append:2", "sink.after_cursor:8")),
    Scenario("stop", ("commit.after_append:2", "view.before_apply:3")),
    Scenario("stop", ("commit.after_announce:2", "view.after_apply:3")),
    Scenario("stop", ("claim.after:1", "prune.before_body:1")),
    Scenario("stop", ("batch.return:1", "prune.before_delete:1")),
    Scenario("kill", ("claim.before:1", "begin.start:2", "epoch.before_job:2", "commit.before_append:2",
                      "batch.return:1")),
    Scenario("kill", ("claim.after:1", "begin.decided:2", "commit.after_append:2", "commit.after_announce:2",
                      "drain.before:1")),
    Scenario("kill", ("view.before_apply:3", "prune.before_body:1")),
    Scenario("kill", ("view.after_apply:3", "prune.before_delete:1")),
    Scenario("kill", (f"{ALONE}:2", "sink.after_cursor:8", "sink.before_tmp:2", "sink.after_tmp:1",
                      "sink.after_link:1"), bucket=True),
]  # fmt: skip
"""How far a driver gets before its sinks or its view reach a step depends on how threads are scheduled. Its successor
may find no input, but it begins with the record at which they stopped, and nothing that they lack is pruned. So behind
their steps there are only steps of sinks and of pruning.

Of drivers that are stopped in one scenario, only one reads in the Java machine of the tests: Spark waits there for the
end of the query before it starts another one with the same id.
"""

MORE = [Scenario(action, (step,), turn, bucket)
        for step in HERE for action in ("stop", "kill") for turn in (0, 1, 2) for bucket in (False, True)]  # fmt: skip


def run_scenario(world: World, scenario: Scenario) -> None:
    """Let it happen, let another driver finish, and compare."""
    base = world.base(str(scenario), bucket=scenario.bucket)
    asleep: dict[str, Driver] = {}
    with contextlib.ExitStack() as drivers:
        for number, (step, fault) in enumerate(scenario.faults(world.reached)):
            driver = drivers.enter_context(world.victims.one() if scenario.alone(step) else world.victims.joined())
            markers = base / "faults" / step
            markers.mkdir()
            options = {"fault": fault, "markers": str(markers), "two_stages": scenario.has_two_stages(number)}
            if scenario.action == "kill":
                driver.order(base, **options)
                assert driver.process.wait(SECONDS) == -signal.SIGKILL  # the Java machine of the tests lives on
                assert reached_in(markers) == {step}
            else:
                stop(driver, asleep, base, **options)
                asleep[step] = driver
            world.seen[step, scenario.action] = f"reached at {fault.split(':')[1]}, output exact"
        done = without_lock(asleep, lambda: world.successor.finish(base))
        assert done["ok"], done["error"]
        check_exact(base, world.truth)
        for step, driver in asleep.items():
            world.seen[step, "stop"] += f", woke up: {woken(base, step, driver)}"
        check_exact(base, world.truth)
    shutil.rmtree(base)


def stop(driver: Driver, asleep: dict[str, Driver], base: Path, **options: Any) -> None:
    """Run the pond until the driver and its processes sleep at its step."""

    def ran() -> dict[str, Any] | None:
        driver.order(base, **options)
        return driver.stopped()

    ended = without_lock(asleep, ran)
    assert ended is None, ended
    send_signal(descendants(driver.process.pid), signal.SIGSTOP)


def without_lock(asleep: dict[str, Driver], run: Callable[[], dict[str, Any] | None]) -> Any:
    """Run a pond; if the newest driver that sleeps holds the lock of LMDB, kill that driver, and run it again.

    The thread that writes the view may sleep with the lock. The next driver reports this, with this cure.
    """
    done = run()
    if done is not None and "writer's lock" in done["error"]:
        _, holder = asleep.popitem()
        holder.end()
        done = run()
    return done


def woken(base: Path, step: str, driver: Driver) -> str:
    """A driver wakes up after another one has finished, and changes nothing."""
    before = lasting(base)
    send_signal([*descendants(driver.process.pid), driver.process.pid], signal.SIGCONT)
    done = driver.reply()
    after = lasting(base)
    if step == "claim.before":  # it had not begun, so it is the next driver
        assert done["ok"], done["error"]
        after = {name: data for name, data in after.items() if name in before or name.startswith("out")}
    elif step in DRIVER_STEPS:
        assert "MP-FENCED" in done["error"], done
    else:
        assert done["ok"] or "MP-FENCED" in done["error"], done
    assert after == before
    return "nothing to do" if done["ok"] else "MP-FENCED"


def is_stopped(process: subprocess.Popen[Any]) -> bool:
    """Whether a process that has not ended is stopped by a signal."""
    state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert state != "Z", "it ended"
    return state == "T"


def with_faults(
    world: World, base: Path, faults: str = "", two_stages: bool = False, **workers: str
) -> dict[str, Any]:
    """Let the successor run a pond with faults that are planned in its workers, and count steps; the outcome."""
    markers = str(base / "faults")
    planned = {"faults": faults, "markers": markers, **workers}
    return world.successor.finish(base, markers=markers, two_stages=two_stages, workers=planned)


@pytest.fixture(scope="module")
def world(
    spark: SparkSession, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[World]:
    """The truth, and a successor that is warm from a quiet run, which counts steps."""
    root, keys = tmp_path_factory.mktemp("crash"), s3_server.environment
    victims, successor = Victims(root, spark, keys), Driver(root / "successor.log", **keys)
    truth, before = Truth(make_input(root / "input")), s3_server.fault_counts()
    quiet = World(root, truth, {}, successor, victims, s3_server, before, {})
    base = quiet.base("quiet")
    done = with_faults(quiet, base)
    assert done["ok"], done["error"]
    reached = {step.name: step.stat().st_size for step in (base / "faults").iterdir()}
    s3_server.disturb(DISTURBED)
    with pytest.MonkeyPatch.context() as patched:
        for name, value in keys.items():
            patched.setenv(name, value)
        yield quiet._replace(reached=reached)
    s3_server.disturb(0)
    victims.end()
    quiet.successor.end()
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n" + table(quiet.seen))


def table(seen: dict[tuple[str, str], str]) -> str:
    """Step by fault, and what was seen."""
    lines = [f"{'step':24}{'kill':48}stop"]
    for step in COMMON_STEPS:
        kill, stop = (seen.get((step, action), "-") for action in ("kill", "stop"))
        lines.append(f"{step:24}{kill:48}{stop}")
    return "\n".join([*lines, ""])


@pytest.fixture(scope="module")
def results(world: World, request: pytest.FixtureRequest) -> Iterator[dict[Scenario, Future[None]]]:
    """All scenarios that were selected, a few at a time."""
    selected = [item.callspec.params["scenario"] for item in request.session.items
                if "scenario" in getattr(getattr(item, "callspec", None), "params", ())]  # fmt: skip
    pool = ThreadPoolExecutor(LANES)
    yield {scenario: pool.submit(run_scenario, world, scenario) for scenario in selected}
    pool.shutdown(cancel_futures=True)


@pytest.mark.spark
def test_scenarios_have_every_step_of_drivers() -> None:
    planned = [(scenario.action, step.partition(":")[0]) for scenario in SCENARIOS for step in scenario.steps]
    assert sorted(planned) == sorted((action, step) for action in ("kill", "stop") for step in HERE)
    ways = {(scenario.action, scenario.has_two_stages(i)) for scenario in SCENARIOS for i in range(len(scenario.steps))}
    assert len(ways) == 4


@pytest.mark.spark
def test_a_quiet_run_reaches_every_step_and_is_exact(world: World) -> None:
    assert set(world.reached) == set(COMMON_STEPS)
    expected = check_exact(world.root / "quiet", world.truth)
    assert all(expected.rows.values())
    assert all(of["applied"] and (of["late"] or name == program.STEPS) for name, of in expected.counts.items())


@pytest.mark.exhaustive
@pytest.mark.spark
@pytest.mark.parametrize("scenario", MORE, ids=str)
def test_more_occurrences(scenario: Scenario, results: dict[Scenario, Future[None]]) -> None:
    results[scenario].result()


@pytest.mark.spark
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_drivers_may_be_killed_or_stopped_one_after_the_other(
    scenario: Scenario, results: dict[Scenario, Future[None]]
) -> None:
    results[scenario].result()


@pytest.mark.spark
def test_requests_to_the_bucket_have_failed_in_each_way(world: World, results: dict[Scenario, Future[None]]) -> None:
    for future in results.values():
        future.result()
    happened = world.store.fault_counts() - world.faults_before
    assert {*happened} >= {fault for faults in DISTURBANCES.values() for fault in faults} - {"stale listing"}


# --- workers -----------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize("two_stages", [False, True])
def test_a_killed_worker_costs_a_retry_of_its_task(world: World, two_stages: bool) -> None:
    """One fault per step and epoch: a task may fail four times, so all of them fit into one run."""
    faults = [f"{step}:{epoch if step == 'gather.start' else 2 * epoch - 1}:kill"
              for epoch, step in enumerate(WORKER_STEPS, 1)]  # fmt: skip
    base = world.base(f"workers {two_stages}")
    done = with_faults(world, base, ",".join(faults), two_stages, master="local[2,4]")
    assert done["ok"], done["error"]
    assert reached_in(base / "faults") == set(WORKER_STEPS)
    check_exact(base, world.truth)
    for fault in faults:
        step, occurrence, _ = fault.split(":")
        world.seen[step, "kill"] = f"reached at {occurrence}, task ran again, output exact"


@pytest.mark.spark
@pytest.mark.parametrize("step", [pytest.param(step, marks=() if step == "fold.after_delta" else pytest.mark.exhaustive)
                                  for step in WORKER_STEPS])  # fmt: skip
@pytest.mark.parametrize("two_stages", [False, True])
def test_without_retries_a_killed_worker_ends_the_run_and_the_next_run_is_right(
    world: World, step: str, two_stages: bool
) -> None:
    """Its workers are never used twice, and give the same output as others."""
    base = world.base(f"worker-{step}-{two_stages}")
    assert not with_faults(world, base, f"{step}:5:kill", two_stages, reuse="false")["ok"]
    assert reached_in(base / "faults") == {step}
    again = with_faults(world, base, f"{step}:5:kill", two_stages, reuse="false")
    assert again["ok"], again["error"]
    check_exact(base, world.truth)


# --- losses ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def half_pond(world: World) -> Path:
    """A pond that has taken three files; the other three have arrived, and a copy of `spark` is one file older."""
    base = world.base("half", 2)
    for files in (2, 3):
        assert world.successor.finish(base, drain=False)["ok"]
        if files == 2:
            shutil.copytree(base / "pond" / "spark", base / "older")
            world.feed(base, 2, 3)
    world.feed(base, 3)
    shutil.copytree(base, world.root / "half as it was")
    return base


@pytest.fixture
def half(world: World, half_pond: Path) -> Path:
    """That pond, as it was; it stays in its folder, as Spark notes the paths of files."""
    shutil.rmtree(half_pond)
    shutil.copytree(world.root / "half as it was", half_pond)
    return half_pond


def lose(*patterns: str) -> Callable[[Path], None]:
    """A harm that deletes whatever matches."""

    def harm(base: Path) -> None:
        found = [place for pattern in patterns for place in base.glob(pattern)]
        assert found or "cache" in patterns
        for place in found:
            shutil.rmtree(place) if place.is_dir() else place.unlink()

    return harm


def restore_older(base: Path) -> None:
    shutil.rmtree(base / "pond" / "spark")
    shutil.copytree(base / "older", base / "pond" / "spark")


def damage(file: Path) -> None:
    """Change one byte in the middle."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def damage_delta(base: Path) -> None:
    named = log_of(base)[0].sections.values()
    damage(base / "pond" / max(section.file for section in named if section.file is not None))


def damage_record(base: Path) -> None:
    damage(max((base / "pond" / "log").glob("[0-9]*")))


SURVIVED = {
    "view": lose("pond/view"),
    "cache": lose("cache"),
    "manifests and hints": lose("pond/manifest", "pond/log/_last"),
    "cursors of sinks": lose("out/*/_millpond_cursor"),
    "Spark's checkpoint": lose("pond/spark"),
    "an older copy of it": restore_older,
}
REFUSED = {"a delta": damage_delta, "a record": damage_record}


@pytest.mark.spark
@pytest.mark.parametrize("lost", SURVIVED)
def test_what_is_derived_may_be_lost(world: World, half: Path, lost: str) -> None:
    SURVIVED[lost](half)
    done = world.successor.finish(half)
    assert done["ok"], done["error"]
    check_exact(half, world.truth)


@pytest.mark.spark
@pytest.mark.parametrize("lost", REFUSED)
def test_what_is_not_derived_is_refused_by_name(world: World, half: Path, lost: str) -> None:
    REFUSED[lost](half)
    before = contents(half)
    done = world.successor.finish(half)
    assert "MP-CORRUPT" in done["error"], done
    assert {name: data for name, data in contents(half).items() if name in before} == before


HOLD_THE_LOCK = """
    import lmdb, os, signal, sys
    environment = lmdb.open(sys.argv[1], subdir=False, max_dbs=2)
    with environment.begin(write=True):
        os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.spark
def test_a_view_locked_by_a_stopped_process_is_refused_by_name(world: World, half: Path) -> None:
    base = half
    file = base / "pond" / "view" / "rows.lmdb"
    holder = subprocess.Popen([sys.executable, "-c", textwrap.dedent(HOLD_THE_LOCK), str(file)])
    try:
        until(lambda: is_stopped(holder), "the holder of the lock stops")
        done = world.successor.finish(base)
        assert "MP-STORE" in done["error"] and "writer's lock" in done["error"], done
    finally:
        holder.kill()
        holder.wait()
    done = world.successor.finish(base)
    assert done["ok"], done["error"]
    check_exact(base, world.truth)
