"""Supports live parameters such as `:limit` in query texts, by stand-in constants during Spark's analysis.

Spark substitutes the values of its own parameters into the text, so a plan does not show them. So a parameter is
analysed as a stand-in and turned back into a parameter in the query. A stand-in is a number or text of the parameter's
type that no user writes. Spark's casts around it are kept.

Values of the clock, such as `current_timestamp() - INTERVAL 1 HOUR`, are parameters too, see
`plan.options.clock_parameters`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from millpond.errors import ChangeRefused, QueryTypeError, UnsupportedQuery
from millpond.model.expressions import (
    Call,
    Expression,
    Foreign,
    Literal,
    Parameter,
    is_list,
    parameters_of,
    replaced,
    walk,
)
from millpond.model.join import Join
from millpond.model.patterns.variables import Variable, reads_others
from millpond.model.query import Named, Query
from millpond.model.selection import AnyQuery, Selection, expressions_of, foreign_below
from millpond.model.types import element_of
from millpond.model.windows import Pattern, Session
from millpond.plan.options.clock_parameters import ClockValue
from millpond.plan.options.live_parameters import parameters_in
from millpond.spark.analysis.query_terms import Extraction
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, children, kind_of, type_of
from millpond.spark.catalyst.text_span import COMMENT, QUOTED_NAME, STRING

_TOKENS = re.compile(
    rf"""{STRING} | {QUOTED_NAME} | {COMMENT}
    | (?<![\w:)\]'"`]):(?P<name>[A-Za-z_]\w*)""",
    re.VERBOSE | re.DOTALL,
)
"""Quoted texts and comments, which stay unchanged, and names of parameters."""

_STAND_INS = re.compile(r"millpond parameter|\b23058430092\d{8}|\b2\.3058430092\d*E18")
_CLOCK_CALL = re.compile(r"\b(?:current_timestamp|now|current_date)\(\)")
_UNITS = {"UnixSeconds": 1_000_000, "UnixMillis": 1000, "UnixMicros": 1, "UnixTimestamp": 1_000_000}
_SHIFTED = {"DateAdd": 1, "DateSub": -1}
WRITTEN_SUMS = ("DatetimeSub", "DatetimeAdd")
"""Expressions of Spark: a time as a number of such units (µs), a date plus or minus days, and sums as they are
written, each with its meaning as the only child.
"""

_FIRST = 1 << 61
_STEP = 1 << 20  # so that each stand-in is also exact as a double


class Marked(NamedTuple):
    """A text with stand-ins, and the parameter for each of them."""

    text: str
    parameters: tuple[Parameter, ...]

    def restored(self, query: AnyQuery) -> AnyQuery:
        """The query, or one step of it, with its stand-ins replaced by parameters.

        Raises:
            QueryTypeError: a parameter is a text where a value of another type is needed.
            UnsupportedQuery: a parameter is used where its value cannot change between epochs.
        """
        if not self.parameters:
            return query
        made = _changed(query, self)
        for place, parameter in enumerate(self.parameters):
            _check_type(place, parameter, made)
        left = self._is_left(made)
        if isinstance(made, Join) and (left or parameters_in(made)):
            raise UnsupportedQuery("A join of two streams has no live parameters.", "Write the value itself.")
        if left:
            raise _fixed(self.parameters[0])
        return made

    def of(self, found: Extraction) -> Extraction:
        """The extraction with parameters in its query; those of its inner queries were restored before.

        Raises:
            QueryTypeError, UnsupportedQuery: see `restored` and `check_used`.
        """
        found = found._replace(query=self.restored(found.query))
        self.check_used(found.steps, found.texts)
        return found

    def check_used(self, steps: Iterable[AnyQuery], sources: Iterable[str]) -> None:
        """Refuse a parameter that none of the steps of the query contains, or that Spark evaluates below them.

        `steps` were restored, and `sources` are the texts of what Spark evaluates.

        Raises:
            UnsupportedQuery: there is such a parameter.
        """
        if not self.parameters:
            return
        found = frozenset[str]().union(*map(parameters_in, steps))
        left = any(map(has_stand_in, sources))
        for parameter in self.parameters:
            if parameter.name not in found or left:
                raise _fixed(parameter)

    def _is_left(self, query: AnyQuery) -> bool:
        """Whether the query still contains a stand-in, or the negative of one."""
        numbers = {_number(place) for place in range(len(self.parameters))}
        for node in (node for part in _everything(query) for node in walk(part)):
            value = node.sql if isinstance(node, Foreign) else node.value if isinstance(node, Literal) else None
            if has_stand_in(value) if isinstance(value, str) else value is not None and abs(value) in numbers:
                return True
        return False

    def leaf(self, node: Expression) -> Expression:
        """The parameter that a constant stands for; other expressions are returned unchanged."""
        if isinstance(node, Literal):
            for place, parameter in enumerate(self.parameters):
                if _stands_for(node, place, parameter):
                    if is_list(parameter.type):
                        return parameter if node.type == _own(parameter) else node
                    same = node.type == parameter.type
                    return parameter if same else Call("cast", (parameter,), node.type)
        return node


