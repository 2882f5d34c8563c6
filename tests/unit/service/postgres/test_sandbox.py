"""SQL of users reaches the tables that it was given, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from millpond.errors import MillpondError, QueryRefused
from millpond.service.postgres.sandbox import Sandbox, with_values
from millpond.service.postgres.session import SETTINGS

SECRET = "what nobody may read"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox(SETTINGS)
    made.show("public", "visits", pa.table({"page": ["a", None], "n": [1, 2]}))
    yield made
    made.close()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "secret.csv").write_text(SECRET)
    return tmp_path / "secret.csv"


def answer(sandbox: Sandbox, sql: str) -> list[object]:
    sandbox.check(sql)
    return [row for batch in sandbox.batches(sql) for row in batch.to_pylist()]


ATTACKS = [
    "SELECT * FROM '{file}'",
    "SELECT * FROM \"{file}\"",
    "SELECT * FROM read_csv('{file}')",
    "SELECT (SELECT content FROM read_text('{file}'))",
    "WITH x AS (FROM glob('{file}')) FROM x",
    "FROM query('SELECT 1')",
    "FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "FROM parquet_schema('{file}')",
    "FROM sniff_csv('{file}')",
    "FROM arrow_scan(1, 1, 1)",
    "FROM enable_logging('QueryLog', storage = 'file', storage_path = '{file}')",
    "FROM duckdb_secrets()",
    "COPY (SELECT 1) TO '{file}'",
    "COPY visits FROM '{file}'",
    "ATTACH '{file}' AS other",
    "INSTALL httpfs",
    "LOAD '{file}'",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "PRAGMA enable_profiling",
    "CALL enable_logging()",
    "EXPORT DATABASE '{file}'",
    "CREATE TABLE x AS SELECT 1",
    "CREATE MACRO f() AS 1",
    "DROP TABLE visits",
    "INSERT INTO visits VALUES ('b', 3)",
    "DELETE FROM visits",
    "EXPLAIN ANALYZE DELETE FROM visits",
    "PREPARE p AS DELETE FROM visits",
    "SELECT 1; DROP TABLE visits",
    "WITH x AS (COPY visits TO '{file}') FROM x",
    "SELECT (WITH x AS (UPDATE visits SET n = 0 RETURNING n) SELECT max(n) FROM x)",
    "WITH x AS (DELETE FROM visits RETURNING n) FROM x",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused_and_changes_nothing(sandbox: Sandbox, secret: Path, attack: str) -> None:
    with pytest.raises(MillpondError) as found:
        answer(sandbox, attack.replace("{file}", str(secret)))
    assert SECRET not in str(found.value)
    assert answer(sandbox, "SELECT count(*) AS n FROM visits") == [{"n": 2}]
    assert [path.read_text() for path in secret.parent.iterdir()] == [SECRET]


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if "{file}" in attack])
def test_duckdb_alone_reads_no_file(sandbox: Sandbox, secret: Path, attack: str) -> None:
    """Should the check of the syntax tree ever let a statement pass, DuckDB still has no access."""
    with pytest.raises(MillpondError) as found:
        list(sandbox.batches(attack.replace("{file}", str(secret))))
    assert SECRET not in str(found.value)


def test_what_duckdb_refuses_is_an_error_of_ours(sandbox: Sandbox) -> None:
    with pytest.raises(MillpondError, match="nosuch"):
        sandbox.show("nosuch", "visits", pa.table({"n": [1]}))


def test_memory_is_limited(sandbox: Sandbox) -> None:
    with pytest.raises(MillpondError, match="256MB"):
        answer(sandbox, "SELECT count(DISTINCT range) FROM range(100000000)")


def test_parameters_are_replaced_where_the_parser_finds_them(sandbox: Sandbox) -> None:
    sql = "SELECT 'é $1' AS a, $2 AS \"$1\", /* $1 */ $1 AS c FROM visits LIMIT 1"
    given = with_values(sql, sandbox.check(sql), ["'x'' $2'", "7"])
    assert answer(sandbox, given) == [{"a": "é $1", "$1": 7, "c": "x' $2"}]
    with pytest.raises(QueryRefused, match="form"):
        sandbox.check("SELECT ?")


def names(sandbox: Sandbox, sql: str) -> list[str]:
    return [one.name for one in sandbox.columns(sql, sandbox.check(sql).unnamed)]


NAMES = {
    "SELECT count(*), sum(n), max(n) AS m, n, count(*) FILTER (WHERE n > 1) FROM visits GROUP BY n":
        ["count", "sum", "m", "n", "count"],
    "SELECT 1, n + 1, -n, NOT n > 1, n IS NULL, n IN (1, 2), page LIKE 'a', page || 'b' FROM visits": ["?column?"] * 8,
    "SELECT n::INT, visits.n::TEXT, lower(page)::TEXT, coalesce(n, 1), nullif(n, 1) FROM visits":
        ["n", "n", "lower", "coalesce", "nullif"],
    "SELECT CASE WHEN n > 1 THEN 1 END, CASE WHEN n > 1 THEN 1 ELSE n END, ARRAY[n], EXISTS (SELECT 1) FROM visits":
        ["case", "n", "array", "exists"],
    "SELECT (SELECT max(n) FROM visits), (SELECT 1 AS one), row_number() OVER (ORDER BY n) FROM visits":
        ["max", "one", "row_number"],
    "SELECT count(*) OVER (), *, sum(n) OVER () FROM visits": ["count", "page", "n", "sum"],
    "WITH v AS (SELECT n FROM visits) SELECT min(n) FROM v UNION ALL SELECT 1": ["min"],
    "(SELECT 1) UNION ALL SELECT n FROM visits": ["?column?"],
}
"""By statement, the names of its columns in PostgreSQL."""


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        *NAMES.items(),
        ("SELECT min(COLUMNS(*)), 1 FROM visits", ["page", "n", "?column?"]),
        ("SHOW ALL TABLES", ["database", "schema", "name", "column_names", "column_types", "temporary"]),
        ("FROM visits", ["page", "n"]),
        ("SELECT * FROM (SELECT count(*), 1 AS one FROM visits)", ["count", "one"]),
    ],
)  # fmt: skip
def test_columns_without_an_alias_have_the_names_of_postgresql(sandbox: Sandbox, sql: str, expected: list[str]) -> None:
    assert names(sandbox, sql) == expected


@pytest.mark.parametrize(
    ("columns", "number"),
    [("page, count(*)", 2), ("page AS count, count(*)", None), ("min(page), count(n), count(*)", None)],
)
def test_a_name_that_several_columns_have_is_not_replaced(sandbox: Sandbox, columns: str, number: int | None) -> None:
    orders = sandbox.check(f"SELECT {columns} FROM visits GROUP BY page ORDER BY count").orders
    assert [one[2] for one in orders] == [number] * (number is not None)
