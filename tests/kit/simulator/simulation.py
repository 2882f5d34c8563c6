"""A seeded simulator of the log's protocol: drivers, zombies, crashes and lost replies, and its invariants.

`simulate(seed)` interleaves a few drivers and publishers step by step and injects `Fault`s. Then it ends all faults,
lets everything finish, and checks: the log covers the input once and without gaps, every epoch saw the state of the
previous epochs and changes, every sink has exactly the rows, and no work is left. Equal seeds give equal runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from kit.simulator.faulty_folder import FOLDER_FAULTS, FaultyFolder
from kit.simulator.simulated_driver import APPEND_FAULTS, CUT, ActorSteps, Driver, Publisher, whims_in
from kit.simulator.simulated_world import (
    GROUP,
    Row,
    Sink,
    Violation,
    World,
    bucket_of,
    demand,
    entry_of,
    positions,
)
from millpond.log.follower import Pump
from millpond.log.manifest import Manifest, fold_all, load
from millpond.log.port import HINT_NAME
from millpond.log.protocol import TICK, Writer
from millpond.log.records import ChangeRecord, ClaimRecord, Entry, EpochRecord

FAULTY_TICKS = 260
HEALING_TICKS = 4_000

CRASH = "crash"
PAUSE = "pause"
_CUT_AT = ("claim:read", "claim:append", "begin:read", "commit:append", "change:append", "follow:read")
_COMMITTING = ("claim", "commit", "drain", "change", "map")
_STEPS = (
    "start:load",
    "claim:read",
    "claim:append",
    "claim:announce",
    "claim:hint",
    "claim:manifest",
    "checkpoint:read",
    "checkpoint:offsets",
    "checkpoint:commit",
    "checkpoint:repair",
    "begin:read",
    "begin:announce",
    "task:write",
    "commit:append",
    "commit:announce",
    "commit:hint",
    "commit:manifest",
    "drain:read",
    "drain:append",
    "drain:announce",
    "change:append",
    "change:announce",
    "map:append",
    "map:announce",
    "follow:cursor",
    "follow:load",
    "follow:read",
    "follow:apply",
)
_WORLD = "world"
_WORLD_FAULTS = (
    "rival driver",
    "checkpoint lost",
    "checkpoint restored",
    "hint damaged",
    "manifests lost",
    "manifest damaged",
    "sink lost",
    "log lost",
)
_FOLDER = "folder"
_RARE = ("start:", "claim:", "drain:", "change:", "map:", "checkpoint:repair", "begin:announce", "follow:load")
PLANNED = frozenset(
    [(step, kind) for step in _STEPS for kind in (CRASH, PAUSE)]
    + [(f"{phase}:append", kind) for phase in _COMMITTING for kind in APPEND_FAULTS]
    + [(step, CUT) for step in _CUT_AT]
    + [(_WORLD, kind) for kind in _WORLD_FAULTS]
)
"""Every (step, fault) that a simulation may plan."""

EXPECTED = PLANNED | {(_FOLDER, kind) for kind in FOLDER_FAULTS}
"""Every (step, fault) that the seeds together must reach; a test fails if one was never reached."""


@dataclass(frozen=True)
class Parts:
    """The simulated parts; tests replace them with faulty variants (mutants)."""

    writer: type[Writer] = Writer
    driver: type[Driver] = Driver
    pump: type[Pump] = Pump
    sink: type[Sink] = Sink
    folder: type[FaultyFolder] = FaultyFolder


@dataclass(frozen=True)
class Outcome:
    """The result of one seed: the planned faults that it reached, and the number of disturbances."""

    seed: int
    reached: frozenset[tuple[str, str]]
    records: int
    rows: int
    drivers: int


class SimulationFailure(AssertionError):
    """An invariant was broken; the message has the seed, the invariant and the trace of steps that led to it."""

    def __init__(self, seed: int, law: str, trace: list[str]) -> None:
        super().__init__(f"seed {seed}: {law}\n" + "\n".join(trace))
        self.seed = seed
        self.law = law


@dataclass
class _Actor:
    name: str
    process: str
    body: Driver | Publisher
    steps: ActorSteps[None]
    step: str | None = None
    fault: str | None = None
    asleep_until: int = 0


@dataclass
class _Fault:
    step: str
    kind: str
    countdown: int = field(compare=False)


def simulate(seed: int, parts: Parts = Parts(), planned: tuple[str, str] | None = None) -> Outcome:
    """Run one seed; SimulationFailure if an invariant does not hold.

    `planned`: a step and a fault that the run plans, beside those that its seed draws.
    """
    return _Simulation(seed, parts, planned).run()


class _Simulation:
    def __init__(self, seed: int, parts: Parts, planned: tuple[str, str] | None) -> None:
        self.seed = seed
        self.parts = parts
        self.random = Random(seed)
        # Random numbers of their own: a world without these faults runs as if there were none.
        self.world = World(self.random, parts.folder, Random(f"folders of {seed}"))
        self.world.sinks = [parts.sink("rows"), parts.sink("view")]
        for sink in self.world.sinks:
            sink.deltas = self.world.deltas
        self.actors: list[_Actor] = []
        self.drivers_made = 0
        self.trace: list[tuple[int, str, str, str | None]] = []
        self.reached: set[tuple[str, str]] = set()
        self.faults = self._plan([] if planned is None else [planned])

    def run(self) -> Outcome:
        try:
            for _ in range(FAULTY_TICKS):
                self._tick()
            self._heal()
            rows = check_laws(self.world)
        except Exception as error:
            law = str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
            raise SimulationFailure(self.seed, law, self._trace_lines()) from error
        for requests in (self.world.log_requests, self.world.manifest_requests):
            self.reached |= {(_FOLDER, fault) for fault in requests.reached}
        return Outcome(self.seed, frozenset(self.reached), self.world.head() + 1, rows, self.drivers_made)

    def _plan(self, given: list[tuple[str, str]]) -> list[_Fault]:
        planned = sorted(PLANNED)
        faults = []
        for step, kind in [*self.random.sample(planned, self.random.randint(1, 5)), *given]:
            most = FAULTY_TICKS - 10 if step == _WORLD else 2 if step.startswith(_RARE) else 6
            faults.append(_Fault(step, kind, self.random.randint(1, most)))
        if any(fault.step in ("checkpoint:repair", "begin:announce") for fault in faults):
            # These steps are only taken after such a fault, so inject one.
            faults += [_Fault(_WORLD, "checkpoint restored", 60), _Fault("commit:announce", CRASH, 3)]
        return faults

    def _tick(self) -> None:
        world = self.world
        world.tick += 1
        self._deliver()
        if not world.healing:
            if self.random.random() < 0.15:
                world.source.grow(self.random)
            if self.random.random() < 0.02:
                world.request()
            self._break_world()
        awake = [actor for actor in self.actors if actor.asleep_until <= world.tick]
        seen = [actor for actor in awake if not world.is_cut(actor.process)]
        if not any(isinstance(actor.body, Driver) for actor in seen) and self.random.random() < 0.3:
            self._start_driver()
        if awake:
            self._advance(self.random.choice(awake))

    def _start_driver(self) -> None:
        token = f"driver-{self.drivers_made}"
        self.drivers_made += 1
        for body in (
            self.parts.driver(self.world, token, self.parts.writer),
            Publisher(self.world, token, self.parts.pump),
        ):
            self.actors.append(_Actor(body.name, token, body, body.run()))

    def _advance(self, actor: _Actor) -> None:
        if actor.step is not None:
            self.trace.append((self.world.tick, actor.name, actor.step, actor.fault))
        fault, actor.fault = actor.fault, None
        try:
            actor.step = actor.steps.send(fault if actor.step is not None else None)
        except StopIteration:
            self._end(actor.process)
            return
        self._break(actor, actor.step)

    def _break(self, actor: _Actor, step: str) -> None:
        for fault in self.faults:
            if fault.step != step:
                continue
            fault.countdown -= 1
            if fault.countdown > 0:
                continue
            self.faults.remove(fault)
            self.reached.add((step, fault.kind))
            if fault.kind == CUT and self.random.random() < 0.5:  # healed, and cut again
                self.faults.append(_Fault(step, CUT, self.random.randint(1, 6)))
            if fault.kind == CRASH:
                self._crash(actor)
            elif fault.kind == PAUSE:
                self.trace.append((self.world.tick, actor.name, step, PAUSE))
                actor.asleep_until = self.world.tick + self.random.randint(20, 150)
            else:
                actor.fault = fault.kind
            return

    def _crash(self, actor: _Actor) -> None:
        self.trace.append((self.world.tick, actor.name, str(actor.step), CRASH))
        if isinstance(actor.body, Driver) and actor.body.torn is not None:
            name, delta = actor.body.torn
            self.world.deltas.files[name] = delta[: self.random.randrange(len(delta))]
        self._end(actor.process)

    def _end(self, process: str) -> None:
        for actor in self.actors:
            if actor.process == process:
                actor.steps.close()
        self.actors = [actor for actor in self.actors if actor.process != process]

    def _deliver(self) -> None:
        world = self.world
        for late in [late for late in world.delayed if late.due_tick <= world.tick]:
            world.delayed.remove(late)
            self.trace.append((world.tick, "network", late.what, None))
            late.happen()

    def _break_world(self) -> None:
        for fault in [fault for fault in self.faults if fault.step == _WORLD]:
            fault.countdown -= 1
            if fault.countdown <= 0:
                self.faults.remove(fault)
                self.reached.add((_WORLD, fault.kind))
                self.trace.append((self.world.tick, _WORLD, fault.kind, None))
                self._world_faults()[fault.kind]()

    def _world_faults(self) -> dict[str, Callable[[], None]]:
        world = self.world
        return {
            "rival driver": self._start_driver,
            "checkpoint lost": lambda: self._harm_checkpoint(restored=False),
            "checkpoint restored": lambda: self._harm_checkpoint(restored=True),
            "hint damaged": self._damage_hint,
            "manifests lost": world.manifest_folder.files.clear,
            "manifest damaged": self._damage_manifest,
            "sink lost": lambda: self.random.choice(world.sinks).lose(),
            "log lost": self._lose_log,
        }

    def _lose_log(self) -> None:
        # The operator stops all drivers: one that continued to write to a restored log would leave a gap in it.
        for actor in [*self.actors]:
            self._end(actor.process)
        self.world.checkpoint_was_harmed = True
        head = self.world.head()
        self.world.lose_records(self.random.randint(max(0, head - 6), head + 1))

    def _harm_checkpoint(self, restored: bool) -> None:
        # The operator stops the running drivers; a driver that is paused elsewhere remains and resumes later.
        world = self.world
        for actor in [actor for actor in self.actors if actor.asleep_until <= world.tick]:
            self._end(actor.process)
        world.checkpoint_was_harmed = True
        world.checkpoint = self.random.choice(world.backups).copy() if restored else world.new_checkpoint({})

    def _damage_hint(self) -> None:
        folder = self.random.choice((self.world.log_folder, self.world.manifest_folder))
        damage = self.random.choice((b"", b"\xff\x00", b"0", b"99999999", b"-1", None))
        if damage is None:
            folder.remove(HINT_NAME)
        else:
            folder.replace(HINT_NAME, damage)

    def _damage_manifest(self) -> None:
        files = self.world.manifest_folder.files
        names = sorted(name for name in files if name != HINT_NAME)
        if names:
            data = bytearray(files[names[-1]])
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
            files[names[-1]] = bytes(data)

    def _heal(self) -> None:
        self.world.healing = True
        self.world.log_requests.rate = self.world.manifest_requests.rate = 0.0
        self.faults = []
        for actor in self.actors:
            actor.asleep_until, actor.fault = 0, None
        for waited in range(HEALING_TICKS):
            if waited % 20 == 0 and self._settled():
                return
            self._tick()
        raise Violation(f"still not settled {HEALING_TICKS} steps after everything was healed")

    def _settled(self) -> bool:
        world = self.world
        if world.requests or world.delayed or any(sink.applied != world.head() for sink in world.sinks):
            return False
        if sum(isinstance(actor.body, Driver) for actor in self.actors) != 1:
            return False
        ends = load(world.true_log, world.true_manifests).offsets
        return all(positions(ends.get(s), len(lengths)) == lengths for s, lengths in world.source.lengths.items())

    def _trace_lines(self) -> list[str]:
        return [f"{tick:5} {who:20} {step}{f'  <- {fault}' if fault else ''}" for tick, who, step, fault in self.trace]


def check_laws(world: World) -> int:
    """Check every invariant after all work has finished, from the log's bytes only; return the number of rows."""
    entries = _entries(world)
    _check_writers(entries)
    _check_changes(world, entries)
    _check_coverage(world, entries)
    manifest = fold_all(Manifest(), entries)
    loaded = load(world.true_log, world.true_manifests)
    demand(manifest == loaded, "the loaded manifest differs from the fold of the log")
    _check_times(world, manifest)
    rows = [row for entry in entries for row in world.deltas.rows_of(entry)]
    _check_rows(world, rows)
    live = [world.deltas.section(s, world.true_log) for s in manifest.sections.values() if s.kind == "segment"]
    demand(sorted(row for part in live for row in part) == sorted(rows), "the live segments are not the input")
    for sink in world.sinks:
        world.check_sink(sink)
        demand(sink.rows == rows, f"{sink.name} does not show exactly the rows of the log")
    return len(rows)


