"""The cost laws of sharing, from the engine's own counters: what is read, kept and computed as queries are added."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from kit.inputs.cases import STREAM, aggregate_of
from kit.judges.answers import Run
from kit.naive.queries.windows import answer
from millpond.arrays import Ints
from millpond.model.aggregates import Aggregate
from millpond.model.expressions import Column, Expression, call, literal
from millpond.model.query import Named, Query
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.plan.groups.build import build_plan, needed_columns
from millpond.runtime.event_log import event_aggregates
from millpond.runtime.event_log.event_aggregates import ResultRows, rows_of
from millpond.runtime.task.counters import WHOLE_POND
from millpond.runtime.windows import closing
from millpond.state.layout.event_log import Events
from millpond.testing.compare import assert_same_rows

SECOND = 1_000_000
AMOUNT = Column("amount", "double")
FUNCTIONS = (
    ("count", None), ("count", AMOUNT), ("sum", AMOUNT), ("avg", AMOUNT), ("min", AMOUNT), ("max", AMOUNT),
    ("stddev_samp", AMOUNT), ("stddev_pop", AMOUNT), ("var_samp", AMOUNT), ("var_pop", AMOUNT),
)  # fmt: skip


def query(name: str, size: int, slide: int, where: Expression | None = None, aggregates: int = 10) -> Query:
    made = tuple(
        Aggregate(function, argument, None, "bigint" if function == "count" else "double")
        for function, argument in FUNCTIONS[:aggregates]
    )
    outputs = [Named("w", Column("window", WINDOW))]
    outputs += [Named(f"a{i}", Column(f"agg:{i}", each.type)) for i, each in enumerate(made)]
    window = Sliding(size * SECOND, slide * SECOND)
    return Query(
        name, STREAM.name, "ts", 0, window, (Column("g", "bigint"),), made, tuple(outputs), where
    )  # fmt: skip


def events(count: int, seconds: int, keys: int = 40) -> list[dict[str, Any]]:
    dice = random.Random(5)
    empty = dict.fromkeys(field.name for field in STREAM.columns)
    return [
        empty | {"ts": i * seconds * SECOND // count, "g": dice.randrange(keys), "amount": dice.randrange(9999) / 100}
        for i in range(count)
    ]


def run(folder: Path, queries: list[Query], rows: list[dict[str, Any]], epochs: int = 4) -> Run:
    made = Run(folder, queries, keep_rows=False)
    step = len(rows) // epochs
    for start in range(0, len(rows), step):
        made.epoch([rows[start : start + step]])
    return made


def state_bytes(made: Run) -> int:
    live = made.pond.manifest.sections.values()
    return sum(section.size for section in live if section.kind in ("segment", "keys"))


def test_what_is_read_does_not_grow_with_the_queries(tmp_path: Path) -> None:
    rows = events(400, 100)
    read = {}
    for count in (1, 10, 100, 1000):
        queries = [
            query(f"q{i}", 10 + 10 * (i % 7), 10, call("gt", (AMOUNT, literal(float(i % 100), "double")), "boolean"), 3)
            for i in range(count)
        ]
        assert needed_columns(build_plan(queries), STREAM.name) == ("amount", "g", "ts")
        read[count] = run(tmp_path / str(count), queries, rows).ledger.counts[WHOLE_POND]["bytes_read"]
    assert len(set(read.values())) == 1, read


def test_equal_measures_filters_and_edges_exist_once() -> None:
    positive = call("gt", (AMOUNT, literal(0.0, "double")), "boolean")
    queries = [query(f"q{i}", 10 * (i + 1), 10, positive) for i in range(10)]
    (group,) = build_plan(queries).groups
    # presence, count of amounts, sum, squares, minimum, maximum: ten aggregates of ten queries need no more
    assert len(group.measures) == 6
    assert len({measure.filter for measure in group.measures}) == 2
    assert len(group.windows) == 10


def test_ten_windows_by_ten_aggregates_remember_little_more_than_the_largest_alone(tmp_path: Path) -> None:
    rows = events(20_000, 1200)
    queries = [query(f"q{i}", 60 * (i + 1), 60) for i in range(10)]
    shared = state_bytes(run(tmp_path / "shared", queries, rows))
    alone = state_bytes(run(tmp_path / "alone", queries[-1:], rows))
    assert shared <= 1.3 * alone


def exact_query(name: str, size: int, slide: int) -> Query:
    """Every function of the exact class, over doubles of all sizes, integers and decimals."""
    arguments = [Column("f", "double"), Column("v", "int"), Column("p", "decimal(10,2)"), Column("d", "decimal(38,6)")]
    functions = ("count", "sum", "avg", "min", "max", "var_samp", "stddev_pop")
    made = tuple(aggregate_of(function, argument) for argument in arguments for function in functions)
    outputs = [Named("w", Column("window", WINDOW)), Named("g", Column("key:0", "bigint"))]
    outputs += [Named(f"a{i}", Column(f"agg:{i}", each.type)) for i, each in enumerate(made)]
    return msgspec.structs.replace(query(name, size, slide), aggregates=made, output=tuple(outputs))


def exact_events() -> list[dict[str, Any]]:
    """Doubles whose sums depend on their order, integers, decimals of both signs; some are NULL."""
    dice = random.Random(8)
    return [
        row | {
            "f": dice.choice((dice.gauss(0, 1), dice.gauss(0, 1) * 1e16, 0.1, 1e-9)),
            "v": dice.choice((None, dice.randrange(-999, 999))),
            "p": dice.choice((None, Decimal(dice.randrange(-99999, 99999)).scaleb(-2))),
            "d": Decimal(f"{dice.randrange(-(10**32), 10**32)}E-6"),
        }
        for row in events(900, 300, keys=4)
    ]  # fmt: skip


def disordered(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The same events in six batches, up to 15 s later than others of their time."""
    dice = random.Random(9)
    mixed = sorted(rows, key=lambda row: row["ts"] + dice.randrange(15 * SECOND))
    return [mixed[start : start + len(rows) // 6] for start in range(0, len(rows), len(rows) // 6)]


NEIGHBOURS = {
    # windows of 7 s cut time elsewhere, so the same events lie in more slices
    "seven": exact_query("other", 7, 7),
    # what is late for one is not for the other: slices of another class
    "patient": msgspec.structs.replace(exact_query("other", 13, 13), delay_us=20 * SECOND),
    "no_delay": msgspec.structs.replace(exact_query("other", 9, 3), delay_us=0),
    # answered from tiles
    "long": exact_query("other", 78, 2),
}


@pytest.mark.parametrize(("name", "kept_window"), [*((name, (60, 20)) for name in NEIGHBOURS), ("patient", (80, 2))])
def test_adding_and_dropping_another_query_changes_no_bit(
    name: str, kept_window: tuple[int, int], tmp_path: Path
) -> None:
    #   epochs   0 1 | 2 3 | 4 5      a new pond on the same folder at each bar
    #   kept     --------------      open across both bars
    #   other        -----           begins at its first window after all events seen
    batches, other = disordered(exact_events()), NEIGHBOURS[name]
    kept = msgspec.structs.replace(exact_query("kept", *kept_window), delay_us=8 * SECOND)
    alone, both = [kept], [kept, other]
    patterns = [alone], [both], [alone, both, alone], [both, alone, both]
    answers = []
    for i, turns in enumerate(patterns):
        share = len(batches) // len(turns)
        for turn, queries in enumerate(turns):
            made = Run(tmp_path / str(i), queries, instances=2)
            for batch in batches[turn * share : (turn + 1) * share]:
                made.epoch([batch])
        made.pond.drain()
        found = made.answers()
        assert not found.quarantined
        answers.append(sorted(map(repr, found.rows["kept"])))
    assert len(answers[0]) > 50
    assert [other == answers[0] for other in answers] == [True] * len(patterns)


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_a_query_added_to_a_full_pond_answers_every_window_after_what_was_seen(name: str, tmp_path: Path) -> None:
    batches, kept, other = disordered(exact_events()), exact_query("kept", 60, 20), NEIGHBOURS[name]
    first = Run(tmp_path, [kept])
    for batch in batches[:2]:
        first.epoch([batch])
    second = Run(tmp_path, [kept, other])
    Run(tmp_path, [kept, other])  # a restart forgets nothing of it
    second = Run(tmp_path, [kept, other])
    for batch in batches[2:]:
        second.epoch([batch])
    second.pond.drain()
    since = max(row["ts"] for batch in batches[:2] for row in batch) + 1
    whole = answer(other, batches, drained=True)
    expected = [row for row in whole if row["w"]["start"] >= since]
    assert 0 < len(expected) < len(whole)
    assert_same_rows(expected, second.answers().rows["other"], about=name)


def test_sixteen_patterns_over_events_keep_them_once(tmp_path: Path) -> None:
    """Median, distinct values, a list and a mode over four windows each: the state of the longest one alone."""
    functions = {"percentile": "double", "count_distinct": "bigint", "collect_list": "array<double>", "mode": "double"}
    half = (literal(0.5, "double"),)
    patterns = []
    for size in (60, 120, 300, 600):
        for function, kind in functions.items():
            aggregate = Aggregate(function, AMOUNT, None, kind, parameters=half if function == "percentile" else UNSET)
            plain = query(f"{function}{size}", size, 60, aggregates=1)
            output = (Named("a", Column("agg:0", kind)),)
            patterns.append(msgspec.structs.replace(plain, aggregates=(aggregate,), output=output))
    rows = events(20_000, 1200)
    one = next(pattern for pattern in patterns if pattern.name == "percentile600")
    shared, alone = (log_bytes(run(tmp_path / name, some, rows)) for name, some in (("all", patterns), ("one", [one])))
    assert 0 < shared <= 1.3 * alone


def test_percentiles_of_bins_take_room_by_bins_not_by_events(tmp_path: Path) -> None:
    """Each event ten times: the same tallies, a few for each bin that occurs, in windows of any size."""
    half = (literal(0.5, "double"),)
    patterns = []
    for size, slide, accuracy in ((60, 60, 10), (300, 60, 100), (600, 60, 100)):
        percentile = Aggregate("approx_percentile", AMOUNT, None, "double", parameters=half, accuracy=accuracy)
        output = (Named("a", Column("agg:0", "double")),)
        plain = query(f"q{size}", size, slide)
        patterns.append(msgspec.structs.replace(plain, aggregates=(percentile,), output=output))
    kept = {}
    for times in (1, 10):
        rows = [event for event in events(38_400, 1200, 1) for _ in range(times)]
        made = run(tmp_path / str(times), patterns, rows, 24)
        live = [one for one in made.pond.manifest.sections.values() if one.kind == "tallies"]
        assert not [one for one in made.pond.manifest.sections.values() if one.kind == "events"]
        kept[times] = sum(one.rows for one in live), sum(one.size for one in live)
    # 11 slices are needed, of a key whose amounts lie in 14 powers of two; some sections are not merged yet
    assert 0 < kept[1][0] == kept[10][0] <= 12 * 14 * 64
    assert kept[10][1] <= 20 * kept[10][0] + 12 * 4096


def log_bytes(made: Run) -> int:
    live = made.pond.manifest.sections.values()
    return state_bytes(made) + sum(section.size for section in live if section.kind == "events")


def test_state_stays_bounded_over_three_hundred_epochs(tmp_path: Path) -> None:
    made = run(tmp_path, [query("q", 60, 10, aggregates=6)], events(15_000, 3000), epochs=300)
    sizes = made.ledger.cell_bytes
    live = [kinds.get("segment", 0) for kinds in made.ledger.live]
    # a window's worth of epochs is six; segments of levels 0 and 1, and whatever the last snapshot left
    assert max(live[100:]) <= 24
    assert max(sizes[200:]) <= 1.5 * max(sizes[50:150])


def test_events_are_handed_to_few_windows_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that slides often holds an event many times: not all of them are answered together."""
    median = Aggregate("percentile", AMOUNT, None, "double", parameters=(literal(0.5, "double"),))
    aggregate = msgspec.structs.replace(
        query("q", 60, 1), aggregates=(median,), output=(Named("a", Column("agg:0", "double")),)
    )
    rows, found, handed = events(2000, 200), [], []

    def spied(given: Events, rows_: ResultRows) -> tuple[Ints, Ints]:
        index, owners = rows_of(given, rows_)
        handed.append(len(index))
        return index, owners

    monkeypatch.setattr(event_aggregates, "rows_of", spied)
    for i, most in enumerate((1 << 24, 3000)):
        monkeypatch.setattr(closing, "EVENTS_AT_ONCE", most)
        handed.clear()
        made = Run(tmp_path / str(i), [aggregate])
        for start in range(0, 2000, 500):
            made.epoch([rows[start : start + 500]])
        made.pond.drain()
        found.append(sorted(row["a"] for row in made.answers().rows["q"]))
        assert (max(handed) <= 3000) == (i == 1)
    assert len(found[0]) > 5000
    assert found[0] == found[1]
