"""Reports the state of a pond: its followers and sources, why a query emits nothing, and what is incomplete."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from millpond.control.checks.brokers import WAITS_US, BrokerWatch
from millpond.control.diagnose.causes import explain_why
from millpond.control.diagnose.facts import find_facts
from millpond.control.diagnose.why_report import Why
from millpond.control.pond.declare import Declarations
from millpond.control.pond.event_totals import EventTotals, QueryCounts
from millpond.control.pond.lifetime import OpenPond
from millpond.control.pond.problems import LOGGER, Problem, Problems, losses, quarantined, quarantined_in, unread
from millpond.control.wiring.pond_reader import read_truth
from millpond.followers.runner import FollowerStatus
from millpond.log.locations.address import Address
from millpond.model.endpoints import READ
from millpond.model.stream import Stream
from millpond.reconfigure.changes import Change, Halt
from millpond.runtime.inspect.timeline import KEPT, Trace, trace_of
from millpond.spark.driver.epochs import Epoch
from millpond.spark.reading.intake import Behind
from millpond.spark.sources.count_malformed_rows import MalformedRows
from millpond.state.ports.requests import Requests

QUERY = "query:"
"""Prefix of the names of quarantined queries in `Pond.status`, where they are listed with the followers."""

_log = logging.getLogger(LOGGER)


class Reports:
    """Reports on one pond; `opened` returns the pond while it is open, and `on_epoch` is called for each epoch."""

    def __init__(
        self, address: Address, cache: Path, declarations: Declarations, opened: Callable[[], OpenPond | None],
        on_epoch: Callable[[Epoch], None] | None,
    ) -> None:  # fmt: skip
        self._address, self._cache = address, cache
        self._declarations, self._opened, self._on_epoch = declarations, opened, on_epoch
        self._totals, self._problems = EventTotals(), Problems()
        self._brokers = BrokerWatch(self._streams)

    def counts(self) -> dict[str, QueryCounts]:
        """The fate of the events that each query read since this `Pond` was created, also per source partition."""
        return self._totals.counts()

    @property
    def lookups(self) -> Requests:
        """The look-ups of rows by the owners of their keys, in the newest epoch that had any."""
        return self._totals.lookups

    def why(self, name: str) -> Why:
        """Why a query emits nothing (more), the main cause first; see `control.diagnose.causes`.

        Raises:
            QueryTypeError: no query has this name.
            ForeignPondError: the pond was never run.
            CorruptError, PlaceError: the pond, or the query's sink, cannot be read.
        """
        truth, spec = read_truth(self._address, self._cache)
        return explain_why(find_facts(truth, spec, name, self.status()))

    def status(self) -> Sequence[FollowerStatus]:
        """The state of sinks, view, pruning, background work, and a store that carries the pond's files, if one does.

        Quarantined queries are listed too, each with the reason as its note. For the backlog of sources see `behind`.
        """
        opened = self._opened()
        if opened is None:
            return ()
        n = opened.manifest().n
        statuses, carrier = list(opened.followers.runner.status()), opened.files.carrier
        if carrier is not None:
            statuses.append(FollowerStatus("files", n, 0, note=carrier.note))
        notes = [("shuffle", opened.driver.direct_note), ("move", opened.moving.note)]
        notes.append(("shards", opened.resharding.note))
        notes += [(f"{READ}{stream}", note) for stream, note in opened.driver.reader_notes.items()]
        notes += [("backfill", one.note) for one in [*opened.backfills.values()]]
        statuses += [FollowerStatus(name, n, 0, note=note) for name, note in notes if note is not None]
        for problem in self._quarantined(opened):
            statuses.append(FollowerStatus(f"{QUERY}{problem.about.partition(' ')[2]}", n, 0, note=str(problem)))
        return statuses

    def trace(self, epochs: int = KEPT) -> Trace:
        """Where the time of the newest epochs of this process went, as a trace that Perfetto and Chrome open."""
        opened = self._opened()
        if opened is None:
            return Trace([])
        return trace_of(opened.driver.timelines(epochs), opened.followers.runner.applied())

    def behind(self) -> list[Behind]:
        """The backlog of each source: the number of Kafka records, or of files, that are not committed yet."""
        opened = self._opened()
        return [] if opened is None else opened.driver.behind()

    def problems(self, *, at_end: bool = False) -> list[Problem]:
        """What makes the results incomplete, failures first: quarantined queries, events that were late or dead since
        this pond was opened, files that disappeared before they were read, or are dated far ahead, and malformed rows
        of joined tables. Also brokers that do not answer now.

        With `at_end`, for the end of a run that has read all input: also sources of which no event was ever read.
        """
        opened, queries = self._opened(), self._declarations.queries
        if opened is None:
            return []
        counts = self.counts()
        found = [*self._quarantined(opened), *self._problems.of_inputs()]
        found += losses(counts, queries, self._declarations.streams)
        found += [Problem(one.code, "brokers", f"{one.what} {one.cure}", False) for one in self._brokers.found]
        if at_end:
            found += unread(opened.spec, counts, opened.truth.log, opened.manifest().n)
        return sorted(found, key=lambda problem: not problem.failure)

    def _quarantined(self, opened: OpenPond) -> list[Problem]:
        return quarantined_in(opened.spec, opened.manifest())

    def committed(self, epoch: Epoch) -> None:
        """Count a committed epoch, and warn of its problems."""
        self._totals.add(epoch.record)
        declared = self._declarations
        for problem in self._problems.add_epoch(epoch, self._totals, declared.queries, declared.streams):
            _log.warning("%s", problem)
        if self._on_epoch is not None:
            self._on_epoch(epoch)

    def waits(self, now: bool) -> None:
        """Warn of brokers that do not answer, if Spark has waited long for the offsets of its sources."""
        for note in self._brokers.observe(now):
            _log.warning("Spark has waited %d s for the offsets of its sources. %s", WAITS_US // 10**6, note)

    def _streams(self) -> Sequence[Stream]:
        opened = self._opened()
        return () if opened is None else opened.spec.sources

    def malformed(self, found: MalformedRows) -> None:
        """Warn of the malformed rows of a joined table."""
        _log.warning("%s", self._problems.add_malformed(found))

    def changed(self, change: Change) -> None:
        """Warn of a query that a change has quarantined."""
        if isinstance(change, Halt):
            _log.warning("%s", quarantined(change.name, change.why))
