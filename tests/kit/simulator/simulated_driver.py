"""The simulated driver and publisher: generators that yield the name of the step they are about to take.

A driver is Spark's own loop around `protocol.Writer`: offsets/<batch>, the callback, commits/<batch>. A step that
appends receives a directive that says how its reply fails. Crashes and pauses are made by the simulation. Tests
override methods of the driver to build faulty variants (mutants).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from kit.simulator.faulty_folder import CREATE_FAULTS, DELAYED_PUT, REPLY_LOST
from kit.simulator.simulated_world import (
    BUCKETS,
    GROUP,
    Checkpoint,
    ConcurrentUpdate,
    Row,
    Sink,
    World,
    bucket_of,
    demand,
    entry_of,
    positions,
)
from millpond.errors import AheadError, FencedError, OffsetGapError, PlaceError, StoreError
from millpond.log.cursor import Cursor, cursor_of, is_same, last_common
from millpond.log.follower import Apply, AskCursor, Load, Pump, PumpReply, ReadNext
from millpond.log.manifest import LiveSection, Manifest, fold_all, load
from millpond.log.protocol import (
    TICK,
    Announce,
    Append,
    Effect,
    Read,
    Reply,
    Run,
    SaveManifest,
    Steps,
    WriteHint,
    Writer,
    perform_effect,
    same_offset,
)
from millpond.log.records import ChangeRecord, EpochRecord, Offsets, Receipt, Section
from millpond.model.change_json import MapChange, change_to_json
from millpond.placement.moves import BucketMap, bucket_maps, sources
from millpond.placement.run_lengths import runs_of
from millpond.placement.slots import even_owners

T = TypeVar("T")
ActorSteps = Generator[str, str | None, T]

KILLED_MEANWHILE = "reply lost, driver killed"
APPEND_FAULTS = (KILLED_MEANWHILE, *CREATE_FAULTS)
CUT = "cut from the log"
"""From this step on, the log does not answer the driver's host for some time; a request on the way may arrive."""

_STEP_NAMES: dict[type[Effect], str] = {
    Read: "read",
    Append: "append",
    WriteHint: "hint",
    SaveManifest: "manifest",
    Announce: "announce",
}
_FOLLOW_NAMES = {AskCursor: "cursor", Load: "load", ReadNext: "read", Apply: "apply"}


class Killed(Exception):
    """The driver's process was killed."""


@dataclass
class Attempt:
    """The delta of one task attempt, and the receipt that the driver would write for it."""

    receipt: Receipt
    delta: bytes


@dataclass
class Packet:
    """The events that one source partition sends to one instance."""

    stream: str
    partition: int
    sequence: int
    positions: list[int] = field(default_factory=list)


class Moves(NamedTuple):
    """The bucket map of an epoch, and for instances whose buckets changed the previous owners of these buckets."""

    now: BucketMap
    sources: dict[int, tuple[int, ...]]


