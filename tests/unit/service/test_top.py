"""What a terminal shows of a pond."""

from __future__ import annotations

from msgspec.structs import replace
from rich.console import Console

from millpond.service.top import picture
from millpond.service.wire import FollowerShown, SourceShown, Status

STATUS = Status("leader", "p1", 9, 8, queries=3, instances=2)


def shown(status: Status) -> str:
    console = Console(width=100)
    with console.capture() as text:
        console.print(picture(status, []))
    return text.get()


def test_state_on_its_way_is_told() -> None:
    at_rest = next(line for line in shown(STATUS).splitlines() if "instances" in line)
    assert at_rest.split() == ["instances", "2"]
    assert "2, state of 1,312 buckets is on its way" in shown(replace(STATUS, buckets_moving=1312))


def test_input_that_waits_and_sinks_that_lag_are_two_things() -> None:
    sources = (SourceShown("tx", "records", 99_998), SourceShown("in", "files", 0), SourceShown("new", "records"))
    text = shown(replace(STATUS, sources=sources, followers=(FollowerShown("sink:a", 1), FollowerShown("view", 0))))
    rows = {" ".join(line.split()) for line in text.splitlines()}
    assert {
        "source tx 99,998 records behind", "source in 0 files behind", "source new not known yet",
        "sinks and view 2, up to date",
    } <= rows  # fmt: skip
    assert "lag" not in text


def test_what_makes_results_incomplete_is_shown() -> None:
    problem = "[MP-OVERFLOW] Query o is quarantined"
    assert problem in shown(replace(STATUS, problems=(problem,)))
