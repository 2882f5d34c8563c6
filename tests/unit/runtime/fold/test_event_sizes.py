"""The sizes of tallies, shared and for each query alone, compared with counting by sets."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from kit.simulator.changing_pond import ChangingPond
from millpond.kernels.bins import coarser_bins
from millpond.log.manifest import load
from millpond.model.aggregates import PERCENTILE, Aggregate
from millpond.model.expressions import Column, Expression, call, literal
from millpond.model.query import Named, Query
from millpond.model.stream import Field, Stream
from millpond.model.windows import Sliding
from millpond.plan.groups.tallies import FINEST_BITS, bits_of
from millpond.runtime.epoch import watermarks
from millpond.runtime.fold.state_size import TalliedSize
from millpond.runtime.task.state_locations import group_state
from millpond.state.layout.cells import order_codes
from millpond.state.ports.files import Files

SECOND = 1_000_000
TX = Stream("tx", (Field("ts", "timestamp"), Field("c", "string"), Field("v", "double")))
V = Column("v", "double")
ROUGH = call("floor", (call("divide", (V, literal(100.0, "double")), "double"),), "bigint")
LARGE = call("gt", (V, literal(700.0, "double")), "boolean")
TALLY = 24
LAST = 29


def query(name: str, seconds: int, accuracy: int, where: Expression | None = None) -> Query:
    median = Aggregate(PERCENTILE, V, None, "double", UNSET, (literal(0.5, "double"),), accuracy=accuracy)
    window = Sliding(seconds * SECOND, seconds * SECOND)
    output = (Named("m", Column("agg:0", "double")),)
    return Query(name, "tx", "ts", 0, window, (Column("c", "string"),), (median,), output, where)


def events() -> list[tuple[int, str, float]]:
    """Ten of each of three keys in each of 30 seconds, of a thousand values; every seventh is NaN."""
    dice = np.random.default_rng(5)
    return [
        (second, key, float("nan") if i == 7 else float(dice.integers(1, 1000)))
        for second in range(LAST + 1) for key in "abc" for i in range(10)
    ]  # fmt: skip


def sizes(folder: Path, queries: list[Query], instances: int) -> tuple[int, dict[str, int]]:
    """Bytes of all, and of each query alone, of a pond that read the events in three epochs."""
    pond = ChangingPond(folder, [TX], queries, instances)
    for part in range(3):
        seconds, keys, values = zip(*[row for row in events() if row[0] % 30 // 10 == part], strict=True)
        times = pa.array([second * SECOND for second in seconds], pa.int64())
        pond.epoch({"tx": [pa.table({"ts": times, "c": keys, "v": pa.array(values, pa.float64())})]})
    manifest = load(pond.log, pond.manifests)
    [group], mark = pond.plan.groups, watermarks(manifest)["tx"]
    measured = [TalliedSize.of(group, group_state(manifest, i, group), Files(folder)) for i in range(instances)]
    alone = {plan.query.name: sum(size.alone(plan, mark) for size in measured) for plan in group.queries}
    return sum(size.bytes for size in measured), alone


def expected(query: Query) -> int:
    """How many bins of how many keys and windows occur in those that are open after the last event."""
    assert isinstance(query.window, Sliding)
    found = set()
    for second, key, value in events():
        window = second * SECOND // query.window.size_us
        if (window + 1) * query.window.size_us > LAST * SECOND and (query.where is None or not value <= 700.0):
            fine = order_codes(np.array([value])) >> (52 - FINEST_BITS)
            found.add((key, window, int(coarser_bins(fine, bits_of(query.aggregates[0]))[0])))
    return len(found) * TALLY


@pytest.mark.parametrize("instances", [1, 3])
def test_alone_a_query_keeps_its_own_slices_and_bins_while_it_needs_them(tmp_path: Path, instances: int) -> None:
    queries = [
        query("fine", 30, 10_000), query("coarse", 30, 10), query("short", 4, 10_000), query("large", 30, 100, LARGE),
    ]  # fmt: skip
    whole, alone = sizes(tmp_path, queries, instances)
    assert alone == {query.name: expected(query) for query in queries}
    assert max(alone["coarse"], alone["large"]) < alone["fine"]
    assert alone["short"] < alone["fine"] <= whole, "cut into more slices, all together have more"


def test_equal_queries_share_theirs(tmp_path: Path) -> None:
    one = query("one", 30, 100)
    whole, alone = sizes(tmp_path, [one, replace(one, name="two")], 1)
    assert alone == {"one": whole, "two": whole}


def test_a_query_without_percentiles_has_no_tallies(tmp_path: Path) -> None:
    count = Aggregate("count", None, None, "bigint")
    plain = replace(query("plain", 30, 100), aggregates=(count,), output=(Named("n", Column("agg:0", "bigint")),))
    assert sizes(tmp_path / "none", [plain], 1) == (0, {"plain": 0})
    whole, alone = sizes(tmp_path / "both", [plain, query("fine", 30, 10_000)], 1)
    assert alone == {"plain": 0, "fine": whole}


def test_distinct_values_are_kept_once_for_each_key_and_slice_however_many_events_there_are(tmp_path: Path) -> None:
    def distinct(name: str, seconds: int, function: str, where: Expression | None = None) -> Query:
        return replace(query(name, seconds, 100, where), aggregates=(Aggregate(function, ROUGH, None, "bigint"),))

    def triples(seconds: int, where: Expression | None = None) -> int:
        return len({
            (key, second // seconds, 0 if math.isnan(value) else math.floor(value / 100))
            for second, key, value in events()
            if (second // seconds + 1) * seconds > LAST and (where is None or not value <= 700.0)
        })  # fmt: skip

    queries = [distinct("all", 30, "count_distinct"), distinct("large", 30, "mode", LARGE)]
    whole, alone = sizes(tmp_path / "one", queries, 2)
    assert triples(30) < len(events()) / 25
    assert alone == {"all": triples(30) * (TALLY + 4), "large": triples(30, LARGE) * (TALLY + 4)}
    assert alone["all"] <= whole <= sum(alone.values())
    whole, alone = sizes(tmp_path / "short", [queries[0], distinct("short", 3, "sum_distinct")], 1)
    assert alone["short"] == triples(3) * (TALLY + 4)
    assert alone["all"] == triples(30) * (TALLY + 4) < whole
