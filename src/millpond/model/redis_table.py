"""Keyed tables, whose rows other programs keep in Redis: how a row is found, read, and replaced when missing.

The key of a row is a pattern of literals and key columns, `user:{id}`; `{{` and `}}` are literal braces. A row is a
hash with a field per column, or a string that holds a JSON object.
"""

from __future__ import annotations

import hashlib
from string import Formatter
from typing import NamedTuple

import msgspec

from millpond.errors import QueryTypeError
from millpond.model.stream import Field
from millpond.model.types import is_integer, is_known

PROBLEM = "_problem"
"""The column, where a table lists it, that tells why a row was not read; NULL where it was, or was not asked for."""

FORMS = ("hash", "json")
MISSING = ("null", "default", "dead-letter")
WRONG_TYPE = ("dead-letter", "null", "default", "fail")
VANISHED = ("wait", "null", "default", "dead-letter", "fail")


class Piece(NamedTuple):
    """A literal of a key's pattern, and the column whose text follows it, if one does."""

    literal: str
    column: str | None


class KeyedTable(msgspec.Struct, frozen=True):
    """What is known of a keyed table but its place, which may hold a secret.

    `missing`, `wrong_type` and `vanished` say what a row is worth that is not there, that is no row of `columns`, and
    whose server does not answer: `null` (no row), `default` (one of `defaults`, a JSON object), `dead-letter` (the
    event is dead), `fail` (the run ends) or `wait`.
    """

    name: str
    key: str
    columns: tuple[Field, ...]
    form: str = "hash"
    missing: str = "null"
    wrong_type: str = "dead-letter"
    vanished: str = "wait"
    defaults: str = "{}"

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The pattern in parts.

        >>> KeyedTable("t", "{{a}}:{b}", ()).pieces
        (Piece(literal='{', column=None), Piece(literal='a}', column=None), Piece(literal=':', column='b'))
        """
        return tuple(Piece(literal, column) for literal, column, _, _ in Formatter().parse(self.key))

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that make the key, each once, in the order of the pattern."""
        return tuple(dict.fromkeys(piece.column for piece in self.pieces if piece.column is not None))

    @property
    def values(self) -> tuple[Field, ...]:
        """The columns that are read."""
        return tuple(field for field in self.columns if field.name not in (*self.keys, PROBLEM))

    @property
    def digest(self) -> str:
        """What its answers depend on, but for the rows themselves; 16 hexadecimal digits."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


def check_keyed(table: KeyedTable) -> None:
    """Refuse a table that cannot be read.

    Raises:
        QueryTypeError: the pattern, a column or an option is not what it must be.
    """
    name, types = table.name, {field.name: field.type for field in table.columns}
    check_key(table)
    for field in table.values:
        if not is_known(field.type):
            raise QueryTypeError(
                f"The column {field.name} of {name} is a {field.type}, which is not read from Redis.",
                "Use numbers, strings, booleans, dates and timestamps.",
            )
    if not table.values:
        raise QueryTypeError(f"{name} has no column besides its key.", "List the columns to read.")
    if types.get(PROBLEM, "string") != "string":
        raise QueryTypeError(f"The column {PROBLEM} of {name} is a {types[PROBLEM]}.", "It is a STRING.")
    for what, given, known in (
        ("type", table.form, FORMS), ("missing", table.missing, MISSING),
        ("wrong.type", table.wrong_type, WRONG_TYPE), ("vanished", table.vanished, VANISHED),
    ):  # fmt: skip
        if given not in known:
            raise QueryTypeError(f"`{what}` of {name} is {given!r}.", f"Use one of {', '.join(known)}.")


def check_key(table: KeyedTable) -> None:
    """Refuse a pattern of keys that names no column, or one that is not there or has no plain text.

    Raises:
        QueryTypeError: see above.
    """
    name, key, types = table.name, table.key, {field.name: field.type for field in table.columns}
    cure = "Write a column's name in braces: 'user:{id}'."
    try:
        parsed = list(Formatter().parse(key))
    except ValueError as error:
        raise QueryTypeError(f"The key {key!r} of {name} is no pattern: {error}.", cure) from error
    if any(form or conversion for _, _, form, conversion in parsed):
        raise QueryTypeError(f"The key {key!r} of {name} has a format in its braces.", cure)
    named = [column for _, column, _, _ in parsed if column is not None]
    unknown = sorted({column for column in named if column not in types})
    if not named or unknown:
        what = f"names {', '.join(map(repr, unknown))}, which is no column" if unknown else "names no column"
        raise QueryTypeError(f"The key {key!r} of {name} {what}.", cure)
    for column in table.keys:
        if not (is_integer(types[column]) or types[column] == "string"):
            raise QueryTypeError(
                f"The column {column} of {name} is a {types[column]}, which is no part of a key.",
                "Use whole numbers or strings.",
            )