def marked(text: str, parameters: Mapping[str, Literal]) -> Marked:
    """The text with a stand-in for each parameter.

    >>> marked("SELECT ':a' WHERE v > :a /* /* */ :b */", {"a": Literal("5", "bigint")}).text
    "SELECT ':a' WHERE v > (2305843009213693952L) /* /* */ :b */"

    Raises:
        ChangeRefused: a parameter has no value, so its type is not known.
    """
    used: dict[str, Parameter] = {}

    def stand_in(found: re.Match[str]) -> str:
        name = found["name"]
        if name is None:
            return found[0]
        if name not in parameters:
            cure = (
                f"Give it a first value: DECLARE VARIABLE {name} DOUBLE DEFAULT … in the pond file, --param {name}=… of"
                f" `millpond run` or `serve`, `millpond param set --new {name}=…` while it is served, or `pond.param`."
            )
            raise ChangeRefused(f"The parameter :{name} has no value.", cure)
        parameter = used.setdefault(name, Parameter(name, parameters[name].type))
        return _written([*used].index(name), parameter)

    replaced = _TOKENS.sub(stand_in, text)
    return Marked(replaced, tuple(used.values()))


def has_stand_in(sql: str) -> bool:
    """Whether the text of an expression contains a stand-in, so that it is not a constant.

    >>> has_stand_in("(2305843009213693952L + 9)"), has_stand_in("2.305843009213694E18D"), has_stand_in("9")
    (True, True, False)
    """
    return _STAND_INS.search(sql) is not None


def has_clock(sql: str) -> bool:
    """Whether the text of an expression may read the clock.

    >>> has_clock("(current_timestamp() - INTERVAL '1' HOUR)"), has_clock("ts")
    (True, False)
    """
    return _CLOCK_CALL.search(sql) is not None


def clock_of(catalyst: Catalyst, node: JavaObject) -> ClockValue | None:
    """The value of the clock that an expression is; None for other expressions."""
    kind = kind_of(node)
    if kind in ("CurrentTimestamp", "Now"):
        return ClockValue()
    if kind == "CurrentDate":
        return ClockValue(zone=_zone(node), is_date=True)
    parts = children(node)
    clock = clock_of(catalyst, parts[0]) if parts else None
    if clock is None:
        return None
    if kind in WRITTEN_SUMS or (kind == "Cast" and type_of(node) == clock.parameter.type):
        return clock
    if clock.is_date:
        return _date(catalyst, clock, kind, parts)
    if clock.unit_us:
        return None
    if kind == "TimestampAddInterval" and type_of(parts[1]).startswith("interval"):
        shift_us, of_months = catalyst.constant(parts[1]), re.search("month|year", type_of(parts[1]))
        if not isinstance(shift_us, int) or of_months or clock.shift_us:
            return None
        return clock._replace(shift_us=shift_us, zone=_zone(node))
    if kind == "Cast" and type_of(node) == "date":
        return clock._replace(zone=clock.zone or _zone(node), is_date=True)
    unit_us = 1_000_000 if kind == "Cast" and type_of(node) == "bigint" else _UNITS.get(kind, 0)
    return clock._replace(unit_us=unit_us) if unit_us and type_of(node) == "bigint" else None


def _date(catalyst: Catalyst, date: ClockValue, kind: str, parts: list[JavaObject]) -> ClockValue | None:
    """A date plus or minus a number of days."""
    days = catalyst.constant(parts[1]) if kind in _SHIFTED and kind_of(parts[1]) == "Literal" else None
    return date._replace(days=date.days + _SHIFTED[kind] * days) if isinstance(days, int) else None


def _zone(node: JavaObject) -> str:
    return str(node.timeZoneId().get())


def _fixed(parameter: Parameter) -> UnsupportedQuery:
    return UnsupportedQuery(
        f"The parameter :{parameter.name} is used where its value cannot change while the pond runs.",
        "Use it in comparisons and arithmetic of WHERE, FILTER, HAVING and outputs, or write its value.",
    )


def _number(place: int) -> int:
    return _FIRST + place * _STEP


def _text(place: int) -> str:
    return f"\u2063millpond parameter {place}\u2063"


