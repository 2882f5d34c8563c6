"""Rows of a query in a record: all instances in order, without private columns, read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millpond.errors import CorruptError
from millpond.followers.record_rows import RowsGone, section_reader
from millpond.log.records import Receipt, Section
from millpond.state.ports.files import Files


def test_instances_in_order_without_private_columns(pond: Any, make_row: Any) -> None:
    pond.claim()
    n = pond.epoch({"q": [make_row(c, 1.0) for c in "abcde"], "r": [make_row("z", 2.0)]}, instances=3)
    table = pond.rows.table(pond.entries[n], "q")
    assert table.column_names == ["customer", "w", "total"]
    assert table["customer"].to_pylist() == list("abcde")
    assert sorted(pond.rows.queries(pond.entries[n])) == ["q", "r"]
    assert pond.rows.table(pond.entries[n], "absent") is None
    assert pond.rows.table(pond.entries[0], "q") is None


def test_inline_rows_need_no_file(pond: Any, make_row: Any) -> None:
    n = pond.epoch({"q": [make_row(c, 1.0) for c in "abc"]}, instances=2, inline=True)
    assert pond.rows.table(pond.entries[n], "q")["customer"].to_pylist() == ["a", "b", "c"]
    assert pond.reads == 0


def test_quarantined_rows_are_dropped(pond: Any, make_row: Any) -> None:
    ended_and_begun = {"q": "overflow", "r": ""}
    n = pond.epoch({"q": [make_row("a", 1.0)], "r": [make_row("b", 1.0)]}, quarantined=ended_and_begun)
    assert pond.rows.table(pond.entries[n], "q") is None
    assert pond.rows.queries(pond.entries[n]) == ["r"]


def test_missing_rows_and_damaged_rows_are_different_errors(pond: Any, make_row: Any) -> None:
    n = pond.epoch({"q": [make_row("a", 1.0)]})
    file = next(pond.path.glob("delta/*/*.arrow"))
    file.write_bytes(b"x" * file.stat().st_size)
    with pytest.raises(CorruptError, match="no Arrow stream"):
        pond.rows.table(pond.entries[n], "q")
    file.unlink()
    with pytest.raises(RowsGone, match="query q in record 0 no longer exist"):
        pond.rows.table(pond.entries[n], "q")


@pytest.mark.parametrize("content", [b"", b"x"], ids=["empty", "changed"])
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "1.arrow").write_bytes(content)
    read = section_reader(Files(tmp_path))
    receipt, section = Receipt(0, "a", 64, "0" * 64, "1.arrow"), Section("rows", "q", 0, 64, 1)
    with pytest.raises(CorruptError, match=f"{tmp_path}/1.arrow"):
        read(1, receipt, section)
    (tmp_path / "1.arrow").unlink()
    with pytest.raises(FileNotFoundError):
        read(1, receipt, section)
