"""How a driver takes over, begins a batch and commits it: the protocol alone, without clock, disk or Spark.

Every method of `Writer` is a generator: it yields effects (`Read`, `Append`, ...) and is sent their
replies, so that a simulator can stop, kill or wake a driver between any two of them. `perform` runs one
against real folders.

The proof rests on three facts. A record is created once (`port`). A writer appends only at the number after
the last record it has read. Taking over is itself a record: whatever number an older writer tries next, it
meets a record that it did not write, and stops. Time, leases and process ids play no part.
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
"""The stream that only makes time pass; its offsets prove nothing and are never compared."""


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
    """Effect: leave `n` as the log's hint; it may fail."""

    n: int


@dataclass(frozen=True, slots=True)
class SaveManifest:
    """Effect: save a compacted manifest; it may fail."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Announce:
    """Effect: tell the followers that records up to `n` are true; it may be lost."""

    n: int


Effect = Read | Append | WriteHint | SaveManifest | Announce
Reply = bytes | Won | Lost | None
T = TypeVar("T")
Steps = Generator[Effect, Reply, T]


@dataclass(frozen=True, slots=True)
class AlreadyTrue:
    """The batch stands in the log already, in record `n` or before: return from the callback."""

    n: int


@dataclass(frozen=True, slots=True)
class Run:
    """Compute the batch as record `n`, on the state of `manifest`; `prev` goes into the record.

    `idle`: no stream but the tick has moved, so the driver may skip committing when nothing is due.
    """

    n: int
    prev: str
    manifest: Manifest
    idle: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """The record `n` is true, and ours; `manifest` includes it."""

    n: int
    manifest: Manifest


class Writer:
    """One driver's right to append, from its claim until it is fenced; `token` must be new.

    Start it with `manifest.load(...)`, then `take_over` once, then `begin` and `commit` per batch, from one
    thread. After any exception from outside (an append whose outcome is unknown) it may simply go on with
    `begin`.
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
        self._records_per_hint = records_per_hint
        self._records_per_manifest = records_per_manifest
        self._saved_n = -1

    def take_over(
        self, at: int, host: str, pid: int, version: str, spec: Callable[[Manifest], str]
    ) -> Steps[Committed]:
        """Append a claim at the first free number, after reading whatever stands before it.

        `at` is in microseconds since 1970 UTC; `spec` says what is asked from the claim on, given what stands before
        it, so that no change by an older writer is lost. From the claim on, every older writer is fenced.
        """
        yield from self._catch_up()
        # It may be ours already: an earlier try of this claim won, and its reply was lost.
        while self.manifest.writer != self.token:
            claim = ClaimRecord(
                n=self.manifest.n + 1,
                writer=self.token,
                prev=self.manifest.digest,
                at=at,
                host=host,
                pid=pid,
                version=version,
                spec=spec(self.manifest),
            )
            self._fold((yield from self._append(encode(claim))))
        yield from self._settle(save=True)
        return Committed(self.manifest.n, self.manifest)

    def begin(self, batch: int, start: Offsets, end: Offsets, spark_query: str) -> Steps[AlreadyTrue | Run]:
        """Decide what Spark's batch is to the log: true already, its continuation, or neither.

        `start` lacks a stream that Spark reads for the first time. FencedError when another driver has taken
        over; OffsetGapError when the offsets do not continue the log.
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
        """Begin an epoch that reads nothing: commit it `drained`, start = end = the manifest's offsets."""
        yield from self._catch_up()
        self._check_is_ours()
        return Run(self.manifest.n + 1, self.manifest.digest, self.manifest, idle=True)

    def commit(self, record: EpochRecord | ChangeRecord, body: bytes = b"") -> Steps[Committed | AlreadyTrue]:
        """Append the record; after this returns it is true for ever, and followers may show it.

        AlreadyTrue: an earlier try of this driver at the same batch stands there; this one is dropped.
        FencedError: another driver has taken over, and nothing of this record is true.
        """
        if (record.n, record.prev, record.writer) != (self.manifest.n + 1, self.manifest.digest, self.token):
            raise ValueError(
                f"record {record.n} was not made for number {self.manifest.n + 1} of this writer"
            )
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
        self.manifest = fold(self.manifest, decode(data, f"Record {self.manifest.n + 1} of the log"))

    def _check_is_ours(self) -> None:
        if self.manifest.writer != self.token:
            raise _fenced(self.manifest.n)

    def _check_is_same_batch(self, winner: Entry, record: EpochRecord | ChangeRecord) -> None:
        # An append of ours that seemed to fail may win late; it counts if it says the same about the input.
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
            "Spark's checkpoint, or the log, was lost in part, restored or moved. Restore what is older, "
            "or run `millpond repair`, which sets the checkpoint to the log and compares the sinks with it.",
        )


def moved(start: Offsets, end: Offsets, known: Offsets) -> list[str]:
    """The streams, but the tick, of which there is something between two offsets, or that are not `known` yet.

    >>> moved({"tx": "5"}, {"tx": "7", "millpond_tick": "9"}, {"tx": "5"})
    ['tx']
    """
    return [
        stream
        for stream in _compared(start, end)
        if stream not in known or not same_offset(start.get(stream), end.get(stream))
    ]


def same_offset(one: str | None, other: str | None) -> bool:
    """Tell whether two offset texts mean the same: equal as text, or as JSON; None equals only None.

    >>> same_offset('{"a": 1, "b": 2}', '{"b":2,"a":1}')
    True
    """
    if one == other:
        return True
    if one is None or other is None:
        return False
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def perform(steps: Steps[T], log: Log, manifests: Manifests, announce: Callable[[int], None]) -> T:
    """Run one of `Writer`'s methods against real folders; `announce(n)` must not block."""
    reply: Reply = None
    while True:
        try:
            effect = steps.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result
        reply = perform_effect(effect, log, manifests, announce)


def perform_effect(effect: Effect, log: Log, manifests: Manifests, announce: Callable[[int], None]) -> Reply:
    """Carry out one effect and return its reply; what is derived may fail silently."""
    match effect:
        case Read(n):
            return log.read(n)
        case Append(n, record):
            reached("commit.before_append")
            answer = log.append(n, record)
            reached("commit.after_append")
            return answer
        case WriteHint(n):
            with suppress(PlaceError):  # derived: the next reader only probes further
                log.write_hint(n)
        case SaveManifest(manifest):
            with suppress(PlaceError):  # derived: the next restart only folds more
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
