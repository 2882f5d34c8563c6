"""Adapts the SQL that PostgreSQL clients send: splits statements, and replaces spellings that DuckDB lacks.

Psql, drivers and tools read the catalog with names such as `pg_catalog.format_type` and `OPERATOR(pg_catalog.~)`. The
result is checked and run like any other statement, so nothing here decides what is allowed.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import NamedTuple

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
_REGCLASS = re.compile(r"(§\d+§)\s*::\s*regclass\b", re.IGNORECASE)
_NAME_TYPE = re.compile(r"::\s*(?:name|regtype|regproc|\"char\"|regnamespace)(\[\])?(?!\w)", re.IGNORECASE)
_NUMBER_TYPE = re.compile(r"::\s*(?:regclass|xid|oid)\b", re.IGNORECASE)
_FUNCTIONS = re.compile(r"\b(version|current_setting)\s*\(", re.IGNORECASE)
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
    'SELECT pg_get_userbyid(c.relowner) FROM pg_catalog.pg_class c'
    >>> adapted("SELECT 'pg_catalog.x' WHERE n OPERATOR(pg_catalog.~) '^a$' COLLATE pg_catalog.default")
    "SELECT 'pg_catalog.x' WHERE n ~ '^a$' "
    >>> adapted("SELECT 'visits'::regclass::oid, x::pg_catalog.text")
    "SELECT class_oid('visits')::BIGINT, x::text"
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
    text = _SCHEMA.sub("", _COLLATE.sub("", _OPERATOR.sub(r"\1", "".join(shown))))
    text = _REGCLASS.sub(r"class_oid(\1)", text)
    text = _NUMBER_TYPE.sub("::BIGINT", _NAME_TYPE.sub(r"::VARCHAR\1", text))
    text = _FUNCTIONS.sub(r"client_\1(", text)
    return _KEPT.sub(lambda found: kept[int(found[1])], text)
