"""Joins of two streams emit the rows of two plain loops, each once, when it is final, for any cut of the input."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.inputs.cases import EVERYTHING, SECOND, STREAM, condition
from kit.inputs.examples import examples, seeds
from kit.judges.answers import Run, dealt, table_of
from kit.naive.expressions import Raised
from kit.naive.queries import join as naive_join
from millpond.control.diagnose.causes import explain_why
from millpond.control.diagnose.facts import find_facts
from millpond.control.wiring.pond_reader import read_truth
from millpond.errors import ChangeRefused, QueryTypeError, UnsupportedQuery
from millpond.kernels.columns import from_arrow
from millpond.kernels.evaluate import Evaluator
from millpond.model.endpoints import Sink
from millpond.model.expressions import Call, Column, Expression, call, literal
from millpond.model.join import ANTI, KINDS, LEFT, RIGHT, Join, Side, Within
from millpond.model.query import Named
from millpond.model.selection import Selection
from millpond.model.spec import from_json, to_json
from millpond.model.stream import Order, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.plan.groups.build import build_plan
from millpond.plan.groups.event_log import LogPlan
from millpond.plan.groups.joins import COLUMN, EVERY, ONE, ROW
from millpond.plan.options.output_modes import BY_EVENT, BY_JOIN, with_late_by
from millpond.reconfigure import validate
from millpond.reconfigure.validate import KnownPond
from millpond.runtime.aggregates.partials import Rows
from millpond.runtime.event_log.event_log import EventLog
from millpond.runtime.event_log.select_events import LoggedRows, value_name
from millpond.runtime.fold import fold
from millpond.runtime.joins import fold_joins, merge_join
from millpond.runtime.joins.keyless_grid import dealt_events
from millpond.state.ports.files import IDENTITY
from millpond.testing import Trial
from millpond.testing.compare import assert_same_rows, rows_of

PROPERTY = settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
PAID = replace(STREAM, name="paid")
K, G, F, V, TS = (
    Column(name, kind) for name, kind in
    (("k", "string"), ("g", "bigint"), ("f", "double"), ("v", "int"), ("ts", "timestamp"))
)  # fmt: skip
VALUES = (K, G, V, TS)
Batch = dict[str, list[dict[str, Any]]]


def of(side: str, i: int) -> Column:
    return Column(f"{side}:{i}", VALUES[i].type)


def random_events(dice: random.Random, count: int, start: int) -> list[dict[str, Any]]:
    return [
        {
            "k": dice.choice(("a", "b", "ä", "", None)),
            "g": dice.choice((1, 2, 2**62, None)),
            "f": dice.choice((0.0, -0.0, float("nan"), 1.5, None)),
            "v": dice.choice((0, 1, 5, 2**31 - 1, None)),
            "amount": dice.choice((0.0, 1.0, None)),
            "p": None,
            "d": None,
            "flag": dice.choice((True, False, None)),
            "ts": None if not dice.randint(0, 15) else (start + dice.randint(-12, 12)) * SECOND,
        }
        for _ in range(count)
    ]


def random_epochs(dice: random.Random, events: int) -> list[Batch]:
    """Both streams move on, not equally fast, with late events on both; some epochs have none of one."""
    found, at = [], {"events": 0, "paid": dice.randint(-20, 20)}
    for _ in range(dice.randint(1, 5)):
        batch: Batch = {}
        for name in at:
            at[name] += dice.randint(-5, 20)
            if dice.randint(0, 4):
                batch[name] = random_events(dice, dice.randint(0, events), at[name])
        found.append(batch)
    return found


def random_join(dice: random.Random, name: str = "j", raising: bool = False) -> Join:
    keys = dice.choice(((K,), (K,), (G,), (F,), (K, G), ()))
    size = dice.choice((5, 10)) * SECOND
    bound = dice.randint(-12, 12) * SECOND
    when: Within | Sliding = dice.choice((
        Within(bound, bound + dice.randint(0, 15) * SECOND),
        Sliding(size, dice.choice((size, size // 5 * 2, 5 * SECOND)), dice.choice((0, SECOND))),
    ))  # fmt: skip
    sides = [
        Side(stream, "ts", dice.choice((0, 5, 30)) * SECOND, keys, VALUES,
             condition(dice, EVERYTHING) if dice.randint(0, 1) else None)
        for stream in ("events", dice.choice(("paid", "paid", "events")))
    ]  # fmt: skip
    output = [Named(f"{side}{i}", of(side, i)) for side in (LEFT, RIGHT) for i in range(len(VALUES))]
    if isinstance(when, Sliding):
        output += [Named("w", Column("window", WINDOW)), Named("lw", Column("left:window", WINDOW))]
        output.append(Named("re", Column("right:window.end", "timestamp")))
    total = call("add", (of(LEFT, 1), of(RIGHT, 1)), "bigint")
    conditions: list[Expression | None] = [
        None,
        call("lt", (of(LEFT, 2), of(RIGHT, 2)), "boolean"),
        call("or", (call("same", (of(LEFT, 0), of(RIGHT, 0)), "boolean"), call("isnull", (of(RIGHT, 2),), "boolean"))
             , "boolean"),
        *((call("gt", (total, literal(2, "bigint")), "boolean"),) if raising else ()),
    ]  # fmt: skip
    late_by = dice.choice((BY_EVENT, BY_EVENT, BY_JOIN))
    having = call("isnull", (of(dice.choice((LEFT, RIGHT)), 2),), "boolean")
    made = Join(
        name, sides[0], sides[1], dice.choice(KINDS), when, tuple(output), dice.choice(conditions),
        having if not dice.randint(0, 4) else None,
    )  # fmt: skip
    judged = with_late_by(made, late_by)
    assert isinstance(judged, Join)
    return judged


def feed(run: Run, batch: Batch, seed: int) -> None:
    deal = dealt(seed)
    run.pond.in_one_task = seed % 3 == 1
    run.epoch_of({name: deal(rows) for name, rows in batch.items()})


def started(folder: Path, joins: list[Join], instances: int) -> Run:
    return Run(folder, joins, instances, others=[PAID])


def rows_so_far(run: Run, name: str) -> list[dict[str, Any]]:
    return rows_of(run.sinks[name].table())


def is_given_up(run: Run, join: Join, epochs: list[Batch], until: float) -> bool:
    """Where the twin raises the join is quarantined, and only there."""
    try:
        naive_join.rows(join, naive_join.judged(join, epochs).taken, until)
    except Raised:
        return True
    assert join.name not in run.pond.manifest.quarantined
    return False


@PROPERTY
@given(seed=st.integers(0, 10**6), events=st.integers(0, 12), instances=st.integers(1, 3))
def test_rows_are_those_of_the_naive_twin(tmp_path_factory: Any, seed: int, events: int, instances: int) -> None:
    """After every epoch what has left is what is final; in the end it is everything, and every event has one fate."""
    dice = random.Random(seed)
    joins = [random_join(dice, f"j{i}") for i in range(3)]
    epochs, folder = random_epochs(dice, events), tmp_path_factory.mktemp("pond")
    run = started(folder, joins, instances)
    for i, batch in enumerate(epochs):
        if dice.randint(0, 3) == 0:  # a new driver, on what the log says
            run = started(folder, joins, instances)
        feed(run, batch, seed + i)
        for join in joins:
            mark = naive_join.mark_us(join, epochs[: i + 1])
            taken = naive_join.judged(join, epochs[: i + 1]).taken
            expected = [] if mark is None else naive_join.rows(join, taken, mark)
            assert_same_rows(expected, rows_so_far(run, join.name), about=str(join))
    run.pond.drain()
    for join in joins:
        judged = naive_join.judged(join, epochs)
        expected = naive_join.rows(join, judged.taken)
        assert_same_rows(expected, rows_so_far(run, join.name), about=str(join))
    assert not run.pond.manifest.quarantined


def side(stream: str, delay: int = 0, where: Expression | None = None, keys: tuple[Column, ...] = (K,)) -> Side:
    return Side(stream, "ts", delay * SECOND, keys, VALUES, where)


def near(kind: str = "inner", lower: int = -5, upper: int = 10, **more: Any) -> Join:
    output = tuple(Named(f"{name}_{i}", of(name, i)) for name in (LEFT, RIGHT) for i in (0, 2))
    sides = {"left": side("events"), "right": side("paid")} | more
    when = Within(lower * SECOND, upper * SECOND)
    return Join(sides.pop("name", "j"), sides.pop("left"), sides.pop("right"), kind, when, output, **sides)


def event(k: str | None, at: float, v: int = 0) -> dict[str, Any]:
    return dict.fromkeys(("g", "f", "amount", "flag", "p", "d")) | {"k": k, "v": v, "ts": round(at * SECOND)}


@pytest.mark.parametrize("seed", seeds(0, 4))
def test_small_runs_colliding_hashes_and_merged_sections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:  # fmt: skip
    """For any cut of pairs into runs and of events into sections; keys with one hash are distinguished by values."""
    monkeypatch.setattr(merge_join, "PAIRS_AT_ONCE", 3)
    monkeypatch.setattr(fold, "FAN_IN", 2)
    monkeypatch.setattr(EventLog, "most_rows", 8 if seed % 3 else None)
    hashes = fold_joins.hashes_of
    monkeypatch.setattr(fold_joins, "hashes_of", lambda keys, rows: hashes(keys, rows) % np.uint64(2))
    dice = random.Random(seed)
    joins = [random_join(dice, f"j{i}") for i in range(4)]
    epochs = [batch for _ in range(3) for batch in random_epochs(dice, 8)]
    run = started(tmp_path, joins, 2)
    for i, batch in enumerate(epochs):
        feed(run, batch, seed + i)
    run.pond.drain()
    for join in joins:
        judged = naive_join.judged(join, epochs)
        assert_same_rows(naive_join.rows(join, judged.taken), rows_so_far(run, join.name), about=str(join))
        counted = run.ledger.counts.get(join.name, {})
        assert {fate: counted.get(fate, 0) for fate in naive_join.FATES} == judged.counts


def test_when_rows_leave(tmp_path: Path) -> None:
    """A pair when both watermarks are past it; an event without a partner when none can come any more."""
    run = started(tmp_path, [near("full", -5, 10)], 1)
    run.epoch_of({"events": [[event("a", 100), event("b", 100)]], "paid": [[event("a", 104)]]})
    assert rows_so_far(run, "j") == [], "the stream of the left is at 100, the pair is final at 104"
    run.epoch_of({"events": [[event("z", 104)]]})
    pair = {"left_0": "a", "left_2": 0, "right_0": "a", "right_2": 0}
    assert rows_so_far(run, "j") == [pair]
    run.epoch_of({"events": [[event("z", 120)]], "paid": [[event("y", 109.999999)]]})
    assert rows_so_far(run, "j") == [pair], "a partner of b may still come at 110"
    run.epoch_of({"paid": [[event("b", 110)]]})
    assert [row["right_0"] for row in rows_so_far(run, "j") if row["left_0"] == "b"] == ["b"]
    run.epoch_of({"paid": [[event("y", 114.999998)]]})
    assert not [row for row in rows_so_far(run, "j") if row["right_0"] == "y"], "a partner may come at 114.999999"
    run.epoch_of({"paid": [[event("y", 130)]]})
    assert [row["left_0"] for row in rows_so_far(run, "j") if row["right_0"] == "y"] == [None, None]


def test_events_without_possible_partners_are_forgotten(tmp_path: Path) -> None:
    """What is kept does not grow with the stream, although one key never pauses and the others never return."""
    run = started(tmp_path, [near("full"), replace(near("left"), name="l", left=side("events", 20))], 2)
    for i in range(60):
        for stream in ("events", "paid"):
            run.epoch_of({stream: [[event("a", i * 10), event(f"only {i}", i * 10 + 1)]]})
    live = [kinds.get("events", 0) for kinds in run.ledger.live]
    assert max(live[60:]) <= max(live[20:60]) <= 60
    kept = sum(section.rows for section in run.pond.manifest.sections.values() if section.kind == "events")
    assert kept < 80


def test_joins_share_what_they_keep(tmp_path: Path) -> None:
    """Twenty joins of the same sides keep and move each event once."""
    moved = []
    for copies in (1, 20):
        joins = [replace(near(), name=f"j{i}", when=Within(-i * SECOND, 10 * SECOND)) for i in range(copies)]
        run = started(tmp_path / str(copies), joins, 1)
        rows = [event(f"k{i % 400}", i / 100, i) for i in range(4_000)]  # each meets a few
        run.epoch_of({"events": [rows], "paid": [rows]})
        moved.append(run.ledger.counts["*"]["bytes_moved"])
        assert run.ledger.live[-1]["events"] == 2
    assert moved[1] < 1.1 * moved[0]


def test_a_join_whose_condition_raises_is_quarantined_alone(tmp_path: Path) -> None:
    total = Call("add", (of(LEFT, 2), of(RIGHT, 2)), "int")
    raising = replace(near(), name="raising", condition=call("gt", (total, literal(0, "int")), "boolean"))
    run = started(tmp_path, [near(), raising], 1)
    run.epoch_of({"events": [[event("a", 0, 2**31 - 1)]], "paid": [[event("a", 0, 1)]]})
    run.pond.drain()
    assert "[MP-OVERFLOW]" in run.pond.manifest.quarantined["raising"]
    assert len(rows_so_far(run, "j")) == 1
    assert rows_so_far(run, "raising") == []


def test_a_join_without_keys_has_a_budget(tmp_path: Path) -> None:
    sides = {"left": side("events", keys=()), "right": side("paid", keys=())}
    few, many = (replace(near(**sides), name=name, most_pairs=most) for name, most in (("few", 99), ("many", 100)))
    run = started(tmp_path, [few, many], 1)
    rows = [event(f"k{i}", 0) for i in range(10)]
    run.epoch_of({"events": [rows], "paid": [rows]})
    run.pond.drain()
    assert "[MP-PAIRS] The join 'few' has no key and would try 100 pairs" in run.pond.manifest.quarantined["few"]
    assert len(rows_so_far(run, "many")) == 100
    assert "many" not in run.pond.manifest.quarantined


def keyless(kind: str, **more: Any) -> Join:
    return near(kind, left=side("events", keys=()), right=side("paid", keys=()), **more)


@PROPERTY
@given(
    seed=st.integers(0, 10**6), events=st.integers(0, 12), instances=st.integers(1, 6), deal=st.integers(0, 10**6),
    cut=st.integers(0, 10**6),
)  # fmt: skip
def test_joins_without_keys_on_any_grid(
    tmp_path_factory: Any, seed: int, events: int, instances: int, deal: int, cut: int
) -> None:  # fmt: skip
    """Every pair meets on one instance, and an event without a partner leaves once, wherever input is cut."""
    dice = random.Random(seed)
    sides = {"left": dice.choice(("events", "paid")), "right": dice.choice(("events", "paid"))}
    joins = []
    for kind in KINDS:
        join = random_join(dice, kind)
        of_sides = {name: replace(join.sides[name], stream=stream, keys=()) for name, stream in sides.items()}
        made = with_late_by(replace(join, kind=kind, **of_sides), join.late_by or BY_EVENT)
        assert isinstance(made, Join)
        joins.append(made)
    epochs = random_epochs(dice, events)
    run = started(tmp_path_factory.mktemp("pond"), joins, instances)
    for i, batch in enumerate(epochs):
        if random.Random(cut + i).randint(0, 3) == 0:
            run.epoch_of({})
        feed(run, batch, deal + i)
    run.pond.drain()
    for join in joins:
        expected = naive_join.rows(join, naive_join.judged(join, epochs).taken)
        assert_same_rows(expected, rows_so_far(run, join.name), about=f"{join} on {instances} instances")
        counted = run.ledger.counts.get(join.name, {})
        assert {fate: counted.get(fate, 0) for fate in naive_join.FATES} == naive_join.judged(join, epochs).counts


def test_a_repeated_gather_deals_events_out_as_before() -> None:
    """By their values: not by how they are cut into batches, nor by the order in which they come."""
    rows = [event(f"k{i % 17}", i % 5, i) for i in range(300)]
    kept = LogPlan((K, V), (), True)
    found = []
    for order in (rows, rows[::-1]):
        columns = {v.name: from_arrow(table_of(order, STREAM).column(v.name).combine_chunks(), v.type) for v in (K, V)}
        times = np.array([row["ts"] for row in order])
        every = Rows(Evaluator(columns, len(order)), np.ones(len(order), bool))
        logged = LoggedRows(kept, every, times, np.zeros(len(order), np.int64), (None, None))
        for how in (ROW, COLUMN, ONE, EVERY):
            held = dealt_events(kept, how, logged, 6)
            found.append({i: sorted(some.columns[value_name(V)].to_pylist()) for i, some in held})
    half = len(found) // 2
    assert found[:half] == found[half:]
    copies = [sum(map(len, some.values())) / len(rows) for some in found[:half]]
    assert copies == [3, 2, 1, 6], "of a grid of two rows and three columns"


@pytest.mark.parametrize(("kind", "share"), [("inner", 1 / 2), ("left", 5 / 8), ("right", 5 / 8), ("full", 1)])
def test_four_instances_keep_less_each(tmp_path: Path, kind: str, share: float) -> None:
    """The law of the grid: of n events a side an instance keeps n / rows + n / columns, and no pair is tried twice."""
    rows = [event(f"k{i}", i / 100, i) for i in range(2_000)]
    narrow = replace(keyless(kind, most_pairs=10**9), when=Within(0, SECOND // 50))
    most = {}
    for instances in (1, 4):
        run = started(tmp_path / str(instances), [narrow], instances)
        run.epoch_of({"events": [rows[:1000], rows[1000:]], "paid": [rows]})
        size: dict[int, int] = {}
        for section in run.pond.manifest.sections.values():
            if section.kind == "events":
                size[section.instance] = size.get(section.instance, 0) + section.size
        most[instances] = max(size.values())
    assert most[4] / most[1] == pytest.approx(share, rel=0.15)


def test_the_budget_of_pairs_is_that_of_an_instance(tmp_path: Path) -> None:
    rows = [event(f"k{i}", 0, i) for i in range(40)]
    run = started(tmp_path, [replace(keyless("inner"), name="j", most_pairs=1_000)], 4)
    run.epoch_of({"events": [rows], "paid": [rows]})
    run.pond.drain()
    assert len(rows_so_far(run, "j")) == 1_600
    assert not run.pond.manifest.quarantined


def test_a_join_that_is_added_answers_events_from_then_on(tmp_path: Path) -> None:
    run = started(tmp_path, [near("full")], 1)
    run.epoch_of({"events": [[event("a", 100)]], "paid": [[event("a", 99)]]})
    added = replace(near("full"), name="added")
    run = started(tmp_path, [near("full"), added], 1)
    run.epoch_of({"events": [[event("a", 100.5), event("b", 103)]], "paid": [[event("a", 100)]]})
    run.pond.drain()
    assert len(rows_so_far(run, "j")) == 5
    found = sorted((row["left_0"] or "", row["right_0"] or "") for row in rows_so_far(run, "added"))
    assert found == [("a", ""), ("b", "")], "the events at 99 and 100 are of before"


def test_a_stream_that_never_spoke_is_drained_too(tmp_path: Path) -> None:
    run = started(tmp_path, [near("left")], 2)
    run.epoch_of({"events": [[event("a", 5), event(None, 6)]]})
    assert rows_so_far(run, "j") == []
    run.pond.drain()
    assert sorted(str(row["left_0"]) for row in rows_so_far(run, "j")) == ["None", "a"]


def test_neighbours_change_no_answer(tmp_path: Path) -> None:
    """A selection and other joins on the same streams, and other instances."""
    dice = random.Random(3)
    joins = [random_join(dice, f"j{i}") for i in range(4)]
    epochs = random_epochs(dice, 12)
    every = Selection("all", "events", (Named("k", K),))
    among = Run(tmp_path / "among", [*joins, every], 3, others=[PAID])
    alone = [started(tmp_path / join.name, [join], 1) for join in joins]
    for i, batch in enumerate(epochs):
        for run in (among, *alone):
            feed(run, batch, i)
    for run in (among, *alone):
        run.pond.drain()
    for join, run in zip(joins, alone, strict=True):
        assert_same_rows(rows_so_far(run, join.name), rows_so_far(among, join.name), about=str(join))


def test_no_cut_changes_the_answer_of_streams_with_an_order(tmp_path: Path) -> None:
    """Also what is late, on each side for its own delay, is then a property of the event."""
    ordered = [Stream(one.name, one.columns, order=Order("v", "g", ("0", "1"))) for one in (STREAM, PAID)]
    joins = [near(kind, name=kind, left=side("events", 4), right=side("paid", 9)) for kind in KINDS]
    joins.append(replace(joins[3], name="windows", when=Sliding(10 * SECOND, 5 * SECOND)))
    dice = random.Random(7)
    fed_events: dict[str, list[dict[str, Any]]] = {}
    for stream in ordered:
        fed_events[stream.name] = [
            event(dice.choice("abc"), i / 4 + dice.randint(-8, 8), dice.randint(0, 1)) | {"g": i} for i in range(400)
        ]
    answers = []
    for cuts in (1, 4, 23):
        run = Run(tmp_path / str(cuts), joins, cuts % 3 + 1, stream=ordered[0], others=ordered[1:])
        for i in range(cuts):
            batch = {}
            for name, rows in fed_events.items():
                some = rows[len(rows) * i // cuts : len(rows) * (i + 1) // cuts]
                batch[name] = [[row for row in some if row["v"] == part] for part in (i % 2, 1 - i % 2)]
            run.epoch_of(batch)
        run.pond.drain()
        answers.append({join.name: rows_so_far(run, join.name) for join in joins})
        assert run.ledger.counts["inner"]["late"] > 0
    for other in answers[1:]:
        for join in joins:
            assert_same_rows(answers[0][join.name], other[join.name], about=join.name)
            assert len(other[join.name]) > 100 or join.kind == ANTI  # nearly all events have a partner


@pytest.mark.parametrize("seed", seeds(0, 4))
def test_an_event_is_taken_while_either_side_waits_for_it(tmp_path: Path, seed: int) -> None:
    """By `join`, with and without an order: each event as the twin judges it, and fewer are late than by event."""
    dice, order = random.Random(seed), Order("v", "g", ("0",)) if seed % 2 else None
    streams = [Stream(one.name, one.columns, order=order) for one in (STREAM, PAID)]
    joins = [
        with_late_by(near(kind, name=f"{kind} {rule}", left=side("events", 4), right=side("paid", 9)), rule)
        for kind in KINDS for rule in (BY_EVENT, BY_JOIN)
    ]  # fmt: skip
    run, epochs, at = Run(tmp_path, joins, 2, stream=streams[0], others=streams[1:]), list[Batch](), [0, 0]
    for i in range(12):
        batch: Batch = {}
        for j, stream in enumerate(streams):
            at[j] += dice.randint(0, 12)
            times = [at[j] + dice.randint(-20, 4) for _ in range(dice.randint(0, 8))]
            batch[stream.name] = [event(dice.choice("ab"), t, 0) | {"g": 8 * i + n} for n, t in enumerate(times)]
        epochs.append(batch)
        run.epoch_of({name: [rows] for name, rows in batch.items()})
    run.pond.drain()
    late = {}
    for join in joins:
        assert isinstance(join, Join)
        judged = naive_join.judged(join, epochs, ordered=order is not None)
        assert_same_rows(naive_join.rows(join, judged.taken), rows_so_far(run, join.name), about=str(join))
        counts = run.ledger.counts[join.name]
        assert {fate: counts.get(fate, 0) for fate in naive_join.FATES} == judged.counts
        late[join.name] = judged.counts["late"]
    assert 0 < late["inner join"] < late["inner event"]


def test_a_stream_joined_with_itself_waits_for_the_longer_delay() -> None:
    own = near(left=side("events", 4), right=side("events", 9))
    made = with_late_by(own, BY_JOIN)
    assert isinstance(made, Join)
    assert {one.delay_us for one in made.sides.values()} == {9 * SECOND}
    assert not made.other_marks
    with pytest.raises(UnsupportedQuery, match=r"Use 'late\.by' = 'join'"):
        with_late_by(own, "window")
    with pytest.raises(UnsupportedQuery, match="is no join"):
        with_late_by(Selection("all", "events", (Named("k", K),)), BY_JOIN)


def test_the_spec_remembers_joins(tmp_path: Path) -> None:
    run = started(tmp_path, [near("full")], 1)
    spec = from_json(run.pond.manifest.spec)
    assert [query.name for query in spec.all_queries] == ["j"]
    assert to_json(from_json(to_json(spec))) == to_json(spec)
    other = replace(near("full"), when=Within(0, 1))
    assert spec.meaning != type(spec).of(spec.streams, [other], 1, spec.buckets).meaning


def test_what_is_no_join_is_refused() -> None:
    with pytest.raises(QueryTypeError, match="finds no pair"):
        Within(1, 0)
    with pytest.raises(QueryTypeError, match="kind cross"):
        near("cross")
    with pytest.raises(QueryTypeError, match="keys of equal types"):
        near(left=side("events", keys=(G,)))
    with pytest.raises(UnsupportedQuery, match="as the event time of events"):
        build_plan([near(), replace(near(), name="k", left=replace(side("events"), event_time="at"))])


def test_a_trial_of_a_join(tmp_path: Path) -> None:
    """Users test joins as they test other queries: rows in, virtual time, rows out."""
    # a stream without an order is late by the epoch, so for any cut only times that grow are the same
    times = {"events": [1, 2, 4, 7], "paid": [0, 3, 4, 9]}
    fed_events = {name: [event("ab"[i % 2], at, i) for i, at in enumerate(some)] for name, some in times.items()}
    with Trial.of([STREAM, PAID], [near("left")]) as trial:
        for name, rows in fed_events.items():
            trial.feed(name, rows)
        found = [(row["left_2"], row["right_2"]) for row in trial.rows("j")]
        assert found == [(0, 0), (0, 2), (2, 0), (2, 2), (1, 1), (3, 1)]
        trial.restart()
        trial.advance("events", 9 * SECOND)
        assert [(row["left_2"], row["right_2"]) for row in trial.rows("j")] == [(1, 3), (3, 3)]
        assert trial.fates("j") == {"read": 8, "applied": 8, "late": 0, "dead": 0, "filtered": 0}
        with pytest.raises(UnsupportedQuery, match="counted only"):
            trial.late("j")
    with Trial.of([STREAM, PAID], [near("full")]) as trial:
        trial.assert_same_for_any_cut(fed_events, cuts=4)


def test_why_a_join_is_silent(tmp_path: Path) -> None:
    run = started(tmp_path, [replace(near("left"), sink=Sink("memory"))], 1)
    (tmp_path / IDENTITY).write_text("local")
    run.epoch_of({"events": [[event("a", 5)]]})
    truth, spec = read_truth(tmp_path)
    [waiting] = [cause for cause in explain_why(find_facts(truth, spec, "j")).causes if cause.code == "join-open"]
    assert waiting.text == "No event of paid was seen, so no row of the join can be final."
    run.epoch_of({"paid": [[event("b", 2)]]})
    truth, spec = read_truth(tmp_path)
    [waiting] = [cause for cause in explain_why(find_facts(truth, spec, "j")).causes if cause.code == "join-open"]
    assert "that of paid is behind at 1970-01-01 00:00:02Z" in waiting.text
    run.epoch_of({"events": [[event("a", 4)]]})
    truth, spec = read_truth(tmp_path)
    [late] = [cause for cause in explain_why(find_facts(truth, spec, "j")).causes if cause.code == "all-late"]
    assert "A longer DELAY or 'late.by' = 'join' waits for more" in late.text


@pytest.mark.parametrize("seed", seeds(0, 4))
def test_a_join_is_altered_at_the_next_row(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    epochs = [batch for _ in range(4) for batch in random_epochs(dice, 12)]
    old = replace(random_join(dice), kind=KINDS[seed % len(KINDS)], sink=Sink("memory"), most_pairs=10**6)
    fresh = random_join(dice)
    shown = call("isnotnull", (of(LEFT, 3),), "boolean")
    new = replace(old, having=shown, condition=fresh.condition if old.kind == "inner" else old.condition)
    run = Run(tmp_path, [old], 2, others=[PAID])
    half = len(epochs) // 2
    for at, batch in enumerate(epochs):
        if at == half:
            pond = KnownPond(run.pond.spec, run.pond.manifest)
            run.pond.change(validate.alter(pond, new))
            with pytest.raises(ChangeRefused, match="would match other events"):
                validate.alter(pond, replace(new, left=replace(new.left, delay_us=new.left.delay_us + 1)))
        run.epoch_of({name: [rows] for name, rows in batch.items()})
    run.pond.drain()
    taken = naive_join.judged(old, epochs).taken
    mark = naive_join.mark_us(old, epochs[:half])
    expected = [] if mark is None else naive_join.rows(old, taken, mark)
    before = [] if mark is None else [repr(row) for row in naive_join.rows(new, taken, mark)]
    for row in naive_join.rows(new, taken):
        if repr(row) in before:
            before.remove(repr(row))
        else:
            expected.append(row)
    assert_same_rows(expected, run.answers().rows["j"], about=seed)
