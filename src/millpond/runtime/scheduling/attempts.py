"""Counts down to the next attempt at something that has failed before."""

from __future__ import annotations

_FIRST_WAIT, _LONGEST_WAIT = 16, 4096


class Attempts:
    """After each failure in a row, twice as many epochs pass before the next attempt; `why`: the last failure."""

    def __init__(self) -> None:
        self._waits, self._wait = 0, _FIRST_WAIT
        self.why = ""

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
