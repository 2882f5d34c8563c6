"""Reports the state of a pond: its followers and sources, why a query emits nothing, and what is incomplete."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from millpond.control.diagnose.causes import Why, explain_why
from millpond.control.diagnose.facts import find_facts
from millpond.control.pond.backfill import Backfilling
from millpond.control.pond.event_totals import QueryCounts, Tally
from millpond.control.pond.move import Moving
from millpond.control.pond.problems import Problem, Problems, dropping, losses, quarantined, quarantined_in, unread
from millpond.control.wiring.adapters import Followers, Truth
from millpond.control.wiring.file_transport import Carriage
from millpond.control.wiring.reader import read_truth
from millpond.followers.runner import FollowerStatus
from millpond.log.manifest import Manifest
from millpond.model.selection import AnyQuery
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream
from millpond.reconfigure.changes import Change, Halt
from millpond.reconfigure.probation import Probation
from millpond.spark.driver.driver import Driver
from millpond.spark.driver.epochs import Epoch
from millpond.spark.reading.intake import Behind

LOGGER = "millpond.pond"
"""Name of the logger that gets a warning for each problem when it happens."""

QUERY = "query:"
"""Prefix of the names of quarantined queries in `Pond.status`, where they are listed with the followers."""

_log = logging.getLogger(LOGGER)


class Reporting:
    """The part of `Pond` that reports its state."""

    path: Path

    _driver: Driver | None
    _followers: Followers | None
    _truth: Truth | None
    _carriage: Carriage | None
    _moving: Moving | None
    _spec: PondSpec | None
    _queries: dict[str, AnyQuery]
    _backfills: dict[str, Backfilling]
    _tally: Tally
    _problems: Problems
    _probation: Probation
    _on_epoch: Callable[[Epoch], None]

    def counts(self) -> dict[str, QueryCounts]:
        """The fate of the events that each query read since this `Pond` was created, also per source partition."""
        return self._tally.counts()

    def why(self, name: str) -> Why:
        """Why a query emits nothing (more), the main cause first; see `control.diagnose.causes`.

        Raises:
            QueryTypeError: no query has this name.
            ForeignPondError: the pond was never run.
            CorruptError, PlaceError: the pond, or the query's sink, cannot be read.
        """
        truth, spec = read_truth(self.path)
        return explain_why(find_facts(truth, spec, name, self.status()))

    def status(self) -> Sequence[FollowerStatus]:
        """The state of sinks, view, pruning, background work, and a store that carries the pond's files, if one does.

        Quarantined queries are listed too, each with the reason as its note. For the backlog of sources see `behind`.
        """
        if self._followers is None or self._carriage is None:
            return ()
        n = self.manifest().n
        found, carrier = list(self._followers.runner.status()), self._carriage.carrier
        if carrier is not None:
            found.append(FollowerStatus("files", n, 0, note=carrier.note))
        if self._driver is not None and self._driver.direct_note is not None:
            found.append(FollowerStatus("shuffle", n, 0, note=self._driver.direct_note))
        if self._moving is not None and self._moving.note is not None:
            found.append(FollowerStatus("move", n, 0, note=self._moving.note))
        for one in [*self._backfills.values()]:
            found.append(FollowerStatus("backfill", n, 0, note=one.note))
        for problem in self._quarantined():
            found.append(FollowerStatus(f"{QUERY}{problem.about.partition(' ')[2]}", n, 0, note=str(problem)))
        return found

    def behind(self) -> list[Behind]:
        """The backlog of each source: the number of Kafka records, or of files, that are not committed yet."""
        return [] if self._driver is None else self._driver.behind()

    def problems(self, *, at_end: bool = False) -> list[Problem]:
        """What makes the results incomplete, failures first: quarantined queries, events that were late or dead since
        this pond was opened, files that disappeared before they were read, sources that drop records uncounted.

        With `at_end`, for the end of a run that has read all input: also sources of which no event was ever read.
        """
        if self._truth is None or self._spec is None:
            return []
        counts, streams = self.counts(), self._sources()
        found = [
            *self._quarantined(), *self._problems.vanished(), *losses(counts, self._queries), *dropping(streams),
        ]  # fmt: skip
        if at_end:
            found += unread(streams, self._queries.values(), counts, self._truth.log, self.manifest().n)
        return sorted(found, key=lambda problem: not problem.failure)

    def _quarantined(self) -> list[Problem]:
        return [] if self._spec is None else quarantined_in(self._spec, self.manifest())

    def _sources(self) -> list[Stream]:
        return [] if self._spec is None else [stream for stream in self._spec.streams if stream.source is not None]

    def _committed(self, epoch: Epoch) -> None:
        self._tally.add(epoch.record)
        self._probation.committed(epoch.record)
        for problem in self._problems.epoch(epoch, self._tally, self._queries):
            _log.warning("%s", problem)
        self._on_epoch(epoch)

    def _halted(self, change: Change) -> None:
        """Report a query that a change has quarantined."""
        if isinstance(change, Halt):
            _log.warning("%s", quarantined(change.name, change.why))

    def manifest(self) -> Manifest:
        """See `Pond.manifest`."""
        raise NotImplementedError
