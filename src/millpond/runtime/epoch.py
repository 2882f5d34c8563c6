"""The values of an epoch, from the manifest to the two tasks and from receipts to the record. Pure, without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from millpond.log.manifest import Manifest
from millpond.log.protocol import Run
from millpond.log.records import STATE, ChangeRecord, EpochRecord, Fates, Offsets, Receipt
from millpond.model.change_history import Scaled
from millpond.model.change_json import MapChange, change_to_json
from millpond.model.expressions import Literal
from millpond.model.stream import Stream
from millpond.model.windows import RUNNING
from millpond.placement.alignment import Owners
from millpond.placement.move_steps import Step, step
from millpond.placement.moves import BucketMap, asked_map, bucket_maps, sources
from millpond.placement.run_lengths import runs_of
from millpond.plan.chains.parameter_feeds import Fed
from millpond.plan.chains.upstream import drained_at, feeds, halted, last_row_us, levels
from millpond.plan.groups.joins import SideLog, last_final_us
from millpond.plan.groups.plan import GroupPlan, KeptEvents, Plan
from millpond.plan.options.late_rows import late_asks
from millpond.plan.options.live_parameters import with_parameters
from millpond.runtime.event_log.bin_counts import tallies_needed_from
from millpond.runtime.event_log.retention import events_needed_from, slices_needed_from
from millpond.runtime.gather.lateness import ANY_PARTITION, advanced
from millpond.runtime.gather.retained_events import kept_from
from millpond.runtime.inputs.parameter_feeds import fed_values, told_by
from millpond.runtime.inputs.replay import backfilled_groups, recalled_events
from millpond.runtime.inputs.upstream_rows import chained_lines, chained_rows, event_time_of, is_pending, with_chained
from millpond.runtime.joins.fold_joins import joins_need_from
from millpond.runtime.moves.bucket_handoff import stays
from millpond.runtime.moves.move_state import dealt_logs, moving, shares_here
from millpond.runtime.packets.event_counts import add_fates, bounded
from millpond.runtime.packets.packet import SourceFates
from millpond.runtime.task.column_layout import ReadLayout
from millpond.runtime.task.state_locations import group_state
from millpond.runtime.task.task_values import FoldTask, GatherTask, TimeLine, Watermark

Idle = Mapping[str, frozenset[str]]
"""Stream -> source partitions that its watermark does not wait for."""


class Setting(NamedTuple):
    """What stays the same from epoch to epoch: where the pond is, and how it is laid out; `instances` and `owners` of
    buckets, as the pond was made with them, and `scaled`, as was asked since: see `maps`.

    `paused`: queries that tell no rows; `replaced`: pairs of a version that was replaced and its query;
    `parameters`: the constants in force; HAVING and outputs of the plan have them already; `recalled`: versions
    that begin with retained events: the record of the change, and from when on; `fed`: parameters that rows give
    values to, whose constants the log has.
    `step_bytes`: see `next_step`.
    """

    pond: str
    folder: str
    cache: str
    streams: tuple[Stream, ...]
    plan: Plan
    layout: ReadLayout | None
    instances: int
    owners: tuple[int, ...]
    paused: frozenset[str] = frozenset()
    replaced: tuple[tuple[str, str], ...] = ()
    parameters: tuple[tuple[str, Literal], ...] = ()
    recalled: tuple[tuple[str, int, int], ...] = ()
    scaled: tuple[Scaled, ...] = ()
    fed: tuple[Fed, ...] = ()
    step_bytes: int = 4 << 20


class Batch(NamedTuple):
    """The Spark batch an epoch makes true."""

    spark_query: str
    number: int
    start: Offsets
    end: Offsets


def watermarks(manifest: Manifest) -> dict[str, Watermark]:
    """How far each stream had come before the next epoch."""
    streams = {*manifest.max_time, *manifest.watermark_floor}
    return {
        stream: Watermark(
            manifest.max_time.get(stream, {}).get(ANY_PARTITION), manifest.watermark_floor.get(stream)
        )
        for stream in streams
    }


def time_lines(setting: Setting, manifest: Manifest, idle: Idle) -> dict[str, TimeLine]:
    """Where event time of each stream stands before the next epoch."""
    marks = watermarks(manifest)
    lines = {}
    for stream in setting.streams:
        order, seen = stream.order, manifest.max_time.get(stream.name, {})
        lines[stream.name] = TimeLine(
            marks.get(stream.name, Watermark()),
            order is not None,
            {name: time for name, time in seen.items() if name != ANY_PARTITION},
            () if order is None else order.partitions,
            idle.get(stream.name, frozenset()),
            stream.max_ahead_us,
        )
    return lines | chained_lines(setting.plan, setting.streams, manifest, marks)


def pending(setting: Setting, manifest: Manifest) -> bool:
    """Whether an epoch that reads nothing is due: rows of one query wait for others, or moved their event time."""
    return is_pending(manifest, setting.streams, time_lines(setting, manifest, {}))


def depth(setting: Setting) -> int:
    """How many queries follow each other at most before a stream: a drain takes so many epochs more."""
    return max(levels(setting.streams, setting.plan.asked).values(), default=0)


def maps(setting: Setting, manifest: Manifest) -> tuple[BucketMap, BucketMap]:
    """The map by which state lies, and the one for the next epoch."""
    return bucket_maps(setting.owners, setting.instances, manifest, setting.scaled)


def map_asked(setting: Setting, manifest: Manifest) -> BucketMap:
    """The map that was asked for last, to which that for the next epoch may be a step."""
    return asked_map(setting.owners, setting.instances, manifest, setting.scaled)


def map_record(setting: Setting, run: Run, writer: str, owners: Owners, why: str, at_us: int) -> ChangeRecord:
    """The record by which buckets get other owners, from the next epoch on; there are as many instances as asked."""
    return _map_record(setting, run, writer, owners, map_asked(setting, run.manifest).instances, why, at_us)


def step_record(setting: Setting, run: Run, writer: str, found: Step, at_us: int) -> ChangeRecord:
    """The record of a step towards another map."""
    why = f"a step towards record {found.towards}"
    return _map_record(setting, run, writer, found.owners, found.instances, why, at_us, found.towards)


def _map_record(
    setting: Setting, run: Run, writer: str, owners: Owners, instances: int, why: str, at_us: int,
    towards: int | msgspec.UnsetType = msgspec.UNSET,
) -> ChangeRecord:  # fmt: skip
    count = msgspec.UNSET if instances == setting.instances else instances
    change = change_to_json(MapChange(runs_of(owners), why, count, towards))
    return ChangeRecord(n=run.n, writer=writer, prev=run.prev, at=at_us, change=change)


def next_step(setting: Setting, manifest: Manifest, waits: bool = False) -> Step | None:
    """The step to record before the next epoch, if there is one; one of several moves nothing if it `waits`.

    It moves `step_bytes`, or a 512th of all state if more: each passes over the state that stays. Where more than that
    would be made anew by each step (see `taken_over.stays`), all goes at once.
    """
    (lies, now), asked = maps(setting, manifest), map_asked(setting, manifest)
    if lies[1:] == asked[1:]:
        return None
    staying = {one.id: stays(one) for one in moving(setting.plan)}
    held, anew = [0.0] * lies.instances, 0
    here = shares_here(manifest)
    for section in manifest.sections.values():
        if section.kind in STATE and section.group in staying:
            if staying[section.group]:
                held[section.instance] += section.size * here.get((section.instance, section.group), 1.0)
            else:
                anew += section.size
    most = max(setting.step_bytes, sum(held) / 512)
    if anew > most:
        return None
    owned = Counter(lies.owners)
    return step(lies, now, asked, [held[one] / owned[one] for one in lies.owners], most, waits and sum(held) > most)


def told_plan(setting: Setting, manifest: Manifest) -> Plan:
    """The plan of the next epoch: with the constants that rows have given to parameters, or that they began with.

    It is the same object while these are the same, so that it is made, and sent to workers, once.
    """
    global _newest_told
    if not setting.fed:
        return setting.plan
    values, known = dict(setting.parameters) | fed_values(setting.fed, manifest), _newest_told
    if known is None or known.plan is not setting.plan or known.values != values:
        known = _newest_told = _Told(setting.plan, values, with_parameters(setting.plan, values))
    return known.told


class _Told(NamedTuple):
    plan: Plan
    values: dict[str, Literal]
    told: Plan


_newest_told: _Told | None = None
"""The plan that was told last."""


def gather_task(setting: Setting, run: Run, now_us: int | None = None) -> GatherTask:
    """The gather of the epoch; `now_us` bounds how far ahead an event may be."""
    layout, now = with_chained(setting.layout, setting.streams, setting.plan), maps(setting, run.manifest)[1]
    return GatherTask(
        told_plan(setting, run.manifest),
        layout,
        time_lines(setting, run.manifest, {}),
        now.owners,
        now.instances,
        now_us,
        setting.paused | run.manifest.quarantined.keys(),
        late_asks(setting.plan, setting.streams),
        chained_rows(run.manifest, setting.streams, layout),
        dict(setting.parameters) | fed_values(setting.fed, run.manifest),
        recalled_events(setting.plan, setting.recalled, run.manifest),
    )


def fold_task(
    setting: Setting, run: Run, writer: str, drain: bool = False, idle: Idle | None = None, level: int = 0,
    merges_wait: bool = False,
) -> FoldTask:  # fmt: skip
    """The fold of the epoch; `drain` closes all that queries of one level wait for (see `plan.chains.upstream`), `idle`
    partitions are not waited for. `merges_wait`: see `calm`.
    """
    lines = time_lines(setting, run.manifest, idle or {})
    floors: dict[str, int] = {}
    if drain:
        at = levels(setting.streams, setting.plan.asked)
        halts = halted(setting.streams, setting.plan.asked, run.manifest.quarantined)
        ready = {query.name for query in setting.plan.asked if drained_at(query, at) == level}
        every = drain_floors(setting.plan, run.manifest, lines, ready, last_rows(setting, run.manifest, at))
        floors = {stream: floor for stream, floor in every.items() if stream not in halts}
    kept: list[GroupPlan | SideLog | KeptEvents] = [
        *setting.plan.groups, *setting.plan.joins.logs, *setting.plan.retained
    ]  # fmt: skip
    lies, now = maps(setting, run.manifest)
    state = {
        instance: {group.id: group_state(run.manifest, instance, group) for group in kept}
        for instance in range(max(lies.instances, now.instances))
    }
    return FoldTask(
        setting.pond,
        setting.cache,
        run.n,
        told_plan(setting, run.manifest),
        lines,
        floors,
        state,
        now.owners,
        writer,
        drain,
        setting.paused | run.manifest.quarantined.keys(),
        late_asks(setting.plan, setting.streams),
        feeds(setting.streams),
        now.number,
        sources(lies.owners, now.owners),
        dict(setting.replaced),
        now.instances,
        lies.instances,
        setting.fed,
        backfilled_groups(setting.plan, setting.recalled, run.manifest),
        lies.owners != map_asked(setting, run.manifest).owners,
        merges_wait,
    )


def drain_floors(
    plan: Plan, manifest: Manifest, lines: Mapping[str, TimeLine] | None = None,
    ready: Collection[str] | None = None, latest: Mapping[str, int] | None = None,
) -> dict[str, int]:  # fmt: skip
    """For each stream the end of the last window that holds an event seen so far, or a row that `lines` announce;
    `ready`: only what these queries wait for. `latest`: see `last_rows`.

    A join waits for both of its streams, one of which may have been drained before. For it rows count, not how far
    `lines` have come, since it moves the stream on that its rows are made of: else each drain would go further.
    """
    floors: dict[str, int] = {}

    def newest(streams: Iterable[str]) -> int | None:
        seen = [time for stream in streams for time in manifest.max_time.get(stream, {}).values()]
        reached = [line.reaches_us for stream in streams if (line := (lines or {}).get(stream)) is not None]
        return max([*seen, *(time for time in reached if time is not None)], default=None)

    for group in plan.groups:
        time = newest([group.stream])
        if time is None or not (ready is None or any(one.query.name in ready for one in group.queries)):
            continue
        ends = [window.assign(time)[-1].end_us for window in group.windows if window != RUNNING]
        if group.own_end is not None:
            live = (section for section in manifest.sections.values() if section.group == group.id)
            ends += [last for section in live if isinstance(last := section.info.get("last"), int)]
        if ends:
            floors[group.stream] = max([*ends, floors.get(group.stream, ends[0])])
    for join in (plan.join for plan in plan.joins.plans if ready is None or plan.join.name in ready):
        ends_at = [(latest or {}).get(stream, newest([stream])) for stream in join.streams]
        time = max((one for one in ends_at if one is not None), default=None)
        if time is not None:
            for stream in join.streams:  # one of them may have had no event yet
                final = last_final_us(join, time)
                floors[stream] = max(floors.get(stream, final), final)
    # one that a join of a higher level has set may be above what the queries of this level need
    return {stream: max(floor, manifest.watermark_floor.get(stream, floor)) for stream, floor in floors.items()}


def last_rows(setting: Setting, manifest: Manifest, at: Mapping[str, int]) -> dict[str, int]:
    """For the streams made of rows, by their levels `at`, the latest time that a row made of what was seen can have."""
    times = {stream: max(seen.values()) for stream, seen in manifest.max_time.items() if seen}
    asked = {query.name: query for query in setting.plan.asked}
    found: dict[str, int] = {}
    for stream in sorted(setting.streams, key=lambda stream: at[stream.name]):
        event_time = event_time_of(setting.plan, stream.name)
        if stream.upstream is not None and event_time is not None:
            row = last_row_us(asked[stream.upstream], event_time, times | found)
            found |= {} if row is None else {stream.name: row}
    return found


def assemble(
    setting: Setting, run: Run, task: FoldTask, batch: Batch, deltas: Iterable[tuple[Receipt, bytes]],
    at_us: int, followed: int,
) -> tuple[EpochRecord, bytes]:  # fmt: skip
    """The record of an epoch and its body, from what the instances returned.

    `followed`: every follower has applied the records up to this number, so their result rows may go.
    """
    receipts, bodies, size = [], [], 0
    fates: Fates = {}
    found = sorted(deltas, key=lambda delta: delta[0].instance)
    for receipt, body in found:
        add_fates(fates, (SourceFates([query], told) for query, told in receipt.fates.items()))
        receipt = msgspec.structs.replace(receipt, fates={}, fed={})
        receipts.append(receipt if receipt.file is not None else msgspec.structs.replace(receipt, at=size))
        bodies.append(body)
        size += len(body)
    quarantined = _raised(receipts)
    counts = _counts(receipts, quarantined)
    before = dict(setting.parameters) | fed_values(setting.fed, run.manifest)
    going = [fed for fed in setting.fed if fed.query not in quarantined]
    told = told_by(going, (receipt for receipt, _ in found), before, counts)
    newest = _newest(receipts)
    after = {stream: advanced(line, newest.get(stream, {})) for stream, line in task.lines.items()}
    times = {stream: dict(newest.get(stream, {})) for stream in task.lines}
    for stream, mark in after.items():
        if mark.max_time_us is not None:
            times[stream][ANY_PARTITION] = mark.max_time_us
    for stream, floor in task.drain_floor_us.items():
        after[stream] = Watermark(after[stream].max_time_us, floor)
    record = EpochRecord(
        n=run.n,
        writer=task.writer,
        prev=run.prev,
        at=at_us,
        spark_query=batch.spark_query,
        batch=batch.number,
        start=batch.start,
        end=batch.end,
        max_time={stream: found for stream, found in times.items() if found},
        idle={stream: sorted(line.idle) for stream, line in task.lines.items() if line.idle},
        watermark_floor=task.drain_floor_us,
        drained=task.drained,
        map=task.map,
        receipts=tuple(receipts),
        counts=counts,
        fates=bounded(fates),
        retired=retired(setting.plan, run.manifest, after, followed, _remade(task), task.before != task.instances),
        quarantined=quarantined,
        fed=told,
    )
    return record, b"".join(bodies)


def _remade(task: FoldTask) -> dict[int, set[str]]:
    """Groups and logs whose state an instance has made anew, or that has nothing of them any more."""
    every = moving(task.plan)
    return {
        instance: {one.id for one in every if instance not in task.owners or not stays(one)}
        for instance in task.sources
    }


def _newest(receipts: Sequence[Receipt]) -> dict[str, dict[str, int]]:
    """Stream -> source partition -> largest event time of the epoch; every instance saw the same."""
    newest: dict[str, dict[str, int]] = {}
    for receipt in receipts:
        for name, value in receipt.counts.items():
            kind, _, place = name.partition(":")
            if kind == "max_time":
                stream, _, partition = place.partition(":")
                newest.setdefault(stream, {})[partition] = value
    return newest


_RESULTS = ("rows", "withheld")


def _counts(receipts: Sequence[Receipt], quarantined: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Counts by query, all instances together. No sink gets the rows of a query that is quarantined in this epoch,
    whichever instances have made some, so none is counted.
    """
    counts: dict[str, dict[str, int]] = {}
    for receipt in receipts:
        for name, value in receipt.counts.items():
            kind, _, query = name.partition(":")
            if kind not in ("max_time", "raised") and not (kind in _RESULTS and query in quarantined):
                found = counts.setdefault(query, {})
                found[kind] = found.get(kind, 0) + value
    return counts


