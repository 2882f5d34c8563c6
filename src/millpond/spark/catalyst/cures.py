"""Suggests replacements for constructs of Spark SQL that queries and pond files cannot contain."""

from __future__ import annotations

import re

from millpond.errors import UnsupportedQuery
from millpond.model.stream import Stream
from millpond.plan.options.output_modes import updates_cure
from millpond.spark.catalyst.text_span import COMMENT

FUNCTION_LIST = "docs/sql-functions.md lists the functions that queries may call."

TOP_N = (
    "Rows of a continuous query have no order. For the first 10 of each window, read the rows of this query, in FROM "
    "(…) or as FROM STREAM lower, and end with ORDER BY value DESC LIMIT 10, or with QUALIFY row_number() OVER "
    "(PARTITION BY w ORDER BY value DESC) <= 10, where w is its window. max_by(x, value, 10) gives them as a "
    "list, also of events."
)
SORTED = (
    "Serve the query ('serve' = 'true'), and sort its latest rows when you read them: SELECT … ORDER BY n DESC "
    f"in psql. {TOP_N}"
)
PER_VALUE = (
    "Write one aggregate per value: sum(v) FILTER (WHERE k = 'a') AS a in SQL, "
    "F.sum(F.when(F.col('k') == 'a', F.col('v'))).alias('a') in Python."
)
ONE_ROW = "Write an aggregate without GROUP BY in it, such as SELECT max(v) FROM t."

AS_OF = (
    "Of a stream: read it from a point with the options of its source. Of a table: leave it out; an event is joined "
    "with the rows that the table has when the event is read. For those at the event's time, keep the times of each "
    "version in the table: JOIN rates AS r ON r.k = s.k AND s.ts >= r.valid_from AND s.ts < r.valid_to."
)

CONSTANTS = (
    "Write a number, a text, TRUE, FALSE, NULL or DATE '2024-12-25', casts and sums of these, or array, map and struct."
)
"""What may stand where Spark computes a value while it analyses a text."""

CLAUSES = {
    "Intersect": ("INTERSECT ALL", "Of a table t: WHERE EXISTS (SELECT 1 FROM t WHERE t.k = s.k)."),
    "Except": ("EXCEPT ALL", "Of a table t: WHERE NOT EXISTS (SELECT 1 FROM t WHERE t.k = s.k)."),
    "Sample": ("TABLESAMPLE", "Filter by a hash of a column: WHERE pmod(hash(id), 100) < 10."),
    "LateralJoin": (
        "LATERAL (SELECT …)",
        "Join the stream with the table, or write a sub-query of one value in SELECT: (SELECT max(v) FROM t WHERE "
        "t.k = s.k). LATERAL explode(…) makes rows of an array, and LATERAL (SELECT a * 2 AS x) names expressions.",
    ),
    "OneRowRelation": ("SELECT without FROM here", "Write its value, or a table of it: (VALUES (5)) AS t(x)."),
    "RepartitionByExpression": ("DISTRIBUTE BY", "Leave it out: a pond distributes rows by the keys of the queries."),
    "UnresolvedTableValuedFunction": (
        "this function as a table", "Use explode, posexplode, inline or stack, or a view over a file with the rows."
    ),
    "CollectMetrics": ("observe(…)", "Leave it out, and count events by an aggregate of another query."),
    "RelationTimeTravel": ("VERSION or TIMESTAMP AS OF", AS_OF),
    "ScriptTransformation": ("TRANSFORM", "Use a function that the operator registers (docs/functions.md)."),
    "TransformScript": ("TRANSFORM", "Use a function that the operator registers (docs/functions.md)."),
    "GlobalLimit": ("LIMIT", TOP_N),
    "LocalLimit": ("LIMIT", TOP_N),
    "Limit": ("LIMIT", TOP_N),
    "Offset": ("OFFSET", TOP_N),
    "Sort": ("ORDER BY", SORTED),
}
"""Plan node -> its name in SQL or the DataFrame API, and what to write instead."""

COLLATED = "Cast it to string, and bring texts that are to be equal to one form: lower(CAST(k AS STRING))."

FUNCTIONS = {
    "counter_diff": "Subtract the earlier value: v - lag(v) OVER (PARTITION BY k ORDER BY ts).",
}
"""Function -> what to write instead; only functions that have a replacement are listed."""

_QUERY = "For a query, write CREATE STREAMING TABLE name AS SELECT …."
_STREAM = "For a stream, write CREATE TABLE name (…) USING source OPTIONS (…)."
_SETTING = "Leave it out: settings belong to the Spark session that runs the pond, not to its file."
_LIST = "Leave it out: `millpond list` lists the queries of a served pond, `millpond explain FILE.sql` those of a file."
_SHOW = (
    "Leave it out: `millpond show NAME` shows the text and the columns of a query of a served pond, and"
    " `millpond explain FILE.sql` explains the queries of a file."
)
_EVENTS = "Leave it out: a pond never changes events or rows that were written."
_BATCH = "Leave it out: a pond reads its streams and tables anew, and keeps no table."
_SELECTS = ("SELECT", "WITH", "VALUES", "FROM", "TABLE", "(")

