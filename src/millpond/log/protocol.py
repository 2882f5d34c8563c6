"""The protocol by which a driver takes over, begins a batch and commits it, without clock, disk or Spark.

Every method of `Writer` is a generator: it yields effects (`Read`, `Append`, ...) and receives their replies. So a
simulator can stop, kill or resume a driver between any two effects. `perform` runs a generator on real folders.

The proof that only one driver commits rests on three facts. A record is created once (`port`). A writer appends only at
the number after the last record that it has read. Taking over is itself a record, so an older writer finds a record of
another writer at the next number that it tries, and stops. Time, leases and process ids play no part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from millpond.errors import FencedError, OffsetGapError, PlaceError
from millpond.faults import reached
from millpond.log.manifest import Manifest, Manifests, fold
from millpond.log.port import Log, Lost, Won
from millpond.log.records import ChangeRecord, ClaimRecord, Entry, EpochRecord, Offsets, decode, encode

TICK = "millpond_tick"
"""The stream that only starts epochs; its offsets are never compared."""


@dataclass(frozen=True, slots=True)
class Read:
    """Effect: read record `n`; the reply is its bytes, or None."""

    n: int


@dataclass(frozen=True, slots=True)
class Append:
    """Effect: append `record` at `n`; the reply is Won or Lost."""

    n: int
    record: bytes


@dataclass(frozen=True, slots=True)
class WriteHint:
    """Effect: write `n` as the log's hint; it may fail."""

    n: int


@dataclass(frozen=True, slots=True)
class SaveManifest:
    """Effect: save the manifest; it may fail."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Announce:
    """Effect: notify the followers that records up to `n` are committed; it may be lost."""

    n: int


Effect = Read | Append | WriteHint | SaveManifest | Announce
Reply = bytes | Won | Lost | None
T = TypeVar("T")
Steps = Generator[Effect, Reply, T]


@dataclass(frozen=True, slots=True)
class AlreadyTrue:
    """The batch is already in the log, in record `n` or earlier, so the callback must return."""

    n: int


@dataclass(frozen=True, slots=True)
class Run:
    """The batch must be computed as record `n`, on the state of `manifest`; `prev` is written into the record.

    `idle`: only the tick has advanced, so the driver need not commit if nothing is due.
    """

    n: int
    prev: str
    manifest: Manifest
    idle: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """Record `n` is committed, and was written by this driver; `manifest` includes it."""

    n: int
    manifest: Manifest


class Writer:
    """Appends the records of one driver, from its claim until it is fenced; `token` must be new.

    Create it with the result of `manifest.load(...)`. Then call `take_over` once, and `begin` and `commit` per batch,
    from one thread. After an exception from outside (an append with an unknown outcome), continue with `begin`.
    `newest_at` is the largest `at` of the record before the claim and of all records since.
    """

    def __init__(
        self,
        token: str,
        manifest: Manifest,
        records_per_hint: int = 16,
        records_per_manifest: int = 256,
    ) -> None:
        self.token = token
        self.manifest = manifest
        self.newest_at = 0
        self._records_per_hint = records_per_hint
        self._records_per_manifest = records_per_manifest
        self._saved_n = -1

    def take_over(
        self, at: int, host: str, pid: int, version: str, spec: Callable[[Manifest], str]
    ) -> Steps[Committed]:
        """Appends a claim at the first free number, after reading all earlier records.

        `at` is in microseconds since 1970 UTC; a claim is never earlier than the record before it. `spec` computes the
        spec in force from the claim on, given the manifest before it, so that no change by an older writer is lost.
        From the claim on, every older writer is fenced.
        """
        yield from self._catch_up()
        newest = (yield Read(self.manifest.n)) if self.manifest.n >= 0 else None
        if isinstance(newest, bytes):
            self.newest_at = max(self.newest_at, decode(newest, f"Record {self.manifest.n} of the log").record.at)
        # The claim may already be in the log, if an earlier try won and its reply was lost.
        while self.manifest.writer != self.token:
            claim = ClaimRecord(
                n=self.manifest.n + 1,
                writer=self.token,
                prev=self.manifest.digest,
                at=max(at, self.newest_at),
                host=host,
                pid=pid,
                version=version,
                spec=spec(self.manifest),
            )
            self._fold((yield from self._append(encode(claim))))
        yield from self._settle(save=True)
        return Committed(self.manifest.n, self.manifest)

    def begin(self, batch: int, start: Offsets, end: Offsets, spark_query: str) -> Steps[AlreadyTrue | Run]:
        """Decides whether Spark's batch is already in the log, or continues it.

        `start` lacks streams that Spark reads for the first time.

        Raises:
            FencedError: another driver has taken over.
            OffsetGapError: the offsets do not continue the log.
        """
        yield from self._catch_up()
        self._check_is_ours()
        known = self.manifest.offsets
        news = moved(start, end, known)
        ended = all(same_offset(known.get(stream), end.get(stream)) for stream in _compared(start, end))
        same_batch = (self.manifest.spark_query, self.manifest.batch) == (spark_query, batch)
        if ended and (news or same_batch):
            yield Announce(self.manifest.n)
            return AlreadyTrue(self.manifest.epoch_n)
        self._check_continues(f"Spark's batch {batch}", start, end)
        return Run(self.manifest.n + 1, self.manifest.digest, self.manifest, idle=not news)

    def drain(self) -> Steps[Run]:
        """Begins an epoch that reads nothing; commit it `drained`, with start = end = the manifest's offsets."""
        yield from self._catch_up()
        self._check_is_ours()
        return Run(self.manifest.n + 1, self.manifest.digest, self.manifest, idle=True)

    def commit(self, record: EpochRecord | ChangeRecord, body: bytes = b"") -> Steps[Committed | AlreadyTrue]:
        """Appends the record; once this returns, the record is committed for good, and followers may apply it.

        Returns AlreadyTrue if an earlier try of this driver for the same batch is in the log; then this one is dropped.

        Raises:
            FencedError: another driver has taken over, and nothing of this record is committed.
        """
        if (record.n, record.prev, record.writer) != (self.manifest.n + 1, self.manifest.digest, self.token):
            raise ValueError(f"record {record.n} was not made for number {self.manifest.n + 1} of this writer")
        if isinstance(record, EpochRecord):
            self._check_continues(f"Record {record.n}", record.start, record.end)
            if record.drained and record.start != record.end:
                raise ValueError("an epoch that drains reads nothing, so it ends where it starts")
        ours = encode(record, body)
        winner = yield from self._append(ours)
        if winner != ours:
            self._check_is_same_batch(decode(winner, f"Record {record.n} of the log"), record)
        self._fold(winner)
        yield from self._settle(save=self.manifest.n - self._saved_n >= self._records_per_manifest)
        if winner != ours:
            return AlreadyTrue(self.manifest.n)
        return Committed(self.manifest.n, self.manifest)

    def _append(self, record: bytes) -> Steps[bytes]:
        reply = yield Append(self.manifest.n + 1, record)
        match reply:
            case Won():
                return record
            case Lost(winner):
                return winner
        raise TypeError(f"an append is answered by Won or Lost, not {reply!r}")

    def _catch_up(self) -> Steps[None]:
        while True:
            data = yield Read(self.manifest.n + 1)
            if data is None:
                return
            if not isinstance(data, bytes):
                raise TypeError(f"a read is answered by bytes or None, not {data!r}")
            self._fold(data)

    def _settle(self, save: bool) -> Steps[None]:
        yield Announce(self.manifest.n)
        if save or self.manifest.n % self._records_per_hint == 0:
            yield WriteHint(self.manifest.n)
        if save:
            yield SaveManifest(self.manifest)
            self._saved_n = self.manifest.n

    def _fold(self, data: bytes) -> None:
        entry = decode(data, f"Record {self.manifest.n + 1} of the log")
        self.manifest, self.newest_at = fold(self.manifest, entry), max(self.newest_at, entry.record.at)

    def _check_is_ours(self) -> None:
        if self.manifest.writer != self.token:
            raise _fenced(self.manifest.n)

    def _check_is_same_batch(self, winner: Entry, record: EpochRecord | ChangeRecord) -> None:
        # An earlier append of this driver that seemed to fail may win late; it is valid if it has the same input.
        theirs = winner.record
        if (
            theirs.writer != self.token
            or not isinstance(theirs, EpochRecord)
            or not isinstance(record, EpochRecord)
            or (theirs.start, theirs.end, theirs.drained) != (record.start, record.end, record.drained)
        ):
            raise _fenced(winner.n)

    def _check_continues(self, what: str, start: Offsets, end: Offsets) -> None:
        known = self.manifest.offsets
        if all(same_offset(known[s], start.get(s)) for s in _compared(start, end) if s in known):
            return
        raise OffsetGapError(
            f"{what} reads from {_shown(start)} to {_shown(end)}, but the log, at record {self.manifest.n},"
            f" ends at {_shown(known)}.",
            "Spark's checkpoint was changed while the pond ran. Start the pond again: its driver makes the checkpoint "
            "from the log.",
        )


