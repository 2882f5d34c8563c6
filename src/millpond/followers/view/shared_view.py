"""The view in a store on the network: instances write their own buckets in parallel, up to the newest record.

The follower in the driver moves no rows. It starts a small task per instance, which reads the records and the
instance's own result rows and writes them into its buckets, usually with one call per record (two for updating
results). A bucket that the store has lost is recognised by its number and replayed in the same task. If a record has
another bucket map, the rows of all instances are read, because any of them may hold rows of the bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
import pyarrow as pa

from millpond.errors import CorruptError, StoreError
from millpond.followers.record_rows import ReadSection, RowsReader, section_reader
from millpond.followers.view.shard_watch import SlotsWatch
from millpond.followers.view.view import BucketRows, BucketsBehind, ViewFollower, drop_unserved
from millpond.log.cursor import NOTHING_APPLIED, Cursor
from millpond.log.locations.address import address_of
from millpond.log.manifest import Manifest, Manifests, load
from millpond.log.port import Log
from millpond.log.records import Entry, EpochRecord, decode
from millpond.model.change_json import map_change_in
from millpond.placement.moves import newest_map_change
from millpond.placement.run_lengths import of_runs
from millpond.state.ports.object_files import files_of
from millpond.state.ports.requests import Requests, counted
from millpond.state.ports.store import BucketStore


class Share(msgspec.Struct, frozen=True):
    """What the instances must know: the pond's address, the owner of each bucket, and what is served (see
    `ViewFollower`).

    `since`: a record that every bucket has applied (-1: not known). `map`: the number of the bucket map with these
    owners. `places`: where each bucket is kept; (): all in one store. `copies`: the folder of a host for
    files of a pond in an object store.
    """

    address: str
    owners: tuple[int, ...]
    served: dict[str, int]
    since: int
    map: int = 0
    places: tuple[str, ...] = ()
    copies: str = ""


class Caught(msgspec.Struct, frozen=True):
    """The result for one instance's buckets: all have applied record `n`; `lost` of them had lost earlier records.

    `news`: this run applied records that no other process had applied before. `error`: what happened and the cure, if
    the store refused; `n` is then -1. `requests`: the number of requests to the store, and of those to a server on the
    same host.
    """

    n: int
    lost: int = 0
    news: bool = False
    error: tuple[str, str] | None = None
    requests: tuple[int, int] = (0, 0)


Settle: TypeAlias = Callable[[Share], Sequence[Caught]]
"""Runs `catch_up` for each of `owners_of`, on any host, and returns the results."""


def owners_of(share: Share) -> list[int]:
    """The instances that own buckets."""
    return sorted(set(share.owners))


def catch_up(share: Share, instance: int, store: BucketStore) -> Caught:
    """Bring the buckets of one instance to the current head of the log.

    Raises:
        CorruptError: the log, or rows in it, are damaged.
    """
    before = counted()
    caught = _caught_up(share, instance, store)
    return msgspec.structs.replace(caught, requests=(*counted().since(before),))


def _caught_up(share: Share, instance: int, store: BucketStore) -> Caught:
    mine = [bucket for bucket, owner in enumerate(share.owners) if owner == instance]
    address = address_of(share.address)
    log, manifests = Log(address.folder("log")), Manifests(address.folder("manifest"))
    rows = _OwnRows(section_reader(files_of(address, Path(share.copies), "view")()), share.map, instance, mine)
    view = ViewFollower(store, rows, mine, lambda: share.served, lambda: load(log, manifests), log.read)
    lost, news = 0, False
    try:
        n = view.cursor().n if share.since == NOTHING_APPLIED else share.since
        while (data := log.read(n + 1)) is not None:
            entry = decode(data, log.describe(n + 1))
            _check(entry, share)
            try:
                news |= view.show(n + 1, entry)
                n += 1
            except BucketsBehind:
                if lost:
                    raise
                lost = sum(applied < n for applied in store.applied_many(mine))
                n = view.cursor().n
    except StoreError as error:
        return Caught(NOTHING_APPLIED, error=(error.what, error.cure))
    return Caught(n, lost, news)


def _check(entry: Entry, share: Share) -> None:
    record, needed = entry.record, max(share.owners) + 1
    if isinstance(record, EpochRecord) and record.map == share.map and len(record.receipts) < needed:
        made = len(record.receipts)
        raise CorruptError(f"Record {record.n} has {made} instances instead of {needed}.", "Report this.")


class _OwnRows(RowsReader):
    """The rows of an instance's buckets, whichever instance wrote them."""

    def __init__(self, read_section: ReadSection, number: int, instance: int, mine: Sequence[int]) -> None:
        super().__init__(read_section, instance=instance)
        self._every, self._number = BucketRows(read_section, mine), number

    def queries(self, entry: Entry) -> list[str]:
        return super().queries(entry) if self._is_ours(entry) else self._every.queries(entry)

    def batches(self, entry: Entry, query: str) -> pa.Table | None:
        return super().batches(entry, query) if self._is_ours(entry) else self._every.batches(entry, query)

    def _is_ours(self, entry: Entry) -> bool:
        return not isinstance(entry.record, EpochRecord) or entry.record.map == self._number


