"""The comparison in the soak: missing, repeated, wrong and uncounted rows and events are found."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import soak

from kit.servers.kafka_server import Message
from millpond.control.pond.event_totals import EventCounts

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def event(number: int, second: float, cents: int, kind: str = "card") -> Message:
    ts = (START + timedelta(seconds=second)).isoformat()
    row = {"id": number, "sent": 0, "ts": ts, "customer": "c", "cents": cents, "kind": kind}
    return Message(0, number, None, json.dumps(row).encode(), {}, None)


def answer(query: str, **row: Any) -> Message:
    return Message(0, 0, None, json.dumps(row).encode(), {"query": query.encode()}, None)


EVENTS = [
    event(0, 1, 100), event(1, 9, 950), event(2, 3, 1), Message(0, 3, None, b"oops", {}, None),
    event(4, 15, 2, "noise"), event(5, 10, 7), event(6, 10.1, 30),
]  # fmt: skip
"""Those at 3 and 10 seconds are at or below the largest time before them, minus five."""
SPEND = answer("spend", customer="c", s="2026-01-01T00:00:00.000Z", n=2, total=1050)
NEXT = answer("spend", customer="c", s="2026-01-01T00:00:10.000Z", n=1, total=30)
BIG = answer("big", id=1)
NOBODY = answer("spend", customer="d", s="2026-01-01T00:00:10.000Z", n=1, total=30)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([SPEND, NEXT, BIG], []),
        ([SPEND, BIG], ["1 rows of spend differ"]),
        ([SPEND, NEXT, NEXT, BIG], ["1 rows of spend came more than once"]),
        ([SPEND, NEXT, NOBODY, BIG], ["1 rows of spend differ"]),
        ([SPEND, NEXT], ["of big 1 rows are missing, 0 came again"]),
        ([SPEND, NEXT, BIG, BIG], ["of big 0 rows are missing, 1 came again"]),
    ],
)
def test_a_row_that_is_not_there_once_is_found(answers: list[Message], words: list[str]) -> None:
    found = [*soak._differences(EVENTS, answers)]
    assert len(found) == len(words) and all(text.startswith(start) for text, start in zip(found, words, strict=True))


def test_events_that_are_not_accounted_for_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "kinds", lambda _: [])
    right = EventCounts(read=7, applied=3, late=2, dead=1, filtered=1)
    counts = {"spend": right, "big": EventCounts(6, 6)}
    found = [*soak._unconserved(counts, EVENTS, Path("nowhere"))]
    assert found[0].startswith("big counts") and found[1] == "there are 0 dead letters of 1 broken events"


def test_growth_is_by_the_minute() -> None:
    assert soak._slope([(float(second), 2 * second) for second in range(60)]) == 120.0
    assert soak._slope([(0.0, 1)]) is None
