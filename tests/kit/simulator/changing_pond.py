"""A pond without Spark whose queries, owners of buckets, hosts and reads change, and which may die."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp
from uuid import uuid4

import msgspec
import pyarrow as pa

from kit.simulator.memory_files import MemoryFiles
from millpond.log.follower import Follower, Pump
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.manifest import Manifest
from millpond.log.port import Log, Lost, Won
from millpond.log.protocol import Run
from millpond.log.records import Receipt
from millpond.model.selection import AnyQuery
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream
from millpond.placement.alignment import Owners
from millpond.placement.partitions import homes
from millpond.reconfigure.apply import arranged, change_record, clear_tables
from millpond.reconfigure.change_queue import ChangeQueue
from millpond.reconfigure.changes import Change
from millpond.runtime.epoch import map_record, next_step, step_record
from millpond.runtime.fold.fold import fold
from millpond.runtime.fold.one_task import GatherInput, fold_in_one_task
from millpond.runtime.inputs.replay import gather_share
from millpond.runtime.inputs.without_shuffle import (
    FoldInput,
    Route,
    gather_direct,
    message_bytes,
    message_files,
    packets_to_fold,
    read_messages,
    send_message,
)
from millpond.runtime.packets.packet import Header
from millpond.runtime.task.file_sync import Carrier, Deltas
from millpond.runtime.task.obstacle import Obstacle
from millpond.runtime.task.task_values import FoldTask, GatherTask
from millpond.state.ports.file_store import FileStore, Parts
from millpond.state.ports.files import CarriedFiles, Files
from millpond.testing.local_pond import LocalPond


class ChangingPond(LocalPond):
    """A `LocalPond` that changes while it runs.

    While `merges_wait` is set, merges wait as in an epoch with a backlog. With a `file_store`, each task sees its files
    as on a host of its own. With `partitions` (the number of partitions of a topic), epochs are direct where possible;
    `direct` then has for each such epoch the result of every task. While `in_one_task` is set, epochs have one task.
    """

    def __init__(
        self, folder: Path, streams: Sequence[Stream], queries: Sequence[AnyQuery] | None, instances: int = 1,
        buckets: int = 64, followers: Sequence[Follower] = (), token: str = "local", owners: Owners | None = None,
        file_store: FileStore | None = None,
    ) -> None:  # fmt: skip
        super().__init__(folder, streams, queries, instances, buckets, followers, token, owners)
        self.partitions: int | None = None
        self.merges_wait = self.in_one_task = False
        self.direct: list[Sequence[FoldInput | Obstacle]] = []
        self._changes = ChangeQueue(lambda *_: None)
        self._file_store = file_store
        self._carrier = None if file_store is None else Carrier(folder, file_store)
        if self._carrier is not None:
            self._carrier.begin(self.manifest)

    @property
    def spec(self) -> PondSpec:
        """The streams and queries in force."""
        return self._changes.spec(self.manifest)

    def change(self, change: Change, brought: Callable[[int], tuple[Receipt, ...]] = lambda _n: ()) -> int:
        """Records a change, which must have been validated before (`reconfigure.validate`); returns the record's
        number.

        `brought`: returns the receipts of files that were prepared for the change, see `change_queue.Prepared`.
        """
        run = self._perform(self._writer.drain())
        record = change_record(self.spec, change, run, self._writer.token, 0, brought(run.n))
        self._perform(self._writer.commit(record))
        groups = {group.id for group in self.plan.groups}
        self.setting = arranged(self.setting, self.spec)
        gone = groups - {group.id for group in self.plan.groups}
        clear_tables(Path(self.setting.cache) / self.setting.pond, gone)
        self._lay_out()
        return run.n

    def move(self, owners: Owners, why: str = "requested") -> None:
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

    def _announce(self, n: int) -> None:
        if n % 8 < 2:  # these records reach the followers by pumps, which load the manifest at the first one
            self._announced = Manifest()
        super()._announce(n)

    def unfollow(self) -> list[Follower]:
        """Stops running all followers, and returns them."""
        stopped = [follower for _, follower in self._followers]
        self._followers.clear()
        return stopped

    def _folding(self, run: Run, drain: bool, level: int) -> FoldTask:
        return msgspec.structs.replace(super()._folding(run, drain, level), merges_wait=self.merges_wait)

    def _attempt(self, run: Run, folding: FoldTask, frames: Sequence[pa.RecordBatch], seen: Header | None) -> Deltas:
        attempt = super()._attempt
        if self._carrier is None:
            return attempt(run, folding, frames, seen)
        return self._carrier.run(run.manifest, lambda: attempt(run, folding, frames, seen))

    def _deltas(
        self, task: GatherTask, folding: FoldTask, frames: Sequence[pa.RecordBatch], seen: Header | None
    ) -> Deltas:
        if self.in_one_task and seen is None:
            made = fold_in_one_task([GatherInput(task, frames)], folding, f"{self._writer.token}-0.0", self._files())
            assert not isinstance(made, Obstacle)
            return made
        found = None if seen is not None or task.recalled else self._direct_deltas(task, folding, frames)
        return super()._deltas(task, folding, frames, seen) if found is None else found

    def _direct_deltas(self, task: GatherTask, folding: FoldTask, frames: Sequence[pa.RecordBatch]) -> Deltas | None:
        of = None if self.partitions is None else homes(task.owners, task.instances, self.partitions)
        if of is None or not frames:
            return None
        route = Route(of, message_bytes(len(frames)), uuid4().hex, len(frames))
        gathered = [
            gather_direct(task, [frame], number, route, gather_share(task, number, len(frames), self._files()))
            for number, frame in enumerate(frames)
        ]
        names, files = message_files(folding.number, route.job, route.tasks), self._files()
        for name, one in zip(names, gathered, strict=True):
            send_message(self._files(), name, one.message)
        messages = read_messages(files, names)
        files.remove_messages(names)
        if isinstance(messages, Obstacle):
            return None
        packets = (one.packets for one in gathered)
        self.direct.append([packets_to_fold(messages, number, own, route) for number, own in enumerate(packets)])
        attempt, deltas = f"{self._writer.token}-0.0", []
        for found in self.direct[-1]:
            if isinstance(found, Obstacle):
                return None
            deltas += [fold(folding, i, packets[::-1], attempt, self._files()) for i, packets in found.packets.items()]
        return sorted(deltas, key=lambda delta: delta[0].instance)

    def _files(self) -> Files:
        """The files as a host sees them; with a file store, as a new host that has no files yet."""
        if self._file_store is None:
            return super()._files()
        return CarriedFiles(Path(mkdtemp(prefix="host", dir=self._folder)), self._file_store)


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


class ForgetfulFiles(MemoryFiles):
    """Files in memory that lose some files, at random, after every `every` files that instances have put."""

    def __init__(self, seed: int, every: int = 5) -> None:
        super().__init__()
        self._dice, self._puts, self._every = random.Random(seed), 0, every
        self.lost = 0

    def put(self, name: str, parts: Parts, *, kept: bool = False) -> None:
        """See `FileStore.put`."""
        super().put(name, parts, kept=kept)
        self._puts += not kept
        if not kept and self._puts % self._every == 0:
            gone = [name for name in sorted(self.names()) if self._dice.randint(0, 1)]
            self.remove_many(gone)
            self.lost += len(gone)
