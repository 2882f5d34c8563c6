"""The port of the key-value store that other programs read: per bucket rows, and one number that guards them.

A store holds, for each *bucket* (0 to 65535), one number `applied` and any number of *tables* (named like
queries), each a map from key to value, both bytes. Derived from the log: losing it costs time, not truth.

Guaranteed by every back-end:
  * `apply` of one bucket is atomic: a reader sees all of its writes together with the new number, or none;
  * `apply(bucket, n, previous, …)` writes only when the stored number is `previous`; at `n` or above it
    changes nothing (`ALREADY`), at any other number it changes nothing either (`BEHIND`: the caller replays).
    Check and writes are one atomic step, so a publisher that wakes late does no harm;
  * `read` returns the values of one bucket together with the number they belong to, as of one moment; so
    does `scan` where `Rows.torn` is false;
  * the *_many forms cost a constant number of round trips per bucket, never one per key;
  * after a process dies at any point, each bucket stands at some number that was applied whole;
  * several threads of one process may call one store; other processes may read while one writes.

Not guaranteed:
  * buckets are not atomic together: a reader may see one at n and the next at n - 1;
  * what was applied may be lost (power failure, fail-over, flush): the number then falls back with the rows,
    so the caller asks `applied` and replays, or clears what is ahead of its log and rebuilds;
  * a mark is what the caller gave with the number, at most 64 bytes of text, and "" from a store of an older version;
  * two writers do not corrupt a bucket, but a back-end may admit only one at a time (`lmdb` does);
  * `drop_table` and `clear_many` are not atomic across buckets; both may be repeated;
  * the order of keys in `scan`; that `Statistics.stored_bytes` of two back-ends can be compared.

Written so that one hash per (bucket, table) and one script per bucket on a server fulfil it as a file does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

NEVER = -1
"""The number of a bucket that has applied nothing, or was cleared."""


@dataclass(frozen=True, slots=True)
class TableWrite:
    """Writes to one table of one bucket, column-wise: `values[i]` for `keys[i]`; None deletes the key.

    A key that occurs twice keeps its last value.
    """

    table: str
    keys: Sequence[bytes]
    values: Sequence[bytes | None]

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.values):
            raise ValueError(f"{len(self.keys)} keys and {len(self.values)} values for table {self.table}")


@dataclass(frozen=True, slots=True)
class Apply:
    """One atomic step of one bucket: from number `previous` to number `n`, with these writes.

    `mark` is kept with the number, and tells the record from others that might have it.
    """

    bucket: int
    n: int
    previous: int
    writes: Sequence[TableWrite] = ()
    mark: str = ""

    def __post_init__(self) -> None:
        if not NEVER <= self.previous < self.n:
            raise ValueError(f"bucket {self.bucket} cannot go from {self.previous} to {self.n}")


class Stand(NamedTuple):
    """The number a bucket stands at, and the mark that was given with it."""

    n: int
    mark: str = ""


class Verdict(Enum):
    """What became of an `Apply`."""

    APPLIED = auto()
    """Written; the bucket now stands at `n`."""
    ALREADY = auto()
    """Nothing done: the bucket stands at `n` or above."""
    BEHIND = auto()
    """Nothing done: the bucket is not at `previous`, so records before `n` must be replayed first."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on one `Apply`, and the number its bucket stands at afterwards."""

    bucket: int
    verdict: Verdict
    applied: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """Keys to be read from one table of one bucket."""

    bucket: int
    table: str
    keys: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Found:
    """Values in the order of the keys asked for, None where there is none, as of number `applied`."""

    applied: int
    values: list[bytes | None]


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of one table of one bucket; `torn` when later numbers may have slipped in meanwhile."""

    applied: int
    keys: list[bytes] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    torn: bool = False


@dataclass(frozen=True, slots=True)
class Statistics:
    """`keys` is the exact number of rows; `stored_bytes` what they occupy by the back-end's own measure."""

    keys: int
    stored_bytes: int


def decide(stored: int, step: Apply) -> Verdict:
    """The rule of every back-end: what a bucket at `stored` does with `step`.

    >>> decide(4, Apply(0, n=5, previous=4)), decide(5, Apply(0, n=5, previous=4))
    (<Verdict.APPLIED: 1>, <Verdict.ALREADY: 2>)
    >>> decide(3, Apply(0, n=5, previous=4))
    <Verdict.BEHIND: 3>
    """
    if stored >= step.n:
        return Verdict.ALREADY
    return Verdict.APPLIED if stored == step.previous else Verdict.BEHIND


class BucketStore(ABC):
    """The port; see the module for what holds. StoreError: the store refused or vanished (any method)."""

    @abstractmethod
    def apply_many(self, steps: Sequence[Apply]) -> list[Outcome]:
        """Apply each step to its bucket, in order; the outcomes are in the order of the steps.

        A StoreError leaves each bucket either before or after its steps; the call may be repeated.
        """

    @abstractmethod
    def stands_many(self, buckets: Sequence[int]) -> list[Stand]:
        """Where the buckets stand, at `NEVER` where nothing was applied; number and mark are of one step."""

    def applied_many(self, buckets: Sequence[int]) -> list[int]:
        """The numbers the buckets stand at, `NEVER` where nothing was applied."""
        return [stand.n for stand in self.stands_many(buckets)]

    @abstractmethod
    def read_many(self, wanted: Sequence[Wanted]) -> list[Found]:
        """The values asked for; each `Found` is consistent in itself."""

    @abstractmethod
    def scan(self, bucket: int, table: str) -> Rows:
        """Every row of a table in one bucket; an unknown table has none."""

    def scan_many(self, buckets: Iterable[int], table: str) -> list[Rows]:
        """Every row of a table in some buckets, each consistent in itself; a back-end may promise more."""
        return [self.scan(bucket, table) for bucket in buckets]

    @abstractmethod
    def clear_many(self, buckets: Iterable[int]) -> None:
        """Delete all rows of the buckets and set their numbers to `NEVER`."""

    @abstractmethod
    def tables(self) -> frozenset[str]:
        """Names of the tables that were ever written and not dropped."""

    @abstractmethod
    def drop_table(self, table: str, upto: int) -> None:
        """Delete a table in all buckets that stand at `upto` or lower: rows of others may be another publisher's. Their
        numbers stay. An unknown table is no error.
        """

    @abstractmethod
    def shards(self, buckets: Iterable[int]) -> list[str]:
        """The server or file that each bucket is kept on now; what one name says is one place."""

    @abstractmethod
    def statistics(self) -> Statistics:
        """How many rows there are and what they occupy."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; may be called twice, after which every other method raises StoreError."""

    def apply(
        self, bucket: int, n: int, previous: int, writes: Sequence[TableWrite] = (), mark: str = ""
    ) -> Outcome:  # fmt: skip
        """Apply one step to one bucket."""
        return self.apply_many([Apply(bucket, n, previous, writes, mark)])[0]

    def applied(self, bucket: int) -> int:
        """The number one bucket stands at, or `NEVER`."""
        return self.applied_many([bucket])[0]

    def read(self, bucket: int, table: str, keys: Sequence[bytes]) -> Found:
        """Values of one table of one bucket."""
        return self.read_many([Wanted(bucket, table, keys)])[0]

    def clear(self, bucket: int) -> None:
        """Delete all rows of one bucket and set its number to `NEVER`."""
        self.clear_many([bucket])
