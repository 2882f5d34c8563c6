"""Budgets: the maximum cost of a query in bytes of state, number of keys, and time per epoch."""

from __future__ import annotations

import re

import msgspec

from millpond.errors import QueryTypeError

_UNITS = {
    "state": {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
    "keys": {"": 1, "k": 10**3, "m": 10**6},
    "time": {"us": 1, "ms": 10**3, "s": 10**6},
}
_PART = re.compile(r"\s*([a-z]+)\s+([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


class Budget(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits of one query; each is optional.

    `state`: bytes of its own state plus its part of shared state. `keys`: the number of keys. `time`: the time of the
    workers per epoch, in microseconds.
    """

    state: int | msgspec.UnsetType = msgspec.UNSET
    keys: int | msgspec.UnsetType = msgspec.UNSET
    time: int | msgspec.UnsetType = msgspec.UNSET


def budget_of(text: str) -> Budget:
    """Parses a budget.

    Raises:
        QueryTypeError: the text is not a budget.

    >>> budget_of("state 1.5 GB, keys 100 k, time 50 ms")
    Budget(state=1500000000, keys=100000, time=50000)
    """
    limits: dict[str, int] = {}
    for part in text.split(","):
        found = _PART.fullmatch(part)
        name, number, unit = found.groups() if found else ("", "0", "")
        factor = _UNITS.get(name.lower(), {}).get(unit.lower())
        if factor is None or name.lower() in limits or round(float(number) * factor) <= 0:
            raise QueryTypeError(
                f"The budget {text!r} is none: {part.strip()!r}.", "Write 'state 100 MB, keys 1000000, time 50 ms'."
            )
        limits[name.lower()] = round(float(number) * factor)
    return Budget(**limits)
