"""Clients of PostgreSQL read a pond: psql and psycopg, both protocols, and only with the token."""

from __future__ import annotations

import datetime
import os
import shutil
import socket
import subprocess
import threading
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.pq import ExecStatus

from millpond.service.postgres import messages
from millpond.service.postgres.messages import message

ROWS = "SELECT page, n, w_end > w_start FROM visits WHERE page IN ('/home', 'it''s') ORDER BY page"

LATE = "SELECT CASE WHEN range = 400000 THEN 'a'::INTEGER ELSE 1 END FROM range(500000)"
"""A statement that fails after DuckDB has returned rows: it computes many rows ahead."""


def psql(served: Any, *words: str) -> str:
    program = shutil.which("psql")
    if program is None:
        pytest.skip("no psql is installed")
    command = [program, "-X", "-A", "-t", "-h", "127.0.0.1", "-p", str(served.port), "-U", "ann", "pond", *words]
    environment = {**os.environ, "PGPASSWORD": served.token}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60).stdout


def test_rows_of_served_queries_are_tables(served: Any) -> None:
    with served.connect() as client:
        assert client.execute(ROWS).fetchall() == [("/home", 2, True), ("it's", 1, True)]
        found = client.execute("SELECT n FROM visits WHERE page = %s AND n = %s", ("it's", 1)).fetchall()
        assert found == [(1,)]
        assert [name for (name, *_) in client.execute("SHOW QUERIES").fetchall()] == ["again", "visits"]
        assert client.execute("SELECT name FROM streams").fetchall() == [("clicks",)]


def test_values_are_the_same_in_text_and_in_binary(served: Any) -> None:
    values = [
        True, 7, -(2**62), 1.5, float("inf"), "it's", b"\x00\xff", datetime.date(1969, 7, 20),
        datetime.datetime(2026, 1, 1, 12, 0, 0, 250_000), Decimal("-1234567.0890"), Decimal("0.00"), None,
        datetime.datetime(1969, 1, 1, tzinfo=datetime.timezone.utc),
    ]  # fmt: skip
    marks = ", ".join(["%s"] * len(values))
    with served.connect() as client:
        for binary in (False, True):
            cursor = client.cursor(binary=binary)
            assert cursor.execute(f"SELECT {marks}", values).fetchone() == tuple(values)
            nested = cursor.execute("SELECT NULL::DOUBLE, [1, NULL], {'a': 'b'}").fetchone()
            assert nested == (None, [1, None], {"a": "b"})


def test_psql_shows_rows_and_tables(served: Any) -> None:
    said = psql(served, "-c", ROWS, "-c", "\\dt", "-c", "BEGIN; SELECT 1; COMMIT")
    assert said.splitlines()[:2] == ["/home|2|t", "it's|1|t"]
    assert "public|visits|table|millpond" in said
    assert said.splitlines()[-3:] == ["BEGIN", "1", "COMMIT"]
    described = psql(served, "-c", "\\d+ visits")
    assert described.splitlines()[0].startswith("page|character varying|")
    assert "???" not in described and "Access method" not in described
    commands = "df l+ db do dC drds des dy dRp dRs dL dconfig dn+ dp dT dx dv di ds dm dD dX"
    psql(served, *(word for one in commands.split() for word in ("-c", f"\\{one}")))  # an error ends psql
    counted = psql(served, "-P", "tuples_only=off", "-c", "SELECT count(*), 1 FROM visits ORDER BY count")
    assert counted.splitlines()[0] == "count|?column?"
    assert "pond|millpond|UTF8" in psql(served, "-c", "\\l", "-c", "\\du")


def test_a_statement_sees_all_tables_as_of_one_record(served: Any) -> None:
    """In a repeatable transaction all statements do; otherwise each sees the newest rows."""
    both = "SELECT sum(v.n), sum(a.n), (SELECT record FROM snapshot) FROM visits v JOIN again a USING (page)"
    with served.connect() as newest, served.connect(autocommit=False) as kept:
        kept.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        before = kept.execute(both).fetchone()
        served.epoch("/new")
        served.epoch("/new")
        now = newest.execute(both).fetchone()
        assert kept.execute(both).fetchone() == before
        kept.rollback()
        assert kept.execute(both).fetchone() == now
    assert now[0] == now[1] > before[0]
    assert now[2] == before[2] + 2


