"""Reads a source again for a query that is added with a backfill.

Whether an event is late is decided as in the epoch that first read it, by the times that the log records. The events
are stored like retained events (`runtime.gather.retained_events`), in files of their own, until the change that names
the files is recorded. The next epoch replays them (`runtime.inputs.replay`).

    base    the time from which the event's lateness was decided: the largest earlier time in its source partition, or
            the watermark base of its stream when its epoch began, whichever is later; for a stream whose events have
            no order always the latter
    timed   whether the event counted: false if its time was too far ahead of the largest time of its epoch
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, Mask
from millpond.errors import CorruptError
from millpond.kernels.columns import arrow_type
from millpond.log.port import Log
from millpond.log.records import EpochRecord, Receipt, Section, decode
from millpond.model.types import FARTHEST_US
from millpond.runtime.gather.lateness import ANY_PARTITION
from millpond.runtime.gather.retained_events import ALWAYS_LATE, BASE, column_name
from millpond.runtime.gather.stream_columns import StreamColumns
from millpond.runtime.packets.row_batches import rows_stream
from millpond.runtime.task.column_layout import ReadColumn, StreamLayout
from millpond.state.layout.event_log import OFFSET, PARTITION, TIME
from millpond.state.ports.files import Files

STAGED = "backfill"
"""The subfolder of a pond's folder that holds files until the change that names them is recorded; a claim clears it."""

FILE_ROWS = 1 << 20
"""The target number of events per file: a file is written once this many are buffered."""

_LONG_AGO = np.iinfo(np.int64).min


class PastEpoch(NamedTuple):
    """The offsets of a stream that an epoch read, and the event times before and after it.

    `start` and `end`: Spark's offsets as JSON, "" before the first. `base_us`, `floor_us`: base and floor of the
    watermark when the epoch began. `before`, `newest`: the largest times before and after it, by source partition.
    """

    n: int
    start: str
    end: str
    base_us: int | None
    floor_us: int | None
    before: dict[str, int]
    newest: dict[str, int]


class Past:
    """The epochs that have read one stream, in the order of the log; `stream` is its name in the records."""

    def __init__(self, log: Log, stream: str) -> None:
        self._log, self._stream = log, stream
        self._next = 0
        self._times: dict[str, int] = {}
        self._floor_us: int | None = None

    def upto(self, n: int) -> list[PastEpoch]:
        """The epochs up to record `n` that no earlier call returned.

        Raises:
            CorruptError: a record is missing or damaged.
        """
        epochs: list[PastEpoch] = []
        for number in range(self._next, n + 1):
            data = self._log.read(number)
            if data is None:
                raise CorruptError(f"Record {number} is missing in {self._log.where}.", "Restore the pond's folder.")
            record = decode(data, self._log.describe(number)).record
            if isinstance(record, EpochRecord):
                epochs += self._epoch(record)
        self._next = max(self._next, n + 1)
        return epochs

    def _epoch(self, record: EpochRecord) -> Iterator[PastEpoch]:
        start, end = record.start.get(self._stream, ""), record.end.get(self._stream, "")
        before, floor = dict(self._times), self._floor_us
        for partition, time in record.max_time.get(self._stream, {}).items():
            self._times[partition] = max(time, self._times.get(partition, time))
        new_floor = record.watermark_floor.get(self._stream)
        if new_floor is not None:
            self._floor_us = new_floor if floor is None else max(floor, new_floor)
        if start != end:
            base = before.get(ANY_PARTITION)
            yield PastEpoch(record.n, start, end, base, floor, before, dict(self._times))


class RereadEvents(NamedTuple):
    """The events to read again, and how the epoch of each event is found.

    If `file` is set, it is the position of the column with the event's file, and `files` maps each file to its epoch.
    Otherwise the stream has an order, and the epoch follows from the event's offset: `ends` has for each source
    partition the (exclusive) end offset of every epoch. Epochs are positions in `epochs`.
    """

    layout: StreamLayout
    event_time: str
    epochs: tuple[PastEpoch, ...]
    file: int | None = None
    files: Mapping[str, int] = {}
    ends: Mapping[str, Sequence[int]] = {}


