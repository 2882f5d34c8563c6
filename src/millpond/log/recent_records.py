"""Keeps the newest records of a log in memory, so that the followers of one process request each of them once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from millpond.log.port import Folder, numbered_name

_MOST_RECORDS = 256
_MOST_BYTES = 64 << 20


class RecentRecords:
    """A `port.Folder` before another one; it keeps the files that were created or read last, as they never change.

    `created` is called with each record that this process has created. A record whose body was removed meanwhile may be
    returned with its body, which has the same digest.
    """

    def __init__(self, folder: Folder, created: Callable[[str, bytes], object] = lambda _name, _data: None) -> None:
        self._folder, self._created = folder, created
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    @property
    def where(self) -> str:
        """See `port.Folder`."""
        return self._folder.where

    def create(self, name: str, data: bytes) -> bool:
        """See `port.Folder`."""
        created = self._folder.create(name, data)
        if created and name.isdecimal():
            self._keep(name, data)
            self._created(name, data)
        return created

    def replace(self, name: str, data: bytes) -> None:
        """See `port.Folder`; a replaced file is a hint, which another process may replace, too."""
        self._folder.replace(name, data)
        self._forget(name)

    def read(self, name: str) -> bytes | None:
        """See `port.Folder`."""
        with self._lock:
            if (kept := self._kept.get(name)) is not None:
                self._kept.move_to_end(name)
                return kept
        data = self._folder.read(name)
        if data is not None and name.isdecimal():
            self._keep(name, data)
        return data

    def exists(self, name: str) -> bool:
        """See `port.Folder`."""
        with self._lock:
            if name in self._kept:
                return True
        return self._folder.exists(name)

    def names(self, after: str = "") -> list[str]:
        """See `port.Folder`."""
        return self._folder.names(after)

    def remove(self, name: str) -> None:
        """See `port.Folder`."""
        self._folder.remove(name)
        self._forget(name)

    def copy_from(self, other: RecentRecords, last: int) -> None:
        """Copies the records of another cache of the same log up to record `last`, except those that are kept here.

        The caller has checked that both logs have the same record `last`; a log that was restored may differ after it.
        """
        with other._lock:
            copied = [(name, data) for name, data in other._kept.items() if name <= numbered_name(last)]
        with self._lock:
            kept = [*self._kept.items()]
        for name, data in (*copied, *kept):
            self._keep(name, data)

    def _keep(self, name: str, data: bytes) -> None:
        with self._lock:
            self._drop(name)
            self._kept[name] = data
            self._bytes += len(data)
            while len(self._kept) > _MOST_RECORDS or (self._bytes > _MOST_BYTES and len(self._kept) > 1):
                self._drop(next(iter(self._kept)))

    def _forget(self, name: str) -> None:
        with self._lock:
            self._drop(name)

    def _drop(self, name: str) -> None:
        self._bytes -= len(self._kept.pop(name, b""))
