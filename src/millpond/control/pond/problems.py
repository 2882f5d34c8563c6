"""Collects what makes the results of a pond incomplete: reported when it happens, and again at the end of a run."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from millpond.control.pond.event_totals import EventTotals, QueryCounts
from millpond.control.wiring.pond_reader import RECORDS_READ, newest_records
from millpond.errors import EmptyInputError, IncompleteError, from_text
from millpond.log.manifest import Manifest
from millpond.log.port import Log
from millpond.log.records import EpochRecord
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, query_name
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream, source_names
from millpond.plan.explain.amounts import count_of
from millpond.plan.upstream.steps import streams_of
from millpond.reconfigure.inner_reports import visible_quarantine, visible_record
from millpond.reconfigure.lifecycle import current
from millpond.spark.driver.epochs import Epoch
from millpond.spark.sources.count_malformed_rows import MalformedRows

LOGGER = "millpond.pond"
"""Name of the logger that gets a warning for each problem when it happens."""

MANY = 0.1
"""If this part of the events that a query read is late or dead, its results are not reliable."""

_NAMED = 3


class Problem(NamedTuple):
    """Something that makes results incomplete: its stable code, the query or stream, and one or two sentences.

    `failure`: a run that ends with it fails (`millpond run` has exit status 3); otherwise it is a warning.
    """

    code: str
    about: str
    text: str
    failure: bool

    def __str__(self) -> str:
        return f"[{self.code}] {self.text}"


class Problems:
    """The problems since a pond was opened; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._vanished: dict[str, list[str]] = {}
        self._reported: set[str] = set()
        self._ahead: dict[str, list[str]] = {}
        self._malformed: dict[str, Problem] = {}

    def add_epoch(
        self, epoch: Epoch, totals: EventTotals, queries: Mapping[str, AnyQuery], streams: Iterable[Stream]
    ) -> list[Problem]:  # fmt: skip
        """The new problems of a committed epoch, whose counts `totals` already includes."""
        problems = [quarantined(name, why) for name, why in epoch.record.quarantined.items() if why]
        with self._lock:
            for stream, paths in epoch.missing.items():
                self._vanished.setdefault(stream, []).extend(paths)
                problems.append(vanished(stream, paths))
            for stream, paths in epoch.ahead.items():
                self._ahead.setdefault(stream, []).extend(paths)
                problems.append(dated_ahead(stream, paths))
            for problem in losses(totals.counts(), queries, streams):
                if problem.failure and problem.about not in self._reported:
                    self._reported.add(problem.about)
                    problems.append(problem)
        return problems

    def add_malformed(self, found: MalformedRows) -> Problem:
        """Note, and return, the problem that a joined table has malformed rows, as of its newest list of files."""
        with self._lock:
            self._malformed[found.table] = problem = malformed_problem(found)
        return problem

    def of_inputs(self) -> list[Problem]:
        """A problem for each stream with files that vanished or are dated ahead, and each table with malformed rows."""
        with self._lock:
            lost = [vanished(stream, paths) for stream, paths in self._vanished.items()]
            ahead = [dated_ahead(stream, paths) for stream, paths in self._ahead.items()]
            return [*lost, *ahead, *self._malformed.values()]


def quarantined_in(spec: PondSpec, manifest: Manifest) -> list[Problem]:
    """A problem for each quarantined query of a pond, whether this process or an earlier one quarantined it."""
    reasons = visible_quarantine(manifest.quarantined, spec) | dict(spec.effects.halted)
    names = {query.name for query in spec.all_queries} | spec.effects.halted.keys()
    return [quarantined(name, why) for name, why in sorted(reasons.items()) if why and name in names]


def quarantined(version: str, why: str) -> Problem:
    """The problem that a version of a query, or a shadow, is quarantined.

    >>> print(quarantined("o", "[MP-OVERFLOW] A result of query 'o' leaves its type."))
    [MP-OVERFLOW] Query o is quarantined and emits no more rows: A result of query 'o' leaves its type.
    """
    error = from_text(why)
    code, reason = (IncompleteError.code, why) if error is None else (error.code, f"{error.what} {error.cure}".strip())
    name = query_name(version)
    text = f"Query {name} is quarantined and emits no more rows: {reason}"
    # a quarantined shadow is no failure, because its rows are only compared
    return Problem(code, f"query {name}", text, "@shadow" not in name)


def vanished(stream: str, paths: Sequence[str]) -> Problem:
    """The problem that files were listed, and then deleted or moved before they were read."""
    names = _named(paths)
    return Problem(
        IncompleteError.code,
        f"files of {stream}",
        f"{count_of(len(paths), 'file')} of stream {stream} disappeared after being listed and before being read, so "
        f"the events in {'it' if len(paths) == 1 else 'them'} are missing: {names}. Put such files back under a new "
        "name, and remove files only after they were read (option cleanSource).",
        True,
    )


def dated_ahead(stream: str, paths: Sequence[str]) -> Problem:
    """The problem that files have a date in the future, because of which Spark may skip files that come later."""
    return Problem(
        IncompleteError.code,
        f"dates of {stream}",
        f"{count_of(len(paths), 'file')} of stream {stream} {'is' if len(paths) == 1 else 'are'} dated more than seven "
        f"days in the future: {_named(paths)}. Spark silently skips files that are more than seven days older than the "
        "newest file it has read (option maxFileAge). Correct the clock that dated them, and give the stream a larger "
        "maxFileAge.",
        False,
    )


