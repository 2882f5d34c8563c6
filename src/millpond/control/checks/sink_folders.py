"""Checks, before Spark starts, that the folders which a pond file names for rows do not belong to other ponds."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.followers.part_folders import part_folder
from millpond.followers.sinks.folder import foreign_folder, owner_of
from millpond.local_path import scheme_of
from millpond.log.locations.address import address_of
from millpond.spark.frontend.sql_tokens import Token, tokens_of

_OF_QUERIES = ("path", "late.path")
_OF_STREAMS = ("dead.path",)


def check_sink_folders(text: str) -> None:
    """Refuse the file of a new pond if a folder for rows has those of another pond, or is for those of another pond.

    Folders that are not found here, or are not local, are checked when the pond is opened.

    Raises:
        ForeignPondError: a folder is another pond's. PlaceError: it cannot be read.
    """
    for name, path in named_folders(text):
        if scheme_of(path) not in (None, "file"):
            continue
        address = address_of(path, "The folder of a sink")
        parts = part_folder(address, make=False)
        theirs = owner_of(parts, address)
        if theirs is not None:
            raise foreign_folder(parts, address, theirs, f"rows of {name}")


def named_folders(text: str) -> Iterator[tuple[str, str]]:
    """The folders for rows that CREATE STREAMING TABLE, and for dead letters that CREATE TABLE names, with the table.

    >>> text = "CREATE TABLE tx (a INT) USING kafka TBLPROPERTIES ('dead.path' = 'dead'); CREATE OR REFRESH STREAMING "
    >>> text += "TABLE q USING parquet TBLPROPERTIES ('path' = 'out', 'late.path' = 'late') AS SELECT 'path' = 'x'; "
    >>> text += "CREATE STREAMING TABLE r USING csv LOCATION 'o/r' AS SELECT 1; CREATE TABLE s (a INT) LOCATION 'in'"
    >>> [*named_folders(text)]
    [('tx', 'dead'), ('q', 'out'), ('q', 'late'), ('r', 'o/r')]
    """
    for statement in _statements(text):
        words = [token.word for token in statement]
        if "TABLE" not in words[:5] or words[0] != "CREATE":
            continue
        is_query, at = "STREAMING" in words[:4], words.index("TABLE") + 1
        at += 3 * (words[at : at + 3] == ["IF", "NOT", "EXISTS"])
        end = words.index("AS") if is_query and "AS" in words else len(words)
        keys = _OF_QUERIES if is_query else _OF_STREAMS
        for place in range(at + 1, end):
            value, key = statement[place], statement[place - 1]
            if value.kind == "text" and place > at + 1 and key.text == "=":
                key = statement[place - 2]
            if value.kind != "text" or "\\" in value.text:
                continue
            if key.text.strip("'\"`").lower() in keys or (is_query and key.word == "LOCATION"):
                yield statement[at].text.strip("`"), value.text[1:-1]


def _statements(text: str) -> Iterator[list[Token]]:
    statement: list[Token] = []
    for token in tokens_of(text):
        if token.text != ";":
            statement.append(token)
        elif statement:
            yield statement
            statement = []
    if statement:
        yield statement
