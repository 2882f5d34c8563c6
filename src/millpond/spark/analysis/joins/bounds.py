"""Derives bounds on the distance of two event times, or an equal window, from the condition of a join."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from millpond.model.join import LEFT, RIGHT
from millpond.spark.catalyst.data_types import counts_months
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, children, kind_of, type_of

_DAY_US = 86_400_000_000
_SLACK_US = 26 * 3_600_000_000
"""The most by which a calendar day can differ from 24 hours: offsets of time zones lie between -12 and +14 hours."""
_MONTH_US, _MONTH_SLACK_US = 59 * _DAY_US // 2, 3 * _DAY_US // 2
"""The length of a month, and the most by which one can differ from it: n months have from 28 n to 31 n days."""
_FIXED_ZONE = re.compile(r"(Etc/)?(UTC|GMT|UT|Z)|(UTC|GMT|UT)?[+-]\d\d?(:?\d\d)?")
_UNITS = {"MICROSECOND": 1, "MILLISECOND": 1_000, "SECOND": 1_000_000, "MINUTE": 60_000_000, "HOUR": 3_600_000_000}
_ORDER = ("GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual", "EqualTo")

SideOfTime = Callable[[JavaObject], tuple[str, int] | None]
"""Returns the side whose event time a column gives, and by how many µs the column is later; None for other columns."""
_TIMES = ("AttributeReference", "GetStructField", "PreciseTimestampConversion")


class _Linear(NamedTuple):
    """A linear expression: `left` times the left event time, plus `right` times the right one, plus a number of µs.

    The number of µs may be wrong by at most `slack_us`.
    """

    left: int = 0
    right: int = 0
    us: int = 0
    slack_us: int = 0

    def plus(self, other: _Linear, sign: int = 1) -> _Linear:
        """The sum of two expressions; their difference for `sign` -1."""
        return _Linear(
            self.left + sign * other.left, self.right + sign * other.right, self.us + sign * other.us,
            self.slack_us + other.slack_us,
        )  # fmt: skip


class Bound(NamedTuple):
    """Bounds of the right event time minus the left one: at least `lower_us`, at most `upper_us`; None means no bound.

    `exact` says that the bounds are equivalent to the condition.
    """

    lower_us: int | None
    upper_us: int | None
    exact: bool


def bound_of(
    catalyst: Catalyst, condition: JavaObject, side_of: SideOfTime, defined: Callable[[JavaObject], JavaObject]
) -> Bound | None:
    """The bound that a comparison sets on the two event times; None if it does not compare exactly these two.

    `defined` returns the expression that a column stands for. Spark computes `x + y` of `x + y BETWEEN …` as a column.
    """
    kind = kind_of(condition)
    if kind not in _ORDER:
        return None
    reader = _LinearReader(catalyst, side_of, defined)
    first, second = map(reader.linear, children(condition))
    if first is None or second is None:
        return None
    if kind.startswith("LessThan"):
        first, second = second, first
    whole = first.plus(second, -1)  # the comparison says that this is at least 0, or above 0
    if (whole.left, whole.right) not in ((1, -1), (-1, 1)):
        return None
    us = whole.us - (kind in ("GreaterThan", "LessThan"))
    exact = not whole.slack_us
    if kind == "EqualTo":
        difference = us if whole.left == 1 else -us
        return Bound(difference - whole.slack_us, difference + whole.slack_us, exact)
    if whole.left == 1:
        return Bound(None, us + whole.slack_us, exact)
    return Bound(-us - whole.slack_us, None, exact)


class _LinearReader(NamedTuple):
    """Reads times and intervals as linear expressions; for the arguments see `bound_of`."""

    catalyst: Catalyst
    side_of: SideOfTime
    defined: Callable[[JavaObject], JavaObject]

    def linear(self, node: JavaObject) -> _Linear | None:
        """The linear expression that a node is; None if it is none."""
        kind = kind_of(node)
        if kind in _TIMES:
            found = self.side_of(node)
            if found is not None:
                return _Linear(int(found[0] == LEFT), int(found[0] == RIGHT), found[1])
            made = self.defined(node)
            return None if made is node else self.linear(made)
        if kind in ("Cast", "Alias", "KnownNullable") and not node.foldable():
            inner = children(node)[0]
            same = {type_of(node), type_of(inner)} == {"timestamp"}
            return self.linear(inner) if same else None
        if kind == "TimestampAddInterval":
            return self._plus_interval(*children(node))
        if kind == "TimestampAddYMInterval":
            return self._plus_months(*children(node))
        if kind == "TimestampAdd":
            start = self.linear(node.timestamp())
            unit = _UNITS.get(str(node.unit()).upper())
            if start is None or unit is None or not node.quantity().foldable():
                return None
            quantity = self.catalyst.constant(node.quantity())
            return start._replace(us=start.us + quantity * unit) if isinstance(quantity, int) else None
        if kind == "SubtractTimestamps":
            first, second = map(self.linear, children(node))
            # This is a difference of wall clocks, which may have been set forward or back between the two times.
            if first is None or second is None:
                return None
            return first.plus(second, -1).plus(_Linear(slack_us=_slack_of_zone_us(self.catalyst)))
        if type_of(node).startswith("interval") and node.foldable():
            length = _interval_us(self.catalyst, node)
            return None if length is None else _Linear(us=length)
        return None

    def _plus_months(self, time: JavaObject, interval: JavaObject) -> _Linear | None:
        start = self.linear(time)
        months = self.catalyst.constant(interval) if interval.foldable() else None
        if start is None or not isinstance(months, int):
            return None
        slack_us = abs(months) * _MONTH_SLACK_US + _slack_of_zone_us(self.catalyst)
        return start.plus(_Linear(0, 0, months * _MONTH_US, slack_us))

    def _plus_interval(self, time: JavaObject, interval: JavaObject) -> _Linear | None:
        start = self.linear(time)
        if start is None or not interval.foldable():
            return None
        us = _interval_us(self.catalyst, interval)
        if us is None:
            return None
        # Days are calendar days, which do not all have 24 hours.
        return start.plus(_Linear(0, 0, us, _slack_of_zone_us(self.catalyst) if abs(us) >= _DAY_US else 0))


def _interval_us(catalyst: Catalyst, interval: JavaObject) -> int | None:
    """The length of a constant interval of days and shorter units in µs; None if it counts months."""
    if type_of(interval) == "interval":
        months, days, us = catalyst.fixed_interval(interval)
        return None if months else days * _DAY_US + us
    if counts_months(type_of(interval)):
        return None
    value = catalyst.constant(interval)
    return value if isinstance(value, int) else None


def _slack_of_zone_us(catalyst: Catalyst) -> int:
    """The slack in µs of calendar days in the session's time zone."""
    zone = catalyst.spark.conf.get("spark.sql.session.timeZone") or ""
    return 0 if _FIXED_ZONE.fullmatch(zone) else _SLACK_US
