"""The differences between a query and its shadow, over any records."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    assert following.difference()[:4] == (1, 0, [], [])


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
    assert following.difference()[:4] == (99, 198, [], [])


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


@given(st.data())
def test_pairs_with_the_same_key_are_compared_by_column(data: st.DataObject) -> None:
    kind, unit = data.draw(st.sampled_from([(pa.int64(), 1), (pa.decimal128(38, 2), Decimal("0.01"))]))
    # the largest two differ, but not as float64
    values = st.one_of(st.none(), st.sampled_from([-2, 3, 2**62, 2**62 + 1]).map(lambda number: number * unit))
    row = st.tuples(st.integers(0, 6), values, st.sampled_from(["", "a", None]))
    sides = [data.draw(st.lists(row, max_size=8)) for _ in range(2)]
    schema = pa.schema({"k": pa.int64(), "v": kind, "s": pa.string()})
    tables = [pa.Table.from_pylist([dict(zip("kvs", one, strict=True)) for one in side], schema) for side in sides]
    rows = row_diff(*([*filter(len, table.to_batches())] for table in tables))
    pairs, columns = shadow_report._by_column(shadow_report._NONE if rows is None else rows, ["k"])

    left = [Counter(sides[0]) - Counter(sides[1]), Counter(sides[1]) - Counter(sides[0])]
    both = []
    for key in range(7):
        query, shadow = ([row for row in side.elements() if row[0] == key] for side in left)
        if len(query) == len(shadow) == 1:
            both += [(query[0], shadow[0])]
    numbers = [(one[1], other[1]) for one, other in both if one[1] != other[1]]
    texts = sum(one[2] != other[2] for one, other in both)
    known = [(a, b) for a, b in numbers if a is not None and b is not None]
    largest = max((float(abs(a - b)) for a, b in known), default=None)
    sides = sum(a < b for a, b in known), sum(a > b for a, b in known)
    wanted = [("v", len(numbers), largest, *sides)] * bool(numbers) + [("s", texts, None, 0, 0)] * bool(texts)
    assert (len(pairs), [*columns]) == (len(both), wanted)
    found = [] if rows is None else [rows.select(["k", "v", "s"]).take(pa.array(one)).to_pylist() for one in pairs]
    assert Counter((tuple(a.values()), tuple(b.values())) for a, b in found) == Counter(both)


def test_the_largest_difference_of_a_column_is_a_finite_number() -> None:
    odd = {
        "k": [1, 1, 2, 2], "f": [float("nan"), 1.0, 2.0, 2.5], "zero": [float("nan"), 1.0, -0.0, 0.0],
        "u": pa.array([2**64 - 1, 0, 0, 1], pa.uint64()), "d": [Decimal("1.25"), None] * 2, NET: [1, -1, 1, -1],
    }  # fmt: skip
    wanted = (("f", 2, 0.5, 1, 0), ("zero", 2, None, 0, 0), ("u", 2, float(2**64 - 1), 1, 1), ("d", 2, None, 0, 0))
    pairs, columns = shadow_report._by_column(pa.table(odd), ["k"])
    assert (pairs.tolist(), columns) == ([[0, 1], [2, 3]], wanted)


def test_epochs_are_applied_while_a_difference_is_computed(
    following: ShadowComparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(following, 1, {"q": [1]})
    texts = shadow_report._texts

    def slowly(rows: pa.Table) -> pa.Array:
        monkeypatch.setattr(shadow_report, "_texts", texts)
        epoch = threading.Thread(target=apply, args=(following, 2, {"q": [2]}), daemon=True)
        epoch.start()
        epoch.join(10)
        assert not epoch.is_alive(), "the epoch waits"
        return texts(rows)

    monkeypatch.setattr(shadow_report, "_texts", slowly)
    assert following.difference()[:3] == (1, 0, ['{"v":1}'])
    assert following.difference()[:3] == (2, 0, ['{"v":1}', '{"v":2}'])
