"""Rows in a PostgreSQL table: exactly once by key, after any crash, restart or take-over."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import psycopg
import pyarrow as pa
import pytest

from kit.inputs.log_examples import numbered
from kit.servers.postgres_server import PostgresServer
from millpond.connections import VARIABLE
from millpond.errors import AheadError, QueryTypeError, SetupError, StoreError, UnsupportedQuery
from millpond.followers.sinks import postgres
from millpond.followers.sinks.postgres import Database, PostgresSink, Table
from millpond.kernels.columns import arrow_type
from millpond.log.cursor import Cursor, cursor_at
from millpond.log.records import Entry
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.windows import Sliding

UTC = timezone.utc
Row = tuple[Any, ...]


def connect(folder: Path, patch: pytest.MonkeyPatch, server: PostgresServer) -> None:
    path = folder / "connections.json"
    path.write_text(json.dumps({"kafka": {"servers": "h:1"}, "db": server.connection}))
    patch.setenv(VARIABLE, str(path))


@pytest.fixture
def table(postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A table of its own in a schema of its own, so that cursors are its own too; the server is the only database."""
    connect(tmp_path, monkeypatch, postgres_server)
    schema = f"s{uuid.uuid4().hex[:8]}"
    with postgres_server.client() as client:
        client.execute(f'CREATE SCHEMA "{schema}"')
    yield f"{schema}.spend"


def stored(server: PostgresServer, table: str, order: str = "1, 3") -> list[Row]:
    with server.client() as client:
        return client.execute(f"SELECT * FROM {table} ORDER BY {order}").fetchall()


def expected(program: ModuleType, folder: Path) -> list[Row]:
    """The last row of each window and key of an epoch, by a loop."""
    last: dict[tuple[Any, ...], Row] = {}
    for _, table in program.entries(folder):
        for row in table.to_pylist():
            window = (row["w"]["start"], row["w"]["end"])
            last[(*window, row["k"])] = (*window, row["k"], row["n"])
    return sorted(last.values())


FAULTS = "delivery.before:2:kill,delivery.written:3:kill,delivery.after:4:kill,delivery.written:7:kill"


@pytest.mark.slow
def test_a_driver_that_is_killed_between_the_steps_loses_and_repeats_nothing(
    postgres_server: PostgresServer, table: str, tmp_path: Path, program: ModuleType, bring_killed: Callable[..., int]
) -> None:
    program.make_pond(tmp_path)
    assert bring_killed("postgres", table=table, faults=FAULTS) == 5
    assert stored(postgres_server, table) == expected(program, tmp_path)
    schema = table.partition(".")[0]
    n, entry, _ = [*program.make_pond(tmp_path)][-1]
    assert stored(postgres_server, f"{schema}.millpond_cursors", "1") == [("p", "q", n, cursor_at(entry).mark)]


def test_a_table_that_has_rows_of_lost_records_is_given_nothing_until_it_is_set_back(
    postgres_server: PostgresServer, table: str, tmp_path: Path, program: ModuleType
) -> None:
    log = list(program.make_pond(tmp_path))
    sink = program.sink_of(tmp_path, "postgres", table=table)
    program.bring(tmp_path, sink)
    before = stored(postgres_server, table)
    last = len(log) - 1
    with postgres_server.client() as client:
        client.execute(f"UPDATE {table.partition('.')[0]}.millpond_cursors SET mark = 'lost w'")
    assert sink.cursor() == Cursor(last, "lost w")
    with pytest.raises(AheadError, match=f"record {last} of the log is another one now"):
        sink.apply(last, log[last][1], log[last][2])
    assert stored(postgres_server, table) == before
    back = cursor_at(log[2][1])
    assert "set back from record" in sink.rewind(back) and sink.cursor() == back
    program.bring(tmp_path, sink)
    assert stored(postgres_server, table) == before, "rows replace those of their keys"
    sink.close()


def test_a_table_whose_rows_have_no_key_is_not_set_back(
    postgres_server: PostgresServer, table: str, tmp_path: Path, program: ModuleType
) -> None:
    query = program.query(Sink("postgres", None, (("table", table),)))
    query = msgspec.structs.replace(query, event=(Column("id", "bigint"),))  # rows of events
    log = list(program.make_pond(tmp_path))
    sink = PostgresSink(query, "p", program.RowsReader(program.section_reader(program.Files(tmp_path))))
    program.bring(tmp_path, sink)
    before = sink.cursor()
    with pytest.raises(AheadError, match=r"have no key.*after record 2 .*UPDATE millpond_cursors SET n = 2"):
        sink.rewind(cursor_at(log[2][1]))
    assert sink.cursor() == before
    sink.close()


