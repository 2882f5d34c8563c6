"""The contract of every follower, a reader of the log that can be rebuilt: view, sinks, served rows, derived streams.

A follower stores its cursor together with its effect, in one atomic step. So neither a crash nor a second publisher
that resumes late can emit a row twice, or record n + 1 without record n. `Pump` drives one follower from its cursor
to the newest record, at its own pace. A follower that fails stops only itself.
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
    """Applies records in order; its cursor names the last record whose effect it holds, by number and mark."""

    @property
    def name(self) -> str:
        """The follower's name, unique in the pond."""

    def cursor(self) -> Cursor:
        """Return the stored cursor, number and mark of one moment; -1 where it is new or has lost everything."""

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        """Make record `n` visible, and the cursor that of the record, in one atomic step; `manifest` includes it.

        Does nothing when the stored cursor is `n` or more, and must refuse (raise) when it is less than n -
        1, or `n` with the mark of another record: the check belongs to the same atomic step, for another publisher may
        run at the same time. Records that are no epochs only move the cursor.
        """


@runtime_checkable
class Connected(Protocol):
    """A follower that holds connections to what it follows the log into."""

    def close(self) -> None:
        """Let go of them; the next use connects anew."""


@runtime_checkable
class Remote(Protocol):
    """A follower whose cursor is kept on another host, or which mends itself: a pond starts without asking it."""

    def known(self) -> Cursor:
        """What is known of the cursor here; -1 where that is nothing."""


@runtime_checkable
class Reversible(Protocol):
    """A follower that can go back to an older record of the log, so that what comes after it is applied anew."""

    def rewind(self, to: Cursor) -> str:
        """Take back what came after the record `to`, or see to it that the same rows do no harm when they come again;
        say what was done, as the end of a sentence about the follower.

        AheadError: that cannot be; the cure says what somebody has to do by hand.
        """


def let_go(follower: Follower) -> None:
    """Close what a follower holds, if it does, for nobody drives it any more; called when it is not at work."""
    if isinstance(follower, Connected):
        with suppress(Exception):  # whatever the other side says to it, it is left
            follower.close()


@dataclass(frozen=True, slots=True)
class AskCursor:
    """Effect: ask the follower for its cursor."""


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
    """Drives one follower, and keeps the manifest at its cursor, so that a running one loads nothing."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._manifest = Manifest()

    def steps(self, limit: int | None = None) -> PumpSteps:
        """Bring the follower from its cursor to the head, or by `limit` records; return its cursor.

        Sans-IO: yields effects; AheadError when the follower has applied what is not in the log.
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
    """Run `driver.steps` against the real log and follower; return the follower's cursor.

    Whatever the follower raises passes through; the call may be repeated, from any process.
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
