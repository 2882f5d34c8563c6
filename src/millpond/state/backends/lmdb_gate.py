"""Lets many threads use an LMDB environment, or one replace it: LMDB may only be resized while nothing reads it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Counts the threads that use the environment."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._users = 0
        self._replacing = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Use the environment, together with other threads."""
        with self._changed:
            self._changed.wait_for(lambda: not self._replacing)
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Wait until no thread uses the environment, and keep others out."""
        with self._changed:
            self._changed.wait_for(lambda: not self._replacing)
            self._replacing = True
            self._changed.wait_for(lambda: self._users == 0)
        try:
            yield
        finally:
            with self._changed:
                self._replacing = False
                self._changed.notify_all()
