"""The port of the key-value store that other programs read: rows by bucket, guarded by one number per bucket.

A store contains, for each *bucket* (0 to 65535), one number `applied` and any number of *tables* (named like queries).
A table maps keys to values, both bytes. The content is derived from the log, so losing it costs time, not data.

Guaranteed by every back-end:
  * `apply` of one bucket is atomic: a reader sees all of its writes together with the new number, or none;
  * `apply(bucket, n, previous, …)` writes only when the stored number is `previous`; at `n` or above it
    changes nothing (`ALREADY`), at any other number it changes nothing either (`BEHIND`: the caller replays).
    Check and writes are one atomic step, so a publisher that was suspended and resumes cannot overwrite newer data;
  * `read` returns the values of one bucket together with the number they belong to, as one consistent snapshot; so
    does `scan` where `Rows.torn` is false;
  * the *_many methods take a constant number of round trips per bucket, never one per key;
  * after a process dies at any point, each bucket is at some number that was applied completely;
  * several threads of one process may call one store; other processes may read while one writes.

Not guaranteed:
  * several buckets are not atomic together: a reader may see one at n and the next at n - 1;
  * applied data may be lost (power failure, fail-over, flush): the number then falls back with the rows, so the caller
    calls `applied` and replays, or clears buckets that are ahead of its log and rebuilds them;
  * a mark is the text that the caller gave with the number, at most 64 bytes; it is "" in a store of an older version;
  * two writers do not corrupt a bucket, but a back-end may admit only one at a time (`lmdb` does);
  * `drop_table` and `clear_many` are not atomic across buckets; both may be repeated;
  * the order of keys in `scan`; that `Statistics.stored_bytes` of two back-ends can be compared.

A server can implement the port with one hash per (bucket, table) and one script per bucket; a file can, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

NEVER = -1
"""The number of a bucket to which nothing was applied, or that was cleared."""


@dataclass(frozen=True, slots=True)
class TableWrite:
    """Writes to one table of one bucket, by column: `values[i]` for `keys[i]`; None deletes the key.

    If a key occurs twice, its last value is kept.
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

    `mark` is stored with the number, and distinguishes the record from others that might have the same number.
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
    """The number of a bucket, and the mark that was given with it."""

    n: int
    mark: str = ""


class Verdict(Enum):
    """The outcome of an `Apply`."""

    APPLIED = auto()
    """Written; the bucket is now at `n`."""
    ALREADY = auto()
    """Nothing was done: the bucket is at `n` or above."""
    BEHIND = auto()
    """Nothing was done: the bucket is not at `previous`, so records before `n` must be replayed first."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on one `Apply`, and the number of its bucket afterwards."""

    bucket: int
    verdict: Verdict
    applied: int


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Keys to read from one table of one bucket."""

    bucket: int
    table: str
    keys: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Values in the order of the requested keys, None for a missing key, as of number `applied`."""

    applied: int
    values: list[bytes | None]


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of one table of one bucket; `torn` if some may already be of later numbers than `applied`."""

    applied: int
    keys: list[bytes] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    torn: bool = False


@dataclass(frozen=True, slots=True)
class Statistics:
    """The exact number of rows (`keys`), and the bytes that they occupy by the measure of the back-end."""

    keys: int
    stored_bytes: int


def decide(stored: int, step: Apply) -> Verdict:
    """The rule of every back-end for a `step` of a bucket at number `stored`.

    >>> decide(4, Apply(0, n=5, previous=4)), decide(5, Apply(0, n=5, previous=4))
    (<Verdict.APPLIED: 1>, <Verdict.ALREADY: 2>)
    >>> decide(3, Apply(0, n=5, previous=4))
    <Verdict.BEHIND: 3>
    """
    if stored >= step.n:
        return Verdict.ALREADY
    return Verdict.APPLIED if stored == step.previous else Verdict.BEHIND


class BucketStore(ABC):
    """The port; the module docstring lists its guarantees.

    Raises:
        StoreError: the store refused or cannot be reached (any method).
    """

    @abstractmethod
    def apply_many(self, steps: Sequence[Apply]) -> list[Outcome]:
        """Applies each step to its bucket, in order; the outcomes are in the order of the steps.

        A StoreError leaves each bucket either before or after its steps; the call may be repeated.
        """

    @abstractmethod
    def stands_many(self, buckets: Sequence[int]) -> list[Stand]:
        """The number and mark of each bucket (`NEVER`: nothing was applied); both are of the same step."""

    def applied_many(self, buckets: Sequence[int]) -> list[int]:
        """The number of each bucket; `NEVER` if nothing was applied."""
        return [stand.n for stand in self.stands_many(buckets)]

    @abstractmethod
    def read_many(self, requests: Sequence[ReadRequest]) -> list[ReadResult]:
        """The requested values; each `ReadResult` is consistent in itself."""

    @abstractmethod
    def scan(self, bucket: int, table: str) -> Rows:
        """All rows of a table in one bucket; an unknown table has none."""

    def scan_many(self, buckets: Iterable[int], table: str) -> list[Rows]:
        """All rows of a table in several buckets, each consistent in itself; a back-end may guarantee more."""
        return [self.scan(bucket, table) for bucket in buckets]

    def scan_tables(self, buckets: Iterable[int], tables: Sequence[str]) -> list[list[Rows]]:
        """By bucket, all rows of several tables; a back-end that guarantees a snapshot does so for all of them."""
        wanted = list(buckets)
        by_table = [self.scan_many(wanted, table) for table in tables]
        return [[rows[place] for rows in by_table] for place in range(len(wanted))]

    @abstractmethod
    def clear_many(self, buckets: Iterable[int]) -> None:
        """Deletes all rows of the buckets and sets their numbers to `NEVER`."""

    @abstractmethod
    def tables(self) -> frozenset[str]:
        """The names of all tables that were written and not dropped."""

    @abstractmethod
    def drop_table(self, table: str, upto: int) -> None:
        """Deletes a table in all buckets that are at `upto` or lower; the numbers of the buckets stay.

        Other buckets are left alone, because their rows may be those of another publisher. An unknown table is not an
        error.
        """

    @abstractmethod
    def shards(self, buckets: Iterable[int]) -> list[str]:
        """The server or file that stores each bucket now; equal names are the same server or file."""

    @abstractmethod
    def statistics(self) -> Statistics:
        """The number of rows, and the bytes that they occupy."""

    @abstractmethod
    def close(self) -> None:
        """Releases all resources; may be called twice. Afterwards every other method raises StoreError."""

    def apply(
        self, bucket: int, n: int, previous: int, writes: Sequence[TableWrite] = (), mark: str = ""
    ) -> Outcome:  # fmt: skip
        """Applies one step to one bucket."""
        return self.apply_many([Apply(bucket, n, previous, writes, mark)])[0]

    def applied(self, bucket: int) -> int:
        """The number of one bucket, or `NEVER`."""
        return self.applied_many([bucket])[0]

    def read(self, bucket: int, table: str, keys: Sequence[bytes]) -> ReadResult:
        """The values of keys in one table of one bucket."""
        return self.read_many([ReadRequest(bucket, table, keys)])[0]

    def clear(self, bucket: int) -> None:
        """Deletes all rows of one bucket and sets its number to `NEVER`."""
        self.clear_many([bucket])
