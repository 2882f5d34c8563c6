"""Brings the served rows of some buckets from the stores that keep them to another one, while both are in use.

Three steps, each of which may be repeated, by anybody: *copy* each bucket whole, as of the number that it stands at;
*catch up* with the records since, as any view does; and, when the record that says where rows are has been appended,
*forget* what is left behind. Nobody reads the copy before that record, and nobody needs it: a copy that was left
half-way is cleared by whoever tries again. A publisher that wakes late can only apply records by their numbers, or
clear a bucket, which is then replayed as one that its store has lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from millpond.errors import StoreError
from millpond.faults import reached
from millpond.log.follower import Pump, pump
from millpond.log.manifest import Manifests
from millpond.log.port import Log
from millpond.runtime.followers.view import ViewFollower
from millpond.state.store import NEVER, Apply, BucketStore, TableWrite

_TRIES = 50
"""How often a bucket is read that moves on meanwhile."""


def copy_bucket(source: BucketStore, target: BucketStore, bucket: int) -> int:
    """Bring a bucket into `target` as it is in `source`, all tables as of one number; returns how many rows.

    Raises:
        StoreError: it moves on faster than it can be read, or a store refused.
    """
    tables = sorted(source.tables())
    for _ in range(_TRIES):
        found = [source.scan(bucket, table) for table in tables]
        numbers = {rows.applied for rows in found} | {source.applied(bucket)}
        if len(numbers) == 1 and not any(rows.torn for rows in found):
            break
    else:
        raise StoreError(f"Bucket {bucket} changes faster than it can be read.", "Try again when less happens.")
    (number,) = numbers
    target.clear(bucket)
    if number == NEVER:
        return 0
    writes = [
        TableWrite(table, rows.keys, rows.values) for table, rows in zip(tables, found, strict=True) if rows.keys
    ]
    target.apply_many([Apply(bucket, number, NEVER, writes)])
    return sum(len(rows.keys) for rows in found)


def copy(
    source: BucketStore, target: BucketStore, buckets: Iterable[int], may_go_on: Callable[[int], bool]
) -> int:
    """Copy buckets one after the other; `may_go_on` is told of each before it. Returns how many rows.

    Raises:
        StoreError: a store refused, or this may not go on.
    """
    rows = 0
    for done, bucket in enumerate(buckets):
        if not may_go_on(done):
            raise StoreError("The pond was closed, or another driver has taken over.", "Ask the one that leads.")
        rows += copy_bucket(source, target, bucket)
        reached("move.copied")
    return rows


class CatchingUp:
    """Brings copies from where they stand to the head of the log."""

    def __init__(self, view: ViewFollower, log: Log, manifests: Manifests) -> None:
        self._view, self._log, self._manifests = view, log, manifests
        self._pump = Pump(view.name)

    def go(self) -> int:
        """The record that the copies stand at now.

        Raises:
            StoreError: the store refused; may be called again.
        """
        return pump(self._pump, self._view, self._log, self._manifests)


def forget(store: BucketStore, buckets: Sequence[int]) -> int:
    """Delete what a store holds of buckets that are kept elsewhere; returns how many there were."""
    left = [bucket for bucket, n in zip(buckets, store.applied_many(buckets), strict=True) if n != NEVER]
    if left:
        store.clear_many(left)
    return len(left)
