"""A pond as a service: changed by the client while events flow, its leader killed, its standby leads afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from socket import gethostname
from typing import Any, TypeVar

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.unit.service.server.test_metrics import expressions
from typer.testing import CliRunner

from kit.programs.forked_program import ForkedProgram
from kit.programs.shared_java import joining
from millpond.cli import app
from millpond.errors import AccessError, ChangeRefused, NotServingError, QueryRefused
from millpond.service.api.client import Client
from millpond.service.api.messages import Changed, Priced
from millpond.service.api.serve_options import Options
from millpond.service.api.service_files import Places
from millpond.service.server.serve_process import Web, serve
from millpond.service.server.warm_up import run_small_pond

pytestmark = [pytest.mark.spark, pytest.mark.slow]

T = TypeVar("T")
SECOND = 1_000_000
WINDOW = "window(ts, '10 seconds')"
SPEND = f"""SELECT c, {WINDOW}.start AS start, count(*) AS n, sum(v) AS total
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 1 SECOND GROUP BY c, {WINDOW}"""
# only Spark evaluates `soundex`: whoever takes over has to analyse the text again
BIG = SPEND.replace("GROUP BY", "WHERE v >= :least AND soundex(c) <> 'x' GROUP BY")


JOINED = Path(__file__).with_name("joined_session.py")


@contextmanager
def running(log: Path, *words: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process with these arguments, whose output goes to `log`; it is killed at the end."""
    path = [str(JOINED.parent), os.environ["PYTHONPATH"]]
    with log.open("wb") as output:
        process = ForkedProgram(
            words, stdout=output, stderr=output, env=os.environ | {"PYTHONPATH": os.pathsep.join(path)} | environment
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)


class Bench:
    """A pond file with one stream of files, and the processes that serve it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file, self.pond = folder, folder / "tx.sql", folder / "tx.pond"
        (folder / "in").mkdir()
        self.file.write_text(
            "CREATE TABLE tx (ts TIMESTAMP, c STRING, v BIGINT) USING parquet "
            f"OPTIONS (path '{folder}/in', maxFilesPerTrigger 1) TBLPROPERTIES ('max_ahead' = '2 hours');\n"
            f"CREATE STREAMING TABLE spend USING json TBLPROPERTIES ('path' = '{folder}/spend', 'serve' = 'true') AS\n"
            f"{SPEND};\n"
        )
        self.files = 0

    def add_file(self) -> None:
        """A hundred events of the next ten seconds."""
        k, rows = self.files, 100
        times = [(k * rows + i) * 10 * SECOND // rows for i in range(rows)]
        columns = {"ts": pa.array(times, pa.timestamp("us", "UTC")), "c": [f"c{i % 4}" for i in range(rows)],
                   "v": pa.array(range(rows), pa.int64())}  # fmt: skip
        draft = self.folder / "draft.parquet"
        pq.write_table(pa.table(columns), draft)
        os.utime(draft, (1_700_000_000 + k,) * 2)
        draft.rename(self.folder / "in" / f"{k:04d}.parquet")
        self.files += 1

    @contextmanager
    def serve(
        self, name: str, program: Sequence[str] = ("-m", "millpond"), java: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A process of `millpond serve`; it starts a Java machine unless `java` names the one that it joins."""
        options = ["--master", "local[2]", "--memory", "700m", "--patience", "4"]
        words = (*program, "serve", str(self.file), *options)
        with running(self.folder / f"{name}.log", *words, **(java or {})) as process:
            yield process

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


def until(look: Callable[[], T | None], what: Callable[[], str], seconds: float = 200) -> T:
    """What `look` gives, once it gives something."""
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        with suppress(NotServingError):
            if found := look():
                return found
        time.sleep(min(1.0, max(0.05, 9 * (time.monotonic() - began))))  # a request takes CPU of the service, too
    raise AssertionError(what())


Rows = dict[tuple[str, int], tuple[int, int]]


def written(folder: Path) -> Rows:
    """Rows by key and window; each exists once."""
    parts = sorted(folder.glob("part-*"))
    return in_windows(json.loads(line) for part in parts for line in part.read_text().splitlines())


def in_windows(rows: Iterable[dict[str, Any]], but: Container[tuple[str, int]] = ()) -> Rows:
    """Rows by key and window; each exists once, and none is one of `but`."""
    found: Rows = {}
    for row in rows:
        key = (row["c"], int(row["start"][17:19]) + 60 * int(row["start"][14:16]))
        assert key not in found and key not in but, f"{key} was sent twice"
        found[key] = (row["n"], row["total"])
    return found


