"""Moves the served rows of some buckets from the stores that hold them to another store, while both are in use.

A move has three steps, which any process may carry out and repeat:

- *copy* each bucket as of its current number,
- *catch up* with later records, as any view does,
- *forget* the old rows, after the record that states the new location.

Before that record nobody reads the copy, so the next attempt clears an unfinished copy. A publisher that was suspended
and resumes can do no harm: it applies records by number, or clears a bucket, which is then replayed like one that its
store has lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from millpond.errors import StoreError
from millpond.faults import reached
from millpond.followers.view.view import ViewFollower
from millpond.log.follower import Pump, pump
from millpond.log.manifest import Manifests
from millpond.log.port import Log
from millpond.state.ports.store import NEVER, Apply, BucketStore, TableWrite

_TRIES = 50
"""The most times that a bucket is read if it advances during the read."""

_MOST_ROWS = 10_000
"""About how many rows are copied at once, from several buckets if these have fewer rows."""


def copy_buckets(source: BucketStore, target: BucketStore, buckets: Iterable[int]) -> int:
    """Copy buckets from `source` to `target`, all tables of a bucket as of one number; returns the number of rows.

    Raises:
        StoreError: a bucket advances faster than it can be read, or a store refused.
    """
    remaining, rows = list(buckets), 0
    for _ in range(_TRIES):
        # in this order: a table that is created in the meantime has a higher number
        stands, tables = source.stands_many(remaining), sorted(source.tables())
        found = [source.scan_many(remaining, table) for table in tables]
        steps, whole, moved_on = list[Apply](), list[int](), list[int]()
        for place, (bucket, (number, mark)) in enumerate(zip(remaining, stands, strict=True)):
            mine = [(table, of[place]) for table, of in zip(tables, found, strict=True)]
            if any(one.torn or one.applied != number for _, one in mine):
                moved_on.append(bucket)
                continue
            whole.append(bucket)
            if number != NEVER:
                writes = [TableWrite(table, one.keys, one.values) for table, one in mine if one.keys]
                steps.append(Apply(bucket, number, NEVER, writes, mark))
                rows += sum(len(one.keys) for _, one in mine)
        forget(target, whole)
        if steps:
            target.apply_many(steps)
        remaining = moved_on
        if not remaining:
            return rows
    raise StoreError(f"Bucket {remaining[0]} changes faster than it can be read.", "Try again when fewer rows change.")


def copy(source: BucketStore, target: BucketStore, buckets: Sequence[int], may_go_on: Callable[[int], bool]) -> int:
    """Copy buckets, several at once if they have few rows; returns the number of rows.

    `may_go_on` is called with the number of copied buckets. A store syncs its disk at each write, so one write per
    bucket would delay the epochs, which use the same disk.

    Raises:
        StoreError: a store refused, or `may_go_on` returned False.
    """
    rows, done, size = 0, 0, 1
    while done < len(buckets):
        if not may_go_on(done):
            raise StoreError("The pond was closed, or another driver took over.", "Send the request to the leader.")
        found = copy_buckets(source, target, buckets[done : done + size])
        reached("move.copied")
        rows, done = rows + found, done + size
        size = max(1, min(2 * size, _MOST_ROWS * size // max(1, found)))
    return rows


class CatchingUp:
    """Brings copies from their current record to the head of the log."""

    def __init__(self, view: ViewFollower, log: Log, manifests: Manifests) -> None:
        self._view, self._log, self._manifests = view, log, manifests
        self._pump = Pump(view.name)

    def apply_to_head(self) -> int:
        """Apply the records up to the head of the log; returns the record that the copies have reached.

        Raises:
            StoreError: the store refused; may be called again.
        """
        return pump(self._pump, self._view, self._log, self._manifests)


def forget(store: BucketStore, buckets: Sequence[int]) -> int:
    """Delete a store's data of buckets that are kept elsewhere; returns the number of these buckets."""
    left = [bucket for bucket, n in zip(buckets, store.applied_many(buckets), strict=True) if n != NEVER]
    if left:
        store.clear_many(left)
    return len(left)
