"""Stores and reads hints on when a standby should try to take over; the claim in the log decides.

The leader holds a lock, which the kernel releases when its process ends. It also increments a number once a second, or
five times within the patience of a standby if that is more often, unless it has stalled. A standby tries when the lock
is free, or when the number has not changed for some seconds of its own clock, so no two clocks are compared. Both hints
may be wrong. Then two processes claim, the later claim leads, and the other process is fenced.

A pond in an object store has no lock, as a standby may be on another host: there it watches the number only. A standby
that cannot read the number knows nothing about the leader, so its patience begins again when it can.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

from millpond.clock import Clock, lap_us
from millpond.errors import PlaceError
from millpond.local_path import no_link
from millpond.service.api.service_files import Leader, Places

BEAT_SECONDS = 1.0
BEATS_IN_PATIENCE = 5
PATIENCE_SECONDS = 10.0
"""A leader whose number does not change for this long is considered dead; its process may be suspended."""


class LeadershipHints:
    """The leadership hints of one process; `try_take_over` is for a standby, `lead` and `leave` are for a leader."""

    def __init__(self, places: Places, me: Leader, patience: float = PATIENCE_SECONDS, clock: Clock = lap_us) -> None:
        self._places, self._me, self._patience, self._clock = places, me, patience, clock
        self._seen: tuple[str, int] | None = None
        self._seen_at = clock()
        self._stood_at = self._seen_at - round(self._patience * 1e6)
        self._descriptor: int | None = None
        self._wary = False
        self._stalled: Callable[[], bool] = lambda: False
        self._beat_seconds = min(BEAT_SECONDS, patience / BEATS_IN_PATIENCE)
        self._ended = threading.Event()
        self._beats: threading.Thread | None = None

    def try_take_over(self) -> bool:
        """Whether this process should claim, as no other seems to lead; call it often. Takes the lock if it is free."""
        if self._lock():
            if not self._wary:
                return True
            self._unlock()
        else:
            self._wary = False
        leader = self._places.leader()
        if self._places.unknown:
            self._seen_at = self._clock()
            return False
        if leader is None and self._places.lock is None:
            return True
        seen = None if leader is None else (leader.token, leader.beat)
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()
        return self._clock() - self._seen_at >= self._patience * 1e6

    def stand_by(self) -> None:
        """Announce that this process stands by, once in a while; call it often."""
        if self._clock() - self._stood_at >= self._beat_seconds * 1e6:
            self._stood_at = self._clock()
            with suppress(OSError):
                self._places.write_standby(self._me)

    def leader(self) -> Leader | None:
        """The process that claims to lead, if any."""
        return self._places.leader()

    def lead(self, stalled: Callable[[], bool] = lambda: False) -> None:
        """Announce until `leave` that this process leads; while it is `stalled` it gives no sign of life."""
        self._ended.clear()
        self._stalled = stalled
        self._places.remove_standby(self._me)
        with suppress(OSError):  # a full disk is reported where it matters
            self._beat(0)
        self._beats = threading.Thread(target=self._beat_until_ended, name="millpond-leader", daemon=True)
        self._beats.start()

    def leave(self, *, fenced: bool = False) -> None:
        """Stop announcing, and release the lock. `fenced`: another process leads, and has not taken the lock yet."""
        self._ended.set()
        self._places.remove_standby(self._me)
        if self._beats is not None:
            self._beats.join()
            self._beats = None
        self._unlock()
        self._seen, self._seen_at, self._wary = None, self._clock(), fenced

    def _unlock(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _beat_until_ended(self) -> None:
        beat = 0
        while not self._ended.wait(self._beat_seconds):
            if self._stalled():
                continue
            beat += 1
            with suppress(OSError):
                self._beat(beat)
            with suppress(PlaceError):  # the next beat tries again
                self._lock()  # a suspended leader that was taken over may have kept the lock

    def _beat(self, number: int) -> None:
        self._places.write_leader(msgspec.structs.replace(self._me, beat=number))

    def _lock(self) -> bool:
        if self._descriptor is not None:
            return True
        if self._places.lock is None:
            return False
        try:
            descriptor = no_link(self._places.lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            cure = "Name a folder that you may write."
            raise PlaceError(f"{self._places.lock} cannot be opened: {error}.", cure) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True
