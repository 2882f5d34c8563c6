"""The costs of queries sum to the total, and a query that exceeds its budget is quarantined."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.inputs.cases import SECOND, STREAM, aggregate_of, query_set
from kit.inputs.committed_epochs import committed
from kit.inputs.examples import seeds
from kit.judges.answers import table_of
from kit.simulator.changing_pond import ChangingPond
from millpond.errors import ChangeRefused, OverBudgetError, QueryTypeError
from millpond.log.records import EpochRecord, decode
from millpond.model.aggregates import Aggregate
from millpond.model.budget import Budget, budget_of
from millpond.model.expressions import Column
from millpond.model.join import Join, Side, Within
from millpond.model.query import Named, Query
from millpond.model.selection import Selection
from millpond.model.windows import Sliding
from millpond.reconfigure import validate
from millpond.reconfigure.budgets import PATIENCE, Budgets
from millpond.reconfigure.catalog import history
from millpond.reconfigure.change_price import price_of
from millpond.reconfigure.changes import Halt
from millpond.reconfigure.lifecycle import state_of
from millpond.reconfigure.placement_changes import moved_by, scale
from millpond.reconfigure.validate import KnownPond
from millpond.runtime.inspect.costs import costs, divided, staying, summed, total_time_us
from millpond.runtime.inspect.costs import state_of as live_state

SIDE = Side(STREAM.name, "ts", 0, (Column("k", "string"),), (Column("k", "string"),))
BOTH = Join("both", SIDE, SIDE, "inner", Within(0, SECOND), (Named("k", Column("left:0", "string")),))
EACH = Selection("each", STREAM.name, (Named("k", Column("k", "string")),))
COUNT = Query(
    "count", STREAM.name, "ts", 0, Sliding(100 * SECOND, 100 * SECOND), (Column("g", "bigint"),),
    (aggregate_of("count", None),), (Named("n", Column("agg:0", "bigint")),),
)  # fmt: skip


def rows(second: int, count: int = 40) -> dict[str, Any]:
    empty = dict.fromkeys(field.name for field in STREAM.columns)
    made = [empty | {"ts": int((second + i / count) * SECOND), "g": i, "k": f"k{i % 5}", "v": i} for i in range(count)]
    return {STREAM.name: [table_of(made)]}


def newest(pond: ChangingPond) -> EpochRecord:
    record = decode(pond.log.read(pond.manifest.epoch_n) or b"").record
    assert isinstance(record, EpochRecord)
    return record


@given(st.integers(0, 1 << 40), st.dictionaries(st.integers(), st.integers(0, 1 << 40), min_size=1))
def test_parts_sum_to_the_whole(whole: int, weights: dict[int, int]) -> None:
    if any(weights.values()):
        parts = divided(whole, weights)
        assert sum(parts.values()) == whole
        total = sum(weights.values())
        assert all(abs(part * total - whole * weights[name]) <= total for name, part in parts.items())


@pytest.mark.parametrize("seed", seeds(0, 2))
def test_what_queries_cost_sums_to_what_the_pond_costs(tmp_path: Path, seed: int) -> None:
    queries = [*query_set(random.Random(seed), 7), EACH, BOTH]
    pond = ChangingPond(tmp_path, [STREAM], queries, 2, 16)
    for second in range(3):
        pond.epoch(rows(20 * second))
        record, plan = newest(pond), pond.plan
        found = costs(plan, pond.manifest, record.counts)
        assert {*found} == {one.name for one in queries}
        whole = summed(found.values())
        assert whole.time_us == total_time_us(record.counts) > 0
        assert whole.bytes == sum(s.size for some in live_state(plan, pond.manifest).values() for s in some) > 0
        assert whole.rows == sum(counts.get("rows", 0) for counts in record.counts.values())
        for group in plan.groups:
            spent = sum(found[one.query.name].time_us for one in group.queries)
            assert spent >= record.counts[group.id]["group_us"] > 0
            if len(group.queries) == 1:
                assert found[group.queries[0].query.name].shared_bytes == 0


def test_state_of_one_query_is_freed_with_it(tmp_path: Path) -> None:
    other = replace(COUNT, name="other", keys=(Column("k", "string"),))
    pond = ChangingPond(tmp_path, [STREAM], [COUNT, replace(COUNT, name="same"), other], 1, 16)
    pond.epoch(rows(1))
    before = costs(pond.plan, pond.manifest, newest(pond).counts)
    assert before["count"].own_bytes == 0 and abs(before["count"].shared_bytes - before["same"].shared_bytes) <= 3
    known = KnownPond(pond.spec, pond.manifest)
    dropping = validate.drop(known, "other")
    priced = price_of(known, dropping, pond.setting)
    assert priced.freed == before["other"].own_bytes and "frees" not in priced.adds, "it is said once"
    pond.change(dropping)
    after = costs(pond.plan, pond.manifest, {})
    assert summed(before.values()).bytes - summed(after.values()).bytes == before["other"].own_bytes > 0
    assert (before["count"].keys, before["other"].keys) == (40, 5)


def test_own_state_of_a_query_is_exactly_what_its_removal_frees(tmp_path: Path) -> None:
    def query_of(name: str, *aggregates: Aggregate) -> Query:
        output = tuple(Named(f"o{i}", Column(f"agg:{i}", one.type)) for i, one in enumerate(aggregates))
        return replace(COUNT, name=name, aggregates=aggregates, output=output)

    each = ("sum", "v", "int"), ("max", "g", "bigint"), ("min", "ts", "timestamp"), ("sum", "amount", "double")
    made = [aggregate_of(function, Column(name, type)) for function, name, type in each]
    some = [query_of("count", aggregate_of("count", None)), *(query_of(f"q{i}", one) for i, one in enumerate(made))]

    def run(name: str, queries: list[Query]) -> ChangingPond:
        pond = ChangingPond(tmp_path / name, [STREAM], queries, 1, 16)
        for second in range(5):
            pond.epoch(rows(second + 1, 1000))
        return pond

    pond = run("all", some)
    before = costs(pond.plan, pond.manifest, {})
    own = {name: cost.own_bytes for name, cost in before.items()}
    assert own["count"] == 0, "others need it, too"
    for one in some[1:]:
        left = run(one.name, [other for other in some if other is not one])
        less = summed(before.values()).bytes - summed(costs(left.plan, left.manifest, {}).values()).bytes
        assert own[one.name] == pytest.approx(less, rel=0.2), one.name
    for name in ("q1", "q2"):
        pond.change(validate.drop(KnownPond(pond.spec, pond.manifest), name))
    after = costs(pond.plan, pond.manifest, {})
    # what they leave in segments is shared until these are merged
    assert {name: cost.own_bytes for name, cost in after.items()} == {n: own[n] for n in ("count", "q0", "q3")}
    assert summed(after.values()).bytes == summed(before.values()).bytes


@pytest.mark.parametrize(
    ("budget", "why"), [(Budget(state=20), "bytes of state"), (Budget(keys=39), "40 keys, more than its 39")]
)
def test_a_query_over_its_budget_is_quarantined_and_freed(tmp_path: Path, budget: Budget, why: str) -> None:
    greedy = replace(COUNT, name="greedy", budget=budget)
    modest = replace(COUNT, name="modest", keys=(), budget=Budget(state=10**6, keys=10, time=10**9))
    pond, watch = ChangingPond(tmp_path, [STREAM], [greedy, modest, EACH], 1, 16), Budgets()
    reasons: dict[str, str] = {}
    for second in (1, 2):
        pond.epoch(rows(second))
        watch.committed(committed(newest(pond), spec=pond.spec, plan=pond.plan, manifest=pond.manifest))
        for name, reason in watch.over().items():
            reasons[name] = reason
            pond.change(validate.halt(KnownPond(pond.spec, pond.manifest), name, reason))
    assert [*reasons] == ["greedy"] and why in reasons["greedy"] and f"[{OverBudgetError.code}]" in reasons["greedy"]
    assert {one.query.name for group in pond.plan.groups for one in group.queries} == {"modest"}
    assert state_of(pond.spec, "greedy") == "quarantined"
    live = {group.id for group in pond.plan.groups}
    assert {one.group for one in pond.manifest.sections.values() if one.kind in ("segment", "keys")} <= live
    assert [one.change for one in history(pond.log, pond.manifest)] == [Halt("greedy", reasons["greedy"])]
    for kind in ("pause", "resume", "promote", "halt"):
        with pytest.raises(ChangeRefused, match="is quarantined"):
            getattr(validate, kind)(KnownPond(pond.spec, pond.manifest), "greedy", *(["why"] if kind == "halt" else []))
    again = ChangingPond(tmp_path, [STREAM], None, token="next")  # whoever takes over keeps it so
    assert again.spec == pond.spec and again.plan == pond.plan
    again.change(validate.drop(KnownPond(again.spec, again.manifest), "greedy"))
    change = validate.add(KnownPond(again.spec, again.manifest), replace(greedy, budget=Budget(keys=100)))
    assert isinstance(change.since_us, int) and change.since_us > 2 * SECOND
    again.change(change)
    assert state_of(again.spec, "greedy") == "running"


def test_keys_and_state_that_have_left_an_instance_are_not_over_a_budget(tmp_path: Path) -> None:
    greedy = replace(COUNT, budget=Budget(keys=400, state=10**6))
    pond = ChangingPond(tmp_path, [STREAM], [greedy], 2, 16)
    pond.epoch(rows(1, 400))
    whole = costs(pond.plan, pond.manifest, {})["count"].bytes
    for instances in (3, 1, 3):
        pond.change(scale(KnownPond(pond.spec, pond.manifest), instances))
        pond.epoch(rows(2))
    assert any(one.kind == "left" and one.rows for one in pond.manifest.sections.values())
    assert costs(pond.plan, pond.manifest, {})["count"].keys == 400
    price = moved_by(KnownPond(pond.spec, pond.manifest), scale(KnownPond(pond.spec, pond.manifest), 2))
    assert 0 < price.bytes < whole
    watch = Budgets()
    watch.committed(committed(newest(pond), spec=pond.spec, plan=pond.plan, manifest=pond.manifest))
    assert not watch.over()
    found = costs(pond.plan, pond.manifest, {})
    assert staying(pond.plan, pond.manifest, found)["count"].bytes < found["count"].bytes


def test_time_is_over_budget_only_when_it_is_so_for_a_while(tmp_path: Path) -> None:
    pond, watch = ChangingPond(tmp_path, [STREAM], [replace(COUNT, budget=Budget(time=1)), EACH], 1, 16), Budgets()
    for epoch in range(PATIENCE):
        assert not watch.over()
        pond.epoch(rows(epoch + 1))
        watch.committed(committed(newest(pond), spec=pond.spec, plan=pond.plan, manifest=pond.manifest))
    assert "µs of an epoch, more than its 1" in watch.over()["count"]
    assert not watch.over()


def test_the_stream_of_a_quarantined_query_is_still_observed(tmp_path: Path) -> None:
    pond = ChangingPond(tmp_path, [STREAM], [COUNT, EACH], 1, 16)
    pond.epoch(rows(1))
    pond.change(validate.halt(KnownPond(pond.spec, pond.manifest), "count", "why"))
    pond.epoch(rows(50))
    change = validate.add(KnownPond(pond.spec, pond.manifest), replace(COUNT, name="later"))
    assert isinstance(change.since_us, int) and change.since_us > 50 * SECOND


@pytest.mark.parametrize("text", ["", "state", "state -1 MB", "keys 1 light-year", "keys 5, keys 6", "time 5 MB"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(QueryTypeError, match="budget"):
        budget_of(text)
