"""Numbers the distinct keys of a chunk and assigns them to the instances that own them.

A group with grouping sets has the keys of each set: those of a coarser set are made from the distinct keys of a finer
one, so only the finest sets look at events. The keys that a set leaves out are NULL, and the last key column is the id
of the set, so a NULL of the data is another key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millpond.arrays import Ints, ordered, places_of
from millpond.kernels.columns import arrow_type
from millpond.kernels.key_codes import KeyCodes, encode, key_column
from millpond.model.expressions import Expression
from millpond.model.query import GroupingSet
from millpond.placement.slots import Codes
from millpond.plan.groups.joins import SideLog
from millpond.plan.groups.plan import GroupPlan
from millpond.runtime.aggregates.partials import Rows
from millpond.runtime.keys.buckets import buckets_of_keys
from millpond.runtime.packets.packet import GroupPart
from millpond.runtime.packets.raw_columns import RawRows
from millpond.runtime.task.task_values import GatherTask
from millpond.state.layout.cells import Piece
from millpond.state.layout.event_log import Events

_FEW = 4
"""If a group takes less than this part of a chunk's rows, only these are encoded, not the column for all groups."""


class Owned(NamedTuple):
    """The keys of a chunk and their buckets, by instance; `instance` owns the keys `first` … `end` - 1."""

    instance: int
    keys: list[pa.Array]
    buckets: Codes
    first: int
    end: int

    def part(self, group: str, body: Piece | RawRows | Events) -> GroupPart:
        """A part of the instance's packet, with its keys."""
        count = self.end - self.first
        keys = [key.slice(self.first, count) for key in self.keys]
        return GroupPart(group, keys, count, body, self.buckets[self.first : self.end])


class ChunkKeys:
    """The distinct keys of a chunk, or of one of its grouping sets.

    `finer` is the set from whose keys those of a coarser set are made, and `of_finer` the key of each of its keys.
    """

    def __init__(
        self, owned: Sequence[Owned], count: int, codes: Ints | None, finer: ChunkKeys | None = None,
        of_finer: Ints | None = None,
    ) -> None:  # fmt: skip
        self.owned, self.count, self.finer, self.of_finer = owned, count, finer, of_finer
        self._codes = codes

    @property
    def codes(self) -> Ints:
        """The key of each row."""
        if self._codes is None:
            assert self.finer is not None and self.of_finer is not None
            self._codes = self.of_finer[self.finer.codes]
        return self._codes

    @property
    def columns(self) -> list[pa.Array]:
        """The key columns of all keys."""
        return self.owned[0].keys


def owned_keys(task: GatherTask, group: GroupPlan | SideLog, rows: Rows) -> ChunkKeys:
    """The keys of the rows of a group without grouping sets."""
    return _of_instances(task, group, *_distinct([_key_codes(key, rows) for key in group.keys], rows.count))


def keys_of_sets(task: GatherTask, group: GroupPlan, rows: Rows) -> list[ChunkKeys]:
    """The keys of each grouping set, finer sets first; one element if the group has no grouping sets."""
    if not group.grouping_sets:
        return [owned_keys(task, group, rows)]
    made: list[tuple[GroupingSet, ChunkKeys]] = []
    columns: dict[int, KeyCodes] = {}
    for grouping in sorted(group.grouping_sets, key=lambda grouping: -len(grouping.keys)):
        finer = min((keys for own, keys in made if {*grouping.keys} <= {*own.keys}), key=_size, default=None)
        if finer is None:
            columns |= {i: _key_codes(group.keys[i], rows) for i in grouping.keys if i not in columns}
        known = columns if finer is None else {i: encode(finer.columns[i]) for i in grouping.keys}
        codes, kept, count = _distinct([known[i] for i in grouping.keys], rows.count if finer is None else finer.count)
        named = dict(zip(grouping.keys, kept, strict=True))
        full = [named[i] if i in named else pa.nulls(count, arrow_type(key.type)) for i, key in enumerate(group.keys)]
        full[-1] = pa.array(np.full(count, grouping.id, np.int64))
        made.append((grouping, _of_instances(task, group, codes, full, count, finer)))
    return [keys for _, keys in made]


