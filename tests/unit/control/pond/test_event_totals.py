"""The fates of events since a pond was opened."""

from __future__ import annotations

from millpond.control.pond.event_totals import EventCounts, EventTotals
from millpond.log.records import EpochRecord


def epoch(n: int, late: int) -> EpochRecord:
    counts = {"q": {"read": 9, "applied": 9 - late, "late": late, "rows": 3}, "*": {"events": 9}}
    fates = {"q": {"0": [4, 4, 0, 0, 0], "1": [5, 5 - late, late, 0, 0]}}
    return EpochRecord(
        n=n, writer="w", prev="", at=0, spark_query="", batch=n, start={}, end={}, counts=counts, fates=fates
    )


def test_a_tally_adds_epochs_up_and_names_the_worst() -> None:
    tally = EventTotals()
    assert tally.losses_line() == ""
    tally.add(epoch(1, 0))
    assert tally.losses_line() == ""
    tally.add(epoch(2, 3))
    assert tally.losses_line() == "late 3  dead 0  most of q in partition 1"
    whole, partitions = tally.counts()["q"]
    assert whole == EventCounts(18, 15, 3, 0, 0)
    assert partitions == {"0": EventCounts(8, 8), "1": EventCounts(10, 7, 3)}