@pytest.mark.parametrize("may_change", [True, False])
def test_a_table_of_cursors_of_an_older_version_is_gone_on_with(
    postgres_server: PostgresServer, table: str, tmp_path: Path, program: ModuleType, may_change: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    cursors = f"{table.partition('.')[0]}.millpond_cursors"
    log = list(program.make_pond(tmp_path))
    program.bring(tmp_path, first := program.sink_of(tmp_path, "postgres", table=table))
    first.close()
    user = f"u{uuid.uuid4().hex[:8]}"
    with postgres_server.client() as client:
        client.execute(f"TRUNCATE {table}")
        client.execute(f"ALTER TABLE {cursors} DROP COLUMN mark")
        client.execute(f"UPDATE {cursors} SET n = 2")
        if not may_change:
            schema = table.partition(".")[0]
            client.execute(f"CREATE ROLE {user} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {user}")
            client.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}")
            client.execute(f"GRANT TEMPORARY ON DATABASE {postgres_server.connection['database']} TO {user}")
    if not may_change:
        limited = {**postgres_server.connection, "user": user}
        path = tmp_path / "connections.json"
        path.write_text(json.dumps({"db": limited}))
        monkeypatch.setenv(VARIABLE, str(path))
    sink = program.sink_of(tmp_path, "postgres", table=table)
    assert sink.cursor() == Cursor(2)
    program.bring(tmp_path, sink)
    assert sink.cursor() == (cursor_at(log[-1][1]) if may_change else Cursor(log[-1][0]))
    sink.close()


def test_rows_without_a_key_are_added_once(
    postgres_server: PostgresServer, table: str, tmp_path: Path, program: ModuleType
) -> None:
    query = program.query(Sink("postgres", None, (("table", table),)))
    query = msgspec.structs.replace(query, event=(Column("id", "bigint"),))  # rows of events
    log = list(program.make_pond(tmp_path))
    reader = program.RowsReader(program.section_reader(program.Files(tmp_path)))
    one, other = (PostgresSink(query, "p", reader) for _ in range(2))
    assert one.cursor().n == other.cursor().n == -1
    for n, entry, manifest in log:
        one.apply(n, entry, manifest)
        other.apply(n, entry, manifest)  # it stands where it stood, and finds that nothing is left to do
    one.close()
    other.close()
    found = stored(postgres_server, table, "4")
    assert [row[3] for row in found] == list(range(program.EPOCHS * program.COUNT))


