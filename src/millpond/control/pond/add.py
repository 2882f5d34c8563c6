"""Adds a query to a running pond: analyses and prices it, reads a backfill, and requests the change."""

from __future__ import annotations

import getpass
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from millpond.control.pond.backfill import Backfilling, again
from millpond.control.pond.check_schemas import check_files
from millpond.control.wiring.adapters import Followers, Truth
from millpond.control.wiring.file_transport import Carriage
from millpond.errors import MillpondError, NotServingError, QueryTypeError, UnsupportedQuery
from millpond.model.budget import budget_of
from millpond.model.change_history import ALWAYS
from millpond.model.endpoints import Sink
from millpond.model.selection import AnyQuery
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream
from millpond.plan.options.partial_windows import with_complete
from millpond.reconfigure import validate
from millpond.reconfigure.catalog import applied
from millpond.reconfigure.change_price import Price, price_of
from millpond.reconfigure.change_queue import Make, Prepare
from millpond.reconfigure.changes import Add
from millpond.reconfigure.lifecycle import check_move
from millpond.reconfigure.validate import Pond as Between
from millpond.runtime.inputs.backfill import Past
from millpond.spark.analysis.properties import Mode, Repeats
from millpond.spark.catalyst.deadline import Analyses
from millpond.spark.driver.backfill import SourceAgain
from millpond.spark.driver.driver import Driver
from millpond.spark.frontend.frontend import FrontEnd
from millpond.spark.session.session import Frame, Session

Backfill = bool | str | datetime
"""Which earlier events are read again: none (False), all (True, "all"), or those from a time on."""


class Asking(NamedTuple):
    """The options of an added query: see `Pond.add`; `backfill_us` as in `validate.add`."""

    sink: Sink
    serve: bool = False
    late: Sink | None = None
    mode: Mode = Mode()
    repeats: Repeats = Repeats()
    budget: str | None = None
    incomplete: bool = False
    backfill_us: int | None = None


