"""Keeps a pond answered: stands by, takes over, runs epochs, and after a failure runs them again, ever more slowly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from millpond.clock import Clock, lap_us
from millpond.errors import FencedError, MillpondError, NoMemoryError, NotServingError, TruthError
from millpond.service.leader import Hint
from millpond.service.places import Places
from millpond.service.wire import Failure, Role

FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0
LOOK_SECONDS = 0.1
"""How often a standby asks whether the leader is gone."""


class Runs(Protocol):
    """What the supervisor needs of a pond."""

    def open(self) -> None:
        """Claim it."""

    def run(self, *, once: bool) -> bool:
        """Run epochs until `stop`."""

    def stop(self) -> None:
        """Let `run` return after the epoch at hand."""

    def end(self) -> None:
        """Let go of everything, and let nobody open it again."""


class Supervisor:
    """Leads, or stands by, until `stop`; `run` is for the main thread, everything else for any.

    `make` prepares a pond, as far as that can be done before the former leader is gone; `begins` finishes that and
    tells whether it has anything to run. `gone` says why no epoch can ever run again in this process, if so.
    """

    def __init__(
        self, make: Callable[[], Runs], begins: Callable[[Runs], bool], hint: Hint, places: Places,
        say: Callable[[str], None], gone: Callable[[], MillpondError | None], clock: Clock = lap_us,
    ) -> None:  # fmt: skip
        self._make, self._begins, self._hint, self._places = make, begins, hint, places
        self._say, self._gone, self._clock = say, gone, clock
        self.role: Role = "starting"
        self.took_over_s: float | None = None
        self._pond: Runs | None = None
        self._stopping, self._wake = threading.Event(), threading.Event()
        self._failure: tuple[MillpondError, int, int] | None = None
        self._failures = 0
        self._led = False

    def run(self) -> None:
        """Until `stop`.

        Raises:
            TruthError: the log cannot be continued. SparkError: the Java machine has ended.
            MillpondError: the pond could not be begun at all.
        """
        while not self._stopping.is_set():
            pond = self._make()
            try:
                self._stand_by()
                if not self._stopping.is_set():
                    self._lead(pond)
            except FencedError as error:
                self._say(str(error))
                self._hint.leave(fenced=True)
            except MillpondError as error:
                self._judge(error)
            finally:
                self._pond = None
                pond.end()
        self.role = "stopping"
        self._hint.leave()

    def stop(self) -> None:
        """Let `run` return after the epoch at hand; may be called from a signal handler."""
        self._stopping.set()
        self._wake.set()
        if (pond := self._pond) is not None:
            pond.stop()

    def wake(self) -> None:
        """The pond, which had nothing to run, has now."""
        self._wake.set()

    def committed(self) -> None:
        """An epoch was: whatever failed is over."""
        self._failure, self._failures = None, 0

    @property
    def failure(self) -> Failure | None:
        """Why no epochs run now."""
        if (told := self._failure) is None:
            return None
        error, count, due = told
        return Failure(error.code, error.what, error.cure, count, max(0.0, (due - self._clock()) / 1e6))

    def leading(self) -> Runs:
        """The pond that this process leads.

        Raises:
            NotServingError: it does not; the message says who may.
        """
        if (pond := self._pond) is not None:
            return pond
        leader = self._places.leader()
        where = "" if leader is None else f" at {leader.url}"
        raise NotServingError(f"This service is {self.role}.", f"Ask the leader{where}, or again in a moment.")

    def _stand_by(self) -> None:
        if not self._hint.gone():
            self.role = "standby"
            leader = self._places.leader()
            self._say(f"Standing by; {'another process' if leader is None else leader.url} leads.")
            while not self._stopping.wait(LOOK_SECONDS) and not self._hint.gone():
                pass

    def _lead(self, pond: Runs) -> None:
        began = self._clock()
        self._hint.lead()
        try:
            runs = self._begins(pond)
            if runs:
                pond.open()
        except BaseException:
            self._hint.leave()  # another process may be able to
            raise
        self.took_over_s = (self._clock() - began) / 1e6
        self._pond, self.role, self._led = pond, "leader", True
        self._say(f"Leading after {self.took_over_s:.1f} s.")
        while not self._stopping.is_set():
            if not runs:
                self._wake.wait()
                runs = True
                continue
            try:
                pond.run(once=False)
            except TruthError:
                raise
            except MillpondError as error:
                self._judge(error)

    def _judge(self, error: MillpondError) -> None:
        """Wait before the next try; or raise what no try can mend."""
        if isinstance(error, TruthError) or not (self._led or error.retry):
            raise error
        if (gone := self._gone()) is not None:
            raise error if isinstance(error, NoMemoryError) else gone  # which says who was responsible
        if self._stopping.is_set():
            self._say(str(error))
            return
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(self._failures, 16))
        self._failures += 1
        self._failure = (error, self._failures, self._clock() + round(delay * 1e6))
        self._say(f"{error} Trying again in {delay:.1f} s.")
        self._stopping.wait(delay)
