"""Turns `current_timestamp()`, `current_date()` … in queries into parameters, which each epoch sets to its own instant.

An example is `current_timestamp() - INTERVAL 1 HOUR`. The name of a parameter says how it follows from the instant. All
of an epoch is computed with one instant, which its record stores. As with live parameters, an event is evaluated with
the instant of the epoch that reads it, and HAVING and outputs with that of the epoch that emits the row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millpond.errors import UnsupportedQuery
from millpond.model.calendars.clock_names import CLOCK_NAME
from millpond.model.calendars.zone_offsets import DAY_US, local_day, plus_days
from millpond.model.expressions import Literal, Parameter, literal, parameters_of
from millpond.model.join import Join
from millpond.model.query import Query
from millpond.model.selection import AnyQuery, Selection
from millpond.model.windows import Pattern, Processed
from millpond.plan.options.live_parameters import named_in

CLOCK_CURE = (
    "Use current_timestamp(), also minus an interval, current_date() or unix_timestamp() in WHERE, FILTER, HAVING or "
    "the columns of SELECT, not inside functions that only Spark evaluates."
)


class ClockValue(NamedTuple):
    """The instant of an epoch plus `shift_us`, as a timestamp.

    The shift's complete days are calendar days of `zone`, as in Spark. `unit_us`: as a number of whole units since
    1970. `is_date`: as a date of the zone, plus `days`.
    """

    shift_us: int = 0
    zone: str = ""
    unit_us: int = 0
    is_date: bool = False
    days: int = 0

    @property
    def parameter(self) -> Parameter:
        """The parameter with this value.

        >>> ClockValue(-3_600_000_000).parameter.name
        'now() -3600000000 us'
        """
        name = f"now() {self.shift_us:+d} us" if self.shift_us else "now()"
        if self.is_date or abs(self.shift_us) >= DAY_US:
            name += f" in {self.zone}"
        name += " as date" if self.is_date else f" as {self.unit_us} us" if self.unit_us else ""
        name += f" {self.days:+d} days" if self.days else ""
        return Parameter(name, "date" if self.is_date else "bigint" if self.unit_us else "timestamp")

    def at(self, instant_us: int) -> Literal:
        """The value in an epoch.

        >>> ClockValue(unit_us=1_000_000).at(2_500_000).value
        2
        """
        days = abs(self.shift_us) // DAY_US * (1 if self.shift_us > 0 else -1)
        moved_us = plus_days(self.zone, instant_us, days) if days else instant_us
        moved_us += self.shift_us - days * DAY_US
        if self.is_date:
            return literal(local_day(self.zone, moved_us) + self.days, "date")
        return literal(moved_us // self.unit_us, "bigint") if self.unit_us else literal(moved_us, "timestamp")


def clock_value(name: str) -> ClockValue | None:
    """The value of the clock that a parameter is; None for a live parameter of the user."""
    found = CLOCK_NAME.fullmatch(name)
    if found is None:
        return None
    shift, zone, form, days = found.groups()
    unit_us = int(form.removesuffix(" us")) if form and form != "date" else 0
    return ClockValue(int(shift or 0), zone or "", unit_us, form == "date", int(days or 0))


def clock_parameters(queries: Iterable[AnyQuery]) -> tuple[str, ...]:
    """The parameters of queries that are values of the clock, sorted."""
    return tuple(sorted({one.name for query in queries for one in named_in(query) if clock_value(one.name)}))


def clock_values(names: Iterable[str], instant_us: int) -> dict[str, Literal]:
    """The values of these parameters in an epoch."""
    return {name: found.at(instant_us) for name in names if (found := clock_value(name)) is not None}


def check_clock(query: AnyQuery) -> None:
    """Refuse values of the clock where they would have to be the same in every epoch.

    Raises:
        UnsupportedQuery: a key, a window, an ordered event, or a join of streams depends on the clock.
    """
    if isinstance(query, Selection) or not clock_parameters([query]):
        return
    fixed = isinstance(query, Join) or isinstance(query.window, Pattern | Processed)
    if isinstance(query, Query):
        parts = [*query.keys, *query.of_event, *(() if query.deduplicated is None else query.deduplicated.columns)]
        fixed = fixed or any(parameters_of(part) for part in parts)
    if fixed:
        raise UnsupportedQuery(
            f"{query.name} uses the clock in a key, a pattern, a processor, the row of an event or a join of streams.",
            CLOCK_CURE,
        )
