"""The queue of changes that wait for the moment between two epochs, and the catalog in force according to the log.

Any thread may submit a change; the thread that runs epochs takes it. What is in force follows from the manifest
alone, so an append whose reply was lost is found again when the log is read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from millpond.errors import MillpondError, TruthError
from millpond.log.manifest import Manifest
from millpond.log.protocol import Run
from millpond.log.records import ChangeRecord, Receipt
from millpond.model.spec import PondSpec, from_json
from millpond.reconfigure.apply import change_record
from millpond.reconfigure.catalog import applied
from millpond.reconfigure.changes import Change, change_of
from millpond.reconfigure.validate import KnownPond, ends


class Prepared(NamedTuple):
    """A change with data that was prepared for it; `brought` moves the data to its location for record n, and returns
    its receipts.
    """

    change: Change
    brought: Callable[[int], tuple[Receipt, ...]]


Make = Callable[[KnownPond], Change]
"""Builds the requested change from the catalog that is in force at that time, or raises the reason for refusal."""

Prepare = Callable[[KnownPond], Prepared]
"""Like `Make`, for a change that needs prepared data."""


class _Request(NamedTuple):
    make: Make | Prepare
    done: Future[int]


class ChangeQueue:
    """The requested changes of one pond; `recorded` is called with each recorded change and the catalog after it."""

    def __init__(self, recorded: Callable[[int, Change, PondSpec], None]) -> None:
        self._recorded = recorded
        self._gate = threading.Lock()
        self._waiting: deque[_Request] = deque()
        self._running = False
        self._claimed, self._known = "", 0
        self._spec: PondSpec | None = None

    def request(self, make: Make | Prepare) -> tuple[Future[int], bool]:
        """Submit a change. Returns a future of its record number, and whether epochs run, so that it will be taken."""
        request = _Request(make, Future())
        with self._gate:
            self._waiting.append(request)
            return request.done, self._running

    def runs(self, running: bool) -> None:
        """Note that epochs begin to run, or end."""
        with self._gate:
            self._running = running

    def give_up(self, error: BaseException) -> None:
        """Fail all waiting changes, because an error ended the epochs."""
        while (request := self._next()) is not None:
            request.done.set_exception(error)

    def spec(self, manifest: Manifest) -> PondSpec:
        """The catalog in force after the manifest's record; `recorded` is called once for each change.

        If `recorded` raises, the change is not in force yet, and the next call of this method calls it again. So no
        epoch follows a change whose sinks could not be attached.

        Raises:
            CorruptError: a stored change does not decode. Other errors are those of `recorded`.
        """
        if self._spec is None or manifest.spec != self._claimed:
            self._claimed, self._known, self._spec = manifest.spec, 0, from_json(manifest.spec)
        for found in manifest.changes[self._known :]:
            change = change_of(found.change)
            if change is not None and found.n > self._spec.effects.last:  # see `in_force`
                spec = applied(self._spec, found.n, change)
                self._recorded(found.n, change, spec)
                self._spec = spec
            self._known += 1
        return self._spec

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do between two epochs."""
        with self._gate:
            return not self._waiting and (self._spec is None or not self._spec.effects.until_us)

    def work(
        self, begin: Callable[[], Run], commit: Callable[[ChangeRecord], Manifest], writer: str, now_us: int
    ) -> None:
        """Record the waiting changes one by one, and the ends of replaced versions that have emitted all their windows.

        `begin` returns the head of the log, `commit` appends to it.

        Raises:
            TruthError: this driver must stop; the change that was being recorded fails with the same error.
            MillpondError: a change is in the log, and what it needs could not be prepared; see `spec`.
        """
        run = begin()
        spec = self.spec(run.manifest)
        for end in ends(spec, run.manifest):
            spec = self.spec(commit(change_record(spec, end, run, writer, now_us)))
            run = begin()
        while (request := self._next()) is not None:
            try:
                spec = self.spec(run.manifest)
                made = request.make(KnownPond(spec, run.manifest, now_us))
                change, receipts = (made.change, made.brought(run.n)) if isinstance(made, Prepared) else (made, ())
                manifest = commit(change_record(spec, change, run, writer, now_us, receipts))
            except BaseException as error:
                request.done.set_exception(error)
                if isinstance(error, TruthError) or not isinstance(error, MillpondError):
                    raise
            else:
                try:
                    self.spec(manifest)
                finally:
                    request.done.set_result(run.n)  # whatever follows, the change is in the log
            run = begin()

    def _next(self) -> _Request | None:
        with self._gate:
            return self._waiting.popleft() if self._waiting else None
