"""Time in which a virtual machine had its CPUs: seconds in which its host gave them to others are not counted."""

from __future__ import annotations

import os
import threading
from bisect import bisect
from pathlib import Path
from time import perf_counter

STAT = Path("/proc/stat")
STOLEN = 8
"""The place of stolen ticks among those of all CPUs: https://man7.org/linux/man-pages/man5/proc_stat.5.html."""

EVERY_S = 0.05


class OwnTime:
    """Looks at what was stolen twenty times a second, from when it is made until `end`; nothing, where no one tells.

    A CPU is stolen while it has work and is not given to it, so of two CPUs of which one has work half is counted.
    """

    def __init__(self, stat: Path = STAT) -> None:
        self._stat, self._seen = stat, list[tuple[float, float]]()
        self._stopped, self._lock = threading.Event(), threading.Lock()
        self._look()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Look for the last time."""
        self._stopped.set()
        self._thread.join()
        self._look()

    def of(self, time: float) -> float:
        """A time of `perf_counter` as seconds of one's own: differences are how long the CPUs were there."""
        place = bisect(self._seen, (time,))
        (began, none), (ended, stolen) = self._seen[max(0, place - 1)], self._seen[min(place, len(self._seen) - 1)]
        part = (min(time, ended) - began) / (ended - began) if began < time and began < ended else 0.0
        return time - none - part * (stolen - none)

    def now(self) -> float:
        """Seconds of one's own as of now."""
        at, stolen = self._look()
        return at - stolen

    @property
    def stolen(self) -> float:
        """The fraction of the time until now that the host took away."""
        (began, none), (ended, stolen) = self._seen[0], self._seen[-1]
        return (stolen - none) / max(ended - began, EVERY_S)

    def _work(self) -> None:
        while not self._stopped.wait(EVERY_S):
            self._look()

    def _look(self) -> tuple[float, float]:
        stolen = 0.0
        with self._lock:  # so that times rise
            if self._stat.exists():
                with self._stat.open() as lines:
                    stolen = int(next(lines).split()[STOLEN]) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
            self._seen.append((perf_counter(), stolen))
            return self._seen[-1]
