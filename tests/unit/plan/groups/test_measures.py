"""Every aggregate function that queries may ask for has what answers it."""

from __future__ import annotations

from millpond.model.aggregates import FUNCTIONS, LOGGED
from millpond.plan.groups.measures import NEEDS
from millpond.runtime.event_log.event_aggregates import _FUNCTIONS as OF_EVENTS


def test_each_function_is_answered_from_measures_or_from_events() -> None:
    assert set(NEEDS) == set(FUNCTIONS)
    assert set(OF_EVENTS) == {*LOGGED, "min", "max"}
