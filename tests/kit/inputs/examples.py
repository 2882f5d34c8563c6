"""Set how much property tests try: little in a normal run, many times more in `make exhaustive`.

A test states what a normal run tries, as `examples(25)` of Hypothesis or `seeds(7000, 2)` of the random cases.
"""

from __future__ import annotations

import os

TIMES = int(os.environ.get("MILLPOND_EXAMPLES", "1"))
"""How many times more examples and seeds than in a normal run."""

USUAL = 30
"""Examples of a test that states no number; Hypothesis itself would try 100."""


def examples(normal: int) -> int:
    """How many examples this run tries where a normal one tries `normal`."""
    return normal * TIMES


def seeds(first: int, normal: int, step: int = 1) -> range:
    """The seeds from `first` that this run tries where a normal one tries `normal`.

    >>> list(seeds(7000, 3, step=6))[:3]
    [7000, 7006, 7012]
    """
    return range(first, first + normal * TIMES * step, step)
