"""Computes the bucket of each key of a group, for packets, state migration and look-ups."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millpond.placement.checksums import LONGEST, Part, joined_checksums, part_of
from millpond.placement.partitions import buckets_by_partition
from millpond.placement.slots import Codes, buckets_of, slots_of, slots_of_checksums
from millpond.plan.groups.joins import SideLog
from millpond.plan.groups.plan import GroupPlan
from millpond.state.keys.keys import SEPARATOR, KeyColumns, texts_of


def buckets_of_keys(group: GroupPlan | SideLog, keys: KeyColumns, count: int, buckets: int) -> Codes:
    """The bucket of each of `count` keys of a group, or of a side of joins."""
    return buckets_by(group.spread_by if isinstance(group, GroupPlan) else None, keys, count, buckets)


def buckets_by(spread: int | None, keys: KeyColumns, count: int, buckets: int) -> Codes:
    """The bucket of each key: by the key column at `spread`, which partitions the topic, or (None) by all columns."""
    if not count:
        return np.zeros(0, np.int64)
    if spread is None:
        return buckets_of(_slots(keys, count), buckets)
    texts: pa.Array = texts_of([keys[spread]], count)
    return buckets_by_partition(texts, buckets)


def _slots(keys: KeyColumns, count: int) -> Codes:
    """The hash slot of each key; each value of a dictionary is read once."""
    if any(pa.types.is_dictionary(key.type) for key in keys):
        parts = [_values(key) for key in keys]
        if all(int(part.lengths.max()) <= LONGEST for part in parts[1:]):
            rows = [_taken(part, key) for part, key in zip(parts, keys, strict=True)]
            return slots_of_checksums(joined_checksums(rows, SEPARATOR))
    return slots_of(texts_of(keys, count))


def _values(key: pa.Array) -> Part:
    """The texts of a key column, or of its dictionary."""
    values = key.dictionary if pa.types.is_dictionary(key.type) else key
    return part_of(texts_of([values], len(values)))


def _taken(part: Part, key: pa.Array) -> Part:
    return part.take(np.asarray(key.indices)) if pa.types.is_dictionary(key.type) else part
