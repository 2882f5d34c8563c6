"""Copies the state of a pond in an object store to a standby's host, so that a take-over need not wait for it.

The standby follows the log. It copies each file once, and reads nothing of it. If not all state fits, it copies the
oldest files: they hold results of merges, which the next merge replaces last. The fold that needs another file, or one
whose copy was deleted to make room, copies it then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from millpond.control.wiring.truth import Truth
from millpond.log.records import STATE
from millpond.service.server.warm_up import EXIT_SECONDS
from millpond.state.ports.object_files import ObjectFiles

LOOK_SECONDS = 5.0


class WarmCopies:
    """Keeps copies of the live state; `now` returns the log with its newest manifest, or None without a pond."""

    def __init__(self, now: Callable[[], Truth | None]) -> None:
        self._now = now
        self._copied: set[str] = set()

    def look(self) -> None:
        """Copy the files that became live since the last look, as far as they fit on this host.

        Raises:
            MillpondError: the log or a file cannot be read; a file may have been pruned since the log was read.
        """
        truth = self._now()
        if truth is None or not isinstance(files := truth.files(), ObjectFiles):
            return
        sizes: dict[tuple[int, str], int] = {}
        for section in truth.manifest.sections.values():
            if section.file is not None and section.kind in STATE:
                sizes[section.n, section.file] = sizes.get((section.n, section.file), 0) + section.size
        self._copied &= {file for _, file in sizes}
        wanted, room = set[str](), files.room
        for (_, file), size in sorted(sizes.items()):
            if size <= room:
                wanted.add(file)
                room -= size
        files.fetch(wanted - self._copied)
        self._copied |= wanted

    @contextmanager
    def running(self, wanted: Callable[[], bool]) -> Iterator[None]:
        """Look every few seconds in another thread, while `wanted`."""
        ended = threading.Event()

        def run() -> None:
            while not ended.wait(LOOK_SECONDS):
                with suppress(Exception):  # the next look tries again
                    if wanted():
                        self.look()

        thread = threading.Thread(target=run, name="millpond-warm-copies", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(EXIT_SECONDS)  # see `WarmUp.wait`
