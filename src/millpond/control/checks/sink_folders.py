"""Checks, before Spark starts, that the folders which a pond file names for rows do not belong to other ponds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from millpond.errors import QuerySyntaxError
from millpond.followers.part_folders import part_folder
from millpond.followers.sinks.folder import foreign_folder, owner_of
from millpond.local_path import scheme_of
from millpond.log.locations.address import Given, address_of
from millpond.spark.frontend.sql_tokens import Token, tokens_of
from millpond.spark.frontend.statements import split

_OF_QUERIES = ("path", "late.path")
_OF_STREAMS = ("dead.path",)
_OF_FILES = ("parquet", "json", "csv")


def check_sink_folders(text: str, out: Given) -> None:
    """Refuse the file of a new pond if a folder for rows has those of another pond, or is for those of another pond.

    A query whose sink names no folder has one in the folder `out`. Folders that are not found here or are not local are
    checked when the pond is opened.

    Raises:
        ForeignPondError: a folder is another pond's. PlaceError: it cannot be read.
    """
    for name, path in named_folders(text):
        path = path or str(address_of(out) / name)
        if scheme_of(path) not in (None, "file"):
            continue
        address = address_of(path, "The folder of a sink")
        parts = part_folder(address, make=False)
        theirs = owner_of(parts, address)
        if theirs is not None:
            raise foreign_folder(parts, address, theirs, f"rows of {name}")


def named_folders(text: str) -> Iterator[tuple[str, str | None]]:
    """The folders for rows of queries, and for dead letters of streams, that a pond file names, with the table.

    Only folders that are plain texts: no raw texts, escapes or expressions. None: a sink of files names no folder.

    >>> text = "CREATE TABLE tx (a INT) USING kafka TBLPROPERTIES ('dead.path' = 'dead'); CREATE OR REFRESH STREAMING "
    >>> text += "TABLE q USING parquet TBLPROPERTIES ('path' = 'out', 'late.path' = 'late') AS SELECT 'path' = 'x'; "
    >>> text += "CREATE STREAMING TABLE r USING csv LOCATION 'o/r' AS SELECT 1; CREATE TABLE s (a INT) LOCATION 'in'"
    >>> [*named_folders(text)]
    [('tx', 'dead'), ('q', 'out'), ('q', 'late'), ('r', 'o/r')]
    >>> text = "CREATE STREAMING TABLE d.a USING csv TBLPROPERTIES ('path' = r'a', 'late.path' = 'it''s') AS SELECT 1;"
    >>> text += "CREATE STREAMING TABLE b TBLPROPERTIES (path 'a' || 'b', my.path = 'c', 'late.path' 'd' 'e') AS SELECT"
    >>> [*named_folders(text)]
    [('d.a', "it's")]
    >>> text = "CREATE STREAMING TABLE a USING JSON AS SELECT 1; CREATE STREAMING TABLE b USING kafka AS SELECT 2"
    >>> [*named_folders(text)]
    [('a', None)]
    >>> [*named_folders("CREATE TABLE a (n INT) USING json; INSERT INTO `A` (n) SELECT 1; INSERT INTO b SELECT 2")]
    [('a', None)]
    """
    with suppress(QuerySyntaxError):  # reported when the file is read
        statements = [tokens_of(statement.text) for statement in split(text)]
        filled = {_filled_by(statement) for statement in statements}
        for statement in statements:
            yield from _folders_of(statement, filled)


def _filled_by(statement: Sequence[Token]) -> str:
    """The sink, in lower case, that an INSERT INTO names; "" for other statements."""
    words = [token.word for token in statement[:3]]
    if words[:2] != ["INSERT", "INTO"] or not statement[2:]:
        return ""
    return _name_of(statement[2 + (words[2] == "TABLE") :][:1]).lower()


def _name_of(tokens: Sequence[Token]) -> str:
    return "".join(token.text.strip("`") for token in tokens)


def _folders_of(statement: Sequence[Token], filled: Collection[str]) -> Iterator[tuple[str, str | None]]:
    words = [token.word for token in statement]
    if "TABLE" not in words[:5] or words[0] != "CREATE":
        return
    is_query, at = "STREAMING" in words[:4], words.index("TABLE") + 1
    at += 3 * (words[at : at + 3] == ["IF", "NOT", "EXISTS"])
    end = words.index("AS") if is_query and "AS" in words else len(words)
    name_end = at + 1
    while words[name_end : name_end + 1] == ["."]:
        name_end += 2
    name = _name_of(statement[at:name_end])
    is_query = is_query or name.lower() in filled
    keys = _OF_QUERIES if is_query else _OF_STREAMS
    texts = [token.text.strip("'\"`").lower() for token in statement[name_end:end]]
    using = texts[texts.index("using") + 1 :][:1] if "using" in texts else []
    if is_query and using and using[0] in _OF_FILES and not {"path", "location"} & {*texts}:
        yield name, None
    for place in range(name_end, end):
        if is_query and words[place] == "LOCATION":
            path, after = _plain_text(statement, place + 1)
            if path is not None and (after >= len(statement) or statement[after].kind == "name"):
                yield name, path
        elif words[place] in ("(", ","):
            key, after = _plain_text(statement, place + 1)
            if key is None and words[place + 1 : place + 2]:
                key, after = statement[place + 1].text.strip("`"), place + 2
            path, after = _plain_text(statement, after + (words[after : after + 1] == ["="]))
            if path is not None and words[after : after + 1] in ([","], [")"]) and (key or "").lower() in keys:
                yield name, path


def _plain_text(tokens: Sequence[Token], at: int) -> tuple[str | None, int]:
    """The text at a place, and the place after it; None: there is none, or it is raw or has escapes."""
    parts, quote = list[str](), tokens[at].text[:1] if at < len(tokens) else ""
    while at < len(tokens) and tokens[at].kind == "text" and tokens[at].text[0] == quote and (
        not parts or tokens[at].start == tokens[at - 1].end  # as in 'it''s'
    ):  # fmt: skip
        parts.append(tokens[at].text)
        at += 1
    if not parts or quote not in "'\"" or any("\\" in part for part in parts):
        return None, at
    return quote.join(part[1:-1] for part in parts), at
