"""Every kind of sink passes the conformance suite of sinks: one test over the table of kinds."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from kit.programs.forked_program import ForkedProgram
from kit.servers import sink_arguments
from millpond.connections import VARIABLE
from millpond.faults import DELIVERY_STEPS, TOPIC_STEPS
from millpond.followers.sinks.in_process import MemoryTables
from millpond.followers.sinks.kinds import BUILT_IN
from millpond.followers.sinks.make_sink import sink_cursor
from millpond.model.endpoints import Sink
from millpond.testing import sink_program
from millpond.testing.sink_conformance import OUTPUT, Target, check_sink

FOLDER_STEPS = ("sink.before_tmp", "sink.after_tmp", "sink.after_link", "sink.after_cursor")
ARGUMENTS = sink_arguments.__name__
NewTarget = Callable[[Path], Target]


def sink(name: str, path: Path | None = None, **options: str) -> Sink:
    return Sink(name, None if path is None else str(path), tuple(sorted(options.items())))


@pytest.fixture
def parquet() -> NewTarget:
    return lambda folder: Target(
        sink("parquet", folder / "out"),
        lambda: [n for file in (folder / "out").glob("part-*.parquet") for n in pq.read_table(file)["n"].to_pylist()],
    )


@pytest.fixture
def json_() -> NewTarget:
    def read(folder: Path) -> list[int]:
        return [json.loads(line)["n"] for file in folder.glob("part-*.json") for line in file.read_text().splitlines()]

    return lambda folder: Target(sink("json", folder / "out"), lambda: read(folder / "out"))


@pytest.fixture
def csv() -> NewTarget:
    def read(folder: Path) -> list[int]:
        return [
            int(line.split(",")[-1]) for file in folder.glob("part-*.csv") for line in file.read_text().splitlines()
        ]

    return lambda folder: Target(sink("csv", folder / "out"), lambda: read(folder / "out"), ("k", "n"))


@pytest.fixture
def delta() -> NewTarget:
    def read(folder: Path) -> list[int]:
        return DeltaTable(str(folder)).to_pyarrow_table(columns=["n"])["n"].to_pylist()

    return lambda folder: Target(sink("delta", folder / "out"), lambda: read(folder / "out"))


@pytest.fixture
def console() -> NewTarget:
    def read(printed: Path) -> list[int]:
        lines = (line.rpartition(" ")[2] for line in printed.read_text().splitlines() if line.startswith("{"))
        return [int(number) for number in lines]

    return lambda folder: Target(sink("console", numRows="100"), lambda: read(folder / OUTPUT))


@pytest.fixture
def noop() -> NewTarget:
    return lambda _folder: Target(sink("noop"), list)


@pytest.fixture
def subscribers() -> NewTarget:
    """The rows stay in the log, where the service reads them up to the cursor; see `test_row_stream`."""

    def read(folder: Path) -> list[int]:
        cursor = sink_cursor(sink_program.query(sink("subscribers")), folder / "cursors") or 0
        found = (table.column("n").to_pylist() for n, table in sink_program.entries(folder) if n <= cursor)
        return [number for numbers in found for number in numbers]

    return lambda folder: Target(sink("subscribers"), lambda: read(folder))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> NewTarget:
    def new_target(_folder: Path) -> Target:
        tables = MemoryTables()
        monkeypatch.setattr(sink_arguments, "memory", lambda: {"memory": tables}, raising=False)
        return Target(sink("memory"), lambda: tables.table("q")["n"].to_pylist(), arguments=f"{ARGUMENTS}:memory")

    return new_target


@pytest.fixture
def foreach(monkeypatch: pytest.MonkeyPatch) -> NewTarget:
    def new_target(folder: Path) -> Target:
        monkeypatch.setenv(sink_arguments.CALLS, str(folder / "calls"))
        calls = folder / "calls"
        return Target(
            sink("foreach"), lambda: [int(n) for n in calls.read_text().split()], arguments=f"{ARGUMENTS}:foreach"
        )

    return new_target


@pytest.fixture
def redis(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> NewTarget:
    server = request.getfixturevalue("redis_server")
    monkeypatch.setenv(sink_arguments.REDIS, server.url)

    def read() -> list[int]:
        with server.client() as client:
            return [int(client.hget(key, "n")) for key in client.scan_iter("row:*")]

    def new_target(_folder: Path) -> Target:
        server.flush()
        return Target(sink("redis", key="row:{n}", columns="n"), read, arguments=f"{ARGUMENTS}:redis")

    return new_target


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> NewTarget:
    server = request.getfixturevalue("kafka_connected")

    def new_target(_folder: Path) -> Target:
        topic = f"s-{uuid.uuid4().hex[:8]}"
        server.create(topic, 2)
        return Target(sink("kafka", topic=topic), lambda: [json.loads(m.value)["n"] for m in server.read(topic)])

    return new_target


@pytest.fixture
def postgres(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NewTarget:
    server = request.getfixturevalue("postgres_server")
    (tmp_path / "connections.json").write_text(json.dumps({"db": server.connection}))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "connections.json"))

    def read(table: str) -> list[int]:
        with server.client() as client:
            return [n for (n,) in client.execute(f"SELECT n FROM {table}").fetchall()]

    def new_target(_folder: Path) -> Target:
        schema = f"s{uuid.uuid4().hex[:8]}"
        with server.client() as client:
            client.execute(f'CREATE SCHEMA "{schema}"')
        return Target(sink("postgres", table=f"{schema}.t", key="n"), lambda: read(f"{schema}.t"))

    return new_target


@pytest.fixture
def webhook(request: pytest.FixtureRequest) -> NewTarget:
    server = request.getfixturevalue("hook_server")

    def new_target(_folder: Path) -> Target:
        server.taken.clear()
        return Target(sink("webhook"), lambda: [row["n"] for one in server.taken.values() for row in one["rows"]])

    return new_target


@pytest.mark.slow
@pytest.mark.parametrize("name", [kind.name for kind in BUILT_IN])
def test_every_kind_of_sink_keeps_what_all_sinks_promise(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    new_target = request.getfixturevalue("json_" if name == "json" else name)
    steps: dict[str, Sequence[str]] = dict.fromkeys(("parquet", "json", "csv"), FOLDER_STEPS) | {"kafka": TOPIC_STEPS}
    kind = check_sink(new_target, tmp_path / "check", steps.get(name, DELIVERY_STEPS), ForkedProgram)
    assert kind.name == name
