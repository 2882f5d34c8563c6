"""Batch tables that Spark cannot read by itself: the rows that ponds serve, and rows of other programs in Redis."""

from __future__ import annotations

from functools import partial

from millpond.control.latest import LatestRows
from millpond.control.wiring import keyed_rows
from millpond.model.endpoints import KEYED
from millpond.spark.keyed import keyed_frame, unopened
from millpond.spark.latest import FORMAT, ServedFrames
from millpond.spark.tables import MakeTable


def own_tables(store: str | None) -> dict[str, MakeTable]:
    """What makes them in one session, by format, for a pond with this store; None: for analysis, which opens none."""
    opens = unopened if store is None else partial(keyed_rows, store)
    return {FORMAT: ServedFrames(LatestRows), KEYED: partial(keyed_frame, opens)}
