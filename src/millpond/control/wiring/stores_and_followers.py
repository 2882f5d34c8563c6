"""Opens a pond's stores, and builds its followers: sinks, view and pruning."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

from millpond.control.wiring.attach_sinks import AttachedSinks
from millpond.control.wiring.truth import Truth
from millpond.errors import StoreError
from millpond.followers.prune import PruneFollower
from millpond.followers.record_rows import section_reader
from millpond.followers.runner import Runner, Runners
from millpond.followers.sinks.in_process import Foreach, MemoryTables
from millpond.followers.sinks.make_sink import letters_since
from millpond.followers.sinks.redis_rows import KeyedSink
from millpond.followers.upserts import WriteOwn
from millpond.followers.view.shard_watch import SlotsWatch, WantedOwners
from millpond.followers.view.shared_view import Settle, Share, SharedView
from millpond.followers.view.view import ViewFollower
from millpond.local_path import local_path
from millpond.log.cursor import NOTHING_APPLIED
from millpond.log.manifest import Manifest, load
from millpond.log.protocol import Writer
from millpond.model.query import Query
from millpond.model.selection import AnyQuery
from millpond.model.spec import PondSpec
from millpond.model.stream import Stream
from millpond.placement.alignment import Owners, aligned_owners
from millpond.placement.bucket_stores import OWN, Places, places_in
from millpond.placement.moves import BucketMap, claimed_map
from millpond.placement.slots import even_owners, hash_tags
from millpond.plugins import imported
from millpond.reconfigure.catalog import in_force
from millpond.runtime.joins.lookup_rows import OpenRows
from millpond.runtime.task.file_sync import FileTransport
from millpond.state.backends.kinds import StoreContext, StoreKind, known_store, shown, store_kind, store_path
from millpond.state.ports.file_store import FileStore
from millpond.state.ports.keyed_rows import KeyedRows
from millpond.state.ports.requests import Requests
from millpond.state.ports.sharded import ShardedStore
from millpond.state.ports.store import BucketStore
from millpond.tokens import writer_token

GRACE_SECONDS = 30.0
"""How long unneeded files stay for processes that are reading them; a later reader reads the newer files."""

SWEEP_SECONDS = 120.0
"""The least time between two sweeps of an object store, because each lists its objects."""

STOP_SECONDS = 10.0
"""The longest of each of the two waits when a pond is stopped: for sinks to have all rows, and for threads to end.
Process managers commonly kill a process after half a minute.
"""

LOOK_SECONDS = 10.0
"""How often a view on the network is checked while the pond has no epochs."""


class Followers(NamedTuple):
    """Everything that follows the log in this process."""

    runner: Runners
    tables: MemoryTables
    late_tables: MemoryTables
    store: ShardedStore | None
    prune: PruneFollower
    attached: AttachedSinks
    slots: SlotsWatch | None = None

    def wanted(self, now: BucketMap) -> WantedOwners | None:
        """Owners better aligned with the store's shards, if it has several and slots moved; sends no request."""
        return None if self.slots is None else self.slots.wanted(now)

    def shards(self) -> tuple[str, ...]:
        """The shard of each bucket if the view is in a store on the network; () while slots move."""
        return () if self.slots is None else self.slots.steady

    def requests(self) -> Requests:
        """What the instances sent to the store for the newest record, if they write to it themselves."""
        senders = [follower for follower in self.runner.followers() if isinstance(follower, KeyedSink | SharedView)]
        return sum((sender.requests for sender in senders), Requests())

    def close(self, timeout: float = STOP_SECONDS) -> None:
        """Stop the threads and close the store; if a thread hangs in the store, both are left as they are."""
        if self.runner.stop(timeout) and self.store is not None:
            self.store.close()

    def oldest_cursor(self) -> int:
        """The newest record that every follower except pruning has applied."""
        cursors = [cursor for name, cursor in self.runner.cursors().items() if name != self.prune.name]
        return min(cursors, default=1 << 62)


def new_writer(truth: Truth) -> Writer:
    """A driver's right to append to the log, not yet claimed."""
    return Writer(writer_token(), truth.manifest)


def open_store(address: str, truth: Truth, buckets: int, *, read_only: bool = False) -> BucketStore:
    """The store at `address`, for the pond.

    Raises:
        ForeignPondError: it holds another pond's rows.
        StoreError: no such store is known, or it cannot be opened.
        SetupError: the package that registers the store is not usable.
    """
    path = store_path(address, truth.folder)
    return open_in_context(StoreContext(address, truth.pond, hash_tags(buckets), path, read_only))