def expected(windows: range, least: int = 0) -> Rows:
    values = {f"c{i}": [v for v in range(i, 100, 4) if v >= least] for i in range(4)}
    return {(c, 10 * k): (len(mine), sum(mine)) for k in windows for c, mine in values.items()}


def metrics(client: Client, pond: Path) -> set[str]:
    """The lines of a scrape, as Prometheus makes it."""
    headers = {"authorization": f"Bearer {Places(pond).known_secret()}"}
    return set(httpx.get(f"{client.url}/metrics", headers=headers).raise_for_status().text.splitlines())


def test_a_pond_is_served_changed_killed_and_taken_over(spark: SparkSession, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.add_file()
    bench.add_file()

    def client() -> Client:
        return Client.of(bench.pond, who="ann")

    def output_of(name: str) -> Callable[[], str]:
        return lambda: bench.said(name)

    # the leader has a Java machine of its own: in a shared one, Spark may stop the dead leader's query for the standby
    with ThreadPoolExecutor() as subscribers, bench.serve("first") as first:
        until(lambda: client().health().role == "leader", output_of("first"))
        text = bench.file.read_text()
        bench.file.write_text(text.replace("sum(v) AS total", "max(v) AS total"))
        with bench.serve("second", [str(JOINED)], joining(spark)) as second:
            # live changes, while the second one starts
            leader = client()
            until(lambda: leader.status().events == 200, output_of("first"))
            with pytest.raises(ChangeRefused, match="least"):
                leader.add("big", BIG, sink="json")
            assert leader.param("least", 40, new=True).record
            price = leader.add("big", BIG, sink="json", dry_run=True)
            assert isinstance(price, Priced) and price.cost == "complete later"
            big = leader.add("big", BIG, sink="json")
            assert isinstance(big, Changed) and big.record and big.complete_from_us == price.complete_from_us
            before = leader.rows("big")
            first_rows = subscribers.submit(lambda: [next(before) for _ in range(4)])
            with pytest.raises(QueryRefused):
                leader.add("passwords", "SELECT * FROM text.`/etc/passwd`")
            with pytest.raises(AccessError):
                Client(leader.url, "a-token-that-is-wrong").queries()
            bench.add_file()
            bench.add_file()
            until(lambda: leader.status().events == 400, output_of("first"))
            until(lambda: leader.lookup("spend", "c1").window_us == (20 * SECOND, 30 * SECOND), output_of("first"))
            row = {"c": "c1", "n": 25, "start": "1970-01-01T00:00:20.000Z", "total": 1225}
            assert leader.lookup("spend", "c1").row == row
            served = leader.table("spend")
            assert {one["c"]: one["n"] for one in served.to_pylist()} == {f"c{i}": 25 for i in range(4)}
            assert int(served.schema.metadata[b"record"]) > 0
            scraped = metrics(leader, bench.pond)
            assert scraped >= {"millpond_leader 1.0", "millpond_events_total 400.0", "millpond_queries 2.0"}
            assert {'millpond_query_events_total{fate="applied",query="spend"} 400.0'} <= scraped
            assert {'millpond_stream_event_time_seconds{stream="tx"} 39.9'} <= scraped
            assert f'millpond_instance_host{{host="{gethostname()}",pond_instance="0"}} 1.0' in scraped
            known = {line.split()[2] for line in scraped if line.startswith("# TYPE")}
            used = {name for one in expressions() for name in re.findall(r"\bmillpond_\w+", one)}
            assert used and {re.sub("_(bucket|sum|count)$", "", name) for name in used} <= known

            # the standby tells what the log says, and changes nothing
            until(lambda: "Standing by" in bench.said("second"), output_of("second"))
            url = re.findall(r"served at (\S+)", bench.said("second"))[0]
            standby = Client(url, Places(bench.pond).known_secret())
            assert standby.health().role == "standby"
            assert {"millpond_leader 0.0", "millpond_queries 2.0"} <= metrics(standby, bench.pond)
            rows = in_windows(first_rows.result(60))
            both = Client(f"{leader.url},{url}", str(Places(bench.pond).known_secret()))
            after = both.rows("big", after=before.position)
            last_rows = subscribers.submit(lambda: [next(after) for _ in range(8)])
            assert [query.name for query in standby.queries()] == ["big", "spend"]
            with pytest.raises(NotServingError, match="standby") as error:
                standby.drop("big")
            assert leader.url in error.value.cure

            first.send_signal(signal.SIGKILL)
            killed = time.monotonic()
            until(lambda: standby.health().role == "leader", output_of("second"))
            changed = until(lambda: client().param("least", 60), output_of("second"))
            seconds = time.monotonic() - killed
            noticed = standby.status().took_over_s
            print(f"led again {noticed:.2f} s after it was noticed, and was changed {seconds:.2f} s after the kill")
            assert client().url == url and changed.record
            assert "spend has another text there (`millpond alter`)" in bench.said("second")

            # nothing was lost, nothing comes twice, and changes go on
            bench.add_file()
            bench.add_file()
            until(lambda: standby.status().events == 200, output_of("second"))
            until(lambda: len(written(tmp_path / "spend")) == 20, output_of("second"))
            until(lambda: len(written(bench.pond / "out" / "big")) == 12, output_of("second"))
            assert written(tmp_path / "spend") == expected(range(5))
            assert written(bench.pond / "out" / "big") == expected(range(2, 4), 40) | expected(range(4, 5), 60)
            # a subscriber of both processes got the same rows, each once
            rows |= in_windows(last_rows.result(60), but=rows)
            assert rows == written(bench.pond / "out" / "big")
            in_a_terminal(bench.pond)
            second.send_signal(signal.SIGTERM)
            assert second.wait(240) == 0, bench.said("second")


def test_a_standby_warms_up_with_an_epoch_that_leaves_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run_small_pond(spark) == 3
    assert not any(tmp_path.glob("*warm-up*"))


LONG_ANALYSIS = """
import os, sys, time
from millpond.spark.catalyst.analysis_threads import Analyses
from millpond.spark.frontend import frontend
from millpond.cli import main

Analyses.__init__.__defaults__ = (3600.0, 4)  # the analysis is not given up because of its time limit
extract = frontend.extract_any

def slowly(catalyst, frame, terms, *rest):
    if terms.name == "slow":
        print("analysing slow", flush=True)
        {work}
    return extract(catalyst, frame, terms, *rest)

if "PYSPARK_GATEWAY_PORT" in os.environ:
    from joined_session import joined_session
    joined_session()
frontend.extract_any = slowly
main()
"""


@pytest.mark.parametrize(
    "work", ["time.sleep(3000)", "frame.sparkSession._jvm.java.lang.Thread.sleep(3_000_000)", "while True: pass"]
)
def test_a_service_ends_without_waiting_for_a_long_analysis(spark: SparkSession, work: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.add_file()
    java = {} if "_jvm" in work else joining(spark)  # Java that is at work is ended with its service
    program = tmp_path / "program.py"
    program.write_text(LONG_ANALYSIS.format(work=work))
    with bench.serve("it", [str(program)], java) as service, ThreadPoolExecutor(1) as pool:
        until(lambda: Client.of(bench.pond).status().events == 100, lambda: bench.said("it"))
        adding = pool.submit(Client.of(bench.pond).add, "slow", SPEND, sink="json")
        until(lambda: "analysing slow" in bench.said("it"), lambda: bench.said("it"))
        service.send_signal(signal.SIGTERM)
        assert service.wait(240) == 0, bench.said("it")
        with pytest.raises(NotServingError):
            adding.result(60)

    def look(client: Client) -> None:
        assert [query.name for query in client.queries()] == ["spend"]

    serve_here(bench, look)


def test_a_leader_that_was_suspended_past_its_take_over_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.add_file()
    bench.add_file()

    def output_of(name: str) -> Callable[[], str]:
        return lambda: bench.said(name)

    # the Java machine of the leader is suspended, too
    with ExitStack() as ends:
        leader = ends.enter_context(bench.serve("first"))
        until(lambda: "Leading" in bench.said("first"), output_of("first"))
        standby = ends.enter_context(bench.serve("second", [str(JOINED)], joining(spark)))
        until(lambda: "Standing by" in bench.said("second"), output_of("second"))
        until(lambda: Client.of(bench.pond).status().events == 200, output_of("first"))
        until(lambda: Client.of(bench.pond).lookup("spend", "c1").window_us == (0, 10 * SECOND), lambda: "the view")
        old = Client.of(bench.pond)
        family = [leader.pid, *below(leader.pid)]
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        until(lambda: "Leading" in bench.said("second"), output_of("second"))
        bench.add_file()
        bench.add_file()
        until(lambda: Client.of(bench.pond).status().events == 200, output_of("second"))
        until(lambda: Client.of(bench.pond).lookup("spend", "c1").window_us == (20 * SECOND, 30 * SECOND),
              output_of("second"))  # fmt: skip
        assert Client.of(bench.pond).url != old.url
        for pid in family:
            os.kill(pid, signal.SIGCONT)
        bench.add_file()
        until(lambda: "MP-FENCED" in bench.said("first"), output_of("first"))
        until(lambda: old.health().role == "standby", output_of("first"))
        until(lambda: len(written(tmp_path / "spend")) == 16, output_of("second"))
        assert written(tmp_path / "spend") == expected(range(4))
        until(lambda: Client.of(bench.pond).lookup("spend", "c1").window_us == (30 * SECOND, 40 * SECOND),
              output_of("second"))  # fmt: skip
        assert "starts anew" not in bench.said("first"), "a suspension is not a stall"
        for process in (standby, leader):
            process.send_signal(signal.SIGTERM)
            assert process.wait(240) == 0


def below(pid: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found += [int(stat.parent.name), *below(int(stat.parent.name))]
    return found


def in_a_terminal(pond: Path) -> None:
    """The same requests as commands."""

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--checkpoint", str(pond)])
        assert done.exit_code == 0, done.output
        return done.output

    assert re.search(r"^big +windowed +running +version 1 +of tx", run("list"), re.MULTILINE)
    assert "least = 60  bigint" in run("param", "list")
    assert "at once" in run("pause", "big", "--dry-run")
    assert re.match(r"pause big at record \d+", run("pause", "big"))
    assert "paused" in run("show", "big")
    assert re.match(r"resume big at record \d+", run("resume", "big"))
    add = f"CREATE STREAMING TABLE again USING json TBLPROPERTIES ('emit' = 'final') AS {BIG}"
    assert "complete" in run("sql", "--dry-run", "-c", add) and "again" not in run("list")
    assert re.search(r"^drop big at record \d+", run("sql", "-c", "DROP STREAMING TABLE big"), re.MULTILINE)
    changes = [line.split("  ")[2] for line in run("history").splitlines()]
    assert changes == ["drop big", "resume big", "pause big", "param least = 60", "add big", "param least = 40"]
    assert "leader" in run("status")
    assert re.search(r"^driver +job +[0-9.]+ ms", run("trace"), re.MULTILINE)


def serve_here(bench: Bench, ask: Callable[[Client], None]) -> None:
    """Serve the pond in this process, until `ask` finishes and sends SIGTERM."""
    said: list[str] = []

    def asking() -> None:
        try:
            ask(until(lambda: (one := Client.of(bench.pond)).health().role == "leader" and one, lambda: str(said)))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    text, pushed = bench.file.read_text(), ("pushed",)
    options = Options(text, bench.pond, "local[2]", "700m", "lmdb", None, None, 10.0, pushed=pushed)
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # if it comes when the service has failed already
    try:
        with ThreadPoolExecutor(1) as pool:
            requests = pool.submit(asking)
            serve(options, Web(), said.append)
            requests.result()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert said[-1] == "Stopped."


def test_a_pond_begins_with_no_query_and_ends_with_none(spark: SparkSession, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    columns = "(ts TIMESTAMP, c STRING, v BIGINT)"
    (tmp_path / "pushed").mkdir()
    pushed = f"CREATE TABLE pushed {columns} USING json OPTIONS (path '{tmp_path}/pushed');"
    bench.file.write_text(bench.file.read_text().partition("CREATE STREAMING")[0] + pushed)
    bench.add_file()
    bench.add_file()

    def begin(client: Client) -> None:
        assert client.queries() == []
        client.add("spend", SPEND, sink="json")
        until(lambda: client.status().events == 200, lambda: "begin")
        client.add("each", "SELECT c, v FROM STREAM pushed", sink="subscribers")
        rows = client.rows("each")
        for key in ("a", "a", "b"):  # the second request repeats the first one
            done = client.push("pushed", [{"ts": "1970-01-01T00:00:00Z", "c": key, "v": 7}], key=key)
            assert done.events == 1
        assert [next(rows), next(rows)] == [{"c": "a", "v": 7}, {"c": "b", "v": 7}]
        client.drop("each")

    def end(client: Client) -> None:
        assert [query.name for query in client.queries()] == ["spend"]
        client.drop("spend")
        assert client.queries() == []

    def begin_again(client: Client) -> None:
        assert client.queries() == []
        client.add("again", SPEND, sink="json")
        bench.add_file()
        bench.add_file()
        until(lambda: len(written(bench.pond / "out" / "again")) == 4, lambda: "again")

    for turn in (begin, end, begin_again):
        serve_here(bench, turn)
    assert written(bench.pond / "out" / "spend") == expected(range(1))
    assert written(bench.pond / "out" / "again") == expected(range(2, 3))
