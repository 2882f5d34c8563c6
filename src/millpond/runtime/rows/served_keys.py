"""The text of a key under which a served row is stored, and the bucket of the key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.runtime.keys.buckets import buckets_by

_NO_JSON = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Texts for numbers that JSON cannot represent, by their `repr`; without these, all of them would become null."""

_FIRST_DAY, _END_DAY = -719_162, 2_932_897
"""Days from 1970 to the first that Python's dates can represent, and to the one after the last."""


def served_key(columns: Sequence[pa.Array], count: int, buckets: int, spread: int | None) -> list[pa.Array]:
    """The text under which a row is served, a JSON list of its key's values, and the bucket of the key.

    The bucket depends on the value at position `spread` only, or if that is None, on all values.
    """
    texts = [_json_values(column) for column in columns]
    inner = pc.binary_join_element_wise(*texts, ",") if texts else pa.array([""] * count, pa.string())
    listed = pc.binary_join_element_wise(pa.scalar("["), inner, pa.scalar("]"), "")
    bucket = buckets_by(spread, columns, count, buckets)
    return [listed, pa.array(bucket.astype(np.int32))]


def _json_values(column: pa.Array) -> pa.Array:
    """Each value as JSON text; distinct values are encoded one by one, as only an encoder escapes text correctly."""
    encoded = column.dictionary_encode(null_encoding="encode")
    values = _distinct_values(encoded.dictionary)
    texts = [msgspec.json.encode(_NO_JSON.get(repr(value), value)).decode() for value in values]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _distinct_values(column: pa.Array) -> list[Any]:
    """The values in Python; as ISO text where Python has no such date or timestamp (years before 1 and after 9999)."""
    dated = pa.types.is_date(column.type)
    if not dated and not pa.types.is_timestamp(column.type):
        return list(column.to_pylist())
    unit, per_day = ("D", 1) if dated else ("us", 86_400_000_000)
    numbers = np.asarray(pc.fill_null(column.view(pa.int32() if dated else pa.int64()), 0)).astype(np.int64)
    known = (numbers >= _FIRST_DAY * per_day) & (numbers < _END_DAY * per_day)
    found = list(pc.if_else(pa.array(known), column, pa.scalar(None, column.type)).to_pylist())
    zone = "" if dated or column.type.tz is None else "Z"
    texts = numbers[~known].astype(f"M8[{unit}]").astype(str).tolist()
    for place, text in zip(np.flatnonzero(~known).tolist(), texts, strict=True):
        found[place] = f"{text}{zone}"
    return found
