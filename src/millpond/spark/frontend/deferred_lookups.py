"""Leaves the look-up of a keyed table out of the read: the events carry the key to the instance that owns it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millpond.model.selection import AnyQuery
from millpond.model.stream import TAKEN, Field
from millpond.plan.options.keyed_lookups import why_by_readers
from millpond.runtime.task.column_layout import LookedColumn, OwnerLookup
from millpond.spark.analysis.derived_streams import KeyedLookup
from millpond.spark.reading.read_frame import WantedStream
from millpond.spark.sources.keyed_tables import ALIVE


def by_owners(want: WantedStream, queries: Iterable[AnyQuery], watched: str | None) -> WantedStream:
    """The stream with the key of its keyed table in place of the row, if owners look up the rows; otherwise `want`.

    `queries`, `watched`: as in `why_by_readers`.
    """
    stream, derived = want.stream, want.derived
    if derived is None or why_by_readers(stream, queries, watched) is not None:
        return want
    [branch] = derived.branches
    side = next(side for side in branch.sides if isinstance(side, KeyedLookup))
    table, keyed = side.keyed.reader.table, {*stream.keyed_columns}
    found = {side.name: "partner"} | {
        name: "alive" if of == ALIVE else of for name, of in zip(side.names, side.columns, strict=True)
    }
    types = {field.name: field.type for field in (*stream.columns, *table.columns)}
    looked = [
        LookedColumn(name, types[name], found[str(branch.columns[name].name())])
        for name in want.columns if name in keyed
    ]  # fmt: skip
    of_table = {field.name: field.type for field in table.columns}
    keys = tuple(Field(f"{side.name}.key:{place}", of_table[name]) for place, name in enumerate(table.keys))
    # the only expression of Spark over the row is the one that raises for a dead event
    lethal = [made for made in want.foreigns if made.value.columns == (TAKEN,)]
    looked += [LookedColumn(made.value.name, made.value.type, "alive", foreign=True) for made in lethal]
    own = {name: column for name, column in branch.columns.items() if name not in keyed}
    branch = branch._replace(
        sides=tuple(other for other in branch.sides if other is not side),
        columns=own | dict(zip((key.name for key in keys), side.keys, strict=True)),
    )
    fields = (*(field for field in stream.columns if field.name not in keyed), *keys)
    names = tuple(key.name for key in keys)
    return want._replace(
        stream=msgspec.structs.replace(stream, columns=fields),
        columns=(*(name for name in want.columns if name not in keyed), *names),
        foreigns=tuple(made for made in want.foreigns if made not in lethal),
        derived=derived._replace(branches=(branch,)),
        lookup=OwnerLookup(table, side.keyed.reader, names, tuple(looked)),
    )
