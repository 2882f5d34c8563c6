"""Deltas: sections at multiples of 64 bytes, in a file of their own or, when small, inside the record."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import pyarrow as pa
import pytest

from kit.inputs.log_examples import INLINE_DELTA, epoch
from millpond.errors import CorruptError, NoMemoryError
from millpond.log.records import Receipt, encode, without_body
from millpond.state.layout.delta import DeltaWriter
from millpond.state.ports.files import INLINE_BYTES, Files

FIRST = Path(__file__).parents[3] / "golden" / "formats" / "v1" / "epoch.bin"
"""A record of version 1, of which nothing is packed."""


def written(folder: Path, *sizes: int) -> tuple[Receipt, bytes]:
    delta = DeltaWriter()
    for i, size in enumerate(sizes):
        delta.add("segment", f"g{i}", bytes([i + 1]) * size, size, {"level": i}, (f"1/0/{i}",))
    return delta.finish(Files(folder), 12, 3, "writer-7.1", {"applied:q": 2})


def test_a_small_delta_travels_in_its_record(tmp_path: Path) -> None:
    receipt, body = written(tmp_path, 3, 64, 65, 0)
    assert (receipt.file, receipt.instance, receipt.attempt, receipt.counts) == (
        None,
        3,
        "writer-7.1",
        {"applied:q": 2},
    )
    assert [section.offset for section in receipt.sections] == [0, 64, 128, 256]
    assert [section.size for section in receipt.sections] == [3, 64, 65, 0]
    assert len(body) == receipt.size == 256
    assert receipt.digest == hashlib.sha256(body).hexdigest()
    assert not (tmp_path / "delta").exists()


def test_a_large_delta_is_a_file_named_by_record_instance_and_attempt(tmp_path: Path) -> None:
    receipt, body = written(tmp_path, 10, INLINE_BYTES)
    assert receipt.file == "delta/00000000000000000012/3-writer-7.1.arrow"
    assert body == b""
    data = (tmp_path / receipt.file).read_bytes()
    assert len(data) == receipt.size == 64 + INLINE_BYTES
    assert receipt.digest == hashlib.sha256(data).hexdigest()
    files = Files(tmp_path)
    for section in receipt.sections:
        found = files.read(receipt.file, section.offset, section.size)
        assert found.to_pybytes() == bytes([int(section.group[1]) + 1]) * section.size
        assert found.address % 64 == 0
    assert [section.supersedes for section in receipt.sections] == [("1/0/0",), ("1/0/1",)]


@pytest.mark.parametrize("size, inline", [(INLINE_BYTES, True), (INLINE_BYTES + 1, False)])
def test_the_border_between_inline_and_file(size: int, inline: bool, tmp_path: Path) -> None:
    receipt, body = written(tmp_path, size)
    assert (receipt.file is None) == inline
    assert bool(body) == inline


def test_an_empty_delta_writes_nothing(tmp_path: Path) -> None:
    receipt, body = written(tmp_path)
    assert (receipt.size, receipt.file, body, receipt.sections) == (0, None, b"", ())


def test_sections_are_arrow_buffers_too(tmp_path: Path) -> None:
    delta = DeltaWriter()
    delta.add("keys", "g", pa.py_buffer(b"abc"), 1, {})
    _, body = delta.finish(Files(tmp_path), 1, 0, "a", {})
    assert body == b"abc" + bytes(61)


def test_inline_sections_are_read_from_the_record_and_aligned(tmp_path: Path) -> None:
    receipt, body = written(tmp_path, 3, 70)
    record = encode(epoch(5, "ab" * 32, {}, {}, receipts=(receipt,)), b"x" * 77 + body)
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "5").write_bytes(record)
    (tmp_path / "log" / "6").write_bytes(without_body(record) or b"")
    (tmp_path / "log" / "7").write_bytes(FIRST.read_bytes())
    files = Files(tmp_path)
    for section in receipt.sections:
        found = files.read_inline("log/5", 77 + section.offset, section.size)
        assert found.to_pybytes() == body[section.offset : section.offset + section.size]
        assert found.address % 64 == 0
    assert files.read_inline("log/7", 0, len(INLINE_DELTA)).to_pybytes() == INLINE_DELTA
    for name, end in (("log/5", 77 + len(body) + 1), ("log/7", len(INLINE_DELTA) + 1), ("log/6", 1)):
        with pytest.raises(CorruptError):
            files.read_inline(name, end - 1, 1)


def test_missing_short_and_empty_files_are_corrupt(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"0123456789abcdef")
    (tmp_path / "empty").write_bytes(b"")
    files = Files(tmp_path)
    assert files.read("short", 2, 3).to_pybytes() == b"234"
    assert files.read("nowhere", 0, 0).to_pybytes() == b""
    for name, offset, size in (("missing", 0, 1), ("empty", 0, 1), ("short", 10, 7)):
        with pytest.raises(CorruptError):
            files.read(name, offset, size)
    for name in ("missing", "short", "empty"):
        with pytest.raises(CorruptError):
            files.read_inline(name, 0, 100)


def test_a_file_for_which_no_memory_is_left_is_not_corrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(tmp_path)
    files.write("delta/1", [b"12345678"])

    def no_memory(*_args: object, **_options: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", no_memory)
    with pytest.raises(NoMemoryError, match="Cannot allocate memory"):
        files.read("delta/1", 0, 8)
