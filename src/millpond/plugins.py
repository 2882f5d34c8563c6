"""Finds the implementations of stores, sources and sinks: own ones by module and name, others by entry points.

A package registers an implementation in its `pyproject.toml`:

    [project.entry-points."millpond.stores"]
    sqlite = "ponds_in_sqlite:KIND"

The name is the one that users write. The package is imported when that name is used for the first time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import Any, Generic, TypeVar

from millpond.errors import MillpondError, SetupError
from millpond.version import install

T = TypeVar("T")

_OWN = __name__.partition(".")[0]
_REINSTALL = "Reinstall that package with its dependencies, or report it to its publisher."


def imported(what: str, opens: str, extra: str | None, refused: type[MillpondError] = SetupError) -> Any:
    """The object at `module:attribute`, whose module is imported now; attributes may have dots.

    `what` needs the object, in messages: "the store sqlite". `extra`: the optional dependencies that its library
    belongs to.

    Raises:
        MillpondError: a library of `extra` is missing; the error is of the type `refused`.
        SetupError: the module is that of a package, and it cannot be imported or lacks the attribute.
    """
    module, _, attribute = opens.partition(":")
    try:
        return attrgetter(attribute)(import_module(module))
    except Exception as error:  # the code of a package may raise anything
        if extra is not None and isinstance(error, ImportError):
            raise refused(f"The library for {extra} is missing: {error}.", f"Run `{install(extra)}`.") from error
        if module.partition(".")[0] == _OWN:
            raise
        raise SetupError(
            f"{what[0].upper()}{what[1:]} needs {opens}, which cannot be imported: {error!r}.", _REINSTALL
        ) from error


class Registry(Generic[T]):
    """The kinds of one sort by name: those of Millpond, and those that other packages register in `group`.

    `what` is the sort in messages: "store". A registered object must be a `kind`.
    """

    def __init__(self, group: str, what: str, kind: type[T], built_in: Mapping[str, T]) -> None:
        self._group, self._what, self._kind = group, what, kind
        self.built_in = built_in

    def names(self) -> tuple[str, ...]:
        """All names; nothing is imported."""
        return tuple(dict.fromkeys([*self.built_in, *(point.name for point in self._registered())]))

    def added(self) -> tuple[str, ...]:
        """The names that packages add to those of Millpond; nothing is imported."""
        return tuple(name for name in self.names() if name not in self.built_in)

    def get(self, name: str) -> T | None:
        """The kind with a name; None: there is none.

        Raises:
            SetupError: a package registers a name that is taken, cannot be imported, or registers something else.
        """
        points = [point for point in self._registered() if point.name == name]
        own = self.built_in.get(name)
        if len(points) > 1 or (points and own is not None):
            raise SetupError(
                f"The name of the {self._what} {name!r} is taken twice: {', '.join(map(_origin, points))}"
                + ("." if own is None else ", and by Millpond itself."),
                f"Uninstall one of these packages, or rename its entry point in the group {self._group}.",
            )
        return self._loaded(points[0]) if points else own

    def _registered(self) -> tuple[EntryPoint, ...]:
        return _points(self._group, tuple(sys.path))

    def _loaded(self, point: EntryPoint) -> T:
        try:
            loaded = point.load()
        except Exception as error:  # the code of the package may raise anything
            raise SetupError(
                f"The {self._what} {point.name!r} of {_origin(point)} cannot be imported: {error!r}.",
                _REINSTALL,
            ) from error
        if not isinstance(loaded, self._kind):
            raise SetupError(
                f"The {self._what} {point.name!r} of {_origin(point)} is a {type(loaded).__name__}, "
                f"not a {self._kind.__name__}.",
                f"The entry point must name a {self._kind.__module__}.{self._kind.__name__}.",
            )
        return loaded


def misnamed(name: str, kind: Any) -> Iterator[str]:
    """What is wrong with the `name` under which a package registers a kind, as the end of a sentence about the kind."""
    if kind.name != name:
        yield f"has another name, {kind.name}, in its {type(kind).__name__}"
    if name != name.lower():
        yield "has a name with capital letters, which SQL does not distinguish"


@cache
def _points(group: str, _path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """The entry points of a group; they are searched again if `sys.path` has changed."""
    return tuple(sorted(entry_points(group=group), key=lambda point: (point.name, point.value)))


def _origin(point: EntryPoint) -> str:
    package = "a package" if point.dist is None else f"the package {point.dist.name}"
    return f"{package} ({point.value})"
