"""Values of parameters become literals, and rows become binary values, as PostgreSQL defines them."""

from __future__ import annotations

import struct
import uuid
from decimal import Decimal

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.service.postgres import connection, result_format
from millpond.service.postgres.client_sql import Statement
from millpond.service.postgres.messages import ResultColumn
from millpond.service.postgres.portals import Portal
from millpond.service.postgres.result_format import BINARY, DATE, INTERVAL, NUMERIC, TIMESTAMP, data_rows, parameter
from millpond.service.postgres.session import Answer

UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


@pytest.mark.parametrize(
    ("value", "oid", "expected"),
    [
        (UUID.bytes, result_format.UUID, f"CAST('{UUID}' AS UUID)"),
        (struct.pack(">q", 45_296_000_007), result_format.TIME, "CAST('12:34:56.000007' AS TIME)"),
        (struct.pack(">qii", -5, 3, -2), INTERVAL, "CAST('-2 months 3 days -5 microseconds' AS INTERVAL)"),
        (struct.pack(">q", 2**63 - 1), TIMESTAMP, "CAST('infinity' AS TIMESTAMP)"),
        (struct.pack(">i", -(2**31)), DATE, "CAST('-infinity' AS DATE)"),
        (struct.pack(">HhHH", 0, 0, 0xC000, 0), NUMERIC, "CAST('NaN' AS DOUBLE)"),
    ],
    ids=["uuid", "time", "interval", "timestamp", "date", "decimal"],
)  # fmt: skip
def test_binary_parameters_are_literals_that_duckdb_reads(value: bytes, oid: int, expected: str) -> None:
    assert parameter(value, oid, BINARY) == expected
    duckdb.sql(f"SELECT {expected}").fetchall()


@given(st.decimals(allow_nan=False, allow_infinity=False, places=12, min_value=-(10**25), max_value=10**25))
def test_decimal_parameters_keep_all_digits(value: Decimal) -> None:
    text = f"{value:f}"
    expected = f"'{text}' AS DECIMAL(38, 12)"
    assert expected in parameter(text.encode(), NUMERIC, 0)
    sent = parameter(result_format._numeric(text), NUMERIC, BINARY)
    assert sent == f"CAST('{text if value else text.removeprefix('-')}' AS DECIMAL(38, 12))"


def test_infinity_is_that_of_postgresql() -> None:
    sql = "SELECT * FROM (VALUES ('infinity'::TIMESTAMP, '-infinity'::DATE), (NULL, DATE '2000-01-02')) ORDER BY 1"
    (batch,) = duckdb.sql(sql).to_arrow_reader(10)
    rows = data_rows(batch, [ResultColumn("a", TIMESTAMP), ResultColumn("b", DATE)], [BINARY, BINARY])
    first = struct.pack(">chhhhh", b"D", 0, 26, 2, 0, 8) + struct.pack(">qii", 2**63 - 1, 4, -(2**31))
    assert rows == first + struct.pack(">cihiii", b"D", 18, 2, -1, 4, 1)


def test_rows_that_wait_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that was not fetched, and not kept either, does not look complete."""
    monkeypatch.setattr(connection, "SETTLED_BYTES", 100)
    small = duckdb.sql("SELECT range FROM range(5)").to_arrow_reader(5).read_next_batch()
    portals = []
    for _ in range(3):
        portal = Portal(Statement("", ""), (), ())
        portal.answer = Answer("SELECT", batches=iter([small]), counted=True)
        portals.append(portal)
    left = connection.SETTLED_BYTES
    for portal in portals:
        left -= portal.settle(left)
    assert [portals[0].next_rows(), portals[0].next_rows()] == [small, None]
    for _ in range(2):
        with pytest.raises(connection.BusyError, match="were not fetched"):
            portals[2].next_rows()
