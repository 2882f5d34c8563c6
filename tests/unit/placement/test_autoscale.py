"""The policy makes only the changes that the load requires, and converges; greedy balance equals its naive twin."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kit.naive.placement import naive_balance
from millpond.placement.autoscale import Memory, Observed, balanced, decide, needed
from millpond.placement.autoscale_policy import Policy

POLICY = Policy(target=0.5, max_instances=8, agreeing_observations=3, cooldown_us=10)
SECOND = 1_000_000


def seen(at_us: int, useful: float, instances: int, uneven: float = 1.0) -> Observed:
    """A second in which `useful` seconds of folding were shared by instances."""
    shares = np.ones(instances)
    shares[0] *= uneven
    each = (shares / shares.sum() * useful * SECOND).astype(int)
    return Observed(at_us, SECOND, 1000, tuple(each.tolist()))


def played(loads: list[float], instances: int, policy: Policy = POLICY) -> list[int]:
    """How many instances there are after each look, if what is decided is done."""
    memory, counts = Memory(), []
    for at_us, load in enumerate(loads):
        decision, memory = decide(policy, memory, seen(at_us, load, instances))
        instances = decision.instances
        counts.append(instances)
    return counts


@given(st.floats(0.01, 12), st.integers(1, 8))
def test_an_even_load_is_met_once_and_then_nothing_changes(load: float, instances: int) -> None:
    counts = played([load] * 60, instances)
    changes = [(old, new) for old, new in zip([instances, *counts], counts, strict=False) if old != new]
    assert len(changes) <= 1
    last = seen(0, load, counts[-1])
    assert last.utilisation <= POLICY.target + 1e-3 or counts[-1] == POLICY.max_instances
    fewer = needed(POLICY, last, POLICY.target * POLICY.slack)
    assert fewer >= counts[-1], "fewer would not leave room"
    first = POLICY.agreeing_observations - 1
    assert counts[:first] == [instances] * first, "one look is none"


@given(st.lists(st.sampled_from([0.9, 1.6]), min_size=20, max_size=60), st.integers(1, 8))
def test_an_oscillating_load_does_not_make_it_flap(loads: list[float], instances: int) -> None:
    counts = played(loads, instances)
    changed = [i for i, (old, new) in enumerate(zip([instances, *counts], counts, strict=False)) if old != new]
    assert all(after - before >= POLICY.cooldown_us for before, after in pairwise(changed))
    for place in changed:
        before = instances if not place else counts[place - 1]
        answers = [needed(POLICY, seen(0, load, before), POLICY.target) for load in loads[place - 2 : place + 1]]
        # no further than each of the looks asks for
        assert counts[place] <= min(answers) if counts[place] > before else counts[place] >= max(answers)


def test_its_decisions_are_explained() -> None:
    memory = Memory()
    for at_us in range(3):
        decision, memory = decide(POLICY, memory, seen(at_us, 1.6, 2))
    assert decision.instances == 4
    assert decision.why == "instances fold 80% of the time, target 50%: from 2 to 4 instances"
    decision, memory = decide(POLICY, memory, seen(4, 8.0, 4))
    assert decision.instances == 4 and "waits after a change" in decision.why
    for at_us in range(20, 23):
        decision, memory = decide(POLICY, memory, seen(at_us, 1.8, 4, uneven=2.0))
    assert decision.balance and decision.why.startswith("the busiest instance folds 1.60 times as long as the mean")
    silent, _ = decide(POLICY, Memory(), Observed(0, SECOND, 0, (0, 0)))
    assert silent.instances == 2 and "if this continues" in silent.why


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50)), min_size=1, max_size=30),
       st.sampled_from([1.0, 1.25, 2.0]))  # fmt: skip
def test_balance_is_that_of_the_naive_twin(buckets: list[tuple[int, int]], skew: float) -> None:
    owners, loads = [owner for owner, _ in buckets], [load for _, load in buckets]
    found = balanced(owners, loads, 6, skew)
    expected, moves = naive_balance(owners, loads, 6, skew)
    assert found == expected
    before, after = (np.bincount(one, loads, minlength=6) for one in (owners, found))
    assert after.max() <= before.max()
    if before.max() <= skew * before.sum() / 6:
        assert found == tuple(owners), "what is even enough stays"
    for fewer in moves[:-1]:  # each move was needed
        assert np.bincount(fewer, loads, minlength=6).max() > skew * before.sum() / 6
    assert balanced(found, loads, 6, skew) == found, "it has come to rest"