def _size(keys: ChunkKeys) -> int:
    return keys.count


def _of_instances(
    task: GatherTask, group: GroupPlan | SideLog, codes: Ints, keys: list[pa.Array], count: int,
    finer: ChunkKeys | None = None,
) -> ChunkKeys:  # fmt: skip
    codes, keys, buckets, bounds = _by_bucket(task, group, codes, keys, count)
    owned = [Owned(i, keys, buckets, int(bounds[i]), int(bounds[i + 1])) for i in range(task.instances)]
    return ChunkKeys(owned, count, codes) if finer is None else ChunkKeys(owned, count, None, finer, codes)


def only_used(owned: Sequence[Owned], codes: Ints) -> tuple[Sequence[Owned], Ints]:
    """Drops the keys that no row has; returns the other keys, and their new codes for each row."""
    used = np.zeros(owned[-1].end, bool)
    used[codes] = True
    if used.all():
        return owned, codes
    before = np.concatenate([[0], np.cumsum(used)])
    keys = [key.filter(pa.array(used)) for key in owned[0].keys]
    buckets = owned[0].buckets[used]
    used_keys = [Owned(own.instance, keys, buckets, int(before[own.first]), int(before[own.end])) for own in owned]
    return used_keys, before[codes]


def _distinct(columns: Sequence[KeyCodes], rows: int) -> tuple[Ints, list[pa.Array], int]:
    """The code of each row's key, the columns of the distinct keys, and their number."""
    if not columns:
        return np.zeros(rows, np.int64), [], 1
    codes, values = columns[0]
    if len(columns) == 1:
        return codes, [values], len(values)
    count = len(values)
    positions = [np.arange(count)]  # of each key's value, for each column
    for column in columns[1:]:
        width = len(column.values)
        pairs, codes = places_of(codes * width + column.codes, count * width)
        before = pairs // width
        positions = [*(known[before] for known in positions), pairs - before * width]
        count = len(pairs)
    return codes, [_column(at, column.values) for at, column in zip(positions, columns, strict=True)], count


def _column(positions: Ints, values: pa.Array) -> pa.Array:
    """The values at some positions; texts keep their dictionary, as many keys may share a text."""
    if pa.types.is_string(values.type):
        return pa.DictionaryArray.from_arrays(pa.array(positions.astype(np.int32)), values)
    return values.take(pa.array(positions))


def _key_codes(expression: Expression, rows: Rows) -> KeyCodes:
    """A key column of a group's rows."""
    if rows.index is None:
        return rows.evaluator.key_codes(expression)
    if len(rows.index) * _FEW < rows.evaluator.rows:
        column = key_column(rows.evaluator(expression), expression.type, rows.evaluator.rows)
        return encode(column.take(pa.array(rows.index)))
    every = rows.evaluator.key_codes(expression)
    return KeyCodes(every.codes[rows.index], every.values).without_unused()


def _by_bucket(
    task: GatherTask, group: GroupPlan | SideLog, codes: Ints, keys: list[pa.Array], count: int
) -> tuple[Ints, list[pa.Array], Codes, Ints]:
    """Renumber keys by instance and bucket; also returns their buckets and where the keys of each instance begin.

    The order of buckets is also that of the dictionary, so that a fold reads the keys that it knows in order.
    """
    buckets = buckets_of_keys(group, keys, count, len(task.owners))
    owners = np.array(task.owners)[buckets]
    order = ordered(owners * len(task.owners) + buckets)
    bounds = np.searchsorted(owners[order], np.arange(task.instances + 1))
    if bool((np.diff(order) > 0).all()):
        return codes, keys, buckets, bounds
    rank = np.empty(count, np.int64)
    rank[order] = np.arange(count)
    return rank[codes], [key.take(pa.array(order)) for key in keys], buckets[order], bounds
