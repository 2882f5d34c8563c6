"""Deletes delta files and record bodies that are no longer needed. It is the last of the followers.

A file `delta/<n>/<instance>-<token>-<attempt>.arrow` is deleted when all of this holds:
  * record n is committed, so the files of an attempt that may still be appended are never touched;
  * the manifest does not name the file: its sections were superseded or retired, or another attempt was committed;
  * every other follower's cursor is at n or later;
  * this has been so for `grace_seconds`, in which a reader with an older manifest can finish.

The body of record n follows the same rules, since it contains deltas. The record itself and its digest stay.

The grace period proves nothing. A reader that is slower misses a file and reads again (`read_sections`); the grace
period makes that rare. So it may be short, and it restarts when the process does. Deleting twice, or by two drivers,
is harmless, because a file that one record no longer names is named by no later record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from millpond.clock import Clock, lap_us
from millpond.faults import reached
from millpond.followers.cursors import explained, is_next
from millpond.log.cursor import NOTHING_APPLIED, Cursor, cursor_at
from millpond.log.drop_bodies import Bodies
from millpond.log.manifest import Manifest
from millpond.log.port import Folder
from millpond.log.records import Entry
from millpond.state.ports.files import DELTA_FOLDER, Files

_US = 1_000_000
_SWEEPS_PER_GRACE = 4
_BODIES_PER_SWEEP = 256
"""The most deletions of record bodies per sweep: each is a synced write, and must not delay the pond's end."""


class PruneFollower:
    """Prunes the files of one pond, and the bodies of the records in the folder `log`.

    `lowest_cursor` returns the smallest cursor of all other followers. `start` is the record to begin after: the head
    at start-up, because a sweep looks at all files, so older records need not be read again. `removed` is called with
    the deleted files. Sweeps are `sweep_seconds` apart at least. Reading its cursor also sweeps, so its
    driver should do this now and then while no records arrive.
    """

    name = "prune"

    def __init__(
        self,
        files: Files,
        log: Folder,
        lowest_cursor: Callable[[], int],
        grace_seconds: float,
        removed: Callable[[Iterable[str]], None] = lambda _names: None,
        *,
        start: int = NOTHING_APPLIED,
        sweep_seconds: float = 0.0,
        clock: Clock = lap_us,
    ) -> None:
        self._files = files
        self._lowest_cursor = lowest_cursor
        self._removed = removed
        self._grace_us = round(grace_seconds * _US)
        self._sweep_us = max(self._grace_us // _SWEEPS_PER_GRACE, round(sweep_seconds * _US))
        self._clock = clock
        self._reached = Cursor(start)
        self._newest: Manifest | None = None
        self._bodies = Bodies(log)
        self._unneeded_since: dict[str, int] = {}
        self._bare_since: dict[int, int] = {}
        self._next_sweep_us: int | None = None
        self.deleted_files = 0
        self.deleted_bytes = 0

    def cursor(self) -> Cursor:
        """See `Follower.cursor`; sweeps if a sweep is due."""
        if self._newest is not None:
            self._sweep_if_due(self._newest)
        return self._reached

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        """See `Follower.apply`; sweeps about four times per grace period."""
        if not is_next(self.name, self._reached, record):
            return
        self._sweep_if_due(manifest)
        self._reached, self._newest = cursor_at(record), manifest

    def _sweep_if_due(self, manifest: Manifest) -> None:
        now = self._clock()
        if self._next_sweep_us is None or now >= self._next_sweep_us:
            self.sweep(manifest)
            self._next_sweep_us = now + self._sweep_us

    def sweep(self, manifest: Manifest) -> int:
        """Delete what is not needed as of `manifest`, the newest known; returns the number of deleted files."""
        last = min(self._lowest_cursor(), manifest.n)
        self._sweep_bodies(manifest, last)
        named = {section.file for section in manifest.sections.values()}
        now = self._clock()
        unneeded: dict[str, int] = {}
        deletable: list[str] = []
        with explained(self._files.where(DELTA_FOLDER)):
            for file, n in self._files.written():
                if n > last or file in named:
                    continue
                since = self._unneeded_since.get(file, now)
                if now - since < self._grace_us:
                    unneeded[file] = since
                else:
                    deletable.append(file)
            if deletable:
                reached("prune.before_delete")
            self.deleted_bytes += self._files.delete(deletable)
        self.deleted_files += len(deletable)
        self._unneeded_since = unneeded
        if deletable:
            self._removed(deletable)
        return len(deletable)

    def _sweep_bodies(self, manifest: Manifest, last: int) -> None:
        named = {section.n for section in manifest.sections.values() if section.file is None}
        now, since = self._clock(), dict[int, int]()
        for n in self._bodies.upto(last):
            if n not in named:
                since[n] = self._bare_since.get(n, now)
        for n in sorted(n for n in since if now - since[n] >= self._grace_us)[:_BODIES_PER_SWEEP]:
            reached("prune.before_body")
            self.deleted_bytes += self._bodies.take_back(n)
            del since[n]
        self._bare_since = since
        self._bodies.save()
