"""Reads `INSERT INTO sink SELECT …`, and gives the columns of a query the names that its sink declares."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from millpond.errors import QueryRefused, QueryTypeError
from millpond.model.query import Named
from millpond.model.selection import AnyQuery
from millpond.model.stream import Field
from millpond.spark.catalyst.private_names import JavaObject, kind_of, name_parts
from millpond.spark.catalyst.text_span import COMMENT

INSERT = "InsertIntoStatement"
"""The kind of a parsed INSERT INTO."""

_BLANK = rf"(?:\s | {COMMENT})"
_NAME = r"(?:`(?:``|[^`])+`|\w+)"
_HEAD = re.compile(
    rf"{_BLANK}*INSERT{_BLANK}+INTO{_BLANK}+(?:TABLE{_BLANK}+)?{_NAME}{_BLANK}*(?:\([^()]*\){_BLANK}*(?=\w|\())?"
    rf"(?:BY{_BLANK}+NAME{_BLANK}+)?",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_OR_REPLACE = re.compile(
    rf"(?P<create>{_BLANK}*CREATE{_BLANK}+)(?P<replace>OR{_BLANK}+(?:REPLACE|REFRESH))(?={_BLANK}+STREAMING{_BLANK})",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_FORM = "Write INSERT INTO sink SELECT …."


class Insert(NamedTuple):
    """The sink (in lower case) and the SELECT of an INSERT INTO, and where the SELECT starts in the statement."""

    sink: str
    text: str
    start: int
    by_name: bool


def parsable(text: str) -> str:
    """The statement without OR REPLACE and OR REFRESH of a streaming table, which Spark's parser lacks.

    >>> parsable("CREATE OR REFRESH STREAMING TABLE a AS SELECT 1")
    'CREATE            STREAMING TABLE a AS SELECT 1'
    >>> parsable("/* /* a */ b */ create or replace streaming table a AS SELECT 1")
    '/* /* a */ b */ create            streaming table a AS SELECT 1'
    """
    found = _OR_REPLACE.match(text)
    if found is None:
        return text
    start, end = found.span("replace")
    return text[:start] + re.sub(r"[^\r\n]", " ", text[start:end]) + text[end:]


def target_of(plan: JavaObject) -> str:
    """The table that a parsed INSERT INTO names, in lower case."""
    parts = name_parts(plan.table()) if kind_of(plan.table()) == "UnresolvedRelation" else []
    if len(parts) != 1:
        raise QueryRefused("INSERT INTO names something else than a sink of this file.", _FORM)
    return parts[0].lower()


def insert_of(plan: JavaObject, text: str) -> Insert:
    """The parts of a parsed INSERT INTO; `text` is the statement.

    Raises:
        QueryRefused: it overwrites, inserts values, or names partitions or columns.
    """
    head = _HEAD.match(text)
    if plan.overwrite():
        raise QueryRefused("A pond file may not have INSERT OVERWRITE: results are only added.", _FORM)
    if plan.partitionSpec().size():
        raise QueryRefused("INSERT INTO names a partition, which no sink has.", "Leave PARTITION (…) out.")
    if plan.userSpecifiedCols().size():
        raise QueryRefused(
            "INSERT INTO lists columns, and a query writes all columns of its rows.",
            "Name the columns in the SELECT, with AS.",
        )
    if head is None or kind_of(plan.query()) == "UnresolvedInlineTable":
        raise QueryRefused("INSERT INTO without a SELECT of a stream.", _FORM)
    return Insert(target_of(plan), text[head.end() :], head.end(), bool(plan.byName()))


def fitted(query: AnyQuery, columns: Sequence[Field], *, by_name: bool) -> AnyQuery:
    """The query with the column names that its sink declares, by position or, with `by_name`, in the sink's order.

    Raises:
        QueryTypeError: the query has other columns, or columns of other types.
    """
    if not columns:
        return query
    output = query.output
    if by_name:
        own = {one.name.lower(): one for one in output}
        if {*own} == {column.name.lower() for column in columns}:
            output = tuple(own[column.name.lower()] for column in columns)
    names = [one.name.lower() for one in output]
    wanted = [column.name.lower() for column in columns]
    if len(names) != len(wanted) or (by_name and names != wanted):
        raise QueryTypeError(
            f"The sink {query.name} has the columns {_listed(columns)}, and its SELECT has {_listed(output)}.",
            "Let both have the same columns, or leave the columns of the sink out.",
        )
    for one, column in zip(output, columns, strict=True):
        if _plain(one.expression.type) != _plain(column.type):
            raise QueryTypeError(
                f"The column {column.name} of the sink {query.name} is {column.type}, and its SELECT has"
                f" {one.expression.type} there ({one.name}).",
                f"Write CAST(… AS {column.type.upper()}) AS {column.name} in the SELECT, or declare it"
                f" {one.expression.type.upper()}.",
            )
    named = tuple(Named(column.name, one.expression) for one, column in zip(output, columns, strict=True))
    return msgspec.structs.replace(query, output=named)


def _listed(columns: Sequence[Field | Named]) -> str:
    return ", ".join(column.name for column in columns)


def _plain(kind: str) -> str:
    """A type without the backticks and blanks in which writings of the same type differ."""
    return re.sub(r"[`\s]", "", kind).lower()
