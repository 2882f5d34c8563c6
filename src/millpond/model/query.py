"""Queries: frozen values that can be compared, hashed, stored and shared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from millpond.errors import QueryTypeError
from millpond.model.aggregates import Aggregate
from millpond.model.budget import Budget
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column, Expression
from millpond.model.functions import UserFunction
from millpond.model.windows import Window


class Named(msgspec.Struct, frozen=True):
    """An expression and the name of the column it makes."""

    name: str
    expression: Expression


def named_once(columns: Sequence[Named]) -> tuple[Named, ...]:
    """The columns, if each has a name of its own.

    Raises:
        QueryTypeError: two have the same.
    """
    names = [column.name for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise QueryTypeError(f"Two columns of the query are called {twice[0]}.", "Give one another name with AS.")
    return tuple(columns)


class Deduplication(msgspec.Struct, frozen=True):
    """An event is left out if one that is equal in `columns` came at most `within_us` before it, in event time.

    Of events at one time the first is taken: by source partition and offset or, without an order, by their values.
    Columns are compared as keys are: NULL equals NULL, NaN equals NaN.
    """

    columns: tuple[Column, ...]
    within_us: int


class Query(msgspec.Struct, frozen=True, cache_hash=True):
    """One windowed aggregation over one stream.

    `keys` and the aggregates' arguments and filters are over the stream's columns. `output` and `having`
    are over `key:i`, `agg:i` (their positions here), `window` (struct), `window.start`, `window.end` and
    `window.time`, the last microsecond of the window.
    `delay_us`: an event is late, and dropped, iff its time is at or below the watermark, which is the
    largest event time seen minus the delay. `late`: where late events go that WHERE takes; without one they are
    only counted, and the JSON of the query has no such field. `functions`: those of users, likewise.
    `event`: where each event has a row of its own, what `event:i` of `output` and `having` stands for.
    `emit`: `update` tells every change of a row in its epoch; without it a row leaves when the watermark passes its
    window. `correct_us`: events that are later than the delay, by less than this, are taken and correct rows that have
    left; see `plan.options.output_modes`. `deduplicate`: it is asked of the stream without repeated events; see
    `plan.groups.deduplication`.
    """

    name: str
    stream: str
    event_time: str
    delay_us: int
    window: Window
    keys: tuple[Expression, ...]
    aggregates: tuple[Aggregate, ...]
    output: tuple[Named, ...]
    where: Expression | None = None
    having: Expression | None = None
    sink: Sink = Sink()
    serve: bool = False
    text: str = ""
    late: Sink | msgspec.UnsetType = msgspec.UNSET
    functions: tuple[UserFunction, ...] | msgspec.UnsetType = msgspec.UNSET
    event: tuple[Expression, ...] | msgspec.UnsetType = msgspec.UNSET
    emit: str | msgspec.UnsetType = msgspec.UNSET
    correct_us: int | msgspec.UnsetType = msgspec.UNSET
    deduplicate: Deduplication | msgspec.UnsetType = msgspec.UNSET
    budget: Budget | msgspec.UnsetType = msgspec.UNSET

    @property
    def of_event(self) -> tuple[Expression, ...]:
        """What its rows tell of the event that each is of, over the stream's columns."""
        return () if isinstance(self.event, msgspec.UnsetType) else self.event

    @property
    def streams(self) -> tuple[str, ...]:
        """The stream that it reads."""
        return (self.stream,)

    @property
    def updating(self) -> bool:
        """Whether it tells every change of a row."""
        return self.emit == "update"

    @property
    def corrected_for_us(self) -> int:
        """How much later than the delay an event may be and still correct its rows; 0: rows are final."""
        return 0 if isinstance(self.correct_us, msgspec.UnsetType) else self.correct_us

    @property
    def changing(self) -> bool:
        """Whether a row that has left may be replaced or deleted: rows then say so in columns of their own."""
        return self.updating or self.corrected_for_us > 0

    @property
    def late_after_us(self) -> int:
        """An event is late for it by this delay: its own and, where rows are corrected, as long as they are."""
        return self.delay_us + self.corrected_for_us

    @property
    def deduplicated(self) -> Deduplication | None:
        """Which events are left out as repeated, if any."""
        return None if isinstance(self.deduplicate, msgspec.UnsetType) else self.deduplicate

    @property
    def user_functions(self) -> dict[str, UserFunction]:
        """The functions of users that it calls, by the `function` of the aggregates that do."""
        return {} if isinstance(self.functions, msgspec.UnsetType) else {made.function: made for made in self.functions}

    @property
    def late_sink(self) -> Sink | None:
        """Where late events go, if anywhere."""
        return None if isinstance(self.late, msgspec.UnsetType) else self.late


def changed_functions(before: Iterable[Query], after: Iterable[Query]) -> list[str]:
    """Functions of users that have one name and version in both, and are not the same: `name@version`, sorted."""
    old, new = (
        {made.label: made for query in some for made in query.user_functions.values()} for some in (before, after)
    )
    return sorted(label for label in {*old} & {*new} if old[label] != new[label])
