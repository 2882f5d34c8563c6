"""Streams: named, typed sources of events."""

from __future__ import annotations

import msgspec

from millpond.model.endpoints import Source


class Field(msgspec.Struct, frozen=True):
    """A column of a stream and its SQL type."""

    name: str
    type: str


class Stream(msgspec.Struct, frozen=True):
    """A named source of events with its columns; `source` None means that a DataFrame provides it."""

    name: str
    columns: tuple[Field, ...]
    source: Source | None = None
