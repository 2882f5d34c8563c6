"""The plan of a pond as frozen values: the groups, stateless queries and joins that answer all queries.

A `Plan`, at the end, has `GroupPlan`s; these have `QueryPlan`s and `Measure`s."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property
from typing import Literal

import msgspec

from millpond.model.expressions import Column, Expression
from millpond.model.query import Deduplication, GroupingSet, Query
from millpond.model.selection import AnyQuery, Selection
from millpond.model.stream import Retention
from millpond.model.windows import Counted, Distinct, Framed, Pattern, Processed, Session, Sliced, Sliding, Window
from millpond.plan.groups.event_log import LogPlan
from millpond.plan.groups.filter_ladders import Ladder, ladders_of
from millpond.plan.groups.joins import Joins
from millpond.plan.groups.tallies import Tally

GroupKind = Literal["time", "session", "count", "distinct", "top", "pattern", "processed"]
"""How the windows of a group are bounded: by time, by gaps in a key's events, by a number of events, or by matches of
patterns; or whether the group has one row for each distinct key, that of the first event or of the earliest or latest.
"""


class Measure(msgspec.Struct, frozen=True, cache_hash=True, dict=True):
    """A partial aggregate that is computed once per key and slice, regardless of how many queries need it.

    `kind` is count, sum, squares, power3, power4 (sums of powers), products (sum of `value` times `other`), min, max,
    and, or, xor (of the bits of integers), or `registers` followed by a precision p: 2**p registers of hashes, from
    which distinct values are counted. Only rows for which `filter` is TRUE take part (None: all rows). `filter`
    includes the condition that the values are not NULL. `type` is the SQL type of the value.
    """

    kind: str
    value: Expression | None
    filter: Expression | None
    type: str = "bigint"
    other: Expression | msgspec.UnsetType = msgspec.UNSET

    @property
    def values(self) -> tuple[Expression, ...]:
        """The expressions whose values the measure needs."""
        first = () if self.value is None else (self.value,)
        return first if self.other is msgspec.UNSET else (*first, self.other)

    @property
    def precision(self) -> int:
        """The precision of the registers; 0 for a measure without registers."""
        digits = self.kind.removeprefix("registers")
        return 0 if digits == self.kind else int(digits)

    @cached_property
    def id(self) -> str:
        """Twelve hex digits that name the columns of the measure in packets and segments; the same in every plan."""
        return fingerprint(self)

    @cached_property
    def base(self) -> Measure:
        """The measure without its filter; cells that are split by signature store this one."""
        return self if self.filter is None else msgspec.structs.replace(self, filter=None)

    @cached_property
    def filter_id(self) -> str:
        """Twelve hex digits that name the filter of the measure in signature tables."""
        return fingerprint(self.filter)


_ALWAYS = -(1 << 63)
_NEVER = (1 << 63) - 1


class QueryPlan(msgspec.Struct, frozen=True):
    """How one query reads its group: `presence` and `measures` are positions in the group's measures.

    `measures[i]` are the measures of aggregate `i`, in the order that `runtime.aggregates.finish` expects. `delay` is
    the position of the query's `late_after_us` among the group's delays: the query takes the events of the lateness
    classes 0 … `delay` of a slice. `since_us` is set if the query was added after the first events; its first window
    starts at or after this time. `until_us` is set if another version has replaced the query; that version answers
    the windows that start at or after this time. `outputs_vary` is set if earlier rows may have been computed with
    another HAVING or other outputs: the query was altered, or it has a live parameter, whose value the plan of an epoch
    contains.
    """

    query: Query
    presence: int
    measures: tuple[tuple[int, ...], ...]
    delay: int
    since_us: int | msgspec.UnsetType = msgspec.UNSET
    until_us: int | msgspec.UnsetType = msgspec.UNSET
    outputs_vary: bool | msgspec.UnsetType = msgspec.UNSET

    @property
    def from_us(self) -> int:
        """The earliest start of a window that the query answers."""
        return _ALWAYS if isinstance(self.since_us, msgspec.UnsetType) else self.since_us

    @property
    def before_us(self) -> int:
        """All windows that the query answers start before this time."""
        return _NEVER if isinstance(self.until_us, msgspec.UnsetType) else self.until_us


def column_ids(group: GroupPlan, apart: str = "") -> frozenset[str] | None:
    """The prefixes that column names of the group's cells may have: ids of its measures, with and without their filter.

    None means that any name is allowed. Cells of sessions, count windows and patterns contain more than measures, and
    cells that are stored `apart` as `revisions` contain something else.
    """
    if group.kind in ("session", "count", "pattern") or apart == "revisions":
        return None
    return frozenset(name for measure in group.measures for name in (measure.id, measure.base.id))


def measures_read(plans: Iterable[QueryPlan]) -> list[int]:
    """The distinct positions of the measures that these queries read."""
    return list(dict.fromkeys(i for plan in plans for places in ((plan.presence,), *plan.measures) for i in places))


SIGNED_FROM = 17
"""From this number of distinct filters on, a group splits its cells by signature (see `state.keys.filter_signatures`)
instead of storing columns for each filter.
"""


class GroupPlan(msgspec.Struct, frozen=True, dict=True, weakref=True):
    """All queries with the same stream, event time and key; they share the dictionary, edges, measures and slices.

    A group of session windows over the same events by the same key shares the dictionary, measures and atoms.
    `signatures`: the cells are split by signature, even if only few filters are left. `retain`: data that is kept
    longer than the queries need it. `spread`: the position of the key that alone determines the bucket, because the
    topic is partitioned by it.
    """

    id: str
    stream: str
    event_time: str
    keys: tuple[Expression, ...]
    delays_us: tuple[int, ...]
    windows: tuple[Window, ...]
    measures: tuple[Measure, ...]
    queries: tuple[QueryPlan, ...]
    log: LogPlan | msgspec.UnsetType = msgspec.UNSET
    deduplicate: Deduplication | msgspec.UnsetType = msgspec.UNSET
    tallied: tuple[Tally, ...] | msgspec.UnsetType = msgspec.UNSET
    signatures: bool | msgspec.UnsetType = msgspec.UNSET
    retain: Retention | msgspec.UnsetType = msgspec.UNSET
    spread: int | msgspec.UnsetType = msgspec.UNSET
    sets: tuple[GroupingSet, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def grouping_sets(self) -> tuple[GroupingSet, ...]:
        """The grouping sets, which all queries of the group have; empty if rows are grouped by all keys."""
        return () if isinstance(self.sets, msgspec.UnsetType) else self.sets

    @property
    def spread_by(self) -> int | None:
        """The position of the key that alone determines the bucket; None: all keys determine it."""
        return None if isinstance(self.spread, msgspec.UnsetType) else self.spread

    @property
    def late_by(self) -> Sliced | None:
        """The window whose first end decides whether an event is late; None: the event's own time decides."""
        query = self.queries[0].query
        return query.window if query.late_by_window and isinstance(query.window, Sliced) else None

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """The tallies of the group: values that are counted by bins."""
        return () if isinstance(self.tallied, msgspec.UnsetType) else self.tallied

    @property
    def deduplicated(self) -> Deduplication | None:
        """Which events are left out as repeated; all events wait in the event log until the watermark passes them."""
        return None if isinstance(self.deduplicate, msgspec.UnsetType) else self.deduplicate

    @property
    def events(self) -> LogPlan | None:
        """The event log of the group, if some query needs one."""
        return None if isinstance(self.log, msgspec.UnsetType) else self.log

    @cached_property
    def sliding(self) -> tuple[Sliced, ...]:
        """The windows of the group that are cut into slices."""
        return tuple(window for window in self.windows if isinstance(window, Sliced))

    @property
    def retention(self) -> Retention:
        """The data that is kept for queries that are added later."""
        return Retention() if isinstance(self.retain, msgspec.UnsetType) else self.retain

    @cached_property
    def cuts(self) -> tuple[Sliced, ...]:
        """The windows at whose edges slices are cut; the windows of the grain belong to no query."""
        grain = self.retention.grain_us
        return (*self.sliding, Sliding(grain, grain)) if grain else self.sliding

    @cached_property
    def celled(self) -> tuple[QueryPlan, ...]:
        """The queries whose windows are combined from cells; the other queries read events only."""
        return tuple(plan for plan in self.queries if not isinstance(plan.query.window, Framed))

    @cached_property
    def readers(self) -> tuple[tuple[str, ...], ...]:
        """The names of the queries that read each measure."""
        found: list[list[str]] = [[] for _ in self.measures]
        for plan in self.queries:
            for place in measures_read([plan]):
                found[place].append(plan.query.name)
        return tuple(map(tuple, found))

    @cached_property
    def counted(self) -> bool:
        """Whether the windows of the group are bounded by a number of events."""
        return isinstance(self.windows[0], Counted)

    @property
    def kind(self) -> GroupKind:
        """The kind of the windows, which decides how the state is stored."""
        if isinstance(self.windows[0], Distinct):
            return "distinct" if isinstance(self.windows[0].keeps, msgspec.UnsetType) else "top"
        if isinstance(self.windows[0], Pattern):
            return "pattern"
        if isinstance(self.windows[0], Processed):
            return "processed"
        return "count" if self.counted else "session" if self.gaps_us else "time"

    @cached_property
    def gaps_us(self) -> tuple[int, ...]:
        """The gaps of the session windows, ascending; empty for other groups."""
        return tuple(window.gap_us for window in self.windows if isinstance(window, Session))

    @cached_property
    def own_end(self) -> Expression | None:
        """The end of the session window that an event opens, if events bring their own gaps; else None."""
        return self.windows[0].own_end if isinstance(self.windows[0], Session) else None

    @cached_property
    def filters(self) -> dict[str, Expression | None]:
        """The distinct filters of the measures, by id."""
        return {measure.filter_id: measure.filter for measure in self.measures}

    @cached_property
    def ladders(self) -> tuple[Ladder, ...]:
        """The distinct filters of the measures, grouped into ladders."""
        return ladders_of(self.filters)

    @cached_property
    def signed(self) -> bool:
        """Whether the cells are split by signature."""
        return bool(self.sliding) and (self.signatures is True or len(self.filters) >= SIGNED_FROM)

    @cached_property
    def kept(self) -> tuple[Measure, ...]:
        """The measures for which the cells have columns."""
        kept = self.measures
        if len(self.celled) < len(self.queries):
            kept = tuple(self.measures[i] for i in sorted(measures_read(self.celled)))
        return tuple(dict.fromkeys(measure.base for measure in kept)) if self.signed else kept


