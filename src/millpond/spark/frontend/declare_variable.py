"""Reads `DECLARE VARIABLE name TYPE DEFAULT value`: a live parameter with its type and its first value."""

from __future__ import annotations

import re
from typing import NamedTuple

from millpond.errors import ChangeRefused, QueryRefused, QueryTypeError
from millpond.model.expressions import Literal, plain_of
from millpond.plan.options.live_parameters import Plain, constant_of
from millpond.spark.catalyst.private_names import JavaObject, items, kind_of, name_parts

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NUMBERS = {"tinyint": int, "smallint": int, "int": int, "bigint": int, "float": float, "double": float}
_OF_SPARK = {**dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "bigint"), "string": "string"}
_OF_SPARK |= {"float": "double", "double": "double"}
_CURE = "Use BIGINT, DOUBLE or STRING, or an ARRAY of one of them for IN."
_FORM = "Write DECLARE VARIABLE name DOUBLE DEFAULT 150.0; queries name it :name."


class Variable(NamedTuple):
    """A parameter that a file declares, and its first value, which has the parameter's type."""

    name: str
    value: Literal


def variable_of(plan: JavaObject) -> Variable:
    """The parameter of a parsed `DECLARE VARIABLE`.

    Raises:
        QueryRefused: it is not a plain name with a plain value.
        QueryTypeError: parameters cannot have this type, or the value does not fit it.
    """
    names = [".".join(name_parts(one)) for one in items(plan.names())]
    if len(names) != 1 or _NAME.fullmatch(names[0]) is None:
        raise QueryRefused(f"{', '.join(names)} cannot be declared as one variable.", _FORM)
    name, found = names[0], plan.defaultExpr().child()
    kind = None
    if kind_of(found) == "Cast":
        kind, found = str(found.dataType().catalogString()), found.child()
    value = _value(name, found, _element(kind))
    if kind is None and not isinstance(value, int | str | float):
        raise QueryTypeError(f"The variable {name} has no type.", _FORM)
    try:
        return Variable(name, constant_of(name, value, None if kind is None else _type(name, kind)))
    except ChangeRefused as error:
        raise QueryTypeError(f"{error.what}", f"It is declared as {kind}: give a DEFAULT of that type.") from error


def with_value(variable: Variable, value: Literal | None) -> Literal:
    """The first value of a declared parameter: the given value converted to its type, or else its default.

    Raises:
        ChangeRefused: the given value has another type.
    """
    given = None if value is None else plain_of(value)
    return variable.value if given is None else constant_of(variable.name, given, variable.value.type)


def _element(kind: str | None) -> str | None:
    if kind is not None and kind.startswith("array<"):
        return kind.removeprefix("array<").removesuffix(">")
    return kind


def _type(name: str, kind: str) -> str:
    element = _OF_SPARK.get(_element(kind) or "")
    if element is None:
        raise QueryTypeError(f"The variable {name} is of type {kind}, which a live parameter cannot be.", _CURE)
    return f"array<{element}>" if kind.startswith("array<") else element


def _value(name: str, node: JavaObject, kind: str | None) -> Plain | list[Plain]:
    """The value of a literal, or of an array of literals."""
    if kind_of(node) == "UnresolvedFunction" and name_parts(node) == ["array"]:
        members: list[Plain] = []
        for one in items(node.arguments()):
            member = _value(name, one, kind)
            if isinstance(member, list):
                raise QueryRefused(f"The variable {name} is an array of arrays.", _FORM)
            members.append(member)
        return members
    if kind_of(node) != "Literal" or node.value() is None:
        what = "no DEFAULT" if kind_of(node) == "Literal" else "a DEFAULT that is no plain value"
        raise QueryRefused(f"The variable {name} has {what}.", _FORM)
    own, text = str(node.dataType().catalogString()), str(node.toString())
    if own == "string":
        return text
    if own == "boolean":
        raise QueryTypeError(f"The variable {name} is a boolean.", _CURE)
    try:
        value: Plain = _NUMBERS[kind or own](text)
    except (KeyError, ValueError):
        what = f"has the value {text}" + ("" if kind is None else f", which is no {kind}")
        raise QueryTypeError(f"The variable {name} {what}.", _FORM) from None
    return value
