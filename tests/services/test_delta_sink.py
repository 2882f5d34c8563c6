"""Rows in a Delta table: one commit per epoch with its number, after any crash or take-over."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kit.servers.servers import until
from millpond.errors import StoreError, UnsupportedQuery
from millpond.log.cursor import cursor_at


def rows_in(table: Path) -> list[int]:
    """The rows of the newest version, as DuckDB reads the files that the table names."""
    files = [uri.removeprefix("file://") for uri in DeltaTable(str(table)).file_uris()]
    return [n for (n,) in duckdb.sql(f"SELECT n FROM read_parquet({files!r}) ORDER BY n").fetchall()]


def expected(program: ModuleType) -> list[int]:
    return list(range(program.EPOCHS * program.COUNT))


def test_an_epoch_is_a_commit_with_its_number(tmp_path: Path, program: ModuleType) -> None:
    program.make_pond(tmp_path)
    sink = program.sink_of(tmp_path, "delta", str(tmp_path / "out"))
    assert sink.cursor().n == -1
    program.bring(tmp_path, sink)
    table = DeltaTable(str(tmp_path / "out"))
    assert rows_in(tmp_path / "out") == expected(program)
    assert table.transaction_version("millpond-p-q") == 2 * program.EPOCHS - 1 == sink.cursor().n
    epochs = [one["epoch"] for one in reversed(table.history()) if "epoch" in one]
    assert epochs == [str(n) for n in range(1, 2 * program.EPOCHS, 2)]
    window = pa.schema(table.schema().to_arrow()).field("w").type
    assert window.field("end").type == pa.timestamp("us", "UTC")


def test_the_mark_of_a_record_is_stored_with_its_commit(tmp_path: Path, program: ModuleType) -> None:
    log = list(program.make_pond(tmp_path))
    program.bring(tmp_path, program.sink_of(tmp_path, "delta", str(tmp_path / "out")))
    for file in (tmp_path / "cursors").iterdir():
        file.unlink()
    n, entry, _ = log[2 * program.EPOCHS - 1]
    assert program.sink_of(tmp_path, "delta", str(tmp_path / "out")).cursor() == cursor_at(entry) and entry.n == n


def test_a_publisher_that_was_overtaken_adds_nothing(
    tmp_path: Path, program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = list(program.make_pond(tmp_path))
    old, new = (program.sink_of(tmp_path, "delta", str(tmp_path / "out")) for _ in range(2))
    rows = dict(program.entries(tmp_path))
    for n, entry, manifest in log[:3]:
        old.apply(n, entry, manifest)
    assert old._committed() == 1
    monkeypatch.setattr(old, "_committed", lambda schema: 1)  # it is stopped here, and wakes when all is done
    program.bring(tmp_path, new)
    with pytest.raises(StoreError, match="Failed to commit"):
        old._hand_over(log[3][1], rows[3])
    monkeypatch.undo()
    old._hand_over(log[3][1], rows[3])
    for file in (tmp_path / "cursors").iterdir():
        file.unlink()  # the table itself knows
    program.bring(tmp_path, old)
    assert rows_in(tmp_path / "out") == expected(program)


@pytest.mark.slow
def test_a_driver_that_is_killed_between_the_steps_loses_and_repeats_nothing(
    tmp_path: Path, program: ModuleType, bring: Callable[..., subprocess.Popen[bytes]]
) -> None:
    program.make_pond(tmp_path)
    out, faults = tmp_path / "out", "delivery.before:2:kill,delivery.written:4:kill,delivery.after:7:kill"
    ends = []
    while not ends or ends[-1]:
        process = bring("delta", str(out), faults=faults)
        if len(ends) == 1:  # while it writes: a file that no commit names yet
            known = len(list(out.glob("*.parquet")))
            until(lambda: len(list(out.glob("*.parquet"))) > known or process.poll() is not None, "it writes", 120)  # noqa: B023
            os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=120)
        ends.append(process.returncode)
        assert len(ends) < 7, "it does not come to an end"
    assert set(ends[:-1]) == {-9}
    assert rows_in(out) == expected(program)


def test_a_table_with_other_columns_is_reported(tmp_path: Path, program: ModuleType) -> None:
    DeltaTable.create(str(tmp_path / "out"), pa.schema([("x", pa.int64())]))
    program.make_pond(tmp_path)
    sink = program.sink_of(tmp_path, "delta", str(tmp_path / "out"))
    with pytest.raises(StoreError, match=r"The Delta table .* did not take rows of q: .*choose another folder"):
        program.bring(tmp_path, sink)
    with pytest.raises(UnsupportedQuery, match="has no path"):
        program.sink_of(tmp_path, "delta")
