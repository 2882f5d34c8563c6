"""Time in which the host gave the CPUs to others is not counted."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter

import pytest
from own_time import OwnTime


def test_what_was_stolen_is_not_counted(tmp_path: Path) -> None:
    stat, cpus, ticks = tmp_path / "stat", os.cpu_count() or 1, os.sysconf("SC_CLK_TCK")

    def stolen(seconds: float) -> None:
        stat.with_suffix(".new").write_text(f"cpu  9 9 9 9 9 9 9 {round(seconds * cpus * ticks)} 9 9\ncpu0 1\n")
        stat.with_suffix(".new").replace(stat)

    stolen(100.0)
    time = OwnTime(stat)
    began, own, first = perf_counter(), time.now(), perf_counter()
    stolen(400.0)  # of each CPU
    last, now, ended = perf_counter(), time.now(), perf_counter()
    time.end()
    assert last - first - 300.001 < now - own < ended - began - 299.999
    assert time.of(ended) - time.of(began) == pytest.approx(ended - began - 300.0)
    assert time.stolen > 1.0


def test_without_figures_of_stolen_time_all_time_is_counted(tmp_path: Path) -> None:
    time = OwnTime(tmp_path / "none")
    began = perf_counter()
    time.end()
    ended = perf_counter()
    assert time.of(ended) - time.of(began) == pytest.approx(ended - began) and time.stolen == 0.0
