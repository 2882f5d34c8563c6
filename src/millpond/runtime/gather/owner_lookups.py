"""Look-ups of keyed tables by the owners of keys: the gather sends each event to the owner, whose fold gets the rows.

The owner of a key is the instance with the bucket of the key's own hash slot, as for upserts (`followers.upserts`). It
requests each key once, whichever tasks read the events, with one request per shard. The queries of a stream share its
look-up. With the rows, events are selected as in the gather.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays import Ints
from millpond.kernels.evaluate import Evaluator
from millpond.log.records import Fates
from millpond.model.selection import Selection, expressions_of
from millpond.placement.slots import buckets_of
from millpond.plan.options.keyed_lookups import own_conditions, read_by
from millpond.runtime.gather.select_rows import select_into_packet
from millpond.runtime.gather.stream_columns import StreamColumns
from millpond.runtime.joins.lookup_rows import key_texts, slots_of_keys
from millpond.runtime.packets.event_counts import ChunkCounts, Sources, add_fates, count_selected
from millpond.runtime.packets.row_batches import RowBatch, rows_stream
from millpond.runtime.rows.selected_rows import rows_from_packet
from millpond.runtime.task.column_layout import OwnerLookup, ReadColumn, StreamLayout
from millpond.runtime.task.counters import Counters
from millpond.runtime.task.task_values import FoldTask, GatherTask
from millpond.state.ports.requests import counted


def rows_by_instance(
    task: GatherTask, layout: StreamLayout, table: pa.RecordBatch, evaluator: Evaluator, sources: Sources | None,
    counts: ChunkCounts, partition: int,
) -> dict[int, bytes]:  # fmt: skip
    """What packets carry for the stateless queries over a stream, by instance: their rows, or events for owners."""
    if layout.lookup is not None:
        return events_for_owners(task, layout.lookup, layout, table, evaluator, counts, partition)
    selections, compared = task.plan.selections_of(layout.name), task.plan.compared_names
    rows = select_into_packet(selections, layout, table, evaluator, sources, counts, compared)
    return {} if rows is None else {partition % task.instances: rows_stream([rows])}


def events_for_owners(
    task: GatherTask, lookup: OwnerLookup, layout: StreamLayout, table: pa.RecordBatch, evaluator: Evaluator,
    counts: ChunkCounts, partition: int,
) -> dict[int, bytes]:  # fmt: skip
    """The events of a chunk that need their row, by the instance that looks it up, in the form of a packet.

    Events that every query leaves out, whatever their row is, are counted here. An event without a key goes to the
    instance that gets the other rows of the source partition.
    """
    selections = task.plan.selections_of(layout.name)
    left_out = np.ones(table.num_rows, bool)
    for where in {selection.where for selection in selections}:
        condition = own_conditions(where, lookup.names)
        if condition is None:
            left_out[:] = False
            break
        value = evaluator(condition)
        left_out &= ~value.data & ~value.null & ~value.error
    dropped = np.flatnonzero(left_out)
    if len(dropped):
        none = np.zeros(len(dropped), bool)
        sources = _sources(layout, StreamColumns(layout, table, dropped))
        count_selected(counts, [selection.name for selection in selections], none, none, sources)
    kept = np.flatnonzero(~left_out)
    if not len(kept):
        return {}
    columns = StreamColumns(layout, table, None if len(kept) == table.num_rows else kept)
    owners = _owners(task, lookup, [columns.raw(name) for name in lookup.keys], partition)
    names = [column.name for column in _sent(layout, lookup, selections)]
    sent = pa.RecordBatch.from_arrays([columns.raw(name) for name in names], names=names)
    found = {}
    for instance in np.unique(owners).tolist():
        own = owners == instance
        found[instance] = rows_stream([sent if own.all() else sent.filter(pa.array(own))])
    return found


def rows_of_packets(
    task: FoldTask, stream: str, batches: Sequence[pa.RecordBatch], counters: Counters, fates: Fates
) -> Iterator[RowBatch]:  # fmt: skip
    """The rows of the stateless queries over a stream; see `rows_of_owner` for those whose rows are looked up here."""
    layout = next((one for one in task.looked_up.streams if one.name == stream), None)
    if layout is None or layout.lookup is None:
        return rows_from_packet(task.plan.selections_of(stream), batches, task.plan.compared_names)
    return rows_of_owner(task, layout, layout.lookup, batches, counters, fates)


def rows_of_owner(
    task: FoldTask, layout: StreamLayout, lookup: OwnerLookup, batches: Sequence[pa.RecordBatch], counters: Counters,
    fates: Fates,
) -> Iterator[RowBatch]:  # fmt: skip
    """The rows of the queries over a stream, from the events that an instance got in its packets.

    The fates of these events are added to `counters` and `fates`, and the requests to the store to `counters`.

    Raises:
        SourceError, VanishedError, StoreError: as `KeyedReader`.
    """
    keys = [pa.chunked_array([batch.column(name) for batch in batches]).combine_chunks() for name in lookup.keys]
    codes, first = _distinct(keys)
    before = counted()
    found = lookup.read(*(key.take(first) for key in keys))
    sent = counted().since(before)
    counters.pond.requests += sent.sent
    counters.pond.local_requests += sent.local
    selections, compared = task.plan.selections_of(layout.name), task.plan.compared_names
    selected, begin = list[pa.RecordBatch](), 0
    for batch in batches:
        rows = found.take(pa.array(codes[begin : begin + batch.num_rows]))
        begin += batch.num_rows
        whole, placed = _with_rows(layout, lookup, batch, rows)
        columns, counts = StreamColumns(placed, whole), ChunkCounts(Counters(), [])
        evaluator = Evaluator(columns, whole.num_rows, task.parameters)
        taken = select_into_packet(selections, placed, whole, evaluator, _sources(layout, columns), counts, compared)
        counters.add(counts.counters)
        add_fates(fates, counts.fates)
        selected += [] if taken is None else [taken]
    yield from rows_from_packet(selections, selected, compared)


def _sent(layout: StreamLayout, lookup: OwnerLookup, selections: Sequence[Selection]) -> list[ReadColumn]:
    """The columns that are sent to owners: what queries read, the key, and the source partition."""
    needed = {*lookup.keys, layout.partition}.union(
        *(read_by(part) for selection in selections for part in expressions_of(selection))
    )
    return [column for column in layout.columns if column.name in needed]


def _owners(task: GatherTask, lookup: OwnerLookup, keys: Sequence[pa.Array], partition: int) -> Ints:
    """The instance that looks up the row of each event."""
    texts = key_texts(lookup.table, keys).dictionary_encode()
    buckets = buckets_of(slots_of_keys(texts.dictionary), len(task.owners))
    owners = np.append(np.array(task.owners)[buckets], partition % task.instances)
    found: Ints = owners[pc.fill_null(texts.indices, len(owners) - 1).to_numpy()]
    return found


def _distinct(keys: Sequence[pa.Array]) -> tuple[Ints, pa.Array]:
    """The number of each event's key among the distinct keys, and the position of one event with each of them."""
    codes = np.zeros(len(keys[0]), np.int64)
    first = codes[:0]
    for key in keys:
        encoded = pc.dictionary_encode(key, null_encoding="encode")
        pairs = codes * len(encoded.dictionary) + np.asarray(encoded.indices)
        _, first, codes = np.unique(pairs, return_index=True, return_inverse=True)
    return codes, pa.array(first)


def _with_rows(
    layout: StreamLayout, lookup: OwnerLookup, batch: pa.RecordBatch, rows: pa.StructArray
) -> tuple[pa.RecordBatch, StreamLayout]:
    """The events with the columns of their rows, and their layout."""
    by_name = {column.name: column for column in layout.columns}
    arrays, placed = list(batch.columns), [by_name[name] for name in batch.schema.names]
    for column in lookup.columns:
        array = rows.field(column.found)
        if column.foreign:
            array = pa.StructArray.from_arrays([array], names=["v"], mask=array.is_null())
        arrays.append(array)
        placed.append(ReadColumn(column.name, 0, column.type, column.foreign))
    columns = tuple(column._replace(position=place) for place, column in enumerate(placed))
    whole = pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])
    return whole, layout._replace(columns=columns, lookup=None)


def _sources(layout: StreamLayout, columns: StreamColumns) -> Sources | None:
    """The source partitions of events, if the stream has them."""
    if layout.partition is None:
        return None
    partition = columns[layout.partition].data
    return Sources.of(partition if isinstance(partition, pa.Array) else pa.array(partition).cast(pa.string()))
