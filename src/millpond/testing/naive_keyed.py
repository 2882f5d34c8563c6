"""The naive twin of look-ups in keyed tables: one event at a time, over a dict of what the server holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from millpond.model.keyed import PROBLEM, KeyedTable
from millpond.model.types import INTEGERS, integer_range

Held: TypeAlias = Mapping[str, Mapping[str, str] | str]
"""What is under each key: a hash, or a string."""


def looked_up(table: KeyedTable, held: Held, keys: Sequence[Any]) -> dict[str, Any]:
    """The partner of an event with these values of `table.keys`, and its `partner` and `alive`.

    Columns are of whole numbers, doubles and strings.
    """
    row: dict[str, Any] | None = None
    worth, problem = "null", None
    if None not in keys:
        stored = held.get(table.key.format(**dict(zip(table.keys, keys, strict=True))))
        try:
            row = None if stored is None else _values(table, stored)
            if row is None:
                worth, problem = table.missing, "missing"
        except ValueError:
            worth, problem = table.wrong_type, "wrong type"
    if worth == "default":
        given = json.loads(table.defaults)
        row = {field.name: given.get(field.name) for field in table.values}
    known = {} if row is None else row | dict(zip(table.keys, keys, strict=True))
    found: dict[str, Any] = {
        "partner": True if row is not None else None, "alive": None if worth == "dead-letter" else True
    }  # fmt: skip
    for field in table.columns:
        found[field.name] = problem if field.name == PROBLEM else known.get(field.name)
    return found


def _values(table: KeyedTable, stored: Mapping[str, str] | str) -> dict[str, Any] | None:
    if isinstance(stored, str) is (table.form == "hash"):
        raise ValueError("of another form")
    whole = json.loads(stored) if isinstance(stored, str) else stored
    if not isinstance(whole, Mapping):
        raise ValueError("no object")
    if table.form == "hash" and not any(field.name in whole for field in table.values):
        return None
    return {field.name: _value(field.type, whole.get(field.name), table.form == "hash") for field in table.values}


def _value(kind: str, value: Any, text: bool) -> Any:
    if value is None:
        return None
    if kind in INTEGERS:
        number = int(value) if text and value.removeprefix("-").isdecimal() else value
        low, high = integer_range(kind)
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
            raise ValueError("no such number")
        return number
    if kind == "double":
        if text:
            return float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("no number")
        return float(value)
    if not isinstance(value, str):
        raise ValueError("no text")
    return value
