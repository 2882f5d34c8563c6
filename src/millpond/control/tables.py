"""Batch tables that Spark cannot read by itself: rows served by ponds, and rows of other programs in Redis."""

from __future__ import annotations

from functools import partial

from millpond.control.latest import LatestRows
from millpond.control.wiring import keyed_rows
from millpond.errors import StoreError
from millpond.model.endpoints import KEYED
from millpond.runtime.joins.lookup_rows import OpenRows
from millpond.spark.sources.pond_tables import FORMAT, ServedFrames
from millpond.spark.sources.providers import MakeTable
from millpond.spark.sources.redis_tables import keyed_frame
from millpond.state.keyed import KeyedRows


def own_tables(store: str = "") -> dict[str, MakeTable]:
    """What makes them in one session, by format, for a pond with this store; "": for analysis alone."""
    return {FORMAT: ServedFrames(LatestRows), KEYED: partial(keyed_frame, partial(rows_at, store))}


def rows_at(store: str, address: str | None) -> OpenRows:
    """As `keyed_rows`, but an address that is none is told where rows are read: who explains a pond needs no server."""
    try:
        return keyed_rows(store, address)
    except StoreError as error:
        return partial(_refused, error)


def _refused(error: StoreError) -> KeyedRows:
    raise error
