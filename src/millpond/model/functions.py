"""Describes user functions (aggregates and processors) as values that the spec of a pond stores."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from millpond.errors import QueryTypeError
from millpond.model.types import is_known, is_storable, is_struct, struct_fields

STATEFUL = "stateful"
"""The kind of a processor, which keeps state of each key and makes rows."""

KINDS = ("mergeable", "holistic", "grouped", STATEFUL)
"""The kinds of functions; see `UserFunction`."""

FORMS = ("arrow", "numpy", "polars")
"""The forms in which a holistic function can receive the values of one key."""

PREFIX = "user:"
"""The prefix of the `function` of an `Aggregate` that calls a user function: `user:name@version`."""

LEAST_MEMORY = 16 << 20

_UNSET = msgspec.UNSET
_TIME = ("time", "timestamp")
_ATTRIBUTE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SIZE = re.compile(r"(\d+)\s*([kmg])i?b?", re.IGNORECASE)
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


RESERVED = ("key", "time", "timer")
"""Names of columns that the tables of a processor have besides the declared ones."""


class KeyedState(msgspec.Struct, frozen=True):
    """What a processor keeps of each key, and when it is forgotten.

    - `arguments`: the names of the arguments, which are columns of the table of events.
    - `fields`: name and SQL type of each value that is kept.
    - `ttl_us`: the state of a key is forgotten this long after its last event or timer, in event time; unset: never.
    - `timer_us`: a timer is set at least this long after the event or timer that sets it; unset: there are no timers.

    Raises:
        QueryTypeError: a field is invalid.
    """

    arguments: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]
    ttl_us: int | msgspec.UnsetType = msgspec.UNSET
    timer_us: int | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if not self.fields:
            raise QueryTypeError("The function keeps no state.", "Give names and types of what it keeps of each key.")
        for names in (self.arguments, tuple(name for name, _ in self.fields)):
            for name in names:
                if name in RESERVED or names.count(name) > 1:
                    raise QueryTypeError(
                        f"Two columns of the function's tables are called {name}.",
                        f"Use distinct names, and none of {', '.join(RESERVED)}.",
                    )
        for name, kind in self.fields:
            if not is_storable(kind):
                raise QueryTypeError(
                    f"The state {name} has the type {kind!r}, which cannot be stored.",
                    "Use Spark's names of types: bigint, string, array<double>, map<string,bigint>.",
                )
        for what, us in (("forgotten", self.ttl_us), ("called again", self.timer_us)):
            if isinstance(us, int) and us <= 0:
                raise QueryTypeError(f"Keys would be {what} after {us} µs.", "Use a positive time.")

    @property
    def lasts_us(self) -> int | None:
        """How long the state of a key is kept without an event or timer; None: indefinitely."""
        return None if isinstance(self.ttl_us, msgspec.UnsetType) else self.ttl_us

    @property
    def timer_after_us(self) -> int | None:
        """The least time between an event and the timer that it sets; None: there are no timers."""
        return None if isinstance(self.timer_us, msgspec.UnsetType) else self.timer_us


class UserFunction(msgspec.Struct, frozen=True):
    """A named and versioned function in a module that is installed where the pond runs.

    `module` is `package.module:attribute`; `takes` and `returns` are SQL types. `kind` is the kind of the attribute:

    - `holistic`: a function that receives the events of one key, one argument per column, and returns a value.
    - `grouped`: a function that receives a table of all keys, sorted by the column `key`, and returns a value per key.
    - `mergeable`: an object with `create`, `update`, `merge` and `finish` over tables of states, one row per key.
    - `stateful`: a processor, an object with `process` and perhaps `timer`, which take a table of events and one of
      states, and return a table of rows and one of states; `keyed` says what is kept. `returns` is the type of a row,
      a struct whose first field is the `time` of the row.

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
    keyed: KeyedState | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        self._check_row()
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
            (
                self.deadline_ms <= 0,
                f"has a deadline of {self.deadline_ms} ms",
                "Give it a deadline such as '5 seconds'.",
            ),
            (
                self.memory_bytes < LEAST_MEMORY,
                f"has {self.memory_bytes} bytes of memory",
                f"Give it {LEAST_MEMORY >> 20} MB or more.",
            ),
        ):
            if wrong:
                raise QueryTypeError(f"The function {self.name!r} {what}.", cure)
        nested = is_storable if self.kind == STATEFUL else is_known
        for kind, is_accepted in (*((kind, is_known) for kind in self.takes), (self.returns, nested)):
            if not is_accepted(kind):
                raise QueryTypeError(
                    f"The function {self.name!r} takes or returns the type {kind!r}, which is not supported.",
                    "Use Spark's names of simple types: double, bigint, string.",
                )

    def _check_row(self) -> None:
        """Check what only processors have."""
        if (self.kind == STATEFUL) != isinstance(self.keyed, KeyedState):
            raise QueryTypeError(
                f"The function {self.name!r} is {self.kind}; only stateful functions, and all of them, have `state`.",
                "Give the names and types of what is kept of each key, or leave it out.",
            )
        if self.kind == STATEFUL and not (is_struct(self.returns) and struct_fields(self.returns)[0] == _TIME):
            raise QueryTypeError(
                f"The function {self.name!r} makes rows of the type {self.returns!r}.",
                "Give names and types of its columns; `time` is added as the first.",
            )

    @property
    def state(self) -> KeyedState:
        """What a processor keeps of each key."""
        assert isinstance(self.keyed, KeyedState)
        return self.keyed

    @property
    def spark_type(self) -> str:
        """The type of a call in SQL; a call of a processor gives its rows."""
        return f"array<{self.returns}>" if self.kind == STATEFUL else self.returns

    @property
    def label(self) -> str:
        """`name@version`, as shown to people."""
        return f"{self.name}@{self.version}"

    @property
    def function(self) -> str:
        """The `function` of an `Aggregate` that calls this function: `user:name@version`."""
        return f"{PREFIX}{self.label}"


