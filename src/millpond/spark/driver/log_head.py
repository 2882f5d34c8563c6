"""Appends records for one driver, and keeps the plan and streams that follow from them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from millpond.clock import ForwardClock, lap_us
from millpond.log.file_lists import ListWriter, load_lists
from millpond.log.manifest import Manifest, Manifests
from millpond.log.port import Log
from millpond.log.protocol import AlreadyTrue, Committed, Run, Steps, Writer, perform
from millpond.log.records import ChangeRecord, EpochRecord, FileList, Offsets
from millpond.model.spec import PondSpec
from millpond.reconfigure.apply import arranged, clear_tables
from millpond.runtime.epoch import Setting
from millpond.runtime.scheduling.idle_partitions import IdleWatch
from millpond.runtime.scheduling.kafka_partitions import with_partitions

T = TypeVar("T")


class LogHead:
    """The log as one driver writes it, and the `setting` of the epoch that follows the newest record that it has read.

    - `writer`: makes the decisions; `perform` runs one of its methods on the log.
    - `lock`: held by the thread that appends.
    - `spec`: the catalog from which `setting` was derived; None before the first record was read.
    - `announce(n)`: notifies followers that record n is in the log.
    - `catalog`: returns the catalog in force after a manifest's record.
    - `idle`: learns the streams and source partitions of the setting.
    """

    def __init__(
        self, log: Log, manifests: Manifests, writer: Writer, setting: Setting, announce: Callable[[int], None],
        catalog: Callable[[Manifest], PondSpec], idle: IdleWatch,
    ) -> None:  # fmt: skip
        self.writer, self.setting, self.lock = writer, setting, threading.RLock()
        self.spec: PondSpec | None = None
        self._log, self._manifests, self._announce, self._catalog = log, manifests, announce, catalog
        self._idle, self._clock = idle, ForwardClock()
        self._lists: ListWriter | None = None

    @property
    def manifest(self) -> Manifest:
        """The manifest of the log, up to the newest record that this driver has read."""
        return self.writer.manifest

    def perform(self, steps: Steps[T]) -> T:
        """Run a method of the writer on the log."""
        return perform(steps, self._log, self._manifests, self._announce)

    def catch_up(self) -> Run:
        """Read the log to its end; return the run of an epoch that reads nothing.

        Raises:
            FencedError: another driver has taken over.
        """
        return self.perform(self.writer.drain())

    def commit(self, record: EpochRecord | ChangeRecord, body: bytes = b"") -> Committed | AlreadyTrue:
        """Append a record; see `Writer.commit`."""
        done = self.perform(self.writer.commit(record, body))
        if self._lists is not None:
            self._lists.add(record, self.manifest)
        return done

    def files_read(self) -> dict[str, FileList]:
        """The files that each source of files has read up to the driver's claim, by stream.

        From now on, the lists are stored with the log from time to time.

        Raises:
            CorruptError: a record is damaged.
        """
        lists = load_lists(self._log, self._manifests, self.manifest)
        self._lists = ListWriter(self._log, self._manifests, self.manifest, lists)
        return lists

    def now(self) -> int:
        """The time for records and for `max_ahead`; it never goes back, nor behind the newest record."""
        return self._clock.at_least(self.writer.newest_at)

    def arrange(self, manifest: Manifest) -> None:
        """Apply the catalog in force after the manifest's record, whichever driver appended it."""
        spec = self._catalog(manifest)
        if spec is self.spec:
            return
        groups = {group.id for group in self.setting.plan.groups}
        self.setting, self.spec = arranged(self.setting, spec), spec
        gone = groups - {group.id for group in self.setting.plan.groups}
        clear_tables(Path(self.setting.cache) / self.setting.pond, gone)
        self._idle.watch(spec.streams, lap_us())

    def expect(self, offsets: Offsets) -> None:
        """Make the watermark wait for all source partitions that the offsets name."""
        streams = with_partitions(self.setting.streams, offsets)
        if streams != self.setting.streams:
            self.setting = self.setting._replace(streams=streams)
            self._idle.expect(streams, lap_us())
