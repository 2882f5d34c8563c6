"""`millpond why`: collects the facts from which `causes` explains why a query emits nothing.

Reads the log, its files, the sink's cursor and, for a local driver, whether its process exists. Writes nothing, does
not start Spark, and may run while the pond is running.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from millpond.control.diagnose.dead_letters import newest_reasons
from millpond.control.diagnose.why_message import Partition, QueryFates
from millpond.control.wiring.pond_reader import RECORDS_READ, newest_records
from millpond.control.wiring.truth import Truth
from millpond.errors import QueryTypeError
from millpond.followers.runner import FollowerStatus
from millpond.followers.sinks.kinds import sink_path
from millpond.followers.sinks.make_sink import sink_cursor
from millpond.followers.view.view import ViewFollower
from millpond.local_path import local_path, scheme_of
from millpond.log.manifest import Manifest
from millpond.log.port import Log
from millpond.log.records import ChangeRecord, ClaimRecord, EpochRecord
from millpond.model.change_json import map_change_in
from millpond.model.join import Join, Side
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, is_inner
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream, source_names
from millpond.placement.moves import maps_in
from millpond.plan.groups.build import build_plan
from millpond.plan.options.first_complete_window import first_window
from millpond.plan.upstream.rows_as_stream import before
from millpond.plan.upstream.steps import inputs_of, streams_of
from millpond.reconfigure.catalog import complete_from, version_name
from millpond.reconfigure.inner_reports import stream_labels, visible_quarantine, visible_record
from millpond.runtime.epoch import closed_until, watermarks
from millpond.runtime.fold.next_due import Due
from millpond.runtime.gather.lateness import ANY_PARTITION
from millpond.runtime.inspect.next_close import next_due
from millpond.runtime.task.counters import stream_counts
from millpond.runtime.task.task_values import Watermark

Reasons: TypeAlias = tuple[tuple[str, int], ...]


class OwnersChanged(msgspec.Struct, frozen=True):
    """A change of the owners of buckets by record `n`, with its reason; the first epoch after it migrates state.

    `commit_delay_us`: the time from the record to the commit of that epoch; None: it is not committed yet.
    """

    n: int
    why: str
    commit_delay_us: int | None = None


class QueryRecords(msgspec.Struct, frozen=True):
    """What the newest records, at most `RECORDS_READ`, say of a query.

    `epochs`: the number of epochs among them. `reaches_start`: they include the first record of the log.
    `last_applied_n`: the last record that applied an event. `counts_since_applied`: counts of the records after it.
    `at_us`: the writer's clock at the last epoch. `last_rows_n`: the last record with rows. `host` and `pid`: of the
    driver that claimed last, None if its claim is older. `owners_changed`: a change of owners that was followed by at
    most one epoch. `letters`: the number of dead letters of the streams that it reads. `letters_since_applied`: their
    number after `last_applied_n`.
    """

    epochs: int
    reaches_start: bool
    counts: QueryFates
    counts_since_applied: QueryFates
    last_applied_n: int | None = None
    at_us: int | None = None
    last_rows_n: int | None = None
    host: str | None = None
    pid: int | None = None
    owners_changed: OwnersChanged | None = None
    letters: int = 0
    letters_since_applied: int = 0


class Facts(msgspec.Struct, frozen=True):
    """All that is known of a query as of record `n`; times in µs of event time.

    A stateless query waits for nothing, so it has no watermark and no row is due. For a join, `stream` is the one with
    the older watermark, and no due row is given. `upstream`: the queries whose rows it reads, directly or through
    others, the nearest first, each with the reason for its quarantine, if any. `complete_us`: of a query that was added
    later, which does not emit windows that start before this time. `first`: the first window that such a query will
    emit; None once an open window contains events, because `due` then describes it. `dead_letters`: declared streams
    that it reads and that keep their dead letters, each with the folder. `labels`: what users call its streams.
    `dead_reasons`: the reasons of their newest dead letters, the most frequent first, each with its number of letters.
    `dead_reasons_since_applied`: of those after the last record that applied an event. `failure`: the error because of
    which its service commits no epoch now.
    """

    n: int
    query: AnyQuery
    stream: Stream
    recent: QueryRecords
    newest_us: int | None
    watermark_us: int | None
    partitions: tuple[Partition, ...]
    due: Due | None
    quarantined: str
    running: bool | None
    sink_n: int | None
    errors: tuple[str, ...]
    upstream: tuple[tuple[str, str], ...] = ()
    complete_us: int | None = None
    first: Due | None = None
    dead_letters: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    dead_reasons: Reasons = ()
    dead_reasons_since_applied: Reasons = ()
    failure: str = ""

    @property
    def slowest(self) -> tuple[Partition, ...]:
        """The partitions that the watermark waits for, and whose event time is behind what the next row needs."""
        due = self.due or self.first
        needs = None if due is None else due.needs_us
        return tuple(
            part for part in self.partitions
            if not part.idle and (part.newest_us is None or (needs is not None and part.newest_us < needs))
        )  # fmt: skip


def find_facts(
    truth: Truth, spec: PondSpec, name: str, followers: Sequence[FollowerStatus] = (), failure: str = ""
) -> Facts:  # fmt: skip
    """The facts about a query of the pond.

    Raises:
        QueryTypeError: no query has this name.
        CorruptError, PlaceError: the pond, or the query's sink, cannot be read.
    """
    query = _query_of(spec, name)
    manifest = truth.manifest
    streams, by_name = {stream.name: stream for stream in spec.streams}, {one.name: one for one in spec.computed}
    mark_us, due, slower = None, None, query.streams[0]
    if isinstance(query, Query):
        group, plan = build_plan(spec.queries, spec.since, spec.effects).of_query(name)
        mark_us = closed_until(query, manifest)
        if not query.updating and name not in spec.effects.halted:  # updates are emitted with their events
            holding = maps_in(spec, manifest)[0].instances
            due = truth.sections(lambda now: next_due(group, plan, now, truth.files(), holding))
    elif isinstance(query, Join):
        marks = {side.stream: _mark(manifest, side) for side in (query.right, query.left)}
        slower = min(query.streams, key=lambda name: (marks[name] is not None, marks[name] or 0))
        mark_us = marks[slower]
    stream = streams[slower]
    if stream.steps and newest_time(stream, manifest) is None:
        stream = streams[inputs_of(query, streams)[0]]
    upstream = dict.fromkeys(one for name in query.streams for one in before(name, streams, by_name))
    read = source_names(streams[name] for name in streams_of(query, streams))
    complete_us = complete_from(spec, name)
    first = first_window(query, complete_us, None, spec.streams)
    if first is not None and (due is not None or (mark_us is not None and first.end_us <= mark_us)):
        first = None
    recent = _recent_records(truth.log, manifest.n, name, spec, read)
    kept = [(one.name, sink) for one in spec.sources if (sink := one.on_malformed.sink) and one.name in read]
    folders = [Path(sink_path(sink, "The folder of dead letters")) for _, sink in kept] if recent.letters else []
    reasons, newer_reasons = _dead_reasons(folders, recent, manifest.n)
    followed = {f"sink:{name}", ViewFollower.name} if query.serve else {f"sink:{name}"}
    return Facts(
        manifest.n,
        query,
        stream,
        recent,
        newest_time(stream, manifest),
        mark_us,
        _partitions(stream, manifest.max_time.get(stream.name, {}), manifest.idle.get(stream.name, [])),
        due,
        spec.effects.halted.get(name) or visible_quarantine(manifest.quarantined, spec).get(name, ""),
        is_running(recent),
        sink_cursor(query, truth.cursors),
        tuple(f"{one.name}: {one.error}" for one in followers if one.error and one.name in followed),
        tuple((one, manifest.quarantined.get(one, "")) for one in upstream if not is_inner(one)),
        complete_us,
        None if first is None else Due(*first),
        tuple((stream, sink.path or "") for stream, sink in kept),
        tuple(stream_labels([streams[name] for name in streams_of(query, streams)], spec.relations).items()),
        reasons,
        newer_reasons,
        failure,
    )  # fmt: skip


def _query_of(spec: PondSpec, name: str) -> AnyQuery:
    query = next((query for query in spec.all_queries if query.name == name), None)
    if query is None:
        names = ", ".join(query.name for query in spec.all_queries)
        raise QueryTypeError(f"The pond has no query {name!r}.", f"It has {names}.")
    return query


def _dead_reasons(folders: Sequence[Path], recent: QueryRecords, newest: int) -> tuple[Reasons, Reasons]:
    """The reasons of the dead letters of the records that were read, and of those since the last applied event."""
    oldest = newest - RECORDS_READ
    applied = oldest if recent.last_applied_n is None else recent.last_applied_n
    found, newer = Counter[str](), Counter[str]()
    for folder in folders:
        of_folder, newer_of_folder = newest_reasons(folder, oldest, applied)
        found += of_folder
        newer += newer_of_folder
    return _sorted(found), _sorted(newer) if recent.letters_since_applied else ()


def _sorted(found: Counter[str]) -> Reasons:
    return tuple(sorted(found.items(), key=lambda reason: (-reason[1], reason[0])))


def _mark(manifest: Manifest, side: Side) -> int | None:
    return watermarks(manifest).get(side.stream, Watermark()).at(side.delay_us)


def _recent_records(log: Log, head: int, name: str, spec: PondSpec, sources: Sequence[str]) -> QueryRecords:
    """What the newest records say of a query over `sources`; rows of its earlier versions count as its own."""
    versions = [name, *(version_name(name, number) for number in range(spec.effects.versions.get(name, 1)))]
    epochs, claim, at_us, last_applied_n, last_rows_n, n = 0, None, None, None, None, head
    owners_changed: OwnersChanged | None = None
    total = dict.fromkeys(QueryFates.__struct_fields__, 0)
    since, letters, letters_since = dict(total), 0, 0
    for n, record in newest_records(log, head):
        if isinstance(record, ClaimRecord) and claim is None:
            claim = record
        if isinstance(record, ChangeRecord) and epochs < 2 and owners_changed is None:
            change = map_change_in(record.change)
            delay_us: int | None = None if at_us is None else at_us - record.at
            owners_changed = None if change is None else OwnersChanged(n, change.why, delay_us)
        if isinstance(record, EpochRecord):
            epochs += 1
            at_us = record.at if at_us is None else at_us
            record = visible_record(record, spec)
            found = dict(record.counts.get(name, {}))
            written = sum(record.counts.get(stream_counts(one), {}).get("dead_letters", 0) for one in sources)
            letters += written
            for what in ("rows", "withheld"):
                found[what] = sum(record.counts.get(one, {}).get(what, 0) for one in versions)
            last_rows_n = n if last_rows_n is None and found.get("rows") else last_rows_n
            last_applied_n = n if last_applied_n is None and found.get("applied") else last_applied_n
            for what in total:
                total[what] += found.get(what, 0)
                since[what] += found.get(what, 0) if last_applied_n is None else 0
            letters_since += written if last_applied_n is None else 0
    host, pid = (claim.host, claim.pid) if claim is not None else (None, None)
    counts = QueryFates(**total), QueryFates(**since)
    return QueryRecords(
        epochs, n <= 0, *counts, last_applied_n, at_us, last_rows_n, host, pid, owners_changed, letters, letters_since
    )  # fmt: skip


def newest_time(stream: Stream, manifest: Manifest) -> int | None:
    """The largest event time of a stream; of a UNION ALL of steps, the time that all its branches have reached."""
    maxima = manifest.max_time.get(stream.name, {})
    if len(stream.upstreams) > 1:
        return maxima.get(ANY_PARTITION)
    return max(maxima.values(), default=None)


def _partitions(stream: Stream, newest: dict[str, int], idle: Sequence[str]) -> tuple[Partition, ...]:
    if stream.order is None:
        return ()
    names = sorted({*newest, *stream.order.partitions} - {ANY_PARTITION}, key=lambda name: (len(name), name))
    return tuple(Partition(name, newest.get(name), name in idle) for name in names)


def is_running(recent: QueryRecords) -> bool | None:
    """Whether the process of the last driver is running; None if this host cannot know."""
    if not recent.pid or recent.host != socket.gethostname():
        return None
    try:
        os.kill(recent.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def source_folder(stream: Stream) -> tuple[Path, bool] | None:
    """The local folder from which a stream is read, and whether it has a visible file; None for other sources."""
    path = None if stream.source is None else stream.source.option("path")
    if path is None or "*" in path or scheme_of(path) not in (None, "file"):
        return None
    folder = local_path(path, "The stream's path")
    return folder, folder.is_file() or any(True for _ in _visible(folder))


def _visible(folder: Path) -> Iterator[str]:
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        yield from (name for name in files if not name.startswith((".", "_")))
