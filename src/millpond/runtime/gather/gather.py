"""Gather: turns the events of one source partition into packets, one per instance, pre-aggregated by key and slice.

Events are taken in chunks of bounded size. For each group of queries on their stream, lateness, key codes, slices,
filters, arguments and exact partial sums are computed once; equal expressions of different queries are evaluated
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, Mask, places_of
from millpond.clock import lap_us, now_us
from millpond.faults import reached
from millpond.kernels.columns import Array
from millpond.kernels.evaluate import Evaluator
from millpond.model.expressions import Expression
from millpond.plan.groups.edges import slices_of
from millpond.plan.groups.filter_ladders import conditions_of
from millpond.plan.groups.joins import SideLog
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.aggregates.filter_sets import Bundle, classify, ranks_of_bundles, split_slices
from millpond.runtime.aggregates.partials import Partials, Rolled, Rows, coarser, piece_of_cells, roll_up
from millpond.runtime.event_log.select_events import LoggedRows
from millpond.runtime.event_log.tallies import TalliedRows
from millpond.runtime.gather.chunk_keys import ChunkKeys, Owned, keys_of_sets, only_used, owned_keys
from millpond.runtime.gather.dead_letters import DeadLetters
from millpond.runtime.gather.late_packets import LateCollector
from millpond.runtime.gather.lateness import Judge, Judged, judged_times, late_beside, late_classes
from millpond.runtime.gather.owner_lookups import rows_by_instance
from millpond.runtime.gather.retained_events import dealt_out, kept_rows
from millpond.runtime.gather.session_atoms import atoms_of_rows, cut_atoms
from millpond.runtime.gather.stream_columns import StreamColumns
from millpond.runtime.gather.text_events import TextEvents
from millpond.runtime.gather.top_rows import keep_first_rows
from millpond.runtime.joins.keyless_grid import dealt_events
from millpond.runtime.packets.event_counts import ChunkCounts, Passed, Sources, count_rows, count_side
from millpond.runtime.packets.packet import GroupPart, Header, encode_packet
from millpond.runtime.packets.raw_columns import is_smaller_raw, raw_rows
from millpond.runtime.task.column_layout import TICK, StreamLayout
from millpond.runtime.task.counters import WHOLE_POND, Counters, Counts
from millpond.runtime.task.task_values import GatherTask, TimeLine
from millpond.spans import Spans
from millpond.state.keys.keys import plain
from millpond.state.layout.cells import Slices

CHUNK_ROWS = 1 << 19
"""Rows taken at once: bounds memory, and keeps every partial of an exact sum below 2**53."""

CHUNK_BYTES = 1 << 28
"""Batches are not joined beyond this size, as a text column holds at most two gigabytes."""


def gather(task: GatherTask, batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[tuple[int, bytes]]:
    """The packets of a source partition, as (instance, bytes).

    Every instance gets at least one packet, so all instances see the same largest event time.
    """
    reached("gather.start")
    sequence = 0
    judges: dict[str, Judge] = {}
    dead, texts, spans = DeadLetters(task), TextEvents(task.layout), Spans(f"gather {partition}")
    read = _chunks(dead.alive(texts.parsed(spans.timed("wait for rows", batches))))
    for table in spans.timed("read", read):
        if table is None:
            yield from dead.packets(partition)
            continue
        position = int(table.column(0)[0].as_py())
        if position == TICK:
            continue
        stream = task.layout.streams[position]
        if stream.name not in judges:
            line = task.lines.get(stream.name, TimeLine())
            ahead = None if task.now_us is None or line.max_ahead_us is None else task.now_us + line.max_ahead_us
            judges[stream.name] = Judge(line, ahead)
        size = table.nbytes + texts.take_bytes()
        yield from _gather_chunk(task, stream, table, judges[stream.name], partition, sequence, size, spans)
        sequence += 1
    yield from dead.packets(partition)
    if not sequence:
        for instance in range(task.instances):
            yield instance, encode_packet(Header("", partition, 0, {}, {}), [])


def _chunks(batches: Iterable[pa.RecordBatch | None]) -> Iterator[pa.RecordBatch | None]:
    """Batches joined or cut to at most CHUNK_ROWS rows, joined to at most CHUNK_BYTES, each of one stream.

    Several streams share these limits. A None is passed on at once.
    """
    buffered: dict[int, list[pa.RecordBatch]] = {}
    rows = size = 0
    for read_batch in batches:
        if read_batch is None:
            yield None
            continue
        for batch in _runs(read_batch):
            added = batch.nbytes  # which is slow for hundreds of columns
            if buffered and (rows + batch.num_rows > CHUNK_ROWS or size + added > CHUNK_BYTES):
                yield from map(_concatenated, buffered.values())
                buffered, rows, size = {}, 0, 0
            buffered.setdefault(batch.column(0)[0].as_py(), []).append(batch)
            rows, size = rows + batch.num_rows, size + added
    yield from map(_concatenated, buffered.values())


def _runs(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Runs of at most CHUNK_ROWS rows of one stream; the rows of each stream keep their order.

    Where a source has several derived streams, Spark makes a copy of a row for each of them, one after the other.
    """
    streams = np.asarray(batch.column(0))
    changes = (np.flatnonzero(streams[1:] != streams[:-1]) + 1).tolist()
    if len(changes) >= len(np.unique(streams)):
        order = np.argsort(streams, kind="stable")
        batch, streams = batch.take(pa.array(order)), streams[order]
        changes = (np.flatnonzero(streams[1:] != streams[:-1]) + 1).tolist()
    for first, end in zip([0, *changes], [*changes, len(streams)], strict=True):
        for start in range(first, end, CHUNK_ROWS):
            yield batch.slice(start, min(CHUNK_ROWS, end - start))


