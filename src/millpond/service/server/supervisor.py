"""Keeps a pond running: stands by, takes over, runs epochs, and tries again after failures with growing delays."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from millpond.clock import Clock, lap_us
from millpond.control.commands.command_log import LogLine
from millpond.control.commands.watchdog import stalled
from millpond.errors import (
    FencedError,
    MillpondError,
    NoMemoryError,
    NotServingError,
    SparkError,
    StalledError,
    TruthError,
    UnreachableError,
)
from millpond.service.api.messages import Failure, Role
from millpond.service.server.leader_progress import EPOCH_SECONDS, StepDeadline
from millpond.service.server.leadership import LeadershipHints
from millpond.service.server.restart import RestartNeeded

FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0
LOOK_SECONDS = 0.1
"""How often a standby checks whether the leader has ended."""

RESTART_AFTER = 5
"""The number of failures of this process, without an epoch in between, after which it is restarted. The number doubles
with each restart that did not help.
"""

RESTART_SECONDS = 60
"""How long a stall lasts after it was noticed until the process is replaced; a standby takes over earlier."""

_DOUBLINGS = 6
_OF_THIS_PROCESS = (SparkError, NoMemoryError, StalledError)
"""Failures of Spark, Java and Python workers, which a restart may repair. An unavailable source, sink or store is
unavailable for a restarted process too, so the supervisor waits for it.
"""


class Runs(Protocol):
    """The part of a pond that the supervisor uses."""

    def open(self) -> None:
        """Claim the pond."""

    def run(self, *, once: bool) -> bool:
        """Run epochs until `stop`."""

    def stop(self) -> None:
        """Let `run` return after the current epoch."""

    def end(self) -> None:
        """Release all resources; the pond cannot be opened again."""


class Supervisor:
    """Leads, or stands by, until `stop`; `run` is for the main thread, everything else for any.

    `make` prepares a pond, as far as that can be done before the former leader is gone; `begins` finishes that and
    returns whether it has anything to run. `warm_up` is called when this process stands by and has not led yet; it
    must return at once. `ready` is called once, when this process first leads or stands by. `gone` returns why no epoch
    can ever run again in this process, if so; `restarts` is how often the process was started anew since its last
    epoch.
    """

    def __init__(
        self, make: Callable[[], Runs], begins: Callable[[Runs], bool], hint: LeadershipHints,
        say: LogLine, ready: Callable[[], None], gone: Callable[[], MillpondError | None],
        clock: Clock = lap_us, restarts: int = 0, epoch_seconds: float = EPOCH_SECONDS,
        warm_up: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._make, self._begins, self._hint, self._ready, self._warm_up = make, begins, hint, ready, warm_up
        self._say, self._gone, self._clock = say, gone, clock
        self.role: Role = "starting"
        self._began = clock()
        self.took_over_s: float | None = None
        self._pond: Runs | None = None
        self._stopping, self._wake = threading.Event(), threading.Event()
        self._failure: tuple[MillpondError, int, int] | None = None
        self._failures = self._own_failures = 0
        self._led = self._was_ready = False
        self.restarts, self._stall_reported = restarts, False
        self._deadline = StepDeadline(clock, restarts, epoch_seconds)
        self._stalled_checks = 0

    def run(self) -> None:
        """Lead or stand by until `stop`.

        Raises:
            TruthError: the log cannot be continued. SparkError: the JVM has ended.
            MillpondError: the pond could not be started at all.
            RestartNeeded: this process failed repeatedly; `restarts` counts it.
        """
        try:
            self._run()
        finally:
            self._hint.leave()
        self.role = "stopping"

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._deadline.begin("The preparation of the pond")
            try:
                pond = self._make()
            except MillpondError as error:
                if not (self.restarts or (self._was_ready and isinstance(error, UnreachableError))):
                    raise
                self._judge(error)
                continue
            finally:
                self._deadline.clear()
            try:
                self._stand_by()
                if not self._stopping.is_set():
                    self._lead(pond)
            except FencedError as error:
                self._say(str(error))
                self._deadline.overtaken()
                self._hint.leave(fenced=True)
            except MillpondError as error:
                self._hint.leave()
                self._start_again()
                self._judge(error)
            finally:
                self._start_again()
                self._deadline.begin("The closing of the pond")
                pond.end()
                self._deadline.clear()

    def stop(self) -> None:
        """Let `run` return after the current epoch; may be called from a signal handler."""
        self._stopping.set()
        self._wake.set()
        if (pond := self._pond) is not None:
            pond.stop()

    def wake(self) -> None:
        """Continue with a pond that had no query to run, and now has one."""
        self._wake.set()

    def committed(self) -> None:
        """Note a committed epoch: earlier failures are over."""
        self._failure, self._failures, self._own_failures, self.restarts = None, 0, 0, 0
        self._deadline.begin()

    def alive(self, work: tuple[int, ...] | None) -> None:
        """Note a response of Spark, and the work that the running epoch has done; see `StepDeadline.note_response`."""
        self._deadline.note_response(work)

    def stalled(self) -> bool:
        """Whether this process leads but makes no progress, so that a standby should take over."""
        return self._deadline.stalled

    def report_stall(self) -> bool:
        """Report a stall once, when it begins; returns the same as `stalled`."""
        found = self._deadline.stalled
        if found and not self._stall_reported:
            self._say(f"{self._deadline.step} takes very long: no more signs of life, so that a standby may take over.")
        self._stall_reported = found
        return found

    def count_stalled_check(self) -> bool:
        """Count a check; returns whether this process should end or be replaced because a stall has lasted too long.

        To be called once a second. Looks are counted, rather than the time, because a suspended process counts none.
        """
        self._stalled_checks = self._stalled_checks + 1 if self._deadline.stalled else 0
        return self._stalled_checks >= RESTART_SECONDS

    def restart_or_error(self) -> StalledError | None:
        """Count a restart of this stalled process; if it was being stopped, return the error to end with instead."""
        error = stalled(f"{self._deadline.step} has made no progress for a long time")
        if self._stopping.is_set():
            return error
        self.restarts += 1
        self._say(
            f"{error.what} Nothing has changed for another {RESTART_SECONDS} s: this process starts anew."
            f" This is restart {self.restarts} without an epoch; each one doubles the time that a step may take."
        )
        return None

    def _start_again(self) -> None:
        self._pond = None
        if self.role != "starting":
            self.role, self._began = "starting", self._clock()

    @property
    def failure(self) -> Failure | None:
        """The reason why no epochs run now, if any."""
        if (looks := self._stalled_checks) > 0:
            stall = SparkError("The leader makes no progress.", "See its log; it starts anew if nothing changes.")
            return Failure(stall.code, stall.what, stall.cure, self.restarts, float(RESTART_SECONDS - looks))
        if (failure := self._failure) is None:
            return None
        error, count, due = failure
        return Failure(error.code, error.what, error.cure, count, max(0.0, (due - self._clock()) / 1e6))

    @property
    def starting_s(self) -> float | None:
        """For how long this process has been starting; None: it leads, stands by or stops."""
        return (self._clock() - self._began) / 1e6 if self.role == "starting" else None

    def leading(self) -> Runs:
        """The pond that this process leads.

        Raises:
            NotServingError: this process does not lead; the message says who may.
        """
        if (pond := self._pond) is not None:
            return pond
        leader = self._hint.leader()
        where = "" if leader is None else f" at {leader.url}"
        if (starting_s := self.starting_s) is not None:
            what = f"The pond is starting (since {starting_s:.0f} s); it takes no changes before it leads."
            other = f", or send it to the last known leader{where}" if self._led else ""
            raise NotServingError(what, f"Try again when `millpond status` shows the role leader{other}.")
        raise NotServingError(f"This service is {self.role}.", f"Ask the leader{where}, or again in a moment.")

    def _stand_by(self) -> None:
        if not self._hint.try_take_over():
            self.role = "standby"
            leader = self._hint.leader()
            self._announce_ready()
            self._say(f"Standing by; {'another process' if leader is None else leader.url} leads.")
            if not self._led:
                self._warm_up()
            while not self._stopping.wait(LOOK_SECONDS) and not self._hint.try_take_over():
                self._hint.stand_by()

    def _lead(self, pond: Runs) -> None:
        began = self._clock()
        self._deadline.begin("The opening of the pond")
        self._hint.lead(self.report_stall)
        try:
            runs = self._begins(pond)
            if runs:
                pond.open()
        except BaseException:
            self._hint.leave()  # another process may be able to lead
            raise
        self.took_over_s = (self._clock() - began) / 1e6
        self._pond, self.role, self._led = pond, "leader", True
        self._announce_ready()
        self._say(f"Leading; opening the pond took {self.took_over_s:.1f} s.")
        while not self._stopping.is_set():
            if not runs:
                self._deadline.clear()
                self._wake.wait()
                runs = True
                continue
            self._deadline.begin()
            try:
                pond.run(once=False)
            except TruthError:
                raise  # also if the store does not answer: this process cannot know whether another one leads
            except MillpondError as error:
                self._judge(error)

    def _announce_ready(self) -> None:
        if not self._was_ready:
            self._was_ready = True
            self._ready()

    def _judge(self, error: MillpondError) -> None:
        """Wait before the next try, or raise an error that no further try can repair."""
        lasting = isinstance(error, TruthError) and not error.retry
        if lasting or not (self._led or self.restarts or error.retry):
            raise error
        if (gone := self._gone()) is not None:
            raise error if isinstance(error, NoMemoryError | StalledError) else gone  # these name the responsible query
        if self._stopping.is_set():
            self._say(str(error))
            return
        self._deadline.clear()
        if isinstance(error, _OF_THIS_PROCESS):
            self._own_failures += 1
            if self._own_failures >= RESTART_AFTER << min(self.restarts, _DOUBLINGS):
                self.restarts += 1
                many = f"That was {self._own_failures} times without an epoch: starting anew."
                self._say(f"{error} {many}", logging.ERROR)
                raise RestartNeeded
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(self._failures, 16))
        self._failures += 1
        self._failure = (error, self._failures, self._clock() + round(delay * 1e6))
        self._say(f"{error} Trying again in {delay:.1f} s.", logging.WARNING)
        self._stopping.wait(delay)
