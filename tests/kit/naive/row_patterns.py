"""The naive twin of row patterns: a backtracking matcher that tries every way, the preferred one first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from millpond.model.patterns.grammar import Choice, Element, Repeat, Series, Single


class Match(NamedTuple):
    """The position of the first event, and the variable of each event."""

    start: int
    variables: tuple[str, ...]


def matches(
    element: Element, events: Sequence[set[str]], times: Sequence[int], within: int, *, overlapping: bool,
    relative: Callable[[int, int], set[str]] = lambda _start, _at: set(),
) -> list[Match]:  # fmt: skip
    """The matches among all events of a key; `events`: the variables whose conditions each event meets.

    `relative`: more of these, given the positions of the first event of a match and of the event.
    """
    found, start = [], 0
    while start < len(events):
        held = [some | relative(start, at) for at, some in enumerate(events)]
        match = first_match(element, held, times, within, start)
        if match is None:
            start += 1
            continue
        found.append(match)
        start += 1 if overlapping else len(match.variables)
    return found


def first_match(
    element: Element, events: Sequence[set[str]], times: Sequence[int], within: int, start: int
) -> Match | None:  # fmt: skip
    """The preferred match that begins at an event, if there is one."""
    near = [held for held, time in zip(events[start:], times[start:], strict=True) if time <= times[start] + within]
    variables = next(_ways(element, near, 0), None)
    return None if variables is None else Match(start, variables)


def _ways(element: Element, events: Sequence[set[str]], at: int) -> Iterator[tuple[str, ...]]:
    """All ways to match events from a position on, the preferred first, as the variables of these events."""
    if isinstance(element, Single):
        if at < len(events) and element.variable in events[at]:
            yield (element.variable,)
    elif isinstance(element, Series):
        yield from _one_by_one(element.parts, events, at)
    elif isinstance(element, Choice):
        for part in element.parts:
            yield from _ways(part, events, at)
    else:
        yield from _repeated(element, events, at, 0)


def _one_by_one(parts: Sequence[Element], events: Sequence[set[str]], at: int) -> Iterator[tuple[str, ...]]:
    if not parts:
        yield ()
        return
    for first in _ways(parts[0], events, at):
        for rest in _one_by_one(parts[1:], events, at + len(first)):
            yield first + rest


def _repeated(element: Repeat, events: Sequence[set[str]], at: int, count: int) -> Iterator[tuple[str, ...]]:
    if count >= element.least and element.reluctant:
        yield ()
    if element.most is None or count < element.most:
        for first in _ways(element.part, events, at):
            for rest in _repeated(element, events, at + len(first), count + 1):
                yield first + rest
    if count >= element.least and not element.reluctant:
        yield ()
