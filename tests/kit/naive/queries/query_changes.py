"""The naive twin of changes: computes each version of each query alone, over all events from the beginning.

A row counts if it is emitted while its version is in force and not paused, and its window starts within the version's
bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec import UNSET
from msgspec.structs import replace

from kit.naive.expressions import order
from kit.naive.queries import stateless, windows
from kit.naive.queries.deduplicate import without_repeats
from kit.naive.queries.windows import Batch, Result, Value
from millpond.model.change_history import ALWAYS
from millpond.model.expressions import Column, Literal, bound, is_list, listed, literal
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.types import WINDOW, element_of
from millpond.model.windows import Session, Sliced
from millpond.plan.options.complete_column import early_version
from millpond.plan.options.live_parameters import parameters_in
from millpond.reconfigure.changes import Add, Alter, Change, Drop, Feed, Pause, Promote, Resume, SetParameter, Shadow

_AT = "__window of the naive twin"

Plain: TypeAlias = Query | Selection
"""The kinds of queries that the twin supports."""


@dataclass
class _Version:
    """A version of a query, in force in epochs first … last - 1 for windows that start in [since, until).

    `handed`: another version handed its windows over, so none of them may have closed before epoch `first`. `unseen`:
    from earlier epochs, it takes only events at `recall_us` or later, if any. `backfilled`: it emits the rows of
    earlier epochs in its first epoch.
    """

    query: Plain
    first: int
    since_us: int | None
    last: int | None = None
    until_us: int | None = None
    handed: bool = False
    unseen: bool = False
    recall_us: int | None = None
    backfilled: bool = False
    paused: set[int] = field(default_factory=set)


Parameters: TypeAlias = Mapping[str, Literal]

_Place: TypeAlias = tuple[int, int]
"""The epoch of an event, and its position there."""


class NaiveChanges:
    """The queries of a pond and their versions; call `change` before the epoch from which the change is in force."""

    def __init__(self, queries: Iterable[Plain], parameters: Parameters | None = None) -> None:
        self._versions: dict[str, list[_Version]] = {query.name: [_Version(query, 0, None)] for query in queries}
        self._paused: set[str] = set()
        self._now: Parameters = dict(parameters or {})
        self._parameters: list[Parameters] = []
        self._epoch = 0
        self._shadows: dict[str, Plain] = {}
        self._fed: dict[str, Feed] = {}
        self._feeds: list[dict[str, Feed]] = []

    def epoch(self) -> None:
        """An epoch was committed."""
        for name in self._paused:
            for version in self._versions[name]:
                version.paused.add(self._epoch)
        self._parameters.append(self._now)
        self._feeds.append(dict(self._fed))
        self._epoch += 1

    def change(self, change: Change) -> None:
        """A change of queries was recorded."""
        if isinstance(change, Add):
            versions = self._versions.setdefault(change.name, [])
            start = _start(change)
            if isinstance(change.incomplete_us, int) and isinstance(change.since_us, int):
                recall, start = None if change.recall_us is UNSET else change.recall_us, change.since_us
                query = change.stored.query
                assert isinstance(query, Query)
                early = _Version(early_version(query, recall), self._epoch, change.incomplete_us)
                early.until_us, early.unseen, early.recall_us = start, True, recall
                versions.append(early)
            if isinstance(change.backfill_us, int) and isinstance(change.since_us, int):
                first, start = None if change.backfill_us == ALWAYS else change.backfill_us, change.since_us
                early = self._version(change, first)
                early.until_us, early.backfilled = start, True
                versions.append(early)
            versions.append(self._version(change, start))
        elif isinstance(change, Drop):
            for version in self._versions[change.name]:
                version.last = self._epoch if version.last is None else min(version.last, self._epoch)
            self._paused.discard(change.name)
        elif isinstance(change, Pause):
            self._paused.add(change.name)
        elif isinstance(change, Resume):
            self._paused.discard(change.name)
        elif isinstance(change, SetParameter):
            self._now = {**self._now, change.name: change.value}
            self._fed.pop(change.name, None)
        elif isinstance(change, Feed):
            self._fed[change.name] = change
        elif isinstance(change, Alter):
            versions = self._versions[change.name]
            old, start = versions[-1], _start(change)
            new = self._version(change, old.since_us)
            versions.append(new)
            if start is not None and _by_start(old.query) and _by_start(new.query):
                _hand_over(old, new, start)
            else:
                old.last, new.since_us = self._epoch, old.since_us if start is None else start
        elif isinstance(change, Shadow):
            query, version = change.stored.query, self._versions[change.name][-1]
            assert isinstance(query, Query | Selection)
            self._shadows[change.name] = query
            if isinstance(change.since_us, int):  # the same query continues, as two versions
                self._versions[change.name].append(_Version(version.query, self._epoch, None))
                _hand_over(version, self._versions[change.name][-1], change.since_us)
        elif isinstance(change, Promote):
            old, promoted = self._versions[change.name][-1], self._shadows[change.name]
            self._shadows[change.name] = old.query
            self._versions[change.name].append(_Version(promoted, self._epoch, old.since_us))
            if isinstance(change.since_us, int):
                _hand_over(old, self._versions[change.name][-1], change.since_us)
            else:
                old.last = self._epoch

    def _version(self, change: Add | Alter, since_us: int | None) -> _Version:
        query = change.stored.query
        assert isinstance(query, Query | Selection)
        return _Version(query, self._epoch, since_us)

    def rows(self, epochs: Sequence[Batch], *, drained: bool) -> dict[str, list[Result]]:
        """All rows by query; `drained`: one more epoch closes every window.

        Raises:
            Raised, OverflowedError: a result of a version raises.
        """
        parameters = self._parameters if not any(self._feeds) else self._resolved(epochs, drained)
        return {
            name: [row for emitted in self._emitted(name, epochs, parameters, drained) for row, _ in emitted]
            for name in self._versions
        }

    def _emitted(
        self, name: str, epochs: Sequence[Batch], parameters: Sequence[Parameters], drained: bool
    ) -> list[list[tuple[Result, int]]]:
        """The rows of a query by epoch, each with the end of its window."""
        versions = self._versions[name]
        held = _held_by_earlier(versions, epochs, parameters)
        every = [
            _rows_of(version, epochs, parameters, drained, taken) for version, taken in zip(versions, held, strict=True)
        ]  # fmt: skip
        return [[pair for emitted in every for pair in emitted[epoch]] for epoch in range(len(every[0]))]

    def _resolved(self, epochs: Sequence[Batch], drained: bool) -> list[Parameters]:
        """The parameters of each epoch, with the values that rows of previous epochs fed."""
        resolved: list[Parameters] = []
        given: dict[str, tuple[Feed, Literal]] = {}
        for epoch, (now, feeds) in enumerate(zip(self._parameters, self._feeds, strict=True)):
            given = {name: pair for name, pair in given.items() if feeds.get(name) is pair[0]}
            resolved.append({**now, **{name: value for name, (_, value) in given.items()}})
            for name, feed in feeds.items():
                last = epoch >= len(epochs)
                emitted = self._emitted(feed.query, epochs[: epoch + 1], resolved, drained and last)[epoch]
                value = _newest(emitted, feed.column, now[name])
                if value is not None:
                    given[name] = feed, value
        return resolved


def _by_start(query: Plain) -> bool:
    """Whether each window of a query is known by its start."""
    return isinstance(query, Query) and isinstance(query.window, Sliced | Session)


def _hand_over(old: _Version, new: _Version, start_us: int) -> None:
    """The old version emits the windows that start before a time, and the new one all others."""
    old.until_us, new.since_us, new.handed = start_us, start_us, True


def _newest(emitted: Sequence[tuple[Result, int]], column: str, before: Literal) -> Literal | None:
    """The value that rows, each with the end of its window, feed to a parameter."""
    newest = max((end for _, end in emitted), default=None)
    values = {row[column] for row, end in emitted if end == newest} - {None}
    values = {value for value in values if value == value}
    if newest is None:
        return None
    if is_list(before.type):
        kind = element_of(before.type)
        return listed([literal(value, kind) for value in values], kind)
    return literal(max(values), before.type) if values else None


def _start(change: Add | Alter) -> int | None:
    start = change.whole_us if isinstance(change, Add) else change.since_us
    return start if isinstance(start, int) else None


def _answered(
    query: Query, epochs: Sequence[Batch], parameters: Sequence[Parameters], marks: Sequence[int | None]
) -> list[list[Result]]:
    """As `oracle.answer_by_epoch`, with the parameters of each epoch."""
    cells: dict[tuple[Value, ...], windows._Cell] = {}
    found = []
    for batch, now, before, after in zip(epochs, parameters, marks, marks[1:], strict=False):
        resolved = _bound(query, now)
        for row in batch:
            judged = windows._judge(resolved, row, before)
            if judged.fate == "applied":
                windows._place(resolved, row, judged, cells)
        ripe = [key for key, cell in cells.items() if after is not None and cell.window.end_us <= after]
        found.append(list(windows._emit(resolved, [cells.pop(key) for key in ripe])))
    if len(parameters) > len(epochs):  # a drain
        found.append(list(windows._emit(_bound(query, parameters[len(epochs)]), list(cells.values()))))
    return found


def _bound(query: Query, parameters: Parameters) -> Query:
    aggregates = tuple(
        replace(one, filter=None if one.filter is None else bound(one.filter, parameters)) for one in query.aggregates
    )
    where, having = (None if one is None else bound(one, parameters) for one in (query.where, query.having))
    return replace(query, where=where, having=having, aggregates=aggregates)


def _seen_by(version: _Version, epoch: int, batch: Batch) -> Batch:
    """The events of an epoch that a version may take."""
    if not version.unseen or epoch >= version.first or isinstance(version.query, Selection):
        return batch
    recall, time = version.recall_us, version.query.event_time
    return [row for row in batch if recall is not None and row[time] is not None and row[time] >= recall]


def _held_by_earlier(
    versions: Sequence[_Version], epochs: Sequence[Batch], parameters: Sequence[Parameters]
) -> list[set[_Place]]:
    """For each version, the events in sessions of versions that handed over before, if only their gaps differ."""
    found: list[set[_Place]] = []
    emitted: list[tuple[_Version, set[_Place]]] = []
    for version in versions:
        mine: set[_Place] = set()
        if isinstance(version.query, Query) and isinstance(version.query.window, Session):
            for other, places in emitted:
                alive = other.last is None or other.last > version.first
                mine |= places if alive and _sessions_like(other.query) == _sessions_like(version.query) else set()
            if version.until_us is not None and not version.query.changing:
                emitted.append((version, _in_sessions(version, epochs, parameters, mine)))
        found.append(mine)
    return found


def _sessions_like(query: Plain) -> object:
    assert isinstance(query, Query)
    return query.stream, query.event_time, query.keys, query.where, query.delay_us, query.changing, query.deduplicated


def _in_sessions(
    version: _Version, epochs: Sequence[Batch], parameters: Sequence[Parameters], held: set[_Place]
) -> set[_Place]:
    """The events in the sessions that a version emits, without those that earlier versions hold."""
    query = version.query
    assert isinstance(query, Query) and isinstance(query.window, Session)
    gap_us = query.window.gap_us
    if query.deduplicated is not None:
        query, epochs = without_repeats(query, epochs)
    by_key: dict[tuple[Value, ...], list[tuple[int, _Place]]] = {}
    marks = windows.watermarks(query, epochs)
    for epoch, (batch, mark, now) in enumerate(zip(epochs, marks, parameters, strict=False)):
        for place, row in enumerate(batch):
            judged = windows._judge(_bound(query, now), row, mark)
            if judged.fate == "applied" and (epoch, place) not in held and _seen_by(version, epoch, [row]):
                key = tuple(None if value is None else order(value) for value in judged.keys)
                by_key.setdefault(key, []).append((row[query.event_time], (epoch, place)))
    found: set[_Place] = set()
    for events in map(sorted, by_key.values()):
        runs = [[events[0]]]
        for event in events[1:]:
            if event[0] - runs[-1][-1][0] <= gap_us:
                runs[-1].append(event)
            else:
                runs.append([event])
        for run in runs:
            if (version.since_us is None or version.since_us <= run[0][0]) and run[0][0] < (version.until_us or 0):
                found |= {place for _, place in run}
    return found


def _rows_of(
    version: _Version, epochs: Sequence[Batch], parameters: Sequence[Parameters], drained: bool, held: set[_Place]
) -> list[list[tuple[Result, int]]]:
    """The rows of a version by epoch, each with the end of its window, 0 without one; `held`: events it leaves out."""
    query = version.query
    if isinstance(query, Selection):
        where = [None if query.where is None else bound(query.where, now) for now in parameters]
        pairs = zip(where, epochs, strict=False)
        every = [stateless.rows(replace(query, where=one), [batch])[0] for one, batch in pairs]
        every += [[]] * (len(parameters) - len(every))
    else:
        if query.deduplicated is not None:
            query, epochs = without_repeats(query, epochs)
        seen = replace(query, output=(*query.output, Named(_AT, Column("window", WINDOW))))
        marks = windows.watermarks(query, epochs)
        free = [[row for place, row in enumerate(batch) if (n, place) not in held] for n, batch in enumerate(epochs)]
        taken = [_seen_by(version, epoch, batch) for epoch, batch in enumerate(free)]
        if version.backfilled:  # earlier rows are emitted with the parameters of its first epoch
            parameters = [parameters[max(i, min(version.first, len(parameters) - 1))] for i in range(len(parameters))]
        if parameters_in(query):
            every = _answered(seen, taken, parameters, marks)
        else:
            every = windows.answer_by_epoch(seen, taken, drained=drained, marks=marks)
    found: list[list[tuple[Result, int]]] = [[] for _ in every]
    for number, rows in enumerate(every):
        epoch = max(number, version.first) if version.backfilled else number
        ended = version.last is not None and epoch >= version.last
        if (epoch < version.first and not version.handed) or epoch in version.paused or ended:
            continue
        for row in rows:
            window = row.pop(_AT, None)
            start, end = (window["start"], window["end"]) if isinstance(window, dict) else (None, 0)
            if start is not None and version.since_us is not None and start < version.since_us:
                continue
            if start is not None and version.until_us is not None and start >= version.until_us:
                continue
            found[epoch].append((row, end))
    return found