class KeptEvents(msgspec.Struct, frozen=True, dict=True):
    """The events that a stream retains: `columns` are stored for `kept_us` microseconds of event time."""

    stream: str
    event_time: str
    columns: tuple[Column, ...]
    kept_us: int

    @cached_property
    def id(self) -> str:
        """Twelve hex digits under which the events are stored; independent of their columns."""
        return fingerprint(("retained", self.stream))


class Plan(msgspec.Struct, frozen=True):
    """All groups, stateless queries and joins of a pond, in a fixed order.

    `timed`: pairs of a stream and the column by which its event time is still observed, although no query uses that
    column any more. `kept`: the events that streams retain. `beside`: pairs of a query and its shadow.
    """

    groups: tuple[GroupPlan, ...]
    stateless: tuple[Selection, ...] | msgspec.UnsetType = msgspec.UNSET
    joined: Joins | msgspec.UnsetType = msgspec.UNSET
    timed: tuple[tuple[str, str], ...] | msgspec.UnsetType = msgspec.UNSET
    kept: tuple[KeptEvents, ...] | msgspec.UnsetType = msgspec.UNSET
    beside: tuple[tuple[str, str], ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def compared(self) -> dict[str, str]:
        """Each query whose rows are compared with those of a shadow, and the name of the shadow."""
        return {} if isinstance(self.beside, msgspec.UnsetType) else dict(self.beside)

    @property
    def compared_names(self) -> set[str]:
        """The names of the compared queries and of their shadows."""
        return {name for pair in self.compared.items() for name in pair}

    @property
    def retained(self) -> tuple[KeptEvents, ...]:
        """The events that streams retain."""
        return () if isinstance(self.kept, msgspec.UnsetType) else self.kept

    def retained_of(self, stream: str) -> KeptEvents | None:
        """The events that one stream retains; None if it retains none."""
        return next((kept for kept in self.retained if kept.stream == stream), None)

    @property
    def watched(self) -> dict[str, str]:
        """`timed` as a mapping from the stream to the column."""
        return {} if isinstance(self.timed, msgspec.UnsetType) else dict(self.timed)

    @property
    def joins(self) -> Joins:
        """The joins and their shared logs."""
        return Joins() if isinstance(self.joined, msgspec.UnsetType) else self.joined

    @property
    def selections(self) -> tuple[Selection, ...]:
        """The stateless queries."""
        return () if isinstance(self.stateless, msgspec.UnsetType) else self.stateless

    def selections_of(self, stream: str) -> tuple[Selection, ...]:
        """The stateless queries over one stream."""
        return tuple(selection for selection in self.selections if selection.stream == stream)

    @property
    def all_queries(self) -> tuple[AnyQuery, ...]:
        """All registered queries: with windows, stateless, and joins."""
        windowed = (query.query for group in self.groups for query in group.queries)
        return (*windowed, *self.selections, *(plan.join for plan in self.joins.plans))

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of all streams that are read, sorted."""
        return tuple(sorted({stream for query in self.all_queries for stream in query.streams}))

    @property
    def id(self) -> str:
        """Twelve hex digits; equal plans have equal ids."""
        return fingerprint(self)

    def event_time_of(self, stream: str) -> str | None:
        """The column that gives the event time of a stream, for queries or observation only; None: no column does."""
        times = (group.event_time for group in self.groups if group.stream == stream and group.event_time)
        logs = (log.event_time for log in self.joins.logs_of(stream))
        return next(times, None) or next(logs, None) or self.watched.get(stream)

    def of_query(self, name: str) -> tuple[GroupPlan, QueryPlan]:
        """The group and the plan of a query with windows.

        Raises:
            KeyError: no query has this name.
        """
        for group in self.groups:
            for query in group.queries:
                if query.query.name == name:
                    return group, query
        raise KeyError(name)


def fingerprint(value: object) -> str:
    """Twelve hex digits of the value's canonical JSON."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:12]
