"""Runs a backfill: rereads the source in rounds while epochs run, and the rest just before the change is recorded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from millpond.clock import lap_us
from millpond.errors import PlaceError, of_machine
from millpond.faults import reached
from millpond.log.manifest import Manifest
from millpond.log.records import Receipt
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.plan.explain.amounts import time_left
from millpond.reconfigure.change_price import Reread
from millpond.reconfigure.change_queue import Prepared
from millpond.reconfigure.changes import Add
from millpond.runtime.inputs.backfill import STAGED, Past, PastEpoch, Staged, brought
from millpond.runtime.task.file_sync import FileTransport
from millpond.spark.driver.reread_source import SourceRereader
from millpond.spark.reading.read_frame import WantedStream
from millpond.spark.session.session import Session
from millpond.state.ports.files import Files
from millpond.tokens import writer_token

_SOON_S = 2.0
"""If a round of reading takes less than this, the rest can be read between two epochs."""


def rereader(
    spark: Session, wanted: Sequence[WantedStream], query: AnyQuery, checkpoint: Callable[[], Path]
) -> SourceRereader:
    """The source of a query's stream, for reading it again.

    Raises:
        UnsupportedQuery: sources of this kind cannot be read again.
    """
    assert isinstance(query, Query)
    want = next(one for one in wanted if one.stream.name == query.stream)
    return SourceRereader(spark, want, query.event_time, checkpoint)


class BackfillRun:
    """The backfill of the query `name`: reads the events of windows that start at `from_us` or later.

    `version`: the name of the query that begins with them if record `n` adds it. `note` reports the progress.
    """

    def __init__(
        self, stored: Files, name: str, version: Callable[[int], str], source: SourceRereader, past: Past, from_us: int,
        files: FileTransport,
    ) -> None:  # fmt: skip
        self._stored, self.name, self._source, self._past, self._from_us = stored, name, source, past, from_us
        self._version = version
        self._files = files
        self._token = writer_token()
        self._staged: list[Staged] = []
        self._rounds, self._left = 0, ""

    @property
    def note(self) -> str:
        """The progress, as text."""
        read = sum(one.rows for one in self._staged)
        what = f"{read:,} events are read again" if read else "the source is read again"
        return f"{self.name}: {what}, round {self._rounds}{self._left}"

    def price(self, n: int) -> Reread:
        """The amount to read of everything up to record `n`.

        Raises:
            GoneError: the source does not have all of it any more.
        """
        return Reread(*self._source.price(self._needed(n)))

    def ahead(self, head: Callable[[], Manifest], *, patient: bool) -> None:
        """Read what epochs have read up to the manifest that `head` returns.

        If `patient`, continue with what epochs read in the meantime, until little is left.

        Raises:
            GoneError: the source does not have all of it any more. MillpondError: it cannot be read.
        """
        before, took = math.inf, self._round(head())
        while patient and _SOON_S < took < before / 2:  # otherwise a fixed cost dominates, not the amount
            before, took = took, self._round(head())
        reached("backfill.staged")

    def _round(self, manifest: Manifest) -> float:
        began = time.monotonic()
        self._upto(manifest)
        return time.monotonic() - began

    def prepared(self, change: Add, manifest: Manifest) -> Prepared:
        """The change, after the record of `manifest`, with all events that were read up to there.

        Raises:
            GoneError, MillpondError: as `ahead`.
        """
        if not isinstance(change.backfill_us, int):  # the change needs none of the events that were read
            return Prepared(change, lambda _n: ())
        self._upto(manifest)
        return Prepared(change, self._brought)

    def _upto(self, manifest: Manifest) -> None:
        epochs = self._needed(manifest.n)
        self._rounds += 1
        if not epochs:
            return
        staged: list[Staged] = []

        def attempt() -> list[tuple[Receipt, bytes]]:
            prefix, began = f"{STAGED}/{self._token}/{self._rounds}", lap_us()

            def progress(share: float) -> None:
                self._left = time_left(share, 1.0, lap_us() - began)

            staged[:] = self._source.stage(epochs, self._files.open_files, prefix, progress)
            return [(Receipt(0, self._token, one.size, one.digest, one.file), b"") for one in staged]

        self._files.run(manifest, attempt)
        self._files.remove([one.file for one in staged])
        self._staged += staged
        self._left = ""

    def _needed(self, n: int) -> list[PastEpoch]:
        """The epochs that are not read yet, without leading epochs whose newest event is before `from_us`."""
        epochs = self._past.upto(n)
        wanted = [max(epoch.newest.values(), default=self._from_us - 1) >= self._from_us for epoch in epochs]
        return epochs[wanted.index(True) :] if True in wanted else []

    def _brought(self, n: int) -> tuple[Receipt, ...]:
        try:
            receipts = brought(self._stored, self._staged, self._version(n), self._source.columns, n)
        except OSError as error:
            raise of_machine(error) or PlaceError(
                f"What was read again cannot be put in its place: {error}.", "The pond's folder must be writable."
            ) from error
        self._files.add(receipt.file for receipt in receipts if receipt.file is not None)
        reached("backfill.brought")
        return receipts

    def clear(self) -> None:
        """Remove the staged files, which no record names."""
        self._stored.clear(f"{STAGED}/{self._token}")


def clear_staged(files: Files) -> None:
    """Remove staged files of earlier drivers' backfills; files that no record names are never needed."""
    files.clear(STAGED)
