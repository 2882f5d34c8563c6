"""The plan: how all queries of a pond are answered together, as frozen values."""

from __future__ import annotations

import hashlib
from functools import cached_property

import msgspec

from millpond.model.expressions import Expression
from millpond.model.query import Query
from millpond.model.windows import Sliding


class Measure(msgspec.Struct, frozen=True, dict=True):
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
    """All queries with the same stream, event time and key: they share dictionary, edges, measures, slices."""

    id: str
    stream: str
    event_time: str
    keys: tuple[Expression, ...]
    delays_us: tuple[int, ...]
    windows: tuple[Sliding, ...]
    measures: tuple[Measure, ...]
    queries: tuple[QueryPlan, ...]

    @property
    def horizon_us(self) -> int:
        """The longest window: slices older than the watermark by more than this are not needed."""
        return max(window.size_us for window in self.windows)


    @cached_property
    def filters(self) -> dict[str, Expression | None]:
        """Every distinct filter of its measures, by id."""
        return {measure.filter_id: measure.filter for measure in self.measures}

    @cached_property
    def signed(self) -> bool:
        """Whether its cells are split by signature."""
        return len(self.filters) >= SIGNED_FROM

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
