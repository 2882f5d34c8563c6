"""Registers user aggregates and processors: Spark analyses a stand-in of the same name, which extraction replaces.

The stand-in is a Python aggregate of Spark that never runs. Spark accepts no FILTER on such a function. So in a text
the condition is moved into the call as one more argument, and in a DataFrame the user writes it as an argument.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

import msgspec
from pyspark.sql import Column
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from millpond.errors import QueryTypeError, UnsupportedQuery
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Expression, call
from millpond.model.functions import STATEFUL, UserFunction, bytes_of, columns_of_function
from millpond.model.types import is_number
from millpond.spark.analysis.expressions import Translator
from millpond.spark.analysis.properties import option_duration_us
from millpond.spark.catalyst.allow_list import FUNCTIONS
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    children,
    items,
    kind_of,
    name_parts,
    optional,
    span_of,
    text_of,
    type_of,
)
from millpond.spark.catalyst.user_scalars import command_of

_FILTER = re.compile(r"\)\s*FILTER\s*\(\s*WHERE\b", re.IGNORECASE)
_COMMENT = re.compile(r"--|/\*")
_WIDTHS = ("tinyint", "smallint", "int", "bigint", "float", "double")


def declared_function(
    catalyst: Catalyst, name: str, module: str, kind: str, takes: Sequence[str] | Mapping[str, str],
    returns: str | Mapping[str, str], *, version: str = "1", deadline: str = "5 seconds", memory: str = "256 MB",
    form: str = "arrow", state: Mapping[str, str] | None = None, ttl: str | None = None, timers: str | None = None,
) -> UserFunction:  # fmt: skip
    """The user function with these terms, see `model.functions.UserFunction`; times are intervals in Spark's syntax.

    Raises:
        QueryTypeError: an argument is not valid.
    """

    def microseconds(what: str, interval: str | None) -> int | msgspec.UnsetType:
        if interval is None:
            return msgspec.UNSET
        return option_duration_us(catalyst, f"the function {name}", what, interval)

    deadline_us = option_duration_us(catalyst, f"the function {name}", "deadline", deadline)
    types = columns_of_function(name, takes, returns, state, (microseconds("ttl", ttl), microseconds("timers", timers)))
    return UserFunction(
        name, version, module, kind, types.takes, types.returns, deadline_us // 1000, bytes_of(memory), "", form,
        types.keyed,
    )  # fmt: skip


class UserFunctions:
    """The user functions of a pond by name, and their stand-ins in the session that analyses its texts."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._catalyst = catalyst
        self._known: dict[str, UserFunction] = {}
        self._stand_ins: dict[str, UserDefinedFunction] = {}

    @property
    def known(self) -> tuple[UserFunction, ...]:
        """The newest version of each function."""
        return tuple(self._known.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the functions as they were registered."""
        return tuple(function.name for function in self._known.values())

    def register(self, function: UserFunction) -> Callable[..., Column]:
        """Register the function under its name; return its stand-in for DataFrames.

        If the name is already registered, later analyses use the new version.

        Raises:
            QueryTypeError: the name is one of Spark's, or another function is registered with this name and version.
        """
        name = function.name.lower()
        known = self._known.get(name)
        if known is not None and known != function and known.label.lower() == function.label.lower():
            raise QueryTypeError(
                f"{known.label} of {known.module} is registered already, and is not the same.",
                "Give what was changed a new version, and another function another name.",
            )
        if known != function:
            if known is None and (name in FUNCTIONS or self._catalyst.spark.catalog.functionExists(name)):
                raise QueryTypeError(f"{function.name} is a function that Spark has.", "Choose another name.")
            made = UserDefinedFunction(
                _stand_in, function.spark_type, function.name, PythonEvalType.SQL_GROUPED_AGG_PANDAS_UDF
            )
            self._catalyst.spark.udf.register(function.name, made)
            self._known[name], self._stand_ins[name] = function, made
        return self._stand_ins[name]

    def without_filters(self, text: str, calls: Iterable[JavaObject]) -> str:
        """The text with `f(x) FILTER (WHERE p)` written as `f(x, p)` for these functions; all other text stays at its
        position.

        Raises:
            UnsupportedQuery: the call has DISTINCT, or a comment in its middle.
        """
        cuts = []
        for node in calls:
            if name_parts(node)[-1].lower() not in self._known:
                continue
            if node.isDistinct():
                raise UnsupportedQuery(
                    f"`{text_of(node)}` has DISTINCT, which user functions do not support.",
                    "Let the function drop repeats.",
                )
            condition, arguments = optional(node.filter()), items(node.arguments())
            last, first = (
                None if part is None else span_of(part) for part in (arguments[-1] if arguments else None, condition)
            )
            if last is None or first is None:
                continue
            between = text[last.stop : first.start]
            found = _FILTER.search(between)
            if found is None or _COMMENT.search(between):
                raise UnsupportedQuery(
                    f"`{text_of(node)}` has a FILTER that is not understood.",
                    "Write FILTER (WHERE …) without comments.",
                )
            cuts.append((last.stop + found.start(), last.stop + found.end()))
        for start, stop in sorted(cuts, reverse=True):
            blank = re.sub(r"\S", " ", text[start + 1 : stop])
            text = f"{text[:start]},{blank}{text[stop:]}"
        return text

    def called(self, node: JavaObject) -> UserFunction | None:
        """The function whose stand-in an `AggregateExpression` calls; None for any other aggregate."""
        function_call = node.aggregateFunction()
        if kind_of(function_call) != "PythonUDAF":
            return None
        name = str(function_call.name()).lower()
        function = self._known.get(name)
        if function is None or command_of(function_call) != command_of(self._stand_ins[name]._judf):
            return None
        return function

    def aggregate(
        self, node: JavaObject, translate: Translator, *, stateful: bool = False
    ) -> tuple[Aggregate, UserFunction] | None:
        """The user aggregate for an `AggregateExpression` over a stand-in; None for any other aggregate.

        `stateful`: it is called where a processor may be.

        Raises:
            QueryTypeError: the number or the types of the arguments do not match the function.
            UnsupportedQuery: a processor is called elsewhere.
        """
        function, function_call = self.called(node), node.aggregateFunction()
        if function is None:
            return None
        if function.kind == STATEFUL and not stateful:
            raise UnsupportedQuery(
                f"`{text_of(function_call)}` is called beside other aggregates, in a window or in an expression.",
                f"{function.name} makes rows: SELECT key, inline({function.name}(…)) FROM … GROUP BY key.",
            )
        given = children(function_call)
        condition: Expression | None = None
        if len(given) == len(function.takes) + 1 and type_of(given[-1]) == "boolean":
            condition = translate(given.pop())
        if len(given) != len(function.takes):
            raise QueryTypeError(
                f"`{text_of(function_call)}` has {len(given)} arguments; {function.label} takes {len(function.takes)}.",
                f"It takes {', '.join(function.takes)}, and a condition.",
            )
        pairs = zip(given, function.takes, strict=True)
        arguments = [_widened(function, part, translate(part), kind) for part, kind in pairs]
        second = arguments[1] if len(arguments) > 1 else msgspec.UNSET
        more = tuple(arguments[2:]) or msgspec.UNSET
        return Aggregate(function.function, arguments[0], condition, function.returns, second, more=more), function


def _stand_in(*_values: object) -> NoReturn:
    raise AssertionError("a pond answers this function; Spark only knows its name")


def _widened(function: UserFunction, node: JavaObject, argument: Expression, kind: str) -> Expression:
    """The argument cast to the function's parameter type, if the cast loses nothing."""
    given = type_of(node)
    if given == kind:
        return argument
    if is_number(given) and is_number(kind) and _WIDTHS.index(given) < _WIDTHS.index(kind):
        return call("cast", (argument,), kind)
    raise QueryTypeError(
        f"`{text_of(node)}` is {given}, and {function.label} takes {kind}.",
        f"Cast it: CAST({text_of(node)} AS {kind}).",
    )
