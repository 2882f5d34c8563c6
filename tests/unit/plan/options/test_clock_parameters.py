"""Names of the clock's values say what they are, and where queries may use them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import UnsupportedQuery
from millpond.model.calendars.zone_offsets import DAY_US
from millpond.model.expressions import Column
from millpond.model.query import Query
from millpond.model.windows import Sliding
from millpond.plan.options.clock_parameters import ClockValue, check_clock, clock_value, clock_values

SHIFTS = st.integers(-40 * DAY_US, 40 * DAY_US)
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "+05:30"])


@given(SHIFTS, ZONES, st.sampled_from([0, 1, 1000]), st.booleans(), st.integers(-3, 3), st.integers(0, 1 << 51))
def test_a_name_says_the_value(shift: int, zone: str, unit: int, date: bool, days: int, instant: int) -> None:
    value = ClockValue(shift, zone, 0 if date else unit, date, days if date else 0)
    parameter = value.parameter
    found = clock_value(parameter.name)
    assert found is not None and found.at(instant) == value.at(instant) and found.parameter == parameter
    assert value.at(instant).type == parameter.type
    assert clock_values([parameter.name, "limit"], instant) == {parameter.name: value.at(instant)}


def test_parameters_of_the_user_are_no_values_of_the_clock() -> None:
    assert clock_value("now") is None and clock_value("limit") is None


def test_a_key_is_the_same_in_every_epoch() -> None:
    key = ClockValue(zone="UTC", is_date=True).parameter
    with pytest.raises(UnsupportedQuery, match="clock in a key"):
        check_clock(Query("q", "s", "ts", 0, Sliding(10, 10), (key, Column("k", "string")), (), ()))
