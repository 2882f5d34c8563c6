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
    """The arguments from which a reading is made."""

    wanted: tuple[Wanted, ...]
    limits: Mapping[str, int]
    tick: bool


class Changing(Adding):
    """The part of `Pond` that changes it: a change is checked at once, recorded between two epochs, and in force in the
    next epoch.

    A call returns when its change is in the log, so it may take as long as the current epoch. A call within `on_epoch`,
    which is part of the epoch, returns earlier. If its change is refused then, because another change came first, the
    error is appended to `refused`.
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
        """Pass the rows of a query to `function(rows, epoch)`, as Arrow, once per epoch that has rows.

        Delivery is at least once. Within a process, calls come in the order of epochs, one at a time. A call that did
        not return, or whose return was not stored before a crash, is repeated with the same rows in the same order.
        Call `foreach` each time before the pond is opened, for a query without a sink, or before `add` with
        `Sink("foreach")`.

        Raises:
            QueryTypeError: the query has another sink.
            ChangeRefused: the pond is open, and the query exists already.
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
        """Drop a query: its state is freed, its sinks get the rows that were committed before, its name is free again.

        Raises:
            ChangeRefused: the query does not exist, or other queries read its rows.
        """
        if not self._is_open() and name in self._queries:
            del self._queries[name]
            self._front.forget(name)
            return
        self._ask(lambda pond: validate.drop(pond, name, self._bases(pond.spec, name), named(who)))

    def pause(self, name: str, *, who: str | None = None) -> None:
        """Pause a query until `resume`: rows that it would emit meanwhile are never emitted; its state is kept.

        Raises:
            ChangeRefused: the query does not exist, is paused, has updating results, or other queries read its rows.
        """
        self._ask(lambda pond: validate.pause(pond, name, named(who)))

    def resume(self, name: str, *, who: str | None = None) -> None:
        """Emit the rows of a paused query again; already the first windows are complete.

        Raises:
            ChangeRefused: the query is not paused.
        """
        self._ask(lambda pond: validate.resume(pond, name, named(who)))

    def alter(
        self, name: str, query: str | Frame, *, deduplicate: Sequence[str] = (), deduplicate_within: str | None = None,
        who: str | None = None,
    ) -> AnyQuery:  # fmt: skip
        """Replace a query by a new version with the same columns, sinks and mode.

        If the new version differs only in HAVING or outputs, it emits the next row. Otherwise the old version emits the
        windows that start before a certain time, and the new version all later windows; all of them are complete. See
        `validate.alter`.

        Raises:
            QueryError: the new version is wrong, or the query cannot be altered in this way; nothing was changed.
        """
        made = self._version(name, query, Repeats(tuple(deduplicate), deduplicate_within))
        streams, who = self._streams_of(made), named(who)
        self._ask(lambda pond: validate.alter(pond, made, streams, who))
        return made

    def shadow(self, name: str, query: str | Frame, *, who: str | None = None) -> AnyQuery:
        """Run a second version beside a query, on shared state; its rows are not published, only compared (see `diff`).

        Raises:
            QueryError: as `alter`, or its rows contain maps or bytes; nothing was changed.
        """
        made = self._version(name, query)
        streams, who = self._streams_of(made), named(who)
        self._ask(lambda pond: validate.shadow(pond, made, streams, who))
        return made

    def promote(self, name: str, *, who: str | None = None) -> None:
        """Exchange a query with its shadow, which emits the windows that close from then on.

        Raises:
            ChangeRefused: the query has no shadow, or was promoted already.
        """
        self._ask(lambda pond: validate.promote(pond, name, named(who)))

    def rollback(self, name: str, *, who: str | None = None) -> None:
        """Undo `promote`: exchange the query again with the previous version, whose state was kept.

        Raises:
            ChangeRefused: the query was not promoted.
        """
        self._ask(lambda pond: validate.rollback(pond, name, named(who)))

    def discard(self, name: str, *, who: str | None = None) -> None:
        """Drop the shadow of a query, and free its state.

        Raises:
            ChangeRefused: the query has no shadow.
        """
        self._ask(lambda pond: validate.discard(pond, name, named(who)))

    def diff(self, name: str) -> Difference:
        """The rows that only a query or only its shadow emitted since the pond was opened, of windows that both emit.

        Raises:
            ChangeRefused: the query has no shadow.
        """
        self.open()
        assert self._followers is not None and self._spec is not None
        check_compared(self._spec, name)
        return self._followers.joining.compared[name].difference()

    def _version(
        self, name: str, query: str | Frame, repeats: Repeats | None = None, mode: Mode | None = None
    ) -> AnyQuery:
        """Analyse a new version of a query; in SQL its name still means the current version."""
        asking = Asking(Sink(), mode=mode or Mode(), repeats=repeats or Repeats())
        return self._analysed(name, query, asking, remember=False)

    def param(self, name: str, value: Constant, *, who: str | None = None) -> None:
        """Set a live parameter (`:name` in query texts) to a number or a text, from the next epoch on.

        The parameter keeps its type while a query or a feed uses it. Before
        the pond is opened this sets the first value; a pond that has begun keeps the value in force. In WHERE and in
        arguments, an event is evaluated with the value of the epoch that reads it. In HAVING and outputs, and
        without windows, a row is evaluated with the value of the epoch that emits it. Earlier results do not change.

        Raises:
            ChangeRefused: the value has another type than the queries or the feed that use the parameter need.
        """
        if not self._is_open():
            known, queries = self._front.parameters.get(name), [*self._queries.values()]
            users, fraction = users_of(name, queries), as_double(name, queries)
            self._front.parameters[name] = another_value(name, value, known, users, fraction)
            return
        self._ask(lambda pond: validate.param(pond, name, value, named(who)))

    def _declare_parameters(self, spec: PondSpec) -> None:
        """Record parameters that were given or declared before the pond was opened, if the pond lacks them or has them
        with another type than declared.
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
        """Change the number of instances from the next epoch on.

        As few buckets migrate as an even distribution needs, and no result changes. `why` is stored in the history.

        Raises:
            ChangeRefused: the pond has this number of instances already, or fewer buckets.
        """
        self._ask(self._scaling(instances, named(who), why))

    def assign(self, owners: Owners, instances: int, why: str, *, who: str | None = None) -> None:
        """Give each bucket the named owner, among `instances` instances, from the next epoch on.

        Raises:
            ChangeRefused: buckets or instances do not fit the pond; or the pond would undo the change, because it
                aligns buckets with the shards of its store.
        """
        self.open()
        if self._followers is not None and self._followers.wanted(BucketMap(0, owners, instances)) is not None:
            raise ChangeRefused(
                "Some buckets would be owned by instances that are not of their shard.", "Move slots of the store."
            )
        self._ask(lambda pond: owned_by(pond, owners, instances, named(who), why))

    def price_of_scale(self, instances: int) -> Price:
        """The price of `scale` if it were called now; nothing is changed.

        Raises:
            ChangeRefused: `scale` would be refused.
        """
        return self._priced(self._scaling(instances))

    def _scaling(self, instances: int, who: str = "", why: str = "") -> Make:
        self.open()
        slots = None if self._followers is None else self._followers.slots
        return lambda pond: scale(pond, instances, () if slots is None else slots.steady, who, why)

    def move(self, what: str, to: str, *, who: str | None = None) -> None:
        """Move the served rows of some buckets to another store, while the pond runs.

        `what`: the number of a bucket, `FIRST-LAST`, or the shard that keeps the buckets, as `placement` names it.
        `to`: the address of a store, `env:NAME` for an address in the variable NAME (set here and wherever rows are
        read), or `own`, the pond's store. Returns when rows are read from there, and the old copies are deleted.

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
        """The amount that `move` would copy if it were called now; nothing is changed.

        Raises:
            ChangeRefused, StoreError: `move` would be refused.
        """
        self.open()
        assert self._spec is not None and self._moving is not None
        to, buckets = _place(to), self._moving.buckets(what, self._spec)
        price = self._priced(lambda pond: move(pond, buckets, to))
        return price._replace(cost=ROWS_MOVE, moved=self._moving.price(buckets, to))

    def feed(self, name: str, query: str, column: str, *, who: str | None = None) -> None:
        """Let a live parameter take its values from the rows of a query, until it is set.

        The values are those of `column` in the rows of the newest window that an epoch emits: all of them if the
        parameter is a list, otherwise the largest one. They are stored in the log, and in force from the next epoch on.

        Raises:
            ChangeRefused: the parameter, query or column does not exist, or the rows do not contain their window.
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
        """The price of a change if it were made now; nothing is changed. `kind`: the name of a method of this class.

        Raises:
            QueryError: the change would be refused.
            GoneError: the source does not have everything any more that a backfill needs.
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
        """All changes of queries, newest first, each with its record number and its time (µs since 1970 UTC)."""
        self.open()
        assert self._truth is not None
        return list(history(self._truth.log, self.manifest()))

    def costs(self) -> dict[str, Cost]:
        """The cost of each query with its versions: in the newest epoch, and of its state now. Costs sum to the total.

        Empty before the pond is opened.
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
        """The sources that a query reads as parts of derived streams, and that must still be read after its drop."""
        return self._front.bases(query_of(spec, name))

    def _changed(self, n: int, change: Change, spec: PondSpec) -> None:
        """Take a recorded change into account: it is in force from the next epoch on."""
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
        """The reading for the queries in force; called again when a change needs more, or other `limits` fit better."""
        assert self._spec is not None
        with self._analysing:
            asked = ToRead(self._wanted(self._spec), limits, tick)
            ahead, self._to_read, self._ahead = self._ahead, asked, None
            return ahead[1] if ahead is not None and ahead[0] == asked else self._reading_of(asked)

    def _read_ahead(self, spec: PondSpec) -> None:
        """Prepare the result of the next `_read`, which is used if `spec` is in force then and nothing else changed."""
        with self._analysing:
            if self._to_read is not None:
                asked = self._to_read._replace(wanted=self._wanted(spec))
                self._ahead = asked, self._reading_of(asked)
                if self._driver is not None and not self._driver.in_epoch:  # within an epoch, the next one gets it
                    self._driver.offer(self._ahead[1])

    def _wanted(self, spec: PondSpec) -> tuple[Wanted, ...]:
        kept = [stream.name for stream in spec.streams if is_read(stream)]
        return self._front.wanted(spec.asked, kept, spec.left.times, not_answered(spec))

    def _reading_of(self, asked: ToRead) -> Reading:
        # the tick has no known end, so Spark reads a bounded input as one batch
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
    """The place that an address means, with an absolute path, because it is also read from other folders."""
    return OWN if to == "own" else checked_store(to)
