"""The functions and tables of PostgreSQL's catalog that clients read and DuckDB lacks, or has with fewer columns.

They are in a schema of their own, which they do not list. `client_sql.adapted` makes statements refer to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

DATABASE = "pond"
"""The name of the database, as clients see it."""

SEARCH_PATH = ("public", "millpond")
"""The schemas in which a table without a schema is looked for: that of served queries, and that of the log."""

_OBJECT_IDS = ("id", "parent", "namespace", "owner", "member")
_HIDDEN = "('client', 'main')"

_SQL_NAMES = (
    "(MAP {'bool': 'boolean', 'int2': 'smallint', 'int4': 'integer', 'int8': 'bigint', 'float4': 'real', "
    "'float8': 'double precision', 'varchar': 'character varying', 'time': 'time without time zone', "
    "'timestamp': 'timestamp without time zone', 'timestamptz': 'timestamp with time zone'})"
)
"""The names of types by which clients know them, where DuckDB has short ones."""

_TIME_PATTERNS = {
    "HH24": "%H", "HH12": "%I", "HH": "%I", "MI": "%M", "SS": "%S", "MS": "%g", "US": "%f", "YYYY": "%Y", "YY": "%y",
    "MM": "%m", "DDD": "%j", "DD": "%d",
}  # fmt: skip
"""The patterns of PostgreSQL's `to_char` for times, with those of DuckDB. A longer one stands before its beginning."""

_CASED_TIME_PATTERNS = {"Mon": "%b", "Dy": "%a", "AM": "%p", "PM": "%p"}
"""Those whose upper and lower case decide on that of the result. Other spellings, and padded names, are refused."""

_TIME_PART = rf'"[^"]*"|SSSS|(?i:{"|".join(_TIME_PATTERNS)})|{"|".join(_CASED_TIME_PATTERNS)}|(?s:.)'
"""A part of a pattern: text in quotes, a known pattern, or one character. SSSS is another pattern than SS twice."""


def _to_char() -> str:
    """The value of `to_char`, in terms of its parameters. A letter outside of quotes and known patterns is an error."""
    known = ", ".join(f"'{name}': '{one}'" for name, one in {**_TIME_PATTERNS, **_CASED_TIME_PATTERNS}.items())
    translated = f"coalesce(MAP {{{known}}}[part], MAP {{{known}}}[upper(part)])"
    return (
        "strftime(moment, array_to_string([CASE "
        "WHEN part[1] = '\"' AND length(part) > 1 THEN replace(part[2:-2], '%', '%%') "
        f"WHEN {translated} IS NOT NULL THEN {translated} "
        "WHEN regexp_matches(part, '[\\pL\"\\\\]') "
        "THEN error('The pattern of to_char has ' || part || ', which is not supported; text needs double quotes') "
        f"ELSE replace(part, '%', '%%') END FOR part IN regexp_extract_all(pattern, '{_TIME_PART}')], ''))"
    )


