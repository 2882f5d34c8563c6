"""Computes, without I/O or Spark, the two tasks of an epoch from the manifest, and its record from the receipts."""

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
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.model.stream import Stream
from millpond.model.windows import RUNNING
from millpond.placement.alignment import Owners
from millpond.placement.moves import BucketMap, Step, bucket_maps, requested_map, sources, step
from millpond.placement.run_lengths import runs_of
from millpond.plan.groups.joins import SideLog, last_final_us
from millpond.plan.groups.plan import GroupPlan, KeptEvents, Plan
from millpond.plan.options.clock_parameters import clock_values
from millpond.plan.upstream.late_sinks import late_sinks
from millpond.plan.upstream.parameter_feeds import Feed
from millpond.plan.upstream.rows_as_stream import drained_at, halted, last_row_us, levels, upstream_queries
from millpond.runtime.event_log.retention import events_needed_from, slices_needed_from
from millpond.runtime.event_log.tallies import tallies_needed_from, uncounted_needed_from
from millpond.runtime.fold.kinds import migrates_by_key
from millpond.runtime.gather.lateness import ANY_PARTITION, advanced
from millpond.runtime.gather.retained_events import kept_from
from millpond.runtime.inputs.parameter_feeds import changed_values, fed_values
from millpond.runtime.inputs.replay import backfilled_groups, recalled_events
from millpond.runtime.inputs.upstream_rows import chained_lines, chained_rows, is_pending, with_chained
from millpond.runtime.joins.fold_joins import joins_need_from
from millpond.runtime.migration.move_state import dealt_logs, moving, shares_here
from millpond.runtime.packets.event_counts import add_fates, bounded
from millpond.runtime.packets.packet import SourceFates
from millpond.runtime.task.column_layout import ReadLayout
from millpond.runtime.task.counters import Counters, in_receipt
from millpond.runtime.task.state_locations import group_state
from millpond.runtime.task.task_values import FoldTask, GatherTask, TimeLine, Watermark

ROWS_READ = "rows"
"""In `max_time`, the "partition" with the largest time of rows that were read of a stream that `follows`."""

Idle = Mapping[str, frozenset[str]]
"""Stream -> source partitions that its watermark does not wait for."""


