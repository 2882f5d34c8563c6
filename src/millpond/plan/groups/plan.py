"""The plan: how all queries of a pond are answered together, as frozen values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property
from typing import Literal

import msgspec

from millpond.model.expressions import Column, Expression
from millpond.model.query import Deduplication, Query
from millpond.model.selection import AnyQuery, Selection
from millpond.model.stream import Retention
from millpond.model.windows import Counted, Framed, Session, Sliding, Window
from millpond.plan.groups.bin_counts import Tally
from millpond.plan.groups.event_log import LogPlan
from millpond.plan.groups.filter_ladders import Ladder, ladders_of
from millpond.plan.groups.joins import Joins

GroupKind = Literal["time", "session", "count"]
"""How the windows of a group are bounded: by time, by gaps in a key's events, or by a number of events."""


class Measure(msgspec.Struct, frozen=True, cache_hash=True, dict=True):
    """Something that is counted or summed once per key and slice, however many queries ask for it.

    `kind` is count, sum, squares, power3, power4 (sums of powers), products (sum of `value` times `other`), min, max
    or, followed by their precision p, registers (2**p of them, of hashes, by which distinct values are counted). Only
    rows for which `filter` is TRUE take part (None: all), and `filter` already says that its values are not NULL.
    `type` is the value's SQL type.
    """

    kind: str
    value: Expression | None
    filter: Expression | None
    type: str = "bigint"
    other: Expression | msgspec.UnsetType = msgspec.UNSET

    @property
    def values(self) -> tuple[Expression, ...]:
        """The expressions whose values it needs."""
        first = () if self.value is None else (self.value,)
        return first if self.other is msgspec.UNSET else (*first, self.other)

    @property
    def precision(self) -> int:
        """Of registers; 0: it has none."""
        digits = self.kind.removeprefix("registers")
        return 0 if digits == self.kind else int(digits)

    @cached_property
    def id(self) -> str:
        """Twelve hex digits that name its columns in packets and segments, the same in every plan."""
        return fingerprint(self)

    @cached_property
    def base(self) -> Measure:
        """The measure without its filter: what cells that are split by signature keep."""
        return self if self.filter is None else msgspec.structs.replace(self, filter=None)

    @cached_property
    def filter_id(self) -> str:
        """Twelve hex digits that name its filter in tables of signatures."""
        return fingerprint(self.filter)


_ALWAYS = -(1 << 63)
_NEVER = (1 << 63) - 1


class QueryPlan(msgspec.Struct, frozen=True):
    """How one query reads its group: `presence` and `measures` are positions in the group's measures.

    `measures[i]` are those of aggregate `i`, in the order `runtime.aggregates.finish` expects; `delay` is the position
    of the query's `late_after_us` among the group's delays: it takes the events of slice classes 0 … `delay`.
    `since_us`: the query was added when events were there already; its first window starts at or after this.
    `until_us`: another version has taken its place, and answers what starts at or after this.
    """

    query: Query
    presence: int
    measures: tuple[tuple[int, ...], ...]
    delay: int
    since_us: int | msgspec.UnsetType = msgspec.UNSET
    until_us: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def from_us(self) -> int:
        """The earliest start of a window that it answers."""
        return _ALWAYS if isinstance(self.since_us, msgspec.UnsetType) else self.since_us

    @property
    def before_us(self) -> int:
        """All windows that it answers start before this."""
        return _NEVER if isinstance(self.until_us, msgspec.UnsetType) else self.until_us


def column_ids(group: GroupPlan, apart: str = "") -> frozenset[str] | None:
    """What names of columns of the group's cells may begin with: its measures, with their filter or without it.

    None: anything; of sessions and count windows cells tell more than measures, and those that are kept `apart` as
    `revisions` something else.
    """
    if group.gaps_us or group.counted or apart == "revisions":
        return None
    return frozenset(name for measure in group.measures for name in (measure.id, measure.base.id))


