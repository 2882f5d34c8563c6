"""A pond without Spark, for tests of queries: the same gather, fold, log and followers, run in one thread.

The input of a stream is one Arrow table per source partition; one call is one epoch. `Ledger` adds
up the counts of the epochs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa

from millpond.clock import now_us
from millpond.kernels.columns import arrow_type
from millpond.log.cursor import Cursor, cursor_at, is_same
from millpond.log.follower import Follower, Pump, pump
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.manifest import Manifest, Manifests, load
from millpond.log.port import Log
from millpond.log.protocol import AlreadyTrue, Run, Steps, Writer, perform
from millpond.log.records import Entry, EpochRecord, Offsets, Receipt, Section, decode
from millpond.model.selection import AnyQuery
from millpond.model.spec import PondSpec, to_json
from millpond.model.stream import Stream, inner_queries
from millpond.model.types import TIMES
from millpond.placement.alignment import Owners, owners_in, with_owners
from millpond.placement.slots import even_owners
from millpond.plan.groups.build import needed_columns, needed_foreign
from millpond.plan.groups.plan import Plan
from millpond.plan.upstream.late_sinks import LateSink, late_sinks
from millpond.reconfigure.apply import setting_of
from millpond.reconfigure.catalog import in_force
from millpond.reconfigure.first_window import beginnings
from millpond.runtime.epoch import Batch, assemble, depth, fold_task, gather_task, pending
from millpond.runtime.fold.fold import fold
from millpond.runtime.gather.gather import gather
from millpond.runtime.inputs.replay import gather_stored, stored_parts
from millpond.runtime.packets.packet import Header, encode_packet
from millpond.runtime.task.column_layout import ReadColumn, ReadLayout, StreamLayout
from millpond.runtime.task.file_sync import Deltas
from millpond.runtime.task.plan_cache import pack_task, unpack_task
from millpond.runtime.task.task_values import FoldTask, GatherTask
from millpond.state.ports.files import Files

T = TypeVar("T")


def read_columns(plan: Plan, stream: Stream, late: Iterable[LateSink], first: int) -> tuple[ReadColumn, ...]:
    """The columns to read of a stream, at positions from `first` on.

    These are the columns that queries or their late rows need, sorted by name, then the expressions that only Spark
    evaluates.
    """
    types = {column.name: column.type for column in stream.columns}
    foreigns = needed_foreign(plan, stream.name)
    names = {*needed_columns(plan, stream.name)} - {foreign.name for foreign in foreigns}
    names.update(stream.order.columns if stream.order else ())
    names.update(name for sink in late for name in sink.columns)
    plain = [ReadColumn(name, first + i, types[name]) for i, name in enumerate(sorted(names))]
    after = first + len(plain)
    return (*plain, *(ReadColumn(f.name, after + i, f.type, foreign=True) for i, f in enumerate(foreigns)))


class LocalPond:
    """One pond in `folder`; a second one on the same folder takes over from the first.

    `queries`: the queries of the pond; None keeps the queries in force. `instant_us`: the time of
    `current_timestamp()` in the next epoch; by default when the pond was made.
    """

    def __init__(
        self, folder: Path, streams: Sequence[Stream], queries: Sequence[AnyQuery] | None, instances: int = 1,
        buckets: int = 64, followers: Sequence[Follower] = (), token: str = "local",
        owners: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        self.log = Log(LocalFolder(folder / "log"))
        self.manifests = Manifests(LocalFolder(folder / "manifest"))
        self._writer = Writer(token, load(self.log, self.manifests))
        self._announced = self._writer.manifest
        known = in_force(self._writer.manifest) if self._writer.manifest.spec else None
        if known is not None and queries is None:
            spec, instances, buckets = known, known.instances, known.buckets
        else:
            registered = queries or ()
            all_queries = (*inner_queries(streams), *registered)
            since = {} if known is None else beginnings(known, self._writer.manifest, streams, all_queries)
            spec = PondSpec.of(tuple(streams), registered, instances, buckets)
            spec = msgspec.structs.replace(spec, since_us=since or msgspec.UNSET)
        owned = _owners(known, instances, buckets) if owners is None else owners
        self.setting = setting_of("local", folder, folder / "cache", spec, owned)
        self._lay_out()
        self._folder, self.instant_us = folder, now_us()
        self._followers = [(Pump(follower.name), follower) for follower in followers]
        self._perform(self._writer.take_over(0, "localhost", 0, "0", lambda _: to_json(with_owners(spec, owned))))

    def _lay_out(self) -> None:
        read = [stream for stream in self.setting.streams if not stream.upstreams]
        self._streams = {stream.name: stream for stream in read}
        late = late_sinks(self.plan, self.setting.streams)
        layout, at = [], 1
        for stream in read:
            columns = read_columns(self.plan, stream, late.get(stream.name, ()), at)
            at += len(columns)
            order = (stream.order.partition, stream.order.offset) if stream.order else (None, None)
            layout.append(StreamLayout(stream.name, columns, *order))
        self.setting = self.setting._replace(layout=ReadLayout(tuple(layout)))
        self._width = at

    @property
    def plan(self) -> Plan:
        """The plan of the queries in force."""
        return self.setting.plan

    @property
    def offsets(self) -> Offsets:
        """The end offset of each stream in the log."""
        return self._writer.manifest.offsets

    @property
    def manifest(self) -> Manifest:
        """The manifest at the newest record."""
        return self._writer.manifest

    def _perform(self, steps: Steps[T]) -> T:
        return perform(steps, self.log, self.manifests, self._announce)

    def _announce(self, n: int) -> None:
        before, self._announced = self._announced, self._writer.manifest
        newest = decode(self.log.read(n) or b"") if n == before.n + 1 else None
        for pump_state, follower in self._followers:
            if newest is not None and is_same(follower.cursor(), before):
                follower.apply(n, newest, self._announced)  # read and folded once for all followers
            else:
                pump(pump_state, follower, self.log, self.manifests)

    def epoch(self, events: Mapping[str, Sequence[pa.Table]]) -> None:
        """Runs and commits one epoch; `events`: for each stream name one Arrow table per source partition."""
        start = dict(self.offsets)
        end = {name: str(int(start.get(name, "0")) + 1) for name in self._streams}
        run = self._perform(self._writer.begin(self._writer.manifest.batch + 1, start, end, "local"))
        assert not isinstance(run, AlreadyTrue)
        self._run(run, self._frames(events), Batch("local", self._writer.manifest.batch + 1, start, end))

    def advance(self, stream: str, newest_us: Mapping[str, int]) -> None:
        """Runs and commits an epoch without events, as if source partitions had had events at the times `newest_us`."""
        offsets = dict(self.offsets)
        run = self._perform(self._writer.begin(self._writer.manifest.batch + 1, offsets, offsets, "local"))
        assert not isinstance(run, AlreadyTrue)
        batch = Batch("local", self._writer.manifest.batch + 1, offsets, offsets)
        self._run(run, [], batch, seen=Header(stream, 0, 0, dict(newest_us), {}))

    @property
    def pending(self) -> bool:
        """Whether rows of a query still wait to be read by other queries."""
        return pending(self.setting, self._writer.manifest)

    def settle(self) -> None:
        """Runs epochs that read nothing until no rows wait."""
        while self.pending:
            self._without_input(drain=False)

    def drain(self) -> None:
        """Closes every open window, level by level."""
        for level in range(depth(self.setting) + 1):
            self._without_input(drain=True, level=level)

    def _without_input(self, drain: bool, level: int = 0) -> None:
        run = self._perform(self._writer.drain())
        offsets = dict(self.offsets)
        self._run(run, [], Batch("local", self._writer.manifest.batch, offsets, offsets), drain, level)

    def _run(
        self, run: Run, frames: Iterable[pa.RecordBatch], batch: Batch, drain: bool = False, level: int = 0,
        seen: Header | None = None,
    ) -> None:  # fmt: skip
        frames = list(frames)
        folding = self._folding(run, drain, level)

        deltas = self._attempt(run, folding, frames, seen)
        record, body = assemble(self.setting, run, folding, batch, deltas, 0, run.n - 1)
        self._perform(self._writer.commit(record, body))

    def _attempt(self, run: Run, folding: FoldTask, frames: Sequence[pa.RecordBatch], seen: Header | None) -> Deltas:
        task = gather_task(self.setting, run, instant_us=self.instant_us)
        return self._deltas(unpack_task(pack_task(task)), folding, frames, seen)

    def _deltas(
        self, task: GatherTask, folding: FoldTask, frames: Sequence[pa.RecordBatch], seen: Header | None
    ) -> Deltas:
        packets: list[list[pa.Buffer]] = [[] for _ in range(task.instances)]
        for partition, frame in enumerate(frames):
            for instance, packet in gather(task, [frame], partition):
                packets[instance].append(pa.py_buffer(packet))
        for part in range(stored_parts(task)):
            for instance, packet in gather_stored(task, part, self._files()):
                packets[instance].append(pa.py_buffer(packet))
        if seen is not None:
            for mine in packets:
                mine.append(pa.py_buffer(encode_packet(seen, [])))
        attempt = f"{self._writer.token}-0.0"
        # reversed, because the result must not depend on the order of packets
        return [fold(folding, i, packets[i][::-1], attempt, self._files()) for i in range(folding.instances)]

    def _folding(self, run: Run, drain: bool, level: int) -> FoldTask:
        task = fold_task(self.setting, run, self._writer.token, drain, level=level, instant_us=self.instant_us)
        return unpack_task(pack_task(task))

    def _files(self) -> Files:
        """The files as the current task sees them."""
        return Files(self._folder)

    def _frames(self, events: Mapping[str, Sequence[pa.Table]]) -> Iterable[pa.RecordBatch]:
        assert self.setting.layout is not None
        for position, stream in enumerate(self.setting.layout.streams):
            for table in events.get(stream.name, ()):
                yield self._frame(position, stream, table)

    def _frame(self, position: int, stream: StreamLayout, table: pa.Table) -> pa.RecordBatch:
        """The table in the layout of the read: the stream's position, then its columns at their positions."""
        arrays: list[pa.Array] = [pa.nulls(len(table))] * self._width
        arrays[0] = pa.array([position] * len(table), pa.int32())
        for column in stream.columns:
            array = table.column(column.name).combine_chunks()
            kind = arrow_type(column.type)
            if column.foreign:
                kind = pa.struct([("v", kind)])
            elif column.type in TIMES and pa.types.is_int64(array.type):
                array = array.view(kind) if column.type != "date" else array.cast(pa.int32()).view(kind)
            arrays[column.position] = array.cast(kind)
        return pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(self._width)])


