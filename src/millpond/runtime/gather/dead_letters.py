"""Dead letters: separates records that did not parse from events, counts them for every query, and stores them.

Spark delivers them as rows whose `stream` is `column_layout.DEAD`, with their details in a struct in the last column of
the frame; further copies of the same record have no struct. A row of a stream that has such a struct is an event whose
computed time is NULL: it is stored once, remains an event, and is counted where it is dead.

In a packet dead letters are one Arrow IPC stream, lz4. The fold writes them as a section of kind `dead`, which a
follower publishes.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Mask
from millpond.errors import SourceError
from millpond.log.records import EpochRecord, Offsets
from millpond.model.stream import DEAD_LETTER, FAIL, LABELLED_PARTITION
from millpond.plan.groups.plan import Plan
from millpond.runtime.packets.packet import Header, SourceFates, encode_packet
from millpond.runtime.packets.row_batches import RowBatch, rows_stream
from millpond.runtime.task.column_layout import DEAD, LETTER_COLUMN, ReadLayout, StreamLayout
from millpond.runtime.task.counters import WHOLE_POND, Counters, Counts, stream_counts
from millpond.runtime.task.task_values import GatherTask

EPOCH = "_epoch"
"""Column of a dead letter: the record that wrote it."""

LIMIT_BYTES = 16 << 20
"""The size of held dead letters in bytes beyond which they are sent."""
_MALFORMED = "malformed"


class DeadLetters:
    """Separates dead letters from the batches that one task reads."""

    def __init__(self, task: GatherTask) -> None:
        self._task = task
        self._policies = {stream: policy for stream, policy, _ in task.layout.malformed}
        self._buffered: list[pa.RecordBatch] = []
        self._size = self._sent = 0
        self._last: tuple[object, ...] = (None,) * 4

    def alive(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch | None]:
        """The batches without dead letters, which are held for `packets`; None when they exceed `LIMIT_BYTES`.

        Raises:
            SourceError: a record of a stream with the policy `fail` is malformed.
        """
        if not self._policies:
            yield from batches
            return
        for batch in batches:
            if batch.schema.names[-1] != LETTER_COLUMN:
                yield batch
                continue
            letters = batch.column(batch.num_columns - 1)
            dead = np.asarray(batch.column(0)) == DEAD
            if letters.null_count < len(letters):
                self._hold(letters, dead)
            alive = batch.filter(pa.array(~dead)) if dead.any() else batch
            if alive.num_rows:
                yield alive
            if self._size > LIMIT_BYTES:
                yield None

    def packets(self, partition: int) -> Iterator[tuple[int, bytes]]:
        """The held dead letters, one packet per stream, as (instance, bytes)."""
        if not self._buffered:
            return
        rows = pa.Table.from_batches(self._buffered).combine_chunks()
        self._buffered, self._size, self._sent = [], 0, self._sent + 1
        for stream in pc.unique(rows["stream"]).to_pylist():
            mine = rows.filter(pc.equal(rows["stream"], stream))
            header = Header(stream, partition, self._sent, {}, {}, malformed=True)
            _count(self._task, stream, mine.filter(mine[_MALFORMED]), header)
            mine = mine.drop_columns(["stream", _MALFORMED])
            kept = self._policies[stream] == DEAD_LETTER
            letters = rows_stream(mine.combine_chunks().to_batches()) if kept else b""
            yield partition % self._task.instances, encode_packet(header, [], b"", letters)

    def _hold(self, letters: pa.StructArray, dead: Mask) -> None:
        """Hold the dead letters of a batch; those of rows that are not `dead` are events without a computed time."""
        valid = letters.is_valid()
        rows = pa.RecordBatch.from_struct_array(letters.filter(valid))
        rows = rows.append_column(_MALFORMED, pa.array(dead).filter(valid))
        rows = rows.filter(pa.array(self._first_copies(rows)))
        for row in rows.select(["stream", "topic", "partition", "offset", "reason"]).to_pylist():
            if self._policies[row["stream"]] != FAIL:
                continue
            raise SourceError(
                f"A record of the stream {row['stream']} is malformed: topic {row['topic']}, partition"
                f" {row['partition']}, offset {row['offset']}: {row['reason']}.",
                "Nothing of this epoch was committed. Keep such records apart with TBLPROPERTIES ('dead.path' = '…'),"
                " or leave them out: 'malformed' = 'drop'. Stop the pond, add the property to the stream in its file,"
                " and start the pond again.",
            )
        if rows.num_rows:
            self._buffered.append(rows)
            self._size += rows.nbytes

    def _first_copies(self, rows: pa.RecordBatch) -> Mask:
        """The rows that are malformed or the first ones of their record, whose copies follow each other."""
        record = [rows[name].to_numpy(zero_copy_only=False) for name in ("stream", "topic", "partition", "offset")]
        before = [np.concatenate([[last], column[:-1]]) for last, column in zip(self._last, record, strict=True)]
        self._last = tuple(column[-1] for column in record)
        same = [column == other for column, other in zip(record, before, strict=True)]
        again: Mask = np.logical_and.reduce(same) & ~np.asarray(rows[_MALFORMED])
        return ~again


def _count(task: GatherTask, stream: str, rows: pa.Table, header: Header) -> None:
    """Count malformed records as read and as dead, for each query that would have read them."""
    count = rows.num_rows
    if not count:
        return
    counters = Counters({WHOLE_POND: Counts(events=count), stream_counts(stream): Counts(malformed=count)})
    header.counts = counters
    # files have no topic, and their counts are not kept by partition
    names = pc.binary_join_element_wise(rows["topic"], rows["partition"].cast(pa.string()), "-").drop_null()
    sources = {one["values"]: one["counts"] for one in pc.value_counts(names.combine_chunks()).to_pylist()}
    for layout in task.layout.streams:
        if stream in (layout.reads or (layout.name,)):
            label = f"{stream}:" if layout.partition == LABELLED_PARTITION else ""
            for prefix, queries in _readers(task.plan, layout):
                for query in queries:
                    counters.of(query).add(Counts(read=count, dead=count))
                of_each = {f"{prefix}{label}{name}": [number, 0, 0, number, 0] for name, number in sources.items()}
                if of_each:
                    header.fates.append(SourceFates(queries, of_each))


def _readers(plan: Plan, layout: StreamLayout) -> Iterator[tuple[str, list[str]]]:
    """The queries that read a stream, with the prefix of its partition names in their fates: for joins, the stream."""
    for group in plan.groups:
        if group.stream == layout.name:
            yield "", [one.query.name for one in group.queries]
    selections = [selection.name for selection in plan.selections_of(layout.name)]
    if selections:
        yield "", selections
    for log in plan.joins.logs_of(layout.name):
        for join, _ in plan.joins.users_of(log):
            yield f"{layout.name}/", [join.name]


def dead_letters(stream: str, batches: Sequence[pa.RecordBatch], epoch: int) -> Iterator[RowBatch]:
    """The dead letters of a stream with their epoch; `batches` are in the order of their packets."""
    for batch in batches:
        rows = batch.append_column(EPOCH, pa.array(np.full(batch.num_rows, epoch, np.int64)))
        yield RowBatch(stream, rows, "dead")


class Breaker:
    """Stops a driver if too many of the newest records of a stream are malformed.

    It considers the newest `WINDOW` records that this driver has read, or one epoch if that has more records.
    """

    WINDOW = 1000

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[int, int]]] = {}

    def check(self, layout: ReadLayout | None, record: EpochRecord) -> None:
        """Check an epoch before it is committed.

        Raises:
            SourceError: the ratio of malformed records in a stream is above its limit.
        """
        for stream, _, ratio in () if layout is None else layout.malformed:
            if ratio is None:
                continue
            if stream in record.start:
                read = records_between(record.start, record.end, stream)
            else:  # the start offsets are unknown, so count the events of all streams
                read = record.counts.get(WHOLE_POND, {}).get("events", 0)
            if not read:
                continue
            seen = self._seen.setdefault(stream, deque())
            seen.append((read, record.counts.get(stream_counts(stream), {}).get("malformed", 0)))
            while sum(count for count, _ in seen) - seen[0][0] >= self.WINDOW:
                seen.popleft()
            total, dead = (sum(column) for column in zip(*seen, strict=True))
            if dead > ratio * max(total, self.WINDOW):
                raise SourceError(
                    f"{dead} of the newest {total} records of the stream {stream} are malformed, more than the ratio"
                    f" {ratio:g} allows.",
                    "Mend the declaration or the producer, or raise 'dead.ratio'; nothing of this epoch was committed.",
                )


def records_between(start: Offsets, end: Offsets, stream: str) -> int:
    """The number of offsets that an epoch reads of a Kafka stream, without new partitions: their start is unknown.

    >>> records_between({"tx": '{"tx":{"0":3}}'}, {"tx": '{"tx":{"0":7,"1":5}}'}, "tx")
    4
    """
    old, new = (json.loads(offsets.get(stream) or "{}") for offsets in (start, end))
    return sum(
        offset - old.get(topic, {}).get(partition, offset)
        for topic, partitions in new.items()
        for partition, offset in partitions.items()
    )
