"""The naive twin of row patterns: matches the events of each key one after the other, when all events are known."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from kit.naive.expressions import Raised, Row, Value, evaluate, order
from kit.naive.queries import windows
from kit.naive.queries.windows import Batch, Result
from kit.naive.row_patterns import Match, matches
from millpond.model.expressions import Expression
from millpond.model.patterns.grammar import parse, variables_of
from millpond.model.patterns.variables import FIRST, MATCHED, PREVIOUS, reads_first
from millpond.model.query import Query
from millpond.model.windows import Interval, Pattern
from millpond.plan.groups.build import of_event_alone


class Found(NamedTuple):
    """A match: its key and its events, each with the variable that it was matched as."""

    keys: tuple[Value, ...]
    events: list[tuple[Row, str]]


def answer(query: Query, epochs: Sequence[Batch]) -> list[Result]:
    """The rows of all matches, after the last event. Events of one key and time are not supported.

    Raises:
        Raised: HAVING or an output expression raises.
        OverflowedError: an integer sum left its type.
    """
    cells = []
    for found in _found(query, epochs):
        arguments: list[list[Value]] = [[] for _ in query.aggregates]
        for place, (row, variable) in enumerate(found.events):
            matched = {**row, **{f"{MATCHED}{name}": name == variable for name in _names(query)}}
            for i, wanted in enumerate(query.aggregates):
                if wanted.filter is None or evaluate(wanted.filter, matched) is True:
                    given = tuple(evaluate(argument, row) for argument in wanted.arguments)
                    single: Value = given if len(given) > 1 else given[0] if given else True
                    arguments[i].append((place, *given) if wanted.logged else single)
        window = Interval(found.events[0][0][query.event_time], found.events[-1][0][query.event_time])
        cells.append(windows._Cell(window, found.keys, tuple(arguments)))
    return list(windows._emit(query, cells))


def _found(query: Query, epochs: Sequence[Batch]) -> list[Found]:
    pattern = query.window
    assert isinstance(pattern, Pattern)
    alone = replace(query, aggregates=tuple(map(of_event_alone, query.aggregates)))
    by_key: dict[object, tuple[tuple[Value, ...], list[Row]]] = {}
    for batch, mark in zip(epochs, windows.watermarks(query, epochs), strict=False):
        for row in batch:
            judged = windows._judge(alone, row, mark)
            if judged.fate == "applied":
                identity = tuple(None if value is None else order(value) for value in judged.keys)
                by_key.setdefault(identity, (judged.keys, []))[1].append(row)
    found = []
    for keys, rows in by_key.values():
        rows.sort(key=lambda row: row[query.event_time])
        times = [row[query.event_time] for row in rows]
        held = [_met(query, pattern, row, before) for row, before in zip(rows, [None, *rows], strict=False)]
        tree = parse(pattern.text)
        relative = partial(_relative, query, pattern, rows)
        within, overlapping = pattern.within_us, pattern.overlapping
        for match in matches(tree, held, times, within, overlapping=overlapping, relative=relative):
            found.append(Found(keys, _events(rows, match)))
    return found


def _events(rows: Sequence[Row], match: Match) -> list[tuple[Row, str]]:
    return list(zip(rows[match.start :], match.variables, strict=False))


def _met(query: Query, pattern: Pattern, row: Row, before: Row | None) -> set[str]:
    """The variables whose conditions an event meets."""
    near = before is not None and row[query.event_time] - before[query.event_time] <= pattern.within_us
    previous = {
        f"{PREVIOUS}{i}": evaluate(value, before) if near and before is not None else None
        for i, value in enumerate(pattern.previous)
    }
    defined = {one.name: one.condition for one in pattern.variables}
    names = [name for name in _names(query) if name not in defined or not reads_first(defined[name])]
    return {name for name in names if name not in defined or _is_met(defined[name], {**row, **previous})}


def _relative(query: Query, pattern: Pattern, rows: Sequence[Row], start: int, at: int) -> set[str]:
    """The variables whose conditions an event meets in a match that begins with another event."""
    near = at > 0 and rows[at][query.event_time] - rows[at - 1][query.event_time] <= pattern.within_us
    others = {f"{FIRST}{i}": evaluate(value, rows[start]) for i, value in enumerate(pattern.first)}
    for i, value in enumerate(pattern.previous):
        others[f"{PREVIOUS}{i}"] = evaluate(value, rows[at - 1]) if near else None
    conditions = {one.name: one.condition for one in pattern.variables if reads_first(one.condition)}
    return {name for name, one in conditions.items() if _is_met(one, {**rows[at], **others})}


def _is_met(condition: Expression, row: Row) -> bool:
    """Whether an event meets a condition; one that fails because of another event is not met."""
    try:
        return evaluate(condition, row) is True
    except Raised:
        return False


def _names(query: Query) -> tuple[str, ...]:
    assert isinstance(query.window, Pattern)
    return variables_of(parse(query.window.text))
