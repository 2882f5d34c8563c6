"""The naive twin of changes: each version of each query is answered alone, over all events from the beginning; of its
rows those count that leave while it is in force and not paused, and whose window starts within its bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec.structs import replace

from millpond.model.expressions import Column, Literal, bound
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.types import WINDOW
from millpond.plan.parameters import parameters_in
from millpond.reconfigure.changes import Add, Alter, Change, Drop, Pause, Promote, Resume, SetParameter, Shadow
from millpond.testing import oracle, stateless
from millpond.testing.oracle import Batch, Result, Value

_AT = "__window of the naive twin"

Plain: TypeAlias = Query | Selection
"""What the twin answers."""


@dataclass
class _Version:
    """A version of a query, in force in epochs first … last - 1 for windows that start in [since, until); what it told
    before epoch `handed` stays told, whatever `until` says.
    """

    query: Plain
    first: int
    since_us: int | None
    last: int | None = None
    until_us: int | None = None
    handed: int = 0
    paused: set[int] = field(default_factory=set)


Parameters: TypeAlias = Mapping[str, Literal]


class NaiveChanges:
    """A pond's queries, and what became of them; tell it of each change before the epoch that it holds in."""

    def __init__(self, queries: Iterable[Plain], parameters: Parameters | None = None) -> None:
        self._versions: dict[str, list[_Version]] = {query.name: [_Version(query, 0, None)] for query in queries}
        self._paused: set[str] = set()
        self._now: Parameters = dict(parameters or {})
        self._parameters: list[Parameters] = []
        self._epoch = 0
        self._shadows: dict[str, Plain] = {}

    def epoch(self) -> None:
        """An epoch was committed."""
        for name in self._paused:
            for version in self._versions[name]:
                version.paused.add(self._epoch)
        self._parameters.append(self._now)
        self._epoch += 1

    def change(self, change: Change) -> None:
        """A change of queries was recorded."""
        if isinstance(change, Add):
            self._versions.setdefault(change.name, []).append(self._version(change, _start(change)))
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
        elif isinstance(change, Alter):
            old = self._versions[change.name][-1]
            start = _start(change)
            if isinstance(change.until_us, int):
                old.until_us, old.handed = change.until_us, self._epoch
            else:
                old.last = self._epoch
            self._versions[change.name].append(self._version(change, old.since_us if start is None else start))
        elif isinstance(change, Shadow):
            query, old = change.asked.query, self._versions[change.name][-1]
            assert isinstance(query, Query | Selection)
            self._shadows[change.name] = query
            if isinstance(change.since_us, int):  # the same query goes on, in two halves
                old.until_us, old.handed = change.since_us, self._epoch
                self._versions[change.name].append(_Version(old.query, self._epoch, change.since_us))
        elif isinstance(change, Promote):
            old, new = self._versions[change.name][-1], self._shadows[change.name]
            old.last, self._shadows[change.name] = self._epoch, old.query
            self._versions[change.name].append(_Version(new, self._epoch, old.since_us))

    def _version(self, change: Add | Alter, since_us: int | None) -> _Version:
        query = change.asked.query
        assert isinstance(query, Query | Selection)
        return _Version(query, self._epoch, since_us)

    def rows(self, epochs: Sequence[Batch], *, drained: bool) -> dict[str, list[Result]]:
        """All rows by query; `drained`: one more epoch closes every window.

        Raises:
            Raised, OverflowedError: a result of a version raises.
        """
        return {
            name: [row for version in versions for row in _rows_of(version, epochs, self._parameters, drained)]
            for name, versions in self._versions.items()
        }


def _start(change: Add | Alter) -> int | None:
    return change.since_us if isinstance(change.since_us, int) else None


def _answered(query: Query, epochs: Sequence[Batch], parameters: Sequence[Parameters]) -> list[list[Result]]:
    """As `oracle.answer_by_epoch`, with the parameters of each epoch."""
    cells: dict[tuple[Value, ...], oracle._Cell] = {}
    found = []
    marks = oracle.watermarks(query, epochs)
    for batch, now, before, after in zip(epochs, parameters, marks, marks[1:], strict=False):
        asked = _bound(query, now)
        for row in batch:
            judged = oracle._judge(asked, row, before)
            if judged.fate == "applied":
                oracle._place(asked, row, judged, cells)
        ripe = [key for key, cell in cells.items() if after is not None and cell.window.end_us <= after]
        found.append(list(oracle._emit(asked, [cells.pop(key) for key in ripe])))
    if len(parameters) > len(epochs):  # a drain
        found.append(list(oracle._emit(_bound(query, parameters[len(epochs)]), list(cells.values()))))
    return found


def _bound(query: Query, parameters: Parameters) -> Query:
    aggregates = tuple(
        replace(one, filter=None if one.filter is None else bound(one.filter, parameters)) for one in query.aggregates
    )
    where, having = (None if one is None else bound(one, parameters) for one in (query.where, query.having))
    return replace(query, where=where, having=having, aggregates=aggregates)


def _rows_of(
    version: _Version, epochs: Sequence[Batch], parameters: Sequence[Parameters], drained: bool
) -> list[Result]:
    query, found = version.query, []
    if isinstance(query, Selection):
        where = [None if query.where is None else bound(query.where, now) for now in parameters]
        pairs = zip(where, epochs, strict=False)
        every = [stateless.rows(replace(query, where=one), [batch])[0] for one, batch in pairs]
    else:
        seen = replace(query, output=(*query.output, Named(_AT, Column("window", WINDOW))))
        if parameters_in(query):
            every = _answered(seen, epochs, parameters)
        else:
            every = oracle.answer_by_epoch(seen, epochs, drained=drained)
    for epoch, rows in enumerate(every):
        if epoch < version.first or epoch in version.paused or (version.last is not None and epoch >= version.last):
            continue
        for row in rows:
            window = row.pop(_AT, None)
            start = window["start"] if isinstance(window, dict) else None
            if start is not None and version.since_us is not None and start < version.since_us:
                continue
            until = version.until_us if epoch >= version.handed else None
            if start is not None and until is not None and start >= until:
                continue
            found.append(row)
    return found