def _written(place: int, parameter: Parameter) -> str:
    if _own(parameter) == "string":
        return f"'{_text(place)}'"
    if parameter.type == "boolean":
        raise UnsupportedQuery(f"The parameter :{parameter.name} is a boolean.", "Compare with a number or a text.")
    # In parentheses, because a preceding minus would become a part of the number.
    return f"({_number(place)}L)" if _own(parameter) == "bigint" else f"({float(_number(place))!r}D)"


def _own(parameter: Parameter) -> str:
    """The type of a parameter, or of the elements of its list."""
    return element_of(parameter.type) if is_list(parameter.type) else parameter.type


def _check_type(place: int, parameter: Parameter, query: AnyQuery) -> None:
    """Refuse a text parameter that Spark casts to another type, because Spark would cast the stand-in only once."""
    if _own(parameter) != "string":
        return
    cast = re.compile(rf"CAST\('{_text(place)}' AS (?P<wanted>\w+)")
    for node in foreign_below(query):
        if (found := cast.search(node.sql)) is not None:
            raise QueryTypeError(
                f"The parameter :{parameter.name} is of type {parameter.type}, and is used where the query needs "
                f"{found['wanted'].lower()}.",
                f"Set :{parameter.name} to a value of that type, which it takes while no query uses it, or cast the "
                "other side to string.",
            )


def _as_options(node: Expression) -> Expression:
    """The tree with list parameters as options of `in`, because Spark turns `x IN (:list)` into an equality.

    Raises:
        UnsupportedQuery: a list parameter is used elsewhere.
    """
    if not isinstance(node, Call):
        return node
    args = tuple(map(_as_options, node.args))
    lists = [arg for arg in args if isinstance(arg, Parameter) and is_list(arg.type)]
    if node.op == "eq" and len(lists) == 1:
        value = next(arg for arg in args if arg not in lists)
        return Call("in", (value, *lists), node.type)
    if lists and (node.op != "in" or args[0] in lists):
        raise UnsupportedQuery(
            f"The parameter :{lists[0].name} is a list, and is used outside of x IN (:{lists[0].name}).",
            "Use IN, and for values of the same type.",
        )
    return Call(node.op, args, node.type)


def _stands_for(node: Literal, place: int, parameter: Parameter) -> bool:
    if _own(parameter) == "string" or node.type in ("string", "boolean") or node.text is None:
        return node.type == _own(parameter) == "string" and node.text == _text(place)
    value = node.value
    return not isinstance(value, str | bool) and value == _number(place)


def _changed(query: AnyQuery, marks: Marked) -> AnyQuery:
    """The query with each of its expressions changed."""

    def change(one: Expression) -> Expression:
        return _as_options(replaced(one, marks.leaf))

    output = tuple(Named(item.name, change(item.expression)) for item in query.output)
    if isinstance(query, Selection):
        where = None if query.where is None else change(query.where)
        return msgspec.structs.replace(query, where=where, output=output)
    having = None if query.having is None else change(query.having)
    if isinstance(query, Join):
        condition = None if query.condition is None else change(query.condition)
        return msgspec.structs.replace(query, output=output, having=having, condition=condition)
    aggregates = tuple(
        msgspec.structs.replace(
            aggregate,
            **{
                name: change(part)
                for name in ("argument", "filter", "other")
                if isinstance(part := getattr(aggregate, name), Literal | Call)
            },
        )
        for aggregate in query.aggregates
    )
    where = None if query.where is None else change(query.where)
    window = query.window
    if isinstance(window, Pattern):
        window = _changed_pattern(query.name, window, change)
    made: Query = msgspec.structs.replace(
        query, output=output, having=having, aggregates=aggregates, where=where, window=window
    )
    return made


def _changed_pattern(query: str, pattern: Pattern, change: Callable[[Expression], Expression]) -> Pattern:
    variables = tuple(Variable(one.name, change(one.condition)) for one in pattern.variables)
    for one in variables:
        if reads_others(one.condition) and parameters_of(one.condition):
            raise UnsupportedQuery(
                f"In {query}, the condition of {one.name} has a live parameter and reads another event.",
                "Write the value itself, or compare with the parameter in the condition of another variable.",
            )
    return msgspec.structs.replace(pattern, variables=variables)


def _everything(query: AnyQuery) -> Iterator[Expression]:
    yield from expressions_of(query)
    yield from (item.expression for item in query.output)
    if isinstance(query, Query):
        yield from (() if query.having is None else (query.having,))
        for aggregate in query.aggregates:
            yield from (() if isinstance(aggregate.parameters, msgspec.UnsetType) else aggregate.parameters)
        if isinstance(query.window, Session) and query.window.own_end is not None:
            yield query.window.own_end
