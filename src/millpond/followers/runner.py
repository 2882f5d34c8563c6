"""Runs the background thread that drives all followers, each from its own cursor, when the log grows.

A follower that raises is retried after a delay that doubles each time, and `status()` shows the error; it stops neither
the other followers nor the epochs. A follower that *hangs* does delay the others, so each must limit its own waiting.

Records are read and decoded once for all followers that are close to each other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from millpond.clock import Clock, lap_us, now_us
from millpond.errors import CorruptError, DiskFullError, MillpondError, TruthError
from millpond.log.cursor import NOTHING_APPLIED, Cursor, check_reached
from millpond.log.follower import Follower, Interruptible, close_follower
from millpond.log.manifest import Manifest, Manifests, fold, load
from millpond.log.port import Log
from millpond.log.records import Entry, decode
from millpond.plan.explain.amounts import RemainingTime
from millpond.spans import Span

RECORDS_PER_TURN = 8
"""The most records that a follower applies before the next follower has its turn."""

_LASTING = (DiskFullError, TruthError)
_ENOUGH = 3
"""The number of consecutive failures from which on an error is considered permanent."""

_REMEMBERED_RECORDS = 2 * RECORDS_PER_TURN
_REMEMBERED_TURNS = 512
_US = 1_000_000
_log = logging.getLogger("millpond.pond")


Applied = tuple[int, Span]
"""A record's number, and when a follower applied it."""


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """The state of a follower: its cursor (-1 before its first turn), and its failures since the last success.

    `retry_at_us`: the time of the next try by the runner's clock; None if none is due. `note`: what it has repaired
    by itself. `remaining_s`: about how many seconds it will need for the records that it is behind; None if not known.
    """

    name: str
    cursor: int
    behind: int
    failures: int = 0
    error: str | None = None
    retry_at_us: int | None = None
    note: str | None = None
    remaining_s: float | None = None


@dataclass(slots=True)
class _Driven:
    follower: Follower
    catch_up: RemainingTime
    cursor: int = NOTHING_APPLIED
    manifest: Manifest | None = None
    """The manifest at the cursor; None: the cursor must be read from the follower first."""
    failures: int = 0
    error: BaseException | None = None
    retry_at_us: int | None = field(default=None)