def stopped_early(drain: bool) -> Problem:
    """The problem that a run over all existing input was stopped before its end; `drain`: it was to drain as well.

    >>> print(stopped_early(True).text)
    The run was stopped before it had read all input and closed the open windows. The next run continues from there.
    """
    closed = " and closed the open windows" if drain else ""
    text = f"The run was stopped before it had read all input{closed}. The next run continues from there."
    return Problem(IncompleteError.code, "run", text, True)


def _named(paths: Sequence[str]) -> str:
    return ", ".join(paths[:_NAMED]) + (f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else "")


def malformed_problem(counts: MalformedRows) -> Problem:
    """The problem that a joined table leaves out malformed rows; a failure if these are many.

    >>> print(malformed_problem(MalformedRows("json /dim", 1_200, 3)))
    [MP-INCOMPLETE] 3 of the 1,200 rows of the table json /dim do not parse. Its mode DROPMALFORMED leaves them out of \
every join that reads the column concerned. Correct them, or read the table in mode PERMISSIVE.
    """
    return Problem(
        IncompleteError.code,
        f"table {counts.table}",
        f"{counts.malformed:,} of the {counts.rows:,} rows of the table {counts.table} do not parse. Its mode "
        "DROPMALFORMED leaves them out of every join that reads the column concerned. Correct them, or read the table "
        "in mode PERMISSIVE.",
        counts.malformed >= MANY * counts.rows,
    )


class _Loss(NamedTuple):
    """Losses that are equal for several queries: the sources, late or dead, the numbers, and kept by a sink or not."""

    sources: tuple[str, ...]
    kind: Literal["late", "dead"]
    number: int
    read: int
    by_partition: tuple[tuple[str, int], ...]
    kept: bool = False


def losses(
    counts: Mapping[str, QueryCounts], queries: Mapping[str, AnyQuery], streams: Iterable[Stream]
) -> Iterator[Problem]:
    """A problem for queries with equal losses; a failure if many events are dead, or late and not kept by a sink.

    `streams`: those that the queries read, with the sources of derived streams that keep dead letters.
    """
    by_name = {stream.name: stream for stream in streams}
    alike: dict[_Loss, list[str]] = {}
    many = set[str]()
    for name, found in counts.items():
        query, whole = queries.get(name), found.whole
        if query is None:
            continue
        sources = source_names(by_name[one] for one in streams_of(query, by_name) if one in by_name)
        kept = isinstance(query, Query) and query.late_sink is not None
        if (whole.dead if kept else whole.late + whole.dead) >= MANY * whole.read:
            many.add(name)
        if whole.late:
            loss = _Loss(sources, "late", whole.late, whole.read, _by_partition(found, "late"), kept)
            alike.setdefault(loss, []).append(name)
        if whole.dead:
            loss = _Loss(sources, "dead", whole.dead, whole.read, _by_partition(found, "dead"))
            alike.setdefault(loss, []).append(name)
    for loss, names in ((loss, sorted(of)) for loss, of in alike.items()):
        who = f"Query {names[0]}" if len(names) == 1 else f"{len(names):,} queries ({_named(names)})"
        they, their = ("it", "its") if len(names) == 1 else ("each of them", "their")
        aside = f" Late events are kept by {their} 'late' sink." if loss.kept else ""
        sinks = (by_name[one].on_malformed.sink for one in loss.sources if loss.kind == "dead" and one in by_name)
        letters = "".join(f", and `millpond dlq list {sink.path}` for the dead letters" for sink in sinks if sink)
        yield Problem(
            IncompleteError.code,
            f"{loss.kind} events of {names[0]}",
            f"{who} did not count {loss.number:,} of the {loss.read:,} events {they} read ({loss.kind}).{aside} "
            f"Run `millpond why {names[0]}` to see the reason{letters}.",
            not loss.kept and not many.isdisjoint(names),
        )


def _by_partition(counts: QueryCounts, kind: Literal["late", "dead"]) -> tuple[tuple[str, int], ...]:
    lost = Counter[str]()
    for name, found in counts.partitions.items():
        lost[name.rpartition(":")[2]] += getattr(found, kind)  # a join has its stream before the partition
    return tuple(sorted((+lost).items()))


def unread(
    spec: PondSpec, counts: Mapping[str, QueryCounts], log: Log, head: int
) -> Iterator[Problem]:
    """A problem for each source of which no event was ever read; none if older records would have to be searched."""
    readers: dict[str, list[str]] = {}
    by_name = {stream.name: stream for stream in spec.streams}
    for query in current(spec):
        for source in source_names(by_name[name] for name in streams_of(query, by_name)):
            readers.setdefault(source, []).append(query.name)
    silent = {
        source for source, names in readers.items()
        if not any(counts[name].whole.read for name in names if name in counts)
    }  # fmt: skip
    for n, record in newest_records(log, head) if silent else ():
        if isinstance(record, EpochRecord):
            record = visible_record(record, spec)
            silent -= {
                name for name in silent
                if any(record.counts.get(query, {}).get("read") for query in readers[name])
            }  # fmt: skip
        if n == head - RECORDS_READ + 1 > 0:
            return  # older records are not searched, so it is not known
    for name in sorted(silent):
        who = ", ".join(readers[name])
        yield Problem(
            EmptyInputError.code,
            f"stream {name}",
            f"Not one event of stream {name} has been read, so nothing can come out of {who}. Check its path or topic.",
            True,
        )
