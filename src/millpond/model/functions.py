"""User functions as aggregates: their description as a value that a pond's spec stores."""

from __future__ import annotations

import re

import msgspec

from millpond.errors import QueryTypeError
from millpond.model.types import is_known

KINDS = ("mergeable", "holistic", "grouped")
"""How a function takes events; see `UserFunction`."""

FORMS = ("arrow", "numpy", "polars")
"""In what form a holistic function takes the values of one key."""

PREFIX = "user:"
"""What the `function` of an `Aggregate` begins with if it is a user's: `user:name@version`."""

LEAST_MEMORY = 16 << 20

_ATTRIBUTE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SIZE = re.compile(r"(\d+)\s*([kmg])i?b?", re.IGNORECASE)
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class UserFunction(msgspec.Struct, frozen=True):
    """A named and versioned aggregate in a module that is installed where the pond runs.

    `module` is `package.module:attribute`, `takes` and `returns` are SQL types. `kind` says what the attribute is:
    `holistic`, a function of one key's events, an argument a column, that gives a value; `grouped`, a function of a
    table of all keys, sorted by the column `key`, that gives a value per key; `mergeable`, an object with `create`,
    `update`, `merge` and `finish` over tables of states, a row per key. `form`: how a holistic one takes columns.
    `deadline_ms` is for one call, `memory_bytes` what it may use beyond its interpreter; `digest` is the SHA-256 of
    the module's file, so that a function that was changed is another one.

    Raises:
        QueryTypeError: one of these is not what it must be.
    """

    name: str
    version: str
    module: str
    kind: str
    takes: tuple[str, ...]
    returns: str
    deadline_ms: int = 5_000
    memory_bytes: int = 256 << 20
    digest: str = ""
    form: str = "arrow"

    def __post_init__(self) -> None:
        for wrong, what, cure in (
            (
                not (self.name.isidentifier() and self.name.isascii()),
                "has a name that SQL cannot call",
                "Use letters, digits and underscores.",
            ),
            (not _VERSION.fullmatch(self.version), f"has the version {self.version!r}", "Write it as '1' or '2.1'."),
            (
                not _ATTRIBUTE.fullmatch(self.module),
                f"stands at {self.module!r}, which is no place",
                "Write package.module:attribute.",
            ),
            (self.kind not in KINDS, f"is of the kind {self.kind!r}", f"It is one of {', '.join(KINDS)}."),
            (self.form not in FORMS, f"takes {self.form!r}", f"Use one of {', '.join(FORMS)}."),
            (
                self.form != "arrow" and self.kind != "holistic",
                f"takes {self.form}, which only holistic functions do",
                "Convert the columns inside it.",
            ),
            (not self.takes, "takes no argument", "Name the types that it takes."),
            (self.deadline_ms <= 0, "has no time at all", "Give it a deadline such as '5 seconds'."),
            (
                self.memory_bytes < LEAST_MEMORY,
                f"has {self.memory_bytes} bytes of memory",
                f"Give it {LEAST_MEMORY >> 20} MB or more.",
            ),
        ):
            if wrong:
                raise QueryTypeError(f"The function {self.name!r} {what}.", cure)
        for kind in (*self.takes, self.returns):
            if not is_known(kind):
                raise QueryTypeError(
                    f"The function {self.name!r} has the type {kind!r}.",
                    "Use Spark's names of simple types: double, bigint, string.",
                )

    @property
    def label(self) -> str:
        """`name@version`, for people."""
        return f"{self.name}@{self.version}"

    @property
    def function(self) -> str:
        """What the `function` of an `Aggregate` that calls it is: `user:name@version`."""
        return f"{PREFIX}{self.label}"


def bytes_of(size: str) -> int:
    """A size of memory in bytes.

    >>> bytes_of("256 MB") == bytes_of("256m") == 256 << 20
    True

    Raises:
        QueryTypeError: it is no size.
    """
    found = _SIZE.fullmatch(size.strip())
    if found is None:
        raise QueryTypeError(f"{size!r} is no size of memory.", "Write it as '256 MB' or '1 GB'.")
    return int(found[1]) * _UNITS[found[2].lower()]
