"""Patterns that find the texts of a batch that probably do not parse, without parsing.

They are used to parse these texts apart from the others. A text that is found in error, or not found, costs time only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.formats.json_checks import RANGES, TextColumn
from millpond.model.types import is_decimal, is_float

_DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_FORMS = {"boolean": "(?i:true|false)", "date": _DATE, "timestamp": f"{_DATE}[ T][0-9:.]+(?:Z|[-+][0-9:]+)?"}

_LONGEST = 10_000
"""Patterns of more characters, which several hundred columns have, would take longer than a parse."""


def matching(texts: pa.BinaryArray, pattern: str) -> npt.NDArray[np.bool_]:
    """The texts in which a pattern is found; none, if it is too long."""
    if len(pattern) > _LONGEST:
        return np.zeros(len(texts), bool)
    return np.asarray(pc.match_substring_regex(texts, pattern))


def csv_line(columns: Iterable[TextColumn], separator: str) -> str:
    """A pattern of the lines whose fields have the usual forms of their columns, also in quotes or empty."""
    one = re.escape(separator)
    text = rf'(?:[^"\\\r\n{one}]*|"[^"\\\r\n]*")'
    fields = (text if column.kind == "string" else f'"?(?:{_form(column.kind)})?"?' for column in columns)
    return f"^{one.join(fields)}$"


def json_misfit(columns: Sequence[TextColumn]) -> str:
    """A pattern of texts that do not end like an object, or have a member that has not the form of its column."""
    members = (
        rf'"{re.escape(column.name)}"\s*:\s*(?:{other})' for column in columns if (other := _other_json(column.kind))
    )
    return "|".join([r"[^}\s]\s*$", *members])


def _form(kind: str) -> str:
    if kind in RANGES:
        return f"-?[0-9]{{1,{len(str(1 << (RANGES[kind] - 1)))}}}"
    return _FORMS.get(kind) or (r"-?[0-9]*\.?[0-9]*" if is_decimal(kind) else "[-+.0-9eE]+")


def _other_json(kind: str) -> str:
    """How a value begins that is neither null nor of a type."""
    if kind in RANGES:
        return r"[^-0-9n\s]|-?[0-9]+[^0-9,}\s]"
    if is_decimal(kind) or is_float(kind):
        return r"[^-0-9n\s]"
    if kind == "boolean":
        return r"[^tfn\s]"
    return {"date": r'[^"n\s]|"[^0-9]', "timestamp": r'[^"n\s]|"[^0-9]', "string": r'[^"n\s]'}.get(kind, "")
