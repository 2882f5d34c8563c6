"""Unit tests of the sensor alarms: no Spark, no Java, no files; event time is moved by hand.

    pytest examples/sensor_alarms

`pond.json` is `pond.sql` compiled (`millpond compile pond.sql`); it is made again when the SQL changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from millpond.testing import Trial

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


@pytest.fixture
def pond() -> Iterator[Trial]:
    with Trial(Path(__file__).with_name("pond.sql")) as trial:
        yield trial


def readings(celsius: float, minutes: int = 5, sensor: str = "boiler") -> list[dict[str, Any]]:
    """Two readings a minute from noon on."""
    return [{"sensor": sensor, "celsius": celsius, "ts": NOON + timedelta(seconds=30 * i)} for i in range(2 * minutes)]


def test_five_hot_minutes_are_an_alarm(pond: Trial) -> None:
    pond.feed("readings", readings(80.5))
    pond.advance("readings", to=NOON + timedelta(minutes=7))  # five minutes, and two that it waits for late readings
    pond.expect(
        "too_hot",
        [{"sensor": "boiler", "w": {"start": NOON, "end": NOON + timedelta(minutes=5)}, "lowest": 80.5}],
    )


def test_one_cool_reading_is_none(pond: Trial) -> None:
    pond.feed("readings", readings(80.5)[:-1] + readings(79.9)[-1:])
    pond.drain()
    assert pond.rows("too_hot") == []


def test_too_few_readings_are_none(pond: Trial) -> None:
    pond.feed("readings", readings(95.0)[::2])
    pond.drain()
    assert pond.rows("too_hot") == []


def test_a_sensor_is_stuck_when_it_says_the_same_for_ten_readings(pond: Trial) -> None:
    pond.feed("readings", readings(21.0, 10, "hall") + readings(21.0, 4, "cellar"))
    pond.drain()
    assert [(row["sensor"], row["celsius"]) for row in pond.rows("stuck")] == [("hall", 21.0)]


def test_readings_up_to_two_minutes_late_count(pond: Trial) -> None:
    late = NOON + timedelta(minutes=9, seconds=59)
    for behind, fate in ((timedelta(seconds=119), "applied"), (timedelta(seconds=120), "late")):
        before = pond.fates("minutes")[fate]
        pond.advance("readings", to=late + behind)
        pond.feed("readings", [{"sensor": "boiler", "celsius": 50.0, "ts": late}])
        assert pond.fates("minutes")[fate] == before + 1


def test_nothing_depends_on_how_readings_arrive(pond: Trial) -> None:
    pond.assert_same_for_any_cut({"readings": readings(80.5, 30)})
