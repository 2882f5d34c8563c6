"""Run-length encoding of a value per bucket: (value, number of consecutive buckets)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TypeVar

T = TypeVar("T")


def runs_of(values: Iterable[T]) -> tuple[tuple[T, int], ...]:
    """The runs of equal values.

    >>> runs_of((0, 0, 1, 0)), runs_of(("", "", "lmdb:x"))
    (((0, 2), (1, 1), (0, 1)), (('', 2), ('lmdb:x', 1)))
    """
    return tuple((value, len(list(run))) for value, run in groupby(values))


def of_runs(runs: Iterable[tuple[T, int]]) -> tuple[T, ...]:
    """The value of each bucket.

    >>> of_runs(((0, 2), (1, 1)))
    (0, 0, 1)
    """
    return tuple(value for value, count in runs for _ in range(count))
