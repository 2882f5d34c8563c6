"""Adds the position to errors about queries: line and column, from 1, in the text that the user wrote.

The analysed text has the same positions as the user's text (`windows.tumbling_twin` preserves them), so Spark's own
positions are used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from millpond.errors import ChangeRefused, QueryError, QueryTypeError, UnsupportedQuery
from millpond.spark.catalyst.private_names import JavaObject, span_of
from millpond.spark.catalyst.text_span import TextSpan

_PLACED = re.compile(r"\bline \d+, column \d+")
_QUOTED = re.compile(r"`([^`]+)`")
_EXPRESSION = re.compile(r'"([^"]+)"')
_PARTS = (
    ("window", "window"), ("join", "Join"), ("union", "Union"), ("distinct", "Distinct"),
    ("no stream", "UnresolvedRelation"), ("group by", "Aggregate"), ("two columns", "Aggregate"),
    ("aggregation", "Aggregate"), ("aggregation", "Project"), ("order by", "Sort"), ("limit", "GlobalLimit"),
)  # fmt: skip
"""Words of a message, and the kind of plan node that each refers to."""

_KIND = re.compile(r"\((\w+)\)")
_POSITION = re.compile(r"\(?\bline (\d+),? pos (\d+)\)?")
_STREAMING = ("_LEGACY_ERROR_TEMP_1039", "STREAMING", "UNSUPPORTED")


def spark_refusal(error: PySparkException, text: str) -> QueryError:
    """The error that Spark's analyser raised for `text`, in one line, with its position."""
    message = str(error).strip()
    what = " ".join(message.split("\n\n")[0].splitlines()[0].split(" SQLSTATE:")[0].split("; line ")[0].split())
    where = _context(error, text) or _position(message) or _named(what, text)
    if (error.getCondition() or "").startswith(_STREAMING):
        return UnsupportedQuery(f"Spark refuses the query{where}: {what}", "Change that part.")
    cure = "Check names and types there."
    if "TIMESTAMP_NTZ" in what and "EVENT_TIME" in what:
        cure = "Declare the column TIMESTAMP, or write CAST(… AS TIMESTAMP): Spark then takes the zone of the session."
    return QueryTypeError(f"Spark cannot resolve the query{where}: {what}", cure)


def positioned(message: str) -> tuple[str, str]:
    """The first line of a message of Spark's parser without its position, and the position in our format.

    >>> positioned("[PARSE_SYNTAX_ERROR] Syntax error at or near ','. SQLSTATE: 42601 (line 1, pos 37)")
    ("[PARSE_SYNTAX_ERROR] Syntax error at or near ','.", ' at line 1, column 38')
    """
    lines = [line for line in message.strip().splitlines() if line.strip()]
    first = lines[0] if lines else "Spark gave no reason."
    return _POSITION.sub("", first).split(" SQLSTATE:")[0].strip(), _position(message)


def placed(error: QueryError, text: str, nodes: Mapping[str, JavaObject]) -> QueryError:
    """The error with a position if it has none: that of the first piece it quotes, or of the plan node it names."""
    what = " ".join(error.what.split())
    if _PLACED.search(what):
        return type(error)(what, error.cure)
    span = next((found for piece in _QUOTED.findall(error.what) if (found := _find(piece, text))), None)
    if span is None:
        kinds = [*_KIND.findall(what), *(kind for word, kind in _PARTS if word in what.lower())]
        span = next((found for kind in kinds if kind in nodes and (found := span_of(nodes[kind]))), None)
    where = "" if span is None else f"At line {span.line}, column {span.column}: "
    return type(error)(where + what, error.cure)


def _find(piece: str, text: str) -> TextSpan | None:
    """Find a piece of the text that is not part of a longer word."""
    before, after = ("(?<!\\w)" if piece[:1].isalnum() else "", "(?!\\w)" if piece[-1:].isalnum() else "")
    found = re.search(before + re.escape(piece) + after, text)
    return None if found is None else TextSpan(text, *found.span())


def _context(error: PySparkException, text: str) -> str:
    for context in error.getQueryContext():
        if context.contextType().name == "SQL" and 0 <= context.startIndex() < len(text):
            return f" at {TextSpan(text, context.startIndex(), context.stopIndex() + 1)}"
    return ""


def _named(what: str, text: str) -> str:
    """The position of the first expression that Spark quotes without giving its position."""
    span = next((found for piece in _EXPRESSION.findall(what) if (found := _find(piece, text))), None)
    return "" if span is None else f" at {span}"


def _position(message: str) -> str:
    found = _POSITION.search(message)
    return "" if found is None else f" at line {found[1]}, column {int(found[2]) + 1}"


def not_stored(who: str, why: str = "") -> ChangeRefused:
    """The error for a query or version of which a part is not stored in the log; `why`: its text cannot be analysed."""
    return ChangeRefused(
        "The pond cannot be opened without its queries: "
        + (f"the text of {who} cannot be analysed. {why}" if why else f"a part of {who} exists only in a program."),
        "Add all queries in force, or declare the views and tables (those with a password, too) that they name, before "
        "you open it.",
    )


def check_streaming(name: str, frame: object) -> None:
    """Refuse what is no streaming DataFrame.

    Raises:
        QueryTypeError: it is something else.
    """
    if not isinstance(frame, DataFrame):
        raise QueryTypeError(
            f"{name} is neither SQL text nor a DataFrame, but a {type(frame).__name__}.",
            "Give a SELECT, or a streaming DataFrame that is not started.",
        )
    if not frame.isStreaming:
        raise QueryTypeError(f"The frame of {name} is no stream.", "Build it with spark.readStream.")


@contextmanager
def within(name: str, line: int | None = None) -> Iterator[None]:
    """A context that adds to errors which query, or which statement of a file, they are about."""
    try:
        yield
    except QueryError as error:
        where = "" if line is None else f" (line {line} of the file)"
        raise type(error)(f"In {name}{where}: {error.what}", error.cure) from error
