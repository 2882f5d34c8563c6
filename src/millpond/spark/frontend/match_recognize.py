"""Rewrites MATCH_RECOGNIZE, a clause that Spark's parser does not have, as a subquery with a window of its own.

`FROM tx MATCH_RECOGNIZE (…) AS m` becomes `FROM (SELECT keys, measures FROM tx GROUP BY keys, window) AS m`. The other
lines of the text stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millpond.errors import QuerySyntaxError, QueryTypeError, UnsupportedQuery
from millpond.model.patterns.grammar import parse
from millpond.spark.analysis.grouping.row_patterns import PatternText, window_sql
from millpond.spark.analysis.windows import check_length
from millpond.spark.catalyst.private_names import Catalyst
from millpond.spark.frontend.pattern_terms import PatternTerms
from millpond.spark.frontend.sql_tokens import (
    Token,
    closing,
    listed,
    position_of,
    source_of,
    starts_with,
    tokens_of,
)

_NAME = "MATCH_RECOGNIZE"
_HEADS = (
    "PARTITION BY", "ORDER BY", "MEASURES", "ONE ROW PER MATCH", "AFTER MATCH", "PATTERN", "WITHIN", "DEFINE",
)  # fmt: skip
"""The parts of the clause, in their order."""
_OTHER_HEADS = ("ALL ROWS PER MATCH", "SUBSET", "SHOW EMPTY MATCHES", "OMIT EMPTY MATCHES", "WITH UNMATCHED ROWS")
_SKIPS = {"SKIP PAST LAST ROW": False, "SKIP TO NEXT ROW": True}
_ORDER = f"Its parts are, in this order: {', '.join(_HEADS)}."


class Clause(NamedTuple):
    """A clause of a text: where it begins and ends, what is in its parentheses, and where its relation begins."""

    start: int
    end: int
    inside: list[Token]
    relation: int


def blanked(text: str) -> str:
    """The text with blanks in place of its clauses, so that Spark can parse the statement around them."""
    for clause in _clauses(text):
        hidden = re.sub(r"[^\n]", " ", text[clause.start : clause.end])
        text = text[: clause.start] + hidden + text[clause.end :]
    return text


def rewritten(catalyst: Catalyst, text: str) -> str:
    """The text with a subquery in place of each clause.

    Raises:
        QuerySyntaxError, QueryTypeError, UnsupportedQuery: a clause is wrong, or this version does not support it.
    """
    while found := _clauses(text):
        clause = found[0]
        made = _Reader(catalyst, text, clause.inside)
        relation = text[clause.relation : clause.start]
        select = f" (SELECT {', '.join((*made.keys, *made.measures))} FROM{relation}"
        select += f"GROUP BY {', '.join((*made.keys, made.window))}"
        lines = text.count("\n", clause.relation, clause.end) - select.count("\n")
        text = f"{text[: clause.relation]}{select}{chr(10) * lines}){text[clause.end :]}"
    return text


def match_recognize(
    frame: DataFrame, *, order_by: str, pattern: str, within: str, measures: Mapping[str, str],
    define: Mapping[str, str] | None = None, partition_by: Sequence[str] = (),
    after_match: str = "skip past last row",
) -> DataFrame:  # fmt: skip
    """The matches of a row pattern in a streaming DataFrame, for a pond's query; SQL has the clause MATCH_RECOGNIZE.

    `define` has the condition of each variable, and `measures` the columns of a match, as SQL. `within` is the most
    time between the first and the last event of a match. A DataFrame with a pattern raises if Spark itself runs it.

    Raises:
        QuerySyntaxError, QueryTypeError, UnsupportedQuery: an argument is wrong, or is not supported by this version.
    """
    shown = [f"{value} AS `{name.replace('`', '``')}`" for name, value in measures.items()]
    defined = [f"{name} AS {value}" for name, value in (define or {}).items()]
    bodies = (", ".join(partition_by), order_by, ", ".join(shown), "", after_match, f"({pattern})", f"'{within}'")
    parts = [f"{head} {body}" for head, body in zip(_HEADS, (*bodies, ", ".join(defined)), strict=True) if body]
    text = "\n".join(parts)
    made = _Reader(Catalyst(frame.sparkSession), text, tokens_of(text))
    grouped = frame.groupBy(*(F.expr(key) for key in made.keys), F.expr(made.window).alias("__match"))
    return grouped.agg(*map(F.expr, made.measures)).drop("__match")


def _clauses(text: str) -> list[Clause]:
    """The clauses of a text, the last one first.

    Raises:
        QuerySyntaxError: a parenthesis is never closed, or a clause does not follow FROM and one relation.
    """
    if _NAME not in text.upper():
        return []
    tokens, found = tokens_of(text), list[Clause]()
    for i, token in enumerate(tokens[:-1]):
        if token.word == _NAME and tokens[i + 1].text == "(":
            close = closing(tokens, i + 1)
            if close is None:
                raise QuerySyntaxError(f"{_NAME} at {position_of(text, token)} is never closed.", "Add ).")
            relation = _relation(text, tokens, i)
            found.append(Clause(token.start, tokens[close].end, tokens[i + 2 : close], relation))
    return found[::-1]


def _relation(text: str, tokens: Sequence[Token], at: int) -> int:
    """Where the relation begins that the clause at a place is about: after FROM."""
    depth = 0
    for token in reversed(tokens[:at]):
        depth += (token.text == ")") - (token.text == "(")
        if depth == 0 and token.word == "FROM":
            return token.end
        if depth < 0 or (depth == 0 and (token.text == "," or token.word == "JOIN")):
            break
    raise QuerySyntaxError(
        f"{_NAME} at {position_of(text, tokens[at])} does not follow FROM and one relation.",
        f"Write FROM tx {_NAME} (…), and join its rows in a query of their own.",
    )


class _Reader:
    """The parts of one clause as SQL of Spark: its keys, measures and window."""

    def __init__(self, catalyst: Catalyst, text: str, inside: Sequence[Token]) -> None:
        self._text = text
        parts = self._parts(inside)
        time = self._ordered(parts["ORDER BY"])
        pattern = parts["PATTERN"]
        if len(pattern) < 3 or pattern[0].text != "(" or closing(pattern, 0) != len(pattern) - 1:
            raise QuerySyntaxError(f"PATTERN {self._source(pattern)} is not in parentheses.", "Write PATTERN (A B+).")
        written = " ".join(self._source(pattern[1:-1]).split())
        terms = PatternTerms(text, time, parse(written))
        if "WITHIN" not in parts:
            raise UnsupportedQuery(
                f"The pattern {written} has no WITHIN, so its events would be stored indefinitely.",
                "Write WITHIN INTERVAL 10 MINUTES after PATTERN (…).",
            )
        defined = [terms.condition(one) for one in listed(parts.get("DEFINE", []))]
        if twice := [name for i, (name, _) in enumerate(defined) if name in dict(defined[:i])]:
            raise QueryTypeError(f"DEFINE has two conditions for {twice[0]}.", "Leave one out, or join them by AND.")
        within_us, overlapping = self._within(catalyst, parts["WITHIN"]), self._overlapping(parts.get("AFTER MATCH"))
        found = PatternText(written, within_us, overlapping, tuple(name for name, _ in defined))
        self.window = window_sql(found, time, [condition for _, condition in defined])
        self.keys = [self._source(one) for one in listed(parts.get("PARTITION BY", []))]
        self.measures = [terms.measure(one, self.window) for one in listed(parts.get("MEASURES", []))]
        if not self.measures:
            raise QuerySyntaxError(f"{_NAME} has no MEASURES.", "Write MEASURES COUNT(*) AS events.")

    def _parts(self, inside: Sequence[Token]) -> dict[str, list[Token]]:
        """The tokens of each part."""
        parts, depth, head = dict[str, list[Token]](), 0, ""
        skip = 0
        for at, token in enumerate(inside):
            depth += (token.text == "(") - (token.text == ")")
            if at < skip:
                continue
            later = _HEADS[_HEADS.index(head) + 1 :] if head else _HEADS
            next_head = next((one for one in later if depth == 0 and starts_with(inside, at, one)), None)
            if depth == 0 and (other := next((one for one in _OTHER_HEADS if starts_with(inside, at, one)), None)):
                raise UnsupportedQuery(f"{_NAME} has {other}, which is not supported.", "Leave it out.")
            if next_head is not None:
                head, skip = next_head, at + len(next_head.split())
                parts[head] = []
            elif not head:
                raise QuerySyntaxError(f"{_NAME} begins with {token.text}.", _ORDER)
            else:
                parts[head].append(token)
        for needed in ("ORDER BY", "PATTERN"):
            if needed not in parts:
                raise QuerySyntaxError(f"{_NAME} has no {needed}, or has it in another place.", _ORDER)
        if more := parts.get("ONE ROW PER MATCH"):
            raise QuerySyntaxError(f"{_NAME} has {self._source(more)} after ONE ROW PER MATCH.", _ORDER)
        return parts

    def _ordered(self, tokens: list[Token]) -> str:
        by = tokens[:-1] if tokens and tokens[-1].word == "ASC" else tokens
        if not by or any(token.kind != "name" for token in by[::2]) or any(token.text != "." for token in by[1::2]):
            raise UnsupportedQuery(
                f"{_NAME} is ordered by {self._source(tokens) or 'nothing'}.",
                "Order by the event time alone, upwards; events of equal time have the order of the source.",
            )
        return self._source(by)

    def _overlapping(self, tokens: list[Token] | None) -> bool:
        words = "SKIP PAST LAST ROW" if tokens is None else " ".join(token.word for token in tokens)
        if words not in _SKIPS:
            known = " or ".join(_SKIPS)
            raise UnsupportedQuery(f"AFTER MATCH {words} is not supported.", f"Write AFTER MATCH {known}.")
        return _SKIPS[words]

    def _within(self, catalyst: Catalyst, tokens: Sequence[Token]) -> int:
        plain = " ".join(token.text.strip("'\"") for token in tokens if token.word != "INTERVAL")
        try:
            months, micros = catalyst.interval_us(plain)
        except (Py4JJavaError, PySparkException) as error:
            raise QueryTypeError(
                f"WITHIN {self._source(tokens)} is no interval.", "Write WITHIN INTERVAL 10 MINUTES."
            ) from error
        if months:
            raise QueryTypeError(f"WITHIN {self._source(tokens)} counts months, which differ in length.", "Use days.")
        check_length(micros)
        return micros

    def _source(self, tokens: Sequence[Token]) -> str:
        return source_of(self._text, tokens)