class FunctionTypes(NamedTuple):
    """The types of a function's arguments and result, and what it keeps of each key if it is a processor."""

    takes: tuple[str, ...]
    returns: str
    keyed: KeyedState | msgspec.UnsetType


def columns_of_function(
    name: str, takes: Sequence[str] | Mapping[str, str], returns: str | Mapping[str, str],
    state: Mapping[str, str] | None, times_us: tuple[int | msgspec.UnsetType, int | msgspec.UnsetType],
) -> FunctionTypes:  # fmt: skip
    """The types as they were declared: of a processor, arguments and the columns of a row have names.

    `times_us`: the time to live of states, and the least time before a timer.

    >>> found = columns_of_function("f", {"x": "double"}, {"n": "int"}, {"total": "double"}, (msgspec.UNSET, 60))
    >>> found.takes, found.returns, found.keyed.fields
    (('double',), 'struct<time:timestamp,n:int>', (('total', 'double'),))

    Raises:
        QueryTypeError: only some of them have names.
    """
    if isinstance(takes, Mapping) and isinstance(returns, Mapping) and state is not None:
        row = ",".join(f"{_quoted(column)}:{kind}" for column, kind in {"time": "timestamp", **returns}.items())
        keyed = KeyedState(tuple(takes), tuple(state.items()), *times_us)
        return FunctionTypes(tuple(takes.values()), f"struct<{row}>", keyed)
    if isinstance(takes, Mapping) or isinstance(returns, Mapping) or state is not None or times_us != (_UNSET, _UNSET):
        raise QueryTypeError(
            f"The function {name!r} has names for some of its columns only.",
            "A stateful function has names and types in all of `takes`, `returns` and `state`; others have types only, "
            "and neither `ttl` nor `timers`.",
        )
    return FunctionTypes(tuple(takes), returns, msgspec.UNSET)


def _quoted(column: str) -> str:
    """The name of a field in the text of a type."""
    return column if column.isidentifier() else "`" + column.replace("`", "``") + "`"


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
