"""A pond without Spark, for tests of queries: the same gather, fold, log and followers, run in one thread.

The input of a stream is one Arrow table per source partition; one call is one epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import TypeVar
from uuid import uuid4

import msgspec
import pyarrow as pa

from millpond.kernels.columns import arrow_type
from millpond.log.follower import Follower, Pump, pump
from millpond.log.local import LocalFolder
from millpond.log.manifest import Manifest, Manifests, load
from millpond.log.port import Log, Lost, Won
from millpond.log.protocol import AlreadyTrue, Run, Steps, Writer, perform
from millpond.log.records import Offsets, Receipt
from millpond.model.selection import AnyQuery
from millpond.model.spec import PondSpec, to_json
from millpond.model.stream import Stream
from millpond.model.types import TIMES
from millpond.placement.alignment import Owners, owners_in, with_owners
from millpond.placement.partitions import homes
from millpond.placement.slots import even_owners
from millpond.plan.groups.build import needed_columns, needed_foreign
from millpond.plan.groups.plan import Plan
from millpond.plan.options.late_rows import LateAsk, late_asks
from millpond.reconfigure.apply import arranged, change_record, clear_tables, setting_of
from millpond.reconfigure.catalog import in_force
from millpond.reconfigure.change_queue import Desk
from millpond.reconfigure.changes import Change
from millpond.reconfigure.first_window import beginnings
from millpond.runtime.epoch import (
    Batch,
    assemble,
    depth,
    fold_task,
    gather_task,
    map_record,
    next_step,
    pending,
    step_record,
)
from millpond.runtime.fold.fold import fold
from millpond.runtime.gather.gather import gather
from millpond.runtime.inputs.replay import gather_stored, stored_parts
from millpond.runtime.inputs.without_shuffle import (
    Route,
    Shared,
    TooMuch,
    all_told,
    gathered,
    most_told,
    shared,
    tell,
    told_files,
)
from millpond.runtime.packets.packet import Header, encode_packet
from millpond.runtime.task.column_layout import ReadColumn, ReadLayout, StreamLayout
from millpond.runtime.task.file_sync import Carrier, Deltas
from millpond.runtime.task.task_values import FoldTask, GatherTask
from millpond.state.ports.file_store import FileStore
from millpond.state.ports.files import CarriedFiles, Files

T = TypeVar("T")


def read_columns(plan: Plan, stream: Stream, late: Iterable[LateAsk], first: int) -> tuple[ReadColumn, ...]:
    """The columns to read of a stream, at positions from `first` on.

    These are the columns that queries or their late rows need, sorted by name, then the expressions that only Spark
    evaluates.
    """
    types = {column.name: column.type for column in stream.columns}
    foreigns = needed_foreign(plan, stream.name)
    names = {*needed_columns(plan, stream.name)} - {foreign.name for foreign in foreigns}
    names.update(stream.order.columns if stream.order else ())
    names.update(name for ask in late for name in ask.columns)
    plain = [ReadColumn(name, first + i, types[name]) for i, name in enumerate(sorted(names))]
    after = first + len(plain)
    return (*plain, *(ReadColumn(f.name, after + i, f.type, foreign=True) for i, f in enumerate(foreigns)))


class LocalPond:
    """One pond in `folder`; a second one on the same folder takes over from the first.

    `queries`: the queries of the pond; None keeps the queries in force. While `merges_wait` is set, merges wait as in
    an epoch with a backlog. With a `file_store`, each task sees its files as on a host of its own. With `partitions`
    (the number of partitions of a topic), epochs are direct where possible; `direct` then has for each such epoch the
    result of every task.
    """

    def __init__(
        self, folder: Path, streams: Sequence[Stream], queries: Sequence[AnyQuery] | None, instances: int = 1,
        buckets: int = 64, followers: Sequence[Follower] = (), token: str = "local",
        owners: tuple[int, ...] | None = None, file_store: FileStore | None = None,
    ) -> None:  # fmt: skip
        self.log = Log(LocalFolder(folder / "log"))
        self.manifests = Manifests(LocalFolder(folder / "manifest"))
        self._writer, self._desk = Writer(token, load(self.log, self.manifests)), Desk(lambda *_told: None)
        known = in_force(self._writer.manifest) if self._writer.manifest.spec else None
        if known is not None and queries is None:
            spec, instances, buckets = known, known.instances, known.buckets
        else:
            asked = queries or ()
            since = {} if known is None else beginnings(known, self._writer.manifest, streams, asked)
            spec = PondSpec.of(tuple(streams), asked, instances, buckets)
            spec = msgspec.structs.replace(spec, since_us=since or msgspec.UNSET)
        owned = _owners(known, instances, buckets) if owners is None else owners
        self.setting = setting_of("local", folder, folder / "cache", spec, owned)
        self._lay_out()
        self._folder, self._file_store = folder, file_store
        self.partitions: int | None = None
        self.merges_wait = False
        self.direct: list[Sequence[Shared | TooMuch]] = []
        self._carrier = None if file_store is None else Carrier(folder, file_store)
        self._followers = [(Pump(follower.name), follower) for follower in followers]
        self._perform(self._writer.take_over(0, "localhost", 0, "0", lambda _: to_json(with_owners(spec, owned))))
        if self._carrier is not None:
            self._carrier.begin(self.manifest)

    def _arrange(self, spec: PondSpec) -> None:
        """Uses the queries of `spec` from the next epoch on."""
        groups = {group.id for group in self.setting.plan.groups}
        self.setting = arranged(self.setting, spec)
        gone = groups - {group.id for group in self.plan.groups}
        clear_tables(Path(self.setting.cache) / self.setting.pond, gone)
        self._lay_out()

    def _lay_out(self) -> None:
        read = [stream for stream in self.setting.streams if stream.upstream is None]
        self._streams = {stream.name: stream for stream in read}
        late = late_asks(self.plan, self.setting.streams)
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
    def spec(self) -> PondSpec:
        """The streams and queries in force."""
        return self._desk.spec(self._writer.manifest)

    def change(self, change: Change, brought: Callable[[int], tuple[Receipt, ...]] = lambda _n: ()) -> int:
        """Records a change, which must have been validated before (`reconfigure.validate`); returns the record's
        number.

        `brought`: returns the receipts of files that were prepared for the change, see `desk.Prepared`.
        """
        run = self._perform(self._writer.drain())
        record = change_record(self.spec, change, run, self._writer.token, 0, brought(run.n))
        self._perform(self._writer.commit(record))
        self._arrange(self.spec)
        return run.n

    def move(self, owners: Owners, why: str = "asked") -> None:
        """Changes the owners of buckets from the next epoch on."""
        run = self._perform(self._writer.drain())
        self._perform(self._writer.commit(map_record(self.setting, run, self._writer.token, owners, why, 0)))

    def step(self, waits: bool = False) -> bool:
        """Records a step towards the requested bucket map if one is due before the next epoch; returns if it was."""
        found = next_step(self.setting, self.manifest, waits)
        if found is not None:
            run = self._perform(self._writer.drain())
            self._perform(self._writer.commit(step_record(self.setting, run, self._writer.token, found, 0)))
        return found is not None

    def follow(self, follower: Follower) -> None:
        """Adds a follower, which is run from its cursor on."""
        self._followers.append((Pump(follower.name), follower))

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
        for driver, follower in self._followers:
            pump(driver, follower, self.log, self.manifests)

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
        folding = fold_task(self.setting, run, self._writer.token, drain, level=level, merges_wait=self.merges_wait)

        def attempt() -> Deltas:
            return self._deltas(gather_task(self.setting, run), folding, frames, seen)

        deltas = attempt() if self._carrier is None else self._carrier.run(run.manifest, attempt)
        record, body = assemble(self.setting, run, folding, batch, deltas, 0, run.n - 1)
        self._perform(self._writer.commit(record, body))

    def _deltas(
        self, task: GatherTask, folding: FoldTask, frames: Sequence[pa.RecordBatch], seen: Header | None
    ) -> Deltas:
        found = None if seen is not None or stored_parts(task) else self._direct_deltas(task, folding, frames)
        if found is not None:
            return found
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
        # reversed, because the result must not depend on the order of packets
        attempt = f"{self._writer.token}-0.0"
        return [fold(folding, i, packets[i][::-1], attempt, self._files()) for i in range(folding.instances)]

    def _direct_deltas(self, task: GatherTask, folding: FoldTask, frames: Sequence[pa.RecordBatch]) -> Deltas | None:
        of = None if self.partitions is None else homes(task.owners, task.instances, self.partitions)
        if of is None or not frames:
            return None
        route = Route(of, most_told(len(frames)), uuid4().hex, len(frames))
        made = [gathered(task, [frame], number, route) for number, frame in enumerate(frames)]
        names, files = told_files(folding.number, route.job, route.tasks), self._files()
        for name, one in zip(names, made, strict=True):
            tell(self._files(), name, one.told)
        told = all_told(files, names)
        files.forget(names)
        if isinstance(told, TooMuch):
            return None
        self.direct.append([shared(told, number, one.own, route) for number, one in enumerate(made)])
        attempt, deltas = f"{self._writer.token}-0.0", []
        for found in self.direct[-1]:
            if isinstance(found, TooMuch):
                return None
            deltas += [fold(folding, i, packets[::-1], attempt, self._files()) for i, packets in found.packets.items()]
        return sorted(deltas, key=lambda delta: delta[0].instance)

    def _files(self) -> Files:
        """The files as a host sees them; with a file store, as a new host that has no files yet."""
        if self._file_store is None:
            return Files(self._folder)
        return CarriedFiles(Path(mkdtemp(prefix="host", dir=self._folder)), self._file_store)

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


class DyingLog(Log):
    """A pond's log whose driver is killed (`dies`: before or after) when it appends a record."""

    def __init__(self, folder: Path, dies: str) -> None:
        super().__init__(LocalFolder(folder / "log"))
        self._dies = dies

    def append(self, n: int, record: bytes) -> Won | Lost:
        """See `Log.append`."""
        if self._dies == "after":
            super().append(n, record)
        raise KeyboardInterrupt
