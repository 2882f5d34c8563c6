"""How a derived stream is computed, as values: branches, each from one stream through joins, elements and functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from millpond.model.stream import Stream
from millpond.spark.catalyst.private_names import JavaObject, kind_of, references
from millpond.spark.sources.arrow_functions import Batches
from millpond.spark.sources.batch_tables import relation_text
from millpond.spark.sources.redis_tables import Keyed

TAKEN = "taken"
"""The column of a union that says whether an event passed the filters of its branch."""

PLAIN = ("AttributeReference", "Literal")
"""Expressions that are a value as it stands."""


class Side(NamedTuple):
    """A batch relation joined LEFT OUTER: `names` are those of its columns within the branch, `name` that of the
    column that is TRUE where there is a partner; `condition` is over named attributes."""

    name: str
    plan: JavaObject
    names: tuple[str, ...]
    condition: JavaObject


class Elements(NamedTuple):
    """A row for each element of `array`, an array or a map over named attributes, or one row where there is none:
    `kind` is the class of Spark's generator, `names` and `name` as in `Side`."""

    name: str
    kind: str
    names: tuple[str, ...]
    array: JavaObject


class Function(NamedTuple):
    """What a function makes of the stream's rows; `names` and `name` as in `Side`, but NULL where it raised."""

    name: str
    names: tuple[str, ...]
    batches: Batches


class Looked(NamedTuple):
    """A keyed table joined LEFT OUTER: `keys` are over named attributes, in the order of the table's; `columns` says
    which of its columns each of `names` is (the last is `keyed.ALIVE`), `name` as in `Side`."""

    name: str
    keyed: Keyed
    names: tuple[str, ...]
    columns: tuple[str, ...]
    keys: tuple[JavaObject, ...]


class Branch(NamedTuple):
    """One way from a stream to a derived one: `columns` are expressions over attributes named as in the stream,
    or as in `sides`."""

    base: Stream
    sides: tuple[AnySide, ...]
    columns: Mapping[str, JavaObject]


AnySide: TypeAlias = Side | Elements | Function | Looked


class Derived(NamedTuple):
    """A stream that Spark makes of others while it reads."""

    stream: Stream
    branches: tuple[Branch, ...]


def is_harmless(expression: JavaObject) -> bool:
    """Whether an expression cannot raise: a column, a constant or a field of one."""
    return kind_of(expression) in PLAIN or (
        kind_of(expression) == "GetStructField" and is_harmless(expression.child())
    )


def texts_of(derived: Derived) -> Iterator[str]:
    """The text of whatever Spark evaluates for a derived stream."""
    for branch in derived.branches:
        for made in (*branch.columns.values(), *_expressions(branch.sides)):
            yield str(made.sql())
        yield from (str(side.plan.toString()) for side in branch.sides if isinstance(side, Side))


def _expressions(sides: Iterable[AnySide]) -> Iterator[JavaObject]:
    """What sides are made by, over the columns of their stream."""
    for side in sides:
        if isinstance(side, Side):
            yield side.condition
        elif isinstance(side, Elements):
            yield side.array
        elif isinstance(side, Looked):
            yield from side.keys


def branch_text(branch: Branch) -> str:
    """A branch for people."""
    filters = f" WHERE {branch.columns[TAKEN].sql()}" if TAKEN in branch.columns else ""
    return branch.base.name + "".join(map(_side_text, branch.sides)) + filters


def _side_text(side: AnySide) -> str:
    if isinstance(side, Function):
        return f" through {side.batches.reference} ({side.batches.digest})"
    if isinstance(side, Elements):
        return f" LATERAL VIEW OUTER {side.kind.lower()}({side.array.sql()})"
    if isinstance(side, Looked):
        table = side.keyed.reader.table
        return f" LEFT JOIN {table.form} {table.key} ({table.digest}) BY {', '.join(key.sql() for key in side.keys)}"
    return f" LEFT JOIN {relation_text(side.plan)} ON {side.condition.sql()}"


def read_by(branch: Branch, names: Iterable[str]) -> frozenset[str]:
    """The columns of a branch's stream that columns of the derived one are made of, and what it takes to make them."""
    if any(isinstance(side, Function) for side in branch.sides):
        return frozenset(field.name for field in branch.base.columns)  # a function is handed whole rows
    made = [*(branch.columns[name] for name in names if name in branch.columns), *_expressions(branch.sides)]
    used = {str(column.name()) for part in made for column in references(part)}
    return frozenset(field.name for field in branch.base.columns if field.name in used)


def multiplies(branch: Branch) -> bool:
    """Whether elements of one array are multiplied by those of another, so that the number of rows needs a limit.

    One array makes as many rows as it has elements, which the size of its event bounds. Several multiply: along each
    path the product of their sizes is at most `value_bounds.ROWS`, so that the rows of an event are no more.
    """
    return sum(isinstance(side, Elements) for side in branch.sides) > 1


def limited_names(derived: Derived | None) -> frozenset[str]:
    """The columns that say whether an element is there, which raise for an event of too many rows."""
    found: set[str] = set()
    for branch in () if derived is None else derived.branches:
        if multiplies(branch):
            markers = {side.name for side in branch.sides if isinstance(side, Elements)}
            for name, column in branch.columns.items():
                if markers & {str(one.name()) for one in references(column)}:
                    found.add(name)
    return frozenset(found)
