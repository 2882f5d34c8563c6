"""The kinds of measures: one row per kind, with the space that it takes.

How the columns of a kind are computed from events is in `runtime.aggregates.partials`, how they merge in
`state.layout.merge_rules`.
"""

from __future__ import annotations

from typing import NamedTuple

from millpond.model.types import is_integer
from millpond.plan.groups.plan import Measure

_WORD_BYTES = 8


class MeasureKind(NamedTuple):
    """A kind of measure; `cell_bytes`: estimated bytes of a cell in a packet, for exact sums of typical data.

    `columns`: the usual number of columns, and `integer_columns` that for values of an integer type.
    """

    name: str
    cell_bytes: int
    columns: int
    integer_columns: int


_ROWS = (
    MeasureKind("count", 2, 1, 1),
    MeasureKind("sum", 14, 2, 1),
    MeasureKind("squares", 21, 3, 2),
    MeasureKind("products", 21, 3, 2),
    MeasureKind("power3", 28, 3, 3),
    MeasureKind("power4", 35, 4, 4),
    MeasureKind("min", 8, 1, 1),
    MeasureKind("max", 8, 1, 1),
    MeasureKind("and", 8, 1, 1),
    MeasureKind("or", 8, 1, 1),
    MeasureKind("xor", 8, 1, 1),
)

KINDS = {kind.name: kind for kind in _ROWS}
"""The kinds of measures of a fixed size, by name; the other kind is `registers<p>`, with 2**p registers of a byte."""


def cell_bytes(measure: Measure) -> int:
    """Estimated bytes of a cell of a measure in a packet.

    Raises:
        ValueError: the kind of the measure is unknown.
    """
    # most registers of small cells are zero, and zeros compress well
    return (1 << measure.precision) // 4 if measure.precision else _kind_of(measure).cell_bytes


def usual_columns(measure: Measure) -> float:
    """The usual number of columns of a measure.

    Raises:
        ValueError: the kind of the measure is unknown.
    """
    if measure.precision:
        return (1 << measure.precision) / _WORD_BYTES
    kind = _kind_of(measure)
    return kind.integer_columns if is_integer(measure.type) else kind.columns


def _kind_of(measure: Measure) -> MeasureKind:
    kind = KINDS.get(measure.kind)
    if kind is None:
        raise ValueError(f"There is no measure of the kind {measure.kind!r}.")
    return kind
