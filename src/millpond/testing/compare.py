"""Compares two results as multisets of rows, and describes how they differ.

Rows are dicts, Arrow tables or record batches. NULL equals NULL, NaN equals NaN, -0.0 equals 0.0, and
otherwise doubles must agree to the last bit unless a column is given a tolerance. Types must agree too:
1, 1.0 and true differ. Timestamps are compared as microseconds, so a datetime equals its int.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from millpond.clock import moment_us

Rows: TypeAlias = pa.Table | pa.RecordBatch | Iterable[Mapping[str, Any]]
"""A result in any supported form."""

_Canonical: TypeAlias = tuple[str, Any]

_PLAIN = {type(None): "null", bool: "boolean", int: "integer", str: "str", bytes: "bytes"}
"""The most frequent types whose values are their own hashable form, and their names in it."""

_LISTS = (list, tuple)  # a union of types costs more to build than to check

_EXACT = {type(None), bool, int, float, str, dict, *_LISTS}
"""Types that MessagePack keeps apart; a list and a tuple are the same there, and in `canonical`."""

_encode = msgspec.msgpack.Encoder().encode


class Tolerance(NamedTuple):
    """How far two numbers of a column may differ: by `relative` of the larger one, or by `absolute`."""

    relative: float = 0.0
    absolute: float = 0.0

    def allows(self, left: Any, right: Any) -> bool:
        """Whether the two values count as equal."""
        kinds = canonical(left)[0], canonical(right)[0]
        if canonical(left) == canonical(right) or kinds not in (("floating",) * 2, ("integer",) * 2):
            return canonical(left) == canonical(right)
        return math.isclose(left, right, rel_tol=self.relative, abs_tol=self.absolute)


def rows_of(data: Rows) -> list[dict[str, Any]]:
    """The rows as dicts; top-level timestamps of Arrow data become int microseconds."""
    if not isinstance(data, pa.Table | pa.RecordBatch):
        return [dict(row) for row in data]
    columns = {}
    for name, column in zip(data.schema.names, data.columns, strict=True):
        # Python's datetime ends at the year 9999; Arrow's timestamps do not.
        is_time = pa.types.is_timestamp(column.type)
        values = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()) if is_time else column
        columns[name] = values.to_pylist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def canonical(value: Any) -> _Canonical:
    """A hashable form, equal for values that count as equal and only for those.

    >>> canonical(math.nan) == canonical(math.nan), canonical(-0.0) == canonical(0.0)
    (True, True)
    >>> canonical(1) == canonical(1.0)
    False
    """
    plain = _PLAIN.get(type(value))
    if plain is not None:
        return (plain, value)
    if isinstance(value, float):
        return ("floating", "NaN" if math.isnan(value) else value)
    if isinstance(value, Mapping):
        return ("struct", tuple([(name, canonical(value[name])) for name in sorted(value)]))
    if isinstance(value, _LISTS):
        return ("list", tuple([canonical(item) for item in value]))
    if isinstance(value, int):
        return ("integer", value)
    if isinstance(value, datetime.datetime):
        return ("integer", moment_us(value))
    if isinstance(value, datetime.date):
        return ("integer", (value - datetime.date(1970, 1, 1)).days)
    if isinstance(value, Decimal):
        return ("decimal", str(value))  # the scale is part of its type
    return (type(value).__name__, value)


def difference(
    expected: Rows,
    actual: Rows,
    *,
    tolerances: Mapping[str, float | Tolerance] | None = None,
    limit: int = 5,
) -> str | None:
    """Describes how `actual` differs from `expected`; None if they are equal as multisets of rows.

    >>> print(difference([{"k": "a", "n": 1}, {"k": "b", "n": 2}], [{"k": "a", "n": 1}, {"k": "b", "n": 3}]))
    2 rows expected, 2 found: 1 missing, 1 surplus.
      differs: {'k': 'b', 'n': 2} but n is 3

    `tolerances`: a relative tolerance (a number) or a `Tolerance` by column. Rows must not differ from each other in
    such columns alone.
    """
    expected_rows, actual_rows = rows_of(expected), rows_of(actual)
    names = _names(expected_rows), _names(actual_rows)
    if expected_rows and actual_rows and names[0] != names[1]:
        return f"Columns differ: {sorted(names[0])} expected, {sorted(names[1])} found."
    allowed = {
        name: given if isinstance(given, Tolerance) else Tolerance(given) for name, given in (tolerances or {}).items()
    }
    missing, surplus = _unmatched(expected_rows, actual_rows)
    if allowed:
        missing, surplus = _forgive(missing, surplus, allowed)
    if not missing and not surplus:
        return None
    lines = [
        f"{len(expected_rows)} rows expected, {len(actual_rows)} found: {len(missing)} missing, "
        f"{len(surplus)} surplus.",
        *_explain(missing, surplus, allowed, limit),
    ]
    return "\n".join(lines)


def assert_same_rows(
    expected: Rows,
    actual: Rows,
    *,
    tolerances: Mapping[str, float | Tolerance] | None = None,
    about: str = "",
) -> None:
    """Fails with a readable difference unless both are equal as multisets of rows.

    Raises:
        AssertionError: they differ.
    """
    found = difference(expected, actual, tolerances=tolerances)
    if found is not None:
        raise AssertionError(f"{about}: {found}" if about else found)


def _names(rows: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(name for row in rows for name in row)


def _unmatched(
    expected: list[dict[str, Any]], actual: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of each side without an equal row on the other side, in their order."""
    if _identical(expected, actual):
        return [], []
    expected_forms, actual_forms = [canonical(row) for row in expected], [canonical(row) for row in actual]
    if expected_forms == actual_forms:
        return [], []
    surplus_of = Counter(actual_forms)
    surplus_of.subtract(expected_forms)
    surplus, missing = [], []
    for row, form in zip(actual, actual_forms, strict=True):
        if surplus_of[form] > 0:
            surplus_of[form] -= 1
            surplus.append(row)
    for row, form in zip(expected, expected_forms, strict=True):
        if surplus_of[form] < 0:
            surplus_of[form] += 1
            missing.append(row)
    return missing, surplus


