"""The report of `millpond why` as plain fields, which a service sends and a client reads without Arrow."""

from __future__ import annotations

from html import escape

import msgspec

WIDEST = 100
"""The most columns of the text of a report, as wide as its lines need to be."""


class Cause(msgspec.Struct, frozen=True):
    """One reason with its stable `code`, and what to do about it."""

    code: str
    text: str


class QueryFates(msgspec.Struct, frozen=True):
    """The fate of a query's events, and its rows; read = applied + late + dead + filtered."""

    read: int = 0
    applied: int = 0
    late: int = 0
    dead: int = 0
    filtered: int = 0
    rows: int = 0
    withheld: int = 0


class Partition(msgspec.Struct, frozen=True):
    """A source partition of a stream with an order: its largest event time, and whether the watermark ignores it."""

    name: str
    newest_us: int | None
    idle: bool


class WindowShown(msgspec.Struct, frozen=True):
    """A window [start, end), whose rows are emitted when event time reaches `needs_us`."""

    start_us: int
    end_us: int
    needs_us: int


class WhyShown(msgspec.Struct, frozen=True):
    """Why a query emits no rows, or no longer does: its causes and their facts, as of the newest `record`.

    `text`: the report of `millpond why`. `causes`: the main cause first. `computes`: the query in a few words. `sink`:
    the format of its sink. `counts`: of the newest `epochs`; `reaches_start`: there are no earlier ones.
    `counts_since_applied`: of the records after `last_applied_record`, the last one that applied an event.
    `last_rows_record`: the last one with rows. `committed_us`: the writer's clock at the newest epoch. `newest_us`: the
    largest event time. `partitions`: of a source with an order. `due`: the open window whose rows are emitted next.
    `first`: of a query that was added later, its first window, while it has no event. `complete_from_us`: of such a
    query, the earliest start of a complete window. `quarantined`: the reason. `failure`: the error because of which the
    service commits no epoch. `driver_runs`: None if that is not known. `sink_record`: the last record whose rows the
    sink has, -1 for none; None if the pond does not keep it. `upstream`: the queries whose rows it reads, each with the
    reason for its quarantine, or "". `dead_letters`: by stream, the folder of its dead letters. `dead_reasons`: the
    reasons of the newest dead letters with their numbers.
    """

    query: str
    record: int
    text: str
    causes: tuple[Cause, ...]
    computes: str
    sink: str
    counts: QueryFates
    counts_since_applied: QueryFates
    epochs: int
    reaches_start: bool
    committed_us: int | None = None
    last_applied_record: int | None = None
    last_rows_record: int | None = None
    newest_us: int | None = None
    watermark_us: int | None = None
    partitions: tuple[Partition, ...] = ()
    due: WindowShown | None = None
    first: WindowShown | None = None
    complete_from_us: int | None = None
    quarantined: str | None = None
    failure: str | None = None
    driver_runs: bool | None = None
    sink_record: int | None = None
    sink_errors: tuple[str, ...] = ()
    upstream: dict[str, str] = {}
    dead_letters: dict[str, str] = {}
    dead_reasons: dict[str, int] = {}

    def __str__(self) -> str:
        """The report of `millpond why`."""
        return self.text

    def _repr_html_(self) -> str:
        """How a notebook shows the report."""
        return f"<pre>{escape(self.text)}</pre>"
