"""The reasons why records are malformed. A stream has few of them: they name a column, but never its value."""

from __future__ import annotations

import json
import re

NO_VALUE = "the record has no value"
NO_PARSE = "the value does not parse"
NO_OBJECT = "the value is not a JSON object"
NO_FIT = "a value does not fit its column"
_MISFIT = re.compile(r"(.+) (?:is not an?|or a part of it does not fit) [A-Z0-9_(),]+")
_NESTED = ("array", "map", "struct")
_LONGEST_TEXT = 80


def misfit_reason(column: str, kind: str) -> str:
    """The reason of a record whose value of a column does not fit the column's SQL type.

    >>> misfit_reason("amount", "double"), misfit_reason("items", "array<struct<n:int>>")
    ('amount is not a DOUBLE', 'items or a part of it does not fit ARRAY')
    """
    base = kind.partition("<")[0]
    name = base.upper()
    if base in _NESTED:
        return f"{column} or a part of it does not fit {name}"
    return f"{column} is not {'an' if name[0] in 'AI' else 'a'} {name}"


def field_count_reason(fields: int) -> str:
    """The reason of a line of CSV with another number of fields than columns."""
    return f"the line does not have {fields} field{'' if fields == 1 else 's'}"


def misfit_text(reason: str, value: bytes | None) -> str:
    """The text of the value that does not fit, shortened; empty if the reason names none, or the value is not JSON.

    >>> reason = misfit_reason("amount", "double")
    >>> misfit_text(reason, b'{"id": 7, "amount": "n/a"}'), misfit_text(reason, b"7,n/a")
    ('"n/a"', '')
    """
    found = _MISFIT.fullmatch(reason)
    if found is None or value is None:
        return ""
    try:
        text = json.dumps(json.loads(value)[found[1]], ensure_ascii=False)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
