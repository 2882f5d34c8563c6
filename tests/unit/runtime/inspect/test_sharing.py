"""The savings of sharing, counted in a pond without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from kit.simulator.changing_pond import ChangingPond
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.manifest import Manifests, load
from millpond.log.port import Log
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, Expression, call, literal
from millpond.model.query import Named, Query
from millpond.model.stream import Field, Stream
from millpond.model.windows import Session, Sliding
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.deduplication import deduplicated
from millpond.runtime.fold.state_size import StateSize
from millpond.runtime.inspect.sharing import Sharing, group_cells, sharing
from millpond.state.ports.files import Files

SECOND = 1_000_000
TX = Stream("tx", (Field("ts", "timestamp"), Field("c", "string"), Field("v", "bigint")))
LARGE = call("gt", (Column("v", "bigint"), literal(5, "bigint")), "boolean")


def query(name: str, seconds: int, where: Expression | None = None, slide: int | None = None) -> Query:
    window = Sliding(seconds * SECOND, (slide or seconds) * SECOND)
    count = Aggregate("count", None, None, "bigint")
    output = (Named("n", Column("agg:0", "bigint")),)
    return Query(name, "tx", "ts", 0, window, (Column("c", "string"),), (count,), output, where)


def measured(folder: Path, queries: list[Query], instances: int = 1) -> Sharing:
    pond = ChangingPond(folder, [TX], queries, instances)
    # keys a and b in each second of 0 … 9, v = the second
    times = [second * SECOND for second in range(10) for _ in "ab"]
    rows = {
        "ts": pa.array(times, pa.int64()),
        "c": pa.array(["a", "b"] * 10),
        "v": pa.array([second for second in range(10) for _ in "ab"], pa.int64()),
    }
    pond.epoch({"tx": [pa.table(rows)]})
    return sharing(pond.plan, load(pond.log, pond.manifests), Files(folder), instances)


@pytest.mark.parametrize("instances", [1, 3])
def test_alone_a_query_keeps_what_the_pond_keeps_for_it(tmp_path: Path, instances: int) -> None:
    found = measured(tmp_path, [query("q", 20, slide=1)], instances)
    assert found.alone == {"q": found.shared}
    # 20 cells of a slot and a count
    assert (found.shared.cells, found.shared.keys) == (20, 2)
    assert found.shared.bytes >= 20 * 2 * 8
    assert found.stored > 0


def test_equal_queries_cost_one_copy(tmp_path: Path) -> None:
    found = measured(tmp_path, [query(name, 20, slide=1) for name in "abc"])
    assert found.apart == StateSize(*(3 * part for part in found.shared))


def test_alone_a_query_has_its_own_slices_filter_and_horizon(tmp_path: Path) -> None:
    queries = [query("fine", 20, slide=1), query("coarse", 20), query("large", 20, LARGE, 1), query("short", 3)]
    found = measured(tmp_path, queries)
    cells = {name: size.cells for name, size in found.alone.items()}
    # the watermark is 9 s: windows [0, 20) are open, and of 3 s only [9, 12)
    assert cells == {"fine": 20, "coarse": 2, "large": 2 * 4, "short": 2}
    assert found.shared.cells == 20


def test_events_that_wait_are_state_of_each_query_that_leaves_repeats_out(tmp_path: Path) -> None:
    once = deduplicated(replace(query("once", 3), delay_us=4 * SECOND), TX, ["c", "v"], 2 * SECOND)
    found = measured(tmp_path, [once])
    # the watermark is 5 s: the events of 3 … 9 s wait or hide others, and the last open window has cells of 3 … 5 s
    assert found.shared.bytes >= found.alone["once"].bytes > 14 * 3 * 8
    two = measured(tmp_path / "two", [once, replace(once, name="more", window=Sliding(6 * SECOND, 6 * SECOND))])
    assert two.apart.bytes > two.shared.bytes


def test_many_filters_share_cells_and_each_alone_keeps_its_own(tmp_path: Path) -> None:
    filters = [call("gt", (Column("v", "bigint"), literal(i, "bigint")), "boolean") for i in range(-9, 11)]
    queries = [query(f"q{i}", 20, where, 1) for i, where in enumerate(filters)]
    assert build_plan(queries).groups[0].signed
    found = measured(tmp_path, queries)
    # of two keys the seconds above i - 9
    assert [found.alone[f"q{i}"].cells for i in range(20)] == [2 * min(10, max(0, 18 - i)) for i in range(20)]
    assert found.shared.cells == 20
    price = group_cells(build_plan(queries).groups[0], load(*log_of(tmp_path)), Files(tmp_path), 1)
    assert (price.cells, price.keys, set(price.of_measure.values())) == (20, 2, {1})


def test_sessions_of_all_gaps_share_atoms(tmp_path: Path) -> None:
    queries = [
        replace(query(f"gap{gap}", 1), window=Session(gap * SECOND), delay_us=delay * SECOND)
        for gap, delay in ((1, 0), (2, 0), (20, 3))
    ]
    # keys a and b have an event every second
    found = measured(tmp_path, queries)
    assert {name: size.cells for name, size in found.alone.items()} == {"gap1": 2, "gap2": 2, "gap20": 2}
    assert (found.shared.cells, found.shared.keys) == (2, 2)
    cells = group_cells(build_plan(queries).groups[0], load(*log_of(tmp_path)), Files(tmp_path), 1)
    assert (cells.cells, cells.keys) == (2, 2)


def log_of(folder: Path) -> tuple[Log, Manifests]:
    return Log(LocalFolder(folder / "log")), Manifests(LocalFolder(folder / "manifest"))


def test_events_are_kept_once_and_alone_each_query_keeps_its_own(tmp_path: Path) -> None:
    listed = Aggregate("collect_list", Column("v", "bigint"), None, "array<bigint>")
    of_all = replace(query("all", 20), aggregates=(listed,))
    of_large = replace(query("large", 20, where=LARGE), aggregates=(listed,))
    sums = query("sums", 20)
    alone = {one.name: measured(tmp_path / one.name, [one]).shared.bytes for one in (of_all, sums)}
    found = measured(tmp_path / "both", [of_all, of_large])
    # 20 events of slot, time, a value and a bit of a filter; 8 of them are large
    assert alone["all"] - alone["sums"] == 20 * (16 + 8) + 3
    assert found.alone["large"].bytes < found.alone["all"].bytes <= found.shared.bytes < found.apart.bytes
    assert found.stored > measured(tmp_path / "sums again", [sums]).stored


def test_nothing_yet(tmp_path: Path) -> None:
    pond = ChangingPond(tmp_path, [TX], [query("q", 20)])
    found = sharing(pond.plan, load(pond.log, pond.manifests), Files(tmp_path), 1)
    assert (found.stored, found.shared, found.apart) == (0, StateSize(), StateSize())
