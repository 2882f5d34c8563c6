"""The naive twin of histograms: one list of bins, put together one after another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from millpond.model.types import centre_of, element_of, is_integer
from millpond.testing.rowwise import cast, order


def histogram(values: Sequence[Any], most: int, kind: str) -> list[dict[str, Any]] | None:
    """What `histogram_numeric(x, most)` answers for values that are not NULL; `kind` is its type.

    >>> histogram([1.0, 10.0, 2.0], 2, "array<struct<x:double,y:double>>")
    [{'x': 1.5, 'y': 2.0}, {'x': 10.0, 'y': 1.0}]
    """
    shown = {order(float(value)): float(value) + 0.0 for value in values}
    counts = Counter(order(float(value)) for value in values)
    bins = [(shown[rank], float(counts[rank])) for rank in sorted(counts)]
    while len(bins) > most:
        gaps = sorted(range(len(bins) - 1), key=lambda i: (_width(bins[i][0], bins[i + 1][0]), i))
        chosen = set(gaps[: min(len(bins) - most, len(bins) // 2)])
        left: set[int] = set()
        for i in sorted(chosen):
            if i - 1 not in left:
                left.add(i)
        bins = [_both(bins[i], bins[i + 1]) if i in left else bins[i] for i in range(len(bins)) if i - 1 not in left]
    return [{"x": _back(x, kind), "y": y} for x, y in bins] or None


def _width(low: float, high: float) -> float:
    return math.inf if math.isnan(high - low) else high - low


def _both(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    total = first[1] + second[1]
    return first[0] * (first[1] / total) + second[0] / total * second[1], total


def _back(centre: float, kind: str) -> Any:
    own = str(centre_of(element_of(kind)))
    if own == "double":
        return centre
    if own == "float":
        return cast(centre, "double", "float")
    whole = math.trunc(centre)
    return min(whole, (1 << 63) - 1) if is_integer(own) else whole

