"""Correlations, covariances and regressions from exact sums over pairs, each sum rounded once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from millpond.arrays import Ints
from millpond.kernels.columns import Array, Mask, Values


class Pairs(NamedTuple):
    """The sums over the n pairs (y, x) of each result row: `yy` is n Σy² − (Σy)², `yx` n Σyx − Σy Σx, …, rounded once.

    `yy` and `xx` are None if the function does not need them. `odd_y` and `odd_x`: whether some y, or some x, of the
    row is NaN or infinite.
    """

    n: Ints
    yx: Array
    yy: Array | None
    xx: Array | None
    mean_y: Array
    mean_x: Array
    odd_y: Mask
    odd_x: Mask


def covariance(function: str, pairs: Pairs) -> Values:
    """`covar_pop`, `covar_samp` and `regr_sxy`; NULL without pairs, `covar_samp` also for a single pair."""
    n, sample = pairs.n, function == "covar_samp"
    divisor = {"regr_sxy": n, "covar_pop": n * n, "covar_samp": n * (n - 1)}[function]
    data = pairs.yx / np.maximum(divisor, 1).astype(np.float64)
    return Values(np.where(pairs.odd_y | pairs.odd_x, np.nan, data), n <= sample)


def correlation(_function: str, pairs: Pairs) -> Values:
    """`corr`; NULL for fewer than two pairs, and where all x or all y are equal."""
    assert pairs.xx is not None
    assert pairs.yy is not None
    not_finite = pairs.odd_y | pairs.odd_x
    with np.errstate(invalid="ignore"):
        data = pairs.yx / root_of_product(np.where(not_finite, 1.0, pairs.xx), np.where(not_finite, 1.0, pairs.yy))
    flat = (~pairs.odd_x & (pairs.xx == 0)) | (~pairs.odd_y & (pairs.yy == 0))
    return Values(np.where(not_finite, np.nan, data), (pairs.n < 2) | flat)


def root_of_product(left: Array, right: Array) -> Array:
    """The square root of a product, even if the product exceeds the range of doubles; zeros count as 1.

    If both factors are equal, the root is the factor, exactly.
    """
    (a, i), (b, j) = (np.frexp(np.where(part == 0, 1.0, part)) for part in (left, right))
    exponent = i.astype(np.int64) + j
    is_odd_exponent = exponent & 1
    half = ((exponent - is_odd_exponent) // 2).astype(np.int32)
    return np.asarray(np.ldexp(np.sqrt(a * b * (1 + is_odd_exponent)), half))


def line(function: str, pairs: Pairs) -> Values:
    """`regr_slope` and `regr_intercept` of y by x; NULL where all x are equal."""
    assert pairs.xx is not None
    with np.errstate(invalid="ignore", over="ignore"):
        slope = pairs.yx / np.where(pairs.xx == 0, 1.0, pairs.xx)  # `xx` is also 0 where x is not finite
        data = slope if function == "regr_slope" else pairs.mean_y - slope * pairs.mean_x
    return Values(np.where(pairs.odd_y | pairs.odd_x, np.nan, data), _has_no_slope(pairs))


def determination(_function: str, pairs: Pairs) -> Values:
    """`regr_r2` of y by x; NULL where all x are equal, otherwise 1 where all y are equal."""
    assert pairs.xx is not None
    assert pairs.yy is not None
    with np.errstate(invalid="ignore", over="ignore"):
        root = pairs.yx / root_of_product(pairs.xx, pairs.yy)
        data, flat = root * root, ~pairs.odd_y & (pairs.yy == 0)
    return Values(np.where(flat, 1.0, np.where(pairs.odd_y | pairs.odd_x, np.nan, data)), _has_no_slope(pairs))


def _has_no_slope(pairs: Pairs) -> Mask:
    no_slope: Mask = (pairs.n == 0) | (~pairs.odd_x & (pairs.xx == 0))
    return no_slope


OF_PAIRS = {
    "covar_pop": covariance,
    "covar_samp": covariance,
    "regr_sxy": covariance,
    "corr": correlation,
    "regr_slope": line,
    "regr_intercept": line,
    "regr_r2": determination,
}
"""The implementation of each function of two arguments, by name."""
