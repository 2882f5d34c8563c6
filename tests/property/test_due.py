"""The next due row, read from segments and computed window by window."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.inputs.examples import examples
from kit.naive.next_close import naive_due
from kit.simulator.changing_pond import ChangingPond
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, call, literal
from millpond.model.query import Named, Query
from millpond.model.stream import Field, Stream
from millpond.model.windows import Counted, Cumulating, Range, Session, Sliced, Sliding
from millpond.plan.groups.plan import SIGNED_FROM
from millpond.runtime.epoch import watermarks
from millpond.runtime.inspect.next_close import next_due
from millpond.state.ports.files import Files

TX = Stream("tx", (Field("ts", "timestamp"), Field("v", "bigint")), max_ahead_us=None)
V = Column("v", "bigint")
WHERE = call("gt", (V, literal(0, "bigint")), "boolean")

_PARTS = st.integers(1, 20), st.integers(1, 400), st.integers(0, 20), st.integers(0, 20)
WINDOWS: st.SearchStrategy[Sliced] = st.builds(
    lambda slide, times, rest, offset: Sliding(slide * times + rest % slide, slide, offset % slide), *_PARTS
) | st.builds(lambda step, times, rest, offset: Cumulating(step * times, step, offset % step), *_PARTS)
EPOCHS = st.lists(st.lists(st.tuples(st.integers(-50, 6000), st.integers(0, 1)), max_size=6), min_size=1, max_size=12)


@settings(max_examples=examples(12))
@given(
    st.lists(st.tuples(WINDOWS, st.integers(0, 300)), min_size=1, max_size=3), EPOCHS, st.integers(1, 2), st.booleans()
)
def test_the_window_due_is_the_first_open_one_with_an_event(
    shapes: list[tuple[Sliced, int]], epochs: list[list[tuple[int, int]]], instances: int, many_filters: bool
) -> None:
    count = (Aggregate("count", None, None, "bigint"),)
    output = (Named("n", Column("agg:0", "bigint")),)
    queries = [
        Query(f"q{i}", "tx", "ts", delay, window, (V,), count, output, WHERE)
        for i, (window, delay) in enumerate(shapes)
    ]
    above = [call("gt", (V, literal(i, "bigint")), "boolean") for i in range(1, SIGNED_FROM)]
    others = [
        Query(f"other{i}", "tx", "ts", 0, shapes[0][0], (V,), count, output, where) for i, where in enumerate(above)
    ]
    with TemporaryDirectory() as folder:
        pond = ChangingPond(Path(folder), [TX], [*queries, *(others if many_filters else ())], instances)
        assert pond.plan.groups[0].signed == many_filters
        taken: dict[str, list[int]] = {query.name: [] for query in queries}
        for events in epochs:
            before = watermarks(pond.manifest).get("tx")
            for query in queries:
                mark = None if before is None else before.at(query.delay_us)
                taken[query.name] += [time for time, v in events if v > 0 and (mark is None or time > mark)]
            rows = {"ts": pa.array([time for time, _ in events], pa.int64()), "v": [v for _, v in events]}
            pond.epoch({"tx": [pa.table({**rows, "v": pa.array(rows["v"], pa.int64())})]})
        after = watermarks(pond.manifest).get("tx")
        for query in queries:
            group, plan = pond.plan.of_query(query.name)
            found = next_due(group, plan, pond.manifest, Files(Path(folder)), instances)
            wanted = naive_due(taken[query.name], query.window, None if after is None else after.at(query.delay_us))
            assert (None if found is None else found[:2]) == wanted
            assert found is None or found.needs_us == found.end_us + query.delay_us


@settings(max_examples=examples(12))
@given(
    st.lists(st.tuples(st.builds(Session, st.integers(1, 900)), st.integers(0, 300)), min_size=1, max_size=3), EPOCHS,
    st.integers(1, 2),
)  # fmt: skip
def test_the_session_due_is_the_open_one_that_ends_first(
    shapes: list[tuple[Session, int]], epochs: list[list[tuple[int, int]]], instances: int
) -> None:
    count, output = (Aggregate("count", None, None, "bigint"),), (Named("n", Column("agg:0", "bigint")),)
    queries = [Query(f"q{i}", "tx", "ts", delay, window, (), count, output) for i, (window, delay) in enumerate(shapes)]
    with TemporaryDirectory() as folder:
        pond = ChangingPond(Path(folder), [TX], queries, instances)
        taken: dict[str, list[int]] = {query.name: [] for query in queries}
        for events in epochs:
            before = watermarks(pond.manifest).get("tx")
            for query in queries:
                mark = None if before is None else before.at(query.delay_us)
                taken[query.name] += [time for time, _ in events if mark is None or time > mark]
            times, values = zip(*events, strict=True) if events else ((), ())
            pond.epoch({"tx": [pa.table({"ts": pa.array(times, pa.int64()), "v": pa.array(values, pa.int64())})]})
        after = watermarks(pond.manifest).get("tx")
        for query in queries:
            found = next_due(*pond.plan.of_query(query.name), pond.manifest, Files(Path(folder)), instances)
            wanted = naive_due(taken[query.name], query.window, None if after is None else after.at(query.delay_us))
            assert (None if found is None else found[:2]) == wanted


@settings(max_examples=examples(12))
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 300)), min_size=1, max_size=3), EPOCHS, st.integers(1, 2))
def test_the_event_due_is_the_first_without_a_row(
    shapes: list[tuple[int, int]], epochs: list[list[tuple[int, int]]], instances: int
) -> None:
    count = (Aggregate("count", None, None, "bigint"),)
    output = (Named("n", Column("agg:0", "bigint")),)
    queries = [
        Query(f"q{i}", "tx", "ts", delay, Range(us), (V,), count, output, WHERE) for i, (us, delay) in enumerate(shapes)
    ]
    with TemporaryDirectory() as folder:
        pond = ChangingPond(Path(folder), [TX], queries, instances)
        taken: dict[str, list[int]] = {query.name: [] for query in queries}
        for events in epochs:
            before = watermarks(pond.manifest).get("tx")
            for query in queries:
                mark = None if before is None else before.at(query.delay_us)
                taken[query.name] += [time for time, v in events if v > 0 and (mark is None or time > mark)]
            rows = {"ts": pa.array([time for time, _ in events], pa.int64())}
            pond.epoch({"tx": [pa.table({**rows, "v": pa.array([v for _, v in events], pa.int64())})]})
        after = watermarks(pond.manifest).get("tx")
        for query in queries:
            mark = None if after is None else after.at(query.delay_us)
            waiting = [time for time in taken[query.name] if mark is None or time > mark]
            found = next_due(*pond.plan.of_query(query.name), pond.manifest, Files(Path(folder)), instances)
            assert (None if found is None else found.end_us - 1) == min(waiting, default=None)
            assert found is None or found.needs_us == found.end_us - 1 + query.delay_us


def test_the_row_due_of_a_count_window_is_the_first_complete_one(tmp_path: Path) -> None:
    output = (Named("n", Column("agg:0", "bigint")),)
    query = Query("q", "tx", "ts", 100, Counted(3, 2), (V,), (Aggregate("count", None, None, "bigint"),), output)
    pond = ChangingPond(tmp_path, [TX], [query], 2)

    def due(*events: tuple[int, int]) -> tuple[int, int, int] | None:
        rows = {"ts": pa.array([time for time, _ in events], pa.int64()), "v": pa.array([v for _, v in events])}
        pond.epoch({"tx": [pa.table(rows)]})
        return next_due(*pond.plan.of_query("q"), pond.manifest, Files(tmp_path), 2)

    assert due((10, 1), (20, 2), (30, 3)) is None  # no key has a second event
    assert due((25, 2), (40, 1)) == (20, 25, 125)
    assert due((130, 9)) == (10, 40, 140)  # the row of key 2 is out
    assert due((50, 1), (45, 1)) == (10, 40, 140)
    assert due((141, 9)) == (40, 50, 150)  # key 1 has counted twice; its fourth event is that of 50