def open_in_context(context: StoreContext) -> BucketStore:
    """The store of a context.

    Raises:
        ForeignPondError, StoreError, SetupError: as `open_store`.
    """
    kind = store_kind(context.address)
    opens: Callable[[StoreContext], BucketStore] = imported(_named(kind), kind.opens, kind.extra, StoreError)
    return opens(context)


def _named(kind: StoreKind) -> str:
    return f"the store {kind.schemes[0]}"


def checked_store(address: str) -> str:
    """Check the address of a store without connecting to it; returns it with its path, if it has one, made absolute.

    The path is made absolute because the current folder may differ by the time the store is opened.

    Raises:
        StoreError: the address names no known kind of store.
        PlaceError: the path is not local.
        SetupError: as `open_store`.
    """
    scheme, _, path = address.partition(":")
    takes = store_kind(address).takes
    return f"{scheme}:{local_path(path, 'The store')}" if takes == "path" and path else address


def instances_reach(address: str) -> bool:
    """Whether every instance can reach the store by itself, so that rows need not pass through the driver.

    Raises:
        StoreError: the address names no known kind of store.
    """
    return store_kind(address).reach == "network"


def network_store(address: str, pond: str, buckets: int, *, read_only: bool = False, check: bool = True) -> BucketStore:
    """The store at a URL; with `pond` "" a store of any pond is accepted.

    Raises:
        ForeignPondError, StoreError, SetupError: as `open_store`.
    """
    return open_in_context(StoreContext(address, pond, hash_tags(buckets), None, read_only, check))


def files_on_network(address: str, pond: str, tags: Sequence[str]) -> FileStore:
    """The files of a pond in a store that carries files, those of instance i under the hash tag `tags[i]`.

    Raises:
        StoreError: the store cannot be reached, or its library is missing.
        SetupError: as `open_store`.
    """
    kind = store_kind(address)
    assert kind.files is not None
    opens: Callable[[str, str, Sequence[str]], FileStore] = imported(_named(kind), kind.files, kind.extra, StoreError)
    return opens(address, pond, tags)


def owners_for(queries: Sequence[AnyQuery], store: str, instances: int, buckets: int) -> Owners:
    """The first owners of a new pond's buckets, aligned with the shards of a store on the network if it serves rows.

    Raises:
        StoreError: the store cannot be reached.
    """
    if not instances_reach(store) or not any(isinstance(query, Query) and query.serve for query in queries):
        return even_owners(buckets, instances)
    made = network_store(store, "", buckets, check=False)
    try:
        return aligned_owners(made.shards(range(buckets)), instances)
    finally:
        made.close()


def keyed_rows(store: str, address: str | None) -> OpenRows:
    """A function that opens other programs' rows: at an address, the one in `env:NAME`, or in the pond's own store.

    Raises:
        StoreError: the address is not that of a Redis.
    """
    scheme, _, variable = (address or "").partition(":")
    place = os.environ.get(variable, "") if scheme == "env" else address or store
    kind = known_store(place)
    if kind is None or kind.keyed is None:
        named = f"`{shown(address or store)}`" + (", the pond's own store," if address is None else "")
        cure = "Write address 'redis://HOST:PORT', or 'env:NAME' with that in the variable NAME."
        raise StoreError(f"Rows of other programs are in a Redis; {named} is none.", cure)
    return partial(_keyed_rows, place)


@cache
def _keyed_rows(address: str) -> KeyedRows:
    kind = store_kind(address)
    assert kind.keyed is not None
    opens: Callable[[str], KeyedRows] = imported(_named(kind), kind.keyed, kind.extra, StoreError)
    return opens(address)


@cache
def instance_store(address: str, pond: str, buckets: int, places: Places = ()) -> BucketStore:
    """The store to which an instance writes, opened once per worker process; the driver has checked its settings."""
    if not places:
        return network_store(address, pond, buckets, check=False)
    return ShardedStore(lambda place: instance_store(address_at(place, address), pond, buckets), places)


def address_at(place: str, own: str) -> str:
    """The address of the store at a place; `own` is that of the pond.

    Raises:
        StoreError: the variable that the place names is not set here.
    """
    kind, _, variable = place.partition(":")
    if kind != "env":
        return place or own
    if not os.environ.get(variable):
        raise StoreError(f"Rows are kept in a store that the variable {variable} names, and it is not set.", "Set it.")
    return os.environ[variable]


