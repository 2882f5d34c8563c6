"""Adapts the SQL that PostgreSQL clients send: splits statements, and replaces spellings that DuckDB lacks.

Psql, drivers and tools read the catalog with names such as `pg_catalog.format_type` and `OPERATOR(pg_catalog.~)`. The
result is checked and run like any other statement, so nothing here decides what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count, takewhile
from typing import NamedTuple

from millpond.service.postgres.client_catalog import INFORMATION_SCHEMA_TABLES, SEARCH_PATH, TABLES, literal

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\r\n]*)
    |(?P<comment>/\*)
    |(?P<string>[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)|'(?:[^']|'')*(?:'|\Z))
    |(?P<quoted>"(?:[^"]|"")*(?:"|\Z))
    |(?P<dollar>\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z))
    |(?P<word>[^\W\d][\w$]*)
    |(?P<other>::|\d+|\$\d+|.)""",
    re.DOTALL | re.VERBOSE,
)
"""The parts of a statement. A string or comment without an end extends to the end of the text, as a syntax error."""

_COMMENT_EDGE = re.compile(r"/\*|\*/")

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
    rf"(?P<alias>\bAS\s+)?(?<![.\w])(?:pg_catalog\s*\.\s*)?(?P<table>{'|'.join(sorted(TABLES))})\b(?!\s*\()",
    re.IGNORECASE,
)
_INFORMATION = re.compile(rf"\binformation_schema\s*\.\s*({'|'.join(INFORMATION_SCHEMA_TABLES)})\b", re.IGNORECASE)
_SEARCH_PATH = re.compile(
    r"\(\s*SELECT\s+CASE\s+WHEN\s+trim\(s\[i\]\)\s*=\s*§\d+§\s+THEN\s+user\s+ELSE\s+trim\(s\[i\]\)\s+END\s+"
    r"FROM\s+generate_series\(.*?\)\s+as\s+i,\s*string_to_array\(current_setting\(§\d+§\),\s*§\d+§\)\s+s\s*\)",
    re.IGNORECASE | re.DOTALL,
)
"""The schemas of the search path, as Grafana reads them: a function in FROM, whose alias is its column."""
_FUNCTIONS = re.compile(r"\b(version|current_setting)\s*\((?![^()]*\)\s*AS\s*\()", re.IGNORECASE)
"""Calls of functions, except the columns of a WITH."""
_USER = re.compile(r"(?P<alias>\bAS\s+)?(?<![.\w])(?P<name>current_user|session_user)\b(?!\s*\()", re.IGNORECASE)
_JSON_TYPE = re.compile(r"(::\s*)jsonb\b|(\bAS\s+)jsonb(?=\s*\))", re.IGNORECASE)
_OBJECT = re.compile(r"\bjsonb?_build_object\s*\(", re.IGNORECASE)
_KEPT = re.compile(r"§(\d+)§")


class _Token(NamedTuple):
    """A part of a statement; `kind`: the group of `_TOKEN` that it matches, where comments are spaces."""

    kind: str
    text: str


_END = _Token("other", ";")


class Statement(NamedTuple):
    """One statement: its text, and its first words in upper case."""

    text: str
    words: str


def statements_of(sql: str) -> list[Statement]:
    """The statements of a text, without empty ones.

    >>> [one.words for one in statements_of("SELECT ';' ; -- x;\\n show  Queries;;")]
    ['SELECT', 'SHOW QUERIES']
    """
    statements, tokens = list[Statement](), list[_Token]()
    for token in (*_tokens(sql), _END):
        if token != _END:
            tokens.append(token)
            continue
        meant = [one for one in tokens if one.kind != "space"]
        words = [one.text.upper() for one in takewhile(lambda one: one.kind == "word", meant)]
        if meant:
            statements.append(Statement("".join(one.text for one in tokens).strip(), " ".join(words)))
        tokens = []
    return statements


def _tokens(sql: str) -> Iterator[_Token]:
    """The parts of a text.

    >>> [one.text for one in _tokens("a/* /* b */ ; */;--c\\r$t1$;$t1$")]
    ['a', '/* /* b */ ; */', ';', '--c', '\\r', '$t1$;$t1$']
    """
    at = 0
    while (found := _TOKEN.match(sql, at)) is not None:
        kind, end = str(found.lastgroup), found.end()
        if kind == "comment":
            kind, end = "space", _comment_end(sql, end)
        yield _Token(kind, sql[at:end])
        at = end


def _comment_end(sql: str, at: int) -> int:
    """Where the comment that begins before a position ends; comments may be nested."""
    depth = 1
    for edge in _COMMENT_EDGE.finditer(sql, at):
        depth += 1 if edge[0] == "/*" else -1
        if not depth:
            return edge.end()
    return len(sql)


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
    >>> adapted("SELECT current_user AS session_user, '{}'::jsonb, CAST(a AS JSONB)")
    "SELECT client_current_user() AS session_user, '{}'::JSON, CAST(a AS JSON)"
    >>> adapted("WITH version(a) AS (SELECT version()) SELECT a AS pg_class FROM version")
    'WITH version(a) AS (SELECT client_version()) SELECT a AS pg_class FROM version'
    """
    quoted: list[str] = []
    shown: list[str] = []
    for kind, part in _tokens(sql):
        aside = kind in ("string", "dollar") or "§" in part
        if aside or (kind == "quoted" and part not in ('"default"', '"C"', '"char"')):
            shown.append(f"§{len(quoted)}§")
            quoted.append(part)
        else:
            shown.append(part if not part.startswith(("--", "/*")) else " ")
    text = _TABLE.sub(lambda found: found[0] if found["alias"] else f"client.{found['table']}", "".join(shown))
    text = _INFORMATION.sub(r"client.\1", _SEARCH_PATH.sub(f"({', '.join(map(literal, SEARCH_PATH))})", text))
    text = _SCHEMA.sub("", _COLLATE.sub("", _OPERATOR.sub(r"\1", text)))
    text = _REGCLASS.sub(lambda found: f"class_oid({found['cast'] or found['name']})", text)
    text = _NUMBER_TYPE.sub(r"\1\2BIGINT", _NAME_TYPE.sub(r"\1\3VARCHAR\2", text))
    text = _OBJECT.sub("json_object(", _FUNCTIONS.sub(r"client_\1(", _JSON_TYPE.sub(r"\1\2JSON", text)))
    text = _USER.sub(lambda found: found[0] if found["alias"] else f"client_{found['name']}()", text)
    return _KEPT.sub(lambda found: quoted[int(found[1])], text)


def distinct_names(names: Sequence[str]) -> list[str]:
    """Names that differ, also for DuckDB, which does not distinguish upper and lower case; the first one stays.

    >>> distinct_names(["n", "N", "n_1"])
    ['n', 'N_2', 'n_1']
    """
    taken, distinct = {name.lower() for name in names}, list[str]()
    for place, name in enumerate(names):
        if any(name.lower() == other.lower() for other in names[:place]):
            name = next(new for k in count(1) if (new := f"{name}_{k}").lower() not in taken)
            taken.add(name.lower())
        distinct.append(name)
    return distinct
