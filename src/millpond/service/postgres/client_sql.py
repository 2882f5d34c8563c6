"""Adapts the SQL that PostgreSQL clients send: splits statements, and replaces spellings that DuckDB lacks.

Psql, drivers and tools read the catalog with names such as `pg_catalog.format_type` and `OPERATOR(pg_catalog.~)`. The
result is checked and run like any other statement, so nothing here decides what is allowed.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import NamedTuple

from millpond.service.postgres.client_catalog import TABLES

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<string>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")*")
    |(?P<dollar>\$(?P<tag>[A-Za-z_]*)\$.*?\$(?P=tag)\$)
    |(?P<word>[^\W\d]\w*)
    |(?P<other>::|\d+|\$\d+|.)""",
    re.DOTALL | re.VERBOSE,
)

_OPERATOR = re.compile(r"\bOPERATOR\s*\(\s*(?:pg_catalog\s*\.\s*)?([-+*/<>=~!@#%^&|`?]+)\s*\)", re.IGNORECASE)
_COLLATE = re.compile(r"\bCOLLATE\s+(?:pg_catalog\s*\.\s*)?(?:\"?default\"?|\"C\")(?!\w)", re.IGNORECASE)
_SCHEMA = re.compile(r"\bpg_catalog\s*\.\s*(?=(?!pg_)\w|pg_\w+\s*\()", re.IGNORECASE)
_REGCLASS = re.compile(
    r"(?:\bCAST\s*\(\s*(?P<cast>§\d+§|\$\d+)\s+AS\s+regclass\s*\)|(?P<name>§\d+§|\$\d+)\s*::\s*regclass\b)",
    re.IGNORECASE,
)
_NAME_TYPE = re.compile(
    r"(::\s*)(?:name|regtype|regproc|\"char\"|regnamespace)(\[\])?(?!\w)|(\bAS\s+)(?:regtype|regproc)(?=\s*\))",
    re.IGNORECASE,
)
_NUMBER_TYPE = re.compile(r"(::\s*)(?:regclass|xid|oid)\b|(\bAS\s+)(?:regclass|xid)(?=\s*\))", re.IGNORECASE)
_TABLE = re.compile(
    rf"(?<![.\w])(?:pg_catalog\s*\.\s*)?({'|'.join(sorted(TABLES))})\b(?!\s*\()", re.IGNORECASE
)  # fmt: skip
_INFORMATION = re.compile(r"\binformation_schema\s*\.\s*(tables|columns|schemata)\b", re.IGNORECASE)
_FUNCTIONS = re.compile(r"\b(version|current_setting)\s*\(", re.IGNORECASE)
_OBJECT = re.compile(r"\bjsonb?_build_object\s*\(", re.IGNORECASE)
_KEPT = re.compile(r"§(\d+)§")


class Statement(NamedTuple):
    """One statement: its text, and its first words in upper case."""

    text: str
    words: str


def statements_of(sql: str) -> list[Statement]:
    """The statements of a text, without empty ones.

    >>> [one.words for one in statements_of("SELECT ';' ; -- x;\\n show  Queries;;")]
    ['SELECT', 'SHOW QUERIES']
    """
    found, tokens = list[Statement](), list[re.Match[str]]()
    for token in [*_TOKEN.finditer(sql), None]:
        if token is not None and token["other"] != ";":
            tokens.append(token)
            continue
        meant = [one for one in tokens if one["space"] is None]
        words = [one[0].upper() for one in takewhile(lambda one: one["word"] is not None, meant)]
        if meant:
            found.append(Statement("".join(one[0] for one in tokens).strip(), " ".join(words)))
        tokens = []
    return found


def adapted(sql: str) -> str:
    """The statement as DuckDB reads it.

    >>> adapted("SELECT pg_catalog.pg_get_userbyid(c.relowner) FROM pg_catalog.pg_class c")
    'SELECT pg_get_userbyid(c.relowner) FROM client.pg_class c'
    >>> adapted("SELECT 'pg_catalog.x' WHERE n OPERATOR(pg_catalog.~) '^a$' COLLATE pg_catalog.default")
    "SELECT 'pg_catalog.x' WHERE n ~ '^a$' "
    >>> adapted("SELECT 'visits'::regclass::oid, x::pg_catalog.text")
    "SELECT class_oid('visits')::BIGINT, x::text"
    >>> adapted("SELECT CAST('visits' AS REGCLASS) AS name, (SELECT x AS name)")
    "SELECT class_oid('visits') AS name, (SELECT x AS name)"
    """
    kept: list[str] = []
    shown: list[str] = []
    for token in _TOKEN.finditer(sql):
        aside = token["string"] is not None or token["dollar"] is not None or "§" in token[0]
        if aside or (token["quoted"] is not None and token[0] not in ('"default"', '"C"', '"char"')):
            shown.append(f"§{len(kept)}§")
            kept.append(token[0])
        else:
            shown.append(token[0] if not token[0].startswith(("--", "/*")) else " ")
    text = _INFORMATION.sub(r"client.\1", _TABLE.sub(r"client.\1", "".join(shown)))
    text = _SCHEMA.sub("", _COLLATE.sub("", _OPERATOR.sub(r"\1", text)))
    text = _REGCLASS.sub(lambda found: f"class_oid({found['cast'] or found['name']})", text)
    text = _NUMBER_TYPE.sub(r"\1\2BIGINT", _NAME_TYPE.sub(r"\1\3VARCHAR\2", text))
    text = _OBJECT.sub("json_object(", _FUNCTIONS.sub(r"client_\1(", text))
    return _KEPT.sub(lambda found: kept[int(found[1])], text)
