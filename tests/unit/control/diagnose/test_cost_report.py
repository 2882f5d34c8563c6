"""The measured report, and the price of state, on ponds without Spark: figures that can be counted by hand."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from kit.simulator.changing_pond import ChangingPond
from millpond.control.commands.explain import explain_pond
from millpond.control.diagnose.cost_report import measure, measured_text, price_of_state
from millpond.errors import ForeignPondError
from millpond.model.aggregates import Aggregate
from millpond.model.change_history import StoredQuery
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.stream import Field, Stream
from millpond.model.windows import Session, Sliding
from millpond.plan.explain.price import price
from millpond.plan.groups.build import build_plan
from millpond.reconfigure.changes import Add
from millpond.runtime.inspect.sharing import group_cells
from millpond.state.ports.files import IDENTITY, Files

SECOND = 1_000_000
TX = Stream("tx", (Field("ts", "timestamp"), Field("c", "string"), Field("v", "bigint")))
V = Column("v", "bigint")
COUNT, SUM = Aggregate("count", None, None, "bigint"), Aggregate("sum", V, None, "bigint")


def query(name: str, size: int, slide: int, *aggregates: Aggregate, key: str = "c") -> Query:
    output = (Named("n", Column("agg:0", "bigint")),)
    window = Sliding(size * SECOND, slide * SECOND)
    return Query(name, "tx", "ts", 0, window, (Column(key, "string"),), aggregates or (COUNT,), output)


def ran(folder: Path, queries: list[Query], instances: int = 1) -> ChangingPond:
    pond = ChangingPond(folder, [TX], queries, instances)
    (folder / IDENTITY).write_text("local")
    # keys a and b in each second of 0 … 9
    times = [second * SECOND for second in range(10) for _ in "ab"]
    rows = {"ts": pa.array(times, pa.int64()), "c": ["a", "b"] * 10, "v": pa.array([1] * 20, pa.int64())}
    pond.epoch({"tx": [pa.table(rows)]})
    return pond


@pytest.mark.parametrize("instances", [1, 3])
def test_the_report_says_what_was_read_and_kept(tmp_pond: Path, instances: int) -> None:
    queries = [query("fine", 20, 1), query("coarse", 20, 10, COUNT, SUM)]
    ran(tmp_pond, queries, instances)
    text = measured_text(measure(tmp_pond))
    assert text.startswith("measured as of record 1, over 1 epoch\n  read    20 events once")
    assert "one job per query reads 40 events" in text
    assert "(20 cells); 2 separate copies" in text
    assert [line.split()[-2] for line in text.splitlines()[-3:]] == ["20", "2", "20"]


def test_what_is_no_pond_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(ForeignPondError):
        measure(tmp_path / "none")


def test_a_pond_is_explained_with_its_current_queries(tmp_pond: Path) -> None:
    pond = ran(tmp_pond, [query("fine", 20, 1)])
    pond.change(Add(StoredQuery.of(query("coarse", 20, 10)), who="ann"))
    report = explain_pond(tmp_pond, None, None, None, None, "local[1]", "1g")  # without a file no Spark is started
    assert "2 queries in 1 group over 1 stream" in report.parts[0]
    assert "coarse" in report.parts[0]
    assert report.parts[1].startswith("measured as of record ")
    assert report.notes == ()


def test_state_per_key_is_measured(tmp_pond: Path) -> None:
    queries = [query("fine", 20, 1, COUNT, SUM)]
    pond = ran(tmp_pond, queries)
    measured = measure(tmp_pond)
    cells = group_cells(pond.plan.groups[0], pond.manifest, Files(tmp_pond), 1)
    assert (cells.cells, cells.keys) == (20, 2)
    assert set(cells.of_measure.values()) == {1}
    twin = price_of_state(price(pond.plan, query("twin", 20, 1)), measured)
    now = cells.per_key()
    assert twin[0].startswith(f"about {now:,.0f} → {now:,.0f} bytes per key, from 10.0 cells of ")
    # ten cells, each with one more column of eight bytes
    best = query("best", 20, 1, Aggregate("max", V, None, "bigint"))
    assert f" → {now + 80:,.0f} bytes" in price_of_state(price(pond.plan, best), measured)[0]
    # the estimate is what a pond with both keeps
    (tmp_pond / "both").mkdir()
    both = ran(tmp_pond / "both", [*queries, best])
    cells = group_cells(both.plan.groups[0], both.manifest, Files(tmp_pond / "both"), 1)
    assert cells.per_key() == pytest.approx(now + 80)


def test_finer_edges_and_longer_windows_grow_it_at_most_so_much(tmp_pond: Path) -> None:
    queries = [query("coarse", 20, 10)]
    plan = ran(tmp_pond, queries).plan
    lines = price_of_state(price(plan, query("fine", 40, 5)), measure(tmp_pond))
    assert lines[0].endswith("0 more columns, up to 4 times the cells")


def test_without_a_pond_there_is_a_bound(tmp_pond: Path) -> None:
    plan = build_plan([query("coarse", 20, 10)])
    (line,) = price_of_state(price(plan, query("other", 60, 60, key="v")), None)
    # an open slice and one before, each with a slot and one count
    assert line.startswith("at most 32 bytes per key, plus the key: 2 cells of 1 columns")
    (line,) = price_of_state(price(plan, query("more", 20, 10, SUM)), None)
    assert "3 cells of 3 columns" in line


def test_a_session_costs_an_atom(tmp_pond: Path) -> None:
    queries = [replace(query("visits", 20, 20), window=Session(5 * SECOND))]
    plan = ran(tmp_pond, queries).plan
    more = replace(query("pauses", 20, 20, COUNT, SUM), window=Session(2 * SECOND))
    (line,) = price_of_state(price(plan, more), measure(tmp_pond))
    # slot, first, last; a sum and two counts
    assert "bytes per key now; 48 bytes for each open session of a key" in line
    assert measured_text(measure(tmp_pond)).splitlines()[-1].split()[-2] == "2"
