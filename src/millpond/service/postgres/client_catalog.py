"""The functions and tables of PostgreSQL's catalog that clients read and DuckDB lacks, or has with fewer columns.

They are in a schema of their own, which they do not list. `client_sql.adapted` makes statements refer to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

DATABASE = "pond"
"""The name of the database, as clients see it."""

_OBJECT_IDS = ("id", "parent", "namespace", "owner", "member")
_HIDDEN = "('client', 'main')"

_SQL_NAMES = (
    "(MAP {'bool': 'boolean', 'int2': 'smallint', 'int4': 'integer', 'int8': 'bigint', 'float4': 'real', "
    "'float8': 'double precision', 'varchar': 'character varying', 'time': 'time without time zone', "
    "'timestamp': 'timestamp without time zone', 'timestamptz': 'timestamp with time zone'})"
)
"""The names of types by which clients know them, where DuckDB has short ones."""

_FUNCTIONS = {
    "class_oid": (("wanted",), "(SELECT oid FROM pg_catalog.pg_class "
    "WHERE relname = split_part(replace(wanted, '\"', ''), '.', -1) LIMIT 1)"),
    "to_regclass": (("wanted",), "class_oid(wanted)"),
    "to_regtype": (("wanted",), "(SELECT min(oid) FROM pg_catalog.pg_type WHERE typname = wanted)"),
    "set_config": (("name, value, local",), "value"),
    "pg_get_userbyid": (("id",), "'millpond'"),
    "pg_backend_pid": (("",), "1"),
    "pg_encoding_to_char": (("id",), "'UTF8'"),
    "pg_is_in_recovery": (("",), "true"),
    "pg_get_expr": (("a, b", "a, b, c"), "NULL"),
    "pg_get_constraintdef": (("a", "a, b"), "NULL"),
    "pg_get_indexdef": (("a", "a, b, c"), "NULL"),
    "pg_get_partkeydef": (("a",), "NULL"),
    "pg_get_serial_sequence": (("a, b",), "NULL"),
    "pg_get_statisticsobjdef_columns": (("a",), "NULL"),
    "pg_relation_size": (("a", "a, b"), "0"),
    "pg_total_relation_size": (("a",), "0"),
    "pg_table_size": (("a",), "0"),
    "pg_relation_is_publishable": (("a",), "false"),
    "pg_statistics_obj_is_visible": (("a",), "false"),
    "format_type": (("id, modifier",), f"coalesce({_SQL_NAMES}[pg_catalog.format_type(id, modifier)], "
    "pg_catalog.format_type(id, modifier))"),
    "quote_ident": (
        ("name",),
        "CASE WHEN regexp_full_match(name, '[a-z_][a-z0-9_]*') THEN name "
        "ELSE '\"' || replace(name, '\"', '\"\"') || '\"' END",
    ),
}  # fmt: skip
"""By name: the parameters that a function takes, one or several forms, and its value."""

_VIEWS = {
    "pg_namespace": f"SELECT * FROM pg_catalog.pg_namespace WHERE nspname NOT IN {_HIDDEN}",
    "pg_class": "SELECT * REPLACE (NULL::VARCHAR[] AS relacl, NULL::VARCHAR[] AS reloptions), "
    "false AS relforcerowsecurity FROM pg_catalog.pg_class "
    "WHERE relnamespace IN (SELECT oid FROM client.pg_namespace)",
    "pg_database": "SELECT *, 10 AS datdba, 6 AS encoding, 'C' AS datcollate, 'C' AS datctype, NULL AS daticulocale, "
    "'c' AS datlocprovider, -1 AS datconnlimit, 0 AS dattablespace, NULL::VARCHAR[] AS datacl "
    f"FROM pg_catalog.pg_database WHERE datname = '{DATABASE}'",
    "pg_roles": "SELECT 10 AS oid, 'millpond' AS rolname, false AS rolsuper, true AS rolinherit, "
    "false AS rolcreaterole, false AS rolcreatedb, true AS rolcanlogin, false AS rolreplication, "
    "-1 AS rolconnlimit, NULL AS rolvaliduntil, false AS rolbypassrls, NULL AS rolconfig",
    **{
        name: f"SELECT * FROM information_schema.{name} WHERE {column} NOT IN {_HIDDEN}"
        for name, column in (("tables", "table_schema"), ("columns", "table_schema"), ("schemata", "schema_name"))
    },
}  # fmt: skip

_EMPTY = {
    "pg_auth_members": "roleid member grantor",
    "pg_collation": "oid collname collnamespace collowner",
    "pg_extension": "oid extname extowner extnamespace extrelocatable extversion extconfig:BIGINT[]",
    "pg_inherits": "inhrelid inhparent inhseqno inhdetachpending",
    "pg_language": "oid lanname lanowner",
    "pg_opclass": "oid opcname opcdefault:BOOLEAN opcnamespace",
    "pg_policy": "oid polname polrelid polcmd polpermissive:BOOLEAN polroles:BIGINT[] polqual polwithcheck",
    "pg_publication": "oid pubname pubowner puballtables:BOOLEAN",
    "pg_publication_namespace": "oid pnpubid pnnspid",
    "pg_publication_rel": "oid prpubid prrelid prqual prattrs:BIGINT[]",
    "pg_shdescription": "objoid classoid description",
    "pg_statistic_ext": "oid stxrelid stxname stxnamespace stxstattarget stxkeys:BIGINT[] stxkind:VARCHAR[]",
    "pg_trigger": "oid tgrelid tgname tgfoid tgtype tgenabled tgisinternal tgconstraint",
}
"""Tables without rows: columns, with their types unless they are texts."""

TABLES = frozenset({*_VIEWS, *_EMPTY, "pg_settings"} - {"tables", "columns", "schemata"})
"""The tables of `pg_catalog` that are replaced."""


def catalog_statements(settings: Mapping[str, str]) -> Iterator[str]:
    """The statements that make the catalog; `settings`: what `current_setting` returns."""
    for name, (forms, value) in _FUNCTIONS.items():
        yield f"CREATE MACRO main.{name}" + ", ".join(f"({form}) AS {value}" for form in forms)
    pairs = ", ".join(f"{literal(name)}: {literal(value)}" for name, value in settings.items())
    yield f"CREATE MACRO main.client_version() AS {literal(settings['version'])}"
    yield f"CREATE MACRO main.client_current_setting(wanted) AS (MAP {{{pairs}}})[lower(wanted)]"
    for name, sql in _VIEWS.items():
        yield f"CREATE VIEW client.{name} AS {sql}"
    rows = ", ".join(f"({literal(name)}, {literal(value)})" for name, value in settings.items())
    yield f"CREATE VIEW client.pg_settings AS SELECT * FROM (VALUES {rows}) AS settings(name, setting)"
    for name, columns in _EMPTY.items():
        yield f"CREATE TABLE client.{name} ({', '.join(map(_column, columns.split()))})"


def _column(text: str) -> str:
    """The definition of a column: object ids are integers.

    >>> _column("collnamespace"), _column("collname"), _column("polroles:BIGINT[]")
    ('collnamespace BIGINT', 'collname VARCHAR', 'polroles BIGINT[]')
    """
    name, _, kind = text.partition(":")
    return f"{name} {kind or ('BIGINT' if name.endswith(_OBJECT_IDS) else 'VARCHAR')}"


def literal(value: str) -> str:
    """A text as a literal of SQL."""
    return "'" + value.replace("'", "''") + "'"
