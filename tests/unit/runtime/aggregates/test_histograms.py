"""Histograms against their naive twin, bit by bit, and their guarantees."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.naive.aggregates import histogram
from millpond.runtime.aggregates.histograms import Bins, binned

KIND = "array<struct<x:double,y:double>>"
VALUES = st.one_of(st.integers(-9, 9).map(float), st.floats(allow_nan=False), st.sampled_from([math.inf, -math.inf]))


def made(rows: list[list[float]], most: int) -> list[list[dict[str, float]]]:
    """Those of each row; a value that occurs often is one bin at first, as everywhere."""
    found = [np.unique(np.array(values) + 0.0, return_counts=True) for values in rows]
    owners = np.repeat(np.arange(len(rows)), [len(centres) for centres, _ in found])
    centres, counts = (np.concatenate([one[i] for one in found]).astype(np.float64) for i in (0, 1))
    bins = binned(Bins(owners, centres, counts), most, len(rows))
    return [
        [{"x": x, "y": y} for row, x, y in zip(*map(np.ndarray.tolist, bins), strict=True) if row == wanted]
        for wanted in range(len(rows))
    ]


@given(st.lists(st.lists(VALUES, max_size=60), min_size=1, max_size=4), st.integers(2, 9))
def test_bins_are_those_of_the_naive_twin(rows: list[list[float]], most: int) -> None:
    expected = [histogram(values, most, KIND) or [] for values in rows]
    assert repr(made(rows, most)) == repr(expected)
    for values, bins in zip(rows, expected, strict=True):
        assert sum(bin_["y"] for bin_ in bins) == len(values)
        assert len(bins) <= most
        if len(set(values)) <= most:
            assert [bin_["x"] for bin_ in bins] == sorted(set(values))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80), st.integers(2, 9))
def test_a_bin_is_the_mean_of_a_run_of_the_sorted_values(values: list[float], most: int) -> None:
    (bins,) = made([values], most)
    ordered, at = sorted(values), 0
    for bin_ in bins:
        run = ordered[at : at + int(bin_["y"])]
        assert bin_["x"] == pytest.approx(math.fsum(run) / len(run), rel=1e-9, abs=1e-9)
        at += len(run)
    for v in values:
        below = [bin_["y"] for bin_ in bins if bin_["x"] <= v]
        beside = [*below[-1:], *[bin_["y"] for bin_ in bins if bin_["x"] > v][:1]]
        assert abs(sum(one <= v for one in ordered) - sum(below)) <= max(beside) - (1 - 1e-9)


@pytest.mark.parametrize("values", [np.arange(100_000.0), np.arange(100_000.0) ** 2, 1.001 ** np.arange(100_000.0)])
def test_few_rounds_are_enough(values: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    counted = np.minimum
    monkeypatch.setattr(np, "minimum", lambda *given: rounds.append(1) or counted(*given))
    bins = binned(Bins(np.zeros(len(values), np.int64), values, np.ones(len(values))), 20, 1)
    assert (len(bins.rows), bins.counts.sum()) == (20, 100_000)
    assert len(rounds) < 60
