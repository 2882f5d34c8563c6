"""XXH64 (Collet 2014) hashes of columns, bit for bit equal to Spark's for each type; computed over whole arrays."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays import WIDE, Ints, Wide
from millpond.kernels.columns import Array, Values
from millpond.model.expressions import Call
from millpond.model.types import digits_of, is_decimal

Words: TypeAlias = npt.NDArray[np.uint64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

_SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
    )
)  # fmt: skip
_STRIPE = 32
_LONG_DIGITS = 18
"""Decimals of at most this many digits are hashed as a long."""
_NARROW = ("boolean", "tinyint", "smallint", "int", "date")


def xxhash64(node: Call, args: list[Values]) -> Values:
    """The hash of one column as int64, with Spark's seed; NULL for NULL."""
    (value,), kind = args, node.args[0].type
    with np.errstate(over="ignore"):
        data = _of_text(value.data) if kind == "string" else _of_numbers(np.asarray(value.data), kind)
    return Values(data.view(np.int64), value.null, value.error)


def _of_numbers(data: Array, kind: str) -> Words:
    flat = np.ascontiguousarray(np.atleast_1d(data))
    if is_decimal(kind):
        hashes = _of_decimals(flat.astype(WIDE, copy=False), digits_of(kind).precision)
    elif kind == "float":
        bits = np.where(np.isnan(flat), np.float32(np.nan), flat + np.float32(0)).astype(np.float32).view(np.uint32)
        hashes = _of_int(bits.astype(np.uint64))
    elif kind == "double":
        hashes = _of_long(np.where(np.isnan(flat), np.nan, flat + 0.0).view(np.uint64))
    elif kind in _NARROW:
        hashes = _of_int(flat.astype(np.int64).view(np.uint64) & np.uint64(0xFFFFFFFF))
    else:
        hashes = _of_long(flat.astype(np.int64, copy=False).view(np.uint64))
    return hashes.reshape(data.shape)


def _of_decimals(data: Wide, precision: int) -> Words:
    """Hashes decimals; long ones as the shortest big-endian bytes in two's complement, as Java encodes them."""
    if precision <= _LONG_DIGITS:
        return _of_long(data["low"].astype(np.uint64))
    halves = np.stack([data["high"].view(np.uint64), data["low"]], axis=1)
    written = halves.astype(">u8").view(np.uint8).reshape(len(data), 16)
    sign = np.where(data["high"] < 0, 255, 0).astype(np.uint8)[:, None]
    spare = (written[:, :-1] == sign) & ((written[:, 1:] ^ sign) < 128)
    lengths = 16 - np.logical_and.accumulate(spare, axis=1).sum(axis=1)
    return _of_bytes(written.reshape(-1), np.arange(1, len(data) + 1) * 16 - lengths, lengths)


def _of_text(text: pa.Array | pa.Scalar) -> Words:
    """Hashes texts; each distinct value is hashed once."""
    if isinstance(text, pa.Scalar):
        return _of_text(pa.array([text.as_py()], pa.string())).reshape(())
    encoded = text.dictionary_encode()
    distinct = encoded.dictionary
    _, ends, content = distinct.buffers()
    if not len(distinct) or ends is None:
        return np.zeros(len(text), np.uint64)
    bounds = np.frombuffer(ends, np.int32)[distinct.offset : distinct.offset + len(distinct) + 1].astype(np.int64)
    data = np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
    found = _of_bytes(data, bounds[:-1], np.diff(bounds))
    return np.asarray(found[np.asarray(encoded.indices.fill_null(0))])


def _of_int(values: Words) -> Words:
    mixed = _rotated((_start(4)) ^ (values * _P1), 23) * _P2 + _P3
    return _finished(mixed)


def _of_long(values: Words) -> Words:
    return _finished(_with_word(_start(8), values))


def _start(length: int) -> Words:
    return np.asarray(np.array([_SEED + length], np.uint64) + _P5)


def _of_bytes(data: Bytes, starts: Ints, lengths: Ints) -> Words:
    """Hashes runs of bytes; loops over stripes of 32 bytes, for all runs at once, which are sorted by length."""
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    mixed = np.full(len(starts), _SEED, np.uint64) + _P5
    striped = int((lengths >= _STRIPE).sum())
    if striped:
        mixed[:striped] = _stripes(padded, starts[:striped], lengths[:striped])
    mixed += lengths.astype(np.uint64)
    at = starts + lengths // _STRIPE * _STRIPE
    ends = starts + lengths
    for _ in range(3):
        rows = np.flatnonzero(at + 8 <= ends)
        mixed[rows] = _with_word(mixed[rows], _word(padded, at[rows], 8))
        at[rows] += 8
    rows = np.flatnonzero(at + 4 <= ends)
    mixed[rows] = _rotated(mixed[rows] ^ (_word(padded, at[rows], 4) * _P1), 23) * _P2 + _P3
    at[rows] += 4
    for _ in range(3):
        rows = np.flatnonzero(at < ends)
        mixed[rows] = _rotated(mixed[rows] ^ (padded[at[rows]].astype(np.uint64) * _P5), 11) * _P1
        at[rows] += 1
    found = np.empty(len(mixed), np.uint64)
    found[order] = _finished(mixed)
    return found


def _stripes(data: Bytes, starts: Ints, lengths: Ints) -> Words:
    seed, zero = np.uint64(_SEED), np.zeros(len(starts), np.uint64)
    lanes = [zero + seed + _P1 + _P2, zero + seed + _P2, zero + seed, zero + seed - _P1]
    count = lengths // _STRIPE
    for k in range(int(count[0])):
        active = int(np.searchsorted(-count, -k, "left"))  # runs with more than k stripes come first
        for i, lane in enumerate(lanes):
            word = _word(data, starts[:active] + _STRIPE * k + 8 * i, 8)
            lane[:active] = _rotated(lane[:active] + word * _P2, 31) * _P1
    mixed = sum((_rotated(lane, r) for lane, r in zip(lanes, (1, 7, 12, 18), strict=True)), zero)
    for lane in lanes:
        mixed = (mixed ^ (_rotated(lane * _P2, 31) * _P1)) * _P1 + _P4
    return mixed


def _word(data: Bytes, at: Ints, size: int) -> Words:
    """The little-endian words of 8 or 4 bytes at the positions `at`."""
    found = np.ascontiguousarray(data[at[:, None] + np.arange(size)])
    return found.view(f"<u{size}").reshape(-1).astype(np.uint64)


def _with_word(mixed: Words, word: Words) -> Words:
    return np.asarray(_rotated(mixed ^ (_rotated(word * _P2, 31) * _P1), 27) * _P1 + _P4)


def _rotated(values: Words, bits: int) -> Words:
    return np.asarray((values << np.uint64(bits)) | (values >> np.uint64(64 - bits)))


def _finished(mixed: Words) -> Words:
    mixed = (mixed ^ (mixed >> np.uint64(33))) * _P2
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _P3
    return np.asarray(mixed ^ (mixed >> np.uint64(32)))
