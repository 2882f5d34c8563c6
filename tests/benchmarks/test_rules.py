"""Many rules and growth: the random inputs of the programs, and their evaluation of measurements."""

from __future__ import annotations

from pathlib import Path

import growth
import numpy as np
import profile_epoch
import pyarrow.parquet as pq
import pytest
import rules
from engines import Run


def test_rules_are_all_different() -> None:
    made = rules.rules(6_000)
    assert len(set(made)) == 6_000
    assert made[0] == "amount > 20.0000D AND country = 'gr'"


def test_the_cost_of_a_rule_is_relative_to_the_smallest_count() -> None:
    found = {
        "rules_1_peak_mb": 1_000.0, "rules_1_events_s": 500_000.0,
        "rules_1001_peak_mb": 1_100.0, "rules_1001_events_s": 100_000.0,
    }  # fmt: skip
    measured = rules.per_rule(found, (1, 1_001, 6_000))
    assert measured == {
        "rules_1001_kb_per_rule": pytest.approx(100.0), "rules_1001_ns_per_rule_and_event": pytest.approx(8.0),
    }  # fmt: skip


def test_customers_follow_zipfs_law_over_all_of_them() -> None:
    dice = np.random.default_rng(1)
    even = np.bincount(growth.customers(growth.Shape(100), 100_000, dice), minlength=100)
    assert even.min() > 800 and even.max() < 1_200
    skewed = np.sort(np.bincount(growth.customers(growth.Shape(100, zipf=1.0), 100_000, dice), minlength=100))[::-1]
    assert skewed[0] / skewed[1] == pytest.approx(2.0, rel=0.1)
    assert skewed[0] / skewed[9] == pytest.approx(10.0, rel=0.1)


def test_a_sample_has_a_ramp_before_its_epochs(tmp_path: Path) -> None:
    size = growth.Size(1_000, 2, 3, (60,))
    growth.sample(growth.Shape(50, ramp=600), size, tmp_path / "events")
    times = [pq.read_table(path)["ts"] for path in sorted((tmp_path / "events").glob("*.parquet"))]
    spans = [tuple(time.value // 10**6 - growth.BASE_S for time in (found[0], found[-1])) for found in times]
    assert spans == [(0, 599), (600, 674), (675, 749)]


def test_curves_become_figures_and_charts() -> None:
    points = [growth.Point(60.0, 0.5, 0.1, 0.2, 0.05, 500_000.0, 1e6, 12.5)]
    assert growth.figures({"length": points}) == {
        "length_60_events_s": 1_000_000, "length_60_epoch_s": 0.5, "length_60_kept_mb": 12.5,
    }  # fmt: skip
    assert growth.panels({"length": points})[0].series["fold"] == [0.2]
    assert {curve for curve in growth.CURVES for _ in growth.CURVES[curve](growth.SMALL)} == set(growth.CURVES)


def test_the_steps_of_an_epoch_add_up_to_it() -> None:
    epochs = [{"job": 0.8, "commit": 0.1, "gather": 0.3, "fold": 0.2}] * 3
    measured = profile_epoch.steps(Run([9.0, 1.0, 1.0], [0, 0, 0], epochs))
    parts = [value for name, value in measured.items() if name != "epoch_s"]
    assert sum(parts) == pytest.approx(measured["epoch_s"]) == pytest.approx(1.0)
