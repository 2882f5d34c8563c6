"""The naive twin of changes: each version of each query is answered alone, over all events from the beginning; of its
rows those count that leave while it is in force and not paused, and whose window starts within its bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec.structs import replace

from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.types import WINDOW
from millpond.reconfigure.changes import Add, Alter, Change, Drop, Pause, Resume
from millpond.testing import oracle, stateless
from millpond.testing.oracle import Batch, Result

_AT = "__window of the naive twin"

Plain: TypeAlias = Query | Selection
"""What the twin answers."""


@dataclass
class _Version:
    """A version of a query, in force in epochs first … last - 1 for windows that start in [since, until)."""

    query: Plain
    first: int
    since_us: int | None
    last: int | None = None
    until_us: int | None = None
    paused: set[int] = field(default_factory=set)


class NaiveChanges:
    """A pond's queries, and what became of them; tell it of each change before the epoch that it holds in."""

    def __init__(self, queries: Iterable[Plain]) -> None:
        self._versions: dict[str, list[_Version]] = {query.name: [_Version(query, 0, None)] for query in queries}
        self._paused: set[str] = set()
        self._epoch = 0

    def epoch(self) -> None:
        """An epoch was committed."""
        for name in self._paused:
            for version in self._versions[name]:
                version.paused.add(self._epoch)
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
        elif isinstance(change, Alter):
            old = self._versions[change.name][-1]
            start = _start(change)
            if isinstance(change.until_us, int):
                old.until_us = change.until_us
            else:
                old.last = self._epoch
            self._versions[change.name].append(self._version(change, old.since_us if start is None else start))

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
            name: [row for version in versions for row in _rows_of(version, epochs, drained)]
            for name, versions in self._versions.items()
        }


def _start(change: Add | Alter) -> int | None:
    return change.since_us if isinstance(change.since_us, int) else None


def _rows_of(version: _Version, epochs: Sequence[Batch], drained: bool) -> list[Result]:
    query, found = version.query, []
    if isinstance(query, Selection):
        every = stateless.rows(query, epochs)
    else:
        seen = replace(query, output=(*query.output, Named(_AT, Column("window", WINDOW))))
        every = oracle.answer_by_epoch(seen, epochs, drained=drained)
    for epoch, rows in enumerate(every):
        if epoch < version.first or epoch in version.paused or (version.last is not None and epoch >= version.last):
            continue
        for row in rows:
            window = row.pop(_AT, None)
            start = window["start"] if isinstance(window, dict) else None
            if start is not None and version.since_us is not None and start < version.since_us:
                continue
            if start is not None and version.until_us is not None and start >= version.until_us:
                continue
            found.append(row)
    return found