def _raised(receipts: Sequence[Receipt]) -> dict[str, str]:
    """Queries that raised, each with the reason that the first instance gives, or the usual one."""
    reasons: dict[str, str] = {}
    for receipt in receipts:
        for name in receipt.counts:
            kind, _, query = name.partition(":")
            if kind == "raised" and query not in reasons:
                usual = f"[MP-OVERFLOW] A result of query {query!r} leaves its type or divides by zero."
                reasons[query] = receipt.reasons.get(query, usual)
    return dict(sorted(reasons.items()))


def retired(
    plan: Plan, manifest: Manifest, after: Mapping[str, Watermark], followed: int,
    remade: Mapping[int, Collection[str]] | None = None, again: bool = False,
) -> tuple[str, ...]:  # fmt: skip
    """Sections that nobody needs any more: segments whose slices no open window holds, rows everybody has, what a
    backfill brought, which this epoch has recalled, and state of instances that was `remade`, these groups of it, as
    other buckets became theirs, or was dealt `again` to another number of them.

    Rows of served queries stay, so that a lost view can be made again; their late rows go.
    """
    remade = remade or {}
    anew = {log.id for log in dealt_logs(plan)} if again else set()
    marks = {group.id: (group, after.get(group.stream, Watermark())) for group in plan.groups}
    horizons = {("segment", name): slices_needed_from(group, mark) for name, (group, mark) in marks.items()}
    horizons |= {("events", name): events_needed_from(group, mark) for name, (group, mark) in marks.items()}
    horizons |= {("tallies", name): tallies_needed_from(group, mark) for name, (group, mark) in marks.items()}
    horizons |= {("events", log.id): joins_need_from(plan.joins, log, after) for log in plan.joins.logs}
    horizons |= {("events", kept.id): kept_from(kept, after.get(kept.stream, Watermark())) for kept in plan.retained}
    served = {query.query.name for group in plan.groups for query in group.queries if query.query.serve}
    gone = []
    for section in manifest.sections.values():
        by_bucket = section.group in remade.get(section.instance, ())
        if section.kind == "backfill" or ((by_bucket or section.group in anew) and section.kind in STATE):
            gone.append(section.id)
        elif section.kind in ("segment", "events", "tallies"):
            horizon, last = horizons.get((section.kind, section.group)), section.info.get("last")
            past = horizon is not None and isinstance(last, int) and last <= horizon
            if past or not section.rows:  # one without atoms was written for what it supersedes
                gone.append(section.id)
        elif section.n <= followed and (
            section.kind in ("differing", "late", "dead") or (section.kind == "rows" and section.group not in served)
        ):
            gone.append(section.id)
    return tuple(gone)