def open_rows(address: str, truth: Truth, spec: PondSpec, *, read_only: bool = False) -> ShardedStore:
    """The stores that keep the served rows of the pond `spec`, as one; `address`: the pond's own store.

    Raises:
        ForeignPondError, StoreError: as `open_store`; other places fail only when a bucket there is accessed.
    """

    def opens(place: str) -> BucketStore:
        return open_store(address_at(place, address), truth, spec.buckets, read_only=read_only)

    def fresh() -> Places:
        return places_in(in_force(load(truth.log, truth.manifests)))

    made = ShardedStore(opens, fresh() if read_only else places_in(spec), fresh if read_only else None)
    try:
        for place in dict.fromkeys(made.places):
            made.at(place)
    except BaseException:
        made.close()  # so the next try can open the stores that work
        raise
    return made


def follow(
    truth: Truth, queries: Sequence[AnyQuery], spec: PondSpec, store: str, settle: Settle,
    files: FileTransport | None = None, grace_seconds: float = GRACE_SECONDS, streams: Iterable[Stream] = (),
    functions: Mapping[str, Foreach] | None = None, homes: Mapping[str, str] | None = None,
    write: WriteOwn | None = None,
) -> Followers:  # fmt: skip
    """Sinks, view and pruning, not yet started.

    `streams`: the streams that are read, with the sinks of their dead letters. `functions`: receive the rows of queries
    whose sink is `foreach`. `homes`, `write`: see `AttachedSinks`.

    Raises:
        UnsupportedQuery, ForeignPondError, PlaceError, StoreError: a sink or the store does not fit.
    """
    runner = Runner(truth.log, truth.manifests)
    runners = Runners(runner)
    read = section_reader(truth.files())
    alone = partial(Runner, truth.log, truth.manifests)
    opens = partial(keyed_rows, store)
    attached = AttachedSinks(
        runners, alone, truth.pond, truth.cursors, read, opens, functions or {}, homes or {}, write
    )
    for query in queries:
        attached.add(query, spec.effects.added.get(query.name, NOTHING_APPLIED))
    for leaving in spec.effects.leaving:
        attached.add_last(leaving)
    for name in spec.effects.shadows:
        attached.compare(name, truth.manifest.n, truth.manifest)
    for stream, since in _letters_since(truth.manifest, streams):
        attached.add_letters([stream], since)
    rows = slots = None
    if attached.served:
        rows = open_rows(store, truth, spec)
        if instances_reach(store):
            now = claimed_map(spec, truth.manifest)
            share = Share(
                str(truth.address), now.owners, dict(attached.served), -1, now.number, copies=str(truth.folder)
            )
            slots = SlotsWatch(spec.buckets)
            places = partial(places_if_several, rows)
            view = SharedView(rows, share, settle, start=truth.manifest.n, watch=slots, places=places)
            attached.shared = view
            runners.join(Runner(truth.log, truth.manifests, [view], look_every=LOOK_SECONDS))
        else:
            head = partial(load, truth.log, truth.manifests)
            served, read_record = attached.served, truth.log.read
            runner.add(ViewFollower(rows, attached.rows, spec.buckets, lambda: dict(served), head, read_record))
    prune = PruneFollower(
        truth.files(),
        truth.address.folder("log"),
        lambda: _lowest(runners),
        grace_seconds,
        _ignored if files is None else files.remove,
        start=truth.manifest.n,
        sweep_seconds=0.0 if truth.address.path is not None else SWEEP_SECONDS,
    )
    # a separate runner: it also prunes while there are no epochs, and its writes delay no sink
    runners.join(Runner(truth.log, truth.manifests, [prune], look_every=max(1.0, grace_seconds / 2)))
    return Followers(runners, attached.tables, attached.late_tables, rows, prune, attached, slots)


def _letters_since(manifest: Manifest, streams: Iterable[Stream]) -> Iterator[tuple[Stream, int]]:
    """The streams with the records after which new folders of their dead letters begin; see `letters_since`."""
    recorded = dict[str, Stream]()
    if manifest.spec:
        spec = in_force(manifest)
        inner = (relation.stream for relation in spec.relations if isinstance(relation.stream, Stream))
        recorded = {stream.name: stream for stream in (*inner, *spec.streams)}
    for stream in streams:
        yield stream, letters_since(recorded.get(stream.name, stream), stream, manifest.n)


def _ignored(_names: Iterable[str]) -> None:
    """Ignore files that were deleted from the pond's folder, as they were not carried anywhere."""


def places_if_several(store: ShardedStore) -> Places:
    """The place of each bucket, or () if all are in the pond's own store."""
    return store.places if {*store.places} != {OWN} else ()


def _lowest(runner: Runners) -> int:
    cursors = [cursor for name, cursor in runner.cursors().items() if name != PruneFollower.name]
    return min(cursors, default=1 << 62)
