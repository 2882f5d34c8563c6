"""Requests changes of an open pond: checks and prices them, prepares the read that they need, and has them recorded."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from concurrent.futures import Future

from millpond.clock import now_us
from millpond.control.pond.lifetime import Lifetime
from millpond.control.pond.readings import Readings
from millpond.errors import MillpondError
from millpond.reconfigure.catalog import applied
from millpond.reconfigure.change_price import Price, price_of
from millpond.reconfigure.change_queue import Make, Prepare
from millpond.reconfigure.validate import KnownPond


class ChangeRequests:
    """Has changes checked at once, recorded between two epochs, and in force in the next epoch.

    A call returns when its change is in the log, so it may take as long as the current epoch. A call within `on_epoch`,
    which is part of the epoch, returns earlier. If its change is refused then, because another change came first, the
    error is appended to `refused`.
    """

    def __init__(self, lifetime: Lifetime, readings: Readings) -> None:
        self._lifetime, self._readings = lifetime, readings
        self.refused: list[MillpondError] = []

    def request(self, make: Make) -> None:
        """Check a change against the current catalog, and have it recorded.

        Raises:
            ChangeRefused: the change does not fit the catalog. FencedError, PlaceError, …: it was not recorded.
        """
        self.check(make)
        self.record(make)

    def check(self, make: Make) -> None:
        """Check a change against the current catalog.

        The read that it needs is analysed here, so that no epoch waits for the analysis.

        Raises:
            ChangeRefused: the change does not fit the catalog.
        """
        if self.price(make).rereads and (driver := self._lifetime.open().driver).reads:
            pond = self.known()
            self._readings.read_ahead(applied(pond.spec, pond.manifest.n + 1, make(pond)), driver)

    def record(self, make: Make | Prepare, ended: Callable[[], None] = lambda: None) -> None:
        """Have a change recorded that was checked; `ended` is called when it is recorded or refused.

        Raises:
            MillpondError: it was not recorded.
        """
        driver = self._lifetime.open().driver  # the analysis took seconds, in which the pond may have been closed
        done = driver.request(make)
        done.add_done_callback(lambda _done: ended())
        if driver.in_epoch:
            done.add_done_callback(self._note_refusal)
        else:
            done.result()

    def price(self, make: Make) -> Price:
        """The price of a change if it were made now; nothing is changed.

        Raises:
            ChangeRefused: the change does not fit the catalog.
        """
        setting, pond = self._lifetime.open().driver.setting, self.known()
        return price_of(pond, make(pond), setting)

    def known(self) -> KnownPond:
        """The pond as this driver knows it, without reading the log; a change is checked again when it is recorded."""
        opened = self._lifetime.open()
        return KnownPond(opened.spec, opened.driver.manifest, now_us())

    def _note_refusal(self, done: Future[int]) -> None:
        error = done.exception()
        if isinstance(error, MillpondError):
            self.refused.append(error)


def named(who: str | None) -> str:
    """The requester: `who`, or the user of this process if it is None."""
    if who is not None:
        return who
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a process without a user's name
        return ""