def _identical(expected: list[dict[str, Any]], actual: list[dict[str, Any]]) -> bool:
    """Whether both have the same rows to the last bit; False also if their values are not all of `_EXACT` types.

    It encodes the rows as MessagePack, which is several times as fast as their canonical forms.
    """
    if len(expected) != len(actual) or not _types_within([*expected, *actual]) <= _EXACT:
        return False
    try:
        return sorted(map(_encode, expected)) == sorted(map(_encode, actual))
    except (OverflowError, UnicodeEncodeError):  # an integer of more than 64 bits, or half a surrogate pair
        return False


def _types_within(values: Sequence[Any]) -> set[type]:
    """The types of the values, and of the values nested in them."""
    types: set[type] = set(map(type, values))
    for kind in types.intersection((dict, *_LISTS)):
        nested: list[Any] = [value for value in values if type(value) is kind]
        types |= _types_within([*chain.from_iterable(map(dict.values, nested) if kind is dict else nested)])
    return types


def _forgive(
    missing: list[dict[str, Any]], surplus: list[dict[str, Any]], allowed: Mapping[str, Tolerance]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Removes the pairs of rows that differ within the tolerances."""
    candidates: dict[_Canonical, list[dict[str, Any]]] = {}
    for row in surplus:
        candidates.setdefault(_exact_part(row, allowed), []).append(row)
    still_missing = []
    for row in missing:
        near = candidates.get(_exact_part(row, allowed), [])
        for i, other in enumerate(near):
            if not _differing(row, other, allowed):
                del near[i]
                break
        else:
            still_missing.append(row)
    return still_missing, [row for rows in candidates.values() for row in rows]


def _exact_part(row: Mapping[str, Any], allowed: Mapping[str, Tolerance]) -> _Canonical:
    return canonical({name: value for name, value in row.items() if name not in allowed})


def _differing(left: Mapping[str, Any], right: Mapping[str, Any], allowed: Mapping[str, Tolerance]) -> list[str]:
    return [
        name
        for name in left
        if name not in right
        or not (
            allowed[name].allows(left[name], right[name])
            if name in allowed
            else canonical(left[name]) == canonical(right[name])
        )
    ]


def _explain(
    missing: list[dict[str, Any]],
    surplus: list[dict[str, Any]],
    allowed: Mapping[str, Tolerance],
    limit: int,
) -> list[str]:
    """One line per row; a missing row is shown with the most similar surplus row, if half of its columns agree."""
    left = list(surplus)
    lines = []
    for row in missing[:limit]:
        nearest = min(left, key=lambda other: len(_differing(row, other, allowed)), default=None)
        if nearest is not None and 2 * len(_differing(row, nearest, allowed)) <= len(row):
            left.remove(nearest)
            changes = [f"{name} is {nearest.get(name)!r}" for name in _differing(row, nearest, allowed)]
            lines.append(f"  differs: {row!r} but {', '.join(changes)}")
        else:
            lines.append(f"  missing: {row!r}")
    lines += [f"  surplus: {row!r}" for row in left[: max(0, limit - len(lines))]]
    unseen = max(0, len(missing) - limit) + max(0, len(surplus) - limit)
    return [*lines, "  and more"] if unseen else lines
