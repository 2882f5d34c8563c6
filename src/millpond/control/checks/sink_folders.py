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

_LOCATION = "LOCATION"
_OF_QUERIES = ("path", "late.path", _LOCATION)
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
    >>> [*named_folders("CREATE TABLE d.a (n INT) USING json; INSERT INTO d.`A` (n) SELECT 1; INSERT INTO b SELECT 2")]
    [('d.a', None)]
    >>> [*named_folders("CREATE STREAMING TABLE a (path INT) COMMENT 'using path' USING csv AS SELECT 1")]
    [('a', None)]
    >>> [*named_folders("CREATE STREAMING TABLE a USING csv OPTIONS (path 'a' || 'b') AS SELECT 1")]
    []
    """
    with suppress(QuerySyntaxError):  # reported when the file is read
        statements = [tokens_of(statement.text) for statement in split(text)]
        filled = {_filled_by(statement) for statement in statements}
        for statement in statements:
            yield from _folders_of(statement, filled)


def _filled_by(statement: Sequence[Token]) -> str:
    """The sink, in lower case, that an INSERT INTO names; "" for other statements."""
    words = [token.word for token in statement]
    if words[:2] != ["INSERT", "INTO"] or not words[2:]:
        return ""
    return _name_at(statement, 2 + (words[2] == "TABLE"))[0].lower()


def _name_at(tokens: Sequence[Token], at: int) -> tuple[str, int]:
    """The name at a place, which may have dots, and the place after it."""
    end = at + 1
    while end < len(tokens) and tokens[end].text == ".":
        end += 2
    return "".join(token.text.strip("`") for token in tokens[at:end]), end


def _folders_of(statement: Sequence[Token], filled: Collection[str]) -> Iterator[tuple[str, str | None]]:
    words = [token.word for token in statement]
    if "TABLE" not in words[:5] or words[0] != "CREATE":
        return
    is_query, at = "STREAMING" in words[:4], words.index("TABLE") + 1
    at += 3 * (words[at : at + 3] == ["IF", "NOT", "EXISTS"])
    end = words.index("AS") if is_query and "AS" in words else len(words)
    name, at = _name_at(statement, at)
    is_query = is_query or name.lower() in filled
    format_ = words.index("USING", at, end) + 1 if "USING" in words[at:end] else end
    of_files = "".join(words[format_ : format_ + 1]).strip("`").lower() in _OF_FILES
    options = [*_options(statement[at:end])]
    if is_query and of_files and not {"path", _LOCATION} & {key for key, _ in options}:
        yield name, None
    keys = _OF_QUERIES if is_query else _OF_STREAMS
    yield from ((name, path) for key, path in options if path is not None and key in keys)


def _options(tokens: Sequence[Token]) -> Iterator[tuple[str, str | None]]:
    """The clause LOCATION and the options, each with its plain text; None: it has another value.

    A column, which may have the name `path`, has no value.
    """
    texts = [token.text for token in tokens]
    for place, token in enumerate(tokens):
        if token.word == _LOCATION:
            path, after = _plain_text(tokens, place + 1)
            yield _LOCATION, path if after >= len(tokens) or tokens[after].kind == "name" else None
        elif token.text in ("(", ","):
            key, after = _key_at(tokens, place + 1)
            is_set = texts[after : after + 1] == ["="]
            path, end = _plain_text(tokens, after + is_set)
            if is_set or end > after:
                yield key, path if texts[end : end + 1] in ([","], [")"]) else None


def _key_at(tokens: Sequence[Token], at: int) -> tuple[str, int]:
    """The key of an option at a place, in lower case, and the place after it."""
    key, after = _plain_text(tokens, at)
    if key is None:
        key, after = "".join(token.text.strip("`") for token in tokens[at : at + 1]), at + 1
    return key.lower(), after


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