class Runner:
    """Drives followers over one log; `start` it once, `notify` it at each commit, `stop` it at the end.

    Its thread closes removed followers, and at the end all followers, when they are not working.

    Delays are in seconds: a failing follower waits `first_delay`, then twice as long each time, at most
    `longest_delay`. If no record arrived for `look_every`, the cursors are read from the followers again, because a
    store may lose data while the pond has no epochs; None: never.
    """

    def __init__(
        self,
        log: Log,
        manifests: Manifests,
        followers: Iterable[Follower] = (),
        *,
        clock: Clock = lap_us,
        first_delay: float = 0.1,
        longest_delay: float = 30.0,
        look_every: float | None = None,
    ) -> None:
        self._records = _Records(log, manifests)
        self._clock = clock
        self._first_delay = first_delay
        self._longest_delay = longest_delay
        self._look_every = look_every
        self._changed = threading.Condition()
        self._driven: dict[str, _Driven] = {}
        self._left: list[Follower] = []
        self._head = NOTHING_APPLIED
        self._news = True
        self._stopping = False
        self._busy_with: str | None = None
        self._applied: deque[Applied] = deque(maxlen=_REMEMBERED_TURNS)
        self._thread: threading.Thread | None = None
        for follower in followers:
            self.add(follower)

    def start(self) -> None:
        """Start the thread; RuntimeError if it was started before."""
        if self._thread is not None:
            raise RuntimeError("the runner was started before")
        self._thread = threading.Thread(target=self._run, name="millpond-followers", daemon=True)
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Finish the current record and end the thread; False if it still runs after `timeout` seconds."""
        with self._changed:
            self._stopping = True
            self._interrupt()
            self._changed.notify_all()
        if self._thread is None:
            self._close_followers()
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def notify(self, n: int) -> None:
        """Announce that record `n` is in the log; never blocks on a follower."""
        with self._changed:
            self._head = max(self._head, n)
            self._news = True
            self._changed.notify_all()

    def add(self, follower: Follower) -> None:
        """Drive another follower from its cursor on; ValueError if its name is taken."""
        with self._changed:
            if follower.name in self._driven:
                raise ValueError(f"a follower named {follower.name} is driven already")
            self._driven[follower.name] = _Driven(follower, RemainingTime(self._clock))
            self._news = True
            self._changed.notify_all()

    def remove(self, name: str) -> None:
        """Stop driving a follower; returns when it is not working. An unknown name is no error."""
        with self._changed:
            self.forget(name)
            if threading.current_thread() is not self._thread:
                self._changed.wait_for(lambda: self._busy_with != name)

    def forget(self, name: str) -> None:
        """Stop driving a follower without external effects; it may still finish the current record."""
        with self._changed:
            left = self._driven.pop(name, None)
            if left is not None:
                self._left.append(left.follower)
                self._news = True
            self._changed.notify_all()

    def followers(self) -> list[Follower]:
        """The followers that are driven."""
        with self._changed:
            return [driven.follower for driven in self._driven.values()]

    def wait(self, n: int, timeout: float | None = None, *, patient: bool = True) -> bool:
        """Wait until every follower has applied record `n`; False if `timeout` seconds were not enough.

        If not `patient`, it also returns False when every follower that is behind has failed repeatedly, and nobody
        waits for servers that cannot be reached.

        Raises:
            MillpondError: a follower cannot continue until its error is repaired, such as a full disk.
        """
        with self._changed:
            if not patient:
                self._interrupt()
            self._changed.wait_for(
                lambda: self._lowest() >= n or self._hopeless() or not (patient or self._advancing(n)), timeout
            )
            if self._lowest() < n and (error := self._hopeless()):
                raise error
            return self._lowest() >= n

    def cursors(self) -> dict[str, int]:
        """The cursor of each follower, -1 if it is not known for certain; retirement and pruning rely on it.

        A cursor is not known before the first turn, and after a failure, which may have undone the follower's effect.
        """
        with self._changed:
            return {name: _sure_cursor(driven) for name, driven in self._driven.items()}

    def applied(self) -> list[Applied]:
        """When the newest records were applied, and by which follower."""
        return list(self._applied)

    def status(self) -> tuple[FollowerStatus, ...]:
        """The state of each follower."""
        with self._changed:
            return tuple(
                FollowerStatus(
                    name,
                    driven.cursor,
                    max(0, self._head - driven.cursor),
                    driven.failures,
                    None if driven.error is None else str(driven.error),
                    driven.retry_at_us,
                    getattr(driven.follower, "note", None),
                    # the number of records is known from the first turn on, and no rate follows from failures
                    driven.catch_up.update(
                        max(0, self._head - driven.cursor) if driven.manifest and not driven.error else 0
                    ),
                )
                for name, driven in self._driven.items()
            )

    def turn(self) -> float | None:
        """Give a turn to each follower that is due; returns the seconds until the next one is due, or None.

        The thread calls this repeatedly; call it yourself only while the thread does not run.
        """
        with self._changed:
            self._news = False
            head, names = self._head, list(self._driven)
            left, self._left = self._left, []
        for follower in left:
            close_follower(follower)
        for name in names:
            with self._changed:
                driven = self._driven.get(name)
                if self._stopping:
                    return None
                if driven is None or not self._is_due(driven):
                    continue
                self._busy_with = name
            try:
                self._advance(driven, head)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # also a panic of a library in Rust, which is no Exception
                self._note_failure(driven, error)
            finally:
                with self._changed:
                    self._busy_with = None
                    self._changed.notify_all()
        return self._seconds_until_due(head)

    def _run(self) -> None:
        while not self._stopping:
            seconds = self.turn()
            silent = seconds is None
            with self._changed:
                woken = self._changed.wait_for(
                    lambda: self._news or self._stopping, self._look_every if silent else seconds
                )
                if silent and not woken:
                    for driven in self._driven.values():
                        driven.manifest = None
        self._close_followers()

    def _close_followers(self) -> None:
        with self._changed:
            held = [*self._left, *(driven.follower for driven in self._driven.values())]
        for follower in held:
            close_follower(follower)

    def _advance(self, driven: _Driven, head: int) -> None:
        manifest = driven.manifest
        if manifest is None:
            cursor = driven.follower.cursor()
            manifest = self._records.manifest(cursor, driven.follower.name)
            self._note_success(driven, cursor.n, manifest, recovered=False)
        for _ in range(RECORDS_PER_TURN):
            if manifest.n >= head or self._stopping or self._driven.get(driven.follower.name) is not driven:
                return
            entry, following = self._records.following(manifest)
            began_us = now_us()
            driven.follower.apply(entry.n, entry, following)
            self._applied.append((entry.n, Span(driven.follower.name, "apply", began_us, now_us())))
            self._note_success(driven, following.n, following, recovered=True)
            manifest = following

    def _note_success(self, driven: _Driven, cursor: int, manifest: Manifest, recovered: bool) -> None:
        with self._changed:
            driven.cursor, driven.manifest, driven.retry_at_us = cursor, manifest, None
            if recovered or cursor >= self._head:
                if driven.failures >= _ENOUGH:
                    _log.warning("%s continues after %d failures.", driven.follower.name, driven.failures)
                driven.failures, driven.error = 0, None
            self._changed.notify_all()

    def _note_failure(self, driven: _Driven, error: BaseException) -> None:
        with self._changed:
            delay = min(self._first_delay * 2 ** min(driven.failures, 60), self._longest_delay)
            driven.failures += 1
            if driven.failures == _ENOUGH:
                _log.warning("%s fails: %s", driven.follower.name, error)
            driven.error = error
            driven.retry_at_us = self._clock() + round(delay * _US)
            # Its effect may be lost, so its cursor is read again; until then the old cursor is kept.
            driven.manifest = None

    def _is_due(self, driven: _Driven) -> bool:
        return driven.retry_at_us is None or driven.retry_at_us <= self._clock()

    def _seconds_until_due(self, head: int) -> float | None:
        with self._changed:
            waits = []
            for driven in self._driven.values():
                if driven.retry_at_us is not None:
                    waits.append(max(0.0, (driven.retry_at_us - self._clock()) / _US))
                elif driven.cursor < head:
                    waits.append(0.0)
            return min(waits, default=None)

    def _hopeless(self) -> MillpondError | None:
        """An error that waiting has not repaired, if any; errors of a store alone are considered temporary."""
        for driven in self._driven.values():
            if driven.failures >= _ENOUGH and isinstance(driven.error, _LASTING):
                return driven.error
        return None

    def _interrupt(self) -> None:
        for driven in self._driven.values():
            if isinstance(driven.follower, Interruptible):
                driven.follower.interrupt()

    def _advancing(self, n: int) -> bool:
        """Whether a follower that has not applied record `n` may soon do so."""
        return any(driven.failures < _ENOUGH for driven in self._driven.values() if _sure_cursor(driven) < n)

    def _lowest(self) -> int:
        return min(map(_sure_cursor, self._driven.values()), default=self._head)


class Runners:
    """Several runners as one: a follower that waits for other systems, such as Spark, has its own thread."""

    def __init__(self, *runners: Runner) -> None:
        self._runners = runners
        self._started = False
        self._changing = threading.Lock()

    @property
    def first(self) -> Runner:
        """The runner of the followers that do not wait for other systems."""
        return self._runners[0]

    def join(self, runner: Runner) -> None:
        """Add a runner; it starts with the others, or now if they have started."""
        with self._changing:
            self._runners = (*self._runners, runner)
        if self._started:
            runner.start()

    def remove(self, name: str) -> None:
        """See `Runner.remove`; a joined runner without followers is stopped."""
        for runner in self._runners:
            if name in runner.cursors():
                runner.remove(name)
                if runner is not self.first and not runner.cursors():
                    with self._changing:
                        self._runners = tuple(one for one in self._runners if one is not runner)
                    runner.stop(0)

    def forget(self, name: str) -> None:
        for runner in self._runners:
            runner.forget(name)

    def start(self) -> None:
        """Start every thread."""
        self._started = True
        for runner in self._runners:
            runner.start()

    def stop(self, timeout: float) -> bool:
        """End every thread; False if one still runs after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        ended = [runner.stop(max(0.0, deadline - time.monotonic())) for runner in self._runners]
        return all(ended)

    def notify(self, n: int) -> None:
        for runner in self._runners:
            runner.notify(n)

    def wait(self, n: int, timeout: float, *, patient: bool = True) -> bool:
        """See `Runner.wait`."""
        deadline = time.monotonic() + timeout
        return all(runner.wait(n, max(0.0, deadline - time.monotonic()), patient=patient) for runner in self._runners)

    def followers(self) -> list[Follower]:
        return [follower for runner in self._runners for follower in runner.followers()]

    def cursors(self) -> dict[str, int]:
        return {name: cursor for runner in self._runners for name, cursor in runner.cursors().items()}

    def applied(self) -> list[Applied]:
        return [one for runner in self._runners for one in runner.applied()]

    def status(self) -> tuple[FollowerStatus, ...]:
        return tuple(status for runner in self._runners for status in runner.status())


