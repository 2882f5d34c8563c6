"""Reads the conditions and measures of MATCH_RECOGNIZE, and writes them in the SQL of Spark.

A condition may read the event itself, as `x` or `A.x`, the previous event, as `PREV(x)`, and the first event of the
match, as `FIRST(x)`, or `A.x` if A is matched as that event only. A measure is an aggregate
of the events of the match, or of those of one variable: `SUM(A.x)` becomes `SUM(x) FILTER (WHERE …)`.
"""

from __future__ import annotations

from collections.abc import Sequence

from millpond.errors import QuerySyntaxError, QueryTypeError, UnsupportedQuery
from millpond.model.patterns.grammar import Element, head, variables_of
from millpond.spark.analysis.grouping.row_patterns import first_sql, matched_sql, previous_sql
from millpond.spark.catalyst.allow_list import AGGREGATES
from millpond.spark.frontend.sql_tokens import (
    Replacement,
    Token,
    closing,
    listed,
    position_of,
    replaced,
    source_of,
)

_PREVIOUS, _FIRST = "PREV", "FIRST"
_OF_OTHERS = ("NEXT", "LAST", "COUNT", "SUM", "AVG", "MIN", "MAX", "CLASSIFIER", "MATCH_NUMBER")
"""What the standard allows in conditions, and this version does not."""
_UNKNOWN = (_PREVIOUS, "NEXT", "CLASSIFIER", "MATCH_NUMBER")
"""What the standard allows in measures, and this version does not."""
_BOUNDS = {"FIRST": "start", "LAST": "end"}
"""The bounds of a match are the times of its first and last event; queries over its rows can use them as event time."""
_CURE = (
    "A condition reads the event itself, the previous event by PREV(x), and the first event of the match by FIRST(x), "
    "or by A.x if the pattern begins with one A."
)


class PatternTerms:
    """The terms of one clause; `text` is what it was read from, `time` the column of ORDER BY, `pattern` the pattern.
    """

    def __init__(self, text: str, time: str, pattern: Element) -> None:
        self._text, self._time, self._names, self._head = text, time, variables_of(pattern), head(pattern)

    def condition(self, tokens: Sequence[Token]) -> tuple[str, str]:
        """A variable and its condition.

        Raises:
            QuerySyntaxError, QueryTypeError, UnsupportedQuery: it is wrong, or this version does not support it.
        """
        if len(tokens) < 3 or tokens[0].kind != "name" or tokens[1].word != "AS":
            raise QuerySyntaxError(f"DEFINE has `{self._source(tokens)}`.", "Write DEFINE A AS amount < 10, B AS ….")
        name = tokens[0].word
        if name not in self._names:
            raise QueryTypeError(
                f"DEFINE has a condition for {name}, which is no variable of the pattern.",
                f"Define {' or '.join(self._names)}, or leave the condition out.",
            )
        return name, replaced(self._text, tokens[2:], lambda some: self._of_event(name, some))

    def measure(self, tokens: Sequence[Token], window: str) -> str:
        """A measure with its name; `window` is the window of the match, as SQL.

        Raises:
            QuerySyntaxError, UnsupportedQuery: it is wrong, or this version does not support it.
        """
        if len(tokens) < 3 or tokens[-2].word != "AS" or tokens[-1].kind != "name":
            raise QuerySyntaxError(f"MEASURES has `{self._source(tokens)}`, without a name.", "Write … AS name.")
        if tokens[0].word == "FINAL":
            tokens = tokens[1:]
        value = replaced(self._text, tokens[:-2], lambda some: self._of_match(some, window))
        return f"{value} AS {tokens[-1].text}"

    def _of_event(self, name: str, tokens: Sequence[Token], owner: str | None = None) -> Replacement | None:
        """What is put in place of the first tokens of a part of the condition of a variable.

        `owner`: the variable whose columns are those of the event, if it is another one, or "" for none.
        """
        owner = name if owner is None else owner
        first, where = tokens[0], f"at {position_of(self._text, tokens[0])}"
        called = len(tokens) > 1 and tokens[1].text == "("
        if called and first.word in (_PREVIOUS, _FIRST):
            close, is_first = closing(tokens, 1), first.word == _FIRST
            given = [] if close is None else listed(tokens[2:close])
            if close is None or not given or [self._source(one) for one in given[1:]] not in ([], ["1"][is_first:]):
                raise UnsupportedQuery(f"The condition of {name} reads an event further away {where}.", _CURE)
            read = (self._head or "") if is_first else owner
            value = replaced(self._text, given[0], lambda some: self._of_event(name, some, read))
            return (first_sql if is_first else previous_sql)(self._time, f"({value})"), close + 1
        of_variable = self._is_variable(tokens)
        if of_variable and not called and first.word == self._head != owner:
            return first_sql(self._time, tokens[2].text), 3
        if first.word in _OF_OTHERS if called else of_variable and first.word != owner:
            raise UnsupportedQuery(
                f"The condition of {name} reads other events of the match {where}, which is not supported.",
                _CURE,
            )
        return ("", 2) if of_variable else None

    def _of_match(self, tokens: Sequence[Token], window: str) -> Replacement | None:
        first, close = tokens[0], None
        if len(tokens) > 1 and tokens[1].text == "(":
            if first.word in (*_UNKNOWN, "RUNNING"):
                raise UnsupportedQuery(
                    f"A measure has {first.word} at {position_of(self._text, first)}, which is not supported.",
                    "Use FIRST, LAST and other aggregates of columns, such as LAST(B.amount).",
                )
            close = closing(tokens, 1) if first.text.lower() in AGGREGATES else None
        if close is not None:
            bound = _BOUNDS.get(first.word) if self._source(tokens[2:close]) == self._time else None
            value = self._aggregate(tokens[: close + 1]) if bound is None else f"{window}.{bound}"
            return value, close + 1
        if self._is_variable(tokens):
            return f"last({tokens[2].text}) FILTER (WHERE {self._matched(first.word)})", 3
        return None

    def _aggregate(self, tokens: Sequence[Token]) -> str:
        inside = tokens[2:-1]
        names = {inside[i].word for i in range(len(inside)) if self._is_variable(inside[i:])}
        source = self._source(tokens)
        if len(names) > 1:
            raise UnsupportedQuery(
                f"The measure {source} is over events of {' and '.join(sorted(names))}.",
                "Use one variable in each aggregate.",
            )
        if tokens[0].word in ("FIRST", "LAST") and len(listed(inside)) > 1:
            raise UnsupportedQuery(
                f"The measure {source} has an offset, which is not supported.",
                f"Leave out the offset: {tokens[0].text}({self._source(listed(inside)[0])}).",
            )
        if not names:
            return source
        plain = replaced(self._text, inside, lambda some: ("", 2) if self._is_variable(some) else None)
        return f"{tokens[0].text}({plain}) FILTER (WHERE {self._matched(names.pop())})"

    def _matched(self, name: str) -> str:
        return matched_sql(self._time, self._names.index(name))

    def _is_variable(self, tokens: Sequence[Token]) -> bool:
        """Whether tokens begin with a column of a variable, such as `A.amount`, or with `A.*`."""
        return tokens[0].word in self._names and len(tokens) > 2 and tokens[1].text == "."

    def _source(self, tokens: Sequence[Token]) -> str:
        return source_of(self._text, tokens)
