"""Tests which columns of streams are event times."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from kit.inputs.cases import query
from millpond.spark.reading.columns_of_sources import times_of


def test_a_query_without_an_event_time_adds_none() -> None:
    timed = query(Random(1))
    assert times_of([timed]) == {timed.stream: {"ts"}}
    assert times_of([replace(timed, event_time="")]) == {timed.stream: set()}
