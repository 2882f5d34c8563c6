"""Joins of query rows, and queries over join rows, have the results of plain loops, for any cut of the input."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.inputs.cases import SECOND, STREAM
from kit.inputs.examples import examples
from kit.judges.answers import Run, dealt
from kit.naive.queries.query_graph import rows_by_epoch, rows_in_the_end
from kit.simulator.changing_pond import DyingLog
from millpond.errors import QueryTypeError
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, Expression, call, literal
from millpond.model.join import KINDS, LEFT, RIGHT, Join, Side, Within
from millpond.model.query import Named, Query
from millpond.model.stream import Field, Order
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.plan.upstream.rows_as_stream import chained_stream, times_of
from millpond.plan.upstream.upstream_joins import made_window
from millpond.testing.compare import assert_same_rows, rows_of
from millpond.testing.trial import Trial

PROPERTY = settings(suppress_health_check=list(HealthCheck))
PAID = replace(STREAM, name="paid")
K, TOTAL, V = Column("k", "string"), Column("total", "bigint"), Column("v", "int")
SUM = Aggregate("sum", V, None, "bigint")
TEN = Sliding(10 * SECOND, 10 * SECOND)
SAME = Within(0, 0)


def time(name: str) -> Column:
    return Column(name, "timestamp")


def sums(name: str, stream: str, window: Sliding = TEN, delay: int = 0, **more: Any) -> Query:
    """The sum of `v` by `k`, with the window."""
    output = (Named("k", Column("key:0", "string")), Named("total", Column("agg:0", "bigint")),
              Named("w", Column("window", WINDOW)))  # fmt: skip
    return replace(Query(name, stream, "ts", delay * SECOND, window, (K,), (SUM,), output), **more)


def side(stream: str, event_time: str = "w.time", delay: int = 0, value: Column = TOTAL) -> Side:
    bounds = [time("w.start"), time("w.end")] if event_time.startswith("w.") else []
    return Side(stream, event_time, delay * SECOND, (K,), (K, value, time(event_time), *bounds))


def joined(
    name: str, left: Side, right: Side, kind: str = "inner", when: Within | Sliding = SAME, **more: Any
) -> Join:  # fmt: skip
    """A row has both times, the earlier existing one, and each window of a side."""
    of = {(name, i): Column(f"{name}:{i}", value.type)
          for name, one in ((LEFT, left), (RIGHT, right)) for i, value in enumerate(one.values)}  # fmt: skip
    key = call("coalesce", (of[LEFT, 0], of[RIGHT, 0]), "string")
    total = call("coalesce", (of[LEFT, 1], call("cast", (of[RIGHT, 1],), "bigint")), "bigint")
    output = [Named("k", key), Named("total", total), Named("lt", of[LEFT, 2]), Named("rt", of[RIGHT, 2])]
    output.append(Named("et", call("coalesce", (of[LEFT, 2], of[RIGHT, 2]), "timestamp")))
    output += [Named("lw", made_window(of[LEFT, 3], of[LEFT, 4]))] if (LEFT, 3) in of else []
    if isinstance(when, Sliding):
        output += [Named("w", Column("window", WINDOW)), Named("re", time("right:window.end"))]
    return Join(name, left, right, kind, when, tuple(output), **more)


def over(upstream: Join | Query, name: str, event_time: str, window: Sliding, keys: tuple[Column, ...] = ()) -> Query:
    best = Aggregate("max_by", K, None, "array<string>", TOTAL, (literal(2, "int"),))
    chosen = (replace(SUM, argument=TOTAL), Aggregate("count", None, None, "bigint"), best)
    output = (Named("total", Column("agg:0", "bigint")), Named("n", Column("agg:1", "bigint")),
              Named("best", Column("agg:2", "array<string>")), Named("w", Column("window", WINDOW)),
              Named("k", Column("key:0", "string") if keys else literal("none", "string")))  # fmt: skip
    return Query(name, upstream.name, event_time, 0, window, keys, chosen, output)


def random_graph(dice: random.Random) -> list[Query | Join]:
    """Aggregate, join, aggregate; a side may be a stream that is read, both may be of one query."""
    window = dice.choice([TEN, TEN, Sliding(9 * SECOND, 3 * SECOND), Sliding(10 * SECOND, 10 * SECOND, 3 * SECOND)])
    first = sums("a", "events", window, dice.choice([0, 5]))
    times = {"a": dice.choice(["w.time", "w.end"]), "b": "w.time"}
    graph: list[Query | Join] = [first]
    bound = dice.randint(-15, 15) * SECOND
    whens: list[Within | Sliding] = [SAME, Within(bound, bound + dice.randint(0, 20) * SECOND)]
    shape = dice.choice(["two", "stream", "self"])
    left = side("a", times["a"])
    if shape == "two":
        graph.append(sums("b", "paid", dice.choice([window, TEN]), dice.choice([0, 5])))
        right = side("b", times["b"])
    elif shape == "stream":
        right = side("paid", "ts", dice.choice([0, 5]), V)
        whens.append(Within(-window.size_us, window.size_us))
    else:
        right = left
    if all(one.event_time in ("w.time", "ts") for one in (left, right)):
        whens.append(window if window.tumbling else TEN)
    if dice.randint(0, 1):
        left, right = right, left
    when = dice.choice(whens)
    low = call("lt", (Column("left:1", left.values[1].type), literal(5, left.values[1].type)), "boolean")
    join = joined("j", left, right, dice.choice(KINDS), when)
    conditions: list[Expression | None] = [None, None, low]
    join = replace(join, condition=dice.choice(conditions), having=call("isnotnull", (TOTAL_OF,), "boolean")
                   if dice.randint(0, 3) == 0 else None)  # fmt: skip
    graph.append(join)
    time = dice.choice(times_of(join))
    last = over(join, "top", time, dice.choice([Sliding(30 * SECOND, 30 * SECOND), Sliding(20 * SECOND, 10 * SECOND)]),
                dice.choice([(), (K,)]))  # fmt: skip
    graph.append(last)
    if dice.randint(0, 2) == 0:
        near = Within(-20 * SECOND, 5 * SECOND)
        graph.append(joined("again", side("top"), side("j", time), dice.choice(KINDS), near))
    return graph


TOTAL_OF = Column("left:1", "bigint")


def random_epochs(dice: random.Random) -> list[dict[str, list[dict[str, Any]]]]:
    empty, epochs = dict.fromkeys(field.name for field in STREAM.columns), []
    at = {"events": 0, "paid": dice.choice([0, 20 * SECOND])}
    for _ in range(dice.randint(1, 6)):
        batch: dict[str, list[dict[str, Any]]] = {}
        for name in at:
            rows = []
            for _ in range(dice.randint(0, 6)):
                at[name] += dice.choice([0, 1, SECOND, 4 * SECOND, 15 * SECOND])
                when = at[name] - dice.choice([0, 0, 2 * SECOND, 9 * SECOND])
                rows.append(empty | {"ts": when, "v": dice.choice([1, 2, 5, -3, None]), "k": dice.choice("abb")})
            batch[name] = rows
        epochs.append(batch)
    return epochs


def started(folder: Path, graph: list[Query | Join], instances: int) -> Run:
    read = {name for query in graph for name in query.streams}
    return Run(folder, graph, instances, others=[PAID, *(chained_stream(one) for one in graph if one.name in read)])


@settings(PROPERTY, max_examples=examples(20))
@given(seed=st.integers(0, 2**32), instances=st.integers(1, 3))
def test_each_epoch_answers_with_what_the_epoch_before_committed(
    seed: int, instances: int, folders: Iterator[Path]
) -> None:
    dice, folder = random.Random(seed), next(folders)
    graph, epochs = random_graph(dice), random_epochs(dice)
    expected = rows_by_epoch(graph, epochs)
    run, numbers, deal = started(folder, graph, instances), [], dealt(seed)
    for batch in epochs:
        if dice.randint(0, 3) == 0:
            run = started(folder, graph, instances)
        dies = dice.choice([None, None, "before", "after"])
        parts = {name: deal(rows) for name, rows in batch.items()}
        if dies is not None:
            run.pond.log = DyingLog(folder, dies)
            with pytest.raises(KeyboardInterrupt):
                run.epoch_of(parts)
            run = started(folder, graph, instances)
        if dies != "after":
            run.epoch_of(parts)
        numbers.append(run.pond.manifest.epoch_n)
    assert not run.pond.manifest.quarantined
    for query in graph:
        rows = dict(started(folder, graph, instances).sinks[query.name].epochs())
        for number, wanted in zip(numbers, expected[query.name], strict=True):
            table = rows.pop(number, None)
            assert_same_rows(wanted, [] if table is None else rows_of(table), about=f"{query} at {number}")
        assert not rows


@settings(PROPERTY, max_examples=examples(15))
@given(seed=st.integers(0, 2**32), instances=st.integers(1, 3))
def test_in_the_end_every_level_has_answered(seed: int, instances: int, folders: Iterator[Path]) -> None:
    dice, folder = random.Random(seed), next(folders)
    graph, epochs = random_graph(dice), random_epochs(dice)
    run, deal = started(folder, graph, instances), dealt(seed)
    for batch in epochs:
        run.epoch_of({name: deal(rows) for name, rows in batch.items()})
        if dice.randint(0, 2) == 0:
            run.pond.settle()
    run = started(folder, graph, instances)
    run.pond.drain()
    assert not run.pond.manifest.quarantined
    wanted = rows_in_the_end(graph, epochs)
    for query in graph:
        assert_same_rows(wanted[query.name], rows_of(run.sinks[query.name].table()), about=str(query))
    run.pond.settle()
    floors = run.pond.manifest.watermark_floor
    for _ in range(2):  # one that finds nothing new goes no further
        run.pond.drain()
        run.pond.settle()
    assert run.pond.manifest.watermark_floor == floors


def events(*rows: tuple[float, str, int]) -> list[dict[str, Any]]:
    empty = dict.fromkeys(field.name for field in STREAM.columns)
    return [empty | {"ts": round(at * SECOND), "k": k, "v": v} for at, k, v in rows]


def chain(kind: str = "inner") -> list[Query | Join]:
    """Sums of both streams, the two in one window beside each other, and the best of each minute."""
    both = joined("both", side("spend"), side("back"), kind)
    best = over(both, "best", "lw.time", Sliding(60 * SECOND, 60 * SECOND))
    return [sums("spend", "events"), sums("back", "paid"), both, best]


def shown(run: Run, name: str) -> list[Any]:
    return [(row["k"], row["total"]) for row in rows_of(run.sinks[name].table())]


def test_each_level_costs_one_epoch(tmp_path: Path) -> None:
    run = started(tmp_path, chain(), 2)
    run.epoch_of({"events": [events((1, "a", 5), (2, "b", 7), (61, "a", 1))],
                  "paid": [events((3, "a", 1), (4, "c", 2), (65, "a", 1))]})  # fmt: skip
    assert (len(shown(run, "spend")), len(shown(run, "back")), shown(run, "both")) == (2, 2, [])
    assert run.pond.pending
    run.epoch_of({})
    assert (shown(run, "both"), shown(run, "best")) == ([("a", 5)], [])
    run.epoch_of({})
    assert [row["best"] for row in rows_of(run.sinks["best"].table())] == [["a"]]
    run.pond.settle()
    counts = run.answers().counts
    assert [counts[name]["late"] for name in ("both", "best")] == [0, 0]
    # what waits for the slower stream is kept, and no longer
    run.epoch_of({"events": [events(*((at, "a", 1) for at in range(70, 200, 10)))]})
    run.pond.settle()
    assert shown(run, "both") == [("a", 5)]
    run.epoch_of({"paid": [events((81, "a", 3))]})
    run.pond.settle()
    # [60, 70) has closed on both sides, [70, 80) has rows of one
    assert shown(run, "both") == [("a", 5), ("a", 1)]
    run.epoch_of({"paid": [events((1000, "a", 3))], "events": [events((1000, "a", 3))]})
    run.pond.settle()
    logs = {log.id for log in run.pond.plan.joins.logs}
    kept = [section for section in run.pond.manifest.sections.values() if section.group in logs]
    assert sum(section.rows for section in kept) == 0


def test_rows_of_a_join_that_only_others_read_go_when_they_were_read(tmp_path: Path) -> None:
    graph = chain("full")
    read = {name for query in graph for name in query.streams}
    others = [PAID, *(chained_stream(one) for one in graph if one.name in read)]
    run = Run(tmp_path, graph, others=others, keep_rows=False)
    rows = events((1, "a", 5), (61, "b", 7))
    run.epoch_of({"events": [rows], "paid": [rows]})
    run.pond.settle()
    assert run.ledger.counts["both"]["rows"] == 1
    assert run.ledger.counts["best"]["rows"] == 1
    assert "rows" not in run.ledger.live[-1]


@pytest.mark.parametrize("raises", ["spend", "both"])
def test_queries_over_one_that_raised_do_not_advance(tmp_path: Path, raises: str) -> None:
    graph = chain()
    place = [query.name for query in graph].index(raises)
    zero = Column("agg:0", "bigint") if raises == "spend" else Column("left:1", "bigint")
    over_zero = call("divide", (literal(1.0, "double"), call("cast", (zero,), "double")), "double")
    graph[place] = replace(graph[place], output=(*graph[place].output, Named("raises", over_zero)))
    run = started(tmp_path, graph, 2)
    rows = events((1, "a", 5), (11, "a", 0), (12, "b", 4), (61, "b", 7), (200, "b", 7))
    for row in rows:
        run.epoch_of({"events": [[row]], "paid": [[row]]})
    run.pond.settle()
    run.pond.drain()
    assert [*run.answers().quarantined] == [raises]
    assert run.answers().rows["best"] == [], "a minute of which some rows are missing is never answered"


def test_a_join_added_over_others_answers_complete_windows(tmp_path: Path) -> None:
    graph = chain("full")
    run = started(tmp_path, graph[:1], 1)
    run.epoch_of({"events": [events((1, "a", 5), (31, "b", 7))], "paid": [events((1, "a", 5), (35, "b", 7))]})
    run = started(tmp_path, graph, 2)
    rows = events((39, "a", 2), (70, "a", 2), (125, "a", 9), (181, "a", 1))
    run.epoch_of({"events": [rows], "paid": [rows]})
    run.pond.drain()
    both, best = (rows_of(run.sinks[name].table()) for name in ("both", "best"))
    assert [row["w"]["start"].timestamp() for row in best] == [60, 120, 180]
    assert all(row["lt"] is not None and row["rt"] is not None for row in both if row["lt"] != 40 * SECOND - 1)


def test_a_trial_follows_rows_through_joins() -> None:
    graph = chain()
    streams = [STREAM, PAID, *(chained_stream(one) for one in graph[:3])]
    with Trial.of(streams, graph, only="best", instances=2) as trial:
        trial.feed("events", [{"ts": 1, "k": "a", "v": 5}, {"ts": 61 * SECOND, "k": "b", "v": 1}])
        trial.feed("paid", [{"ts": 5, "k": "a", "v": 5}])
        assert trial.rows("both") == []
        trial.advance("paid", to=200 * SECOND)
        assert [row["best"] for row in trial.rows("best")] == [["a"]]
        with pytest.raises(QueryTypeError, match="The events of both are the rows of a query"):
            trial.feed("both", [])
    ordered = [replace(one, columns=(*one.columns, Field("o", "bigint")), order=Order("g", "o", ("0",)))
               for one in (STREAM, PAID)]  # fmt: skip
    rows = [{"ts": i * SECOND, "k": "ab"[i % 2], "v": i, "g": 0, "o": i} for i in range(150)]
    for kind in KINDS:
        changed = chain(kind)
        changed[2] = replace(changed[2], when=Within(-10 * SECOND, 20 * SECOND))
        with Trial.of([*ordered, *streams[2:]], changed) as trial:
            trial.assert_same_for_any_cut({"events": rows, "paid": rows[: 50 * len(kind) // 3]}, cuts=3)
