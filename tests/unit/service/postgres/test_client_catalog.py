"""The catalog as tools read it: queries of pgjdbc (DBeaver), DBeaver itself, Grafana and SQLAlchemy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from millpond.errors import QueryError
from millpond.service.postgres.client_sql import adapted
from millpond.service.postgres.sandbox import Sandbox
from millpond.service.postgres.session import SETTINGS

Query = Callable[[str], list[dict[str, Any]]]
CLASS = "d.objoid = c.oid AND d.objsubid = 0 AND d.classoid = 'pg_class'::regclass"


@pytest.fixture(scope="module")
def query() -> Iterator[Query]:
    """The rows of a statement over a pond with the table `visits`."""
    sandbox = Sandbox(SETTINGS)
    sandbox.show("public", "visits", pa.table({"page": ["/home"], "n": [1]}))

    def rows_of(sql: str) -> list[dict[str, Any]]:
        text = adapted(sql)
        sandbox.check(text)
        return [row for batch in sandbox.batches(text) for row in batch.to_pylist()]

    yield rows_of
    sandbox.close()


def test_pgjdbc_lists_schemas_tables_and_columns(query: Query) -> None:
    schemas = query(
        "SELECT nspname AS s FROM pg_catalog.pg_namespace WHERE nspname <> 'pg_toast' AND (nspname !~ '^pg_temp_' "
        "OR nspname = (pg_catalog.current_schemas(true))[1]) ORDER BY s"
    )
    assert [row["s"] for row in schemas] == ["millpond", "public"]
    tables = query(
        "SELECT n.nspname AS s, c.relname AS t, d.description FROM pg_catalog.pg_namespace n, pg_catalog.pg_class c "
        f"LEFT JOIN pg_catalog.pg_description d ON ({CLASS}) WHERE c.relnamespace = n.oid"
    )
    assert tables == [{"s": "public", "t": "visits", "description": None}]
    columns = query(
        "SELECT a.attname, a.atttypmod, nullif(a.attidentity, '') AS i, "
        "pg_catalog.pg_get_expr(def.adbin, def.adrelid) AS adsrc, t.typtype FROM pg_catalog.pg_namespace n "
        "JOIN pg_catalog.pg_class c ON (c.relnamespace = n.oid) JOIN pg_catalog.pg_attribute a ON (a.attrelid = c.oid) "
        "JOIN pg_catalog.pg_type t ON (a.atttypid = t.oid) "
        "LEFT JOIN pg_catalog.pg_attrdef def ON (a.attrelid = def.adrelid AND a.attnum = def.adnum) "
        "WHERE c.relkind in ('r','p','v','f','m') AND a.attnum > 0 AND NOT a.attisdropped AND c.relname LIKE 'visits' "
        "ORDER BY a.attnum"
    )
    assert [row["attname"] for row in columns] == ["page", "n"]


def test_dbeaver_opens_a_database(query: Query) -> None:
    (here,) = query("SELECT current_database() AS d, current_schema() AS s, session_user")
    assert (here["d"], here["s"]) == ("pond", "public")
    assert len(query("SELECT db.oid,db.* FROM pg_catalog.pg_database db WHERE datname='pond'")) == 1
    assert query("SELECT t.oid,t.*,format_type(nullif(t.typbasetype, 0), t.typtypmod) AS b FROM pg_catalog.pg_type t")
    found = query(
        "SELECT c.oid,c.*,d.description,pg_catalog.pg_get_expr(c.relpartbound, c.oid) AS partition_expr, "
        "pg_catalog.pg_get_partkeydef(c.oid) AS partition_key FROM pg_catalog.pg_class c "
        f"LEFT OUTER JOIN pg_catalog.pg_description d ON {CLASS} WHERE c.relkind not in ('i','I','c')"
    )
    assert [row["relname"] for row in found] == ["visits"]
    columns = query(
        "SELECT c.relname,a.*,pg_catalog.pg_get_expr(ad.adbin, ad.adrelid, true) AS def_value,dep.objid "
        "FROM pg_catalog.pg_attribute a INNER JOIN pg_catalog.pg_class c ON (a.attrelid=c.oid) "
        "LEFT OUTER JOIN pg_catalog.pg_attrdef ad ON (a.attrelid=ad.adrelid AND a.attnum = ad.adnum) "
        "LEFT OUTER JOIN pg_depend dep ON dep.refobjid = a.attrelid AND dep.deptype = 'i' "
        "AND dep.refobjsubid = a.attnum AND dep.classid = dep.refclassid "
        f"WHERE NOT a.attisdropped AND c.oid='{found[0]['oid']}' ORDER BY a.attnum"
    )
    assert [row["attname"] for row in columns] == ["page", "n"]


def test_grafana_offers_tables_and_columns(query: Query) -> None:
    assert query("SELECT current_setting('server_version_num')::int/100 AS version") == [{"version": 1400}]
    tables = query(
        "SELECT quote_ident(table_name) AS \"table\" FROM information_schema.tables "
        "WHERE quote_ident(table_schema) NOT IN ('information_schema', 'pg_catalog') ORDER BY 1"
    )
    assert tables == [{"table": "visits"}]
    path = "string_to_array(current_setting('search_path'),',')"
    found = query(
        "select quote_ident(table_name) as \"table\" from information_schema.tables where quote_ident(table_schema) "
        "not in ('information_schema', 'pg_catalog') and quote_ident(table_schema) IN (\n SELECT\n CASE WHEN "
        f"trim(s[i]) = '\"$user\"' THEN user ELSE trim(s[i]) END\n FROM\n generate_series(\n array_lower({path},1),\n "
        f"array_upper({path},1)\n ) as i,\n {path} s\n )"
    )
    assert found == tables
    columns = query(
        "SELECT quote_ident(column_name) AS \"column\", data_type AS \"type\" FROM information_schema.columns "
        "WHERE quote_ident(table_name) = 'visits'"
    )
    assert [row["column"] for row in columns] == ["page", "n"]


def test_the_replaced_tables_are_not_listed(query: Query) -> None:
    assert query("SELECT tablename FROM pg_tables") == [{"tablename": "visits"}]
    assert query("SELECT viewname AS v FROM pg_views WHERE schemaname = 'client'") == []
    assert query("SELECT table_name FROM information_schema.views WHERE table_schema = 'client'") == []


def test_functions_that_duckdb_lacks(query: Query) -> None:
    moment = "TIMESTAMPTZ '2024-05-06 07:08:09+00'"
    (found,) = query(
        f"SELECT to_char({moment}, 'YYYY-MM-DD HH24:MI:SS') AS t, date_bin('5 minutes', {moment}, "
        "TIMESTAMPTZ '2001-01-01') AS b, current_user AS u, current_setting('nosuch', true) AS s"
    )
    assert (found["t"], found["u"], found["s"]) == ("2024-05-06 07:08:09", "millpond", None)
    assert found["b"].isoformat() == "2024-05-06T07:05:00+00:00"
    for pattern, expected in {
        "yyyy-mm-dd hh24:mi:ss": "2024-05-06 07:08:09", 'YYYY-MM-DD"T"HH24:MI:SS"Z 5%d"': "2024-05-06T07:08:09Z 5%d",
        "HH Mon Ddd %": "07 May 127 %",
    }.items():  # fmt: skip
        assert query(f"SELECT to_char({moment}, '{pattern}') AS t") == [{"t": expected}]
    for pattern in ("Q", "MONTH", "Month", "FMDD", "SSSS", "YYYYY", 'YYYY"T', "am"):
        with pytest.raises(QueryError, match="pattern of to_char has"):
            query(f"SELECT to_char({moment}, '{pattern}') AS t")


def test_sqlalchemy_knows_the_version_and_the_types(query: Query) -> None:
    assert query("select pg_catalog.version() AS v")[0]["v"].startswith("PostgreSQL 14")
    assert query("SELECT typname, oid::regtype::text AS r FROM pg_type t WHERE t.oid = to_regtype('hstore')") == []
    types = query(
        "SELECT pg_catalog.format_type(pg_catalog.pg_attribute.atttypid, pg_catalog.pg_attribute.atttypmod) AS t "
        "FROM pg_catalog.pg_attribute WHERE pg_catalog.pg_attribute.attrelid = CAST('public.visits' AS REGCLASS) "
        "ORDER BY pg_catalog.pg_attribute.attnum"
    )
    assert [row["t"] for row in types] == ["character varying", "bigint"]
