"""The position of each stream's columns in the single frame that an epoch reads; a value without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

TICK = -1
"""The `stream` column of a tick: a row that carries no event."""

DEAD = -2
"""The `stream` column of a record that did not parse: what is known of it is in the last column, `dead`."""


class ReadColumn(NamedTuple):
    """A column of a stream: its name in expressions, its position in the frame, its SQL type.

    A `foreign` one is `struct<v: type>`, NULL in rows where evaluating it raised.
    """

    name: str
    position: int
    type: str
    foreign: bool = False


class StreamLayout(NamedTuple):
    """A stream and its columns; `partition` and `offset` name those that give its events an order, if any do.

    `reads`: the sources it is made of, where that is not the one of its own name. `chained`: its events are rows of a
    query, which come in a frame of their own (see `runtime.inputs.upstream_rows`).
    """

    name: str
    columns: tuple[ReadColumn, ...]
    partition: str | None = None
    offset: str | None = None
    reads: tuple[str, ...] = ()
    chained: bool = False


@dataclass(frozen=True)
class ReadLayout:
    """The frame's first column, `stream`, is a position in `streams`, or `TICK`; all others follow flat.

    Columns of other streams than the row's own are NULL. `malformed`: for each source that tells apart what does not
    parse its name, its policy and its ratio (see `model.stream.Malformed`); the frame then has the column `dead`.
    """

    streams: tuple[StreamLayout, ...]
    malformed: tuple[tuple[str, str, float | None], ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of what is read, each once."""
        return tuple(dict.fromkeys(name for stream in self.streams for name in stream.reads or (stream.name,)))
