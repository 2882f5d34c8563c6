"""Packets: the fold receives what the gather sent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millpond.errors import CorruptError
from millpond.runtime.packets.packet import (
    GroupPart,
    Header,
    decode_packet,
    encode_packet,
    late_rows_of,
    selected_rows_of,
)  # fmt: skip
from millpond.runtime.packets.raw_columns import RawRows
from millpond.runtime.packets.row_batches import rows_stream
from millpond.runtime.task.counters import Counts
from millpond.state.layout.cells import Piece, Slices


def header() -> Header:
    return Header("events", 3, 7, {"0": -5, "1": 2**62}, {"q": Counts(read=4, late=1)})


def part(group: str, keys: list[pa.Array]) -> GroupPart:
    count = np.array([1, 2, 300])
    piece = Piece(
        Slices(np.array([-10, 0]), np.array([0, 10]), np.array([0, 1])), np.array([0, 1, 1]), np.array([1, 0, 1]),
        {"a:n": count, "b:n": count, "s:w-1": np.array([2**51 - 1, -(2**51), 0])},
    )  # fmt: skip
    return GroupPart(group, keys, 2, piece)


TEXTS = pa.array(["ä", None])
TIMES = pa.array([0, 1]).view(pa.timestamp("us", "UTC"))


def test_a_packet_survives_a_round_trip() -> None:
    sent = [part("g1", [TEXTS, TIMES]), part("g2", []), part("g3", [TEXTS.slice(1).take(pa.array([0, 0]))])]
    found, parts = decode_packet(pa.py_buffer(encode_packet(header(), sent)))
    assert (found.stream, found.partition, found.sequence) == ("events", 3, 7)
    assert (found.newest_us, found.counts) == (header().newest_us, header().counts)
    for mine, theirs in zip(parts, sent, strict=True):
        assert (mine.group, mine.key_count) == (theirs.group, theirs.key_count)
        assert [key.to_pylist() for key in mine.keys] == [key.to_pylist() for key in theirs.keys]
        assert [key.type for key in mine.keys] == [key.type for key in theirs.keys]
        assert listed(mine.body) == listed(theirs.body)


def listed(body: Any) -> Any:
    if isinstance(body, np.ndarray):
        return body.tolist()
    if isinstance(body, dict):
        return {name: listed(value) for name, value in body.items()}
    return [listed(value) for value in body] if isinstance(body, tuple | list) else body


def test_raw_rows_survive_a_round_trip() -> None:
    raw = RawRows(
        Slices(np.array([-10, 0]), np.array([0, 10]), np.array([0, 1])), np.array([0, 1, 1, 0]), np.array([1, 0, 1, 1]),
        [np.array([1.5, math.inf, -0.0, 5e-324]), np.array([1, -300, 2**40, 0]), np.array([True, False, True, True])],
        [np.array([True, False, True, False]), np.array([False] * 4)], [-1, 0, 1, 0],
    )  # fmt: skip
    sent = GroupPart("g", [TEXTS], 2, raw)
    _, (found, other) = decode_packet(pa.py_buffer(encode_packet(header(), [sent, part("h", [])])))
    assert isinstance(found.body, RawRows)
    assert listed(found.body) == listed(raw)
    assert listed(other.body) == listed(part("h", []).body)


def test_equal_columns_travel_once_and_stay_one_array() -> None:
    _, (found,) = decode_packet(pa.py_buffer(encode_packet(header(), [part("g", [TEXTS])])))
    assert isinstance(found.body, Piece)
    assert found.body.columns["a:n"] is found.body.columns["b:n"]


def test_a_packet_without_groups_still_has_times_and_counts() -> None:
    found, parts = decode_packet(pa.py_buffer(encode_packet(header(), [])))
    assert (found, parts) == (header(), [])


def test_bytes_that_are_no_packet_are_corrupt() -> None:
    data = encode_packet(header(), [part("g", [TEXTS])])
    [group] = decode_packet(pa.py_buffer(data))[0].groups
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, pa.schema([])).close()
    without_batch = data[: -group.body_size] + sink.getvalue().to_pybytes().ljust(group.body_size, b"\0")
    others = data[:40], data[:-200], data[:8] + b"x" * (len(data) - 8)
    for damaged in (without_batch, b"", b"MPK1", b"MPK2" + data[4:], *others):
        with pytest.raises(CorruptError):
            decode_packet(pa.py_buffer(damaged))


def test_rows_are_at_the_end_and_damaged_ones_are_refused() -> None:
    late, selected = (pa.record_batch({"0": values, "1": [True, False]}) for values in ([1, 2], ["a", None]))
    data = encode_packet(header(), [part("g", [TEXTS])], rows_stream([late]), rows_stream([selected]))
    packet = pa.py_buffer(data)
    found, _ = decode_packet(packet)
    assert late_rows_of(found, packet).equals(late)
    assert selected_rows_of(found, packet).equals(selected)
    for damaged in (data[:-40], data[: -found.late_size] + b"\0" * found.late_size):
        with pytest.raises(CorruptError, match="rows of a packet"):
            late_rows_of(found, pa.py_buffer(damaged))
    found, _ = decode_packet(packet := pa.py_buffer(encode_packet(header(), [])))
    assert late_rows_of(found, packet) is None
    assert selected_rows_of(found, packet) is None