def test_a_failed_transaction_takes_nothing_before_its_end(served: Any) -> None:
    with served.connect(autocommit=False) as client:
        with pytest.raises(psycopg.errors.UndefinedTable, match='Did you mean "visits"'):
            client.execute("SELECT * FROM vists")
        for sql in ("SELECT 1", "BEGIN"):
            with pytest.raises(psycopg.errors.InFailedSqlTransaction, match="has failed"):
                client.execute(sql)
        client.rollback()
        with client.transaction():
            with pytest.raises(psycopg.errors.UndefinedTable), client.transaction():
                client.execute("SELECT * FROM nosuch")
            assert client.execute("SELECT 1").fetchone() == (1,), "a savepoint was restored"


def test_rows_come_in_portions(served: Any) -> None:
    """A client may fetch some rows, run other statements, and fetch the rest."""
    with served.connect() as client:
        numbers = client.cursor().stream("SELECT range FROM range(10000)", size=700)
        assert [number for (number,) in numbers] == list(range(10_000))


@pytest.mark.parametrize("binary", [False, True])
def test_a_cursor_of_sql_reads_forward(served: Any, binary: bool) -> None:
    """Psycopg and SQLAlchemy declare one to read a large result."""
    with served.connect(autocommit=False) as client:
        with client.cursor("some rows", binary=binary) as cursor:
            cursor.execute("SELECT range, 1.5 FROM range(%s)", (10_000,))
            assert [one.name for one in cursor.description] == ["range", "?column?"]
            assert cursor.fetchmany(3) == [(number, Decimal("1.5")) for number in range(3)]
            assert client.execute("SELECT 7").fetchone() == (7,), "another statement runs meanwhile"
            assert [number for (number, _) in cursor] == [*range(3, 10_000)]
        client.execute("DECLARE other CURSOR FOR SELECT range FROM range(5)")
        with pytest.raises(psycopg.errors.NumericValueOutOfRange), client.transaction():
            client.execute(f"FETCH {'9' * 5_000} FROM other")
        assert client.execute("MOVE 3 FROM other").statusmessage == "MOVE 3"
        assert client.execute("FETCH ALL FROM other").fetchall() == [(3,), (4,)]
        assert client.execute("FETCH other").fetchall() == []
        client.commit()
        with pytest.raises(psycopg.errors.InvalidCursorName):
            client.execute("FETCH other")
        client.rollback()
        with pytest.raises(psycopg.errors.UndefinedTable):
            client.execute("DECLARE wrong CURSOR FOR SELECT * FROM nosuch")


def test_a_cursor_that_cannot_be_declared_is_refused(served: Any) -> None:
    with served.connect(autocommit=False) as client:
        client.execute("DECLARE some CURSOR FOR SELECT range AS n FROM range(%s)", (5,))
        assert client.pgconn.prepare(b"f", b"FETCH 999999999999999999 FROM some").status == ExecStatus.COMMAND_OK
        assert client.pgconn.describe_prepared(b"f").fname(0) == b"n"
        client.pgconn.prepare(b"d", b"DECLARE late CURSOR FOR SELECT $1::int + 1")
        assert (client.pgconn.describe_prepared(b"d").nfields, client.pgconn.describe_prepared(b"d").nparams) == (0, 1)
        assert len(client.execute("FETCH 999999999999999999 FROM some").fetchall()) == 5
        client.commit()
        for statement, error in {
            "DECLARE kept CURSOR WITH HOLD FOR SELECT 1": psycopg.errors.FeatureNotSupported,
            "DECLARE some CURSOR FOR SELECT 1; DECLARE some CURSOR FOR SELECT 1": psycopg.errors.DuplicateCursor,
            "DECLARE some CURSOR FOR COMMIT": psycopg.errors.SyntaxError,
            "DECLARE some CURSOR FOR FETCH other": psycopg.errors.SyntaxError,
        }.items():
            with pytest.raises(error):
                client.execute(statement)
            client.rollback()