def _sure_cursor(driven: _Driven) -> int:
    return NOTHING_APPLIED if driven.manifest is None else driven.cursor


class _Records:
    """Entries and manifests of the newest records, shared by all followers; used by one thread."""

    def __init__(self, log: Log, manifests: Manifests) -> None:
        self._log = log
        self._manifests = manifests
        self._known: OrderedDict[int, tuple[Entry, Manifest]] = OrderedDict()

    def manifest(self, cursor: Cursor, follower: str) -> Manifest:
        """The manifest at a cursor; AheadError if the log does not have its record."""
        if cursor.n == NOTHING_APPLIED:
            return Manifest()
        known = self._known.get(cursor.n)
        manifest = load(self._log, self._manifests, cursor.n) if known is None else known[1]
        check_reached(follower, cursor, manifest)
        return manifest

    def following(self, manifest: Manifest) -> tuple[Entry, Manifest]:
        """The next record and the manifest that includes it; CorruptError if the log ends here."""
        n = manifest.n + 1
        if n not in self._known:
            data = self._log.read(n)
            if data is None:
                raise CorruptError(f"Record {n} was announced, but the log does not hold it.", "Restore the log.")
            entry = decode(data, self._log.describe(n))
            self._known[n] = entry, fold(manifest, entry)
            if len(self._known) > _REMEMBERED_RECORDS:
                self._known.popitem(last=False)
        return self._known[n]
