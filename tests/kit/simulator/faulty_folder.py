"""A `port.Folder` that fails as an object store does on a bad day: throttling, lost replies, slow puts, old listings.

Requests fail at random, with probability `rate`, or as `plan` says. A failed request raises `PlaceError`, except one
that the client retries: that one finds its own object. Reads always see the newest write; only listings may be old.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from millpond.errors import PlaceError
from millpond.log.port import Folder

THROTTLED = "throttled"
"""Nothing was done."""

REPLY_LOST = "reply lost"
"""It was done."""

RETRIED = "retried, loses against itself"
"""A create was done, and reports that the object exists."""

DELAYED_PUT = "delayed put"
"""A put is done some time after its failure was reported to the caller."""

STALE_LISTING = "stale listing"
"""A listing lacks some of the newest objects."""

CREATE_FAULTS = (THROTTLED, REPLY_LOST, RETRIED, DELAYED_PUT)
FOLDER_FAULTS = (*CREATE_FAULTS, STALE_LISTING)

_NEWEST = 5


class FaultyFolder:
    """The requests to `inner` fail with probability `rate`; `later` schedules what a late put does."""

    def __init__(
        self, inner: Folder, random: Random, rate: float, later: Callable[[str, Callable[[], object]], None]
    ) -> None:
        self.inner = inner
        self.rate = rate
        self.reached: set[str] = set()
        self._random = random
        self._later = later
        self._planned: str | None = None
        self._newest: list[str] = []

    @property
    def where(self) -> str:
        """The address of the folder; see `port.Folder`."""
        return self.inner.where

    def plan(self, fault: str) -> None:
        """Let the next `create` fail in this way."""
        self._planned = fault

    def create(self, name: str, data: bytes) -> bool:
        """Create the file unless its name exists; see `port.Folder`."""
        fault, self._planned = self._planned or self._drawn(CREATE_FAULTS), None
        if fault is None:
            return self._created(name, data)
        self.reached.add(fault)
        if fault == DELAYED_PUT:
            self._later(f"create of {name}", lambda: self._created(name, data))
        elif fault != THROTTLED:
            self._created(name, data)
        if fault == RETRIED:
            return False
        raise self._failed("create", name, fault)

    def replace(self, name: str, data: bytes) -> None:
        """Write the file over any older one; see `port.Folder`."""
        fault = self._drawn((THROTTLED, REPLY_LOST, DELAYED_PUT))
        if fault is None or fault == REPLY_LOST:
            self._replaced(name, data)
        if fault == DELAYED_PUT:
            self._later(f"replace of {name}", lambda: self._replaced(name, data))
        if fault is not None:
            raise self._failed("replace", name, fault)

    def read(self, name: str) -> bytes | None:
        """Return the file, or None; see `port.Folder`."""
        self._throttle("read", name)
        return self.inner.read(name)

    def exists(self, name: str) -> bool:
        """Return whether the file exists; see `port.Folder`."""
        self._throttle("exists", name)
        return self.inner.exists(name)

    def names(self, after: str = "") -> list[str]:
        """Return the names after `after`, without some of the newest if this listing is old; see `port.Folder`."""
        self._throttle("names", "")
        found = self.inner.names(after)
        if self._random.random() >= 10 * self.rate:
            return found
        hidden = {name for name in self._newest if name in found and self._random.random() < 0.5}
        self.reached |= {STALE_LISTING} if hidden else set()
        return [name for name in found if name not in hidden]

    def remove(self, name: str) -> None:
        """Remove the file if it exists; see `port.Folder`."""
        self._throttle("remove", name)
        self.inner.remove(name)

    def _created(self, name: str, data: bytes) -> bool:
        won = self.inner.create(name, data)
        if won:
            self._newest = [*self._newest, name][-_NEWEST:]
        return won

    def _replaced(self, name: str, data: bytes) -> None:
        if not self.inner.exists(name):
            self._newest = [*self._newest, name][-_NEWEST:]
        self.inner.replace(name, data)

    def _throttle(self, method: str, name: str) -> None:
        fault = self._drawn((THROTTLED,))
        if fault is not None:
            raise self._failed(method, name, fault)

    def _drawn(self, faults: tuple[str, ...]) -> str | None:
        if self._random.random() >= self.rate:
            return None
        fault = self._random.choice(faults)
        self.reached.add(fault)
        return fault

    def _failed(self, method: str, name: str, fault: str) -> PlaceError:
        return PlaceError(f"The {method} of {self.where}/{name} failed: {fault}.")
