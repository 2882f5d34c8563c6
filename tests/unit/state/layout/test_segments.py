"""Segments: cells are written as Arrow bytes and read back equal; equal columns are stored once, in narrow types."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from millpond.arrays import Ints
from millpond.errors import CorruptError
from millpond.state.layout.cells import Cells, Slices
from millpond.state.layout.segments import decode_cells, encode_cells, from_bytes, narrow, to_bytes


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


COUNT = ints(1, 2, 300)
CELLS = Cells(
    Slices(ints(-20, 0), ints(-10, 10), ints(0, 1)),
    ints(0, 1, 3),
    ints(5, 0, 70_000),
    {
        "a:n": COUNT, "b:n": COUNT, "c:n": COUNT.copy(),
        "s:w-1": ints(-(2**51), 2**51 - 1, 0), "m:min": ints(2**63 - 1, -(2**63), 0), "z:w0": ints(0, 0, 0),
    },
)  # fmt: skip


def read_back(cells: Cells, compression: str | None = None) -> Cells:
    return decode_cells(from_bytes(to_bytes(encode_cells(cells), compression)))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_cells_survive_a_round_trip(compression: str | None) -> None:
    found = read_back(CELLS, compression)
    assert [part.tolist() for part in found.slices[:3]] == [part.tolist() for part in CELLS.slices[:3]]
    assert found.offsets.tolist() == CELLS.offsets.tolist()
    assert found.slots.tolist() == CELLS.slots.tolist()
    assert {name: column.tolist() for name, column in found.columns.items()} == {
        name: column.tolist() for name, column in CELLS.columns.items()
    }


@pytest.mark.parametrize("starts, ends", [
    ((-(2**63), 2**63 - 2), (2**63 - 1, 2**63 - 1)), ((0, 10**7, 3 * 10**7), (10**7, 2 * 10**7, 2**62)),
    ((7, 3), (9, 5)),
])  # fmt: skip
def test_bounds_of_slices_survive_a_round_trip(starts: tuple[int, ...], ends: tuple[int, ...]) -> None:
    count = len(starts)
    slices = Slices(ints(*starts), ints(*ends), ints(*range(count)))
    found = read_back(Cells(slices, np.arange(count + 1), ints(*range(count)), {})).slices
    assert (found.start_us.tolist(), found.end_us.tolist()) == ([*starts], [*ends])


def test_a_slice_takes_few_bytes() -> None:
    """Each fold reads all of them: a day of seconds is what a query in hours and one in seconds have together."""
    count = 86_400
    slices = Slices(np.arange(count) * 10**6, np.arange(1, count + 1) * 10**6, np.zeros(count, np.int64))
    cells = Cells(slices, np.arange(count + 1), np.zeros(count, np.int64), {})
    assert sum(map(len, encode_cells(cells).schema.metadata.values())) < 11 * count


def test_equal_columns_are_stored_once_and_stay_one_array() -> None:
    batch = encode_cells(CELLS)
    assert batch.schema.names == ["slot", "a:n", "c:n", "s:w-1", "m:min", "z:w0"]
    found = read_back(CELLS)
    assert found.columns["a:n"] is found.columns["b:n"]
    assert found.columns["a:n"] is not found.columns["c:n"]


def test_each_column_has_the_narrowest_type_that_holds_it() -> None:
    types = dict(zip(*(lambda b: (b.schema.names, b.schema.types))(encode_cells(CELLS)), strict=True))
    assert types == {"slot": pa.int32(), "a:n": pa.int16(), "c:n": pa.int16(), "s:w-1": pa.int64(),
                     "m:min": pa.int64(), "z:w0": pa.int8()}  # fmt: skip


@pytest.mark.parametrize("low, high, width", [
    (-128, 127, np.int8), (-129, 0, np.int16), (0, 128, np.int16), (-32768, 32767, np.int16),
    (0, 32768, np.int32), (-(2**31), 2**31 - 1, np.int32), (0, 2**31, np.int64), (-(2**63), 2**63 - 1, np.int64),
])  # fmt: skip
def test_narrow_at_the_borders_of_types(low: int, high: int, width: Any) -> None:
    assert narrow(ints(low, high)).dtype == width
    assert narrow(ints(low, high)).tolist() == [low, high]


def test_an_empty_set_of_cells_survives_a_round_trip() -> None:
    none = ints()
    found = read_back(Cells(Slices(none, none, none), ints(0), none, {}))
    assert (found.rows, found.offsets.tolist(), dict(found.columns)) == (0, [0], {})


def test_columns_are_views_of_the_bytes() -> None:
    found = read_back(CELLS)
    assert not found.columns["m:min"].flags.owndata
    assert not found.columns["m:min"].flags.writeable


def test_bytes_that_are_no_segment_are_corrupt() -> None:
    data = to_bytes(encode_cells(CELLS)).to_pybytes()
    for damaged in (b"", b"no arrow", data[:-8], data[:40], bytes(len(data))):
        with pytest.raises(CorruptError):
            from_bytes(pa.py_buffer(damaged))


@pytest.mark.parametrize("change", [
    {"version": 3}, {"version": None}, {"slices": "2"}, {"slices": 1}, {"slices": 3}, {"same": {"b:n": "nowhere"}},
])  # fmt: skip
def test_a_damaged_header_is_corrupt(change: dict[str, Any]) -> None:
    batch = encode_cells(CELLS)
    metadata = batch.schema.metadata
    changed = msgspec.json.encode({**msgspec.json.decode(metadata[b"millpond"]), **change})
    with pytest.raises(CorruptError):
        decode_cells(batch.replace_schema_metadata(metadata | {b"millpond": changed}))


FIRST: dict[str, Any] = {
    "version": 1, "start_us": [-20, 0], "end_us": [-10, 10], "late_class": [0, 1], "offsets": [0, 1, 3],
    "same": {"b:n": "a:n"},
}  # fmt: skip


def of_version_1(**change: Any) -> pa.RecordBatch:
    return encode_cells(CELLS).replace_schema_metadata({"millpond": msgspec.json.encode(FIRST | change)})


@pytest.mark.parametrize("change", [
    {"version": 2}, {"version": None}, {"offsets": "0"}, {"same": {"b:n": "nowhere"}}, {"offsets": [0, 1]},
    {"offsets": [0, 1, 4]}, {"offsets": [0, 2, 1]}, {"end_us": [0]}, {"late_class": []},
])  # fmt: skip
def test_a_damaged_header_of_version_1_is_corrupt(change: dict[str, Any]) -> None:
    assert decode_cells(of_version_1()).offsets.tolist() == CELLS.offsets.tolist()
    with pytest.raises(CorruptError):
        decode_cells(of_version_1(**change))


@pytest.mark.parametrize("change", [
    {b"rows": b"\x01\x03"}, {b"rows": b"\x04\xff"}, {b"rows": b"\x03"}, {b"late_class": b""}, {b"step_us": b"\x00" * 6},
    {b"rows": b"\x01\x02\x00"},
])  # fmt: skip
def test_damaged_numbers_of_slices_are_corrupt(change: dict[bytes, bytes]) -> None:
    batch = encode_cells(CELLS)
    assert CELLS.offsets.tolist() == [0, 1, 3], "which the cases count on"
    with pytest.raises(CorruptError):
        decode_cells(batch.replace_schema_metadata(batch.schema.metadata | change))
    for name in change:
        lacking = {key: value for key, value in batch.schema.metadata.items() if key != name}
        with pytest.raises(CorruptError):
            decode_cells(batch.replace_schema_metadata(lacking))


def test_a_missing_or_broken_header_is_corrupt() -> None:
    batch = encode_cells(CELLS)
    for metadata in (None, {"other": b"{}"}, {"millpond": b"{"}, {"millpond": b"\xff"}):
        with pytest.raises(CorruptError):
            decode_cells(batch.replace_schema_metadata(metadata))
