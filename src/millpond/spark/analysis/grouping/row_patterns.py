"""Passes row patterns through Spark's analysis, which does not know them, and reads them from an analysed plan.

A pattern is analysed as a tumbling window whose time is a CASE: the first branch has the event time and, in its
condition, the pattern as text; the conditions of further branches are those of the variables. That an event was matched
as a variable, and a value of the previous event, are analysed as comparisons of the event time with constants that no
user writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from millpond.errors import UnsupportedQuery
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Call, Column, Expression, Foreign, Literal, call, conjunction, conjuncts_of, walk
from millpond.model.patterns.grammar import parse, variables_of
from millpond.model.patterns.variables import FIRST, PREVIOUS, Variable, matched
from millpond.model.windows import Pattern
from millpond.spark.catalyst.private_names import JavaObject, children, kind_of, nodes_of, type_of

_FIRST_US = -61_940_000_000_000_000
"""The constant for the first variable of a pattern, a time in the year 7; the others follow."""
_PREVIOUS_US, _OF_FIRST_US = _FIRST_US - 1, _FIRST_US - 2
_CONSTANTS = re.compile(r"-619399999999999\d\d|-6194000000000000[012]")
_NOTE = re.compile(r"only a pond answers match_recognize ([0-9a-f]+)")


class PatternText(msgspec.Struct, frozen=True):
    """A pattern without its conditions; `variables` are the variables that have one."""

    text: str
    within_us: int
    overlapping: bool
    variables: tuple[str, ...]


class PatternNote(NamedTuple):
    """A pattern in an analysed plan: its event time, and the conditions of its variables."""

    pattern: PatternText
    time: JavaObject
    conditions: list[JavaObject]


def window_sql(pattern: PatternText, time: str, conditions: Sequence[str]) -> str:
    """The window of a pattern as SQL."""
    note = f"only a pond answers match_recognize {msgspec.json.encode(pattern).hex()}"
    branches = [f"WHEN raise_error('{note}') IS NULL THEN {time}", *(f"WHEN ({one}) THEN NULL" for one in conditions)]
    return f"window(CASE {' '.join(branches)} END, '1 day')"


def matched_sql(time: str, place: int) -> str:
    """The condition that an event was matched as the variable at `place` of the pattern's variables, as SQL."""
    return f"{time} = timestamp_micros({_FIRST_US + place}L)"


def previous_sql(time: str, value: str) -> str:
    """The value of the previous event, as SQL."""
    return f"(CASE WHEN {time} = timestamp_micros({_PREVIOUS_US}L) THEN {value} END)"


def first_sql(time: str, value: str) -> str:
    """The value of the first event of the match, as SQL."""
    return f"(CASE WHEN {time} = timestamp_micros({_OF_FIRST_US}L) THEN {value} END)"


def is_pattern(text: str) -> bool:
    """Whether the text of an analysed expression has a pattern."""
    return _NOTE.search(text) is not None


def pattern_note(expression: JavaObject, text: str) -> PatternNote:
    """The pattern in an analysed window, whose `text` has one.

    Raises:
        UnsupportedQuery: its time is not a column of type timestamp, or MATCH_RECOGNIZE did not make it.
    """
    found, case = _NOTE.search(text), _case_in(expression)
    try:
        pattern = msgspec.json.decode(bytes.fromhex("" if found is None else found[1]), type=PatternText)
    except (ValueError, msgspec.DecodeError):
        case = None
    branches = [] if case is None else children(case)
    if case is None or len(branches) != 2 + 2 * len(pattern.variables):
        raise UnsupportedQuery("A window has a text of MATCH_RECOGNIZE.", "Write MATCH_RECOGNIZE (…) after FROM.")
    time = branches[1]
    if kind_of(time) != "AttributeReference" or type_of(time) != "timestamp":
        raise UnsupportedQuery(
            "MATCH_RECOGNIZE is not ordered by one column of type timestamp.", "Write ORDER BY and the event time."
        )
    return PatternNote(pattern, time, branches[2::2])


def _case_in(expression: JavaObject) -> JavaObject | None:
    """The CASE in which a pattern is noted, if there is one."""
    cases = (node for node in nodes_of(expression) if kind_of(node) == "CaseWhen")
    return next((case for case in cases if kind_of(children(case)[0]) == "IsNull"), None)


def pattern_of(note: PatternNote, translate: Callable[[JavaObject], Expression]) -> Pattern:
    """The pattern with its conditions in the model's terms.

    Raises:
        QueryTypeError: the pattern does not parse.
        UnsupportedQuery: a value of another event is part of an expression that only Spark evaluates.
    """
    previous, first = dict[Expression, Column](), dict[Expression, Column]()
    known = {_PREVIOUS_US: (PREVIOUS, previous), _OF_FIRST_US: (FIRST, first)}
    variables = []
    for name, condition in zip(note.pattern.variables, note.conditions, strict=True):
        found = _with_others(translate(condition), known)
        if any(_has_mark(node) for part in (found, *previous, *first) for node in walk(part)):
            raise UnsupportedQuery(
                f"The condition of {name} has a value of another event inside a function that Spark evaluates.",
                "Use it in comparisons, arithmetic, CASE and functions such as abs, upper or coalesce.",
            )
        variables.append(Variable(name, found))
    parsed = note.pattern
    return Pattern(parsed.text, parsed.within_us, tuple(variables), parsed.overlapping, tuple(previous), tuple(first))


def _with_others(expression: Expression, known: Mapping[int, tuple[str, dict[Expression, Column]]]) -> Expression:
    """The expression in which values of other events are columns.

    `known`: by the constant of ours, the prefix of these columns, and the columns by their values, which are added.
    """
    if not isinstance(expression, Call):
        return expression
    constant = _constant_in(expression.args[0]) if expression.op == "case" else None
    if constant is not None and constant in known:
        prefix, columns = known[constant]
        value = expression.args[1]
        return columns.setdefault(value, Column(f"{prefix}{len(columns)}", value.type))
    return call(expression.op, tuple(_with_others(one, known) for one in expression.args), expression.type)


def with_matched(aggregate: Aggregate, pattern: Pattern | None) -> Aggregate:
    """The aggregate whose filter has the variable of the pattern as which its events must have been matched.

    Raises:
        UnsupportedQuery: the condition is not one of a filter, or the query has no pattern.
    """
    names = () if pattern is None else variables_of(parse(pattern.text))
    found = []
    for part in conjuncts_of(aggregate.filter):
        constant = _constant_in(part)
        known = constant is not None and 0 <= constant - _FIRST_US < len(names)
        found.append(matched(names[constant - _FIRST_US]) if known and constant is not None else part)
    if any(_has_mark(node) for part in (*found, *aggregate.arguments) for node in walk(part)):
        raise UnsupportedQuery("A variable of a pattern is used in an unknown way.", "Use it in MEASURES.")
    return msgspec.structs.replace(aggregate, filter=conjunction(found))


def _constant_in(condition: Expression) -> int | None:
    """The constant of ours that a condition compares with."""
    if not (isinstance(condition, Call) and condition.op == "eq"):
        return None
    return next((int(one.text or 0) for one in condition.args if isinstance(one, Literal) and _has_mark(one)), None)


def _has_mark(node: Expression) -> bool:
    if isinstance(node, Foreign):
        return _CONSTANTS.search(node.sql) is not None
    return isinstance(node, Literal) and node.type == "timestamp" and _CONSTANTS.fullmatch(node.text or "") is not None
