"""Hashes equal Spark's: known results of Spark 4.3, and those of the naive twin for any bytes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.naive.hyperloglog import hash64
from millpond.kernels.columns import arrow_type, from_arrow
from millpond.kernels.evaluate import Evaluator
from millpond.model.expressions import Call, Column

NAN = float("nan")
KNOWN: list[tuple[Any, str, int]] = [
    (True, "boolean", -6698625589789238999),
    (5, "tinyint", 504019808641096632),
    (7, "int", 2786828215451145335),
    (-9, "bigint", 6280094535572400640),
    (1.5, "float", 6163473420726370430),
    (-0.0, "float", 3614696996920510707),
    (NAN, "float", 2692338816207849720),
    (2.5, "double", 2435211733827758672),
    (-0.0, "double", -5252525462095825812),
    (NAN, "double", -3127944061524951246),
    ("abc", "string", 1423657621850124518),
    ("", "string", -7444071767201028348),
    ("0123456789012345678901234567890123456789", "string", 5508798028064852934),
    (
        "\u00e4\u00f6\u00fc\u65e5\u672c\U0001f600 and more text over thirty-two bytes long to see the stripes",
        "string",
        -7392274877831816571,
    ),
    (18262, "date", 2299834470729022467),
    (1577836800000000, "timestamp", 7881863312764026046),
    (Decimal("1.25"), "decimal(3,2)", 2287599437899865974),
    (Decimal("-1.2500000000"), "decimal(38,10)", 1970899566362588294),
    (Decimal(99999999999999999999), "decimal(38,0)", 7971495124604180802),
    (Decimal(0), "decimal(20,0)", -8959994473701255385),
]


def hashes(values: list[Any], kind: str) -> list[int | None]:
    held = pa.int32() if kind == "date" else pa.int64() if kind == "timestamp" else arrow_type(kind)
    columns = {"a": from_arrow(pa.array(values, held).view(arrow_type(kind)), kind)}
    found = Evaluator(columns, len(values))(Call("xxhash64", (Column("a", kind),), "bigint"))
    return [None if value is None else code for value, code in zip(values, found.data.tolist(), strict=True)]


@pytest.mark.parametrize(("value", "kind", "expected"), KNOWN)
def test_known_hashes(value: Any, kind: str, expected: int) -> None:
    assert hashes([value], kind) == [expected] == [hash64(value, kind)]


@given(st.lists(st.one_of(st.none(), st.text(max_size=140)), max_size=40))
def test_text_of_any_length(values: list[str | None]) -> None:
    cleaned = [None if value is None else value.encode(errors="replace").decode() for value in values]
    assert hashes(cleaned, "string") == [None if value is None else hash64(value, "string") for value in cleaned]


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), max_size=40))
def test_long_decimals(values: list[int]) -> None:
    exact = [Decimal(f"{value}E0") for value in values]
    assert hashes(exact, "decimal(38,0)") == [hash64(value, "decimal(38,0)") for value in exact]