def moved(start: Offsets, end: Offsets, known: Offsets) -> list[str]:
    """The streams, except the tick, that advance between two offsets or are not `known` yet.

    >>> moved({"tx": "5"}, {"tx": "7", "millpond_tick": "9"}, {"tx": "5"})
    ['tx']
    """
    return [
        stream
        for stream in _compared(start, end)
        if stream not in known or not same_offset(start.get(stream), end.get(stream))
    ]


def same_offset(left: str | None, right: str | None) -> bool:
    """Whether two offset texts mean the same: equal as text or as JSON; None equals only None.

    >>> same_offset('{"a": 1, "b": 2}', '{"b":2,"a":1}')
    True
    """
    if left == right:
        return True
    if left is None or right is None:
        return False
    try:
        return bool(json.loads(left) == json.loads(right))
    except ValueError:
        return False


def perform(steps: Steps[T], log: Log, manifests: Manifests, announce: Callable[[int], None]) -> T:
    """Runs a method of `Writer` on real folders; `announce(n)` must not block."""
    reply: Reply = None
    while True:
        try:
            effect = steps.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result
        reply = perform_effect(effect, log, manifests, announce)


def perform_effect(effect: Effect, log: Log, manifests: Manifests, announce: Callable[[int], None]) -> Reply:
    """Performs one effect and returns its reply; writes of derived files may fail silently."""
    match effect:
        case Read(n):
            return log.read(n)
        case Append(n, record):
            reached("commit.before_append")
            answer = log.append(n, record)
            reached("commit.after_append")
            return answer
        case WriteHint(n):
            with suppress(PlaceError):  # the hint is derived: without it, the next reader only probes further
                log.write_hint(n)
        case SaveManifest(manifest):
            with suppress(PlaceError):  # the manifest is derived: without it, the next restart only folds more records
                manifests.save(manifest)
        case Announce(n):
            announce(n)
            reached("commit.after_announce")
    return None


def _compared(start: Offsets, end: Offsets) -> list[str]:
    return sorted((start.keys() | end.keys()) - {TICK})


def _shown(offsets: Offsets) -> str:
    return msgspec.json.encode(offsets, order="sorted").decode()


def _fenced(n: int) -> FencedError:
    return FencedError(
        f"Record {n} of the log was written by another driver, which has taken over.",
        "Stop this driver; nothing it had not committed has become true.",
    )
