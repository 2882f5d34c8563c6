"""Parses the arguments of terminal commands into values."""

from __future__ import annotations

import re
import sys

import msgspec

from millpond.errors import QueryTypeError, RequestError
from millpond.local_path import local_path


def assigned(text: str) -> tuple[str, bool | int | float | str | list[int | float | str]]:
    """A parameter and its value: a JSON number, boolean, quoted text or list; anything else is the text itself.

    >>> assigned("limit=500"), assigned("rate=0.5"), assigned("name=ann"), assigned('code="7"')
    (('limit', 500), ('rate', 0.5), ('name', 'ann'), ('code', '7'))

    Raises:
        RequestError: the argument is not of the form NAME=VALUE.
    """
    name, divided, value = text.partition("=")
    if not divided or not re.fullmatch(r"\w+", name):
        raise RequestError(f"{text!r} is no NAME=VALUE.", "Write limit=500.")
    try:
        return name, msgspec.json.decode(value, type=bool | int | float | str | list[int | float | str])
    except msgspec.MsgspecError:
        return name, value


def selected(text: str) -> str:
    """The text of a query: the argument itself, the content of a file, or standard input.

    Raises:
        QueryTypeError: the file cannot be read.
    """
    if text == "-":
        return sys.stdin.read()
    if not text.endswith(".sql"):
        return text
    try:
        return local_path(text, "The file").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QueryTypeError(f"{text} cannot be read.", "Name a file that holds a SELECT.") from error