def test_a_parameter_may_be_an_array(served: Any) -> None:
    with served.connect() as client:
        for binary in (False, True):
            cursor = client.cursor(binary=binary)
            some = cursor.execute("SELECT page FROM visits WHERE page = ANY(%s)", (["/home", 'a "b"', None],))
            assert some.fetchall() == [("/home",)]
            assert cursor.execute("SELECT 2 <> ALL(%s), %s::text[]", ([1, 3], ["it's"])).fetchone() == (True, ["it's"])
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="one dimension"):
            client.execute("SELECT 1 = ANY(%s)", ([[1], [2]],))


def test_an_error_after_the_first_rows_is_reported(served: Any) -> None:
    with served.connect() as client:
        with pytest.raises(psycopg.errors.InvalidTextRepresentation, match="'a'"):
            client.execute(LATE)
        assert client.execute("SELECT 1").fetchone() == (1,)


def test_a_failed_result_stays_failed(served: Any) -> None:
    """A portal whose rows cannot be computed must not look complete when it is fetched again."""
    with served.connect() as client, socket.socket(fileno=os.dup(client.fileno())) as raw:
        raw.settimeout(60)
        raw.sendall(bound(b"late", LATE.encode()) + executed(b"late", 3))
        assert answered(raw)[-2:] == "sZ"
        raw.sendall(bound(b"other", b"SELECT 1") + executed(b"other", 0))
        assert answered(raw) == "12DCZ"
        for last in ("EZ", "EZ"):
            raw.sendall(executed(b"late", 0))
            assert answered(raw).endswith(last)


def test_statements_of_drivers_are_deallocated(served: Any) -> None:
    with served.connect() as client, socket.socket(fileno=os.dup(client.fileno())) as raw:
        raw.settimeout(60)
        for name in ("ALL", "late", "PREPARE late"):
            raw.sendall(bound(b"late", b"SELECT 1") + executed(b"late", 0))
            assert answered(raw) == "12DCZ"
            client.execute(f"DEALLOCATE {name}")
            raw.sendall(message(b"D", b"Slate\0") + message(b"S"))
            assert answered(raw) == "EZ"


def bound(name: bytes, sql: bytes) -> bytes:
    """Prepare a statement, and bind it to a portal of the same name."""
    return message(b"P", name, b"\0", sql, bytes(3)) + message(b"B", name, b"\0", name, bytes(7))


def executed(name: bytes, rows: int) -> bytes:
    """Fetch some rows of a portal, 0: all, and end the request."""
    return message(b"E", name, b"\0", rows.to_bytes(4, "big")) + message(b"S")


def answered(raw: socket.socket) -> str:
    """The types of the messages up to the end of a request, each run of equal ones as one."""
    types = ""
    with raw.makefile("rb") as source:
        while not types.endswith("Z"):
            kind, _ = messages.read_message(source.read) or (b"?", None)
            assert kind != b"?", "the connection was closed"
            types += kind.decode() if not types.endswith(kind.decode()) else ""
    return types


def test_access_needs_the_token(served: Any) -> None:
    with pytest.raises(psycopg.OperationalError, match=r"MP-ACCESS.*not the pond's token"):
        served.connect(password="another-token-of-some-length")
    with socket.create_connection(("127.0.0.1", served.port)) as other:
        other.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"no start-up message" in other.recv(1000)


def test_a_long_statement_is_cancelled(served: Any) -> None:
    with served.connect() as client:
        cursor = client.cursor()
        cursor.execute("SELECT 1")
        canceller = threading.Timer(0.3, client.cancel)
        canceller.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            cursor.execute("SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range = 7")
        canceller.join()
        assert cursor.execute("SELECT 2").fetchone() == (2,)