def _entries(world: World) -> list[Entry]:
    found: list[Entry] = []
    while (data := world.true_log.read(len(found))) is not None:
        found.append(entry_of(data))
    numbered = sum(name != HINT_NAME for name in world.log_folder.files)
    demand(numbered == len(found), "the log has a hole")
    return found


def _check_writers(entries: list[Entry]) -> None:
    writer = ""
    for entry in entries:
        if isinstance(entry.record, ClaimRecord):
            writer = entry.record.writer
        demand(entry.record.writer == writer, f"record {entry.n} was written after another driver's claim")


def _check_changes(world: World, entries: list[Entry]) -> None:
    """Check that each change is made once, durably, and that each epoch applies exactly the changes before it."""
    made: list[str] = []
    for entry in entries:
        record = entry.record
        if isinstance(record, ClaimRecord):
            demand(json.loads(record.spec) == made, f"the claim {entry.n} says {record.spec}, after {made}")
        elif isinstance(record, ChangeRecord):
            made += whims_in([record.change])
        else:
            by = {row[4] for row in world.deltas.rows_of(entry)}
            demand(by <= {len(made)}, f"record {entry.n} answers by {by} changes, after {len(made)}")
    demand(len(set(made)) == len(made), f"a change was made twice: {made}")
    demand({*world.replied} <= {*made}, f"changes that were confirmed to a client are lost: {world.replied} in {made}")


