"""What a terminal shows of a pond."""

from __future__ import annotations

from msgspec.structs import replace
from rich.console import Console

from millpond.service.top import picture
from millpond.service.wire import Status

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
