"""Describes how a derived stream is computed: branches, each from one stream through joins, elements and functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from pyspark.sql import SparkSession

from millpond.model.stream import TAKEN, Stream
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, analysed, items, kind_of, references
from millpond.spark.catalyst.spark_expressions import tree_of
from millpond.spark.sources.arrow_functions import ArrowFunction
from millpond.spark.sources.batch_tables import relation_text, relation_tree
from millpond.spark.sources.keyed_tables import ALIVE, Keyed

PLAIN = ("AttributeReference", "Literal")
"""Expressions that need no computation."""


class TableJoin(NamedTuple):
    """A batch relation joined LEFT OUTER.

    `names` are the names of its columns within the branch. `name` is the column that is TRUE if there is a partner.
    `condition` refers to attributes by their names. `existence`: there is no more than the column `name`, which is
    FALSE without a partner, and an event stays one row, however many partners it has.
    """

    name: str
    plan: JavaObject
    names: tuple[str, ...]
    condition: JavaObject
    existence: bool = False


class Elements(NamedTuple):
    """A row for each element of `array`, or one row if there are no elements.

    `array` is an array or a map that refers to attributes by their names. `kind` is the class of Spark's generator.
    `names` and `name` are as in `TableJoin`. `text` describes the array for people, if its SQL would be too long.
    """

    name: str
    kind: str
    names: tuple[str, ...]
    array: JavaObject
    text: str | None = None


class FunctionRows(NamedTuple):
    """The rows that a function of batches returns; `names` and `name` are as in `TableJoin`, or NULL if it raised."""

    name: str
    names: tuple[str, ...]
    batches: ArrowFunction


class KeyedLookup(NamedTuple):
    """A keyed table joined LEFT OUTER.

    `keys` refer to attributes by their names, and are in the order of the table's keys. `columns` gives the table's
    column for each of `names`; the last one is `keyed.ALIVE`. `name` is as in `TableJoin`.
    """

    name: str
    keyed: Keyed
    names: tuple[str, ...]
    columns: tuple[str, ...]
    keys: tuple[JavaObject, ...]


class Branch(NamedTuple):
    """One input of a derived stream, from its base stream on.

    `columns` are expressions over attributes with the names of the stream's columns or of `sides`. `time` is the one
    that is the event time, if it is computed; it is NULL where this raises.
    """

    base: Stream
    sides: tuple[AnySide, ...]
    columns: Mapping[str, JavaObject]
    time: str | None = None


AnySide: TypeAlias = TableJoin | Elements | FunctionRows | KeyedLookup


class Derived(NamedTuple):
    """A stream that Spark computes from other streams while it reads.

    `is_placeholder`: only quarantined queries read it, so its columns are NULL; how they were computed is not known.
    """

    stream: Stream
    branches: tuple[Branch, ...]
    is_placeholder: bool = False


def placeholder(spark: SparkSession, stream: Stream, bases: Iterable[Stream]) -> Derived:
    """A derived stream that only quarantined queries read."""
    nulls = [f"CAST(NULL AS {field.type}) AS `{field.name}`" for field in stream.columns]
    made = items(analysed(spark.range(0).selectExpr(*nulls)).projectList())
    columns = {field.name: alias.child() for field, alias in zip(stream.columns, made, strict=True)}
    return Derived(stream, tuple(Branch(base, (), columns) for base in bases), is_placeholder=True)


def bases_of(derived: Iterable[Derived]) -> tuple[Stream, ...]:
    """The streams from which Spark computes some derived streams, each once."""
    return tuple({branch.base.name: branch.base for one in derived for branch in one.branches}.values())


def time_sources(derived: Derived, event_time: str) -> dict[str, str]:
    """By base stream, its column whose values are the event time of a derived stream; empty if one is computed."""
    sources: dict[str, str] = {}
    for branch in derived.branches:
        time = branch.columns.get(event_time)
        if time is None or kind_of(time) != "AttributeReference" or branch.base.upstreams:
            return {}
        column = str(time.name())
        own = any(field.name == column for field in branch.base.columns)
        if not own or sources.setdefault(branch.base.name, column) != column:
            return {}
    return sources


def stream_with_equal_times(derived: Derived, event_time: str, others: Iterable[tuple[Derived, str]]) -> dict[str, str]:
    """The first of other derived streams whose events have the times of all events of `derived`, with its event time.

    Both compute the time by equal expressions of one base stream, and the other one has a row for each of its events.
    """
    time = derived.branches[0].columns.get(event_time) if len(derived.branches) == 1 else None
    if time is None:
        return {}
    wanted = derived.branches[0].base.name, str(time.sql())
    for other, column in others:
        branch = other.branches[0]
        same = len(other.branches) == 1 and (branch.base.name, str(branch.columns[column].sql())) == wanted
        if same and not branch.sides:
            return {other.stream.name: column}
    return {}


def is_harmless(expression: JavaObject) -> bool:
    """Whether an expression cannot raise because it is a column, a constant or a field of one."""
    return kind_of(expression) in PLAIN or (kind_of(expression) == "GetStructField" and is_harmless(expression.child()))


def texts_of(derived: Derived) -> Iterator[str]:
    """The texts of all expressions and relations that Spark evaluates for a derived stream."""
    for branch in derived.branches:
        for made in (*branch.columns.values(), *_expressions(branch.sides)):
            yield str(made.sql())
        yield from (str(side.plan.toString()) for side in branch.sides if isinstance(side, TableJoin))


def _expressions(sides: Iterable[AnySide]) -> Iterator[JavaObject]:
    """The conditions, arrays and keys of sides, as expressions over the columns of their stream."""
    for side in sides:
        if isinstance(side, TableJoin):
            yield side.condition
        elif isinstance(side, Elements):
            yield side.array
        elif isinstance(side, KeyedLookup):
            yield from side.keys


def keyed_columns(branches: Iterable[Branch]) -> tuple[str, ...]:
    """The columns that are the row of the only keyed table of the only branch, see `Stream.keyed`; () if not so."""
    branch, *more = branches
    looked = [side for side in branch.sides if isinstance(side, KeyedLookup)]
    if more or len(looked) != 1:
        return ()
    [side] = looked
    row = {side.name, *side.names}
    alive = side.names[side.columns.index(ALIVE)]
    others = [other for other in branch.sides if other is not side]
    used = {str(column.name()) for part in _expressions(others) for column in references(part)}
    columns = []
    for name, column in branch.columns.items():
        read = {str(one.name()) for one in references(column)}
        if row.isdisjoint(read):
            continue
        is_alive = name == TAKEN and kind_of(column) == "AssertNotNull" and read == {alive}
        if kind_of(column) != "AttributeReference" and not is_alive:
            return ()
        columns.append(name)
    return () if used & row else tuple(columns)


def branch_text(branch: Branch) -> str:
    """A text that describes a branch for people."""
    filters = f" WHERE {branch.columns[TAKEN].sql()}" if TAKEN in branch.columns else ""
    return branch.base.name + "".join(map(_side_text, branch.sides)) + _time_text(branch) + filters


def _time_text(branch: Branch) -> str:
    return "" if branch.time is None else f" WITH {time_sql(branch, branch.time)} AS {branch.time}"


def time_sql(branch: Branch, name: str) -> str:
    """The expression of the event time `name`, as text for people."""
    time = branch.columns[name]
    return str((time.child() if kind_of(time) == "TryEval" else time).sql())


def _side_text(side: AnySide) -> str:
    if isinstance(side, FunctionRows):
        return f" through {side.batches.reference} ({side.batches.digest})"
    if isinstance(side, Elements):
        return f" LATERAL VIEW OUTER {side.kind.lower()}({side.text or side.array.sql()})"
    if isinstance(side, KeyedLookup):
        table = side.keyed.reader.table
        return f" LEFT JOIN {table.form} {table.key} ({table.digest}) BY {', '.join(key.sql() for key in side.keys)}"
    kind = "EXISTENCE" if side.existence else "LEFT"
    return f" {kind} JOIN {relation_text(side.plan)} ON {side.condition.sql()}"


def side_tree(catalyst: Catalyst, side: AnySide) -> list[object]:
    """The meaning of a side as plain values, with columns by their names."""

    def tree(expression: JavaObject) -> list[object]:
        return tree_of(catalyst, expression, lambda column: str(column.name()))

    if isinstance(side, FunctionRows):
        return ["map", side.batches.reference, side.batches.digest, side.batches.makes.simpleString()]
    if isinstance(side, Elements):
        return [side.kind, tree(side.array)]
    if isinstance(side, KeyedLookup):
        return ["keyed", side.keyed.reader.table.digest, list(side.columns), [tree(key) for key in side.keys]]
    found: list[object] = [relation_tree(catalyst, side.plan), tree(side.condition)]
    return ["exists", *found] if side.existence else found


def read_by(branch: Branch, names: Iterable[str]) -> frozenset[str]:
    """The columns of a branch's base stream that the columns `names` and the branch's joins are computed from."""
    if any(isinstance(side, FunctionRows) for side in branch.sides):
        return frozenset(field.name for field in branch.base.columns)  # a function receives complete rows
    made = [*(branch.columns[name] for name in names if name in branch.columns), *_expressions(branch.sides)]
    used = {str(column.name()) for part in made for column in references(part)}
    return frozenset(field.name for field in branch.base.columns if field.name in used)


def multiplies(branch: Branch) -> bool:
    """Whether elements of one array are multiplied by those of another, so that the number of rows needs a limit.

    One array makes as many rows as it has elements, and the size of the event bounds this number. The numbers of
    several arrays multiply. Their product is limited to `value_bounds.ROWS` along each path, so an event never makes
    more rows.
    """
    return sum(isinstance(side, Elements) for side in branch.sides) > 1


def limited_names(derived: Derived | None) -> frozenset[str]:
    """The columns that say whether there is an element; they raise for an event that would make too many rows."""
    found: set[str] = set()
    for branch in () if derived is None else derived.branches:
        if multiplies(branch):
            markers = {side.name for side in branch.sides if isinstance(side, Elements)}
            for name, column in branch.columns.items():
                if markers & {str(one.name()) for one in references(column)}:
                    found.add(name)
    return frozenset(found)
