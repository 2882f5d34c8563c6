"""The plan: how all queries of a pond are answered together, as frozen values."""

from __future__ import annotations

import hashlib
from functools import cached_property

import msgspec

from millpond.model.expressions import Expression
from millpond.model.query import Query
from millpond.model.windows import Session, Sliding, Window


class Measure(msgspec.Struct, frozen=True, dict=True):
    """Something that is counted or summed once per key and slice, however many queries ask for it.

    `kind` is count, sum, squares (sum of squares), min or max; only rows for which `filter` is TRUE
    take part (None: all), and `filter` already says that `value` is not NULL. `type` is the value's SQL type.
    """

    kind: str
    value: Expression | None
    filter: Expression | None
    type: str = "bigint"

    @cached_property
    def id(self) -> str:
        """Twelve hex digits that name its columns in packets and segments, the same in every plan."""
        return fingerprint(self)

    @cached_property
    def base(self) -> Measure:
        """The measure without its filter: what cells that are split by signature keep."""
        return self if self.filter is None else Measure(self.kind, self.value, None, self.type)

    @cached_property
    def filter_id(self) -> str:
        """Twelve hex digits that name its filter in tables of signatures."""
        return fingerprint(self.filter)


class QueryPlan(msgspec.Struct, frozen=True):
    """How one query reads its group: `presence` and `measures` are positions in the group's measures.

    `measures[i]` are those of aggregate `i`, in the order `runtime.finish` expects; `delay` is the position
    of the query's delay among the group's: it takes the events of slice classes 0 … `delay`.
    `where` is the part of the presence filter that decides "filtered", the rest "dead".
    """

    query: Query
    presence: int
    measures: tuple[tuple[int, ...], ...]
    delay: int


SIGNED_FROM = 17
"""A group with so many distinct filters keeps cells by signature (see `state.signatures`), not columns by filter."""


class GroupPlan(msgspec.Struct, frozen=True, dict=True):
    """All queries with the same stream, event time and key: they share dictionary, edges, measures, slices.

    Or session windows over the same events by the same key: they share dictionary, measures, atoms.
    """

    id: str
    stream: str
    event_time: str
    keys: tuple[Expression, ...]
    delays_us: tuple[int, ...]
    windows: tuple[Window, ...]
    measures: tuple[Measure, ...]
    queries: tuple[QueryPlan, ...]

    @cached_property
    def sliding(self) -> tuple[Sliding, ...]:
        """Its windows, if they are cut into slices."""
        return tuple(window for window in self.windows if isinstance(window, Sliding))

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
    def signed(self) -> bool:
        """Whether its cells are split by signature."""
        return not self.gaps_us and len(self.filters) >= SIGNED_FROM

    @cached_property
    def kept(self) -> tuple[Measure, ...]:
        """The measures whose columns its cells have."""
        return tuple(dict.fromkeys(measure.base for measure in self.measures)) if self.signed else self.measures


class Plan(msgspec.Struct, frozen=True):
    """Every group of the pond, in a fixed order."""

    groups: tuple[GroupPlan, ...]

    @property
    def id(self) -> str:
        """Twelve hex digits: equal plans have equal ids."""
        return fingerprint(self)

    def of_query(self, name: str) -> tuple[GroupPlan, QueryPlan]:
        """The group and the plan of a query.

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
