"""Runs an epoch as a state machine: each state is a value with what is known by then, and each step makes the next one.

    Planned --begin--> Begun --compute--> Computed --assemble--> Assembled --append--> Appended --publish--> Published
       |                                                             |
       |--> Repeated: the log has the batch already <----------------'
       |--> Skipped: nothing is due
       '--> Deferred: a query that reads other input must run the batch

A step that fails raises, and the epoch ends there. Before Appended, nothing of it is visible, and Spark repeats its
batch in another epoch. From Appended on the record is in the log, so that the repeated batch ends as Repeated.
`log.protocol` makes the decisions, `runtime` computes the values, and the driver hands in the job that Spark runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from millpond.clock import lap_us, now_us
from millpond.faults import reached
from millpond.followers.view.shard_watch import WantedOwners
from millpond.log.protocol import AlreadyTrue, Run, moved
from millpond.log.records import ChangeRecord, EpochRecord, Offsets, Receipt, SourceUpdate
from millpond.placement.moves import BucketMap
from millpond.reconfigure.apply import is_read
from millpond.runtime.epoch import (
    Batch,
    Idle,
    Setting,
    assemble,
    fold_task,
    gather_task,
    map_record,
    next_step,
    pending,
    requested_bucket_map,
    step_record,
    watermarks,
)
from millpond.runtime.gather.dead_letters import Breaker
from millpond.runtime.inspect.timeline import DRIVER, EpochTimeline, Timelines
from millpond.runtime.scheduling.committed_epoch import CommittedEpoch
from millpond.runtime.scheduling.quiet_epochs import QuietEpochs, Waits, is_behind
from millpond.runtime.task.counters import WHOLE_POND
from millpond.runtime.task.task_values import FoldTask, GatherTask
from millpond.spans import Span, Spans
from millpond.spark.driver.advisers import Advisers
from millpond.spark.driver.checkpoint import check_names, query_id, read_offsets, read_taken
from millpond.spark.driver.epochs import Epoch
from millpond.spark.driver.log_head import LogHead
from millpond.spark.reading.intake import Intake
from millpond.spark.reading.source_updates import source_updates
from millpond.spark.session.batch_rows import BatchRows


@dataclass(frozen=True, slots=True)
class Planned:
    """The offsets between which the epoch reads are fixed.

    `rows` are what Spark reads between them, and `checkpoint` is the folder in which Spark planned the batch. Without
    rows, the epoch reads no input. `level`: close all windows over the streams of this level (see
    `runtime.epoch.fold_task`). `merges_wait`: merges of state wait for a quieter epoch.
    """

    batch: Batch
    rows: BatchRows | None = None
    checkpoint: Path = Path()
    level: int | None = None
    merges_wait: bool = False


@dataclass(frozen=True, slots=True)
class Begun:
    """The epoch continues the log, as the record of `run`.

    `idle`: the partitions that watermarks do not wait for. `sources`: what the record stores about its sources.
    """

    planned: Planned
    run: Run
    idle: Idle
    sources: Mapping[str, SourceUpdate]


@dataclass(frozen=True, slots=True)
class Computed:
    """The job has gathered, shuffled and folded: every instance has returned its receipt and its delta.

    The job took from `began_us` to `worked_us`, on the clock of `lap_us`.
    """

    begun: Begun
    task: FoldTask
    deltas: list[tuple[Receipt, bytes]]
    began_us: int
    worked_us: int


@dataclass(frozen=True, slots=True)
class Assembled:
    """The record of the epoch is complete and valid, but is not in the log yet."""

    computed: Computed
    record: EpochRecord
    body: bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """The record is in the log, so the epoch is committed. `ended_us`: when, on the clock of `lap_us`."""

    computed: Computed
    record: EpochRecord
    ended_us: int


@dataclass(frozen=True, slots=True)
class Published:
    """The end of a committed epoch: advisers and the pond know of it."""

    record: EpochRecord

    @property
    def events(self) -> int:
        """The number of events that it read."""
        return self.record.counts.get(WHOLE_POND, {}).get("events", 0)


@dataclass(frozen=True, slots=True)
class Repeated:
    """The end of an epoch whose batch an earlier epoch has committed."""

    events = 0


@dataclass(frozen=True, slots=True)
class Skipped:
    """The end of an epoch in which nothing is due: only the tick has advanced."""

    events = 0


@dataclass(frozen=True, slots=True)
class Deferred:
    """The end of an epoch whose batch must be run by a query that reads other columns."""


Active: TypeAlias = Planned | Begun | Computed | Assembled | Appended
Ended: TypeAlias = Published | Repeated | Skipped | Deferred

TRANSITIONS: Mapping[type[Active], tuple[type[Active | Ended], ...]] = {
    Planned: (Begun, Repeated, Skipped, Deferred),
    Begun: (Computed,),
    Computed: (Assembled,),
    Assembled: (Appended, Repeated),
    Appended: (Published,),
}
"""The states that can follow each state; a state that is missing is an end."""

_STEPS: Mapping[type[Active], str] = {
    Planned: "begin", Begun: "make tasks", Computed: "assemble", Assembled: "append", Appended: "inform",
}  # fmt: skip
"""The names of the steps from each state, for timelines."""

Job: TypeAlias = Callable[[Begun, GatherTask, FoldTask], list[tuple[Receipt, bytes]]]
"""Runs the job of an epoch; its deltas are in the pond's folder if the receipts say so."""


