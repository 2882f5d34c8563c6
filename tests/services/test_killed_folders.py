"""Folder sinks whose writer is killed at each step: a concurrent reader sees complete epochs in order."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest

STEPS = ("sink.before_tmp", "sink.after_tmp", "sink.after_link", "sink.after_cursor")
FAULTS = ",".join(f"{step}:{turn + 2}:kill" for turn, step in enumerate(STEPS))


def rows(file: Path) -> list[int]:
    if file.suffix == ".parquet":
        return pq.read_table(file)["n"].to_pylist()
    return [json.loads(line)["n"] for line in file.read_text().splitlines()]


class Reader(threading.Thread):
    """Reads the visible files of a folder again and again."""

    def __init__(self, folder: Path, suffix: str) -> None:
        super().__init__()
        self.seen: set[tuple[int, ...]] = set()
        self._folder, self._pattern, self._ended = folder, f"part-*{suffix}", threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.002):
            files = sorted(self._folder.glob(self._pattern))
            self.seen.add(tuple(n for file in files for n in rows(file)))

    def end(self) -> None:
        self._ended.set()
        self.join()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "json"])
def test_a_listing_during_a_crash_shows_no_partial_epoch(
    form: str, tmp_path: Path, program: ModuleType, bring_killed: Callable[..., int]
) -> None:
    program.make_pond(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    reader = Reader(out, f".{form}")
    reader.start()
    try:
        assert bring_killed(form, str(out), faults=FAULTS) == len(STEPS) + 1
    finally:
        reader.end()
    whole = {tuple(range(epochs * program.COUNT)) for epochs in range(program.EPOCHS + 1)}
    assert reader.seen <= whole
    assert [n for file in sorted(out.glob("part-*")) for n in rows(file)] == list(range(program.EPOCHS * program.COUNT))