class SharedView:
    """The follower of a view that `settle` writes; `note` reports what the store lost last, and how owners changed.

    `share` is valid as of record `start`; tables of queries that are not in `share.served` are dropped. `watch` tracks
    on which shards the store keeps the buckets. `requests`: those of the instances for the newest record.
    """

    name = "view"

    def __init__(
        self, store: BucketStore, share: Share, settle: Settle, *, start: int = NOTHING_APPLIED,
        watch: SlotsWatch | None = None, places: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:  # fmt: skip
        self._store, self._places = store, places
        self._share = share
        self._settle = settle
        self._start, self._watch = start, watch
        self._settled = NOTHING_APPLIED
        self._known: frozenset[str] | None = None
        self._lost: str | None = None
        self._moved: str | None = None
        self.requests = Requests()

    @property
    def share(self) -> Share:
        """The current owners of buckets, and what is served."""
        return self._share

    @property
    def note(self) -> str | None:
        """What was repaired, as text."""
        return "; ".join(part for part in (self._lost, self._moved) if part is not None) or None

    def serve(self, served: Mapping[str, int]) -> None:
        """Keep the rows of these queries from the next record on."""
        self._share = msgspec.structs.replace(self._share, served=dict(served))

    def known(self) -> Cursor:
        """See `Remote.known`: nothing, because the view repairs itself."""
        return Cursor()

    def cursor(self) -> Cursor:
        """See `Follower.cursor`; first brings every bucket to the head, whatever the store lost or has in excess."""
        settled = self._cursor()
        self._look()
        return Cursor(settled)

    def _cursor(self) -> int:
        before = self._settled
        if before == NOTHING_APPLIED:
            return self._go(NOTHING_APPLIED)
        numbers = self._store.applied_many(range(len(self._share.owners)))
        if set(numbers) == {before}:
            return before
        settled = self._go(NOTHING_APPLIED)
        self._note_lost(sum(number < before for number in numbers))
        return settled

    def apply(self, n: int, record: Entry, manifest: Manifest) -> None:
        """See `Follower.apply`; continues beyond `n` if the log does.

        Raises:
            StoreError: the store refused; read the cursor again.
        """
        self._take_map(manifest)
        if self._settled < n and self._go(self._settled) < n:
            raise StoreError(f"The view is at {self._settled}, not at {n}.", "It is replayed from the log.")
        self._look()

    def _take_map(self, manifest: Manifest) -> None:
        """Share the buckets by the newest map; an older map also works, but then each instance reads all rows."""
        newest = newest_map_change(manifest)
        if newest is None or newest.n <= max(self._share.map, self._start):
            return
        change = map_change_in(newest.change)
        assert change is not None
        self._share = msgspec.structs.replace(self._share, owners=of_runs(change.owned), map=newest.n)
        self._moved = f"the bucket map changed by record {newest.n}: {change.why}"

    def _look(self) -> None:
        if self._watch is not None:
            self._watch.look(self._store)

    def _go(self, since: int) -> int:
        share = msgspec.structs.replace(self._share, since=since, places=self._places())
        reports = self._settle(share)
        failed = next((report.error for report in reports if report.error), None)
        if failed is not None:
            raise StoreError(*failed)
        settled = min(report.n for report in reports)
        self._settled = settled
        self.requests = sum((Requests(*report.requests) for report in reports), Requests())
        self._note_lost(sum(report.lost for report in reports))
        if any(report.news for report in reports):
            # a driver that was overtaken has no news, and must not drop what its successor serves
            highest = max(report.n for report in reports)
            self._known = drop_unserved(self._store, frozenset(self._share.served), self._known, highest)
        return settled

    def _note_lost(self, lost: int) -> None:
        if lost:
            self._lost = f"{lost} buckets that the store had lost were replayed, by record {self._settled}"
