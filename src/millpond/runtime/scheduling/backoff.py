"""Counts down to the next attempt at something that has failed before.

`ArrowEpochs` also counts the epochs of a stream that Arrow has read, for people.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_FIRST_WAIT, _LONGEST_WAIT = 16, 4096


class Backoff:
    """After each failure in a row, twice as many epochs pass before the next attempt; `why`: the last failure."""

    def __init__(self) -> None:
        self._waits, self._wait = 0, _FIRST_WAIT
        self.why = ""

    @property
    def is_next(self) -> bool:
        """Whether to attempt it in the next epoch."""
        return not self._waits

    def due(self) -> bool:
        """Whether to attempt it in this epoch; call it once an epoch."""
        if not self._waits:
            return True
        self._waits -= 1
        return False

    def failed(self, why: str) -> None:
        """Note a failure."""
        self.why, self._waits = why, self._wait
        self._wait = min(2 * self._wait, _LONGEST_WAIT)

    def succeeded(self) -> None:
        """Note a success."""
        self.why, self._wait = "", _FIRST_WAIT


@dataclass
class ArrowEpochs:
    """The epochs with new input of one stream that Arrow can read, and how many of them Spark has read instead."""

    backoff: Backoff = field(default_factory=Backoff)
    epochs: int = 0
    of_spark: int = 0

    def note(self, verb: str) -> str:
        """How many epochs Arrow has read or parsed (the `verb`), and why the last was Spark's, for people."""
        counted = f"{verb} with Arrow in {self.epochs - self.of_spark:,} of {self.epochs:,} epochs"
        return f"{counted}; by Spark in the last: {self.backoff.why}" if self.backoff.why else counted
