"""The differences between a query and its shadow, over any records."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millpond.log.records import ChangeRecord, EpochRecord
from millpond.reconfigure import shadow_report
from millpond.reconfigure.changes import Promote
from millpond.reconfigure.shadow_report import ShadowComparison
from millpond.runtime.rows.shadow_diff import NET, row_diff

Emitted = dict[str, list[int]]
"""The rows of a record, by the query that emits them."""


class Records:
    """A reader of what differs that has it in memory."""

    def batches(self, entry: Any, name: str) -> pa.Table | None:
        return row_diff(*(batches_of(entry.emitted.get(one, ())) for one in (name, f"{name}'")))


def batches_of(rows: Sequence[int]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"v": pa.array(rows, pa.int64())})] if rows else []


@pytest.fixture
def following(monkeypatch: pytest.MonkeyPatch) -> ShadowComparison:
    monkeypatch.setattr(shadow_report, "change_of", lambda change: change)
    found = ShadowComparison("q", "q'", lambda *_: b"", 0)
    monkeypatch.setattr(found, "_rows", Records())
    return found


def apply(following: ShadowComparison, n: int, emitted: Emitted, raised: str = "") -> None:
    counts = {name: {"rows": len(rows)} for name, rows in emitted.items()}
    record = EpochRecord(
        n=n, writer="", prev="", at=0, spark_query="", batch=n, start={}, end={}, counts=counts,
    )  # fmt: skip
    entry = SimpleNamespace(n=n, digest=f"{n}", record=record, emitted=emitted)
    following.apply(n, entry, SimpleNamespace(quarantined={raised}))  # type: ignore[arg-type]


def promote(following: ShadowComparison, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_report, "ChangeRecord", SimpleNamespace)
    record = SimpleNamespace(change=Promote("q"), writer="")
    following.apply(n, SimpleNamespace(n=n, digest=f"{n}", record=record, emitted={}), None)  # type: ignore[arg-type]
    monkeypatch.setattr(shadow_report, "ChangeRecord", ChangeRecord)


@pytest.mark.parametrize("few", [0, 50, shadow_report._FEW])
@pytest.mark.parametrize("seed", range(4))
def test_differences_are_the_naive_ones(
    seed: int, few: int, following: ShadowComparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow_report, "_FEW", few)
    dice, query, shadow = random.Random(seed), Counter[int](), Counter[int]()
    for n in range(1, 60):
        if dice.random() < 0.1:
            promote(following, n, monkeypatch)
            query, shadow = shadow, query
            continue
        emitted: Emitted = {
            name: [dice.randrange(30) for _ in range(dice.choice((0, 1, 5, 50)))]
            for name in ("q", "q'") if dice.random() < 0.8
        }  # fmt: skip
        apply(following, n, emitted)
        query.update(emitted.get("q", ()))
        shadow.update(emitted.get("q'", ()))
        if dice.random() < 0.2 or n == 59:
            found = following.difference()
            assert Counter(found.only_query) == Counter({f'{{"v":{v}}}': k for v, k in (query - shadow).items()})
            assert Counter(found.only_shadow) == Counter({f'{{"v":{v}}}': k for v, k in (shadow - query).items()})
            assert (found.n, found.same) == (n, (query & shadow).total())
    found = following.difference()
    apply(following, 3, {"q": [1]})  # again, after a failure
    assert following.difference() == found


@pytest.mark.parametrize("raised", ["q", "q'"])
def test_nothing_is_said_while_one_of_both_is_quarantined(following: ShadowComparison, raised: str) -> None:
    apply(following, 1, {"q": [1, 2], "q'": [1]}, raised)
    assert following.difference() == (1, 0, [], [])


def test_a_record_is_added_up_with_few_others(following: ShadowComparison, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it for each record would take as long as there are differences, while epochs wait for the core."""
    summed, read = shadow_report._summed, list[int]()
    monkeypatch.setattr(shadow_report, "_summed", lambda parts: read.append(sum(map(len, parts))) or summed(parts))
    for n in range(1, 257):
        apply(following, n, {"q": [n]})
    assert sum(read) <= 256 * 6, "few are left until somebody asks"
    monkeypatch.setattr(shadow_report, "_FEW", 0)
    for n in range(257, 513):
        apply(following, n, {"q": [n]})
    assert sum(read) <= 5 * 512
    assert len(following.difference().only_query) == 512


def test_identical_rows_are_not_kept(following: ShadowComparison) -> None:
    for n in range(1, 100):
        apply(following, n, {"q": [n, n], "q'": [n, n]})
    assert sum(map(len, following._differing)) == 0 and len(following._differing) == 1
    assert following.difference() == (99, 198, [], [])


def test_rows_are_the_same_if_their_texts_are(following: ShadowComparison, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a number has many bits, and lists are not looked into before."""
    odd = np.array([np.nan, -np.nan, 1.5])
    for name, values in {"x": pa.array(odd, from_pandas=False), "l": pa.array([[1], [1], []])}.items():
        emitted = pa.table({name: values, NET: [1, -1, 2]})
        monkeypatch.setattr(following, "_rows", SimpleNamespace(batches=lambda *_, emitted=emitted: emitted))
        before = following.difference()
        apply(following, before.n + 1, {"q": [0, 0, 0], "q'": [0]})
        found = following.difference()
        assert (found.same, found.only_shadow) == (before.same + 1, [])
        assert len(found.only_query) == len(before.only_query) + 2
        following._differing = [shadow_report._NONE]
        following._compared = 2 * found.same


def test_few_parts_are_kept_however_many_records_differ(following: ShadowComparison) -> None:
    for n in range(1, 1001):
        apply(following, n, {"q": [n]})
        assert len(following._differing) <= 1 + shadow_report._PARTS
    assert len(following.difference().only_query) == 1000