STATEMENTS = {
    "INSERT OVERWRITE": "Write INSERT INTO sink SELECT …: results are only added.",
    "SET VARIABLE": "Write DECLARE VARIABLE name TYPE DEFAULT value; `millpond param set name=value` changes it.",
    "SET VAR": "Write DECLARE VARIABLE name TYPE DEFAULT value; `millpond param set name=value` changes it.",
    "RESET": _SETTING,
    "USE": "Leave it out: names in a pond file have one part.",
    **dict.fromkeys((*_SELECTS, "CREATE TABLE AS SELECT"), _QUERY),
    "CREATE VIEW": "Write CREATE TEMPORARY VIEW name AS SELECT … of a stream.",
    "CREATE OR REPLACE VIEW": "Write CREATE TEMPORARY VIEW name AS SELECT … of a stream.",
    "CREATE MATERIALIZED VIEW": _QUERY,
    "CREATE FLOW": "Write INSERT INTO sink SELECT … without CREATE FLOW.",
    "CREATE FUNCTION": "Leave it out: the operator registers functions, in Python or with MILLPOND_FUNCTIONS.",
    "CREATE DATABASE": "Leave it out: names in a pond file have one part.",
    "CREATE SCHEMA": "Leave it out: names in a pond file have one part.",
    "REPLACE TABLE": "Write CREATE OR REPLACE TABLE.",
    "DROP TABLE": "Leave it out, and drop a query of a pond in use with `millpond drop name`.",
    "DROP VIEW": "Leave the view out of the file.",
    "DROP": "Leave it out, and drop a query of a pond in use with `millpond drop name`.",
    "ALTER": "Change the statement that creates it; `millpond alter name` changes a query of a pond in use.",
    "SHOW FUNCTIONS": f"Leave it out: `millpond functions` lists your own functions. {FUNCTION_LIST}",
    "SHOW TABLES": _LIST, "SHOW VIEWS": _LIST, "SHOW": _SHOW, "DESCRIBE FUNCTION": f"Leave it out. {FUNCTION_LIST}",
    "DESC FUNCTION": f"Leave it out. {FUNCTION_LIST}", "DESCRIBE": _SHOW, "DESC": _SHOW,
    "EXPLAIN": "Leave it out: `millpond explain FILE.sql` explains the queries of a file.",
    "DELETE": _EVENTS, "UPDATE": _EVENTS, "MERGE": _EVENTS, "TRUNCATE": _EVENTS,
    "CACHE": _BATCH, "UNCACHE": _BATCH, "REFRESH": _BATCH, "ANALYZE": _BATCH, "LOAD": _BATCH,
    "ADD": "Leave it out: jars belong to the Spark session that runs the pond (`spark.jars`).",
}  # fmt: skip
"""The first words of a statement that a pond file may not have, and what to write instead."""

A_SELECT = "a SELECT on its own"
IN_A_TEXT = (
    "Give the SELECT alone. The name, the sink and the other options are arguments: `millpond add NAME 'SELECT …'"
    " --sink parquet`, or `pond.add(name, text, sink=…)`; `alter` replaces a query."
)
_COMMENTS = re.compile(COMMENT, re.DOTALL | re.VERBOSE)
_WORD = re.compile(r"\w+|\(")
_AS_SELECT = re.compile(r"CREATE (OR REPLACE )?TABLE .*\bAS (SELECT|WITH|\()")


def statement_name(text: str) -> str:
    """The name of a statement that is not supported, from its first words.

    >>> statement_name("DROP TABLE a"), statement_name("SELECT 1 ORDER BY 1"), statement_name("GRANT SELECT ON a TO b")
    ('DROP TABLE', 'a SELECT on its own', 'GRANT SELECT')
    """
    words = _WORD.findall(_COMMENTS.sub(" ", text).upper())
    if _AS_SELECT.match(" ".join(words)):
        return "CREATE TABLE AS SELECT"
    starts = (" ".join(words[:count]) for count in range(min(4, len(words)), 0, -1))
    start = next((start for start in starts if start in STATEMENTS), " ".join(words[:2]))
    return A_SELECT if start in _SELECTS else start


def in_a_file(text: str) -> tuple[str, str]:
    """The name of a statement that a pond file may not have, and what to write instead."""
    name = statement_name(text)
    return name, _QUERY if name == A_SELECT else STATEMENTS.get(name, ANY_STATEMENT)


ANY_STATEMENT = f"{_STREAM} {_QUERY}"


def without_time(stream: Stream, text: str | None) -> UnsupportedQuery:
    """The error for a query without a window whose stream has no known event time; `text`: None for a DataFrame."""
    if stream.upstreams:
        upstream = "the inner query" if stream.steps else stream.name
        return UnsupportedQuery(
            f"The query does not group by a window, and the rows of {upstream} belong to windows.",
            f"Write GROUP BY window(w, '1 hour'), where w is the window column of {upstream}.",
        )
    cure = f"Write FROM STREAM {stream.name} WATERMARK ts DELAY OF INTERVAL 10 SECONDS, where ts is the event time"
    if text and re.search(rf"\b(FROM|JOIN)\s+`?{re.escape(stream.name)}\b", text, re.IGNORECASE):
        cure = f"The word STREAM is missing before {stream.name}. {cure}"
    if not text:
        cure = "Add .withWatermark('ts', '10 seconds') before groupBy, where ts is the event time"
    return UnsupportedQuery(
        "The query does not group by a window, and its stream has no watermark, which would name its event time.",
        f"{cure}; then group by a window. Or emit updates ({updates_cure(by_text=bool(text))}), which need no "
        "watermark.",
    )


def cast_cure(kind: str) -> str:
    """What to write instead of a value of a type that a pond does not store."""
    if kind.startswith("interval day"):
        return "Write timestampdiff(SECOND, earlier, later), or cast it to string."
    return "Cast it to string."