class Staged(msgspec.Struct, frozen=True):
    """A finished file of events: its name in the pond's folder, and the facts that its receipt states.

    `size`: bytes; `digest`: SHA-256 in hex; `first` and `last`: the half-open interval of event times.
    """

    file: str
    size: int
    digest: str
    rows: int
    first: int
    last: int


class PastJudge:
    """Decides lateness as in the epochs that first read the events; keeps the largest times from chunk to chunk."""

    def __init__(self, epochs: Sequence[PastEpoch]) -> None:
        self._epochs = epochs
        self._base = _column(epoch.base_us for epoch in epochs)
        self._floor = _column(epoch.floor_us for epoch in epochs)
        self._newest: dict[str, int] = {}

    def judge(
        self, times_us: Ints, null: Mask, epochs: Ints, order: tuple[pa.Array, Ints] | None
    ) -> tuple[Mask, Ints]:  # fmt: skip
        """Returns `timed` and `base` of each event (see the module); `epochs`: the position of each event's epoch.

        `order`: the source partition and offset of each event; None if the stream has no order.
        """
        timed = ~null & (times_us >= -FARTHEST_US) & (times_us <= FARTHEST_US)
        if order is None:
            timed &= times_us <= _column(epoch.newest.get(ANY_PARTITION) for epoch in self._epochs)[epochs]
            base = self._base[epochs]
        else:
            base = np.full(len(times_us), _LONG_AGO)
            encoded = order[0].dictionary_encode()
            codes = np.asarray(encoded.indices)
            for code, name in enumerate(encoded.dictionary.to_pylist()):
                rows = np.flatnonzero(codes == code)
                rows = rows[np.argsort(order[1][rows], kind="stable")]
                timed[rows] &= times_us[rows] <= self._of(name, "newest")[epochs[rows]]
                base[rows] = self._running(name, np.where(timed[rows], times_us[rows], _LONG_AGO), epochs[rows])
            base = np.maximum(base, self._base[epochs])
        return timed, np.where(times_us <= self._floor[epochs], ALWAYS_LATE, base)

    def _of(self, partition: str, field: str) -> Ints:
        return _column(getattr(epoch, field).get(partition) for epoch in self._epochs)

    def _running(self, name: str, times_us: Ints, epochs: Ints) -> Ints:
        """The largest time before each event of a source partition; the events are in the partition's order."""
        maxima = np.maximum.accumulate(np.concatenate([[self._newest.get(name, _LONG_AGO)], times_us]))
        self._newest[name] = int(maxima[-1])
        before: Ints = np.maximum(maxima[:-1], self._of(name, "before")[epochs])
        return before


def _column(values: Iterable[int | None]) -> Ints:
    return np.array([_LONG_AGO if value is None else value for value in values], np.int64)


def stage_events(
    events: RereadEvents, batches: Iterable[pa.RecordBatch], files: Files, prefix: str
) -> Iterator[Staged]:  # fmt: skip
    """Writes the events of `batches`, which `events` describes, to files whose names begin with `prefix`.

    Raises:
        CorruptError: a batch has events that no epoch has read.
    """
    judge, buffered, rows, number = PastJudge(events.epochs), list[pa.RecordBatch](), 0, 0
    for table in batches:
        batch = _events_to_stage(events, table, judge)
        if not batch.num_rows:
            continue
        buffered.append(batch)
        rows += batch.num_rows
        if rows >= FILE_ROWS:
            yield _write_file(buffered, files, f"{prefix}-{number}.arrow")
            buffered, rows, number = [], 0, number + 1
    if buffered:
        yield _write_file(buffered, files, f"{prefix}-{number}.arrow")