def measures_read(plans: Iterable[QueryPlan]) -> list[int]:
    """Positions of the measures that some queries read, each once."""
    return list(dict.fromkeys(i for plan in plans for places in ((plan.presence,), *plan.measures) for i in places))


SIGNED_FROM = 17
"""A group with so many distinct filters keeps cells by signature (see `state.keys.filter_signatures`), not columns by
filter.
"""


class GroupPlan(msgspec.Struct, frozen=True, dict=True, weakref=True):
    """All queries with the same stream, event time and key: they share dictionary, edges, measures, slices.

    Or session windows over the same events by the same key: they share dictionary, measures, atoms. `signatures`: its
    cells are split by signature, however few filters are left. `retain`: what is kept longer than queries need it.
    `spread`: which of its keys makes the bucket, as it is the key of the topic.
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

    @property
    def spread_by(self) -> int | None:
        """The position of the key that alone makes the bucket; None: all of them do."""
        return None if isinstance(self.spread, msgspec.UnsetType) else self.spread

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """What it counts by bins."""
        return () if isinstance(self.tallied, msgspec.UnsetType) else self.tallied

    @property
    def deduplicated(self) -> Deduplication | None:
        """Which events are left out as repeated: all wait in the event log until the watermark passes them."""
        return None if isinstance(self.deduplicate, msgspec.UnsetType) else self.deduplicate

    @property
    def events(self) -> LogPlan | None:
        """Its event log, if some query needs one."""
        return None if isinstance(self.log, msgspec.UnsetType) else self.log

    @cached_property
    def sliding(self) -> tuple[Sliding, ...]:
        """Its windows, if they are cut into slices."""
        return tuple(window for window in self.windows if isinstance(window, Sliding))

    @property
    def retention(self) -> Retention:
        """What is kept for queries that come later."""
        return Retention() if isinstance(self.retain, msgspec.UnsetType) else self.retain

    @cached_property
    def cuts(self) -> tuple[Sliding, ...]:
        """The windows at whose edges slices are cut; those of the grain are windows that nobody asked for."""
        grain = self.retention.grain_us
        return (*self.sliding, Sliding(grain, grain)) if grain else self.sliding

    @cached_property
    def celled(self) -> tuple[QueryPlan, ...]:
        """The queries whose windows are put together from cells; the others read events only."""
        return tuple(plan for plan in self.queries if not isinstance(plan.query.window, Framed))

    @cached_property
    def counted(self) -> bool:
        """Whether its windows are numbers of events."""
        return isinstance(self.windows[0], Counted)

    @property
    def kind(self) -> GroupKind:
        """The kind of its windows, which decides how its state is kept."""
        return "count" if self.counted else "session" if self.gaps_us else "time"

    @cached_property
    def gaps_us(self) -> tuple[int, ...]:
        """The gaps of its sessions, ascending; () of a group with slices."""
        return tuple(window.gap_us for window in self.windows if isinstance(window, Session))

    @cached_property
    def own_end(self) -> Expression | None:
        """Where the window that an event opens ends, in a group of sessions whose gaps differ from event to event."""
        return self.windows[0].own_end if isinstance(self.windows[0], Session) else None

    @cached_property
    def filters(self) -> dict[str, Expression | None]:
        """Every distinct filter of its measures, by id."""
        return {measure.filter_id: measure.filter for measure in self.measures}

    @cached_property
    def ladders(self) -> tuple[Ladder, ...]:
        """The same, in ladders."""
        return ladders_of(self.filters)

    @cached_property
    def signed(self) -> bool:
        """Whether its cells are split by signature."""
        return bool(self.sliding) and (self.signatures is True or len(self.filters) >= SIGNED_FROM)

    @cached_property
    def kept(self) -> tuple[Measure, ...]:
        """The measures whose columns its cells have."""
        kept = self.measures
        if len(self.celled) < len(self.queries):
            kept = tuple(self.measures[i] for i in sorted(measures_read(self.celled)))
        return tuple(dict.fromkeys(measure.base for measure in kept)) if self.signed else kept


class KeptEvents(msgspec.Struct, frozen=True, dict=True):
    """The events that a stream retains, for so long of event time, with these columns."""

    stream: str
    event_time: str
    columns: tuple[Column, ...]
    kept_us: int

    @cached_property
    def id(self) -> str:
        """Twelve hex digits under which they are kept, whatever their columns."""
        return fingerprint(("retained", self.stream))


class Plan(msgspec.Struct, frozen=True):
    """Every group of the pond, its stateless queries and its joins, in a fixed order.

    `timed`: streams, and by which column their times are observed though no query tells them any more. `kept`: events
    that streams retain. `beside`: pairs of a query and its shadow.
    """

    groups: tuple[GroupPlan, ...]
    stateless: tuple[Selection, ...] | msgspec.UnsetType = msgspec.UNSET
    joined: Joins | msgspec.UnsetType = msgspec.UNSET
    timed: tuple[tuple[str, str], ...] | msgspec.UnsetType = msgspec.UNSET
    kept: tuple[KeptEvents, ...] | msgspec.UnsetType = msgspec.UNSET
    beside: tuple[tuple[str, str], ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def compared(self) -> dict[str, str]:
        """Of queries whose rows are compared with those of a shadow, its name."""
        return {} if isinstance(self.beside, msgspec.UnsetType) else dict(self.beside)

    @property
    def compared_names(self) -> set[str]:
        """These queries, and their shadows."""
        return {name for pair in self.compared.items() for name in pair}

    @property
    def retained(self) -> tuple[KeptEvents, ...]:
        """The events that streams retain."""
        return () if isinstance(self.kept, msgspec.UnsetType) else self.kept

    def retained_of(self, stream: str) -> KeptEvents | None:
        """The events that one stream retains, if it does."""
        return next((kept for kept in self.retained if kept.stream == stream), None)

    @property
    def watched(self) -> dict[str, str]:
        """`timed`, by stream."""
        return {} if isinstance(self.timed, msgspec.UnsetType) else dict(self.timed)

    @property
    def joins(self) -> Joins:
        """The joins, and the logs that they share."""
        return Joins() if isinstance(self.joined, msgspec.UnsetType) else self.joined

    @property
    def selections(self) -> tuple[Selection, ...]:
        """The stateless queries."""
        return () if isinstance(self.stateless, msgspec.UnsetType) else self.stateless

    def selections_of(self, stream: str) -> tuple[Selection, ...]:
        """The stateless queries over one stream."""
        return tuple(selection for selection in self.selections if selection.stream == stream)

    @property
    def asked(self) -> tuple[AnyQuery, ...]:
        """Every query."""
        windowed = (query.query for group in self.groups for query in group.queries)
        return (*windowed, *self.selections, *(plan.join for plan in self.joins.plans))

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of all streams that are read, sorted."""
        return tuple(sorted({stream for asked in self.asked for stream in asked.streams}))

    @property
    def id(self) -> str:
        """Twelve hex digits: equal plans have equal ids."""
        return fingerprint(self)

    def event_time_of(self, stream: str) -> str | None:
        """By which column the time of a stream is told or observed; None: by none."""
        told = (group.event_time for group in self.groups if group.stream == stream)
        logs = (log.event_time for log in self.joins.logs_of(stream))
        return next(told, None) or next(logs, None) or self.watched.get(stream)

    def of_query(self, name: str) -> tuple[GroupPlan, QueryPlan]:
        """The group and the plan of a query with windows.

        Raises:
            KeyError: no such query.
        """
        for group in self.groups:
            for query in group.queries:
                if query.query.name == name:
                    return group, query
        raise KeyError(name)


def fingerprint(value: object) -> str:
    """Twelve hex digits of the value's canonical JSON."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:12]
