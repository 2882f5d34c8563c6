"""Attaches and detaches sinks and the view when queries are added and dropped while the pond runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from millpond.errors import ChangeRefused
from millpond.followers.cursors import CursorPath, follower_name
from millpond.followers.record_rows import ReadSection, RowsReader
from millpond.followers.runner import Runner, Runners
from millpond.followers.sinks.in_process import Foreach, MemoryTables
from millpond.followers.sinks.kinds import sink_kind, sink_path, waits_for_others
from millpond.followers.sinks.make_sink import dead_letter_follower, sink_follower
from millpond.followers.upserts import Instances, Owners, WriteOwn
from millpond.followers.view.shared_view import SharedView
from millpond.log.cursor import NOTHING_APPLIED
from millpond.log.follower import Follower, close_follower
from millpond.log.manifest import Manifest
from millpond.model.change_history import Leaving
from millpond.model.endpoints import FOREACH, Sink
from millpond.model.query import Query, length_us
from millpond.model.selection import AnyQuery
from millpond.model.stream import Stream
from millpond.reconfigure.catalog import shadow_name
from millpond.reconfigure.shadow_report import ShadowComparison
from millpond.runtime.joins.lookup_rows import OpenRows
from millpond.runtime.packets.row_batches import dead_letters_of


class AttachedSinks:
    """Adds the followers of a query, and removes them when they have applied everything committed before its drop.

    `served`: the size of the window of each served query; the view reads it at each record. `lagging`: dropped queries
    whose sinks have not received all rows yet.
    """

    def __init__(
        self, runners: Runners, alone: Callable[[Sequence[Follower]], Runner], pond: str, cursors: CursorPath,
        read: ReadSection, opens: Callable[[str | None], OpenRows], functions: Mapping[str, Foreach],
        homes: Mapping[str, str], write: WriteOwn | None = None,
    ) -> None:  # fmt: skip
        """`homes`: the folders to which paths are relative, by query name and by `dead_letters_of` of a stream.

        `write`: see `Instances.write`.
        """
        self._instances = None if write is None else Instances(self._owners, write)
        self._homes = homes
        self._runners, self._alone, self._opens, self._functions = runners, alone, opens, functions
        self._pond, self._cursors = pond, cursors
        self._rows, self._late_rows = RowsReader(read), RowsReader(read, "late")
        self._letters = RowsReader(read, "dead")
        self._read, self.compared = read, dict[str, ShadowComparison]()
        self.rows = self._rows
        self.tables, self.late_tables = MemoryTables(), MemoryTables()
        self.served: dict[str, int] = {}
        self.shared: SharedView | None = None
        self._leaving, self._unserved = dict[str, int](), dict[str, int]()
        self.lagging: tuple[Leaving, ...] = ()

    def add(self, query: AnyQuery, since: int = NOTHING_APPLIED) -> None:
        """Follow a query from record `since` on, or from the cursors of its sinks.

        Raises:
            UnsupportedQuery, ForeignPondError, PlaceError: a sink does not fit.
        """
        for follower in self._followers(query, since):
            self._run(query, follower)
        self._serve(query)

    def _run(self, query: AnyQuery, follower: Follower) -> None:
        # a separate runner, so that an unreachable server does not delay other followers
        late = query.late_sink if follower.name == follower_name(query.name, True) else None
        if waits_for_others(late or query.sink):
            self._runners.join(self._alone([follower]))
        else:
            self._runners.first.add(follower)

    def _followers(self, query: AnyQuery, since: int) -> list[Follower]:
        query = self._with_absolute_paths(query)
        made: list[Follower] = []
        if not query.sink.goes_nowhere:
            rows, tables, opens = self._rows, self.tables, self._opens
            made.append(
                sink_follower(
                    query, self._pond, rows, self._cursors, since=since, memory=tables, opens=opens,
                    functions=self._functions, instances=self._instances,
                )
            )  # fmt: skip
        if query.late_sink is not None:
            rows, tables = self._late_rows, self.late_tables
            made.append(sink_follower(query, self._pond, rows, self._cursors, since=since, memory=tables, late=True))
        return made

    def add_last(self, leaving: Leaving) -> None:
        """Follow a dropped query up to its drop, if its sink outlives the process and does not have all rows.

        Raises:
            ForeignPondError, PlaceError: a sink does not fit.
        """
        query = leaving.stored.query
        lost = query.sink.format == FOREACH and query.name not in self._functions
        if lost or not sink_kind(query.sink.format).lasting:
            query = msgspec.structs.replace(query, sink=Sink())
        if isinstance(query, Query):
            if query.serve:
                self._unserved[query.name] = leaving.n
            kept = query.late_sink is not None and sink_kind(query.late_sink.format).lasting
            query = msgspec.structs.replace(query, serve=False, late=query.late if kept else msgspec.UNSET)
        behind = False
        for follower in self._followers(query, NOTHING_APPLIED):
            if follower.cursor().n < leaving.n:
                self._run(query, follower)
                self._leaving[follower.name] = leaving.n
                behind = True
            else:
                close_follower(follower)
        if behind:
            self.lagging = (*self.lagging, leaving)

    def add_letters(self, streams: Iterable[Stream], since: int = NOTHING_APPLIED) -> None:
        """Keep the dead letters of streams whose properties request it, from record `since` on; skips streams that are
        followed already.

        Raises:
            ForeignPondError, PlaceError: a folder does not fit.
        """
        # A second follower of a folder that is behind would begin after `since`, and so would skip letters.
        known = self._runners.cursors()
        new = (one for one in streams if follower_name(dead_letters_of(one.name), False) not in known)
        for follower in self._letter_followers(new, since):
            self._runners.first.add(follower)

    def _letter_followers(self, streams: Iterable[Stream], since: int = NOTHING_APPLIED) -> list[Follower]:
        return [
            dead_letter_follower(
                stream.name,
                _placed(sink, self._homes.get(dead_letters_of(stream.name))),
                self._pond,
                self._letters,
                since,
            )
            for stream in streams
            if (sink := stream.on_malformed.sink) is not None
        ]

    def _with_absolute_paths(self, query: AnyQuery) -> AnyQuery:
        """The query with absolute paths of its sinks, which do not depend on the current folder."""
        home = self._homes.get(query.name)
        query = msgspec.structs.replace(query, sink=_placed(query.sink, home))
        if query.late_sink is None or not isinstance(query, Query):
            return query
        return msgspec.structs.replace(query, late=_placed(query.late_sink, home))

    def check(self, query: AnyQuery, stored: bool, streams: Iterable[Stream] = ()) -> None:
        """Refuse a query whose rows cannot be published or served; `stored`: the pond has a store.

        `streams`: the streams that are added with it, whose dead letters need a sink too.

        Raises:
            ChangeRefused: a dropped query of its name still has rows to publish or is still served, or the pond has no
                store to serve from.
            UnsupportedQuery, ForeignPondError, PlaceError: a sink does not fit.
        """
        self.remove_finished()
        query = self._with_absolute_paths(query)
        if any(name in self._leaving for name in _names(query)):
            raise ChangeRefused(
                f"The last rows of a query {query.name} that was dropped are on their way to its sink.",
                "Try again in a moment, or give the new one another name.",
            )
        if query.serve and not stored:
            raise ChangeRefused(
                f"{query.name} is to be served, and the pond has no store yet, for no query of it is.",
                "Serve it from a new pond that begins with it, or leave serve out.",
            )
        viewed = self._runners.cursors().get(SharedView.name, NOTHING_APPLIED)
        if query.serve and self._unserved.get(query.name, NOTHING_APPLIED) > viewed:
            raise ChangeRefused(
                f"Rows of a query {query.name} that was dropped are still served.",
                "Try again in a moment, or give the new one another name.",
            )
        rows, late = self._rows, self._late_rows
        opens, functions = self._opens, self._functions
        close_follower(sink_follower(query, self._pond, rows, self._cursors, opens=opens, functions=functions))
        if query.late_sink is not None:
            close_follower(sink_follower(query, self._pond, late, self._cursors, late=True))
        for follower in self._letter_followers(streams):
            close_follower(follower)

    def _serve(self, query: AnyQuery) -> None:
        if isinstance(query, Query) and query.serve:
            self.served[query.name] = length_us(query.window)
            self._share()

    def _owners(self) -> Owners | None:
        """The owners of buckets, if the view is in a store on the network, so that the instances write it."""
        if self.shared is None:
            return None
        share = self.shared.share
        return Owners(share.owners, share.address, share.copies)

    def _share(self) -> None:
        if self.shared is not None:
            self.shared.serve(self.served)

    def compare(self, name: str, since: int, manifest: Manifest) -> None:
        """Compare the rows of a query with those of its shadow, from record `since` on, at which `manifest` is."""
        self.compared[name] = ShadowComparison(name, shadow_name(name), self._read, since, manifest)
        self._runners.first.add(self.compared[name])

    def stop_comparing(self, name: str) -> None:
        """Stop comparing a query with its shadow, and forget their differences."""
        if (found := self.compared.pop(name, None)) is not None:
            self._runners.forget(found.name)  # does not wait, because this is called between two epochs

    def detach(self, query: AnyQuery, n: int) -> None:
        """Remove the followers of a query when they have applied record `n`."""
        known = self._runners.cursors()
        self._leaving |= {name: n for name in _names(query) if name in known}
        if self.served.pop(query.name, None) is not None:
            self._unserved[query.name] = n
            self._share()
        self.remove_finished()

    def remove_finished(self) -> None:
        """Remove the followers of dropped queries that have applied everything they had to."""
        cursors = self._runners.cursors()
        for name, n in [*self._leaving.items()]:
            if cursors.get(name, n) >= n:
                self._runners.remove(name)
                del self._leaving[name]


def _placed(sink: Sink, home: str | None) -> Sink:
    path = None if sink.path is None else sink_path(sink, "The sink's path", home)
    return msgspec.structs.replace(sink, path=path)


def _names(query: AnyQuery) -> tuple[str, str]:
    return follower_name(query.name, False), follower_name(query.name, True)
