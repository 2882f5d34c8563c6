"""The benchmark of the view: its smallest run."""

from __future__ import annotations

from pathlib import Path

import pytest
import store_view
from pyspark.sql import SparkSession
from workload import Size


@pytest.mark.slow
def test_both_views_are_filled_read_and_made_again(
    spark: SparkSession, redis_installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_view, "PASSES", 1)
    monkeypatch.setattr(store_view, "QUERIES", 2)
    figures = store_view.main(Size(8_000, 3, 200), Size(2_000, 2, 100), tmp_path)
    assert all(value > 0 for name, value in figures.items() if not name.endswith("_tail_s"))
    assert (tmp_path / "store_view.json").exists()