class Adding:
    """The part of `Changing` that adds queries."""

    path: Path
    refused: list[MillpondError]

    _driver: Driver | None
    _ended: bool
    _followers: Followers | None
    _truth: Truth | None
    _carriage: Carriage | None
    _spec: PondSpec | None
    _front: FrontEnd
    _reading: Session
    _queries: dict[str, AnyQuery]
    _analysing: threading.RLock
    _backfills: dict[str, Backfilling]
    _analyses: Analyses

    def _is_open(self) -> bool:
        """Whether the pond was opened, so that requests are changes of a running pond.

        Raises:
            NotServingError: the pond was ended in this process.
        """
        if self._driver is None and self._ended:
            raise NotServingError("This process leads the pond no more.", "Ask the leader, or again in a moment.")
        return self._driver is not None

    def _add(self, name: str, query: str | Frame, asking: Asking, who: str | None) -> AnyQuery:
        """Add a query to an open pond."""
        assert self._spec is not None and self._followers is not None
        check_move(self._spec, name, "add")
        made = self._analysed(name, query, asking)
        try:
            check_files(self._front.readings([made]))
            self._followers.joining.check(made, self._followers.store is not None, self._told_apart(made))
            streams, by, from_us = self._streams_of(made), named(who), asking.backfill_us
            if from_us is None:
                self._ask(lambda pond: validate.add(pond, made, streams, by))
            else:
                self._backfilled(made, from_us, lambda pond: validate.add(pond, made, streams, by, backfill_us=from_us))
        except BaseException:
            with self._analysing:
                self._front.forget(name)
                if name in self._queries:  # another call has added a query of this name in the meantime
                    self._front.remember(self._queries[name])
            raise
        return made

    def _backfilled(self, query: AnyQuery, from_us: int, make: Callable[[Between], Add]) -> None:
        """Read the events with which the query begins, then have the change recorded that names them."""
        self._priced(make)
        assert self._driver is not None and self._truth is not None and self._carriage is not None
        driver, truth = self._driver, self._truth
        if self._carriage.carrier is not None:
            raise UnsupportedQuery(
                "The files of this pond are carried by a store, and nothing is read again.",
                "Leave the backfill out, or put the pond where all hosts see it.",
            )
        reading = Backfilling(truth.folder, query.name, self._source(query), Past(truth.log, query.streams[0]), from_us,
                              self._carriage.open_files)  # fmt: skip
        self._backfills[query.name] = reading
        try:
            if isinstance(make(self._between()).backfill_us, int):  # otherwise epochs may run before the change
                reading.ahead(lambda: driver.manifest.n, patient=not driver.in_epoch)
            self._checked(make)
        except BaseException:
            self._read_again(reading)
            raise
        self._await(lambda pond: reading.prepared(make(pond), pond.manifest.n), lambda: self._read_again(reading))

    def _read_again(self, reading: Backfilling) -> None:
        """Remove a backfill that has ended."""
        self._backfills.pop(reading.name, None)
        reading.clear()

    def _source(self, query: AnyQuery) -> SourceAgain:
        with self._analysing:
            wanted = self._front.wanted([query])
        assert self._driver is not None
        driver = self._driver
        return again(self._reading, wanted, query, lambda: driver.checkpoint)

    def _price_of_add(self, query: AnyQuery, from_us: int | None) -> Price:
        streams = self._streams_of(query)
        price = self._priced(lambda pond: validate.add(pond, query, streams, backfill_us=from_us))
        change = validate.add(self._between(), query, streams, backfill_us=from_us)
        if not isinstance(change.backfill_us, int) or self._truth is None:
            return price
        past = Past(self._truth.log, query.streams[0])
        reading = Backfilling(self._truth.folder, query.name, self._source(query), past, change.backfill_us, None)
        return price._replace(source=reading.price(self._between().manifest.n))

    def _analysed(self, name: str, query: str | Frame, asking: Asking, *, remember: bool = True) -> AnyQuery:
        """Analyse a query; on a running pond in a thread with a deadline. `remember`: later SQL may read its rows."""
        how: dict[str, Any] = asking._asdict()
        budget, incomplete = how.pop("budget"), how.pop("incomplete")
        del how["backfill_us"]
        limits = msgspec.UNSET if budget is None else budget_of(budget)
        read: Any = self._front.query_from_sql if isinstance(query, str) else self._front.query_from_dataframe
        work: Callable[[], AnyQuery] = partial(read, name, query, **how, remember=False)
        made = work() if self._driver is None else self._analyses.run(name, work)
        made = with_complete(made) if incomplete else made
        made = msgspec.structs.replace(made, budget=limits)
        if remember:
            with self._analysing:
                self._front.remember(made)
        return made

    def _streams_of(self, query: AnyQuery) -> tuple[Stream, ...]:
        return tuple(self._front.streams[name] for name in query.streams)

    def _told_apart(self, query: AnyQuery) -> tuple[Stream, ...]:
        """The streams that a query reads, also in derived streams; their sources may separate malformed records."""
        return (*self._streams_of(query), *self._front.bases(query))

    def _ask(self, make: Make) -> None:
        """Check a change against the current catalog, and have it recorded."""
        self._checked(make)
        self._await(make)

    def _checked(self, make: Make) -> None:
        """Check a change against the current catalog.

        The read that it needs is analysed here, so that no epoch waits for the analysis.
        """
        if self._priced(make).rereads and self._driver is not None and self._driver.reads:
            pond = self._between()
            self._read_ahead(applied(pond.spec, pond.manifest.n + 1, make(pond)))

    def _await(self, make: Make | Prepare, ended: Callable[[], None] = lambda: None) -> None:
        self.open()  # the analysis of the read took seconds, in which the pond may have been closed
        assert self._driver is not None
        done = self._driver.ask(make)
        done.add_done_callback(lambda _done: ended())
        if self._driver.in_epoch:
            done.add_done_callback(self._heard)
        else:
            done.result()

    def _heard(self, done: Future[int]) -> None:
        error = done.exception()
        if isinstance(error, MillpondError):
            self.refused.append(error)

    def _priced(self, make: Make) -> Price:
        self.open()
        assert self._driver is not None
        pond = self._between()
        return price_of(pond, make(pond), self._driver.setting)

    def _between(self) -> Between:
        """The pond as this driver knows it, without reading the log; a change is checked again when it is recorded."""
        assert self._spec is not None and self._driver is not None
        return Between(self._spec, self._driver.manifest)

    def _read_ahead(self, spec: PondSpec) -> None:
        """See `Changing`."""
        raise NotImplementedError

    def open(self) -> None:
        """See `Pond.open`."""
        raise NotImplementedError


def named(who: str | None) -> str:
    """The requester: `who`, or the user of this process if it is None."""
    if who is not None:
        return who
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a process without a user's name
        return ""


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
    moment = backfill if backfill.tzinfo is not None else backfill.replace(tzinfo=timezone.utc)
    since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
