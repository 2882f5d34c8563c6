"""The policy receives epochs, changes the pond within its bounds, and reports what it would do."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kit.inputs.cases import SECOND, STREAM, aggregate_of
from kit.judges.answers import Run, table_of
from millpond.control.commands.autoscale import WHO, Autoscaler, advice, advice_text, better_owners, observed
from millpond.errors import ChangeRefused, ForeignPondError
from millpond.log.locations.address import address_of
from millpond.log.records import EpochRecord, Receipt
from millpond.model.change_history import ChangeEffects, Scaled
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.windows import Sliding
from millpond.placement.autoscale_policy import Policy
from millpond.placement.run_lengths import runs_of
from millpond.placement.slots import buckets_of, slots_of
from millpond.runtime.migration.bucket_load import bucket_loads
from millpond.state.keys.keys import texts_of
from millpond.state.ports.files import IDENTITY, Files

BUCKETS = 16


def epoch(at_s: float, folded: list[float]) -> EpochRecord:
    receipts = tuple(
        Receipt(i, "a", 0, "", None, 0, (), {"fold_us:*": round(each * SECOND)}) for i, each in enumerate(folded)
    )
    return EpochRecord(
        n=1, writer="", prev="", at=round(at_s * SECOND), spark_query="", batch=0, start={}, end={}, receipts=receipts,
        counts={"*": {"events": 100}},
    )  # fmt: skip


class FakePond:
    """A pond that records the requests of the autoscaler."""

    def __init__(self, path: Path = Path()) -> None:
        self.address, self.requests, self.instances = address_of(path), list[tuple[Any, ...]](), 2
        self.refuses, self.shards = False, list[int | None]()

    def servers(self) -> tuple[str, ...]:
        return ("h:1", "h:2", "h:3")

    def scale(
        self, instances: int, *, shards: int | None = None, who: str | None = None, why: str = "requested"
    ) -> None:  # fmt: skip
        if self.refuses:
            raise ChangeRefused("It is too late.", "Go home.")
        self.instances = instances
        self.shards.append(shards)
        self.requests.append((instances, who, why))

    def assign(self, owners: tuple[int, ...], instances: int, why: str, *, who: str | None = None) -> None:
        self.requests.append((owners, instances, who, why))


def test_a_busy_pond_gets_instances_and_a_quiet_one_gives_them_back() -> None:
    policy = Policy(agreeing_observations=2, cooldown_us=5 * SECOND, max_instances=6)
    pond, scaler, at = FakePond(), Autoscaler(policy, every_us=SECOND), 0.0
    for load in [1.6] * 80 + [0.4] * 80:
        at += 0.25
        scaler.epoch(pond, epoch(at, [load * 0.25 / pond.instances] * pond.instances))
    counts = [instances for instances, _, _ in pond.requests]
    assert counts[0] == 4 and counts[-1] == 1 and counts == sorted(counts, reverse=True)
    assert {who for _, who, _ in pond.requests} == {WHO}
    assert pond.requests[0][2] == "instances fold 80% of the time, target 50%: from 2 to 4 instances"
    pond.refuses, pond.instances = True, 1
    for load in [3.0] * 40:
        at += 0.25
        scaler.epoch(pond, epoch(at, [load * 0.25]))
        assert scaler.last is not None
        if "refused" in scaler.last.why:
            break
    else:
        pytest.fail("the refusal is not reported")
    assert observed(0, []) is None


def test_a_spike_of_three_times_the_load_is_absorbed() -> None:
    """Simulated: an instance folds 1,000 rows in a second, and an epoch costs 50 ms in which none are folded."""
    pond, scaler = FakePond(), Autoscaler(Policy())
    at = arrived = done = most = recovered = 0.0
    while at < 900:
        rows, instances = min(arrived - done, 5_000.0), pond.instances
        folding = rows / 1_000 / instances
        passed = max(0.05 + folding, 0.25)
        at, done = at + passed, done + rows
        arrived += passed * (2_400 if 200 < at <= 500 else 800)
        most = max(most, arrived - done)
        if 200 < at <= 500 and arrived - done > 2_400:
            recovered = at
        record = msgspec.structs.replace(epoch(at, [folding] * instances), map=len(pond.requests))
        scaler.epoch(pond, msgspec.structs.replace(record, counts={"*": {"events": round(rows)}}))
    assert [instances for instances, _, _ in pond.requests] == [4, 5, 2], "no more changes than the load needs"
    assert "instances fold 9" in pond.requests[0][2] and pond.requests[-1][2].endswith("from 5 to 2 instances")
    assert most < 25_000 and recovered < 260, "within a minute no more than a second of events waits"


def test_shards_follow_instances_as_far_as_there_are_servers() -> None:
    policy = Policy(agreeing_observations=2, cooldown_us=0, max_instances=6, shards=(2, 8))
    pond, scaler, at = FakePond(), Autoscaler(policy, every_us=SECOND), 0.0
    for load in [1.6] * 80 + [0.4] * 80:
        at += 0.25
        scaler.epoch(pond, epoch(at, [load * 0.25 / pond.instances] * pond.instances))
    assert pond.requests[0][0] == 4 and pond.requests[-1][0] == 1
    assert pond.shards[0] == 3 and pond.shards[-1] == 2


def test_epochs_that_move_state_are_no_load() -> None:
    policy = Policy(agreeing_observations=1, cooldown_us=0, max_instances=6)
    pond, scaler = FakePond(), Autoscaler(policy, every_us=SECOND)
    for i in range(40):
        scaler.epoch(pond, msgspec.structs.replace(epoch(0.25 * i, [0.2, 0.2]), map=i // 2))
    assert not pond.requests and scaler.last is None


def query() -> Query:
    aggregates = (aggregate_of("count", None),)
    output = (Named("k", Column("key:0", "string")), Named("n", Column("agg:0", "bigint")))
    window = Sliding(100 * SECOND, 100 * SECOND)
    return Query("q", STREAM.name, "ts", 0, window, (Column("k", "string"),), aggregates, output)


def test_the_hottest_buckets_go_to_whoever_is_least_busy(tmp_path: Path) -> None:
    run, dice = Run(tmp_path, [query()], 2, BUCKETS), random.Random(1)
    (tmp_path / IDENTITY).write_text("local")
    empty = dict.fromkeys(field.name for field in STREAM.columns)
    keys = [f"k{i}" for i in range(400)]
    of = buckets_of(slots_of(texts_of([table_of([empty | {"k": key} for key in keys])["k"].combine_chunks()], 400)),
                    BUCKETS)  # fmt: skip
    hot = [key for key, bucket in zip(keys, of.tolist(), strict=True) if bucket < 6 or dice.random() < 0.1]
    with pytest.raises(ForeignPondError, match="not run long enough"):
        advice(tmp_path, Policy())
    for second in range(3):
        run.epoch([[empty | {"k": key, "ts": second * SECOND} for key in hot]])
    manifest, setting = run.pond.manifest, run.pond.setting
    loads = bucket_loads(setting.plan, manifest, Files(tmp_path), 2, BUCKETS)
    counted = [sum(of[keys.index(key)] == bucket for key in hot) for bucket in range(BUCKETS)]
    assert loads.tolist() == counted
    better = better_owners(run.pond.spec, manifest, Files(tmp_path), Policy())
    assert better is not None
    shares = [sum(load for load, owner in zip(counted, better, strict=True) if owner == one) for one in (0, 1)]
    assert max(shares) <= 1.25 * sum(shares) / 2
    scaled = Scaled(manifest.n, 2, runs_of((1, 0) * (BUCKETS // 2)))
    moving = msgspec.structs.replace(run.pond.spec, changed=ChangeEffects(scaled=(scaled,)))
    assert better_owners(moving, manifest, Files(tmp_path), Policy()) is None, "what moves is not balanced"
    pond, scaler = FakePond(tmp_path), Autoscaler(Policy(agreeing_observations=1), every_us=SECOND)
    for at in range(3):
        scaler.epoch(pond, epoch(at * 1.5, [0.6, 0.1]))
    assert pond.requests and pond.requests[0][:3] == (better, 2, WHO)
    assert "1.71 times as long as the mean" in pond.requests[0][3]


def test_advice_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, [query()], 2, BUCKETS)
    (tmp_path / IDENTITY).write_text("local")
    run.epoch([[]])
    monkeypatch.setattr(
        "millpond.control.commands.autoscale._newest", lambda *_: [epoch(0, [0, 0]), epoch(1, [0.9, 0.7])]
    )
    found = advice(tmp_path, Policy())
    assert (found.now, found.instances, found.epochs) == (2, 4, 1)
    assert advice_text(found).splitlines()[1].startswith("it would have 4 instances: instances fold 80%")
    assert msgspec.json.decode(msgspec.json.encode(found))["instances"] == 4
