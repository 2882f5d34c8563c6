"""Defines named steps at which a test may kill, stop or fail a process of a real pond.

In production, a step costs one `if`.

    MILLPOND_FAULT      = fault {"," fault}          read once, when this module is imported
    fault               = step ":" occurrence ":" action        such as commit.before_append:2:kill
    action              = "kill" | "stop" | "raise"             SIGKILL or SIGSTOP to this process, or FaultError
    MILLPOND_FAULT_DIR  = a folder, the same for all processes and restarts of one test

In this folder, one file per step grows by a byte whenever the step is reached, so occurrences are counted over all
processes. `<step>.<occurrence>.<action>` is created when a fault happens, so that it happens only once and a test can
prove that it did.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

DRIVER_STEPS = (
    "claim.before",
    "claim.after",
    "begin.start",
    "begin.decided",
    "epoch.before_job",
    "epoch.after_job",
    "commit.before_append",
    "commit.after_append",
    "commit.after_announce",
    "batch.return",
    "drain.before",
)
WORKER_STEPS = (
    "gather.start",
    "gather.packet",
    "fold.start",
    "fold.before_delta",
    "fold.after_delta",
    "fold.return",
)
FOLLOWER_STEPS = (
    "sink.before_tmp",
    "sink.after_tmp",
    "sink.after_link",
    "sink.after_cursor",
    "view.before_apply",
    "view.after_apply",
    "prune.before_body",
    "prune.before_delete",
)
DIRECT_STEPS = (
    "direct.gathered",
    "direct.sent",
)
CHANGE_STEPS = (
    "change.before",
    "change.recorded",
    "change.in_force",
    "read.again",
    "read.copied",
    "read.handed",
    "map.before",
    "map.after",
    "move.before",
    "move.copied",
    "move.caught_up",
    "move.switched",
    "move.forgotten",
)
SLOT_STEPS = (
    "slots.importing",
    "slots.migrating",
    "slots.keys_moved",
    "slots.taken",
    "shards.portion",
)
BACKFILL_STEPS = (
    "backfill.portion",
    "backfill.staged",
    "backfill.brought",
)
TOPIC_STEPS = (
    "topic.before_begin",
    "topic.after_begin",
    "topic.after_commit",
    "topic.after_cursor",
)
DELIVERY_STEPS = (
    "delivery.before",
    "delivery.written",
    "delivery.after",
)
COMMON_STEPS = (*DRIVER_STEPS, *WORKER_STEPS, *FOLLOWER_STEPS)
"""Steps that every pond reaches, in the order in which an epoch reaches them."""

STEPS = (*COMMON_STEPS, *DIRECT_STEPS, *CHANGE_STEPS, *SLOT_STEPS, *BACKFILL_STEPS, *TOPIC_STEPS, *DELIVERY_STEPS)
"""All steps; a test enumerates them."""

ACTIONS = ("kill", "stop", "raise")


class FaultError(Exception):
    """Raised by the action `raise`: an error that no code expects."""


class Fault(NamedTuple):
    """A planned fault: an action for one occurrence of a step."""

    step: str
    occurrence: int
    action: str

    @property
    def marker(self) -> str:
        """Name of the file that records that the fault happened."""
        return f"{self.step}.{self.occurrence}.{self.action}"


class Faults:
    """The planned faults, and the folder in which steps are counted."""

    def __init__(self, planned: str, folder: Path) -> None:
        self._planned = [_parsed(text) for text in planned.split(",") if text]
        self._folder = folder

    def reached(self, step: str) -> None:
        """Count the step, and execute the fault that is planned for this occurrence."""
        if step not in STEPS:
            raise ValueError(f"there is no step {step!r} in millpond.faults.STEPS")
        count = self._counted(step)
        for fault in self._planned:
            # Two processes may count at the same time and both see the higher number.
            if fault.step == step and count >= fault.occurrence and self._is_first(fault):
                _happen(fault)

    def _counted(self, step: str) -> int:
        descriptor = os.open(self._folder / step, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, b".")
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def _is_first(self, fault: Fault) -> bool:
        try:
            descriptor = os.open(self._folder / fault.marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return False
        os.write(descriptor, b"%d" % os.getpid())
        os.close(descriptor)
        return True


def _parsed(text: str) -> Fault:
    step, occurrence, action = text.split(":")
    if step not in STEPS or not occurrence.isdecimal() or action not in ACTIONS:
        raise ValueError(f"MILLPOND_FAULT has {text!r}, not STEP:OCCURRENCE:ACTION")
    return Fault(step, int(occurrence), action)


def _happen(fault: Fault) -> None:
    if fault.action == "raise":
        raise FaultError(f"planned at {fault.step}")
    # The signal is sent to this thread, because another thread would receive one to the process, and this one would go
    # on.
    signal.pthread_kill(threading.get_ident(), signal.SIGKILL if fault.action == "kill" else signal.SIGSTOP)


def from_environment(environment: Mapping[str, str]) -> Faults | None:
    """The faults planned in environment variables; None if no variable is set, so that nothing is counted either."""
    if "MILLPOND_FAULT" not in environment:
        return None
    return Faults(environment["MILLPOND_FAULT"], Path(environment["MILLPOND_FAULT_DIR"]))


_faults = from_environment(os.environ)


def reached(step: str) -> None:
    """Note that this process is at `step`; does nothing unless a test has planned faults."""
    if _faults is not None:
        _faults.reached(step)
