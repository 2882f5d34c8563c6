"""Different keys: the eight canonical windows, each over key columns of its own, so no two queries share a group."""

from __future__ import annotations

from functools import partial

from engines import MakeQuery, aggregation
from workload import WINDOWS

KEYS = (
    ("customer",),
    ("merchant",),
    ("card",),
    ("country", "kind"),
    ("customer", "merchant"),
    ("kind",),
    ("merchant", "country"),
    ("customer", "kind"),
)

COLUMNS = ("ts", "customer", "merchant", "card", "country", "kind", "amount")
"""What the queries read."""


def unlike() -> list[MakeQuery]:
    """One aggregation per window and key."""
    return [
        partial(aggregation, size=size, slide=slide, keys=keys)
        for (size, slide), keys in zip(WINDOWS, KEYS, strict=True)
    ]
