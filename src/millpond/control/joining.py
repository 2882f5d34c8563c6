"""Sinks and the view of queries that come and go while the pond runs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from millpond.errors import ChangeRefused
from millpond.log.follower import NOTHING_APPLIED, Follower
from millpond.model.changed import Leaving
from millpond.model.endpoints import Sink
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.model.windows import length_us
from millpond.reconfigure.catalog import shadow_name
from millpond.reconfigure.compared import Compared
from millpond.runtime.followers.cursors import follower_name
from millpond.runtime.followers.rows import ReadSection, RowsReader
from millpond.runtime.followers.runner import Runner
from millpond.runtime.followers.shared_view import SharedView
from millpond.runtime.followers.sinks import MemoryTables, sink_follower


class Joining:
    """Adds a query's followers, and removes them when they have what was committed before it was dropped.

    `served`: for each served query the size of its window; the view reads it at each record. `lagging`: queries that
    were dropped before, whose sinks have rows to come.
    """

    def __init__(self, runner: Runner, pond: str, cursors: Path, read: ReadSection) -> None:
        self._runner, self._pond, self._cursors = runner, pond, cursors
        self._rows, self._late_rows = RowsReader(read), RowsReader(read, "late")
        self._read, self.compared = read, dict[str, Compared]()
        self.rows = self._rows
        self.tables, self.late_tables = MemoryTables(), MemoryTables()
        self.served: dict[str, int] = {}
        self.shared: SharedView | None = None
        self._leaving: dict[str, int] = {}
        self.lagging: tuple[Leaving, ...] = ()

    def add(self, query: AnyQuery, since: int = NOTHING_APPLIED) -> None:
        """Follow a query from record `since` on, or from where its sinks are.

        Raises:
            UnsupportedQuery, ForeignPondError, PlaceError: a sink does not fit.
        """
        for follower in self._followers(query, since):
            self._runner.add(follower)
        self._serve(query)

    def _followers(self, query: AnyQuery, since: int) -> list[Follower]:
        made: list[Follower] = []
        if query.sink.format != "noop":
            tables = self.tables
            made.append(sink_follower(query, self._pond, self._rows, self._cursors, since=since, memory=tables))
        if query.late_sink is not None:
            rows, tables = self._late_rows, self.late_tables
            made.append(sink_follower(query, self._pond, rows, self._cursors, since=since, memory=tables, late=True))
        return made

    def add_last(self, leaving: Leaving) -> None:
        """Follow a query that was dropped, up to its drop, if its sink outlives a process and has not all rows.

        Raises:
            ForeignPondError, PlaceError: a sink does not fit.
        """
        query = leaving.asked.query
        if query.sink.format in ("memory", "noop"):
            query = msgspec.structs.replace(query, sink=Sink())
        if isinstance(query, Query):
            kept = query.late_sink is not None and query.late_sink.format != "memory"
            query = msgspec.structs.replace(query, serve=False, late=query.late if kept else msgspec.UNSET)
        behind = [one for one in self._followers(query, NOTHING_APPLIED) if one.cursor() < leaving.n]
        for follower in behind:
            self._runner.add(follower)
            self._leaving[follower.name] = leaving.n
        if behind:
            self.lagging = (*self.lagging, leaving)

    def check(self, query: AnyQuery, stored: bool) -> None:
        """Refuse a query whose rows cannot go where they are to; `stored`: the pond has a store.

        Raises:
            ChangeRefused: a dropped query of its name still has rows to come, or nothing is served yet.
            UnsupportedQuery, ForeignPondError, PlaceError: a sink does not fit.
        """
        self.reap()
        if any(name in self._leaving for name in _names(query)):
            raise ChangeRefused(
                f"The last rows of a query {query.name} that was dropped are on their way to its sink.",
                "Try again in a moment, or give the new one another name.",
            )
        if query.serve and not stored:
            raise ChangeRefused(
                f"{query.name} is to be served, and the pond has no store yet, for no query of it is.",
                "Close the pond and open it again with one served query, or leave serve out.",
            )
        sink_follower(query, self._pond, self._rows, self._cursors)
        if query.late_sink is not None:
            sink_follower(query, self._pond, self._late_rows, self._cursors, late=True)

    def _serve(self, query: AnyQuery) -> None:
        if isinstance(query, Query) and query.serve:
            self.served[query.name] = length_us(query.window)
            self._share()

    def _share(self) -> None:
        if self.shared is not None:
            self.shared.serve(self.served)

    def compare(self, name: str, since: int) -> None:
        """Compare the rows of a query with those of its shadow, from record `since` on."""
        self.compared[name] = Compared(name, shadow_name(name), self._read, since)
        self._runner.add(self.compared[name])

    def compare_no_more(self, name: str) -> None:
        """Forget what differed."""
        if (found := self.compared.pop(name, None)) is not None:
            self._runner.remove(found.name)

    def leave(self, query: AnyQuery, n: int) -> None:
        """Let the followers of a query go when they have applied record `n`."""
        known = self._runner.cursors()
        self._leaving |= {name: n for name in _names(query) if name in known}
        if self.served.pop(query.name, None) is not None:
            self._share()
        self.reap()

    def reap(self) -> None:
        """Let go whoever has what was left to come."""
        cursors = self._runner.cursors()
        for name, n in [*self._leaving.items()]:
            if cursors.get(name, n) >= n:
                self._runner.remove(name)
                del self._leaving[name]


def _names(query: AnyQuery) -> tuple[str, str]:
    return follower_name(query.name, False), follower_name(query.name, True)
