"""The naive twin of a processor: one key after the other, event by event, with timers and time to live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

Step = Callable[..., tuple[list[dict[str, Any]], Any]]


def naive_rows(
    events: Sequence[tuple[datetime, tuple[Any, ...]]], event: Step, timer: Step | None, ttl: timedelta | None,
    until: datetime,
) -> list[tuple[datetime, dict[str, Any]]]:  # fmt: skip
    """The rows of one key with their times; `events` are in order, `event` and `timer` return rows and the new state.

    A state is None or a dictionary, whose `timer` is the time of the next call of `timer`.
    """
    found: list[tuple[datetime, dict[str, Any]]] = []
    state: dict[str, Any] | None = None
    touched = datetime.min

    def fire(before: datetime) -> None:
        nonlocal state, touched
        while timer is not None and state is not None and state["timer"] is not None and state["timer"] < before:
            at = state["timer"]
            if ttl is not None and at - touched >= ttl:
                break
            made, state = timer(state | {"timer": None}, at)
            found.extend((at, row) for row in made)
            touched = at

    for time, arguments in events:
        fire(time)
        if state is not None and ttl is not None and time - touched >= ttl:
            state = None
        made, state = event(state, time, *arguments)
        found.extend((time, row) for row in made)
        touched = time
    fire(until + timedelta(microseconds=1))
    return found
