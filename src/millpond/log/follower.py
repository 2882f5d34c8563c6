"""The contract of every follower, a reader of the log that can be rebuilt: view, sinks, served rows, derived streams.

A follower stores its cursor together with its effect, in one atomic step. So neither a crash nor a suspended publisher
that resumes can publish a row twice, or record n + 1 without record n. `Pump` drives one follower from its cursor to
the newest record, at its own pace. A follower that fails stops only itself.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from millpond.log.cursor import NOTHING_APPLIED, Cursor, check_reached
from millpond.log.manifest import Manifest, Manifests, fold, load
from millpond.log.port import Log
from millpond.log.records import Entry, decode


class Follower(Protocol):
    """Applies records in order; its cursor names the last applied record, by number and mark."""

    @property
    def name(self) -> str:
        """The follower's name, unique in the pond."""

    def cursor(self) -> Cursor:
        """Returns the stored cursor, read atomically; -1 if the follower is new or has lost everything."""

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        """Makes record `n` visible and moves the cursor to it, in one atomic step; `manifest` includes the record.

        Does nothing if the stored cursor is at `n` or above. Must raise an error if it is below n - 1, or at `n` with
        the mark of another record. This check must be part of the atomic step, because another publisher may run at the
        same time. Records other than epochs only move the cursor.
        """


@runtime_checkable
class Connected(Protocol):
    """A follower with connections to its target."""

    def close(self) -> None:
        """Closes the connections; the next use connects again."""


@runtime_checkable
class Interruptible(Protocol):
    """A follower that can wait long for a server that cannot be reached."""

    def interrupt(self) -> None:
        """Lets such waits fail until the server responds again; any thread may call it while the follower works."""


@runtime_checkable
class Remote(Protocol):
    """A follower with a cursor on another host, or that repairs itself; a pond starts without reading its cursor."""

    def known(self) -> Cursor:
        """Returns the cursor as far as it is known on this host; its number is -1 if it is unknown."""


@runtime_checkable
class Reversible(Protocol):
    """A follower that can go back to an older record of the log, so that later records are applied again."""

    def rewind(self, to: Cursor) -> str:
        """Removes the effect of records after `to`, or ensures that applying the same rows again does no harm.

        Returns what was done, as the end of a sentence about the follower.

        Raises:
            AheadError: the follower cannot do this; the error says what must be done by hand.
        """


def close_follower(follower: Follower) -> None:
    """Closes the connections of a follower that is no longer driven; must not be called while the follower works."""
    if isinstance(follower, Connected):
        with suppress(Exception):  # errors of the other side do not matter any more
            follower.close()


@dataclass(frozen=True, slots=True)
class AskCursor:
    """Effect: read the cursor of the follower; the reply is a Cursor."""


@dataclass(frozen=True, slots=True)
class Load:
    """Effect: load the manifest at record `upto`; the reply is a Manifest."""

    upto: int


@dataclass(frozen=True, slots=True)
class ReadNext:
    """Effect: read record `n` from the log; the reply is its bytes, or None."""

    n: int


@dataclass(frozen=True, slots=True)
class Apply:
    """Effect: let the follower apply record `n`."""

    n: int
    record: Entry
    manifest: Manifest


PumpEffect = AskCursor | Load | ReadNext | Apply
PumpReply = Cursor | Manifest | bytes | None
PumpSteps = Generator[PumpEffect, PumpReply, int]


class Pump:
    """Drives one follower, and keeps the manifest at its cursor in memory, so that it is loaded only once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._manifest = Manifest()

    def steps(self, limit: int | None = None) -> PumpSteps:
        """Brings the follower from its cursor to the newest record, or by `limit` records; returns its cursor.

        The generator does no I/O itself: it yields effects and receives their replies.

        Raises:
            AheadError: the follower has applied a record that is not in the log.
        """
        cursor = yield AskCursor()
        assert isinstance(cursor, Cursor)
        if cursor.n != self._manifest.n:
            yield from self._load(cursor)
        check_reached(self._name, cursor, self._manifest)
        applied = 0
        while limit is None or applied < limit:
            data = yield ReadNext(self._manifest.n + 1)
            if data is None:
                break
            assert isinstance(data, bytes)
            entry = decode(data)
            following = fold(self._manifest, entry)
            yield Apply(entry.n, entry, following)
            self._manifest = following
            applied += 1
        return self._manifest.n

    def _load(self, cursor: Cursor) -> Generator[PumpEffect, PumpReply, None]:
        if cursor.n == NOTHING_APPLIED:
            self._manifest = Manifest()
            return
        manifest = yield Load(cursor.n)
        assert isinstance(manifest, Manifest)
        self._manifest = manifest


def pump(driver: Pump, follower: Follower, log: Log, manifests: Manifests, limit: int | None = None) -> int:
    """Runs `driver.steps` on the real log and follower; returns the number of the follower's cursor.

    Exceptions of the follower are propagated. The call may be repeated, from any process.
    """
    steps = driver.steps(limit)
    reply: PumpReply = None
    while True:
        try:
            effect = steps.send(reply)
        except StopIteration as end:
            return int(end.value)
        match effect:
            case AskCursor():
                reply = follower.cursor()
            case Load(upto):
                reply = load(log, manifests, upto)
            case ReadNext(n):
                reply = log.read(n)
            case Apply(n, record, manifest):
                reply = None
                follower.apply(n, record, manifest)
