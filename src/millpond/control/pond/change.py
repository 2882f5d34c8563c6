"""Changes and inspects the queries and live parameters of a pond; `reconfigure` defines what each change means."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from millpond.control.pond.add import Backfill, QueryAdditions, backfill_from
from millpond.control.pond.declare import Declarations, QueryOptions
from millpond.control.pond.lifetime import Lifetime
from millpond.control.pond.request_change import ChangeRequests, named
from millpond.errors import ChangeRefused, QueryTypeError
from millpond.followers.sinks.in_process import Foreach
from millpond.followers.sinks.kinds import sink_kind
from millpond.log.records import EpochRecord, decode
from millpond.model.endpoints import FOREACH, Sink
from millpond.model.expressions import plain_of
from millpond.model.query import Query, has_no_start
from millpond.model.selection import AnyQuery, zone_of
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream
from millpond.plan.options.complete_column import with_complete
from millpond.plan.options.live_parameters import Constant, another_value, as_double, constant_of
from millpond.plan.options.output_modes import BY_EVENT, UPDATE
from millpond.plan.upstream.steps import late_by_of_steps, ttl_us_of, with_inner
from millpond.reconfigure import validate
from millpond.reconfigure.budgets import with_versions
from millpond.reconfigure.catalog import Recorded, history
from millpond.reconfigure.change_price import Price
from millpond.reconfigure.changes import Change
from millpond.reconfigure.inner_reports import users_of
from millpond.reconfigure.lifecycle import check_compared, query_of
from millpond.reconfigure.shadow_report import Difference
from millpond.reconfigure.validate import KnownPond
from millpond.runtime.inputs.parameter_feeds import fed_values
from millpond.runtime.inspect.costs import Cost, costs
from millpond.spark.analysis.properties import Mode, Repeats
from millpond.spark.session.session import Frame


class QueryChanges:
    """Changes the queries of one pond, and says what changes would cost; see `ChangeRequests` for when they return."""

    def __init__(
        self, lifetime: Lifetime, declarations: Declarations, requests: ChangeRequests, additions: QueryAdditions
    ) -> None:
        self._lifetime, self._declarations = lifetime, declarations
        self._requests, self._additions = requests, additions

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
        query = self._declarations.queries.get(name)
        if query is not None and self._lifetime.opened is not None:
            raise ChangeRefused(f"The rows of {name} go somewhere already.", "Close the pond, or drop the query.")
        if query is not None and not (query.sink.goes_nowhere or sink_kind(query.sink.format).in_process):
            raise QueryTypeError(f"The rows of {name} go to {query.sink.format}.", "Leave its sink out.")
        self._declarations.foreach[name] = function
        if query is not None:
            self._declarations.queries[name] = msgspec.structs.replace(query, sink=Sink(FOREACH))

    def drop(self, name: str, *, who: str | None = None) -> None:
        """Drop a query: its state is freed, its sinks get the rows that were committed before, its name is free again.

        Raises:
            ChangeRefused: the query does not exist, or other queries read its rows.
        """
        if not self._lifetime.is_open() and name in self._declarations.queries:
            del self._declarations.queries[name]
            self._declarations.front.forget(name)
            return
        bases = self._declarations.bases_of  # the sources of derived streams must still be read after the drop
        self._requests.request(lambda pond: validate.drop(pond, name, bases(query_of(pond.spec, name)), named(who)))

    def pause(self, name: str, *, who: str | None = None) -> None:
        """Pause a query until `resume`: rows that it would emit meanwhile are never emitted; its state is kept.

        Raises:
            ChangeRefused: the query does not exist, is paused, has updating results, or other queries read its rows.
        """
        self._requests.request(lambda pond: validate.pause(pond, name, named(who)))

    def resume(self, name: str, *, who: str | None = None) -> None:
        """Emit the rows of a paused query again; already the first windows are complete.

        Raises:
            ChangeRefused: the query is not paused.
        """
        self._requests.request(lambda pond: validate.resume(pond, name, named(who)))

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
        made, who = self._version(name, query, Repeats(tuple(deduplicate), deduplicate_within)), named(who)
        streams, times = self._declarations.streams_of(made), self._declarations.time_sources_of(made)
        make = self._declarations.naming(lambda pond: validate.alter(pond, made, streams, who, times), made)
        self._requests.request(make)
        return made

    def shadow(self, name: str, query: str | Frame, *, who: str | None = None) -> AnyQuery:
        """Run a second version beside a query, on shared state; its rows are not published, only compared (see `diff`).

        Raises:
            QueryError: as `alter`, or its rows contain maps or bytes; nothing was changed.
        """
        made = self._version(name, query)
        streams, who = self._declarations.streams_of(made), named(who)
        self._requests.request(self._declarations.naming(lambda pond: validate.shadow(pond, made, streams, who), made))
        return made

    def promote(self, name: str, *, who: str | None = None) -> None:
        """Exchange a query with its shadow, which emits the windows that close from then on.

        Raises:
            ChangeRefused: the query has no shadow, or was promoted already.
        """
        self._requests.request(lambda pond: validate.promote(pond, name, named(who)))

    def rollback(self, name: str, *, who: str | None = None) -> None:
        """Undo `promote`: exchange the query again with the previous version, whose state was kept.

        Raises:
            ChangeRefused: the query was not promoted.
        """
        self._requests.request(lambda pond: validate.rollback(pond, name, named(who)))

    def discard(self, name: str, *, who: str | None = None) -> None:
        """Drop the shadow of a query, and free its state.

        Raises:
            ChangeRefused: the query has no shadow.
        """
        self._requests.request(lambda pond: validate.discard(pond, name, named(who)))

    def diff(self, name: str) -> Difference:
        """The rows that only a query or only its shadow emitted since the pond was opened, of windows that both emit,
        with the first of these windows and the columns in which rows differ.

        Raises:
            ChangeRefused: the query has no shadow.
        """
        opened = self._lifetime.open()
        check_compared(opened.spec, name)
        return opened.followers.attached.compared[name].with_windows(opened.spec)

    def _version(
        self, name: str, query: str | Frame, repeats: Repeats | None = None, mode: Mode | None = None,
        state_ttl: str | None = None, time_zone: str | None = None,
    ) -> AnyQuery:  # fmt: skip
        """Analyse a new version of a query; in SQL its name still means the current version. Unless `state_ttl`
        and `time_zone` are given, those of the current version apply.
        """
        ttl = self._ttl(name) if state_ttl is None else state_ttl
        mode = mode or Mode()
        if mode.late_by == BY_EVENT:
            mode = mode._replace(late_by=self._late_by(name))
        current = self._declarations.queries.get(name)
        if isinstance(current, Query) and current.updating and has_no_start(current.window):
            mode = mode._replace(emit=UPDATE)  # its rows are never final
        zone = self._zone(name, query) if time_zone is None else time_zone
        options = QueryOptions(Sink(), mode=mode, repeats=repeats or Repeats(), ttl=ttl, zone=zone)
        deadline = self._lifetime.opened is not None
        return self._declarations.analyse(name, query, options, remember=False, deadline=deadline)

    def _zone(self, name: str, query: str | Frame) -> str | None:
        """The time zone of the current version, which a new text keeps."""
        current = self._declarations.queries.get(name)
        return None if current is None or not isinstance(query, str) else zone_of(current)

    def _ttl(self, name: str) -> int | None:
        current, streams = self._declarations.queries.get(name), self._declarations.front.streams
        return None if current is None else ttl_us_of(current, streams)

    def _late_by(self, name: str) -> str:
        """The rule by which events of the inner queries of the current version are late, which a new text keeps."""
        current, streams = self._declarations.queries.get(name), self._declarations.front.streams
        return BY_EVENT if current is None else late_by_of_steps(current, streams) or BY_EVENT

    def param(self, name: str, value: Constant, *, who: str | None = None) -> None:
        """Set a live parameter (`:name` in query texts) to a number or a text, from the next epoch on.

        The parameter keeps its type while a query or a feed uses it. Before
        the pond is opened this sets the first value; a pond that has begun keeps the value in force. In WHERE and in
        arguments, an event is evaluated with the value of the epoch that reads it. In HAVING and outputs, and
        without windows, a row is evaluated with the value of the epoch that emits it. Earlier results do not change.

        Raises:
            ChangeRefused: the value has another type than the queries or the feed that use the parameter need.
        """
        if not self._lifetime.is_open():
            known, queries = self._declarations.front.parameters.get(name), [*self._declarations.queries.values()]
            streams = self._declarations.front.streams
            users, fraction = users_of(name, queries, streams), as_double(name, with_inner(queries, streams))
            self._declarations.front.parameters[name] = another_value(name, value, known, users, fraction)
            return
        self._requests.request(lambda pond: validate.param(pond, name, value, named(who)))

    def unset(self, name: str, *, who: str | None = None) -> None:
        """Remove a live parameter that no query uses.

        Raises:
            ChangeRefused: it does not exist, or a query uses it.
        """
        self._requests.request(lambda pond: validate.unset(pond, name, named(who)))

    def declare_parameters(self, spec: PondSpec) -> None:
        """Record parameters that were given or declared before the pond was opened, if the pond lacks them or has them
        with another type than declared; called when it was opened.
        """
        given, declared = self._declarations.front.parameters, self._declarations.front.declared
        self._declarations.front.parameters = dict(spec.effects.parameters)
        for name, value in given.items():
            known, wanted = spec.effects.parameters.get(name), declared.get(name, value)
            typed = known is not None and (name not in declared or known.type == wanted.type)
            plain = None if typed or name in spec.effects.feeds else plain_of(value if known is None else known)
            if plain is not None and (made := plain_of(constant_of(name, plain, wanted.type))) is not None:
                self.param(name, made)

    def feed(self, name: str, query: str, column: str, *, who: str | None = None) -> None:
        """Let a live parameter take its values from the rows of a query, until it is set.

        The values are those of `column` in the rows of the newest window that an epoch emits: all of them if the
        parameter is a list, otherwise the largest one. They are stored in the log, and in force from the next epoch on.

        Raises:
            ChangeRefused: the parameter, query or column does not exist, or the rows do not contain their window.
        """
        self._requests.request(lambda pond: validate.feed(pond, name, query, column, named(who)))

    def params(self) -> dict[str, Constant | None]:
        """The live parameters in force, by name."""
        opened = self._lifetime.open()
        known = opened.spec.effects.parameters | fed_values(opened.driver.setting.feeds, opened.manifest())
        return {name: plain_of(value) for name, value in sorted(known.items())}

    def price_of(
        self, kind: str, name: str, query: str | Frame | None = None, *, emit: str = "final",
        correct_for: str | None = None, deduplicate: Sequence[str] = (), deduplicate_within: str | None = None,
        incomplete: bool = False, backfill: Backfill = False, late_by: str = "event", state_ttl: str | None = None,
        time_zone: str | None = None,
    ) -> Price:  # fmt: skip
        """The price of a change if it were made now; nothing is changed. `kind`: the name of a method of this class.

        Raises:
            QueryError: the change would be refused.
            GoneError: the source does not have everything any more that a backfill needs.
        """
        if query is None:
            return self._requests.price(lambda pond: _simple(kind)(pond, name))
        mode, repeats = Mode(emit, correct_for, late_by), Repeats(tuple(deduplicate), deduplicate_within)
        made = self._version(name, query, repeats, mode, state_ttl, time_zone)
        made = with_complete(made) if incomplete else made
        if kind == "add":
            return self._additions.price(made, backfill_from(backfill))
        streams = self._declarations.streams_of(made)
        return self._requests.price(lambda pond: _with_query(kind)(pond, made, streams))

    def history(self) -> list[Recorded]:
        """All changes of queries, newest first, each with its record number and its time (µs since 1970 UTC)."""
        opened = self._lifetime.open()
        return list(history(opened.truth.log, opened.manifest()))

    def costs(self) -> dict[str, Cost]:
        """The cost of each query with its versions: in the newest epoch, and of its state now. Costs sum to the total.

        Empty before the pond is opened.
        """
        opened = self._lifetime.opened
        if opened is None:
            return {}
        manifest, log = opened.driver.manifest, opened.truth.log
        data = log.read(manifest.epoch_n) if manifest.epoch_n >= 0 else None
        record = None if data is None else decode(data, log.describe(manifest.epoch_n)).record
        counts = record.counts if isinstance(record, EpochRecord) else {}
        return with_versions(opened.spec, costs(opened.driver.setting.plan, manifest, counts))


def _simple(kind: str) -> Callable[[KnownPond, str], Change]:
    made: dict[str, Callable[[KnownPond, str], Change]] = {
        "drop": validate.drop, "pause": validate.pause, "resume": validate.resume, "promote": validate.promote,
        "rollback": validate.rollback, "discard": validate.discard,
    }  # fmt: skip
    if kind not in made:
        raise ChangeRefused(f"{kind!r} is not a change, or needs a query.", f"Use one of {', '.join(made)}.")
    return made[kind]


def _with_query(kind: str) -> Callable[[KnownPond, AnyQuery, Sequence[Stream]], Change]:
    made: dict[str, Callable[[KnownPond, AnyQuery, Sequence[Stream]], Change]] = {
        "alter": validate.alter, "shadow": validate.shadow
    }  # fmt: skip
    if kind not in made:
        raise ChangeRefused(f"{kind!r} is no change that needs a query.", f"Use one of {', '.join(made)}.")
    return made[kind]
