"""Suggests replacements for constructs of Spark SQL that queries and pond files cannot contain."""

from __future__ import annotations

from millpond.errors import UnsupportedQuery
from millpond.model.stream import Stream

FUNCTION_LIST = "docs/sql-functions.md lists the functions that queries may call."

TOP_N = (
    "Rows of a continuous query have no order. For the first 10 of each window, read this query from a second one: "
    "SELECT * FROM STREAM lower ORDER BY value DESC LIMIT 10, or with row_number() OVER (PARTITION BY w ORDER BY …), "
    "where w is the window of lower."
)
PER_VALUE = (
    "Write one aggregate per value: sum(v) FILTER (WHERE k = 'a') AS a in SQL, "
    "F.sum(F.when(F.col('k') == 'a', F.col('v'))).alias('a') in Python."
)
TABLE_JOIN = "Join the stream with a table: FROM STREAM s … JOIN (SELECT DISTINCT k FROM t) t ON s.k = t.k."

CLAUSES = {
    "GlobalLimit": ("LIMIT", TOP_N),
    "LocalLimit": ("LIMIT", TOP_N),
    "Limit": ("LIMIT", TOP_N),
    "Offset": ("OFFSET", TOP_N),
    "Sort": ("ORDER BY", TOP_N),
}
"""Plan node -> its name in SQL or the DataFrame API, and what to write instead."""

PARTS = {
    "InSubquery": ("IN (SELECT …)", TABLE_JOIN),
    "Exists": ("EXISTS (SELECT …)", TABLE_JOIN),
    "ScalarSubquery": ("a subquery as a value", "Join the stream with a table, or make the value a live parameter."),
}
"""Expression node -> its name in SQL, and what to write instead."""

_RANKS = ("percent_rank", "ntile", "cume_dist")
_NEIGHBOURS = ("lag", "lead", "nth_value")
FUNCTIONS = dict.fromkeys(_RANKS, TOP_N) | dict.fromkeys(
    _NEIGHBOURS,
    "OVER (…) takes aggregates (count, sum, avg, min, max, …) of the events before each event: RANGE BETWEEN INTERVAL "
    "1 HOUR PRECEDING AND CURRENT ROW.",
)
"""Function -> what to write instead; only functions that have a replacement are listed."""

_QUERY = "For a query, write CREATE STREAMING TABLE name AS SELECT …."
_STREAM = "For a stream, write CREATE TABLE name (…) USING source OPTIONS (…)."
_SETTING = "Leave it out: settings belong to the Spark session that runs the pond, not to its file."

STATEMENTS = {
    "InsertIntoStatement": ("INSERT INTO", _QUERY),
    "SetCommand": ("SET", _SETTING),
    "ResetCommand": ("RESET", _SETTING),
    "SetCatalogAndNamespace": ("USE", "Leave it out: names in a pond file have one part."),
    "Project": ("a SELECT on its own", _QUERY),
    "Aggregate": ("a SELECT on its own", _QUERY),
    "CreateView": ("CREATE VIEW", "Write CREATE TEMPORARY VIEW name AS SELECT … of a stream."),
    "CreateMaterializedViewAsSelect": ("CREATE MATERIALIZED VIEW", _QUERY),
    "CreateTableAsSelect": ("CREATE TABLE AS SELECT", _QUERY),
    "DropTable": ("DROP TABLE", "Leave it out, and drop a query of a pond in use with `millpond drop name`."),
    "DropView": ("DROP VIEW", "Leave the view out of the file."),
}
"""Statement of a pond file -> its name in SQL, and what to write instead."""

ANY_STATEMENT = f"{_STREAM} {_QUERY}"


def without_time(stream: Stream, *, by_text: bool) -> UnsupportedQuery:
    """The error for a query without a window whose stream has no known event time."""
    if stream.upstreams:
        upstream = "the inner query" if stream.steps else stream.name
        return UnsupportedQuery(
            f"The query does not group by a window, and the rows of {upstream} belong to windows.",
            f"Write GROUP BY window(w, '1 hour'), where w is the window column of {upstream}.",
        )
    cure = f"Write FROM STREAM {stream.name} WATERMARK ts DELAY OF INTERVAL 10 SECONDS, where ts is the event time"
    if not by_text:
        cure = "Add .withWatermark('ts', '10 seconds') before groupBy, where ts is the event time"
    return UnsupportedQuery(
        "The query does not group by a window, and its stream has no watermark, which would name its event time.",
        f"{cure}; then group by a window, or emit updates ('emit' = 'update').",
    )