def _concatenated(buffered: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(buffered) == 1:
        return buffered[0]
    if any(batch.schema != buffered[0].schema for batch in buffered):  # only some have dictionaries
        names = buffered[0].schema.names
        buffered = [pa.RecordBatch.from_arrays([plain(column) for column in batch], names=names) for batch in buffered]
    return pa.Table.from_batches(buffered).combine_chunks().to_batches()[0]


def _gather_chunk(
    task: GatherTask, stream: StreamLayout, table: pa.RecordBatch, judge: Judge, partition: int, sequence: int,
    size: int, spans: Spans,
) -> Iterator[tuple[int, bytes]]:
    """Yields each instance and its packet of a chunk of one stream; event times are judged once, when first needed."""
    began, began_us = lap_us(), now_us()
    columns = StreamColumns(stream, table)
    evaluator = Evaluator(columns, table.num_rows, task.parameters, columns.encoded)
    floor = task.lines.get(stream.name, TimeLine()).mark.floor_us
    parts: list[list[GroupPart]] = [[] for _ in range(task.instances)]
    pond_counts = Counts() if stream.chained else Counts(events=table.num_rows, bytes_read=size)
    counts = ChunkCounts(Counters({WHOLE_POND: pond_counts}), [])
    late_collector = LateCollector(task.late.get(stream.name, ()))
    late_rows = b""
    judged: Judged | None = None
    order = _order(stream, columns)
    sources = None if order[0] is None else Sources.of(order[0])
    for group in (one for one in task.plan.groups if one.stream == stream.name):
        group_began, timed, withheld = lap_us(), np.ones(table.num_rows, bool), dict[str, int]()
        times_us, late = np.zeros((2, table.num_rows), np.int64)  # without an event time, no event is late
        if group.event_time:
            times = columns[group.event_time]
            if judged is None:  # a stream has one event-time column
                judged = judge.judge(times.data, times.null, *order)
            timed, times_us = judged.timed, times.data
            late = late_classes(judged_times(times_us, group.late_by), judged, floor, group.delays_us)
        passed = group_parts(task, group, evaluator, timed, times_us, late, order, parts, withheld)
        count_rows(counts, group, evaluator, timed, late, sources, passed)
        counts.withhold(withheld)
        late_collector.add_group(group, evaluator, late)
        counts.counters[group.id] = Counts(group_us=lap_us() - group_began)
    for log in task.plan.joins.logs_of(stream.name):
        times = columns[log.event_time]
        if judged is None:
            judged = judge.judge(times.data, times.null, *order)
        own = late_classes(times.data, judged, floor, log.delays_us)
        late = late_beside(own, times.data, task.lines, log.late_beside)
        chosen = Rows(evaluator, judged.timed & (late < len(log.delays_us)))
        _gather_side(task, log, chosen, times.data, late, order, parts)
        for join, side in task.plan.joins.users_of(log):
            in_time = late <= log.delays_us.index(join.sides[side].delay_us)
            count_side(counts, join, side, evaluator, judged.timed, in_time, sources)
    if judged is None and stream.name in task.plan.watched:  # a query that is added later needs them
        times = columns[task.plan.watched[stream.name]]
        judged = judge.judge(times.data, times.null, *order)
    retained = task.plan.retained_of(stream.name)
    if judged is not None and retained is not None:
        events = kept_rows(retained, stream, table, columns[retained.event_time].data, judged, floor, order)
        dealt_out(retained, events, parts)
    if judged is not None:
        late_rows = late_collector.packed(stream, table, judged)
    selected = rows_by_instance(task, stream, table, evaluator, sources, counts, partition)
    pond_counts.gather_us = lap_us() - began
    spans.add("gather", began_us)
    for instance in range(task.instances):
        header = Header(stream.name, partition, sequence, {} if judged is None else judged.newest_us, {})
        if instance == 0:
            header.counts, header.fates, header.spans = *counts, spans.take()
        late = late_rows if instance == partition % task.instances else b""
        yield instance, encode_packet(header, parts[instance], late, selected.get(instance, b""))


def _order(stream: StreamLayout, columns: StreamColumns) -> tuple[pa.Array | None, Ints | None]:
    """The source partition (as text) and the offset of each event; None if the stream does not have them."""
    if stream.partition is None:
        return None, None
    partition = columns[stream.partition].data
    text = partition if isinstance(partition, pa.Array) else pa.array(partition).cast(pa.string())
    return text, None if stream.offset is None else columns[stream.offset].data


def _longest_delays(group: GroupPlan) -> dict[Expression | None, int]:
    """The longest delay of the queries with each presence filter, as a position among the delays of the group."""
    longest: dict[Expression | None, int] = {}
    for plan in group.queries:
        condition = group.measures[plan.presence].filter
        longest[condition] = max(plan.delay, longest.get(condition, 0))
    return longest


def _needed_rows(group: GroupPlan, rows: Rows, late: Ints) -> Mask:
    """The rows that some query of the group takes, as a mask over all rows.

    The keys of other rows are neither shuffled nor added to the dictionary.
    """
    classes = rows.take(late)
    needed = np.zeros(rows.count, bool)
    for condition, delay in _longest_delays(group).items():
        in_time = classes <= delay
        passed = rows.passed(rows.filter_of(condition))
        needed |= in_time if passed is None else in_time & passed
    if rows.index is None:
        return needed
    chosen = np.zeros(rows.evaluator.rows, bool)
    chosen[rows.index[needed]] = True
    return chosen


def _needed_bundles(group: GroupPlan, bundles: Sequence[Bundle], late_rows: Ints) -> list[Bundle]:
    """Like `_needed_rows`, for rows classified by the filters they pass; a row stays in all its bundles or in none."""
    longest = _longest_delays(group)
    delays = [longest.get(condition, -1) for condition in conditions_of(group.ladders)]
    needed = np.zeros(len(late_rows), bool)
    for bundle in bundles:
        needed[bundle.rows] |= bundle.most(delays, -1)[bundle.codes] >= late_rows[bundle.rows]
    if needed.all():
        return list(bundles)
    masks = [needed[bundle.rows] for bundle in bundles]
    cut_bundles = [b._replace(rows=b.rows[keep], codes=b.codes[keep]) for b, keep in zip(bundles, masks, strict=True)]
    return [bundle for bundle in cut_bundles if len(bundle.rows)]


def group_parts(
    task: GatherTask, group: GroupPlan, evaluator: Evaluator, timed: Mask, times_us: Ints, late: Ints,
    order: tuple[pa.Array | None, Ints | None], parts: list[list[GroupPart]], withheld: dict[str, int],
) -> Passed | None:  # fmt: skip
    """Add the rows of a chunk that a group takes to each instance's packet; returns the same as `_gather_group`.

    `withheld` gets for each query the number of rows that are left out because HAVING withholds them in any case.
    """
    chosen = Rows(evaluator, timed & (late < len(group.delays_us)))
    if not group.signed and group.deduplicated is None:  # other events may repeat an event that no query takes
        chosen = Rows(evaluator, _needed_rows(group, chosen, late))
    return _gather_group(task, group, chosen, times_us, late, order, parts, withheld)


def _gather_group(
    task: GatherTask, group: GroupPlan, rows: Rows, times_us: Ints, late: Ints,
    order: tuple[pa.Array | None, Ints | None], parts: list[list[GroupPart]], withheld: dict[str, int],
) -> Passed | None:  # fmt: skip
    """Add the group's part to each instance's packet; returns how many events passed each filter, if already known."""
    if not rows.count:
        return None
    times, late_rows = rows.take(times_us), rows.take(late)
    logged = None if group.events is None else LoggedRows(group.events, rows, times_us, late, order)
    keys = keys_of_sets(task, group, rows)
    if group.gaps_us:
        for one in keys:
            _add_atoms(group, rows, one, times, late_rows, logged, parts)
        return None
    if logged is not None and (group.deduplicated is not None or not group.celled):
        withheld |= keep_first_rows(group, logged, keys[0].codes, times, late_rows)
        for one in keys:
            _add_events(group, logged, one.owned, one.codes, parts)
        return None
    starts_us, ends_us, slices = slices_of(group.cuts, times)
    tallied = TalliedRows(group.tallies, rows, starts_us[slices], late_rows) if group.tallies else None
    class_count = int(late_rows.max()) + 1
    if class_count > 1:
        slices = slices * class_count + late_rows
    slice_count = len(starts_us) * class_count
    all_slices = Slices(
        np.repeat(starts_us, class_count),
        np.repeat(ends_us, class_count),
        np.tile(np.arange(class_count), len(starts_us)),
    )
    for individual in (logged, tallied):
        if individual is not None:
            for one in keys:
                _add_events(group, individual, one.owned, one.codes, parts)
    if not group.signed:
        _add_sets(group, rows, keys, slices, all_slices, parts)
        return None
    passed = np.zeros((class_count, len(group.filters)), np.int64)
    for one in keys:
        cells, _ = places_of(one.codes * slice_count + slices, one.count * slice_count)
        bundles = classify(rows, group.ladders, len(cells))
        for bundle in bundles if one is keys[0] else ():  # events count once, however many grouping sets there are
            passed += bundle.counts(late_rows, class_count)
        needed = _needed_bundles(group, bundles, late_rows)
        _add_signed(group, rows, needed, one.owned, one.codes, slices, all_slices, parts)
    return dict(zip(conditions_of(group.ladders), passed.cumsum(axis=0).T.tolist(), strict=True))


def _add_atoms(
    group: GroupPlan, rows: Rows, keys: ChunkKeys, times_us: Ints, late: Ints, logged: LoggedRows | None,
    parts: list[list[GroupPart]],
) -> None:  # fmt: skip
    """Add the parts of a group of session windows to each instance's packet."""
    if logged is not None:
        _add_events(group, logged, keys.owned, keys.codes, parts)
    atoms = atoms_of_rows(group, rows, keys.codes, times_us, late)
    for own in keys.owned:
        piece = cut_atoms(atoms, own.first, own.end)
        if piece is not None:
            parts[own.instance].append(own.part(group.id, piece))


def _add_sets(
    group: GroupPlan, rows: Rows, sets: Sequence[ChunkKeys], slices: Ints, all_slices: Slices,
    parts: list[list[GroupPart]],
) -> None:  # fmt: skip
    """Add rows with `slices` (positions in `all_slices`) under the keys of each grouping set.

    The cells of a coarser set are rolled up from those of a finer one. The finest sets are sent as raw rows if these
    are smaller than cells.
    """
    slice_count = len(all_slices.start_us)
    rolled: dict[int, Rolled] = {}
    for keys in sets:
        if keys.finer is not None and keys.of_finer is not None:
            rolled[id(keys)] = coarser(rolled[id(keys.finer)], keys.of_finer, slice_count)
            _add_cells(group, rolled[id(keys)], keys.owned, all_slices, parts)
            continue
        partials = Partials(rows, keys.codes * slice_count + slices, keys.count * slice_count)
        raw = is_smaller_raw(group, rows, keys.count, len(partials.ids))
        if raw:
            _add_raw(group, rows, keys.owned, keys.codes, slices, all_slices, parts)
        if not raw or any(other.finer is keys for other in sets):
            rolled[id(keys)] = roll_up(group, partials)
        if not raw:
            _add_cells(group, rolled[id(keys)], keys.owned, all_slices, parts)


def _add_signed(
    group: GroupPlan, rows: Rows, bundles: Sequence[Bundle], owned: Sequence[Owned], codes: Ints, slices: Ints,
    all_slices: Slices, parts: list[list[GroupPart]],
) -> None:  # fmt: skip
    """Add the rows of bundles, as cells or as raw rows; one row may be in several bundles."""
    partials_of_bundles, filters = [], [name for ladder in group.ladders for name in ladder.filters]
    for bundle in bundles:
        split = split_slices(all_slices, slices[bundle.rows], bundle, filters)
        used_keys, used_codes = only_used(owned, codes[bundle.rows])
        count = len(split.slices.start_us)
        partials = Partials(rows.at(bundle.rows), used_codes * count + split.rows, used_keys[-1].end * count)
        partials_of_bundles.append((partials, used_keys, split.slices))
    if not partials_of_bundles:
        return
    in_bundle = np.zeros(rows.count, bool)
    for bundle in bundles:
        in_bundle[bundle.rows] = True
    chosen = np.flatnonzero(in_bundle)
    sizes = [(len(partials.ids), len(split.start_us)) for partials, _, split in partials_of_bundles]
    cells, signed_slices = (sum(column) for column in zip(*sizes, strict=True))
    used_keys, used_codes = only_used(owned, codes[chosen])
    # each instance gets its own slices and signatures
    signatures = sum(len(bundle.ranks) for bundle in bundles)
    header_counts = (min(cells, count * len(used_keys)) for count in (signed_slices, signatures))
    if is_smaller_raw(group, rows.at(chosen), used_keys[-1].end, cells, *header_counts):
        ranks = ranks_of_bundles(bundles, rows.count)
        chosen_ranks = [ladder_ranks[chosen] for ladder_ranks in ranks]
        _add_raw(group, rows.at(chosen), used_keys, used_codes, slices[chosen], all_slices, parts, chosen_ranks)
        return
    for partials, used_keys, split_every in partials_of_bundles:
        _add_cells(group, roll_up(group, partials), used_keys, split_every, parts)


def _add_cells(
    group: GroupPlan, rolled: Rolled, owned: Sequence[Owned], all_slices: Slices, parts: list[list[GroupPart]]
) -> None:
    slice_count = len(all_slices.start_us)
    for own in owned:
        low, high = np.searchsorted(rolled.ids, [own.first * slice_count, own.end * slice_count]).tolist()
        if low < high:
            piece = piece_of_cells(rolled, all_slices, low, high, own.first)
            parts[own.instance].append(own.part(group.id, piece))


def _add_raw(
    group: GroupPlan, rows: Rows, owned: Sequence[Owned], codes: Ints, slices: Ints, all_slices: Slices,
    parts: list[list[GroupPart]], ranks: Sequence[Array] = (),
) -> None:  # fmt: skip
    """Add raw rows; `ranks`: their rank in each ladder, if the cells of the group are split by signature."""
    used, slice_rows = places_of(slices)
    for own in owned:
        chosen = np.flatnonzero((codes >= own.first) & (codes < own.end))
        if len(chosen):
            raw = raw_rows(group, rows, chosen, all_slices.take(used), slice_rows, codes - own.first, ranks)
            parts[own.instance].append(own.part(group.id, raw))


def _gather_side(
    task: GatherTask, log: SideLog, rows: Rows, times_us: Ints, late: Ints,
    order: tuple[pa.Array | None, Ints | None], parts: list[list[GroupPart]],
) -> None:  # fmt: skip
    """Add the events that joins keep to each instance's packet."""
    if rows.count:
        logged = LoggedRows(log.kept, rows, times_us, late, order)
        if isinstance(log.dealt, str):
            for instance, events in dealt_events(log.kept, log.dealt, logged, task.instances):
                parts[instance].append(GroupPart(log.id, [], 1, events))
            return
        keys = owned_keys(task, log, rows)
        _add_events(log, logged, keys.owned, keys.codes, parts)


def _add_events(
    group: GroupPlan | SideLog, logged: LoggedRows | TalliedRows, owned: Sequence[Owned], codes: Ints,
    parts: list[list[GroupPart]],
) -> None:  # fmt: skip
    used_keys, used_codes = only_used(owned, codes[logged.index])
    for own in used_keys:
        of_instance = (used_codes >= own.first) & (used_codes < own.end)
        if of_instance.any():
            events = logged.events(logged.index[of_instance], used_codes[of_instance] - own.first)
            parts[own.instance].append(own.part(group.id, events))
