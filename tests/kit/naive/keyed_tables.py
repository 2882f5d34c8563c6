"""The naive twins of keyed tables and of their sink: one event or row at a time, with a dict as the server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from millpond.model.keyed_table import PROBLEM, KeyedTable
from millpond.model.types import INTEGERS, integer_range
from millpond.state.ports.keyed_rows import Absent, KeyedRows, Merge, Merged, Row, Stamp

Held: TypeAlias = Mapping[str, Mapping[str, str] | str]
"""The value of each key: a hash, or a string."""


class DictRows(KeyedRows):
    """Rows of other programs in a dict, for tests without a server."""

    def __init__(self, held: Held) -> None:
        self.held: dict[str, dict[str, str] | str] = {
            key: row if isinstance(row, str) else dict(row) for key, row in held.items()
        }

    def read(self, keys: Sequence[bytes], slots: Sequence[int], fields: Sequence[bytes]) -> list[Row | Absent]:
        """See `KeyedRows.read`."""
        assert len(set(keys)) == len(keys) == len(slots)
        return [self._row(self.held.get(key.decode()), [field.decode() for field in fields]) for key in keys]

    def merge(self, rows: Sequence[Merge], stamp: Stamp, *, whole: bool) -> list[Merged]:
        """See `KeyedRows.merge`."""
        return [self._merged(row, stamp, whole) for row in rows]

    def close(self) -> None:
        """See `KeyedRows.close`."""

    def _row(self, row: dict[str, str] | str | None, fields: list[str]) -> Row | Absent:
        if row is None:
            return Absent.MISSING
        if isinstance(row, str) is bool(fields):
            return Absent.WRONG_TYPE
        if isinstance(row, str):
            return [row.encode()]
        found = [row[field].encode() if field in row else None for field in fields]
        return found if any(value is not None for value in found) else Absent.MISSING

    def _merged(self, row: Merge, stamp: Stamp, whole: bool) -> Merged:
        key, old = row.key.decode(), self.held.get(row.key.decode())
        if old is not None and isinstance(old, str) is not whole:
            return Merged.WRONG_TYPE
        if isinstance(old, str):
            parsed = json.loads(old)
            kept = parsed.get("_epoch", "") if isinstance(parsed, dict) else ""
        else:
            kept = (old or {}).get(stamp.field.decode(), "")
        number, _, pond = kept.partition(" ")
        if pond == stamp.pond.decode() and int(number) >= stamp.n:
            return Merged.ALREADY
        words = [word.decode() for word in row.puts]
        if not whole:
            fields = {**(old or {}), stamp.field.decode(): stamp.text.decode()}  # type: ignore[dict-item]
            fields |= dict(zip(words[::2], words[1::2], strict=True))
            self.held[key] = {name: value for name, value in fields.items() if name.encode() not in row.removes}
        elif words:
            self.held[key] = words[0]
        else:
            self.held.pop(key, None)
        return Merged.WRITTEN


def merged_rows(
    held: Mapping[str, Mapping[str, str]], records: Iterable[tuple[int, Sequence[Mapping[str, Any]]]], pond: str,
    query: str, key: str, columns: Sequence[str],
) -> dict[str, dict[str, str]]:  # fmt: skip
    """Hashes after the sink has applied records once, in order: each a number and its rows.

    `key` is the one column that the pattern `user:{key}` names; a row has `_op` and its window's `end` as `w`.
    """
    found = {name: dict(fields) for name, fields in held.items()}
    for n, rows in records:
        latest: dict[Any, Mapping[str, Any]] = {}
        for row in rows:
            old = latest.get(row[key])
            if row[key] is not None and (old is None or row["w"]["end"] >= old["w"]["end"]):
                latest[row[key]] = row
        for value, row in latest.items():
            fields = found.setdefault(f"user:{value}", {})
            fields[f"_epoch:{query}"] = f"{n} {pond}"
            for name in columns:
                fields.pop(name, None)
                if row[name] is not None and row["_op"] == "upsert":
                    fields[name] = str(row[name])
    return found


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
