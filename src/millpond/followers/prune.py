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

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from millpond.clock import Clock, lap_us
from millpond.faults import reached
from millpond.followers.cursors import explained, is_next
from millpond.log.cursor import NOTHING_APPLIED, Cursor, cursor_at
from millpond.log.drop_bodies import Bodies
from millpond.log.local_folder import LocalFolder
from millpond.log.manifest import Manifest
from millpond.log.records import Entry

DELTA_FOLDER = "delta"
_US = 1_000_000
_SWEEPS_PER_GRACE = 4
_NUMBER_DIGITS = 20
_BODIES_PER_SWEEP = 256
"""The most deletions of record bodies per sweep: each is a synced write, and must not delay the pond's end."""


class PruneFollower:
    """Prunes the folder of one pond.

    `lowest_cursor` returns the smallest cursor of all other followers. `start` is the record to begin after: the head
    at start-up, because a sweep looks at the folder, so older records need not be read again. `removed` is called with
    the deleted files. Reading its cursor also sweeps, so its driver should do this now and then while no records
    arrive.
    """

    name = "prune"

    def __init__(
        self,
        pond: Path,
        lowest_cursor: Callable[[], int],
        grace_seconds: float,
        removed: Callable[[Iterable[str]], None] = lambda _names: None,
        *,
        start: int = NOTHING_APPLIED,
        clock: Clock = lap_us,
    ) -> None:
        self._pond = pond
        self._lowest_cursor = lowest_cursor
        self._removed = removed
        self._grace_us = round(grace_seconds * _US)
        self._clock = clock
        self._reached = Cursor(start)
        self._newest: Manifest | None = None
        self._bodies = Bodies(LocalFolder(pond / "log"))
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
            self._next_sweep_us = now + self._grace_us // _SWEEPS_PER_GRACE

    def sweep(self, manifest: Manifest) -> int:
        """Delete what is not needed as of `manifest`, the newest known; returns the number of deleted files."""
        last = min(self._lowest_cursor(), manifest.n)
        self._sweep_bodies(manifest, last)
        named = {section.file for section in manifest.sections.values()}
        now = self._clock()
        unneeded: dict[str, int] = {}
        gone: list[str] = []
        with explained(self._pond):
            for n, folder in self._delta_folders():
                if n > last:
                    continue
                left = 0
                for entry in list(os.scandir(folder)):
                    file = f"{DELTA_FOLDER}/{folder.name}/{entry.name}"
                    since = self._unneeded_since.get(file, now)
                    if file in named or now - since < self._grace_us:
                        left += 1
                        if file not in named:
                            unneeded[file] = since
                    else:
                        self._delete(entry)
                        gone.append(file)
                if not left:
                    _remove_if_empty(folder)
        self._unneeded_since = unneeded
        if gone:
            self._removed(gone)
        return len(gone)

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

    def _delta_folders(self) -> Iterator[tuple[int, Path]]:
        folder = self._pond / DELTA_FOLDER
        if not folder.exists():
            return
        for name in sorted(os.listdir(folder)):
            if len(name) == _NUMBER_DIGITS and name.isdecimal():
                yield int(name), folder / name

    def _delete(self, entry: os.DirEntry[str]) -> None:
        try:
            size = entry.stat().st_size
            reached("prune.before_delete")
            os.unlink(entry.path)
        except FileNotFoundError:
            return
        self.deleted_files += 1
        self.deleted_bytes += size


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        # A late attempt has just written a file there; the next sweep finds it.
        return
