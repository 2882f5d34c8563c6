"""Rows in Redis move to another Redis, and from a file to Redis, while epochs run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kit.inputs.cases import Menu, random_case
from kit.judges.answers import Run, dealt
from kit.servers.redis_servers import RedisServer
from millpond.control.pond.move import RowMover, routed
from millpond.control.wiring.stores_and_followers import instance_store, network_store, places_if_several
from millpond.control.wiring.truth import Truth
from millpond.errors import ChangeRefused
from millpond.followers.record_rows import RowsReader, section_reader
from millpond.followers.view.shared_view import Share, SharedView, catch_up, owners_of
from millpond.followers.view.view import ViewFollower, scan
from millpond.log.locations.address import address_of
from millpond.log.manifest import load
from millpond.model.query import Query, length_us
from millpond.placement.bucket_stores import OWN, places_in
from millpond.placement.slots import even_owners
from millpond.reconfigure.placement_changes import move
from millpond.reconfigure.validate import KnownPond
from millpond.state.backends.lmdb import LmdbStore
from millpond.state.backends.memory import MemoryStore
from millpond.state.ports.files import Files
from millpond.state.ports.sharded import ShardedStore
from millpond.state.ports.store import BucketStore

BUCKETS, INSTANCES = 24, 2


class Bench:
    """A pond without Spark, a view in memory that stays, and one that moves, from `own`."""

    def __init__(self, folder: Path, own: str, servers: list[str]) -> None:
        case = random_case(7, 160, 3, epochs=8, menu=Menu(raising=False))
        self.folder, self.epochs, self.deal = folder / "pond", iter(case.epochs), dealt(1)
        served = [msgspec.structs.replace(query, serve=True) for query in case.queries if isinstance(query, Query)]
        self.sizes = {query.name: length_us(query.window) for query in served}
        self.run = Run(self.folder, served, INSTANCES, BUCKETS, keep_rows=False)
        self.servers, self.stays = servers, MemoryStore()
        log, manifests = self.run.pond.log, self.run.pond.manifests
        head = partial(load, log, manifests)
        self.store = ShardedStore(self.opened, (OWN,) * BUCKETS)
        reader = RowsReader(section_reader(Files(self.folder)))
        read = self.run.pond.log.read
        self.run.pond.follow(ViewFollower(self.stays, reader, BUCKETS, lambda: self.sizes, head, read))
        view: Any
        if own.startswith("redis"):
            share = Share(str(self.folder), even_owners(BUCKETS, INSTANCES), self.sizes, -1)
            view = SharedView(self.store, share, self.settle, places=partial(places_if_several, self.store))
        else:
            view = ViewFollower(self.store, reader, BUCKETS, lambda: self.sizes, head, self.run.pond.log.read)
        self.own = own
        view.name = "moves"
        self.run.pond.follow(view)
        runner = SimpleNamespace(wait=lambda _n, _seconds: True)
        followers: Any = SimpleNamespace(store=self.store, attached=SimpleNamespace(served=self.sizes), runner=runner)
        truth = Truth(address_of(self.folder), self.folder, "local", log, manifests, self.run.pond.manifest)
        self.moving = RowMover(truth, followers, own)

    def opened(self, place: str) -> BucketStore:
        address = place or self.own
        if address.startswith("redis"):
            return network_store(address, "local", BUCKETS, check=False)
        return LmdbStore(Path(address.partition(":")[2]))

    def settle(self, share: Share) -> Any:
        return [
            catch_up(share, instance, instance_store(self.own, "local", BUCKETS, share.places))
            for instance in owners_of(share)
        ]

    def epoch(self, count: int = 1) -> None:
        for _ in range(count):
            self.run.epoch(self.deal(next(self.epochs)))

    def move(self, what: str, to: str) -> None:
        pond = self.run.pond

        def switch() -> int:
            self.epoch()  # one more record that the copies do not have yet
            n = pond.change(move(KnownPond(pond.spec, pond.manifest), buckets, to))
            routed(self.store, pond.spec)
            return n

        buckets = self.moving.buckets(what, pond.spec)
        self.moving.move(buckets, to, switch)

    def check(self) -> None:
        """A reader who knows the log alone finds what the view that stays has, and each bucket is in one store."""
        opens = self.opened if self.own.startswith("redis") else self.store.at
        reader = ShardedStore(opens, places_in(self.run.pond.spec))
        for name in self.sizes:
            found, expected = ([(one.n, sorted(zip(one.keys, one.documents, strict=True)))
                                for one in scan(store, name, BUCKETS)] for store in (reader, self.stays))  # fmt: skip
            assert found == expected
        for place in {*reader.places}:
            there = [n >= 0 for n in self.store.at(place).applied_many(range(BUCKETS))]
            assert there == [of == place for of in reader.places]


@pytest.mark.parametrize("kind", ["redis", "lmdb"])
def test_rows_move_from_store_to_server_and_back(kind: str, redis_server: RedisServer, tmp_path: Path) -> None:
    redis_server.flush()
    with RedisServer(tmp_path / "other") as other:
        own = redis_server.url if kind == "redis" else f"lmdb:{tmp_path}/rows.lmdb"
        run = Bench(tmp_path, own, [redis_server.url, other.url])
        run.epoch(2)
        run.move("0-9", other.url)
        run.epoch()
        run.check()
        assert {*run.store.shards(range(BUCKETS))} == {run.store.shards([20])[0], f"127.0.0.1:{other.port}"}
        run.move(f"127.0.0.1:{other.port}", "" if kind == "redis" else redis_server.url)
        run.epoch()
        run.check()
        if kind == "redis":
            with pytest.raises(ChangeRefused, match="cannot reach lmdb"):
                run.move("3", "lmdb:/nowhere")
        run.store.close()
