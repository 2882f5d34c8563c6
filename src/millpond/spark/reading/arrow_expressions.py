"""Translates expressions that the model leaves to Spark to functions over columns, for events that Arrow reads.

The queries keep these expressions as `Foreign`, so their identity does not depend on which functions exist here. Only
a part of Spark's functions has an equal one in `kernels.scalar_functions`, mostly with constants as further arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from millpond.errors import QueryError
from millpond.kernels.portable_regex import extracting, is_shared
from millpond.kernels.scalar_functions import FORMATS, TRUNCATED
from millpond.model.expressions import Call, Column, Expression, Literal, literal
from millpond.model.types import INTEGERS, is_float, is_known
from millpond.spark.analysis.expressions import Translator
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    eval_mode,
    kind_of,
    once,
    optional,
    type_of,
)

_OF_TIME = {"Hour": "hour", "Minute": "minute", "Second": "second"}
_OF_DATE = {
    "Year": "year", "Quarter": "quarter", "Month": "month", "DayOfMonth": "day", "DayOfYear": "day_of_year",
    "DayOfWeek": "day_of_week", "WeekDay": "weekday",
}  # fmt: skip
_UNITS_US = {"UnixSeconds": 1_000_000, "UnixMillis": 1_000, "UnixMicros": 1}
_FROM_UNITS = {
    "SecondsToTimestamp": "time_of_seconds", "MillisToTimestamp": "time_of_milliseconds",
    "MicrosToTimestamp": "time_of_microseconds",
}  # fmt: skip
_TRIMS = {"StringTrim": "trim", "StringTrimLeft": "trim_left", "StringTrimRight": "trim_right"}
_TOKENS = re.compile(r"y+|M+|d+|H+|m+|s+|[a-zA-Z]+|[^a-zA-Z]+")
_PLAIN = re.compile(r"[-/:. _,]+")
_FIXED_ZONE = re.compile(r"[+-]\d\d:\d\d(:\d\d)?")
_UTC = ("Z", "UTC", "GMT")
_LISTS = "array<string>"


class _NoFunction(Exception):
    """An expression has no equal function."""


def in_arrow(catalyst: Catalyst, tree: JavaObject) -> Expression | None:
    """The expression over columns whose values equal those of a Catalyst tree; None if there is none."""
    return once(tree, "_in_arrow", lambda one: _translated(catalyst, one))


def _translated(catalyst: Catalyst, tree: JavaObject) -> Expression | None:
    try:
        return _Translator(catalyst)(tree)
    except (_NoFunction, QueryError):
        return None


def _column(attribute: JavaObject) -> Expression:
    if not is_known(type_of(attribute)):
        raise _NoFunction
    return Column(str(attribute.name()), type_of(attribute))


def _uncovered(_: JavaObject) -> Expression:
    raise _NoFunction


class _Translator(Translator):
    """Translates what the model can express, and in addition the functions of `kernels.scalar_functions`."""

    def __init__(self, catalyst: Catalyst) -> None:
        super().__init__(catalyst, _column, _uncovered, rounding=True)
        self._rules: dict[str, Callable[[JavaObject, list[JavaObject]], Expression | None]] = {
            "DateFormatClass": self._date_format, "TruncTimestamp": self._truncated, "IntegralDivide": self._div,
            "Pmod": self._pmod, "NaNvl": self._nanvl, "StringReplace": self._replace, "Substring": self._substring,
            "StringInstr": self._position, "StringSplitSQL": self._split_at, "StringSplit": self._split,
            "ElementAt": self._part, "GetArrayItem": self._item, "Size": self._size, "RegExpExtract": self._extract,
            "RLike": self._rlike, "Like": self._any_like, "DateAdd": self._days,
            "DateSub": self._days, "DateDiff": self._days, "Reverse": self._reverse, "Cast": self._date,
        }  # fmt: skip

    def _operator(self, node: JavaObject, kind: str) -> Expression | None:
        known = super()._operator(node, kind)
        if known is not None:
            return known
        parts = children(node)
        if kind in _OF_TIME and type_of(parts[0]) == "timestamp":
            return Call(_OF_TIME[kind], (self._value(parts[0]), _zone(node)), "int")
        if kind in _OF_DATE:
            return Call(_OF_DATE[kind], (self._value(parts[0]),), "int")
        if kind in _UNITS_US:
            return Call("units_of", (self._value(parts[0]), literal(_UNITS_US[kind], "bigint")), "bigint")
        if kind in _FROM_UNITS and type_of(parts[0]) in INTEGERS:
            return Call(_FROM_UNITS[kind], (self._value(parts[0]),), "timestamp")
        if kind in _TRIMS:
            characters = self._text(parts[1]) if len(parts) > 1 else " "
            return Call(_TRIMS[kind], (self._value(parts[0]), literal(characters, "string")), "string")
        rule = self._rules.get(kind)
        return None if rule is None else rule(node, parts)

    def _value(self, node: JavaObject) -> Expression:
        """An argument that depends on the event."""
        value = self(node)
        if isinstance(value, Literal):
            raise _NoFunction
        return value

    def _fixed(self, node: JavaObject) -> Literal:
        """An argument that is a constant other than NULL."""
        value = self(node)
        if not isinstance(value, Literal) or value.text is None:
            raise _NoFunction
        return value

    def _text(self, node: JavaObject) -> str:
        """A constant text that is not empty."""
        text = self._fixed(node).text
        if type_of(node) != "string" or not text:
            raise _NoFunction
        return text

    def _date_format(self, node: JavaObject, parts: list[JavaObject]) -> Expression:
        pattern = ""
        for token in _TOKENS.findall(self._text(parts[1])):
            if token not in FORMATS and not _PLAIN.fullmatch(token):
                raise _NoFunction
            pattern += FORMATS.get(token, token)
        if type_of(parts[0]) != "timestamp":
            raise _NoFunction
        return Call("format_time", (self._value(parts[0]), literal(pattern, "string"), _zone(node)), "string")

    def _truncated(self, node: JavaObject, parts: list[JavaObject]) -> Expression:
        unit = self._text(parts[0]).upper()
        if unit not in TRUNCATED or type_of(parts[1]) != "timestamp":
            raise _NoFunction
        return Call("truncate", (self._value(parts[1]), literal(unit, "string"), _zone(node)), "timestamp")

    def _date(self, node: JavaObject, parts: list[JavaObject]) -> Expression | None:
        if (type_of(parts[0]), type_of(node)) != ("timestamp", "date"):
            return None
        return Call("date", (self._value(parts[0]), _zone(node)), "date")

    def _days(self, node: JavaObject, parts: list[JavaObject]) -> Expression:
        op = {"DateAdd": "add_days", "DateSub": "subtract_days", "DateDiff": "days_between"}[kind_of(node)]
        return Call(op, (self._value(parts[0]), self._value(parts[1]) if op == "days_between" else self(parts[1])),
                    type_of(node))  # fmt: skip

    def _div(self, node: JavaObject, parts: list[JavaObject]) -> Expression | None:
        if any(type_of(part) not in INTEGERS for part in parts) or eval_mode(node) != "ANSI":
            return None
        return Call("div", (self._value(parts[0]), self(parts[1])), "bigint")

    def _pmod(self, node: JavaObject, parts: list[JavaObject]) -> Expression | None:
        kinds = {type_of(part) for part in parts}
        if len(kinds) > 1 or not kinds <= {*INTEGERS} or eval_mode(node) != "ANSI":
            return None
        return Call("pmod", (self._value(parts[0]), self._fixed(parts[1])), type_of(node))

    def _nanvl(self, node: JavaObject, parts: list[JavaObject]) -> Expression | None:
        if not is_float(type_of(node)):
            return None
        return Call("nanvl", (self._value(parts[0]), self(parts[1])), type_of(node))

    def _replace(self, _: JavaObject, parts: list[JavaObject]) -> Expression:
        return Call("replace", (self._value(parts[0]), literal(self._text(parts[1]), "string"),
                                self._fixed(parts[2])), "string")  # fmt: skip

    def _substring(self, _: JavaObject, parts: list[JavaObject]) -> Expression:
        if type_of(parts[0]) != "string":
            raise _NoFunction
        return Call("substring", (self._value(parts[0]), *map(self._fixed, parts[1:])), "string")

    def _reverse(self, _: JavaObject, parts: list[JavaObject]) -> Expression:
        if type_of(parts[0]) != "string":
            raise _NoFunction
        return Call("reverse", (self._value(parts[0]),), "string")

    def _position(self, _: JavaObject, parts: list[JavaObject]) -> Expression:
        return Call("position", (self._value(parts[0]), literal(self._text(parts[1]), "string")), "int")

    def _split_at(self, _: JavaObject, parts: list[JavaObject]) -> Expression:
        return Call("split", (self._value(parts[0]), literal(self._text(parts[1]), "string")), _LISTS)

    def _split(self, _: JavaObject, parts: list[JavaObject]) -> Expression:
        """SPLIT with a pattern that is one text, and without a limit."""
        pattern = re.fullmatch(r"\[([^\\^\]\[&-])\]|\\([^a-zA-Z0-9])|([^\\.\[\]{}()*+?^$|]+)", self._text(parts[1]))
        if pattern is None or int(self._fixed(parts[2]).value or 0) > 0:
            raise _NoFunction
        at = literal(pattern[1] or pattern[2] or pattern[3], "string")
        return Call("split", (self._value(parts[0]), at), _LISTS)

    def _lists(self, node: JavaObject) -> Expression:
        """An array of texts that is not NULL itself where its event has a text."""
        found = self._operator(node, kind_of(node)) if kind_of(node) in ("StringSplit", "StringSplitSQL") else None
        return found or _uncovered(node)

    def _part(self, node: JavaObject, parts: list[JavaObject]) -> Expression:
        """SPLIT_PART, which Spark makes of `element_at` with an empty text for what is missing."""
        default, position = optional(node.defaultValueOutOfBound()), self._fixed(parts[1])
        if default is None or self._catalyst.constant(default) != "" or not position.value:
            raise _NoFunction
        return Call("part", (self._lists(parts[0]), position), "string")

    def _item(self, node: JavaObject, parts: list[JavaObject]) -> Expression:
        if not node.failOnError():
            raise _NoFunction
        return Call("item", (self._lists(parts[0]), self._fixed(parts[1])), "string")

    def _size(self, node: JavaObject, parts: list[JavaObject]) -> Expression:
        if node.legacySizeOfNull():
            raise _NoFunction
        return Call("size", (self._lists(parts[0]),), "int")

    def _extract(self, _: JavaObject, parts: list[JavaObject]) -> Expression:
        pattern = extracting(self._text(parts[1]), int(self._fixed(parts[2]).value or 0))
        if pattern is None:
            raise _NoFunction
        return Call("extract", (self._value(parts[0]), literal(pattern, "string")), "string")

    def _rlike(self, _: JavaObject, parts: list[JavaObject]) -> Expression:
        pattern = self._text(parts[1])
        if not is_shared(pattern):
            raise _NoFunction
        return Call("matches", (self._value(parts[0]), literal(pattern, "string")), "boolean")

    def _any_like(self, node: JavaObject, parts: list[JavaObject]) -> Expression:
        pattern = self._text(parts[1])
        if "\\" in pattern or str(node.escapeChar()) in pattern:
            raise _NoFunction
        return Call("like", (self._value(parts[0]), literal(pattern, "string")), "boolean")


def _zone(node: JavaObject) -> Literal:
    """The time zone of an expression, if its offset never changes: only these are the same in Java and in Python."""
    zone = str(node.zoneId().normalized().getId())
    if zone not in _UTC and not _FIXED_ZONE.fullmatch(zone):
        raise _NoFunction
    return literal("UTC" if zone in _UTC else zone, "string")
