"""Counters: what gather and fold count, by the name of a query, group or stream, and how receipts and records store it.

They are merged in one place (`Counters.add`): packets into a fold, and the folds of all instances into the record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy

import msgspec

WHOLE_POND = "*"
"""The name of the counts that belong to no single query."""


class Counts(msgspec.Struct, omit_defaults=True):
    """What is counted under one name, in one epoch. Each name uses some of the fields; the others are 0.

    - A query: its events, `read` = `applied` + `late` + `dead` + `filtered`; its `rows`, those that HAVING `withheld`,
      and `late_rows`; events that were left out as `repeated`, or `recalled` when the query was added; the instances on
      which it `raised` an error; and lists of its rows that were too long for a parameter (`feed_too_long`).
    - A group: `group_us`, its part of `gather_us` and `fold_us`.
    - A stream (`stream_counts`): records that are `malformed`, and its `dead_letters`.
    - The whole pond (`WHOLE_POND`): `events` and `bytes_read` (Arrow); `bytes_moved` (packets); `slices_read` (slices
      and tiles from which closing windows were combined); `gather_us` and `fold_us` (time that the workers spent in
      Python, summed over all tasks, without waiting for input), and `cpu_us`, the CPU time in both; for a direct epoch
      `direct` = 1, and `misplaced` keys; `requests` for rows of keyed tables by the owners of the keys, and
      `local_requests`, those to their own host.
    """

    read: int = 0
    applied: int = 0
    late: int = 0
    dead: int = 0
    filtered: int = 0
    rows: int = 0
    withheld: int = 0
    late_rows: int = 0
    repeated: int = 0
    recalled: int = 0
    raised: int = 0
    feed_too_long: int = 0
    group_us: int = 0
    malformed: int = 0
    dead_letters: int = 0
    events: int = 0
    bytes_read: int = 0
    bytes_moved: int = 0
    slices_read: int = 0
    gather_us: int = 0
    fold_us: int = 0
    cpu_us: int = 0
    direct: int = 0
    misplaced: int = 0
    requests: int = 0
    local_requests: int = 0

    def add(self, more: Counts) -> None:
        """Add other counts."""
        for name, value in msgspec.to_builtins(more).items():
            setattr(self, name, getattr(self, name) + value)

    def stored(self) -> dict[str, int]:
        """The counts that are not 0; all of a query's events if one is not 0, and `bytes_moved` with `fold_us`."""
        found: dict[str, int] = msgspec.to_builtins(self)
        if self.read:
            return _NO_FATES | found
        return {"bytes_moved": 0} | found if self.fold_us else found


FATES = ("read", "applied", "late", "dead", "filtered")
"""The counts of a query's events; the first is the sum of the others."""

_NO_FATES = dict.fromkeys(FATES, 0)

_NEWEST = "max_time"
"""In a receipt, the prefix of the largest event time of a stream's source partition, which is no count."""


def stream_counts(stream: str) -> str:
    """The name under which the counts of a stream are stored; no query can have this name."""
    return f"stream {stream}"


def in_receipt(field: str, name: str = WHOLE_POND) -> str:
    """The key of a count in the receipt of a delta."""
    return f"{field}:{name}"


BYTES_MOVED = in_receipt("bytes_moved")
"""The key of the count of moved bytes. Packets that stay in their task are not moved."""


class Counters(dict[str, Counts]):
    """Counts by name."""

    def of(self, name: str) -> Counts:
        """The counts of a query, group or stream, to add to."""
        found = self.get(name)
        if found is None:
            found = self[name] = Counts()
        return found

    @property
    def pond(self) -> Counts:
        """The counts that belong to no single query."""
        return self.of(WHOLE_POND)

    def add(self, more: Mapping[str, Counts]) -> None:
        """Add the counts of a packet or of another fold."""
        for name, counts in more.items():
            if name in self:
                self[name].add(counts)
            else:
                self[name] = copy(counts)

    def to_receipt(self, newest_us: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
        """The counts of a fold as its receipt stores them, with the largest event time by stream and partition."""
        stored = {
            in_receipt(field, name): count for name, counts in self.items() for field, count in counts.stored().items()
        }
        for stream, seen in newest_us.items():
            stored |= {in_receipt(_NEWEST, f"{stream}:{partition}"): time for partition, time in seen.items()}
        return stored

    def add_receipt(self, stored: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """Add the counts of a receipt; returns its largest event times by stream and source partition.

        Raises:
            TypeError: a count has no field.
        """
        found, newest = dict[str, dict[str, int]](), dict[str, dict[str, int]]()
        for key, value in stored.items():
            field, _, name = key.partition(":")
            if field == _NEWEST:
                stream, _, partition = name.partition(":")
                newest.setdefault(stream, {})[partition] = value
            elif name in found:
                found[name][field] = value
            else:
                found[name] = {field: value}
        self.add({name: Counts(**counts) for name, counts in found.items()})
        return newest

    def to_record(self, quarantined: Collection[str] = ()) -> dict[str, dict[str, int]]:
        """The counts of an epoch as its record stores them.

        If a query is quarantined in this epoch, no sink receives its rows, even those of instances on which it
        succeeded. So none of them is counted.
        """
        stored = {}
        for name, found in self.items():
            counts = found.stored()
            for field in ("raised", "rows", "withheld") if name in quarantined else ("raised",):
                counts.pop(field, None)
            if counts:
                stored[name] = counts
        return stored
