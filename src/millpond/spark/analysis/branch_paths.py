"""The branches of a derived stream while they are built: paths from a stream up to a query's input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from millpond.spark.analysis.aggregation_input import Step
from millpond.spark.catalyst.private_names import (
    Catalyst,
    JavaObject,
    attributes_of,
    children,
    conjuncts,
    id_of,
    kind_of,
    references,
)
from millpond.spark.sources.arrow_functions import ArrowFunction
from millpond.spark.sources.keyed_tables import KeyedPartner


class Partner(NamedTuple):
    """The batch relation of one join: its columns, their names, and the column that is TRUE if there is a partner.

    `existence`: only this column is read, see `derived_streams.TableJoin`.
    """

    plan: JavaObject
    attributes: list[JavaObject]
    names: tuple[str, ...]
    marker: JavaObject
    existence: bool = False
    prefix: str = "join"


class GeneratedRows(NamedTuple):
    """The elements of one array or map, with the same fields as `Partner`; `text` as in `Generated`."""

    generator: JavaObject
    attributes: list[JavaObject]
    names: tuple[str, ...]
    marker: JavaObject
    prefix: str = "each"
    text: str | None = None


class MappedRows(NamedTuple):
    """The rows that a function of batches returns, with the same fields as `Partner`."""

    batches: ArrowFunction
    attributes: list[JavaObject]
    names: tuple[str, ...]
    marker: JavaObject
    prefix: str = "map"


JoinedRows: TypeAlias = Partner | GeneratedRows | MappedRows | KeyedPartner


class BranchPath(NamedTuple):
    """A branch that is being built.

    `layers` are its layers of aliases, from the highest down. `joins` are its joins with their conditions over the
    columns below them; elements have the array instead of a condition. `names` are the names of `Branch.columns` by
    expression id.
    """

    leaf: JavaObject
    layers: list[list[JavaObject]]
    joins: list[tuple[JoinedRows, JavaObject]]
    filters: list[JavaObject]
    names: dict[int, str]


def names_of(leaf: JavaObject, joins: list[tuple[JoinedRows, JavaObject]]) -> dict[int, str]:
    found = {column.id: column.name for column in attributes_of(leaf) if not column.hidden}
    for number, (met, _) in enumerate(joins, 1):
        found |= {id_of(column): f"{met.prefix}{number}.{name}" for name, column in named(met)}
        found[id_of(met.marker)] = f"{met.prefix}{number}"
    return found


def named(met: JoinedRows) -> list[tuple[str, JavaObject]]:
    return list(zip(met.names, met.attributes, strict=True))


def unique_names(attributes: list[JavaObject]) -> tuple[str, ...]:
    names = [str(column.name()) for column in attributes]
    return tuple(name if names.count(name) == 1 else f"{name}#{place}" for place, name in enumerate(names))


def conditions_of(step: Step) -> list[JavaObject]:
    return [] if step.condition is None else conjuncts(step.condition)


def probe_of(part: JavaObject, partner: Partner | KeyedPartner) -> JavaObject | None:
    """The stream's side of an equality between the two sides of a join; None if this part is not such an equality."""
    if kind_of(part) not in ("EqualTo", "EqualNullSafe"):
        return None
    own = {id_of(column) for column in partner.attributes}
    left, right = ({id_of(column) for column in references(side)} for side in children(part))
    if left and left <= own and right and not right & own:
        return children(part)[1]
    return children(part)[0] if right and right <= own and left and not left & own else None


def resolved(catalyst: Catalyst, expression: JavaObject, layers: Sequence[Sequence[JavaObject]]) -> JavaObject:
    """The expression over the columns below some layers of aliases, the highest first."""
    for layer in layers:
        expression = catalyst.substitute(expression, layer)
    return expression