class Setting(NamedTuple):
    """The properties of a pond that are the same in every epoch: its location, streams, plan and layout.

    `instances` and `owners`: the number of instances and the owners of buckets that the pond was created with.
    `scaled`: the changes of these that were requested since; see `maps`.
    `paused`: queries that emit no rows.
    `replaced`: pairs of a version that was replaced and its query.
    `parameters`: the constants in force.
    `recalled`: versions that begin with retained events, each as (version, the record of its change, the time from
    which it takes events).
    `feeds`: parameters that are set by rows; the log has their constants.
    `step_bytes`: see `next_step`.
    `clock`: the parameters that are values of the clock, see `plan.options.clock_parameters`.
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
    feeds: tuple[Feed, ...] = ()
    step_bytes: int = 4 << 20
    clock: tuple[str, ...] = ()


class Batch(NamedTuple):
    """The Spark batch that an epoch commits."""

    spark_query: str
    number: int
    start: Offsets
    end: Offsets


def watermarks(manifest: Manifest) -> dict[str, Watermark]:
    """The watermark of each stream before the next epoch."""
    streams = {*manifest.max_time, *manifest.watermark_floor}
    return {
        stream: Watermark(manifest.max_time.get(stream, {}).get(ANY_PARTITION), manifest.watermark_floor.get(stream))
        for stream in streams
    }


def closed_until(query: AnyQuery, manifest: Manifest) -> int | None:
    """The watermark of a query over one stream: windows that end by then are closed; None: there is none yet."""
    return watermarks(manifest).get(query.stream, Watermark()).at(query.delay_us) if isinstance(query, Query) else None


def time_lines(setting: Setting, manifest: Manifest, idle: Idle) -> dict[str, TimeLine]:
    """The progress of event time in each stream before the next epoch."""
    marks = watermarks(manifest)
    lines = {}
    for stream in setting.streams:
        order, maxima = stream.order, manifest.max_time.get(stream.name, {})
        lines[stream.name] = TimeLine(
            marks.get(stream.name, Watermark()),
            order is not None,
            {name: time for name, time in maxima.items() if name != ANY_PARTITION},
            () if order is None else order.partitions,
            idle.get(stream.name, frozenset()),
            stream.max_ahead_us,
        )
    replayed = [name for name, n, _ in setting.recalled if n > manifest.epoch_n]
    return lines | chained_lines(setting.plan, setting.streams, manifest, marks, replayed)


def pending(setting: Setting, manifest: Manifest) -> bool:
    """Whether an epoch that reads nothing is due: rows of an upstream query are not read yet, or advance event time."""
    return is_pending(manifest, setting.streams, time_lines(setting, manifest, {}))


def depth(setting: Setting) -> int:
    """The largest number of queries between a stream and the source; a drain takes that many additional epochs."""
    return max(levels(setting.streams, setting.plan.all_queries).values(), default=0)


def maps(setting: Setting, manifest: Manifest) -> tuple[BucketMap, BucketMap]:
    """The bucket map by which state is stored now, and the bucket map of the next epoch."""
    return bucket_maps(setting.owners, setting.instances, manifest, setting.scaled)


def requested_bucket_map(setting: Setting, manifest: Manifest) -> BucketMap:
    """The bucket map that was requested last; the map of the next epoch may be a step towards it."""
    return requested_map(setting.owners, setting.instances, manifest, setting.scaled)


def map_record(setting: Setting, run: Run, writer: str, owners: Owners, why: str, at_us: int) -> ChangeRecord:
    """The record that changes the owners of buckets from the next epoch on, for the requested number of instances."""
    return _map_record(setting, run, writer, owners, requested_bucket_map(setting, run.manifest).instances, why, at_us)


def step_record(setting: Setting, run: Run, writer: str, next_map: Step, at_us: int) -> ChangeRecord:
    """The record of a step towards the requested bucket map."""
    why = f"a step towards record {next_map.towards}"
    return _map_record(setting, run, writer, next_map.owners, next_map.instances, why, at_us, next_map.towards)


def _map_record(
    setting: Setting, run: Run, writer: str, owners: Owners, instances: int, why: str, at_us: int,
    towards: int | msgspec.UnsetType = msgspec.UNSET,
) -> ChangeRecord:  # fmt: skip
    count = msgspec.UNSET if instances == setting.instances else instances
    change = change_to_json(MapChange(runs_of(owners), why, count, towards))
    return ChangeRecord(n=run.n, writer=writer, prev=run.prev, at=at_us, change=change)


def next_step(setting: Setting, manifest: Manifest, waits: bool = False) -> Step | None:
    """The step towards the requested bucket map to record before the next epoch; None if there is none.

    `waits`: if the migration takes several steps, this one moves nothing yet.

    A step moves at most `step_bytes`, or a 512th of all state if that is more, because each step reads all of the state
    that stays. If every step would have to rebuild more than that (see `fold.kinds.migrates_by_key`), there are no
    steps and all buckets move at once.
    """
    (current, coming), target = maps(setting, manifest), requested_bucket_map(setting, manifest)
    if current[1:] == target[1:]:
        return None
    by_key = {one.id: migrates_by_key(one) for one in moving(setting.plan)}
    bytes_moved, bytes_rebuilt = [0.0] * current.instances, 0
    owned_part = shares_here(manifest)
    for section in manifest.sections.values():
        if section.kind in STATE and section.group in by_key:
            if by_key[section.group]:
                bytes_moved[section.instance] += section.size * owned_part.get((section.instance, section.group), 1.0)
            else:
                bytes_rebuilt += section.size
    limit = max(setting.step_bytes, sum(bytes_moved) / 512)
    if bytes_rebuilt > limit:
        return None
    bucket_counts = Counter(current.owners)
    sizes = [bytes_moved[one] / bucket_counts[one] for one in current.owners]
    return step(current, coming, target, sizes, limit, waits and sum(bytes_moved) > limit)


def constants(setting: Setting, manifest: Manifest, instant_us: int) -> dict[str, Literal]:
    """The values of parameters in the next epoch: those in force, those that rows have set, and those of the clock."""
    given = dict(setting.parameters) | fed_values(setting.feeds, manifest)
    return given | clock_values(setting.clock, instant_us)


def gather_task(setting: Setting, run: Run, now_us: int | None = None, instant_us: int = 0) -> GatherTask:
    """The gather task of the next epoch; `now_us` bounds how far in the future the time of an event may be.

    `instant_us`: the instant of values of the clock, the same for both tasks of an epoch.
    """
    layout, now = with_chained(setting.layout, setting.streams, setting.plan), maps(setting, run.manifest)[1]
    return GatherTask(
        setting.plan,
        layout,
        time_lines(setting, run.manifest, {}),
        now.owners,
        now.instances,
        now_us,
        setting.paused | run.manifest.quarantined.keys(),
        late_sinks(setting.plan, setting.streams),
        chained_rows(run.manifest, setting.streams, layout),
        constants(setting, run.manifest, instant_us),
        recalled_events(setting.plan, setting.recalled, run.manifest),
    )


def fold_task(
    setting: Setting, run: Run, writer: str, drain: bool = False, idle: Idle | None = None, level: int = 0,
    merges_wait: bool = False, instant_us: int = 0,
) -> FoldTask:  # fmt: skip
    """The fold task of the next epoch.

    `drain`: close everything that the queries of one level still wait for (see `plan.upstream.rows_as_stream`). `idle`:
    source partitions that watermarks do not wait for. `merges_wait`: see `scheduling.quiet_epochs`.
    """
    lines = time_lines(setting, run.manifest, idle or {})
    floors: dict[str, int] = {}
    if drain:
        levels_of = levels(setting.streams, setting.plan.all_queries)
        halts = halted(setting.streams, setting.plan.all_queries, run.manifest.quarantined)
        ready = {query.name for query in setting.plan.all_queries if drained_at(query, levels_of) == level}
        every = drain_floors(setting.plan, run.manifest, lines, ready, last_rows(setting, run.manifest, levels_of))
        floors = {stream: floor for stream, floor in every.items() if stream not in halts}
    stateful: list[GroupPlan | SideLog | KeptEvents] = [
        *setting.plan.groups, *setting.plan.joins.logs, *setting.plan.retained
    ]  # fmt: skip
    current, coming = maps(setting, run.manifest)
    state = {
        instance: {group.id: group_state(run.manifest, instance, group) for group in stateful}
        for instance in range(max(current.instances, coming.instances))
    }
    return FoldTask(
        setting.pond,
        setting.cache,
        run.n,
        setting.plan,
        lines,
        floors,
        state,
        coming.owners,
        writer,
        drain,
        setting.paused | run.manifest.quarantined.keys(),
        late_sinks(setting.plan, setting.streams),
        upstream_queries(setting.streams),
        coming.number,
        sources(current.owners, coming.owners),
        dict(setting.replaced),
        coming.instances,
        current.instances,
        setting.feeds,
        backfilled_groups(setting.plan, setting.recalled, run.manifest),
        current.owners != requested_bucket_map(setting, run.manifest).owners,
        merges_wait,
        ReadLayout(() if setting.layout is None else setting.layout.looked_up),
        constants(setting, run.manifest, instant_us),
        instant_us if setting.clock else 0,
    )


def drain_floors(
    plan: Plan, manifest: Manifest, lines: Mapping[str, TimeLine] | None = None,
    ready: Collection[str] | None = None, latest: Mapping[str, int] | None = None,
) -> dict[str, int]:  # fmt: skip
    """For each stream, the end of the last window that contains an event seen until now, or a row announced by `lines`.

    `ready`: consider only what these queries wait for. `latest`: see `last_rows`.

    A join waits for both of its streams, one of which may have been drained before. For a join, the times of rows
    count, not the progress that `lines` report: draining the join advances the streams that its rows are made of, so
    otherwise each drain would advance them further.
    """
    floors: dict[str, int] = {}

    def newest(streams: Iterable[str]) -> int | None:
        times = [time for stream in streams for time in manifest.max_time.get(stream, {}).values()]
        for stream, line in ((stream, (lines or {}).get(stream, TimeLine())) for stream in streams):
            rows_us = (latest or {}).get(stream) if line.follows else None  # one branch may be far ahead of another
            times += [time for time in (line.reaches_us, rows_us) if time is not None]
        return max(times, default=None)

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
            for stream in join.streams:  # one of the two streams may have had no event yet
                final = last_final_us(join, time)
                floors[stream] = max(floors.get(stream, final), final)
    for branch in plan.selections:  # its rows are out, so its readers need not wait for the delay
        time = newest([branch.stream]) if branch.timing is not None else None
        if time is not None and (ready is None or branch.name in ready):
            floors[branch.stream] = max(time, floors.get(branch.stream, time))
    # a floor that a join of a higher level has set may be above what the queries of this level need
    return {stream: max(floor, manifest.watermark_floor.get(stream, floor)) for stream, floor in floors.items()}


def last_rows(setting: Setting, manifest: Manifest, at: Mapping[str, int]) -> dict[str, int]:
    """For each stream made of rows, the latest time of a row that the events seen until now can produce.

    `at`: the level of each stream.
    """
    times = {stream: max(maxima.values()) for stream, maxima in manifest.max_time.items() if maxima}
    queries = {query.name: query for query in setting.plan.all_queries}
    latest: dict[str, int] = {}
    for stream in sorted(setting.streams, key=lambda stream: at[stream.name]):
        event_time = setting.plan.event_time_of(stream.name)
        if event_time is not None:
            newest_us = times | latest
            upstreams = [queries[name] for name in stream.upstreams]
            begun = [query for query in upstreams if not newest_us.keys().isdisjoint(query.streams)]
            rows = [last_row_us(query, event_time, newest_us) for query in begun]
            known = [row for row in rows if row is not None]
            latest |= {stream.name: max(known)} if known and len(known) == len(rows) else {}
    return latest


def assemble(
    setting: Setting, run: Run, task: FoldTask, batch: Batch, deltas: Iterable[tuple[Receipt, bytes]],
    at_us: int, followed: int,
) -> tuple[EpochRecord, bytes]:  # fmt: skip
    """The record of an epoch and its body, from the receipts and deltas that the instances returned.

    `followed`: every follower has applied the records up to this number, so their result rows can be retired.
    """
    receipts, bodies, size = [], [], 0
    fates: Fates = {}
    counters, newest = Counters(), dict[str, dict[str, int]]()
    results = sorted(deltas, key=lambda delta: delta[0].instance)
    for receipt, body in results:
        add_fates(fates, (SourceFates([query], counts) for query, counts in receipt.fates.items()))
        receipt = msgspec.structs.replace(receipt, fates={}, fed={}, spans=(), host="")
        receipts.append(receipt if receipt.file is not None else msgspec.structs.replace(receipt, at=size))
        bodies.append(body)
        size += len(body)
        for stream, maxima in counters.add_receipt(receipt.counts).items():  # every instance reports the same times
            newest.setdefault(stream, {}).update(maxima)
    quarantined = _raised(receipts, counters)
    before = dict(setting.parameters) | fed_values(setting.feeds, run.manifest)
    active = [feed for feed in setting.feeds if feed.query not in quarantined]
    new_values = changed_values(active, (receipt for receipt, _ in results), before, counters)
    after = {stream: advanced(line, newest.get(stream, {})) for stream, line in task.lines.items()}
    times = {stream: dict(newest.get(stream, {})) for stream in task.lines}
    for stream, line in task.lines.items():
        if line.follows and ANY_PARTITION in times[stream]:
            times[stream][ROWS_READ] = times[stream].pop(ANY_PARTITION)
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
        max_time={stream: maxima for stream, maxima in times.items() if maxima},
        idle={stream: sorted(line.idle) for stream, line in task.lines.items() if line.idle},
        watermark_floor=task.drain_floor_us,
        drained=task.drained,
        map=task.map,
        receipts=tuple(receipts),
        counts=counters.to_record(quarantined),
        instant=task.instant_us,
        fates=bounded(fates),
        retired=retired(setting.plan, run.manifest, after, followed, _remade(task), task.before != task.instances),
        quarantined=quarantined,
        fed=new_values,
    )
    return record, b"".join(bodies)


def _remade(task: FoldTask) -> dict[int, set[str]]:
    """By instance, the groups and logs whose old state is obsolete: it was rebuilt, or the instance owns no bucket."""
    stateful = moving(task.plan)
    return {
        instance: {one.id for one in stateful if instance not in task.owners or not migrates_by_key(one)}
        for instance in task.sources
    }


def _raised(receipts: Sequence[Receipt], counters: Counters) -> dict[str, str]:
    """Queries that raised an error, each with the reason that the first instance reports, or else the usual reason."""
    reasons = {}
    for query in sorted(name for name, counts in counters.items() if counts.raised):
        first = next(receipt for receipt in receipts if in_receipt("raised", query) in receipt.counts)
        usual = f"[MP-OVERFLOW] A result of query {query!r} leaves its type or divides by zero."
        reasons[query] = first.reasons.get(query, usual)
    return reasons


def retired(
    plan: Plan, manifest: Manifest, after: Mapping[str, Watermark], followed: int,
    rebuilt: Mapping[int, Collection[str]] | None = None, redistributed: bool = False,
) -> tuple[str, ...]:  # fmt: skip
    """The ids of sections that are no longer needed.

    These are: segments, events and tallies that no open window needs; rows that every follower has applied; the events
    of a backfill, which this epoch has recalled; by instance, the state of groups that was `rebuilt` because the
    instance now owns other buckets; and, if they were `redistributed` to another number of instances, the events of
    joins without keys.

    Rows of served queries stay, so that a lost view can be rebuilt; their late rows are retired.
    """
    rebuilt = rebuilt or {}
    redistributed_logs = {log.id for log in dealt_logs(plan)} if redistributed else set()
    marks = {group.id: (group, after.get(group.stream, Watermark())) for group in plan.groups}
    horizons = {("segment", name): slices_needed_from(group, mark) for name, (group, mark) in marks.items()}
    horizons |= {("events", name): events_needed_from(group, mark) for name, (group, mark) in marks.items()}
    horizons |= {("tallies", name): tallies_needed_from(group, mark) for name, (group, mark) in marks.items()}
    horizons |= {("events", log.id): joins_need_from(plan.joins, log, after) for log in plan.joins.logs}
    horizons |= {("events", kept.id): kept_from(kept, after.get(kept.stream, Watermark())) for kept in plan.retained}
    uncounted = {name: uncounted_needed_from(group, mark) for name, (group, mark) in marks.items() if group.tallies}
    served = {query.query.name for group in plan.groups for query in group.queries if query.query.serve}
    obsolete = []
    for section in manifest.sections.values():
        is_rebuilt = section.group in rebuilt.get(section.instance, ())
        replaced = section.kind in STATE and (is_rebuilt or section.group in redistributed_logs)
        if section.kind == "backfill" or replaced:
            obsolete.append(section.id)
        elif section.kind in ("segment", "events", "tallies"):
            horizon, last = horizons.get((section.kind, section.group)), section.info.get("last")
            if section.kind == "events" and section.group in uncounted and not section.info.get("counted"):
                horizon = uncounted[section.group]
            expired = horizon is not None and isinstance(last, int) and last <= horizon
            if expired or not section.rows:  # a segment without atoms exists only for what it supersedes
                obsolete.append(section.id)
        elif section.n <= followed and (
            section.kind in ("differing", "late", "dead") or (section.kind == "rows" and section.group not in served)
        ):
            obsolete.append(section.id)
    return tuple(obsolete)
