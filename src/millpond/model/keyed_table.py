"""Describes keyed tables, whose rows other programs keep in Redis: the key pattern, columns, and missing rows.

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
"""The optional column with the reason why a row was not read; NULL if it was read, or was not looked up."""

FORMS = ("hash", "json")
MISSING = ("null", "default", "dead-letter")
WRONG_TYPE = ("dead-letter", "null", "default", "fail")
VANISHED = ("wait", "null", "default", "dead-letter", "fail")


class PatternPiece(NamedTuple):
    """A literal of a key pattern, and the column whose text follows it (None: none follows)."""

    literal: str
    column: str | None


class KeyedTable(msgspec.Struct, frozen=True):
    """The definition of a keyed table, without its address, which may contain a secret.

    `missing`, `wrong_type` and `vanished` are the policies for a row that does not exist, a row that does not fit
    `columns`, and a row whose server does not answer. A policy is `null` (no row), `default` (a row of `defaults`, a
    JSON object), `dead-letter` (the event is dead), `fail` (the run ends) or `wait`.
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
    def pieces(self) -> tuple[PatternPiece, ...]:
        """The parts of the key pattern.

        >>> [tuple(piece) for piece in KeyedTable("t", "{{a}}:{b}", ()).pieces]
        [('{', None), ('a}', None), (':', 'b')]
        """
        return tuple(PatternPiece(literal, column) for literal, column, _, _ in Formatter().parse(self.key))

    @property
    def keys(self) -> tuple[str, ...]:
        """The distinct columns of the key, in the order of the pattern."""
        return tuple(dict.fromkeys(piece.column for piece in self.pieces if piece.column is not None))

    @property
    def values(self) -> tuple[Field, ...]:
        """The columns that are read from Redis: all but the key and `PROBLEM`."""
        return tuple(field for field in self.columns if field.name not in (*self.keys, PROBLEM))

    @property
    def digest(self) -> str:
        """Sixteen hex digits that identify everything that lookups depend on, except the rows themselves."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


def check_keyed(table: KeyedTable) -> None:
    """Refuses a table that cannot be read.

    Raises:
        QueryTypeError: the key pattern, a column or an option is invalid.
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
    """Refuses an invalid key pattern.

    Raises:
        QueryTypeError: the pattern names no column, or a column that does not exist or is neither string nor integer.
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