class Driver:
    """One run of one driver, with a token of its own."""

    def __init__(self, world: World, token: str, writer: type[Writer]) -> None:
        self.world = world
        self.token = token
        self.name = token
        self.random = world.random
        self.tasks_started = self.changes_made = 0
        self.announced: list[int] = []
        self.torn: tuple[str, bytes] | None = None
        self._writer_type = writer
        self.writer: Writer

    def run(self) -> ActorSteps[None]:
        """Run until fenced or stopped."""
        try:
            yield from self._start()
            while True:
                yield "checkpoint:read"
                yield from self._surviving(self._one_batch)
                if self.world.requests or (self.random.random() < 0.08 and not self.world.healing):
                    yield from self._surviving(self._aside)
        except (FencedError, ConcurrentUpdate, Killed, PlaceError):
            return  # PlaceError: the opening failed

    def _start(self) -> ActorSteps[None]:
        yield "start:load"
        manifest = load(self.world.log, self.world.manifests)
        whole = fold_all(Manifest(), [entry_of(self._record(n)) for n in range(manifest.n + 1)])
        demand(manifest == whole, "a manifest loaded from its files differs from the fold of the log")
        self.compare_sinks(manifest)
        self.writer = self._writer_type(self.token, manifest, records_per_hint=4, records_per_manifest=5)
        yield from self._surviving(self._take_over)
        self.checkpoint = self.world.checkpoint
        if self._log_is_older():
            yield from self._repair()

    def compare_sinks(self, manifest: Manifest) -> None:
        """Rewind sinks that are ahead of the log, as an operator does; mutants override this to forget it."""
        log, manifests = self.world.log, self.world.manifests
        for sink in self.world.sinks:
            cursor = sink.cursor()
            if not is_same(cursor, load(log, manifests, cursor.n) if cursor.n >= 0 else Manifest()):
                demand(self.world.checkpoint_was_harmed, f"{sink.name} is ahead of a log that has lost nothing")
                common = last_common(log, cursor, manifest.n)
                sink.rewind(cursor_of(manifest) if common is None and cursor.n > manifest.n else common or Cursor())

    def _log_is_older(self) -> bool:
        """Whether Spark has committed more than the log; the checkpoint may belong to another driver by now."""
        checkpoint, manifest = self.checkpoint, load(self.world.log, self.world.manifests)
        batch = max(checkpoint.committed, default=-1)
        if batch < 0 or (checkpoint.spark_query == manifest.spark_query and batch < manifest.batch):
            return False
        ends, known = checkpoint.ends[batch], manifest.offsets
        return any(not same_offset(known.get(stream), end) for stream, end in ends.items() if stream != TICK)

    def _take_over(self) -> ActorSteps[None]:
        yield from self._protocol("claim", self.writer.take_over(0, "host", 1, "0", self.claimed))

    def claimed(self, manifest: Manifest) -> str:
        """The changes that a claim repeats: all changes until now; mutants override this to lose some."""
        return json.dumps(changes_in(manifest))

    def in_force(self, run: Run) -> int:
        """The number of changes in force for an epoch; mutants override this to miss some."""
        return len(changes_in(run.manifest))

    def _record(self, n: int) -> bytes:
        data = self.world.true_log.read(n)
        assert data is not None
        return data

    def _surviving(self, work: Callable[[], ActorSteps[None]]) -> ActorSteps[None]:
        while True:
            try:
                yield from work()
                return
            except PlaceError:
                continue  # the outcome of the append is unknown: the same writer continues

    def _one_batch(self) -> ActorSteps[None]:
        world, checkpoint = self.world, self.checkpoint
        batch, start = checkpoint.next_batch()
        end = checkpoint.ends.get(batch)
        if end is None:
            end = world.source.offsets(start, None if world.healing else self.random)
            yield "checkpoint:offsets"
            self._check_checkpoint(checkpoint)
            if checkpoint.ends.setdefault(batch, end) is not end:
                raise ConcurrentUpdate
        try:
            yield from self._callback(batch, start, end)
        except OffsetGapError:
            yield from self._repair()
            return
        yield "checkpoint:commit"
        self._check_checkpoint(checkpoint)
        checkpoint.committed.add(batch)
        if self.random.random() < 0.3:
            world.backups.append(checkpoint.copy())

    def _check_checkpoint(self, checkpoint: Checkpoint) -> None:
        if self.world.checkpoint is not checkpoint:
            raise ConcurrentUpdate

    def _repair(self) -> ActorSteps[None]:
        demand(self.world.checkpoint_was_harmed, "an offset gap, though the checkpoint was never harmed")
        yield "checkpoint:repair"
        self._check_checkpoint(self.checkpoint)
        self.world.checkpoint = self.world.new_checkpoint(self.writer.manifest.offsets)
        self.checkpoint = self.world.checkpoint

    def _callback(self, batch: int, start: Offsets, end: Offsets) -> ActorSteps[None]:
        begun = yield from self._protocol("begin", self.writer.begin(batch, start, end, self.checkpoint.spark_query))
        if not isinstance(begun, Run) or (begun.idle and (self.world.healing or self.random.random() < 0.5)):
            return
        yield from self._compute_and_commit("commit", begun, batch, start, end, drained=False)

    def _aside(self) -> ActorSteps[None]:
        run = yield from self._protocol("drain", self.writer.drain())
        kind = self.random.choice(("change", "change", "map", "map", "drain", "drain"))
        if self.world.requests:
            yield from self._answer(run, self.random.choice(self.world.requests))
        elif kind != "drain":
            owners = [self.random.randrange(self.world.instances) for _ in range(BUCKETS)]
            text = change_to_json(MapChange(runs_of(owners), "a whim", max(owners) + 1))
            if kind == "change":
                self.changes_made += 1
                text = json.dumps({"kind": "whim", "name": f"{self.token}-{self.changes_made}"})
            change = ChangeRecord(n=run.n, writer=self.token, prev=run.prev, at=0, change=text)
            yield from self.commit(kind, change, b"")
        else:
            known = run.manifest.offsets
            yield from self._compute_and_commit("drain", run, run.manifest.batch, known, known, drained=True)

    def _answer(self, run: Run, name: str) -> ActorSteps[None]:
        """Make the change that a client requests, and reply. A client repeats a request that nobody replies to."""
        if not self.is_made(name, run.manifest):
            change = json.dumps({"kind": "whim", "name": name})
            record = ChangeRecord(n=run.n, writer=self.token, prev=run.prev, at=0, change=change)
            yield from self.commit("change", record, b"")
        self.world.reply(name)

    def is_made(self, name: str, manifest: Manifest) -> bool:
        """Whether the change of a repeated request is in force; mutants override this to make it again."""
        return name in changes_in(manifest)

    def _compute_and_commit(
        self, phase: str, run: Run, batch: int, start: Offsets, end: Offsets, drained: bool
    ) -> ActorSteps[None]:
        receipts, body = yield from self._tasks(run, start, end)
        record = EpochRecord(
            n=run.n,
            writer=self.token,
            prev=run.prev,
            at=0,
            spark_query=self.checkpoint.spark_query,
            batch=batch,
            start=start,
            end=end,
            max_time={s: {str(p): t for p, t in enumerate(positions(o, 0))} for s, o in end.items() if s != TICK},
            drained=drained,
            map=self.moves(run).now.number,
            receipts=tuple(receipts),
            retired=tuple(section.id for section in self.moved(run)),
        )
        yield from self.commit(phase, record, body)

    def commit(self, phase: str, record: EpochRecord | ChangeRecord, body: bytes) -> ActorSteps[None]:
        """Commit one record; mutants override this to show rows too early."""
        yield from self._protocol(phase, self.writer.commit(record, body))

    def moves(self, run: Run) -> Moves:
        """Return the buckets and their owners as of the log."""
        instances = self.world.instances
        lies, now = bucket_maps(even_owners(BUCKETS, instances), instances, run.manifest)
        return Moves(now, sources(lies.owners, now.owners))

    def moved(self, run: Run) -> list[LiveSection]:
        """Return the sections that are retired because their instance now owns other buckets."""
        return [
            section for instance in self.moves(run).sources for section in run.manifest.live(instance, GROUP, "segment")
        ]

    def _tasks(self, run: Run, start: Offsets, end: Offsets) -> ActorSteps[tuple[list[Receipt], bytes]]:
        packets = self._gather(start, end, self.moves(run).now)
        receipts: list[Receipt] = []
        body = b""
        for instance, sent in enumerate(packets):
            arrived = self.random.sample(sent, len(sent))
            attempts: list[Attempt] = []
            for _ in range(self.random.choice((1, 1, 2))):
                if self.random.random() < 0.1:
                    self._abandon(self.fold(run, instance, self.in_order(arrived)))
                attempt = self.fold(run, instance, self.in_order(arrived))
                if attempt.receipt.file is not None:
                    self.torn = (attempt.receipt.file, attempt.delta)
                    yield "task:write"
                    self.world.deltas.files[attempt.receipt.file] = attempt.delta
                    self.torn = None
                attempts.append(attempt)
            for counted in self.collect(attempts):
                receipt = counted.receipt
                if receipt.file is None:
                    receipt = _at(receipt, len(body))
                    body += counted.delta
                receipts.append(receipt)
        return receipts, body

    def _abandon(self, attempt: Attempt) -> None:
        """Abandon an attempt whose host may still write a part of its file."""
        name, delta = attempt.receipt.file, attempt.delta
        if name is not None:
            part = delta[: self.random.randrange(len(delta))]
            self.world.later(f"write of {name}", lambda: self.world.deltas.files.__setitem__(name, part))

    def _gather(self, start: Offsets, end: Offsets, now: BucketMap) -> list[list[Packet]]:
        packets: list[list[Packet]] = [[] for _ in range(now.instances)]
        for stream in sorted(end.keys() - {TICK}):
            ends = positions(end[stream], 0)
            starts = positions(start.get(stream), len(ends))
            for partition, (first, after) in enumerate(zip(starts, ends, strict=True)):
                for instance, own in enumerate(packets):
                    mine = [p for p in range(first, after) if now.owners[bucket_of(partition, p)] == instance]
                    for sequence, cut in enumerate(range(0, len(mine), 2)):
                        own.append(Packet(stream, partition, sequence, mine[cut : cut + 2]))
        return packets

    def in_order(self, arrived: list[Packet]) -> list[Packet]:
        """Return packets in the one order in which they are folded."""
        return sorted(arrived, key=lambda packet: (packet.stream, packet.partition, packet.sequence))

    def collect(self, attempts: list[Attempt]) -> list[Attempt]:
        """Return the attempt whose receipt reached the driver first."""
        return [self.random.choice(attempts)]

    def attempt_file(self, n: int, instance: int, task: int) -> str:
        """Return a file name that no other attempt has, of any driver or of this driver at the same `n`."""
        return f"data/{n}/{instance}-{self.token}-{task}"

    def fold(self, run: Run, instance: int, packets: list[Packet]) -> Attempt:
        """Run one task: new rows, now and then merged with the instance's live segments, in one delta."""
        self.tasks_started += 1
        live, old = self._remembered(run, instance)
        known = _seen(old or ())
        for section in live if old is None else ():
            known = [sum(pair) for pair in zip(known, _counted(section), strict=True)]
        seen, new, changes = [*known], list[Row](), self.in_force(run)
        for packet in packets:
            for position in packet.positions:
                bucket = bucket_of(packet.partition, position)
                seen[bucket] += 1
                new.append((packet.stream, packet.partition, position, seen[bucket], changes))
        kept = [*(old or ()), *new]
        supersedes = () if old is None else tuple(section.id for section in live)
        segment, rows = json.dumps(kept).encode(), json.dumps(new).encode()
        sections = (
            Section("segment", GROUP, 0, len(segment), len(kept), {"seen": _seen(kept)}, supersedes),
            Section("rows", GROUP, len(segment), len(rows), len(new)),
        )
        delta = segment + rows
        inline = self.random.random() < 0.5
        name = None if inline else self.attempt_file(run.n, instance, self.tasks_started)
        digest = hashlib.sha256(delta).hexdigest()
        return Attempt(Receipt(instance, str(self.tasks_started), len(delta), digest, name, 0, sections), delta)

    def _remembered(self, run: Run, instance: int) -> tuple[list[LiveSection], list[Row] | None]:
        """Return the live segments of an instance, and all rows that its next segment replaces, if it replaces any."""
        moves = self.moves(run)
        own = [*run.manifest.live(instance, GROUP, "segment")]
        if instance not in moves.sources:
            return own, self._rows(own) if own and self.random.random() < 0.25 else None
        held = [one for source in moves.sources[instance] for one in run.manifest.live(source, GROUP, "segment")]
        # the record retires the sections that the task read, regardless of the writer
        return [], [row for row in self._rows(held) if moves.now.owners[bucket_of(row[1], row[2])] == instance]

    def _rows(self, sections: list[LiveSection]) -> list[Row]:
        return [row for section in sections for row in self.world.deltas.section(section, self.world.log)]

    def _protocol(self, phase: str, steps: Steps[T]) -> ActorSteps[T]:
        reply: Reply = None
        while True:
            try:
                effect = steps.send(reply)
            except StopIteration as end:
                result: T = end.value
                return result
            fault = yield f"{phase}:{_STEP_NAMES[type(effect)]}"
            if fault == CUT:
                fault = self.random.choice((None, REPLY_LOST, DELAYED_PUT))
                self.world.cut(self.token)
            if fault is not None and isinstance(effect, Append):
                self.world.log_requests.plan(REPLY_LOST if fault == KILLED_MEANWHILE else fault)
            elif self.world.is_cut(self.token):
                if isinstance(effect, Read | Append):
                    raise PlaceError("The log does not answer.")
                continue  # files that are derived are not written
            try:
                reply = perform_effect(effect, self.world.log, self.world.manifests, self.announced.append)
            except PlaceError as error:
                if fault == KILLED_MEANWHILE:
                    raise Killed from error
                raise
            if self.world.is_cut(self.token):
                raise PlaceError("The log does not answer.")


