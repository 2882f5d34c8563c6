"""Streams: named, typed sources of events."""

from __future__ import annotations

import msgspec

from millpond.errors import QueryRefused, QueryTypeError
from millpond.model.endpoints import Sink, Source
from millpond.model.types import is_integer


class Field(msgspec.Struct, frozen=True):
    """A column of a stream and its SQL type.

    `default`: the constant, in SQL, that the column is where a record does not have it. `char`: the declared type where
    that has a CHAR(n): its values are strings, padded with blanks to the length.
    """

    name: str
    type: str
    default: str | msgspec.UnsetType = msgspec.UNSET
    char: str | msgspec.UnsetType = msgspec.UNSET


class Order(msgspec.Struct, frozen=True):
    """Says that events come in order within source partitions: columns that hold partition and offset.

    `partitions` are the names of all source partitions, where they are known: the watermark waits for each of
    them. `idle_after_us`: a partition without events for so long (by the driver's clock) is waited for no more.
    `offset` None: the watermark waits for each partition, but within one there is no order.
    """

    partition: str
    offset: str | None
    partitions: tuple[str, ...] = ()
    idle_after_us: int = 60_000_000

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it is told by."""
        return (self.partition,) if self.offset is None else (self.partition, self.offset)


class Derivation(msgspec.Struct, frozen=True):
    """What a stream is made of: in words, the streams that are read for it, and a digest of all that matters."""

    text: str
    reads: tuple[str, ...]
    digest: str


FAIL, DROP, DEAD_LETTER = "fail", "drop", "dead-letter"


class Malformed(msgspec.Struct, frozen=True):
    """What becomes of records that do not parse: the run ends, they are left out, or they go to `sink`.

    `ratio`: a run ends when more of the newest records do not parse.
    """

    policy: str = FAIL
    sink: Sink | None = None
    ratio: float | None = None


class Retention(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a stream keeps for queries that come later, longer than those in force need it; durations of event time.

    `slices_us`: cells of slices; `grain_us`: slices are cut at its multiples too (0: only at edges of windows);
    `events_us`: events, with `columns` and those that queries in force read.
    """

    slices_us: int = 0
    events_us: int = 0
    grain_us: int = 0
    columns: tuple[str, ...] = ()


class Stream(msgspec.Struct, frozen=True):
    """A named source of events with its columns.

    `order` None: the source has no order (files, rate), and what is late depends on how it was cut into epochs.
    `max_ahead_us`: an event later than the driver's clock by more than this is dead (None: none is).
    `made_of`: Spark makes it of other streams while it reads them; it has no source of its own. `rows_of`: its events
    are the rows of a query of the same pond, an epoch later; see `plan.chains.upstream`. `malformed`: what becomes of
    records that do not parse, where its source tells them apart. `retain`: what is kept for queries that come later.
    `partitioned`: the column that is the key of its topic's records.
    """

    name: str
    columns: tuple[Field, ...]
    source: Source | None = None
    order: Order | None = None
    max_ahead_us: int | None = 3_600_000_000
    made_of: Derivation | msgspec.UnsetType = msgspec.UNSET
    rows_of: str | msgspec.UnsetType = msgspec.UNSET
    malformed: Malformed | msgspec.UnsetType = msgspec.UNSET
    retain: Retention | msgspec.UnsetType = msgspec.UNSET
    partitioned: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def partitioned_by(self) -> str | None:
        """The column whose text is the key of each record, by which producers choose partitions; None: none is."""
        return None if isinstance(self.partitioned, msgspec.UnsetType) else self.partitioned

    @property
    def retention(self) -> Retention:
        """What is kept for queries that come later."""
        return Retention() if isinstance(self.retain, msgspec.UnsetType) else self.retain

    @property
    def on_malformed(self) -> Malformed:
        """What becomes of records that do not parse."""
        return Malformed() if isinstance(self.malformed, msgspec.UnsetType) else self.malformed

    @property
    def meaning(self) -> Stream:
        """The stream without the manner in which it is read."""
        return self if self.source is None else msgspec.structs.replace(self, source=self.source.meaning)

    @property
    def derived(self) -> Derivation | None:
        """What the stream is made of; None: it is read."""
        return None if isinstance(self.made_of, msgspec.UnsetType) else self.made_of

    @property
    def upstream(self) -> str | None:
        """The query whose rows are its events; None: it is read, or derived."""
        return None if isinstance(self.rows_of, msgspec.UnsetType) else self.rows_of


def check_retention(stream: Stream) -> None:
    """Refuse times that cannot be, and columns that are not there.

    Raises:
        QueryTypeError: a duration is negative or empty, or a column is missing.
    """
    kept = stream.retention
    for name, value in (("slices", kept.slices_us), ("events", kept.events_us), ("grain", kept.grain_us)):
        if not 0 <= value < _LONGEST_US:
            raise QueryTypeError(f"{name} of the stream {stream.name} cannot be retained so.", "Write '1 hour'.")
    missing = sorted({*kept.columns} - {field.name for field in stream.columns})
    if missing or (kept.columns and not kept.events_us):
        raise QueryTypeError(
            f"The stream {stream.name} cannot retain {', '.join(missing or kept.columns)}.",
            "Name columns that it has, and how long events are kept ('retain.events').",
        )


def check_partitioned(stream: Stream) -> None:
    """Refuse a column by which no topic is partitioned.

    Raises:
        QueryTypeError: the stream does not have it, or it is neither a text nor a whole number.
        QueryRefused: the stream is not read from Kafka.
    """
    if stream.partitioned_by is None:
        return
    kind = {field.name: field.type for field in stream.columns}.get(stream.partitioned_by)
    if stream.source is None or stream.source.format != "kafka":
        raise QueryRefused(
            f"The stream {stream.name} has PARTITIONED BY, which is for topics of Kafka.",
            "Of a folder of files leave it out, and declare the column: Spark finds it in the folders' names "
            f"({stream.partitioned_by}=…).",
        )
    if kind is None or not (kind == "string" or is_integer(kind)):
        raise QueryTypeError(
            f"The stream {stream.name} cannot be partitioned by {stream.partitioned_by}.",
            "Name the one column, a text or a whole number, whose text is the key of the topic's records.",
        )


_LONGEST_US = 1 << 60


def check_order(stream: Stream) -> None:
    """Refuse an order that the stream's columns cannot give, and times that cannot be.

    Raises:
        QueryTypeError: a column is missing or of another type, or a duration is negative.
    """
    if stream.max_ahead_us is not None and stream.max_ahead_us < 0:
        raise QueryTypeError(f"max_ahead of the stream {stream.name} is negative.", "Give a duration, or none at all.")
    if stream.order is None:
        return
    if stream.order.idle_after_us <= 0:
        raise QueryTypeError(f"idle_after of the stream {stream.name} is not above zero.", "Write '1 minute'.")
    types = {field.name: field.type for field in stream.columns}
    for what, name in zip(("partition", "offset"), stream.order.columns, strict=False):
        if name not in types:
            raise QueryTypeError(
                f"The stream {stream.name} has no column {name} to tell the {what} by.",
                f"Name one of {', '.join(types)}, as it is spelled there.",
            )
        fits = is_integer(types[name]) or (what == "partition" and types[name] == "string")
        if not fits:
            raise QueryTypeError(
                f"The column {name} of {stream.name} is {types[name]}, which tells no {what}.",
                f"Use a column of whole numbers{' or strings' if what == 'partition' else ''}.",
            )
