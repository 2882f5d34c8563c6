"""Adds queries to a pond, also while it runs: analyses and prices them, reads a backfill, and requests the change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from millpond.clock import moment_us
from millpond.control.checks.input_files import check_files
from millpond.control.pond.backfill_run import BackfillRun, rereader
from millpond.control.pond.declare import Declarations, QueryOptions
from millpond.control.pond.lifetime import Lifetime
from millpond.control.pond.readings import Readings
from millpond.control.pond.request_change import ChangeRequests, named
from millpond.control.wiring.truth import holds_pond
from millpond.errors import QueryTypeError
from millpond.model.change_history import ALWAYS
from millpond.model.endpoints import Sink
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.plan.upstream.step_copies import copied_steps
from millpond.reconfigure import validate
from millpond.reconfigure.catalog import version_name
from millpond.reconfigure.change_price import Price
from millpond.reconfigure.changes import Add
from millpond.reconfigure.lifecycle import check_move
from millpond.reconfigure.validate import KnownPond
from millpond.runtime.inputs.backfill import Past
from millpond.spark.analysis.properties import Mode, Repeats
from millpond.spark.driver.reread_source import SourceRereader
from millpond.spark.session.session import Frame, explaining

Backfill = bool | str | datetime
"""Which earlier events are read again: none (False), all (True, "all"), or those from a time on."""

_MEMORY = Sink("memory")


class QueryAdditions:
    """Adds queries to one pond."""

    def __init__(
        self, lifetime: Lifetime, declarations: Declarations, readings: Readings, requests: ChangeRequests
    ) -> None:
        self._lifetime, self._declarations, self._requests = lifetime, declarations, requests
        self._session = readings.session

    @explaining()
    def add(
        self, name: str, query: str | Frame, *, sink: Sink = _MEMORY, serve: bool = False, late: Sink | None = None,
        emit: str = "final", correct_for: str | None = None, deduplicate: Sequence[str] = (),
        deduplicate_within: str | None = None, budget: str | None = None, incomplete: bool = False,
        backfill: Backfill = False, who: str | None = None, late_by: str = "event", state_ttl: str | None = None,
        time_zone: str | None = None,
    ) -> AnyQuery:  # fmt: skip
        """Add a query, also while the pond runs: Spark SQL, or a Structured Streaming DataFrame that is not started.

        SQL may read the rows of an earlier query (`FROM STREAM its_name`), one epoch later. Rows go to `sink` (default:
        memory, see `table`); `serve` keeps the latest row per key for `lookup`; late events that WHERE takes go to
        `late`, else they are only counted. By default a row is emitted once, when the watermark passes its window; with
        `emit="update"` in each epoch that changes it (`_op`: upsert or delete); with `correct_for="1 hour"` once, and
        again if events arrive up to an hour later than the delay (`_revision`). An event is late when the watermark has
        passed its time; with `late_by="window"`, when the first of its windows has closed; with `late_by="join"`, when
        the watermarks of both sides of the join have. An event is left out if it equals an event at most
        `deduplicate_within` before it in the columns `deduplicate`. A query added to a running
        pond emits the windows that start after all events that were read, and those that kept data completes.
        `time_zone="Europe/Berlin"`: the time zone of a text, in place of that of the session.
        `state_ttl="1 hour"`: how long, in event time, events of a join without bounds and keys of DISTINCT are kept.
        `incomplete`: also emit windows that are open now, from later events; `_complete` marks rows of complete ones.
        `backfill`: read earlier events again from the source, and also emit the windows, even closed ones, that the
        query would have emitted before: all (True), or those that start at a time (ISO 8601 or a datetime, UTC without
        a zone) or later; the call returns when this is in the log. `budget` (`state 100 MB, keys 1000000, time 50 ms`:
        bytes of state, keys, workers' time per epoch): above it the query is quarantined. `who` (default: this
        process's user) is stored in the history.

        Raises:
            QueryError: the query is wrong, refused or not supported; nothing was added.
            GoneError: the source does not have everything that a backfill needs; nothing was added.
        """
        mode, repeats = Mode(emit, correct_for, late_by), Repeats(tuple(deduplicate), deduplicate_within)
        options = QueryOptions(
            sink, serve, late, mode, repeats, budget, incomplete, backfill_from(backfill), state_ttl,
            time_zone,
        )  # fmt: skip
        if self._lifetime.is_open():
            return self._add(name, query, options, who)
        if options.backfill_us is not None and holds_pond(self._lifetime.location.address):
            raise QueryTypeError(f"{name} can be backfilled when the pond is open.", "Call `pond.open()` first.")
        return self._declarations.add(name, query, options)

    def _add(self, name: str, query: str | Frame, options: QueryOptions, who: str | None) -> AnyQuery:
        """Add a query to an open pond."""
        opened, declared = self._lifetime.open(), self._declarations
        check_move(opened.spec, name, "add")
        analysed = declared.analyse(name, query, options, deadline=True)
        try:
            check_files(declared.front.readings([analysed]))
            attached, store = opened.followers.attached, opened.followers.store
            attached.check(analysed, store is not None, declared.sources_of(analysed))
            streams, times = declared.streams_of(analysed), declared.time_sources_of(analysed)
            by, from_us = named(who), options.backfill_us
            make = declared.naming(lambda pond: validate.add(pond, analysed, streams, by, times, from_us), analysed)
            if from_us is None:
                self._requests.request(make)
            else:
                self._backfill(analysed, from_us, make)
        except BaseException:
            with declared.front.lock:
                declared.front.forget(name)
                if name in declared.queries:  # another call has added a query of this name in the meantime
                    declared.front.remember(declared.queries[name])
            raise
        return analysed

    def _backfill(self, query: AnyQuery, from_us: int, make: Callable[[KnownPond], Add]) -> None:
        """Read the events with which the query begins, then have the change recorded that names them."""
        self._requests.price(make)
        driver = self._lifetime.open().driver
        reading = self._reading(query, from_us)
        backfills = self._lifetime.open().backfills
        backfills[query.name] = reading

        def ended() -> None:
            backfills.pop(reading.name, None)
            reading.clear()

        try:
            if isinstance(make(self._requests.known()).backfill_us, int):  # else epochs may run before the change
                reading.ahead(lambda: driver.manifest, patient=not driver.in_epoch)
            self._requests.check(make)
        except BaseException:
            ended()
            raise
        self._requests.record(lambda pond: reading.prepared(make(pond), pond.manifest), ended)

    def _reading(self, query: AnyQuery, from_us: int) -> BackfillRun:
        opened = self._lifetime.open()
        assert isinstance(query, Query)  # `validate.add` refuses others
        early = partial(copied_steps, query, version_name(query.name, 0), dict(self._declarations.front.streams))
        lowest = early(0).lowest
        past = Past(opened.truth.log, lowest.stream)
        return BackfillRun(
            opened.truth.files(), query.name, lambda n: early(n).lowest.name, self._source(lowest), past, from_us,
            opened.files,
        )  # fmt: skip

    def _source(self, query: AnyQuery) -> SourceRereader:
        front, driver = self._declarations.front, self._lifetime.open().driver
        with front.lock:
            wanted = front.wanted([query])
        return rereader(self._session, wanted, query, lambda: driver.checkpoint)

    def price(self, query: AnyQuery, from_us: int | None) -> Price:
        """The price of adding an analysed query now; `from_us` as in `validate.add`.

        Raises:
            ChangeRefused: the query would be refused.
            GoneError: the source does not have everything that a backfill needs.
        """
        streams, times = self._declarations.streams_of(query), self._declarations.time_sources_of(query)

        def make(pond: KnownPond) -> Add:
            return validate.add(pond, query, streams, time_sources=times, backfill_us=from_us)

        price = self._requests.price(make)
        known = self._requests.known()
        change = make(known)
        if not isinstance(change.backfill_us, int):
            return price
        return price._replace(source=self._reading(query, change.backfill_us).price(known.manifest.n))


def backfill_from(backfill: Backfill) -> int | None:
    """The time from which on events are read again, in microseconds since 1970 UTC; None: no backfill. A time without a
    zone is UTC.

    Raises:
        QueryTypeError: the text is not a time.

    >>> backfill_from(False), backfill_from("1970-01-01 00:00:01"), backfill_from("1970-01-01T01:00:01+01:00")
    (None, 1000000, 1000000)
    """
    if isinstance(backfill, bool):
        return ALWAYS if backfill else None
    if isinstance(backfill, str):
        if backfill == "all":
            return ALWAYS
        try:
            backfill = datetime.fromisoformat(backfill)
        except ValueError as error:
            raise QueryTypeError(
                f"A backfill from {backfill!r} on: this is no time.", "Write `all`, or 2026-11-01T12:00:00 (UTC)."
            ) from error
    return moment_us(backfill)
