"""Reads the names, options and properties in statements of a pond file."""

from __future__ import annotations

import difflib

from millpond.errors import QueryRefused, QueryTypeError
from millpond.spark.catalyst.private_names import JavaObject, items, kind_of, name_parts, optional, pairs


def name_of(node: JavaObject) -> str:
    """The plain name of a created table.

    Raises:
        QueryRefused: it has several parts.
    """
    parts = name_parts(node)
    if len(parts) != 1:
        raise QueryRefused(f"The name {'.'.join(parts)} has several parts.", "Use one plain name.")
    return parts[0]


def options_of(name: str, spec: JavaObject) -> dict[str, str]:
    """The OPTIONS and the LOCATION of a CREATE TABLE."""
    options = {str(entry._1()): _text(name, entry) for entry in items(spec.optionExpression().options())}
    location = optional(spec.location())
    return options if location is None else options | {"path": plain_path(str(location))}


def properties_of(spec: JavaObject, known: tuple[str, ...], what: str) -> dict[str, str]:
    """The TBLPROPERTIES, with names in lower case.

    Raises:
        QueryTypeError: one of them is not `known`; `what` says what those are.
    """
    return checked_properties(dict(pairs(spec.properties())), known, what)


def checked_properties(given: dict[str, str], known: tuple[str, ...], what: str) -> dict[str, str]:
    """The given properties, with names in lower case.

    Raises:
        QueryTypeError: one of them is not `known`; `what` says what those are.
    """
    for key in given:
        check_known(key, {name: name for name in known}, what)
    return {key.lower(): value for key, value in given.items()}


def check_known(name: str, known: dict[str, str], what: str) -> None:
    """Refuse an unknown option; `known` are the options by their names in lower case.

    Raises:
        QueryTypeError: it is not one of them.
    """
    if name.lower() not in known:
        near = difflib.get_close_matches(name.lower(), known, 3, 0.5)
        names = " or ".join(known[key] for key in near) if near else ", ".join(known.values())
        raise QueryTypeError(f"`{name}` is not {what}.", f"Did you mean: {names}?")


def _text(name: str, entry: JavaObject) -> str:
    value = entry._2()
    if kind_of(value) != "Literal":
        raise QueryTypeError(f"The option {entry._1()} of {name} is no literal.", "Write the value itself.")
    plain = value.eval(None)
    return str(plain).lower() if isinstance(plain, bool | int | float) else str(plain.toString())


def plain_path(location: str) -> str:
    """The path in a LOCATION."""
    # Spark returns a path as a URI.
    return (
        location.removeprefix("file:")
        if location.startswith("file:/") and not location.startswith("file://")
        else location
    )