@pytest.mark.slow
def test_a_server_that_is_killed_and_restarted_loses_and_repeats_nothing(
    tmp_path: Path, program: ModuleType, postgres_installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = list(program.make_pond(tmp_path))
    with PostgresServer() as server:
        connect(tmp_path, monkeypatch, server)
        sink = program.sink_of(tmp_path, "postgres", table="t")
        for n, entry, manifest in log[: sink.cursor().n + 4]:
            sink.apply(n, entry, manifest)
        refused = pytest.raises(StoreError, match="PostgreSQL did not take what is for the table t")
        with refused, sink._delivering(log[3][1], None):
            server.kill()  # after the rows, before the commit
        with pytest.raises(StoreError):
            sink.cursor()
        server.start()
        program.bring(tmp_path, sink)
        sink.close()
        assert stored(server, "t") == expected(program, tmp_path)


def test_a_fenced_publisher_in_a_transaction_delays_others_only_briefly(
    postgres_server: PostgresServer, table: str, tmp_path: Path, program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "SECONDS", 1)
    log = list(program.make_pond(tmp_path))
    old, new = (program.sink_of(tmp_path, "postgres", table=table) for _ in range(2))
    assert old.cursor().n == -1
    for n, entry, manifest in log[:3]:
        old.apply(n, entry, manifest)
    taken = threading.Event()
    rows = dict(program.entries(tmp_path))
    with pytest.raises(StoreError, match="idle-in-transaction"), old._delivering(log[3][1], rows[3]):
        while not taken.is_set():  # it is stopped here; the server ends its transaction
            try:
                program.bring(tmp_path, new)
                taken.set()
            except StoreError as error:
                assert "timeout" in str(error)  # of the lock, or of the statement that waits for it
    program.bring(tmp_path, old)
    for sink in (old, new):
        sink.close()
    assert stored(postgres_server, table) == expected(program, tmp_path)


WHOLE = pa.schema([("k", pa.string()), ("v", pa.float64()), ("_op", pa.string()), ("_revision", pa.int64())])


def changing(table: str, **options: str) -> Query:
    output = (Named("k", Column("key:0", "string")), Named("v", Column("agg:0", "double")))
    return Query(
        "q", "s", "ts", 0, Sliding(60_000_000, 60_000_000), (Column("k", "string"),), (), output, correct_us=1,
        sink=Sink("postgres", None, tuple(sorted({"table": table, **options}.items()))),
    )  # fmt: skip


class Rows:
    """Stands for a reader: the rows of each record."""

    def __init__(self, *records: list[Row]) -> None:
        self._records = records

    def needed(self, entry: Entry, query: str, place: str, cure: str) -> pa.Table:
        return pa.Table.from_pylist([dict(zip(WHOLE.names, row, strict=True)) for row in self._records[entry.n]], WHOLE)


def test_a_deleted_row_is_removed_and_the_last_change_counts(postgres_server: PostgresServer, table: str) -> None:
    rows = Rows(
        [("a", 1.0, "upsert", 0), ("b", float("nan"), "upsert", 0), (None, 3.0, "upsert", 0), ("", None, "upsert", 0)],
        [("a", 1.0, "delete", 1), (None, 3.0, "delete", 1), ("b", 5.0, "upsert", 1), ("b", 6.0, "upsert", 2)],
        [("a", 1.0, "delete", 2), ("a", 7.5, "upsert", 3), ("\\.", float("-inf"), "upsert", 0)],
        [('x,"\\\n', 0.0, "upsert", 0)],
        [('x,"\\\n', 0.0, "upsert", 1), ('x,"\\\n', 0.0, "delete", 2)],
    )  # fmt: skip
    sink = PostgresSink(changing(table, key="k"), "p", rows)  # type: ignore[arg-type]
    for n in range(5):
        sink.apply(n, numbered(n), None)  # type: ignore[arg-type]
    sink.close()
    found = stored(postgres_server, table, "1")
    assert found == [("", None, 0), ("\\.", float("-inf"), 0), ("a", 7.5, 3), ("b", 6.0, 2)]


def test_columns_have_types_of_their_own(postgres_server: PostgresServer, table: str) -> None:
    kinds = {
        "tinyint": 3, "bigint": -(1 << 63), "float": 0.5, "boolean": True, "decimal(20,2)": "12.50",
        "date": datetime(2020, 2, 29).date(), "timestamp": datetime(2020, 1, 1, 0, 0, 0, 1, UTC),
        "timestamp_ntz": datetime(2020, 1, 1, 12),
    }  # fmt: skip
    values = {kind: Decimal(value) if kind.startswith("dec") else value for kind, value in kinds.items()}
    output = tuple(Named(kind, Column(f"agg:{n}", kind)) for n, kind in enumerate(kinds))
    query = msgspec.structs.replace(
        changing(table), output=output, correct_us=msgspec.UNSET, event=(Column("id", "bigint"),)
    )
    made = pa.table({kind: pa.array([value, None], arrow_type(kind)) for kind, value in values.items()})

    class One:
        def needed(self, entry: Entry, query: str, place: str, cure: str) -> pa.Table:
            return made

    sink = PostgresSink(query, "p", One())  # type: ignore[arg-type]
    sink.apply(0, numbered(0), None)  # type: ignore[arg-type]
    sink.close()
    assert stored(postgres_server, table, "1") == [tuple(values.values()), (None,) * len(kinds)]


def test_a_table_that_is_there_is_filled_and_one_that_refuses_says_why(
    postgres_server: PostgresServer, table: str
) -> None:
    with postgres_server.client() as client:
        columns = "k text PRIMARY KEY, note text DEFAULT 'n', v float CHECK (v < 10), _revision int"
        client.execute(f"CREATE TABLE {table} ({columns})")
    rows = Rows([("a", 1.0, "upsert", 0)], [("a", 11.0, "upsert", 1)])
    sink = PostgresSink(changing(table, key="k"), "p", rows)  # type: ignore[arg-type]
    sink.apply(0, numbered(0), None)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=r"violates check constraint.*no later row is written before"):
        sink.apply(1, numbered(1), None)  # type: ignore[arg-type]
    with postgres_server.client() as client:
        client.execute(f"ALTER TABLE {table} DROP CONSTRAINT spend_v_check")
    sink.apply(1, numbered(1), None)  # type: ignore[arg-type]
    sink.close()
    assert stored(postgres_server, table, "1") == [("a", "n", 11.0, 1)]


def test_what_does_not_fit_is_refused(program: ModuleType) -> None:
    query = program.query(Sink("postgres", None, (("table", "t"),)))
    assert Table.of(query, query.sink).rows.key == ("w_start", "w_end", "k")
    listed = msgspec.structs.replace(query, output=(*query.output, Named("l", Column("agg:1", "array<int>"))))
    with pytest.raises(UnsupportedQuery, match=r"cannot write l, of type array<int>"):
        Table.of(listed, query.sink)
    for options, words in (
        ({}, "has no table"), ({"table": "a.b.c"}, "the table 'a.b.c'"), ({"table": "t; --"}, "the table"),
        ({"table": "t", "key": "k,x"}, "no column x"), ({"table": "s.millpond_cursors"}, "the table of cursors"),
    ):  # fmt: skip
        with pytest.raises(QueryTypeError, match=words):
            Table.of(query, Sink("postgres", None, tuple(options.items())))


def test_a_connection_says_how_a_server_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s")
    text = b'{"kind":"postgres","host":"h","database":"d","user":"u","security":"ssl","password":{"env":"SECRET"}}'
    arguments = msgspec.json.decode(text, type=Database).of_client()
    assert (arguments["sslmode"], arguments["sslrootcert"], arguments["password"]) == ("verify-full", "system", "s")
    monkeypatch.delenv("SECRET")
    with pytest.raises(SetupError, match="no variable SECRET"):
        msgspec.json.decode(text, type=Database).of_client()
    assert psycopg.conninfo.make_conninfo("", **arguments)
