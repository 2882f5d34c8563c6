"""Computes the bucket of each key of a group, for packets, state migration and look-ups."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millpond.placement.partitions import buckets_by_partition
from millpond.placement.slots import Codes, buckets_of, slots_of
from millpond.plan.groups.joins import SideLog
from millpond.plan.groups.plan import GroupPlan
from millpond.state.keys.keys import KeyColumns, texts_of


def buckets_of_keys(group: GroupPlan | SideLog, keys: KeyColumns, count: int, buckets: int) -> Codes:
    """The bucket of each of `count` keys of a group, or of a side of joins."""
    return buckets_by(group.spread_by if isinstance(group, GroupPlan) else None, keys, count, buckets)


def buckets_by(spread: int | None, keys: KeyColumns, count: int, buckets: int) -> Codes:
    """The bucket of each key: by the key column at `spread`, which partitions the topic, or (None) by all columns."""
    if not count:
        return np.zeros(0, np.int64)
    if spread is None:
        return buckets_of(slots_of(texts_of(keys, count)), buckets)
    texts: pa.Array = texts_of([keys[spread]], count)
    return buckets_by_partition(texts, buckets)
