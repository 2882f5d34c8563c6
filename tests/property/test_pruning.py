"""A reader of an older record finds that its files were pruned, and reads the newest record."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kit.simulator.changing_pond import ChangingPond
from millpond.control.commands.autoscale import Autoscaler
from millpond.control.diagnose.cost_report import measure
from millpond.control.diagnose.facts import find_facts
from millpond.control.pond.move import RowMover
from millpond.control.wiring.pond_reader import read_truth
from millpond.control.wiring.truth import Truth
from millpond.errors import CorruptError
from millpond.followers.prune import PruneFollower
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.manifest import Manifest
from millpond.log.records import decode
from millpond.model.aggregates import Aggregate
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.spec import BUCKETS, PondSpec
from millpond.model.stream import Field, Stream
from millpond.model.windows import Sliding
from millpond.placement.autoscale import Policy
from millpond.state.backends.memory import MemoryStore
from millpond.state.layout.delta import check_delta, check_deltas
from millpond.state.ports.files import IDENTITY, Files
from millpond.state.ports.sharded import ShardedStore

SECOND = 1_000_000
TX = Stream("tx", (Field("ts", "timestamp"), Field("c", "string"), Field("v", "bigint")))
QUERY = Query(
    "q", "tx", "ts", 0, Sliding(30 * SECOND, 10 * SECOND), (Column("c", "string"),),
    (Aggregate("sum", Column("v", "bigint"), None, "bigint"),), (Named("s", Column("agg:0", "bigint")),),
    sink=Sink("noop"),
)  # fmt: skip


class Stale:
    """A pond of many epochs, and its truth as of an early one, of which little is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pond = ChangingPond(folder, [TX], [QUERY], instances=2, buckets=BUCKETS)
        (folder / IDENTITY).write_text("local")
        for second in range(0, 100, 5):
            self.pond.epoch({"tx": [pa.table({
                "ts": pa.array([(second + i % 5) * SECOND for i in range(100)], pa.int64()),
                "c": [f"c{i}" for i in range(100)], "v": [*range(100)],
            })]})  # fmt: skip
            if second == 20:
                self.early, self.spec = read_truth(folder)
        PruneFollower(Files(folder), LocalFolder(folder / "log"), lambda: 1 << 62, 0.0).sweep(self.pond.manifest)

    def read(self, _folder: Path) -> tuple[Truth, PondSpec]:
        return self.early, self.spec

    def lost(self, manifest: Manifest) -> int:
        return sum(
            decode(self.early.log.read(one.n) or b"").body is None if one.file is None
            else not (self.folder / one.file).exists()
            for one in manifest.sections.values()
        )  # fmt: skip


@pytest.fixture(params=[0, Files.inline_bytes], ids=["files", "records"])
def stale(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stale:
    monkeypatch.setattr("millpond.state.ports.files.Files.inline_bytes", request.param)
    made = Stale(tmp_path)
    assert made.lost(made.early.manifest) > 5 and made.lost(made.pond.manifest) == 0
    return made


def test_why_and_the_shared_state(stale: Stale, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_facts(stale.early, stale.spec, "q").due == find_facts(*read_truth(stale.folder), "q").due
    monkeypatch.setattr("millpond.control.diagnose.cost_report.read_truth", stale.read)
    assert measure(stale.folder).sharing.n == stale.pond.manifest.n


def test_who_balances_and_moves_buckets(stale: Stale, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ShardedStore(lambda _place: MemoryStore(), ("",) * BUCKETS)
    followers: Any = SimpleNamespace(store=store)
    moving = RowMover(stale.early, followers, "memory")
    monkeypatch.setattr("millpond.control.pond.move.load", lambda _log, _manifests: stale.early.manifest)
    assert sorted(moving.buckets("0-9", stale.spec)) == [*range(10)]
    monkeypatch.setattr("millpond.control.commands.autoscale.read_truth", stale.read)
    pond: Any = SimpleNamespace(address=stale.folder, assign=lambda *_, who: None)
    decided: Any = SimpleNamespace(instances=2, balance=True, why="")
    Autoscaler(Policy())._do(pond, decided, decided)


def test_a_driver_that_checks_what_another_prunes(stale: Stale) -> None:
    early, now = stale.early, stale.pond.manifest
    check_deltas(partial(check_delta, stale.folder), early.log, early.manifests, early.manifest)
    live = next(one for one in now.sections.values() if one.kind == "segment")
    place = stale.folder / (live.file or f"log/{live.n:020d}")
    damaged = bytearray(place.read_bytes())
    damaged[-80] ^= 1
    place.write_bytes(damaged)
    with pytest.raises(CorruptError):
        check_deltas(partial(check_delta, stale.folder), early.log, early.manifests, now)
