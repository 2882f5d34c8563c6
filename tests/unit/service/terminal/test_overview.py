"""The overview of a pond on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from rich.console import Console

from millpond.service.api.messages import Failure, FollowerShown, QueryShown, SourceShown, Status
from millpond.service.terminal.overview import picture

STATUS = Status("leader", "p1", 9, 8, queries=3, instances=2)


def shown(status: Status, queries: Sequence[QueryShown] = (), width: int = 100) -> str:
    console = Console(width=width)
    with console.capture() as text:
        console.print(picture(status, queries))
    return text.get()


def test_migrating_state_is_shown() -> None:
    at_rest = next(line for line in shown(STATUS).splitlines() if "instances" in line)
    assert at_rest.split() == ["instances", "2"]
    assert "2, 1,312 buckets migrate" in shown(replace(STATUS, buckets_moving=1312))
    assert "1,312 buckets migrate, about 8 seconds left" in shown(
        replace(STATUS, buckets_moving=1312, moved_in_s=8.2)
    )
    assert "standbys        http://b" in shown(replace(STATUS, standbys=("http://b",)))
    assert "epoch           none is committed yet" in shown(replace(STATUS, epoch=-1, record=-1))
    note = "hash slots of 16 of 48 buckets are on their shards"
    assert note in shown(replace(STATUS, followers=(FollowerShown("shards", 0, note=note),)))


def test_input_that_waits_and_sinks_that_lag_are_two_things() -> None:
    sources = (SourceShown("tx", "records", 99_998), SourceShown("in", "files", 0), SourceShown("new", "files"))
    followers = FollowerShown("sink:a", 1), FollowerShown("view", 0)
    text = shown(replace(STATUS, sources=sources, followers=followers, events_per_s=1000.0))
    rows = {" ".join(line.split()) for line in text.splitlines()}
    assert {
        "source tx 99,998 records behind, about 2 minutes at this rate", "source in 0 files behind",
        "source new not known yet", "sinks and view 2, up to date",
    } <= rows  # fmt: skip
    assert "lag" not in text
    late = replace(STATUS, followers=(FollowerShown("view", 900, remaining_s=12.0),))
    assert "900 records of the log behind, about 12 seconds left" in shown(late)
    others = replace(STATUS, sources=(*sources, SourceShown("other", "records", 1)), events_per_s=1000.0)
    assert "at this rate" not in shown(others)  # the rate is that of both topics


def test_readers_of_a_stream_are_shown_and_are_no_sinks() -> None:
    reader = FollowerShown("read:tx", 0, note="parsed with Arrow in 4 of 4 epochs")
    text = shown(replace(STATUS, followers=(FollowerShown("sink:a", 0), reader)))
    rows = {" ".join(line.split()) for line in text.splitlines()}
    assert {"read:tx parsed with Arrow in 4 of 4 epochs", "sinks and view 1, up to date"} <= rows


def test_what_makes_results_incomplete_is_shown() -> None:
    problem = "[MP-OVERFLOW] Query o is quarantined"
    assert problem in shown(replace(STATUS, problems=(problem,)))
    failure = Failure("MP-SOURCE", "A record is malformed.", "Keep it apart.", 1, 0.5)
    assert "[MP-SOURCE] A record is malformed. Keep it apart. Try 2" in shown(replace(STATUS, failure=failure))


def test_a_narrow_terminal_shows_fewer_columns_and_cuts_no_number() -> None:
    counts = {
        "rows": 33_567, "late": 1_234_567, "dead": 0, "time_us": 89_400, "own_bytes": 487_123, "shared_bytes": 18_400,
    }  # fmt: skip
    one = QueryShown("fraud", "windowed", "running", 1, "", ("tx",), (), "kafka", False, None, None, counts)
    wide = shown(STATUS, [one])
    assert ["fraud", "running", "1", "33,567", "1,234,567", "0", "89.4", "487.1", "18.4", "-"] in [
        line.split() for line in wide.splitlines()
    ]
    assert "wider terminal" not in wide
    for width in (80, 60, 40):
        text = shown(STATUS, [one], width)
        assert max(len(line.rstrip()) for line in text.splitlines() if "wider" not in line) <= width
        assert "…" not in text and "33,567" in text
        row = next(line.split() for line in text.splitlines() if "33,567" in line)
        assert set(row) <= {"fraud", "running", "1", "33,567", "1,234,567", "0", "89.4", "487.1", "18.4", "-"}
    assert "earlier version until" not in wide
    assert "earlier version until" in shown(STATUS, [replace(one, earlier_until_us=20_000_000)], 160)
    # the column that is empty goes first
    assert "complete from" in shown(STATUS, [one], 70).splitlines()[-1]