_FUNCTIONS = {
    "class_oid": (("wanted",), "(SELECT oid FROM pg_catalog.pg_class "
    "WHERE relname = split_part(replace(wanted, '\"', ''), '.', -1) LIMIT 1)"),
    "to_regclass": (("wanted",), "class_oid(wanted)"),
    "to_regtype": (("wanted",), "(SELECT min(oid) FROM pg_catalog.pg_type WHERE typname = wanted)"),
    "set_config": (("name, value, local",), "value"),
    "pg_get_userbyid": (("id",), "'millpond'"),
    "client_current_user": (("",), "'millpond'"),
    "client_session_user": (("",), "'millpond'"),
    "to_char": (("moment, pattern",), _to_char()),
    "date_bin": (("width, moment, origin",), "time_bucket(CAST(width AS INTERVAL), moment, origin)"),
    "obj_description": (("a", "a, b"), "NULL"),
    "pg_backend_pid": (("",), "1"),
    "pg_database_size": (("a",), "0"),
    "pg_tablespace_location": (("id",), "''"),
    "pg_get_function_result": (("id",), "(SELECT min(prorettype) FROM pg_catalog.pg_proc WHERE oid = id)"),
    "pg_get_function_arguments": (
        ("id",), "(SELECT min(array_to_string(proargtypes, ', ')) FROM pg_catalog.pg_proc WHERE oid = id)"
    ),
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

INFORMATION_SCHEMA_TABLES = {
    "tables": "table_schema", "views": "table_schema", "columns": "table_schema", "schemata": "schema_name",
}  # fmt: skip
"""The replaced tables of `information_schema`, with the column of the schema."""

_VIEWS = {
    "pg_namespace": f"SELECT * FROM pg_catalog.pg_namespace WHERE nspname NOT IN {_HIDDEN}",
    "pg_attribute": "SELECT * REPLACE (-1 AS attstattarget, 'p' AS attstorage, '' AS attcompression) "
    "FROM pg_catalog.pg_attribute",
    "pg_class": "SELECT * REPLACE (NULL::VARCHAR[] AS relacl, NULL::VARCHAR[] AS reloptions, 'd' AS relreplident, "
    "NULL::INTEGER AS relam), "
    "false AS relforcerowsecurity FROM pg_catalog.pg_class "
    "WHERE relnamespace IN (SELECT oid FROM client.pg_namespace)",
    "pg_database": "SELECT *, 10 AS datdba, 6 AS encoding, 'C' AS datcollate, 'C' AS datctype, NULL AS daticulocale, "
    "'c' AS datlocprovider, -1 AS datconnlimit, 0 AS dattablespace, NULL::VARCHAR[] AS datacl "
    f"FROM pg_catalog.pg_database WHERE datname = '{DATABASE}'",
    "pg_roles": "SELECT 10 AS oid, 'millpond' AS rolname, false AS rolsuper, true AS rolinherit, "
    "false AS rolcreaterole, false AS rolcreatedb, true AS rolcanlogin, false AS rolreplication, "
    "-1 AS rolconnlimit, NULL AS rolvaliduntil, false AS rolbypassrls, NULL AS rolconfig",
    "pg_user": "SELECT 'millpond' AS usename, 10 AS usesysid, false AS usecreatedb, false AS usesuper",
    **{
        name: f"SELECT * FROM pg_catalog.{name} WHERE schemaname NOT IN {_HIDDEN}" for name in ("pg_tables", "pg_views")
    },
    **{
        name: f"SELECT * FROM information_schema.{name} WHERE {column} NOT IN {_HIDDEN}"
        for name, column in INFORMATION_SCHEMA_TABLES.items()
    },
}  # fmt: skip

_EMPTY = {
    "pg_auth_members": "roleid member grantor",
    "pg_cast": "oid castsource:BIGINT casttarget:BIGINT castfunc:BIGINT castcontext castmethod",
    "pg_collation": "oid collname collnamespace collowner",
    "pg_db_role_setting": "setdatabase:BIGINT setrole:BIGINT setconfig:VARCHAR[]",
    "pg_event_trigger": "oid evtname evtevent evtowner evtfoid evtenabled evttags:VARCHAR[]",
    "pg_extension": "oid extname extowner extnamespace extrelocatable extversion extconfig:BIGINT[]",
    "pg_foreign_data_wrapper": "oid fdwname fdwowner fdwhandler fdwvalidator fdwacl:VARCHAR[] fdwoptions:VARCHAR[]",
    "pg_foreign_server": "oid srvname srvowner srvfdw:BIGINT srvtype srvversion srvacl:VARCHAR[] srvoptions:VARCHAR[]",
    "pg_foreign_table": "ftrelid ftserver:BIGINT ftoptions:VARCHAR[]",
    "pg_inherits": "inhrelid inhparent inhseqno inhdetachpending",
    "pg_language": "oid tableoid lanname lanowner lanispl:BOOLEAN lanpltrusted:BOOLEAN lanplcallfoid",
    "pg_matviews": "schemaname matviewname matviewowner tablespace hasindexes:BOOLEAN ispopulated:BOOLEAN definition",
    "pg_operator": "oid oprname oprnamespace oprowner oprkind oprleft:BIGINT oprright:BIGINT oprresult:BIGINT oprcode",
    "pg_opclass": "oid opcname opcdefault:BOOLEAN opcnamespace",
    "pg_policy": "oid polname polrelid polcmd polpermissive:BOOLEAN polroles:BIGINT[] polqual polwithcheck",
    "pg_publication": "oid pubname pubowner puballtables:BOOLEAN pubinsert:BOOLEAN pubupdate:BOOLEAN "
    "pubdelete:BOOLEAN pubtruncate:BOOLEAN pubviaroot:BOOLEAN",
    "pg_publication_namespace": "oid pnpubid pnnspid",
    "pg_publication_rel": "oid prpubid prrelid prqual prattrs:BIGINT[]",
    "pg_shdescription": "objoid classoid description",
    "pg_statistic_ext": "oid stxrelid stxname stxnamespace stxstattarget stxkeys:BIGINT[] stxkind:VARCHAR[]",
    "pg_subscription": "oid subdbid:BIGINT subname subowner subenabled:BOOLEAN subpublications:VARCHAR[]",
    "pg_trigger": "oid tgrelid tgname tgfoid tgtype tgenabled tgisinternal tgconstraint",
}
"""Tables without rows: columns, with their types unless they are texts."""

TABLES = frozenset({*_VIEWS, *_EMPTY, "pg_settings"} - INFORMATION_SCHEMA_TABLES.keys())
"""The tables of `pg_catalog` that are replaced."""


def catalog_statements(settings: Mapping[str, str]) -> Iterator[str]:
    """The statements that make the catalog; `settings`: what `current_setting` returns."""
    for name, (forms, value) in _FUNCTIONS.items():
        yield f"CREATE MACRO main.{name}" + ", ".join(f"({form}) AS {value}" for form in forms)
    pairs = ", ".join(f"{literal(name)}: {literal(value)}" for name, value in settings.items())
    yield f"CREATE MACRO main.client_version() AS {literal(settings['version'])}"
    value = f"(MAP {{{pairs}}})[lower(wanted)]"
    yield f"CREATE MACRO main.client_current_setting(wanted) AS {value}, (wanted, missing_ok) AS {value}"
    for name, sql in _VIEWS.items():
        yield f"CREATE VIEW client.{name} AS {sql}"
    rows = ", ".join(f"({literal(name)}, {literal(value)})" for name, value in settings.items())
    yield (
        "CREATE VIEW client.pg_settings AS SELECT *, NULL AS unit, 'Millpond' AS category, '' AS short_desc, "
        "'internal' AS context, 'string' AS vartype, 'default' AS source, setting AS boot_val, setting AS reset_val, "
        f"false AS pending_restart FROM (VALUES {rows}) AS settings(name, setting)"
    )
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
