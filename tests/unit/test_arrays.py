"""Sorted arrays: the order of NumPy's stable sort."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.arrays import ordered

LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@given(st.lists(st.one_of(st.integers(-3, 3), st.integers(LEAST, MOST), st.sampled_from([LEAST, MOST]))))
def test_equal_codes_stay_as_they_stand(codes: list[int]) -> None:
    given_codes = np.array(codes, np.int64)
    assert ordered(given_codes).tolist() == np.argsort(given_codes, kind="stable").tolist()


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("count", [1, 2, 1024, 1025, 70_000])
def test_codes_of_any_width(kind: type[np.integer], count: int) -> None:
    codes = np.random.default_rng(count).integers(0, 100, count).astype(kind)
    assert ordered(codes).tolist() == np.argsort(codes, kind="stable").tolist()


@pytest.mark.parametrize("span", [1 << 60, (1 << 61) - 1, 1 << 61, 1 << 62])
def test_codes_that_just_fit_beside_their_positions_and_that_do_not(span: int) -> None:
    codes = np.array([span - 5, -5, 7, 7, span - 5])
    assert ordered(codes).tolist() == [1, 2, 3, 0, 4]