def _events_to_stage(events: RereadEvents, table: pa.RecordBatch, judge: PastJudge) -> pa.RecordBatch:
    # records that did not parse belong to no stream
    table = table.filter(pa.array(np.asarray(table.column(0)) == 0))
    layout = events.layout
    columns = StreamColumns(layout, table)
    order = None
    if layout.partition is not None and layout.offset is not None:
        order = columns.raw(layout.partition).cast(pa.string()), columns[layout.offset].data
    times = columns[events.event_time]
    null = np.broadcast_to(times.null, table.num_rows)
    timed, base = judge.judge(times.data, null, _epochs_of(events, table, order), order)
    rows = np.flatnonzero(timed)
    places = pa.array(rows)
    staged = {TIME: pa.array(times.data[rows]), BASE: pa.array(base[rows])}
    for column in layout.columns:
        if column.position != events.file:
            raw = columns.raw(column.name).take(places)
            staged[column_name(column.name)] = raw if column.foreign else raw.cast(arrow_type(column.type))
    if order is not None:
        staged[PARTITION], staged[OFFSET] = order[0].take(places), pa.array(order[1][rows])
    return pa.RecordBatch.from_arrays(list(staged.values()), list(staged))


def _epochs_of(events: RereadEvents, table: pa.RecordBatch, order: tuple[pa.Array, Ints] | None) -> Ints:
    """The position of the epoch that read each event."""
    if events.file is None and order is not None:
        positions = np.zeros(table.num_rows, np.int64)
        encoded = order[0].dictionary_encode()
        codes = np.asarray(encoded.indices)
        for code, name in enumerate(encoded.dictionary.to_pylist()):
            rows = codes == code
            positions[rows] = np.searchsorted(np.array(events.ends[name]), order[1][rows], "right")
        return positions
    assert events.file is not None
    encoded = table.column(events.file).dictionary_encode()
    try:
        numbers = [events.files[path_of(name)] for name in encoded.dictionary.to_pylist()]
    except KeyError as error:
        raise CorruptError(f"No epoch has read {error.args[0]}.", "Restore Spark's checkpoint.") from error
    epochs: Ints = np.array(numbers, np.int64)[np.asarray(encoded.indices)]
    return epochs


def path_of(name: str) -> str:
    """Normalizes the address of a file: Hadoop writes `file:/a` and `file:///a` for one file.

    >>> path_of("file:/a/b"), path_of("file:///a/b"), path_of("s3a://bucket/b")
    ('file:/a/b', 'file:/a/b', 's3a://bucket/b')
    """
    scheme, _, rest = name.partition(":")
    return f"{scheme}:/{rest.lstrip('/')}" if rest.startswith("///") else name


def _write_file(batches: Sequence[pa.RecordBatch], files: Files, name: str) -> Staged:
    data = rows_stream(batches)
    files.hand_over(name, [data])
    times = np.concatenate([np.asarray(batch.column(TIME)) for batch in batches])
    digest = hashlib.sha256(data).hexdigest()
    return Staged(name, len(data), digest, len(times), int(times.min()), int(times.max()) + 1)


def brought(
    files: Files, staged: Sequence[Staged], version: str, columns: Sequence[ReadColumn], n: int
) -> tuple[Receipt, ...]:  # fmt: skip
    """Gives staged files their names as deltas of record `n`, and returns the receipts that the record must list.

    `version`: the query version that starts from these events. If the record is never written, pruning deletes the
    files.
    """
    column_text = msgspec.json.encode(list(columns)).decode()
    receipts, renamed = [], dict[str, str]()
    for number, one in enumerate(staged):
        token = one.file.split("/")[1]
        name = f"delta/{n:020d}/{number}-{STAGED}-{token}.arrow"
        renamed[one.file] = name
        info: dict[str, int | str | list[int]] = {"first": one.first, "last": one.last, "columns": column_text}
        section = Section("backfill", version, 0, one.size, one.rows, info)
        receipts.append(Receipt(number, token, one.size, one.digest, name, 0, (section,)))
    files.rename(renamed)
    return tuple(receipts)


def columns_of_section(text: object) -> tuple[ReadColumn, ...]:
    """The columns of the stream in a section of a backfill file, decoded from the `columns` entry of its info."""
    return msgspec.json.decode(str(text), type=tuple[ReadColumn, ...])
