"""Keys: canonical values, equal hashes on all machines, and the text whose CRC16 gives the slot."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millpond.kernels.columns import ARROW_TYPES, arrow_type
from millpond.state.keys import keys
from millpond.state.keys.keys import canonical, equal_keys, hashes_of, texts_of

VALUES: dict[str, list[Any]] = {
    "string": ["", "a", "12345678", "123456789", "0123456789abcdef", "ü" * 9, "\0", None],
    "bigint": [0, 1, -1, 2**63 - 1, -(2**63), None],
    "int": [0, 1, -1, 2**31 - 1, None],
    "smallint": [0, -1, None],
    "tinyint": [0, -128, None],
    "double": [0.0, 1.0, -1.5, math.inf, math.nan, 5e-324, None],
    "float": [0.0, 1.0, math.inf, math.nan, None],
    "boolean": [True, False, None],
    "date": [0, 1, -1, None],
    "timestamp": [0, 1, -1, None],
    "decimal(38,2)": [*map(Decimal, ("0", "0.01", "-0.01", f"{2**64}", f"{2**62}", f"{10**36 - 1}.99")), None],
}


def column(kind: str, values: list[Any]) -> pa.Array:
    if kind == "date":
        return pa.array(values, pa.int32()).view(pa.date32())
    if kind == "timestamp":
        return pa.array(values, pa.int64()).view(ARROW_TYPES[kind])
    return canonical(pa.array(values, arrow_type(kind)))


@pytest.mark.parametrize("kind", VALUES)
def test_equal_keys_have_equal_hashes_wherever_they_stand(kind: str) -> None:
    values = VALUES[kind]
    alone = hashes_of([column(kind, values)], len(values))
    assert len(set(alone.tolist())) == len(values)
    # cut from the middle of a larger column, in another order, beside longer texts
    padding = values[:2]
    moved = pa.concat_arrays([column(kind, padding), column(kind, values[::-1]), column(kind, padding)])
    cut = moved.slice(2, len(values))
    assert hashes_of([cut], len(values)).tolist() == alone.tolist()[::-1]
    assert equal_keys([cut], [column(kind, values[::-1])], len(values)).all()


def test_the_hash_of_a_text_does_not_depend_on_how_many_are_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few long texts are hashed one by one, and many together."""
    monkeypatch.setattr(keys, "_WORDS_AT_ONCE", 3)
    dice = random.Random(1)
    texts = ["".join(dice.choices("aü\0", k=length)) for length in range(80)]
    many = hashes_of([pa.array([text for text in texts for _ in range(keys._FEW + 1)])], 80 * (keys._FEW + 1))
    assert many[:: keys._FEW + 1].tolist() == [int(hashes_of([pa.array([text])], 1)[0]) for text in texts]


@pytest.mark.parametrize("kind", VALUES)
def test_keys_are_equal_as_a_whole_or_not_at_all(kind: str) -> None:
    values = VALUES[kind]
    pairs = [(a, b) for a in range(len(values)) for b in range(len(values))]
    left, right = (column(kind, [values[pair[i]] for pair in pairs]) for i in range(2))
    assert equal_keys([left], [right], len(pairs)).tolist() == [a == b for a, b in pairs]
    constant = pa.array(["x"] * len(pairs))
    assert equal_keys([constant, left], [constant, right], len(pairs)).tolist() == [a == b for a, b in pairs]


def test_the_order_of_key_columns_matters_to_the_hash() -> None:
    a, b = pa.array(["x"]), pa.array(["y"])
    assert hashes_of([a, b], 1)[0] != hashes_of([b, a], 1)[0]
    assert hashes_of([pa.array(["ab"]), pa.array([""])], 1)[0] != hashes_of([pa.array(["a"]), pa.array(["b"])], 1)[0]


def test_hashes_are_those_of_every_host_and_version() -> None:
    columns = [column("string", ["a", None, "a long customer name"]), column("bigint", [1, 2, None])]
    assert [f"{value:016x}" for value in hashes_of(columns, 3)] == [
        "1b408cbaef610023", "bfbcb701d061d551", "90c775528dfa20da",
    ]  # fmt: skip


def test_hashes_of_no_rows_and_no_columns() -> None:
    assert len(hashes_of([pa.array([], pa.string())], 0)) == 0
    assert len(set(hashes_of([], 3).tolist())) == 1


def test_canonical_makes_one_nan_and_one_zero() -> None:
    nans = np.array([0x7FF8000000000001, 0xFFF8000000000000, 0x8000000000000000, 0], np.uint64).view(np.float64)
    found = canonical(pa.array(nans, from_pandas=False))
    bits = found.to_numpy(zero_copy_only=False).view(np.uint64)
    assert bits[0] == bits[1]
    assert bits[2] == bits[3] == 0
    assert found.null_count == 0
    with_null = canonical(pa.array([None, math.nan, -0.0], pa.float32()))
    assert with_null.type == pa.float32()
    assert with_null.is_null().to_pylist() == [True, False, False]


def test_the_text_of_a_key_is_its_own_or_joined() -> None:
    assert texts_of([pa.array(["a", None])], 2).to_pylist() == ["a", ""]
    both = [pa.array(["a", None]), pa.array([1, 2], pa.int64())]
    assert texts_of(both, 2).to_pylist() == ["a\x1f1", "\x1f2"]
    assert texts_of([], 1).to_pylist() == [""]
    assert texts_of([column("timestamp", [-1])], 1).to_pylist() == ["-1"]
    assert texts_of([column("date", [3])], 1).to_pylist() == ["3"]
    assert texts_of([column("boolean", [True])], 1).to_pylist() == ["true"]
