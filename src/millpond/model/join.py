"""Joins: pairs of events of two streams with equal keys and near event times."""

from __future__ import annotations

import msgspec

from millpond.errors import QueryTypeError
from millpond.model.budget import Budget
from millpond.model.endpoints import Sink
from millpond.model.expressions import Expression
from millpond.model.query import Named, query_html
from millpond.model.windows import Sliding

SEMI, ANTI = "semi", "anti"
KINDS = ("inner", "left", "right", "full", SEMI, ANTI)
"""The kinds of joins. `semi` emits the left events with a partner, `anti` those without one. All others emit pairs, and
all but `inner` also events of a preserved side without a partner.
"""

LEFT, RIGHT = "left", "right"


class Within(msgspec.Struct, frozen=True, tag_field="window", tag="within"):
    """The time of the right event minus the time of the left event is at least `lower_us` and at most `upper_us`.

    Raises:
        QueryTypeError: the lower bound is greater than the upper bound.
    """

    lower_us: int
    upper_us: int

    def __post_init__(self) -> None:
        if self.lower_us > self.upper_us:
            raise QueryTypeError(
                f"A join within [{self.lower_us}, {self.upper_us}] µs finds no pair.", "Exchange the bounds."
            )


class Side(msgspec.Struct, frozen=True):
    """One side of a join: what it reads of a stream; `keys`, `values` and `where` are over the stream's columns.

    `delay_us` is the delay, as for a query; a late event takes no part.
    """

    stream: str
    event_time: str
    delay_us: int
    keys: tuple[Expression, ...]
    values: tuple[Expression, ...]
    where: Expression | None = None

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """All expressions that are evaluated for an event."""
        return (*self.keys, *self.values, *(() if self.where is None else (self.where,)))


class Join(msgspec.Struct, frozen=True, cache_hash=True):
    """A row for each pair of events with equal keys, equal windows (or times `Within` bounds) and a TRUE `condition`.

    A NULL in a key equals nothing. `condition`, `output` and `having` are over `left:i` and `right:i` (positions in the
    `values` of a side). With windows, they are also over `left:window` (a struct), `left:window.start`,
    `left:window.end`, and the same of `right`. An output may be `window`, the window of whichever side is present, or
    the call `window` of two times: a window column of upstream rows. `having` filters all rows, including those
    without a partner. `most_pairs`: for a join without keys, the maximum number of pairs that an instance may try in
    one epoch. `ttl_us`: the `state.ttl` of the query, if bounds or a delay in this join follow from it.
    `late_by`: `join` judges an event by the lesser watermark of both sides instead of by that of its own side; see
    `plan.options.output_modes`. `zone` and `unnest`: as in `Query`.
    """

    name: str
    left: Side
    right: Side
    kind: str
    when: Within | Sliding
    output: tuple[Named, ...]
    condition: Expression | None = None
    having: Expression | None = None
    sink: Sink = Sink()
    text: str = ""
    most_pairs: int | msgspec.UnsetType = msgspec.UNSET
    ttl_us: int | msgspec.UnsetType = msgspec.UNSET
    zone: str | msgspec.UnsetType = msgspec.UNSET
    budget: Budget | msgspec.UnsetType = msgspec.UNSET
    late_by: str | msgspec.UnsetType = msgspec.UNSET
    unnest: Expression | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        types = [[key.type for key in side.keys] for side in (self.left, self.right)]
        if self.kind not in KINDS or types[0] != types[1]:
            raise QueryTypeError(
                f"The join {self.name} is of kind {self.kind} by keys of types {types[0]} and {types[1]}.",
                f"Use one of {', '.join(KINDS)}, and keys of equal types.",
            )

    def _repr_html_(self) -> str:
        """How a notebook shows the query."""
        return query_html(self.name, self.text)

    @property
    def unnested(self) -> Expression | None:
        """The array of which each element is a row of a joined row; None: a joined row is one row."""
        return None if isinstance(self.unnest, msgspec.UnsetType) else self.unnest

    @property
    def sides(self) -> dict[str, Side]:
        """Both sides, by name."""
        return {LEFT: self.left, RIGHT: self.right}

    @property
    def streams(self) -> tuple[str, ...]:
        """The distinct streams that the join reads."""
        return tuple(dict.fromkeys((self.left.stream, self.right.stream)))

    @property
    def other_marks(self) -> dict[str, tuple[str, int]]:
        """For each side the other stream, and its delay, whose watermark must have passed a late event as well."""
        if self.late_by != "join" or self.left.stream == self.right.stream:
            return {}
        return {LEFT: (self.right.stream, self.right.delay_us), RIGHT: (self.left.stream, self.left.delay_us)}

    def preserves(self, side: str) -> bool:
        """Whether an event of this side is a row of its own, because it has no partner or, in a semi join, has one."""
        return self.kind in (side, "full") or (side == LEFT and not self.pairs)

    @property
    def pairs(self) -> bool:
        """Whether the rows are pairs of events."""
        return self.kind not in (SEMI, ANTI)

    @property
    def serve(self) -> bool:
        """Whether the latest row per key is kept in the view: never."""
        return False

    @property
    def late_sink(self) -> Sink | None:
        """The late sink: a join has none."""
        return None