class Publisher:
    """A thread of a driver's process that repeatedly brings every sink up to the newest record."""

    def __init__(self, world: World, token: str, pump: type[Pump]) -> None:
        self.world, self.token = world, token
        self.name = f"{token} publisher"
        self._pump_type = pump

    def run(self) -> ActorSteps[None]:
        """Advance the sinks in turn; the cursor of a sink that refuses is read again."""
        pumps = {sink.name: self._pump_type(sink.name) for sink in self.world.sinks}
        while True:
            yield "follow:wait"
            for sink in self.world.sinks:
                try:
                    yield from self._pump(pumps[sink.name], sink)
                except (StoreError, PlaceError):
                    pumps[sink.name] = self._pump_type(sink.name)
                except AheadError:
                    demand(self.world.checkpoint_was_harmed, f"{sink.name} is ahead of a log that has lost nothing")
                    pumps[sink.name] = self._pump_type(sink.name)

    def _pump(self, pump: Pump, sink: Sink) -> ActorSteps[None]:
        steps = pump.steps(limit=self.world.random.randint(1, 4))
        reply: PumpReply = None
        while True:
            try:
                effect = steps.send(reply)
            except StopIteration:
                return
            if (yield f"follow:{_FOLLOW_NAMES[type(effect)]}") == CUT:
                self.world.cut(self.token)
            if isinstance(effect, Load | ReadNext) and self.world.is_cut(self.token):
                raise PlaceError("The log does not answer.")
            match effect:
                case AskCursor():
                    reply = sink.cursor()
                case Load(upto):
                    reply = load(self.world.log, self.world.manifests, upto)
                case ReadNext(n):
                    reply = self.world.log.read(n)
                case Apply(n, record, manifest):
                    reply = None
                    sink.apply(n, record, manifest)
                    self.world.check_sink(sink)


def _seen(rows: Sequence[Row]) -> list[int]:
    """The number of rows in each bucket."""
    counts = [0] * BUCKETS
    for _, partition, position, _, _ in rows:
        counts[bucket_of(partition, position)] += 1
    return counts


def _counted(section: LiveSection) -> list[int]:
    found = section.info["seen"]
    assert isinstance(found, list)
    return found


def changes_in(manifest: Manifest) -> list[str]:
    """All changes up to the manifest's record, except changes of owners; first those that the claim repeats."""
    claimed: list[str] = json.loads(manifest.spec or "[]")
    return [*claimed, *whims_in(change.change for change in manifest.changes)]


def whims_in(changes: Iterable[str]) -> list[str]:
    """The names of the changes that are not changes of owners."""
    found = map(json.loads, changes)
    return [change["name"] for change in found if change["kind"] == "whim"]


def _at(receipt: Receipt, at: int) -> Receipt:
    return Receipt(
        receipt.instance,
        receipt.attempt,
        receipt.size,
        receipt.digest,
        None,
        at,
        receipt.sections,
        receipt.counts,
    )
