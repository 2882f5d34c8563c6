"""Describes user functions (aggregates of the operator's own) as values that the spec of a pond stores."""

from __future__ import annotations

import re

import msgspec

from millpond.errors import QueryTypeError
from millpond.model.types import is_known

KINDS = ("mergeable", "holistic", "grouped")
"""The kinds of functions; see `UserFunction`."""

FORMS = ("arrow", "numpy", "polars")
"""The forms in which a holistic function can receive the values of one key."""

PREFIX = "user:"
"""The prefix of the `function` of an `Aggregate` that calls a user function: `user:name@version`."""

LEAST_MEMORY = 16 << 20

_ATTRIBUTE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SIZE = re.compile(r"(\d+)\s*([kmg])i?b?", re.IGNORECASE)
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class UserFunction(msgspec.Struct, frozen=True):
    """A named and versioned aggregate in a module that is installed where the pond runs.

    `module` is `package.module:attribute`; `takes` and `returns` are SQL types. `kind` is the kind of the attribute:

    - `holistic`: a function that receives the events of one key, one argument per column, and returns a value.
    - `grouped`: a function that receives a table of all keys, sorted by the column `key`, and returns a value per key.
    - `mergeable`: an object with `create`, `update`, `merge` and `finish` over tables of states, one row per key.

    `form` is the form in which a holistic function receives columns. `deadline_ms` limits one call, and `memory_bytes`
    the memory beyond that of the interpreter. `digest` is the SHA-256 of the module's file, so that a changed function
    counts as another one.

    Raises:
        QueryTypeError: a field is invalid.
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
                f"has the module {self.module!r}, which is not a location",
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
        """`name@version`, as shown to people."""
        return f"{self.name}@{self.version}"

    @property
    def function(self) -> str:
        """The `function` of an `Aggregate` that calls this function: `user:name@version`."""
        return f"{PREFIX}{self.label}"


def bytes_of(size: str) -> int:
    """Parses a size of memory, and returns it in bytes.

    >>> bytes_of("256 MB") == bytes_of("256m") == 256 << 20
    True

    Raises:
        QueryTypeError: the text is not a size.
    """
    found = _SIZE.fullmatch(size.strip())
    if found is None:
        raise QueryTypeError(f"{size!r} is no size of memory.", "Write it as '256 MB' or '1 GB'.")
    return int(found[1]) * _UNITS[found[2].lower()]