def _owners(known: PondSpec | None, instances: int, buckets: int) -> Owners:
    """The owners in force, if the pond has this number of instances and buckets; otherwise an even distribution."""
    if known is None or (known.instances, known.buckets) != (instances, buckets):
        return even_owners(buckets, instances)
    return owners_in(known)


class Ledger:
    """A follower that adds up the counts of all epochs, and records how many sections were live after each record."""

    name = "ledger"

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {}
        self.live: list[dict[str, int]] = []
        self.cell_bytes: list[int] = []
        self._cursor = Cursor()

    def cursor(self) -> Cursor:
        return self._cursor

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        if n <= self._cursor.n:
            return
        self._cursor = cursor_at(record)
        if isinstance(record.record, EpochRecord):
            for query, found in record.record.counts.items():
                total = self.counts.setdefault(query, {})
                for name, value in found.items():
                    total[name] = total.get(name, 0) + value
        kinds: dict[str, int] = {}
        for section in manifest.sections.values():
            kinds[section.kind] = kinds.get(section.kind, 0) + 1
        self.live.append(kinds)
        self.cell_bytes.append(sum(s.size for s in manifest.sections.values() if s.kind == "segment"))


def read_section(folder: Path, receipt: Receipt, section: Section) -> pa.Buffer:
    """The bytes of a section whose delta is a file of the pond in `folder`."""
    with open(folder / (receipt.file or ""), "rb") as file:
        return pa.py_buffer(os.pread(file.fileno(), section.size, section.offset))
