"""The changes that a running pond accepts; `reconfigure` defines what each of them means."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from millpond.control.pond.add import Adding, Asking, Backfill, backfill_from, named
from millpond.control.pond.move import Moving, routed
from millpond.control.wiring.adapters import Followers, Truth, checked_store
from millpond.errors import ChangeRefused, MillpondError, QueryTypeError
from millpond.followers.sinks.foreach import Foreach
from millpond.log.manifest import Manifest
from millpond.log.records import EpochRecord, decode
from millpond.model.change_json import Move
from millpond.model.endpoints import FOREACH, IN_PROCESS, Sink
from millpond.model.expressions import plain_of
from millpond.model.selection import AnyQuery
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream
from millpond.placement.alignment import Owners
from millpond.placement.bucket_stores import OWN
from millpond.placement.moves import BucketMap
from millpond.plan.options.live_parameters import Constant, another_value, as_double, constant_of, users_of
from millpond.plan.options.partial_windows import with_complete
from millpond.reconfigure import validate
from millpond.reconfigure.budgets import with_versions
from millpond.reconfigure.catalog import Recorded, history, is_read, not_answered
from millpond.reconfigure.change_price import ROWS_MOVE, Price
from millpond.reconfigure.change_queue import Make
from millpond.reconfigure.changes import Add, Alter, Change, Discard, Drop, Promote, Shadow
from millpond.reconfigure.lifecycle import check_compared, current, query_of
from millpond.reconfigure.placement_changes import move, owned_by, scale
from millpond.reconfigure.probation import Probation
from millpond.reconfigure.shadow_report import Difference
from millpond.reconfigure.validate import Pond as Between
from millpond.runtime.inputs.parameter_feeds import fed_values
from millpond.runtime.inspect.costs import Cost, costs
from millpond.spark.analysis.properties import Mode, Repeats
from millpond.spark.driver.driver import Driver
from millpond.spark.driver.replace_query import Reading
from millpond.spark.frontend.frontend import FrontEnd
from millpond.spark.reading.read_frame import Wanted, read, read_between
from millpond.spark.session.session import Frame, Session


class ToRead(NamedTuple):
    """What a reading is made of."""

    wanted: tuple[Wanted, ...]
    limits: Mapping[str, int]
    tick: bool


class Changing(Adding):
    """The changes of a pond: each is checked at once, recorded between two epochs, and in force in the next one.

    A call returns when its change is in the log, so it takes as long as the epoch at hand; in `on_epoch`, which is a
    part of it, it returns before, and what turns out to be refused, since another change came first, is in `refused`.
    """

    refused: list[MillpondError]

    _driver: Driver | None
    _followers: Followers | None
    _truth: Truth | None
    _spec: PondSpec | None
    _front: FrontEnd
    _reading: Session
    _queries: dict[str, AnyQuery]
    _functions: dict[str, Foreach]
    _analysing: threading.RLock
    _moving: Moving | None
    _probation: Probation
    _to_read: ToRead | None
    _ahead: tuple[ToRead, Reading] | None

    def foreach(self, name: str, function: Foreach) -> None:
        """Hand the rows of a query to `function(rows, epoch)`, as Arrow, once per epoch that has any.

        At least once: calls of a process go up by epoch, one at a time; an epoch whose call did not return, or of which
        a crash forgot that it did, comes again with the same rows in the same order. To be called before the pond is
        opened, each time, for a query without a place for its rows, or before `add` with `Sink("foreach")`.

        Raises:
            QueryTypeError: the query has another sink.
            ChangeRefused: the pond is open, and the query is there.
        """
        query = self._queries.get(name)
        if query is not None and self._driver is not None:
            raise ChangeRefused(f"The rows of {name} go somewhere already.", "Close the pond, or drop the query.")
        if query is not None and query.sink.format not in (*IN_PROCESS, "noop"):
            raise QueryTypeError(f"The rows of {name} go to {query.sink.format}.", "Leave its sink out.")
        self._functions[name] = function
        if query is not None:
            self._queries[name] = msgspec.structs.replace(query, sink=Sink(FOREACH))

    def drop(self, name: str, *, who: str | None = None) -> None:
        """End a query: its state goes, its sinks get what was committed before; its name is free again.

        Raises:
            ChangeRefused: there is none, or others read its rows.
        """
        if not self._is_open() and name in self._queries:
            del self._queries[name]
            self._front.forget(name)
            return
        self._ask(lambda pond: validate.drop(pond, name, self._bases(pond.spec, name), named(who)))

    def pause(self, name: str, *, who: str | None = None) -> None:
        """Keep rows of a query that would leave from leaving, for ever, until `resume`; its state is kept.

        Raises:
            ChangeRefused: there is none, it is paused, its rows may change or others read them.
        """
        self._ask(lambda pond: validate.pause(pond, name, named(who)))

    def resume(self, name: str, *, who: str | None = None) -> None:
        """Let rows of a paused query leave again; the first windows are as whole as any.

        Raises:
            ChangeRefused: it is not paused.
        """
        self._ask(lambda pond: validate.resume(pond, name, named(who)))

    def alter(
        self, name: str, query: str | Frame, *, deduplicate: Sequence[str] = (), deduplicate_within: str | None = None,
        who: str | None = None,
    ) -> AnyQuery:  # fmt: skip
        """Put another version in the place of a query; its rows go where and when they went, and have the same columns.

        A version that differs in HAVING or outputs only has the next row. Otherwise the old version answers the windows
        that start before a time, and the new one those from there on, each whole; see `accept.alter`.

        Raises:
            QueryError: the version is wrong, or no version of this query can be told so; nothing was changed.
        """
        made = self._version(name, query, Repeats(tuple(deduplicate), deduplicate_within))
        streams, who = self._streams_of(made), named(who)
        self._ask(lambda pond: validate.alter(pond, made, streams, who))
        return made

    def shadow(self, name: str, query: str | Frame, *, who: str | None = None) -> AnyQuery:
        """Try another version of a query beside it, on shared state; its rows go nowhere, and are compared: see `diff`.

        Raises:
            QueryError: as `alter`, or its rows have maps or bytes; nothing was changed.
        """
        made = self._version(name, query)
        streams, who = self._streams_of(made), named(who)
        self._ask(lambda pond: validate.shadow(pond, made, streams, who))
        return made

    def promote(self, name: str, *, who: str | None = None) -> None:
        """Let a query and its shadow change places: windows that close from then on are told by the other.

        Raises:
            ChangeRefused: it has no shadow, or was promoted already.
        """
        self._ask(lambda pond: validate.promote(pond, name, named(who)))

    def rollback(self, name: str, *, who: str | None = None) -> None:
        """Return to the version before `promote`, whose state was kept: they change places again.

        Raises:
            ChangeRefused: no promote of it is in force.
        """
        self._ask(lambda pond: validate.rollback(pond, name, named(who)))

    def discard(self, name: str, *, who: str | None = None) -> None:
        """End the shadow of a query, with its state.

        Raises:
            ChangeRefused: it has none.
        """
        self._ask(lambda pond: validate.discard(pond, name, named(who)))

    def diff(self, name: str) -> Difference:
        """What a query and its shadow told otherwise, of windows that both answer, since the pond was opened.

        Raises:
            ChangeRefused: it has no shadow.
        """
        self.open()
        assert self._followers is not None and self._spec is not None
        check_compared(self._spec, name)
        return self._followers.joining.compared[name].difference()

    def _version(
        self, name: str, query: str | Frame, repeats: Repeats | None = None, mode: Mode | None = None
    ) -> AnyQuery:
        """Another version, analysed; the name stands for what it stood for."""
        asking = Asking(Sink(), mode=mode or Mode(), repeats=repeats or Repeats())
        return self._analysed(name, query, asking, remember=False)

    def param(self, name: str, value: Constant, *, who: str | None = None) -> None:
        """Set a live parameter, `:name` in texts, in force from the next epoch on: a number or a text. While something
        uses it, it keeps its type.

        Before the pond is opened it is the first value; a pond that has begun goes on with that in force. In WHERE and
        arguments an event is judged by the value of the epoch that reads it; in HAVING and outputs, and without
        windows, a row is told by that of the epoch that tells it. What was counted before stays.

        Raises:
            ChangeRefused: the value is of another type than queries, or a feed, rely on.
        """
        if not self._is_open():
            known, queries = self._front.parameters.get(name), [*self._queries.values()]
            users, fraction = users_of(name, queries), as_double(name, queries)
            self._front.parameters[name] = another_value(name, value, known, users, fraction)
            return
        self._ask(lambda pond: validate.param(pond, name, value, named(who)))

    def _declare_parameters(self, spec: PondSpec) -> None:
        """Record parameters that were given or declared before the pond was opened, and that it does not have yet, or
        has of another type than the one declared.
        """
        given, declared = self._front.parameters, self._front.declared
        self._front.parameters = dict(spec.left.parameters)
        for name, value in given.items():
            known, wanted = spec.left.parameters.get(name), declared.get(name, value)
            typed = known is not None and (name not in declared or known.type == wanted.type)
            plain = None if typed or name in spec.left.feeds else plain_of(value if known is None else known)
            if plain is not None and (made := plain_of(constant_of(name, plain, wanted.type))) is not None:
                self.param(name, made)

    def scale(self, instances: int, *, who: str | None = None, why: str = "asked") -> None:
        """Give the pond another number of instances, from the next epoch on; state moves with as few buckets as balance
        needs, and no answer changes. `why` stands in the history.

        Raises:
            ChangeRefused: it has as many already, or more than it has buckets.
        """
        self._ask(self._scaling(instances, named(who), why))

    def assign(self, owners: Owners, instances: int, why: str, *, who: str | None = None) -> None:
        """Give each bucket the owner that is told, one of so many instances, from the next epoch on.

        Raises:
            ChangeRefused: buckets or instances do not fit the pond, or the pond would take it back: a store of several
                shards keeps each bucket near an instance.
        """
        self.open()
        if self._followers is not None and self._followers.wanted(BucketMap(0, owners, instances)) is not None:
            raise ChangeRefused(
                "Some buckets would be owned by instances that are not of their shard.", "Move slots of the store."
            )
        self._ask(lambda pond: owned_by(pond, owners, instances, named(who), why))

    def price_of_scale(self, instances: int) -> Price:
        """What `scale` would cost if it were called now; nothing is changed.

        Raises:
            ChangeRefused: it would be refused.
        """
        return self._priced(self._scaling(instances))

    def _scaling(self, instances: int, who: str = "", why: str = "") -> Make:
        self.open()
        slots = None if self._followers is None else self._followers.slots
        return lambda pond: scale(pond, instances, () if slots is None else slots.steady, who, why)

    def move(self, what: str, to: str, *, who: str | None = None) -> None:
        """Keep the served rows of some buckets in another store from a record on, while all goes on.

        `what`: a bucket's number, `FIRST-LAST`, or the shard that keeps them, as `placement` tells it. `to`: a store's
        address, `env:NAME` for one that the variable NAME holds here and where rows are read, or `own`, the pond's.
        Returns when rows are read there, and what was left behind is gone.

        Raises:
            ChangeRefused, StoreError: nothing was changed; it may be tried again.
        """
        self.open()
        assert self._driver is not None and self._spec is not None and self._moving is not None
        driver, who = self._driver, named(who)
        if driver.in_epoch:
            raise ChangeRefused("Rows cannot be moved from within an epoch.", "Ask in another thread.")
        to, buckets = _place(to), self._moving.buckets(what, self._spec)
        self._priced(lambda pond: move(pond, buckets, to, who))
        self._moving.move(buckets, to, lambda: driver.ask(lambda pond: move(pond, buckets, to, who)).result())

    def price_of_move(self, what: str, to: str) -> Price:
        """What `move` would copy if it were called now; nothing is changed.

        Raises:
            ChangeRefused, StoreError: it would be refused.
        """
        self.open()
        assert self._spec is not None and self._moving is not None
        to, buckets = _place(to), self._moving.buckets(what, self._spec)
        price = self._priced(lambda pond: move(pond, buckets, to))
        return price._replace(cost=ROWS_MOVE, moved=self._moving.price(buckets, to))

    def feed(self, name: str, query: str, column: str, *, who: str | None = None) -> None:
        """Let a live parameter take its values from the rows of a query, until it is set.

        They are those of `column` in the rows of the newest window that an epoch tells, in force from the next epoch
        on: all of them where the parameter is a list, otherwise the greatest. They stand in the log.

        Raises:
            ChangeRefused: there is no such parameter, query or column, or no window that tells which rows are newest.
        """
        self._ask(lambda pond: validate.feed(pond, name, query, column, named(who)))

    def params(self) -> dict[str, Constant | None]:
        """The live parameters in force, by name."""
        self.open()
        assert self._spec is not None and self._driver is not None
        setting = self._driver.setting
        known = self._spec.left.parameters | fed_values(setting.fed, self.manifest())
        return {name: plain_of(value) for name, value in sorted(known.items())}

    def price_of(
        self, kind: str, name: str, query: str | Frame | None = None, *, emit: str = "final",
        correct_for: str | None = None, deduplicate: Sequence[str] = (), deduplicate_within: str | None = None,
        incomplete: bool = False, backfill: Backfill = False,
    ) -> Price:  # fmt: skip
        """What a change would cost if it were made now; nothing is changed. `kind` is the name of a method here.

        Raises:
            QueryError: it would be refused.
            GoneError: the source has not all of what a backfill needs any more.
        """
        if query is None:
            return self._priced(lambda pond: _simple(kind)(pond, name))
        mode, repeats = Mode(emit, correct_for), Repeats(tuple(deduplicate), deduplicate_within)
        made = self._version(name, query, repeats, mode)
        made = with_complete(made) if incomplete else made
        if kind == "add":
            return self._price_of_add(made, backfill_from(backfill))
        streams = self._streams_of(made)
        return self._priced(lambda pond: _with_query(kind)(pond, made, streams))

    def history(self) -> list[Recorded]:
        """Every change of queries, the newest first: its record, when it was made (µs since 1970 UTC), and what."""
        self.open()
        assert self._truth is not None
        return list(history(self._truth.log, self.manifest()))

    def costs(self) -> dict[str, Cost]:
        """What each query, with its versions, cost in the newest epoch, and its state now; parts that sum to the whole.

        Nothing before the pond is opened.
        """
        driver, spec = self._driver, self._spec
        if driver is None or spec is None or self._truth is None:
            return {}
        manifest = driver.manifest
        data = self._truth.log.read(manifest.epoch_n) if manifest.epoch_n >= 0 else None
        record = None if data is None else decode(data, self._truth.log.told(manifest.epoch_n)).record
        counts = record.counts if isinstance(record, EpochRecord) else {}
        return with_versions(spec, costs(driver.setting.plan, manifest, counts))

    def _bases(self, spec: PondSpec, name: str) -> tuple[Stream, ...]:
        """The sources that are to be read on when a query goes that reads them as parts of others."""
        return self._front.bases(query_of(spec, name))

    def _changed(self, n: int, change: Change, spec: PondSpec) -> None:
        """A change is in the log: the next epoch answers so."""
        assert self._followers is not None
        joining, before = self._followers.joining, self._spec
        self._spec = spec
        self._queries = {query.name: query for query in current(spec)}
        self._front.parameters = dict(spec.left.parameters)
        self._halted(change)
        self._probation.changed(change)
        if isinstance(change, Move) and self._followers.store is not None:
            routed(self._followers.store, spec)
        if isinstance(change, Add):
            joining.add_letters(self._told_apart(change.asked.query), n)
            joining.add(change.asked.query, n)
            with self._analysing:
                self._front.remember(change.asked.query)
        elif isinstance(change, Alter):
            with self._analysing:
                self._front.remember(change.asked.query)
        elif isinstance(change, Shadow):
            joining.compare(change.name, n)
        elif isinstance(change, Promote):
            with self._analysing:
                self._front.remember(self._queries[change.name])
        elif isinstance(change, Discard):
            joining.compare_no_more(change.name)
        elif isinstance(change, Drop) and before is not None:
            joining.compare_no_more(change.name)
            joining.leave(query_of(before, change.name), n)
            with self._analysing:
                self._front.forget(change.name)
                self._front.forget_rows(change.name)

    def _read(self, limits: Mapping[str, int], *, tick: bool) -> Reading:
        """What to read for the queries in force; asked again when a change needs more, or other `limits` fit better."""
        assert self._spec is not None
        with self._analysing:
            asked = ToRead(self._wanted(self._spec), limits, tick)
            ahead, self._to_read, self._ahead = self._ahead, asked, None
            return ahead[1] if ahead is not None and ahead[0] == asked else self._reading_of(asked)

    def _read_ahead(self, spec: PondSpec) -> None:
        """Have what `_read` will be asked for ready, if `spec` is in force then and nothing else has changed."""
        with self._analysing:
            if self._to_read is not None:
                asked = self._to_read._replace(wanted=self._wanted(spec))
                self._ahead = asked, self._reading_of(asked)
                if self._driver is not None and not self._driver.in_epoch:  # who asks in one gets the next
                    self._driver.offer(self._ahead[1])

    def _wanted(self, spec: PondSpec) -> tuple[Wanted, ...]:
        kept = [stream.name for stream in spec.streams if is_read(stream)]
        return self._front.wanted(spec.asked, kept, spec.left.times, not_answered(spec))

    def _reading_of(self, asked: ToRead) -> Reading:
        # with the tick, which cannot say where it will end, Spark takes a bounded input as one batch
        frame, layout = read(self._reading, asked.wanted, tick=asked.tick, limits=asked.limits)
        by_key = [one for one in asked.wanted if one.stream.partitioned_by is not None]
        between = partial(read_between, self._reading, by_key[0]) if len(by_key) == len(asked.wanted) == 1 else None
        return Reading(frame, layout, self._front.lookups(asked.wanted), between, asked.limits)

    def _halted(self, change: Change) -> None:
        """See `Reporting`."""
        raise NotImplementedError

    def open(self) -> None:
        """See `Pond.open`."""
        raise NotImplementedError

    def manifest(self) -> Manifest:
        """See `Pond.manifest`."""
        raise NotImplementedError


def _simple(kind: str) -> Callable[[Between, str], Change]:
    made: dict[str, Callable[[Between, str], Change]] = {
        "drop": validate.drop, "pause": validate.pause, "resume": validate.resume, "promote": validate.promote,
        "rollback": validate.rollback, "discard": validate.discard,
    }  # fmt: skip
    if kind not in made:
        raise ChangeRefused(f"{kind!r} is no change, or one that needs a query.", f"Use one of {', '.join(made)}.")
    return made[kind]


def _with_query(kind: str) -> Callable[[Between, AnyQuery, Sequence[Stream]], Change]:
    made: dict[str, Callable[[Between, AnyQuery, Sequence[Stream]], Change]] = {
        "alter": validate.alter, "shadow": validate.shadow
    }  # fmt: skip
    if kind not in made:
        raise ChangeRefused(f"{kind!r} is no change that needs a query.", f"Use one of {', '.join(made)}.")
    return made[kind]


def _place(to: str) -> str:
    """The place that an address means: it is read from other folders, too."""
    return OWN if to == "own" else checked_store(to)
