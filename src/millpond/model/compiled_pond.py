"""Compiled pond files: streams and queries after Spark's analysis, as JSON that is read without Spark.

`millpond compile` writes them, `millpond.testing` reads them. The digest of the SQL text shows whether a compiled file
is up to date with the SQL file beside it. The version shows whether this Millpond would analyse it the same way.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from millpond.errors import CorruptError, StaleError
from millpond.model.spec import PondSpec
from millpond.version import VERSION


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """A pond file after Spark's analysis: `sql` is the digest of its text ("" for queries without one), and `millpond`
    the version of Millpond that compiled it."""

    sql: str
    millpond: str
    spec: PondSpec

    def is_of(self, text: str) -> bool:
        """Whether this version of Millpond compiled it from `text`."""
        return (self.sql, self.millpond) == (digest(text), VERSION)


def digest(text: str) -> str:
    """SHA-256 of a pond file's text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def to_json(compiled: Compiled) -> str:
    """JSON in lines, readable for people and in `git diff`; equal values give equal text."""
    return msgspec.json.format(msgspec.json.encode(compiled, order="deterministic"), indent=1).decode() + "\n"


def from_json(text: str | bytes) -> Compiled:
    """The value that `to_json` wrote.

    Raises:
        CorruptError: the text is not a compiled pond file.
    """
    try:
        return msgspec.json.decode(text, type=Compiled)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptError(f"This is no compiled pond file: {error}.", "Run `millpond compile` again.") from error


def read_if_of(path: Path, text: str) -> Compiled | None:
    """The compiled file at `path`, if it exists and is compiled from `text`; else None.

    Raises:
        CorruptError: the file is not a compiled pond file.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = from_json(data)
    except CorruptError as error:
        raise CorruptError(f"{path}: {error.what}", error.cure) from error
    return found if found.is_of(text) else None


def stale(file: Path, path: Path, why: str = "") -> StaleError:
    """The error that the compiled file at `path` is out of date with `file`; `why` it cannot be compiled here."""
    return StaleError(
        f"{path} is out of date with {file}{f', which cannot be compiled here: {why}' if why else '.'}",
        f"Run `millpond compile {file} -o {path}` where there is Java, and keep the result beside the SQL.",
    )