def _check_coverage(world: World, entries: list[Entry]) -> None:
    reached = {stream: [0] * len(lengths) for stream, lengths in world.source.lengths.items()}
    for entry in entries:
        if not isinstance(entry.record, EpochRecord):
            continue
        for stream in sorted(entry.record.end.keys() - {TICK}):
            start = positions(entry.record.start.get(stream), len(reached[stream]))
            demand(
                start == reached[stream],
                f"record {entry.n} starts {stream} at {start}, not {reached[stream]}",
            )
            reached[stream] = positions(entry.record.end[stream], 0)
    demand(reached == world.source.lengths, f"the log ends at {reached}, the input at {world.source.lengths}")


def _check_times(world: World, manifest: Manifest) -> None:
    for stream, times in manifest.max_time.items():
        newest = {str(partition): length for partition, length in enumerate(world.source.lengths[stream])}
        demand(times == newest, f"the newest times of {stream} are {times}, not {newest}")


def _check_rows(world: World, rows: list[Row]) -> None:
    """Compare with an oracle without epochs: each event once, in order, on the state of the previous events."""
    expected = {
        (stream, partition, position)
        for stream, lengths in world.source.lengths.items()
        for partition, length in enumerate(lengths)
        for position in range(length)
    }
    times_shown = Counter(row[:3] for row in rows)
    demand(times_shown.keys() == expected and all(n == 1 for n in times_shown.values()), "input lost or doubled")
    seen: Counter[int] = Counter()
    newest: dict[tuple[str, int, int], int] = {}
    for stream, partition, position, counted, _ in rows:
        bucket = bucket_of(partition, position)
        seen[bucket] += 1
        demand(counted == seen[bucket], f"{GROUP} state at {stream}/{partition}/{position} was {counted}")
        demand(newest.get((stream, partition, bucket), -1) < position, f"{stream}/{partition} is out of order")
        newest[stream, partition, bucket] = position
