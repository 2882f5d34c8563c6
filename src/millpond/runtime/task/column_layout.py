"""The position of each stream's columns in the single frame that an epoch reads; plain values without Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from millpond.model.keyed_table import KeyedTable

DEAD = -2
"""The `stream` column of a record that did not parse; the last column, `dead`, describes the record."""

LETTER_COLUMN = "dead"
"""The name of the last column, if there is one for dead letters: NULL, or the record and the reason."""


def column_name(stream: int, place: int) -> str:
    """The name in the frame of a column of a stream, both by their positions."""
    return f"c{stream}_{place}"


class ReadColumn(NamedTuple):
    """A column of a stream: its name in expressions, its position in the frame, its SQL type.

    A `foreign` column is evaluated by Spark and is `struct<v: type>`; it is NULL where the evaluation raised an error.
    """

    name: str
    position: int
    type: str
    foreign: bool = False


class LookedColumn(NamedTuple):
    """A column of a stream that is part of a row of a keyed table: `found` is its name in the result of the look-up.

    A `foreign` column is `struct<v>`; it is NULL, as if the evaluation raised, for an event that the row makes dead.
    """

    name: str
    type: str
    found: str
    foreign: bool = False


class OwnerLookup(NamedTuple):
    """How the instance that owns a key looks up its row of a keyed table.

    `read`: see `joins.lookup_rows.KeyedReader`. `keys`: the columns of the stream with the values of `table.keys`.
    """

    table: KeyedTable
    read: Callable[..., pa.StructArray]
    keys: tuple[str, ...]
    columns: tuple[LookedColumn, ...]

    @property
    def names(self) -> frozenset[str]:
        """The names of the columns that are looked up."""
        return frozenset(column.name for column in self.columns)


class StreamLayout(NamedTuple):
    """A stream and its columns; `partition` and `offset` name the columns that order its events, if there are any.

    `reads`: the sources of the stream, if it is not read from the source of its own name. `chained`: its events are
    rows of a query, which are read as a frame of their own (see `runtime.inputs.upstream_rows`). `lookup`: the columns
    that are not read, but looked up when the events have been exchanged. `counted`: its events count as events of the
    pond; of the streams that are computed from one source, only one has this, so that each record counts once.
    """

    name: str
    columns: tuple[ReadColumn, ...]
    partition: str | None = None
    offset: str | None = None
    reads: tuple[str, ...] = ()
    chained: bool = False
    lookup: OwnerLookup | None = None
    counted: bool = True


class TextStream(NamedTuple):
    """A stream whose records come as texts of JSON or CSV, which the gather parses.

    `columns`: the declared columns by name and SQL type. `zone`: the session's time zone. `strict`: a text of which one
    value does not fit is malformed. `keeps_bytes`: dead letters contain the text. `separator`: of CSV; JSON has none.
    """

    position: int
    columns: tuple[tuple[str, str], ...]
    zone: str
    strict: bool
    keeps_bytes: bool
    separator: str = ""


@dataclass(frozen=True)
class ReadLayout:
    """The layout of the frame that an epoch reads.

    The first column, `stream`, is a position in `streams`, or `DEAD`. The columns of all streams follow; those
    of other streams than the row's own are NULL. `malformed`: for each source that separates malformed records, its
    name, policy and ratio (see `model.stream.Malformed`); the frame then has the column `dead`, unless functions read
    the rows and such records are only counted.

    `texts`: the streams whose records come as texts. The frame does not have their declared columns, each of their rows
    has the struct `dead` with the text in its field `value`, and the columns of the frame are found by `column_name`.
    """

    streams: tuple[StreamLayout, ...]
    malformed: tuple[tuple[str, str, float | None], ...] = ()
    texts: tuple[TextStream, ...] = ()

    @property
    def looked_up(self) -> tuple[StreamLayout, ...]:
        """The streams whose rows of a keyed table are looked up by the owners of their keys."""
        return tuple(stream for stream in self.streams if stream.lookup is not None)

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of all sources that are read, each once."""
        return tuple(dict.fromkeys(name for stream in self.streams for name in stream.reads or (stream.name,)))