class EpochRunner:
    """Runs the epochs of one driver, one at a time, by the thread that holds the lock of `head`.

    - `job`: gathers, shuffles and folds.
    - `followed()`: the newest record that all followers have applied.
    - `wanted`: returns better owners of buckets than the current ones, if there are any.
    - `on_epoch`: called for every commit.

    `timelines`: of the newest epochs.
    """

    def __init__(
        self, head: LogHead, advisers: Advisers, intake: Intake, job: Job, followed: Callable[[], int],
        wanted: Callable[[BucketMap], WantedOwners | None], on_epoch: Callable[[Epoch], None],
    ) -> None:  # fmt: skip
        self._head, self._advisers, self._intake, self._job = head, advisers, intake, job
        self._followed, self._wanted, self._on_epoch = followed, wanted, on_epoch
        self._breaker, self._quiet_epochs = Breaker(), QuietEpochs()
        self._read_for: Setting | None = None
        self._ended, self._ended_lap = now_us(), lap_us()
        self.timelines, self._spans, self._began_us = Timelines(), Spans(DRIVER), now_us()

    def plan_batch(self, rows: BatchRows, number: int, checkpoint: Path, request_us: Callable[[], int]) -> Planned:
        """Plan an epoch that commits Spark's batch `number`; migrations that precede it are recorded here.

        `request_us`: how long Spark took to request the offsets.

        Raises:
            OffsetGapError: the checkpoint is damaged. FencedError: another driver has taken over.
        """
        reached("begin.start")
        self._spans, self._began_us = Spans(DRIVER), now_us()
        start, (end, taken) = read_offsets(checkpoint, number - 1), read_taken(checkpoint, number)
        layout = self._head.setting.layout
        check_names(end, layout.sources if layout is not None else ())
        batch = Batch(query_id(checkpoint), number, start, end)
        self._record_wanted_owners(end)
        news = moved(start, end, self._head.manifest.offsets)  # a tick alone moves no offsets
        waits = self._migrate(taken, request_us) if news else Waits()
        self._spans.add("read plan", self._began_us)
        return Planned(batch, rows, checkpoint, merges_wait=waits.merges)

    def plan_without_input(self, level: int | None = None) -> Planned:
        """Plan an epoch without input; if `level` is given, it closes every window over streams of that level.

        Raises:
            FencedError: another driver has taken over.
        """
        reached("drain.before")
        self._spans, self._began_us = Spans(DRIVER), now_us()
        manifest = self._head.catch_up().manifest
        offsets = dict(manifest.offsets)
        return Planned(Batch(manifest.spark_query, manifest.batch, offsets, offsets), level=level)

    def run(self, planned: Planned) -> Ended:
        """Take an epoch from its plan to its end.

        Raises:
            RuntimeError: a step made a state that cannot follow (a defect). Other errors are those of the steps.
        """
        state: Active | Ended = planned
        while isinstance(state, Active):
            with self._spans.during(_STEPS[type(state)]):
                after = self._next(state)
            if type(after) not in TRANSITIONS[type(state)]:
                raise RuntimeError(f"an epoch cannot go from {type(state).__name__} to {type(after).__name__}")
            if isinstance(after, Published):
                assert isinstance(state, Appended)
                batch = planned.batch.number if planned.rows is not None else None
                self.timelines.add(self._timeline(batch, state, self._spans.take()))
            state = after
        return state

    def _timeline(self, batch: int | None, appended: Appended, spans: Iterable[Span]) -> EpochTimeline:
        """The timeline of an epoch that was committed, with these spans of the driver and those of its tasks."""
        record = appended.record
        tasks = (span for receipt, _ in appended.computed.deltas for span in receipt.spans)
        events = record.counts.get(WHOLE_POND, {}).get("events", 0)
        return EpochTimeline(record.n, batch, events, self._began_us, now_us(), (*spans, *tasks))

    def _next(self, state: Active) -> Active | Ended:
        match state:
            case Planned():
                return self._begin(state)
            case Begun():
                return self._compute(state)
            case Computed():
                return self._assemble(state)
            case Assembled():
                return self._append(state)
            case Appended():
                return self._publish(state)

    def _begin(self, planned: Planned) -> Begun | Repeated | Skipped | Deferred:
        head, batch = self._head, planned.batch
        if planned.rows is None:
            run = head.catch_up()
            head.arrange(run.manifest)
            head.expect(batch.end)
            return Begun(planned, run, {}, {})
        started = head.perform(head.writer.begin(batch.number, batch.start, batch.end, batch.spark_query))
        reached("begin.decided")
        if isinstance(started, AlreadyTrue):
            return Repeated()
        sources = source_updates(planned.checkpoint, batch.end, started.manifest.known_sources)
        self._intake.note_batch(planned.checkpoint, batch.start, batch.end, sources)
        head.arrange(started.manifest)
        head.expect(batch.end)
        unread = head.setting is not self._read_for and not is_read(head.setting)
        if self._advisers.functions.ended() or unread:
            return Deferred()
        self._read_for = head.setting
        idle = self._advisers.idle.idle(started.manifest.max_time, lap_us())
        due = self._advisers.idle.is_news(idle) or pending(head.setting, started.manifest)
        return Skipped() if started.idle and not due else Begun(planned, started, idle, sources)

    def _compute(self, begun: Begun) -> Computed:
        planned, run, setting = begun.planned, begun.run, self._head.setting
        instant_us = self._head.now()
        gathering = gather_task(setting, run, None if planned.rows is None else instant_us, instant_us)
        began_us, drains = lap_us(), planned.level is not None
        task = fold_task(
            setting, run, self._head.writer.token, drains, begun.idle, planned.level or 0, planned.merges_wait,
            instant_us,
        )
        reached("epoch.before_job")
        with self._spans.during("job"):
            deltas = self._job(begun, gathering, task)
        worked_us = lap_us()
        reached("epoch.after_job")
        return Computed(begun, task, deltas, began_us, worked_us)

    def _assemble(self, computed: Computed) -> Assembled:
        begun, setting = computed.begun, self._head.setting
        record, body = assemble(
            setting, begun.run, computed.task, begun.planned.batch, computed.deltas, self._head.now(), self._followed()
        )
        self._breaker.check(setting.layout, record)
        return Assembled(computed, msgspec.structs.replace(record, sources=dict(begun.sources)), body)

    def _append(self, assembled: Assembled) -> Appended | Repeated:
        done = self._head.commit(assembled.record, assembled.body)
        if isinstance(done, AlreadyTrue):
            return Repeated()
        return Appended(assembled.computed, assembled.record, lap_us())

    def _publish(self, appended: Appended) -> Published:
        head, computed, record = self._head, appended.computed, appended.record
        seconds = (appended.ended_us - computed.began_us) / 1e6
        between = (computed.began_us - self._ended_lap) / 1e6
        self._ended, self._ended_lap = now_us(), appended.ended_us
        self._advisers.committed(
            CommittedEpoch(
                record, head.setting.streams, head.spec, head.setting.plan, computed.begun.run.manifest,
                appended.ended_us, seconds, between,
            )
        )  # fmt: skip
        job_seconds = (computed.worked_us - computed.began_us) / 1e6
        timeline = self._timeline(None, appended, self._spans.found)
        missing, ahead = self._intake.take_missing(), self._intake.take_dated_ahead()
        hosts = {receipt.instance: receipt.host for receipt, _ in computed.deltas}
        self._on_epoch(Epoch(record, seconds, job_seconds, missing, ahead, timeline, hosts))
        return Published(record)

    def _record_wanted_owners(self, end: Offsets) -> None:
        """Record a bucket map that suits the store or the topic better than the current one, if there is such a map."""
        setting, writer = self._head.setting, self._head.writer
        requested = requested_bucket_map(setting, writer.manifest)
        wanted = self._advisers.direct.wanted(setting, end, requested, self._wanted(requested))
        if wanted is not None:
            self._record_map(lambda run: map_record(setting, run, writer.token, *wanted, self._head.now()))

    def _migrate(self, taken: int, request_us: Callable[[], int]) -> Waits:
        """Record a migration's next step unless it should wait for a quiet epoch; return what should wait."""
        setting, writer = self._head.setting, self._head.writer
        manifest = writer.manifest
        behind = is_behind(self._ended, request_us, taken, now_us())
        waits = self._quiet_epochs.decide_next(setting.plan.groups, watermarks(manifest), behind, lap_us())
        step = next_step(setting, manifest, waits.step)
        if step is not None:
            self._record_map(lambda run: step_record(setting, run, writer.token, step, self._head.now()))
        return waits

    def _record_map(self, made: Callable[[Run], ChangeRecord]) -> None:
        reached("map.before")
        self._head.commit(made(self._head.catch_up()))
        reached("map.after")
